"""Blocked runs beside timers, emissions and children: whatever clears a blocker clears it first, and a stop reaches a blocked child."""

from __future__ import annotations

import pytest
from blocker_verbs import block, blocked_runs, blocker_of, rediscover, run_probe_lane
from child_verbs import child_of, family, invocation, pass_on_all, publish_each
from operator_verbs import cancel
from server_steps import emission, sleep_for
from test_blockers import assert_no_trace
from test_releases import release
from world import World

from keyspace.lifecycle import Execution, Phase
from keyspace.transitions.declaration import Declaration
from keyspace.transitions.work import Accepted

pytestmark = pytest.mark.case(52)


@pytest.mark.parametrize("kind", ["timer", "child", "emission"])
async def test_a_step_of_the_server_clears_the_blocker(world: World, kind: str) -> None:
    """RFD 2, "Any non-blocked response atomically clears the blocker and follows its ordinary transition": of every kind."""
    await publish_each(world, {"fulfil": None, "pick": None})
    run = await world.start_run()
    await block(world, await world.lease_pass())
    await rediscover(world, run.run_id)
    declared: Declaration = {"timer": sleep_for(5), "child": invocation(), "emission": emission()}[kind]
    answer = await world.declare(await world.lease_pass(), declared.step_id, retry=declared.retry, terms=declared.terms)
    assert answer == Accepted()
    await assert_no_trace(world, run.run_id)
    kinds = await world.kinds(run.run_id)
    assert kinds.index("definition-unblocked") + 1 == kinds.index("step-declared")
    assert kinds.count("definition-unblocked") == 1
    assert (await world.get_run(run.run_id)).phase is Phase.RUNNING
    await world.check()


@pytest.mark.parametrize("way", ["cancel", "release"])
async def test_a_blocked_child(world: World, way: str) -> None:
    """RFD 2, "A stop clears the blocker": also one that comes down from the parent; and a release frees the child alone."""
    run, child = await family(world)
    assert await block(world, await world.lease_pass(function="pick")) == Accepted()
    assert (await world.get_run(child.run_id)).phase is Phase.DEFINITION_BLOCKED
    assert await blocked_runs(world, "pick") == [child.run_id]
    assert (await child_of(world, run.run_id)).run_id == child.run_id, "its parent waits for it as before"
    await world.check()
    if way == "cancel":
        await cancel(world, run.run_id)
    else:
        await release(world, "v1", "pick")
        await run_probe_lane(world)
        assert await world.complete(await world.lease_pass(function="pick")) == Accepted()
    await pass_on_all(world)
    ended = await world.get_run(child.run_id)
    assert ended.execution is (Execution.CANCELLED if way == "cancel" else Execution.COMPLETED)
    assert await blocker_of(world, child.run_id) is None and await blocked_runs(world, "pick") == []
    if way == "release":
        assert await world.complete(await world.lease_pass()) == Accepted()
    assert (await world.get_run(run.run_id)).phase is Phase.TERMINAL
    await world.check()


async def test_a_release_wakes_the_runs_of_every_function_it_offers(world: World) -> None:
    """RFD 2, "wakes blocked runs for each function it advertises"."""
    _, child = await family(world)
    await block(world, await world.lease_pass(function="pick"))
    other = await world.start_run()
    await block(world, await world.lease_pass())
    await release(world, "v1", "fulfil pick")
    assert len(await run_probe_lane(world)) == 2, "a wake for each"
    for run_id in (child.run_id, other.run_id):
        assert (await world.kinds(run_id))[-1] == "definition-woken"
    await world.check()
