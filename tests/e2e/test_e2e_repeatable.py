"""A worker dies in the middle of a step: one declared idempotent runs again by itself, any other waits for an operator."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from e2e_world import SHORT_LEASES, Site, World, open_world

from topology.tables import Role


@pytest.fixture(scope="module")
async def world(site: Site, tmp_path_factory: pytest.TempPathFactory, anyio_backend: str) -> AsyncIterator[World]:
    folder = tmp_path_factory.mktemp("repeatable")
    async with open_world("demo", folder, site, settings=SHORT_LEASES) as opened:
        yield opened
    await opened.check()


async def _kill_during(world: World, event_name: str) -> str:
    """Kill -9 the worker while it runs the gated step of a new run; then open the gate and start another worker."""
    gate = world.gate(event_name)
    run = await world.begin(event_name, {"gate": str(gate)})
    await world.until_begun(run, "wait")
    await world.launcher.kill(Role.WORKER)
    gate.touch()
    await world.launcher.restart(Role.WORKER)
    return run


@pytest.mark.case(7)
async def test_an_idempotent_step_runs_again_without_an_operator(world: World) -> None:
    """RFD 2, "protocol work classified as repeatable": the same attempt under the same operation id, in another process."""
    run = await _kill_during(world, "field.repeatable")
    found = await world.ended(run)
    assert (found["status"], found["output"]) == ("completed", "through")
    begun = [mark for mark in world.marks("begin") if mark.run == run]
    assert len({mark.pid for mark in begun}) == len(begun) == 2
    assert len({(mark.operation, mark.attempt) for mark in begun}) == 1
    kinds = await world.kinds(run)
    assert (kinds["attempt-redelivered"], kinds["attempt-unknown"], kinds["step-completed"]) == (1, 0, 1)
    (step,) = (await world.client.steps(run)).items
    assert (step["repeatable"], [attempt["loss_count"] for attempt in step["attempts"]]) == (True, [1])


async def test_any_other_step_is_unknown(world: World) -> None:
    """C6, "an effectful attempt authorized before the crash is never run again": the default, whoever comes back."""
    run = await _kill_during(world, "field.gated")
    await world.until_kind(run, "attempt-unknown")
    assert world.begun(run) == {"wait": 1}
    assert (await world.client.run(run))["waiting"]["word"] == "operator"
