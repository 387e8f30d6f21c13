"""Parents and children over real processes: dispatchers that die between a child's end and what its parent hears of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from e2e_world import SHORT_LEASES, Site, World, open_world
from eventually import eventually

from topology.tables import Role


@pytest.fixture(scope="module")
async def world(site: Site, tmp_path_factory: pytest.TempPathFactory, anyio_backend: str) -> AsyncIterator[World]:
    folder = tmp_path_factory.mktemp("children")
    async with open_world("demo", folder, site, settings=SHORT_LEASES) as opened:
        yield opened
    await opened.check()


async def family(world: World, **request: Any) -> tuple[str, str]:
    """Start a run and wait until it has invoked another; return both."""
    run = await world.begin("field.calling", request)

    async def invoked() -> str | None:
        child: str | None = (await world.client.run(run))["child"]
        return child

    return run, await eventually(invoked, "the run has invoked another")


async def at_the_gate(world: World, name: str) -> tuple[str, str]:
    """Start a run whose child waits for a gate in its callback; return both."""
    run, child = await family(world, call="gated", gate=str(world.gate(name)))
    await world.until_begun(child, "wait")
    return run, child


async def step_of(world: World, run: str) -> dict[str, Any]:
    (step,) = [one for one in (await world.client.steps(run)).items if one["step"] == "call"]
    return step


async def test_a_child_ends_and_its_parent_hears_of_it(world: World) -> None:
    """RFD 2, "the parent then continues exactly as it does after any other server-owned step"."""
    run, child = await at_the_gate(world, "calm")
    assert (await world.client.run(child))["parent"] == {"run": run, "step": "call", "depth": 1}
    assert (await world.client.run(run))["waiting"]["word"] == "child"
    world.gate("calm").touch()
    ended = await world.ended(run)
    assert (ended["status"], ended["output"]) == ("completed", ["returned", "through"])
    assert (await step_of(world, run))["child"] == child
    assert world.begun(run) == {"first": 1} and world.begun(child) == {"wait": 1}


@pytest.mark.case(16)
async def test_the_dispatcher_dies_between_the_childs_end_and_the_parents_settlement(world: World) -> None:
    """RFD 2, "A child's terminal transition schedules the settlement ... as one durable work item of its own": whoever is
    there next finds it. The child sleeps when its dispatcher is killed, and an operator ends it while there is none."""
    run, child = await family(world, call="sleepy", sleep_ms=3_600_000)
    await world.until_kind(child, "step-declared")
    await world.launcher.kill(Role.DISPATCHER)
    assert (await world.client.cancel(child))["phase"] == "terminal"
    assert (await step_of(world, run))["state"] == "waiting"
    assert (await world.client.run(run))["waiting"]["word"] == "child"
    await world.launcher.restart(Role.DISPATCHER)
    ended = await world.ended(run)
    assert (ended["status"], ended["output"]) == ("completed", ["child.cancelled"])
    kinds = await world.kinds(run)
    assert (kinds["step-declared"], kinds["step-failed"]) == (2, 1), "settled once"
    assert world.begun(run) == {"first": 1} and world.begun(child) == {}


@pytest.mark.case(38)
async def test_a_cancelled_root_ends_after_its_child(world: World) -> None:
    """Case 038, "kill the dispatcher between levels": the intent goes down all the same, and each run undoes its own steps."""
    run, child = await at_the_gate(world, "cancel")
    reply = await world.client.cancel(run)
    await world.launcher.kill(Role.DISPATCHER)
    await world.launcher.restart(Role.DISPATCHER)
    assert (reply["outcome"], reply["settling"]) == ("accepted", True)
    await world.until_kind(child, "stop-committed")
    assert (await world.client.run(run))["status"] == "cancelling"
    assert (await world.client.run(child))["status"] == "cancelling", "its callback had begun"
    world.gate("cancel").touch()
    ended, its_child = await world.ended(run), await world.ended(child)
    assert (ended["status"], ended["recovery"]) == ("cancelled", "compensated")
    assert its_child["status"] == "cancelled"
    assert its_child["terminal_at_ms"] <= ended["terminal_at_ms"]
    assert [line.step for line in world.marks("undone") if line.run == run] == ["first"]
    assert (await step_of(world, run))["failure"]["category"] == "child.cancelled"
