"""Waits for events over real processes: whoever is killed between the registration and the match, the run goes on once."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest
from e2e_world import SHORT_LEASES, Site, World, open_world

from topology.tables import Role

LONG_MS = 3_600_000
SHORT_MS = 1_500


@pytest.fixture(scope="module")
async def world(site: Site, tmp_path_factory: pytest.TempPathFactory, anyio_backend: str) -> AsyncIterator[World]:
    folder = tmp_path_factory.mktemp("waits")
    async with open_world("demo", folder, site, settings=SHORT_LEASES) as opened:
        yield opened
    await opened.check()


async def waiting(world: World, order: str, wait_ms: int = LONG_MS) -> str:
    """Start a run that waits for the event of its order, and return it once it is registered."""
    run = await world.begin("field.awaiting", {"order": order, "wait_ms": wait_ms})
    await world.until_kind(run, "step-declared")
    return run


@pytest.mark.case(28)
@pytest.mark.case(32)
async def test_a_wait_outlives_fan_out_and_dispatcher(world: World) -> None:
    """Case 028, "a raised event did not wake the run": accepted while both are gone, it settles the wait when they are back."""
    run = await waiting(world, "o-1")
    step = (await world.client.steps(run)).items[0]
    assert (step["kind"], step["state"], step["awaited"]["match"]) == ("wait", "waiting", {"order": "o-1"})
    assert (await world.client.run(run))["waiting"]["word"] == "event"
    await world.launcher.kill(Role.FANOUT)
    await world.launcher.kill(Role.DISPATCHER)
    sent = await world.client.submit("field.heard", {"said": "yes"}, correlation={"order": "o-1"})
    await world.launcher.restart(Role.FANOUT)
    await world.until_kind(run, "step-completed")
    await world.launcher.restart(Role.DISPATCHER)
    ended = await world.ended(run)
    assert (ended["status"], ended["output"]) == ("completed", "yes")
    steps = {one["step"]: one for one in (await world.client.steps(run)).items}
    assert (steps["it"]["event"], steps["it"]["due_at_ms"]) == (sent.event, step["due_at_ms"])
    kinds = await world.kinds(run)
    assert (kinds["step-declared"], kinds["step-completed"], world.begun(run)) == (2, 2, {"only": 1})


@pytest.mark.case(28)
async def test_a_wait_whose_time_passed_while_all_were_gone_times_out(world: World) -> None:
    """Case 028, "a wait past its anchor times out instead of matching": the event that came after it changes nothing."""
    run = await waiting(world, "o-2", SHORT_MS)
    await world.launcher.kill(Role.FANOUT)
    await world.launcher.kill(Role.DISPATCHER)
    await anyio.sleep((SHORT_MS + 500) / 1_000)  # the anchor passes while nobody is there to see it
    await world.client.submit("field.heard", {"said": "late"}, correlation={"order": "o-2"})
    await world.launcher.restart(Role.FANOUT)
    await world.launcher.restart(Role.DISPATCHER)
    ended = await world.ended(run)
    assert (ended["status"], ended["output"], world.begun(run)) == ("completed", "sdk.timeout", {})
