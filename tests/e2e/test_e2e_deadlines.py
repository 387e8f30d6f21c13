"""Run timeouts in real time: a deadline passes while its dispatcher is dead, and many pass where nothing else happens."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from e2e_world import SHORT_LEASES, Site, World, open_world
from eventually import eventually

from topology.tables import Role

COUNT = 10
LATE_MS_MAX = 1_000
"""What a shared machine may make of the 10 ms that an idle dispatcher takes at most."""
SETTINGS = SHORT_LEASES | {"run_timeout_default_ms": "600000"}


@pytest.fixture(scope="module")
async def world(site: Site, tmp_path_factory: pytest.TempPathFactory, anyio_backend: str) -> AsyncIterator[World]:
    folder = tmp_path_factory.mktemp("deadlines")
    async with open_world("demo", folder, site, settings=SETTINGS) as opened:
        yield opened
    await opened.check()


def undone(world: World, run: str) -> list[str]:
    return [mark.step for mark in world.marks("undone") if mark.run == run]


async def stopped(world: World, run: str) -> dict[str, Any]:
    """Wait until a run has been told to stop and return it."""

    async def look() -> dict[str, Any] | None:
        found = await world.client.run(run)
        return found if found["stop"] else None

    return await eventually(look, f"run {run} is stopped")


@pytest.mark.case(10)
@pytest.mark.case(25)
async def test_a_deadline_that_passes_while_its_dispatcher_is_dead(world: World) -> None:
    """Cases 010 and 025: kill -9 before it fires; the next dispatcher fires it, a late success counts, and both are undone."""
    gate = world.gate("hurried")
    run = await world.begin("field.hurried", {"gate": str(gate)})
    await world.until_begun(run, "wait")
    deadline = (await world.client.run(run))["deadline"]
    assert deadline["source"] == "function" and 0 < deadline["left_ms"] <= 5_000
    await world.launcher.kill(Role.DISPATCHER)

    async def is_over() -> bool:
        return bool((await world.client.run(run))["deadline"]["left_ms"] == 0)

    await eventually(is_over, "the deadline has passed")
    assert (await world.client.run(run))["stop"] is None, "nobody was there to fire it"
    await world.launcher.restart(Role.DISPATCHER)
    found = await stopped(world, run)
    assert (found["stop"]["reason"], found["stop"]["by"]) == ("timed_out", "deadline")
    assert found["phase"] == "cancelling", "what had begun is waited for"
    gate.touch()
    ended = await world.ended(run)
    assert (ended["status"], ended["recovery"]) == ("timed_out", "compensated")
    assert undone(world, run) == ["wait", "first"]
    assert (ended["deadline"]["at_ms"], ended["deadline"]["left_ms"]) == (deadline["at_ms"], None)


@pytest.mark.case(65)
async def test_deadlines_pass_on_time(world: World) -> None:
    """ARCHITECTURE 4, "a timer is on time": by the engine's clock, never early, and the steps before are undone."""
    runs = [await world.begin("field.overdue", {}) for _ in range(COUNT)]
    ended = [await world.ended(run) for run in runs]
    late_ms = [run["stop"]["at_ms"] - run["deadline"]["at_ms"] for run in ended]
    print(f"\ndeadlines fired late by {sorted(late_ms)} ms")
    assert min(late_ms) >= 0
    assert max(late_ms) <= LATE_MS_MAX
    assert {(run["status"], run["recovery"]) for run in ended} == {("timed_out", "compensated")}
    assert [undone(world, run) for run in runs] == [["first"]] * COUNT


async def test_a_default_of_the_deployment_is_told_from_a_declaration(world: World) -> None:
    """RFD 1, "a deployment may provide a visible inherited default": the run says whose deadline it has."""
    run = await world.begin("field.once", {})
    found = await world.ended(run)
    assert found["status"] == "completed"
    assert found["deadline"]["source"] == "deployment"
    assert found["deadline"]["at_ms"] - found["created_at_ms"] == 600_000
