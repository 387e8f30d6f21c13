"""The life of a server process: open the store, check the keyspace, say that it lives, serve, drain, leave.

Signals and exit codes are in `running`.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from importlib.metadata import version
from pathlib import Path

import anyio
from starlette.applications import Starlette
from starlette.routing import Route

from keyspace.clock import Clock, SystemClock
from keyspace.errors import KeyspaceError, Refusal, UnknownVersion
from keyspace.keyspace import Keyspace
from keyspace.opening import (
    HIGH_WATER_PERIOD_MS,
    announce_process,
    forget_process,
    live_processes,
    open_keyspace,
    record_high_water,
)
from keyspace.policy import RunTimePolicy
from keyspace.records.work import ProcessRecord
from keyspace.store.api import Store
from keyspace.store.errors import StoreError, StoreUnavailableError
from keyspace.store.open import open_store
from keyspace.tx import Tx
from services.runtime.config import Config
from services.runtime.health import ClockMark, Health, ServingKeyspace
from services.runtime.http import PortUnavailable, bind, serve_http
from services.runtime.key_watch import KeyWatch
from services.runtime.peers import SignsOfLife, stray_ms
from services.runtime.probes import probe_routes
from services.runtime.telemetry import Telemetry, metrics_route

__all__ = ["SERVER_VERSION", "Drain", "NotReady", "Process", "open_existing_keyspace", "open_process"]

log = logging.getLogger(__name__)

HEARTBEAT_MS = 2_000
LIVE_MS = 4 * HEARTBEAT_MS
"""A process silent for longer is no peer any more."""
FORGOTTEN_MS = 300_000
FORGOTTEN_COUNT_MAX = 16
"""Records of processes long dead that one heartbeat removes."""
OPEN_MS = 15_000
"""How long the store may take to answer at start."""
MARK_SHARE = 4
"""A mark may be off by this part of the skew bound, so that two of them and the bound itself leave room."""
METRICS_DRAIN_MS = 1_000
LEAVE_MS = 2_000
"""How long a leaving process tries to remove its record."""

SERVER_VERSION = version("ryusen-server")


class NotReady(Exception):
    """The process cannot start; the message is one line that names the remedy."""


class Drain:
    """Told once; from then on a process finishes what it has begun and takes nothing new."""

    def __init__(self) -> None:
        """Nothing is asked yet."""
        self._event = anyio.Event()

    @property
    def is_begun(self) -> bool:
        """Whether the process is leaving."""
        return self._event.is_set()

    def begin(self) -> None:
        """Ask; asking again changes nothing."""
        self._event.set()

    async def wait(self) -> None:
        """Return when the process is leaving."""
        await self._event.wait()


class Process:
    """A running process: what its services need and may ask.

    Attributes:
        config: its settings.
        role: `gateway`, `fanout`, `dispatcher` or `dev`.
        process_id: 32 hexadecimal digits, new at every start.
        clock: engine time.
        keyspace: refuses to commit while the clock cannot be trusted.
        health: whether it may serve.
        telemetry: its metrics.
        drain: set when it is told to leave.
        keys_in_use: ends what stands open under a key that was revoked.
    """

    def __init__(self, config: Config, role: str, store: Store, clock: Clock) -> None:
        """Bind the parts; `open_process` starts them."""
        self.config = config
        self.role = role
        self.clock = clock
        self.health = Health(config.skew_ms)
        self.keyspace = ServingKeyspace(
            store,
            clock=clock,
            prefix=config.key_prefix.encode(),
            allowance_bytes=config.allowance_bytes,
            payload_bytes_max=config.payload_bytes_max,
            run_time=RunTimePolicy(config.run_timeout_default_ms or None, config.run_timeout_max_ms or None),
        )
        self.keyspace.health = self.health
        self.process_id = self.keyspace.mint()
        self.started_at_ms = clock.now_ms()
        self.telemetry = Telemetry(self.keyspace.meter, self.health, role=role, version=SERVER_VERSION)
        self.drain = Drain()
        self.keys_in_use = KeyWatch(self.keyspace.transact_always, clock=clock)
        self.address = socket.gethostname()
        self._peers: list[ProcessRecord] = []
        self._signs = SignsOfLife(LIVE_MS)
        self._mark: ClockMark | None = None

    def peers(self, role: str | None = None) -> list[str]:
        """Return the ids of the live processes of a role, this one included, as of the last heartbeat; sorted.

        A `dev` process counts in every role. For affinity only, never for correctness.
        """
        wanted = self.role if role is None else role
        found = {peer.process_id for peer in self._peers if peer.role in (wanted, "dev")}
        if self.role in (wanted, "dev"):
            found.add(self.process_id)
        return sorted(found)

    async def heartbeat(self) -> None:
        """Say that the process lives, learn of its peers, compare clocks.

        Raises:
            StoreError: the store did not answer.
        """
        record = ProcessRecord(
            process_id=self.process_id,
            role=self.role,
            address=self.address,
            clock_ms=self.clock.now_ms(),
            started_at_ms=self.started_at_ms,
            version=SERVER_VERSION,
            mark_ms=self._mark.clock_ms if self._mark else 0,
            mark_version=self._mark.version if self._mark else 0,
        )
        await self.keyspace.transact_always("announce_process", lambda tx: announce_process(tx, record))
        # Read only now: a store without a cluster's clock advances its version at commits, and this one is fresh.
        mark, everybody = await self.keyspace.transact_always("look_around", self._look_around)
        self._mark = mark or self._mark
        now_ms = self.clock.now_ms()
        live = self._signs.live(everybody, now_ms=now_ms, monotonic_ms=self.clock.monotonic_ms(), own=self._mark)
        self._peers = [peer for peer in live if peer.process_id != self.process_id]
        if mark is not None:
            marks = [ClockMark(peer.mark_ms, peer.mark_version) for peer in self._peers if peer.mark_version]
            self.health.compare_clocks(mark, marks)
        await self._forget(everybody, now_ms)

    async def _look_around(self, tx: Tx) -> tuple[ClockMark | None, list[ProcessRecord]]:
        """Return what the clock says at a store version, None when the answer took too long to tell, and every process."""
        version = await tx.read_version()
        # A busy event loop or store may have held the version back; a mark made of it would accuse a clock that is right.
        is_prompt = self.clock.now_ms() - tx.now_ms <= self.config.skew_ms // MARK_SHARE
        return ClockMark(tx.now_ms, version) if is_prompt else None, await live_processes(tx, since_ms=0)

    async def _forget(self, everybody: list[ProcessRecord], now_ms: int) -> None:
        if self._mark is None:
            return  # without a mark of its own it could take the living for long dead
        dead = [
            peer.process_id for peer in everybody if now_ms - peer.clock_ms > FORGOTTEN_MS + stray_ms(peer, self._mark)
        ][:FORGOTTEN_COUNT_MAX]
        if not dead:
            return

        async def forget(tx: Tx) -> None:
            for process_id in dead:
                await forget_process(tx, process_id)

        await self.keyspace.transact_always("forget_process", forget)

    async def beat(self) -> None:
        """Say for ever that the process lives; a store that does not answer makes it unready, not dead."""
        while True:
            await self.clock.sleep_ms(HEARTBEAT_MS)
            try:
                await self.heartbeat()
            except (StoreError, KeyspaceError) as error:
                if not self.health.store_fault:
                    log.warning("the store does not answer as it should", extra={"error": str(error)})
                self.health.store_fault = f"store: {error}"
            else:
                if self.health.store_fault:
                    log.info("the store answers as it should again")
                self.health.store_fault = ""

    async def mark_high_water(self) -> None:
        """Raise the stored high-water mark every minute."""
        while True:
            try:
                await self.keyspace.transact_always("record_high_water", record_high_water)
            except (StoreError, KeyspaceError) as error:
                log.warning("the high-water mark was not raised", extra={"error": str(error)})
            await self.clock.sleep_ms(HIGH_WATER_PERIOD_MS)

    def probe_routes(self) -> list[Route]:
        """Return /healthz and /readyz, for every port that the process listens on."""
        return probe_routes(self.keyspace, self.health, ready_ms=self.config.ready_ms)

    async def serve_metrics(self, sock: socket.socket) -> None:
        """Answer metrics and probes on the metrics port until the process drains."""
        app = Starlette(routes=[metrics_route(self.telemetry, self.config.metrics_path), *self.probe_routes()])
        await serve_http(app, sock, until=self.drain.wait, drain_ms=METRICS_DRAIN_MS)

    async def leave(self) -> None:
        """Remove the process's record, if the store answers soon."""
        with anyio.move_on_after(LEAVE_MS / 1_000, shield=True), suppress(StoreError, KeyspaceError):
            await self.keyspace.transact_always("forget_process", lambda tx: forget_process(tx, self.process_id))


@asynccontextmanager
async def open_process(
    config: Config, role: str, *, clock: Clock | None = None, store: Store | None = None
) -> AsyncIterator[Process]:
    """Open the store and the keyspace, keep the process's signs of life going, and leave in order.

    Args:
        config: the settings.
        role: what kind of process this is.
        clock: the host's by default.
        store: an open store, which the caller closes; by default the configured one is opened and closed.

    Raises:
        NotReady: the store cannot be opened or the keyspace refuses this process.
    """
    clock = clock or SystemClock()
    opened = None
    try:
        with anyio.fail_after(OPEN_MS / 1_000):
            if store is None:
                store = opened = await open_store(config.store, clock=clock)
            process = Process(config, role, store, clock)
            await open_keyspace(process.keyspace)
            await process.heartbeat()
        sockets = []
        if config.metrics_port:
            sockets.append(bind(config.metrics_host, config.metrics_port, setting="metrics_port"))
        async with anyio.create_task_group() as group:
            group.start_soon(process.beat, name="heartbeat")
            group.start_soon(process.mark_high_water, name="high-water mark")
            group.start_soon(process.keys_in_use.run, name="keys in use")
            for sock in sockets:
                group.start_soon(process.serve_metrics, sock, name="metrics")
            try:
                yield process
            finally:
                process.health.is_leaving = True
                group.cancel_scope.cancel()
                await process.leave()
    except TimeoutError:
        raise NotReady(f"the store {config.store} did not answer within {OPEN_MS} ms") from None
    except (StoreUnavailableError, PortUnavailable) as error:
        raise NotReady(str(error)) from error
    except (UnknownVersion, Refusal) as error:
        raise NotReady(f"{config.store}: {error}") from error
    finally:
        if opened is not None:
            with anyio.CancelScope(shield=True):
                await opened.close()


@asynccontextmanager
async def open_existing_keyspace(config: Config) -> AsyncIterator[Keyspace]:
    """Open the configured keyspace for a command that reads it and serves nobody; it must exist.

    Raises:
        NotReady: there is none, or it cannot be opened.
    """
    _require_existing(config.store)
    clock = SystemClock()
    try:
        with anyio.fail_after(OPEN_MS / 1_000):
            store = await open_store(config.store, clock=clock)
    except TimeoutError:
        raise NotReady(f"the store {config.store} did not answer within {OPEN_MS} ms") from None
    except StoreUnavailableError as error:
        raise NotReady(str(error)) from error
    try:
        keyspace = Keyspace(store, clock=clock, prefix=config.key_prefix.encode())
        await open_keyspace(keyspace)
        yield keyspace
    except (UnknownVersion, Refusal) as error:
        raise NotReady(f"{config.store}: {error}") from error
    finally:
        with anyio.CancelScope(shield=True):
            await store.close()


def _require_existing(url: str) -> None:
    scheme, _, path = url.partition(":")
    if scheme == "embedded" and not Path(path).exists():
        # Opening would make an empty one, and an empty one has no faults to find.
        raise NotReady(f"there is no store at {Path(path).resolve()}; name it with --store")
