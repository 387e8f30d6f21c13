"""A revoked key on real processes: what stands open under it, a worker's session and a stream, ends within the stated time."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import anyio
import httpx
import pytest
from e2e_world import SHORT_LEASES, Site, World, open_world
from ryusen import ApiError, AsyncClient

from services.runtime.key_watch import REVOKED_MS_MAX
from topology.tables import Role

LEASE_S = int(SHORT_LEASES["lease_ms"]) / 1_000
EXIT_REFUSED = 3
WITHIN_S = REVOKED_MS_MAX / 1_000
STREAM_S_MAX = 30.0


@pytest.fixture(scope="module")
async def world(site: Site, tmp_path_factory: pytest.TempPathFactory, anyio_backend: str) -> AsyncIterator[World]:
    folder = tmp_path_factory.mktemp("revoked")
    async with open_world("pairs", folder, site, settings=SHORT_LEASES, workers=()) as opened:
        yield opened
    await opened.check()


@pytest.fixture
async def desk(world: World) -> AsyncIterator[httpx.AsyncClient]:
    """An administrator at the first gateway."""
    headers = {"Authorization": f"Bearer {world.access.admin_key}"}
    base_url = f"{world.launcher.gateway_url()}/v1/workspaces/{world.access.workspace}/"
    async with httpx.AsyncClient(base_url=base_url, headers=headers, trust_env=False) as http:
        yield http


async def make_key(desk: httpx.AsyncClient, role: str) -> dict[str, Any]:
    answer = await desk.post("keys", json={"role": role})
    answer.raise_for_status()
    made: dict[str, Any] = answer.json()
    return made


async def revoke(desk: httpx.AsyncClient, key: dict[str, Any]) -> None:
    (await desk.delete(f"keys/{key['key']}")).raise_for_status()


async def start_worker(world: World, index: int, key: str) -> None:
    former = world.access
    world.access = replace(former, worker_key=key)
    try:
        await world.start_workers(indices=[index])
    finally:
        world.access = former


@pytest.mark.case(74)
async def test_a_worker_ends_with_its_key_and_its_work_is_handled_as_a_lost_sessions(
    world: World, desk: httpx.AsyncClient, record_property: Callable[[str, object], None]
) -> None:
    """Case 074, "revoked keys on open sessions": the process says why and ends; its effect is in doubt, another key works on."""
    key = await make_key(desk, "worker")
    await start_worker(world, 0, key["secret"])
    gate = world.gate("never")
    run = await world.begin("field.gated", {"gate": str(gate)})
    await world.until_begun(run, "wait")
    await start_worker(world, 1, world.access.worker_key)
    await revoke(desk, key)
    revoked_s = time.monotonic()
    worker = world.launcher.process(Role.WORKER, 0)
    assert await worker.wait(WITHIN_S) == EXIT_REFUSED
    record_property("worker_ended_s", round(time.monotonic() - revoked_s, 2))
    log = world.launcher.log(Role.WORKER, 0).read_text()
    assert "the service ended the session: key_revoked" in log
    assert "not connected" not in log, "it does not try again"
    await world.until_kind(run, "attempt-unknown", seconds_max=10 * LEASE_S)
    assert world.begun(run) == {"wait": 1}, "what may have happened is not done again"
    other = await world.begin("field.steady", {"id": "after"})
    assert (await world.ended(other))["status"] == "completed"
    assert world.launcher.process(Role.WORKER, 1).is_alive


@pytest.mark.case(74)
async def test_a_stream_ends_with_its_key_at_a_gateway_that_was_not_told(
    world: World, desk: httpx.AsyncClient, record_property: Callable[[str, object], None]
) -> None:
    """Case 074: revoked at one gateway, the stream of another ends with the reason; whoever follows is told by the status."""
    key = await make_key(desk, "reader")
    gate = world.gate("open at the end")
    run = await world.begin("field.gated", {"gate": str(gate)})
    await world.until_begun(run, "wait")
    elsewhere = world.launcher.gateway_url(1)
    reader, follower = Reader(), Reader()
    async with anyio.create_task_group() as group:
        group.start_soon(reader.read, elsewhere, world.access.workspace, run, key["secret"])
        group.start_soon(follower.follow, elsewhere, world.access.workspace, run, key["secret"])
        for one in (reader, follower):
            await one.has_begun.wait()
        await revoke(desk, key)
        revoked_s = time.monotonic()
        with anyio.fail_after(WITHIN_S):
            await reader.has_ended.wait()
        record_property("stream_ended_s", round(time.monotonic() - revoked_s, 2))
        with anyio.fail_after(WITHIN_S):
            await follower.has_ended.wait()
    assert ": key_revoked" in reader.heard
    assert "event: end" not in reader.heard
    assert follower.heard[-1] == "401 unauthenticated"
    gate.touch()
    assert (await world.ended(run))["status"] == "completed"


class Reader:
    """Reads one history stream to its end, as lines or through the client."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.has_begun = anyio.Event()
        self.has_ended = anyio.Event()

    def hear(self, what: str) -> None:
        self.heard.append(what)
        self.has_begun.set()

    async def read(self, url: str, workspace: str, run: str, secret: str) -> None:
        headers = {"Authorization": f"Bearer {secret}"}
        path = f"/v1/workspaces/{workspace}/runs/{run}/history/stream"
        async with (
            httpx.AsyncClient(base_url=url, headers=headers, timeout=STREAM_S_MAX, trust_env=False) as http,
            http.stream("GET", path) as response,
        ):
            async for line in response.aiter_lines():
                self.hear(line)
        self.has_ended.set()

    async def follow(self, url: str, workspace: str, run: str, secret: str) -> None:
        async with AsyncClient(url, workspace, secret) as client:
            try:
                async for entry in client.follow(run):
                    self.hear(entry["kind"])
            except ApiError as error:
                self.hear(f"{error.status} {error.problem}")
        self.has_ended.set()
