"""What a parent may do to its child, and what it may not: the child's time, and the child's own end."""

from __future__ import annotations

import pytest
from child_verbs import family, pass_on
from operator_verbs import cancel
from server_steps import ONCE
from world import World, work_of

from keyspace.lifecycle import DeadlineSource, Execution, Phase, Recovery, StopReason
from keyspace.records.work import Direction
from keyspace.transitions.declaration import ChildTerms
from keyspace.transitions.propagate_stop import Propagated
from keyspace.transitions.settle_child import Settled
from keyspace.transitions.work import Accepted, Work

PARENT_MS = 60_000


@pytest.mark.parametrize(
    ("asked_ms", "expected_ms", "source"),
    [
        (None, PARENT_MS - 1_000, DeadlineSource.PARENT),
        (PARENT_MS, PARENT_MS - 1_000, DeadlineSource.PARENT),
        (5_000, 5_000, DeadlineSource.INVOKE),
    ],
)
async def test_a_child_has_no_more_time_than_its_parent_has_left(
    empty: World, asked_ms: int | None, expected_ms: int, source: DeadlineSource
) -> None:
    """RFD 2, "the tightest of": the declaring instant counts, not the one at which the parent began."""
    await empty.begin({"fulfil": ["order.placed"], "pick": []}, timeout_ms=PARENT_MS)
    await empty.hello()
    run = await empty.start_run()
    empty.clock.advance(1_000)
    terms = ChildTerms(function="pick", input=b"1", timeout_ms=asked_ms)
    assert await empty.declare(await empty.lease_pass(), "pick-it", retry=ONCE, terms=terms) == Accepted()
    child_id = (await empty.get_run(run.run_id)).child_id
    assert child_id is not None
    child = await empty.get_run(child_id)
    assert (child.deadline_at_ms, child.deadline_source) == (child.created_at_ms + expected_ms, source)
    await empty.check()


async def undo_of_child(world: World) -> Work:
    work = work_of(await world.lease(function="pick", direction=Direction.COMPENSATION))
    assert await world.authorize(work) == Accepted()
    return work


async def test_a_child_that_has_failed_on_its_own_is_not_stopped(world: World) -> None:
    """RFD 2, "Stop intent propagates": a child that is already undoing keeps its own end, which its parent then waits for."""
    run, child = await family(world)
    await world.declare(await world.lease_pass(function="pick"), "s1")
    step = work_of(await world.lease(function="pick"))
    assert await world.authorize(step) == Accepted()
    assert await world.succeed(step) == Accepted()
    assert await world.fail(await world.lease_pass(function="pick")) == Accepted()
    await cancel(world, run.run_id)
    assert await pass_on(world) == [Propagated.CHILD_DECIDED]
    child = await world.get_run(child.run_id)
    assert (child.phase, child.execution, child.stop) == (Phase.COMPENSATING, Execution.FAILED, None)
    assert (await world.get_run(run.run_id)).phase is Phase.CANCELLING
    assert await world.succeed(await undo_of_child(world)) == Accepted()
    child = await world.get_run(child.run_id)
    assert (child.execution, child.recovery) == (Execution.FAILED, Recovery.COMPENSATED)
    assert await pass_on(world) == [Settled.SETTLED]
    run = await world.get_run(run.run_id)
    assert (run.phase, run.execution) == (Phase.TERMINAL, Execution.CANCELLED)
    assert run.stop is not None and run.stop.reason is StopReason.CANCELLED
    await world.check()
