"""Case 052 with real processes: a mistake in the code blocks its runs, and a deployment or an operator sets them free."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from e2e_world import APPS, Site, World, open_world
from eventually import eventually
from ryusen import ApiError
from test_e2e_code_changes import NEW, OLD, start, stop

from topology.bootstrap import open_workspace
from topology.demo import load_module
from topology.tables import Role

pytestmark = [pytest.mark.case(52), pytest.mark.case(50)]
COUNT = 12


@pytest.fixture
async def world(site: Site, tmp_path_factory: pytest.TempPathFactory, anyio_backend: str) -> AsyncIterator[World]:
    """A service whose workspace `evolving` has no worker yet."""
    folder = tmp_path_factory.mktemp("blocked")
    async with open_world("fleet", folder, site, workers=()) as first:
        access = await open_workspace(first.launcher, load_module(APPS / "evolving.py").app, "evolving")
        async with access.client(first.launcher.gateway_url()) as client:
            opened = World(first.launcher, access, client, first.prefix)
            yield opened
            await opened.check()


async def blocked(world: World, run: str) -> dict[str, Any]:
    """Wait until a run is blocked and at rest, and return it."""

    async def look() -> dict[str, Any] | None:
        found = await world.client.run(run)
        return found if found["waiting"] and found["waiting"]["word"] == "fix" else None

    return await eventually(look, f"run {run} is blocked")


async def test_a_release_with_the_fix_sets_the_blocked_runs_free(world: World) -> None:
    """RFD 1, "A newly preferred connected release wakes blocked runs": nobody asks, nothing that completed runs again."""
    await start(world, OLD)
    runs = [await world.begin("evolving.doubled", {"number": number}) for number in range(COUNT)]
    for run in runs:
        found = await blocked(world, run)
        assert found["blocker"]["step"] == "one" and found["blocker"]["release"] == "old"
        assert "evolving.py" in found["blocker"]["duplicate"]["location"]
    listed = (await world.client.runs(status="definition_blocked")).items
    assert {one["run"] for one in listed} == set(runs)
    await start(world, NEW)
    for run in runs:
        ended = await world.ended(run)
        assert (ended["status"], ended["output"]) == ("completed", ["one", "two"])
        kinds = await world.kinds(run)
        assert (kinds["definition-blocked"], kinds["definition-unblocked"]) == (1, 1)
        assert world.begun(run) == {"one": 1, "two": 1}
    assert "is used twice in one pass of function doubled" in _worker_log(world, OLD)


async def test_an_operator_looks_again_after_a_fix_that_announces_nothing(world: World) -> None:
    """RFD 1, "an explicit operator retry also rediscover current code": workers without a release name."""
    await start(world, OLD, release="")
    run = await world.begin("evolving.doubled", {})
    found = await blocked(world, run)
    assert found["blocker"]["needs_probe"] and found["blocker"]["release"] is None
    again = await world.client.rediscover(run)
    assert again["outcome"] == "accepted"

    async def looked_again() -> bool:
        # A release of another test may have had it looked at once already, so only what follows the request counts.
        kinds = [entry["kind"] for entry in await world.history(run)]
        return "definition-still-blocked" in kinds[kinds.index("definition-retry-requested") :]

    await eventually(looked_again, f"run {run} was looked at again")
    assert (await blocked(world, run))["blocker"]["count"] > found["blocker"]["count"]
    await stop(world, OLD)
    await start(world, NEW, release="")
    await world.client.rediscover(run)
    ended = await world.ended(run)
    assert (ended["status"], world.begun(run)) == ("completed", {"one": 1, "two": 1})
    with pytest.raises(ApiError, match="run_not_blocked"):
        await world.client.rediscover(run)


@pytest.mark.case(20)
async def test_a_blocked_run_is_cancelled_and_undone(world: World) -> None:
    """Case 052, "then cancel while blocked": what completed is undone by the very code that has the mistake."""
    await start(world, OLD)
    run = await world.begin("evolving.doubled", {})
    await blocked(world, run)
    assert (await world.client.cancel(run))["outcome"] == "accepted"
    ended = await world.ended(run)
    assert (ended["status"], ended["recovery"], ended["blocker"]) == ("cancelled", "compensated", None)
    assert (await world.kinds(run))["compensation-succeeded"] == 1


def _worker_log(world: World, place: int) -> str:
    return world.launcher.log(Role.WORKER, place).read_text()
