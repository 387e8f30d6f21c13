"""Case 050: runs that are under way meet other code than they began with, and none of them minds."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from e2e_world import APPS, Site, World, open_world
from eventually import eventually

from topology.bootstrap import open_workspace
from topology.demo import load_module
from topology.launcher import WorkerSpec
from topology.tables import Role

OLD, NEW = 0, 1
"""The places of the workers of the old and of the new code, at one dispatcher, which so knows of both at once."""


@pytest.fixture
async def world(site: Site, tmp_path_factory: pytest.TempPathFactory, anyio_backend: str) -> AsyncIterator[World]:
    """A service whose workspace `evolving` has one worker with the old code."""
    folder = tmp_path_factory.mktemp("evolving")
    async with open_world("fleet", folder, site, workers=()) as first:
        access = await open_workspace(first.launcher, load_module(APPS / "evolving.py").app, "evolving")
        async with access.client(first.launcher.gateway_url()) as client:
            opened = World(first.launcher, access, client, first.prefix)
            await start(opened, OLD)
            yield opened
            await opened.check()


async def start(world: World, place: int, *, release: str | None = None) -> None:
    """Start the worker of one code under a release's name, its own unless one is given; an empty one is none."""
    code = "old" if place == OLD else "new"
    ledger = {
        "FIELD_LEDGER": str(world.ledger),
        "EVOLVING_CODE": code,
        "RYUSEN_RELEASE": code if release is None else release,
    }
    spec = WorkerSpec(app="evolving:app", folder=APPS, key=world.access.worker_key, environment=ledger)
    await world.launcher.start_workers(spec, [place])
    workers = [process for process in world.launcher.processes if process.name.startswith(Role.WORKER.value)]
    gauge = f"ryusen_dispatch_sessions {sum(process.is_alive for process in workers)}.0"

    async def is_connected() -> bool:
        async with httpx.AsyncClient(trust_env=False) as http:
            return gauge in (await http.get(world.launcher.metrics_url(Role.DISPATCHER, 0))).text

    await eventually(is_connected, f"the worker of the {code} code is connected")


async def stop(world: World, place: int) -> None:
    process = world.launcher.process(Role.WORKER, place)
    process.signal(signal.SIGTERM)
    assert await process.wait(20) == 0


async def releases(world: World, run: str) -> list[str]:
    """Return the release of each attempt that was authorized, in their order."""
    entries = await world.history(run)
    return [entry["data"]["release"] for entry in entries if entry["kind"] == "attempt-authorized"]


@pytest.mark.case(50)
async def test_steps_may_be_inserted_removed_swapped_and_renamed(world: World) -> None:
    """FILLED-IN 6: accepted results stand, new ids run, order and display names mean nothing; two releases live at once."""
    gate = world.gate("reordered")
    run = await world.begin("evolving.reordered", {"gate": str(gate)})
    await world.until_begun(run, "gate")
    await start(world, NEW)
    gate.touch()
    found = await world.ended(run)
    assert (found["status"], found["output"]) == ("completed", ["zero", "one", "gate", "four", "three"])
    marks = [mark.step for mark in world.marks("begin") if mark.run == run]
    assert marks == ["one", "two", "gate", "zero", "four", "three"]
    assert await releases(world, run) == ["old", "old", "old", "new", "new", "new"]
    steps = {step["step"]: step["state"] for step in (await world.client.steps(run)).items}
    assert steps["two"] == "completed", "the removed step's result stays"
    assert world.launcher.process(Role.WORKER, OLD).is_alive


@pytest.mark.case(50)
async def test_a_removed_step_that_awaits_its_attempt_is_obsolete_and_returns_after_a_rollback(world: World) -> None:
    """FILLED-IN 6: `target_not_found` before any of its code runs; met again it is declared anew, with the next generation."""
    gate = world.gate("removed")
    run = await world.begin("evolving.removed", {"gate": str(gate)})
    await world.until_kind(run, "attempt-failed")
    await start(world, NEW)
    await stop(world, OLD)
    await world.until_kind(run, "step-obsolete")
    await world.until_begun(run, "hold")
    tried = world.begun(run)["shaky"]
    await start(world, OLD)
    await stop_while_held(world, gate)
    found = await world.ended(run)
    assert (found["status"], found["output"]) == ("completed", "gate")
    kinds = await world.kinds(run)
    assert (kinds["step-obsolete"], kinds["step-declared"]) == (1, 3), "shaky, hold, shaky again"
    assert world.begun(run) == {"shaky": tried + 1, "hold": 1}
    assert (await releases(world, run))[-2:] == ["new", "old"]


async def stop_while_held(world: World, gate: Path) -> None:
    """Open the gate while the new worker is leaving, so that its step ends there and the run goes on with the old code."""
    process = world.launcher.process(Role.WORKER, NEW)
    process.signal(signal.SIGTERM)
    log = world.launcher.log(Role.WORKER, NEW)

    async def is_leaving() -> bool:
        return "leaving" in log.read_text()

    await eventually(is_leaving, "the new worker says that it leaves")
    gate.touch()  # noqa: ASYNC240 - a file of a test
    assert await process.wait(20) == 0


@pytest.mark.case(50)
async def test_the_recorded_retry_policy_governs_under_new_code(world: World) -> None:
    """FILLED-IN 6, "the policy recorded when the declaration was accepted governs that step": two attempts, not nine."""
    run = await world.begin("evolving.retried", {})
    await world.until_kind(run, "attempt-failed")
    await start(world, NEW)
    await stop(world, OLD)
    found = await world.ended(run)
    assert (found["status"], found["output"]) == ("completed", 2)
    assert world.begun(run) == {"hopeless": 2}
    assert await releases(world, run) == ["old", "new"]
