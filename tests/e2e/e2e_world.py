"""A running service for a test: real processes, a client, the application's ledger, and what can be asked of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio
from eventually import eventually
from ryusen import ApiError, AsyncClient, Unreachable
from ryusen.client import EventReceipt

from topology.bootstrap import Access, open_workspace
from topology.check import check_store
from topology.demo import load_module
from topology.launcher import Launcher, WorkerSpec
from topology.tables import topology_named

__all__ = ["APPS", "SHORT_LEASES", "SUBMIT_S_MAX", "Mark", "Site", "World", "open_world", "submit_surely"]

APPS = Path(__file__).parent / "apps"
SHORT_LEASES = {"lease_ms": "2000", "skew_ms": "100"}
"""Expiry within a test's patience; the skew bound is a twentieth, which processes on one machine keep."""
SUBMIT_S_MAX = 60.0
HISTORY_PAGE = 500


@dataclass(frozen=True, slots=True)
class Site:
    """A store to run on: its address, and the key prefix that keeps tests apart on a cluster."""

    store: str | None
    prefix: str


@dataclass(frozen=True, slots=True)
class Mark:
    """A line of the ledger: a step's callback has begun or ended."""

    mark: str
    run: str
    step: str
    attempt: int
    operation: str
    pid: int
    request: str


class World:
    """One running service with one workspace."""

    def __init__(self, launcher: Launcher, access: Access, client: AsyncClient, prefix: str) -> None:
        self.launcher = launcher
        self.access = access
        self.client = client
        self.prefix = prefix

    @property
    def ledger(self) -> Path:
        return self.launcher.folder / "ledger.jsonl"

    def gate(self, name: str) -> Path:
        """Return a file that is not there yet; steps wait for it."""
        return self.launcher.folder / f"gate-{name}"

    def marks(self, mark: str | None = None) -> list[Mark]:
        """Return the ledger's lines, all or of one kind."""
        # Up to the last whole line: another process may be writing the next one.
        lines = self.ledger.read_bytes().rpartition(b"\n")[0].splitlines() if self.ledger.exists() else []
        found = [Mark(**json.loads(line)) for line in lines]
        return [line for line in found if mark is None or line.mark == mark]

    def begun(self, run: str) -> Counter[str]:
        """Return how often each step's callback of a run began."""
        return Counter(line.step for line in self.marks("begin") if line.run == run)

    async def begin(self, event_name: str, request: Mapping[str, Any], **options: Any) -> str:
        """Submit an event that one function is bound to and return the run it became."""
        receipt = await self.client.submit(event_name, dict(request), **options)
        return (await self.runs_of(receipt.event))[0]

    @asynccontextmanager
    async def clients(self, *, is_admin: bool = False) -> AsyncIterator[list[AsyncClient]]:
        """Return a client of each gateway; an administrator's may resolve attempts."""
        access = replace(self.access, client_key=self.access.admin_key) if is_admin else self.access
        async with AsyncExitStack() as stack:
            urls = [self.launcher.gateway_url(index) for index in range(self.launcher.topology.gateways)]
            yield [await stack.enter_async_context(access.client(url)) for url in urls]

    async def runs_of(self, event: str) -> list[str]:
        """Wait until an event is expanded and return its runs."""

        async def look() -> list[str]:
            found = await self.client.event(event)
            if found["expansion"]["state"] != "complete":
                return []
            assert found["matches"]["next_cursor"] is None
            return [match["run"] for match in found["matches"]["items"]]

        return await eventually(look, f"event {event} is expanded")

    async def ended(self, run: str, *, seconds_max: float = 20.0) -> dict[str, Any]:
        """Wait until a run is terminal and return it."""

        async def look() -> dict[str, Any] | None:
            found = await self.client.run(run)
            return found if found["phase"] == "terminal" else None

        return await eventually(look, f"run {run} is terminal", seconds_max=seconds_max)

    async def history(self, run: str) -> list[dict[str, Any]]:
        """Return a run's whole history."""
        return (await self.client.history(run, limit=HISTORY_PAGE)).items

    async def kinds(self, run: str) -> Counter[str]:
        """Return how often each kind of entry is in a run's history."""
        return Counter(entry["kind"] for entry in await self.history(run))

    async def until_kind(self, run: str, kind: str, *, count: int = 1, seconds_max: float = 20.0) -> None:
        """Wait until a run's history has `count` entries of a kind."""

        async def look() -> bool:
            return (await self.kinds(run))[kind] >= count

        await eventually(look, f"run {run} has {count} of {kind}", seconds_max=seconds_max)

    async def until_begun(self, run: str, step: str) -> None:
        """Wait until the callback of a step has begun."""

        async def look() -> bool:
            return self.begun(run)[step] > 0

        await eventually(look, f"step {step} of run {run} has begun")

    async def check(self) -> None:
        """Fail when the keyspace has any problem."""
        report = await check_store(self.launcher.store, prefix=self.prefix)
        assert report.key_count > 0
        assert report.problems == []

    async def start_workers(
        self, *, capacity: int = 10, grace: str = "10s", indices: Iterable[int] | None = None
    ) -> None:
        """Start workers of the topology, serving the field application in this workspace."""
        spec = WorkerSpec(
            app="field:app",
            folder=APPS,
            key=self.access.worker_key,
            capacity=capacity,
            grace=grace,
            environment={"FIELD_LEDGER": str(self.ledger)},
        )
        await self.launcher.start_workers(spec, indices)

    @asynccontextmanager
    async def other_workspace(self, name: str) -> AsyncIterator[World]:
        """Return the same service as another tenant of it sees it; its workers are still to be started."""
        access = await open_workspace(self.launcher, load_module(APPS / "field.py").app, name)
        async with access.client(self.launcher.gateway_url()) as client:
            yield World(self.launcher, access, client, self.prefix)


@asynccontextmanager
async def open_world(
    topology: str,
    folder: Path,
    site: Site,
    *,
    settings: Mapping[str, str] | None = None,
    capacity: int = 10,
    workers: Iterable[int] | None = None,
) -> AsyncIterator[World]:
    """Start a topology with the field application published and routed, and its workers, or those named, serving it."""
    chosen = {"key_prefix": site.prefix} | dict(settings or {})
    async with Launcher(topology_named(topology), folder, store=site.store, settings=chosen) as launcher:
        await launcher.start_servers()
        access = await open_workspace(launcher, load_module(APPS / "field.py").app)
        async with access.client(launcher.gateway_url()) as client:
            world = World(launcher, access, client, site.prefix)
            await world.start_workers(capacity=capacity, indices=workers)
            yield world


async def submit_surely(
    clients: list[AsyncClient], name: str, payload: object, key: str, *, correlation: Mapping[str, str] | None = None
) -> str:
    """Submit as a careful caller does: with a key, again and again, anywhere, until it is acknowledged; return the event."""
    return await _surely(
        clients, lambda client: client.submit(name, payload, idempotency_key=key, correlation=correlation)
    )


async def invoke_surely(clients: list[AsyncClient], function: str, payload: object, key: str) -> str:
    """Invoke a function of `field` as carefully, and return the event."""
    return await _surely(clients, lambda client: client.invoke("field", function, payload, idempotency_key=key))


async def _surely(clients: list[AsyncClient], call: Callable[[AsyncClient], Awaitable[EventReceipt]]) -> str:
    with anyio.fail_after(SUBMIT_S_MAX):
        turn = 0
        while True:
            try:
                return (await call(clients[turn % len(clients)])).event
            except Unreachable:
                turn += 1
            except ApiError as error:
                if error.status < 500:
                    raise
                turn += 1
