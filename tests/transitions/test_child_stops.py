"""A stop goes down a tree one level at a time: the intent only, with one reason, and every run ends after its child."""

from __future__ import annotations

from typing import Any

import pytest
from blocker_verbs import block, blocker_of
from child_verbs import (
    CALL,
    child_of,
    descend,
    family,
    invoke,
    pass_on,
    pass_on_all,
    pass_on_item,
    publish_each,
    settle_work,
    time_over,
)
from deadline_verbs import fire_item
from operator_verbs import (
    assert_nothing_began_after_the_stop,
    cancel,
    let_be_lost,
    must_refuse,
    resolve,
    target_of,
)
from server_steps import ONCE, sleep
from test_races import InterruptingStore, race
from world import EagerClock, World, work_of

from keyspace.layout import ITEM, WAIT_INDEX
from keyspace.lifecycle import Execution, Phase, Recovery, StepState, StopReason
from keyspace.records.run import FailureRecord, RunRecord
from keyspace.records.work import Direction, WorkKind
from keyspace.store.embedded import memory_store
from keyspace.transitions.declaration import WaitTerms
from keyspace.transitions.fire_deadline import Fired
from keyspace.transitions.propagate_stop import Propagated
from keyspace.transitions.resolve_attempt import DeclareFailure
from keyspace.transitions.settle_child import Settled
from keyspace.transitions.stop_run import StopOutcome
from keyspace.transitions.work import Accepted, Stale, Work

MINUTE_MS = 60_000


async def undo(world: World, function: str) -> None:
    """Undo the step that is next in a run of a function."""
    work = work_of(await world.lease(function=function, direction=Direction.COMPENSATION))
    assert await world.authorize(work) == Accepted()
    assert await world.succeed(work) == Accepted()


async def start_child_step(world: World, step_id: str = "effect") -> Work:
    """Let the child begin a callback."""
    assert await world.declare(await world.lease_pass(function="pick"), step_id) == Accepted()
    work = work_of(await world.lease(function="pick"))
    assert await world.authorize(work) == Accepted()
    return work


async def test_a_stop_goes_down_and_the_parent_ends_last(world: World) -> None:
    """RFD 2, "Stop intent propagates one level per transaction and it propagates intent, not termination"."""
    run, child = await family(world)
    reply = await cancel(world, run.run_id)
    assert (reply.outcome, reply.phase, reply.is_settling) == (StopOutcome.ACCEPTED, Phase.CANCELLING, True)
    assert (await world.get_run(child.run_id)).stop is None, "one level a transaction"
    (item,) = await settle_work(world)
    assert (item.kind, item.target, item.generation) == (WorkKind.STOP_PROPAGATE, child.run_id, child.generation)
    await world.check()
    assert await pass_on(world) == [Propagated.STOPPED]
    child = await world.get_run(child.run_id)
    assert (child.phase, child.execution) == (Phase.TERMINAL, Execution.CANCELLED)
    assert child.stop is not None and child.stop.by == f"parent:{run.run_id}"
    assert (await world.get_run(run.run_id)).phase is Phase.CANCELLING, "its step has not heard of the end yet"
    await world.check()
    assert await pass_on(world) == [Settled.SETTLED]
    run = await world.get_run(run.run_id)
    assert (run.phase, run.execution, run.recovery) == (Phase.TERMINAL, Execution.CANCELLED, Recovery.EMPTY_UNWIND)
    assert await world.records(ITEM) == []
    await world.check()


@pytest.mark.case(16)
async def test_a_second_delivery_of_an_intent_is_benign(world: World) -> None:
    """Case 016, "propagate one stop": nothing is told of the second, whenever it comes."""
    run, _ = await family(world)
    await start_child_step(world)
    await cancel(world, run.run_id)
    (item,) = await settle_work(world)
    assert await pass_on_item(world, item) is Propagated.STOPPED
    before = await world.dump()
    assert await pass_on_item(world, item) is Propagated.GONE
    assert (await cancel(world, run.run_id)).outcome is StopOutcome.REPEATED
    assert await world.dump() == before
    await world.check()


async def test_a_parents_deadline_reaches_the_child_as_the_same_reason(world: World) -> None:
    """RFD 2, "The reason is read from the parent's committed stop intent", also when it committed by a late settlement."""
    run, child = await family(world, parent_timeout_ms=MINUTE_MS)
    work = await start_child_step(world)
    await time_over(world, run)
    assert [item.kind for item in await settle_work(world)] == [WorkKind.STOP_PROPAGATE]
    assert await pass_on(world) == [Propagated.STOPPED]
    child = await world.get_run(child.run_id)
    assert child.stop is not None and child.stop.reason is StopReason.TIMED_OUT
    assert child.phase is Phase.CANCELLING, "the effect had begun"
    assert await world.succeed(work) == Accepted()
    await undo(world, "pick")
    assert (await world.get_run(child.run_id)).execution is Execution.TIMED_OUT
    await pass_on_all(world)
    run = await world.get_run(run.run_id)
    assert (run.phase, run.execution) == (Phase.TERMINAL, Execution.TIMED_OUT)
    step = await world.step(run.run_id, CALL)
    assert step.failure is not None and step.failure.category == "child.timed_out"
    await world.check()


async def test_parent_and_child_reach_one_deadline_in_either_order(world: World) -> None:
    """RFD 2, "a parent's cancellation and a parent's deadline reach the child as the same reason": both are TimedOut."""
    for is_child_first in (True, False):
        run, child = await family(world, parent_timeout_ms=MINUTE_MS)
        for one in (child, run) if is_child_first else (run, child):
            await time_over(world, one)
        await pass_on_all(world)
        for one in (run, child):
            ended = await world.get_run(one.run_id)
            assert (ended.phase, ended.execution) == (Phase.TERMINAL, Execution.TIMED_OUT)
        await world.check()


@pytest.mark.parametrize("is_settled", [True, False])
async def test_an_authorized_effect_of_the_child_is_not_cut_off(world: World, is_settled: bool) -> None:
    """RFD 2, "without cutting off an authorized effect": its late success joins the child's unwind, its loss holds both."""
    run, child = await family(world)
    work = await start_child_step(world)
    await cancel(world, run.run_id)
    await pass_on(world)
    assert (await world.get_run(child.run_id)).phase is Phase.CANCELLING
    if not is_settled:
        await let_be_lost(world, work)
        await pass_on_all(world)
        assert [(await world.get_run(one.run_id)).phase for one in (run, child)] == [Phase.CANCELLING] * 2
        await world.check()
        await resolve(world, target_of(work), DeclareFailure(FailureRecord(category="application", message="gone")))
        assert (await world.get_run(child.run_id)).recovery is Recovery.EMPTY_UNWIND
    else:
        assert await world.succeed(work) == Accepted()
        assert await settle_work(world) == [], "the child is being undone"
        await world.check()
        await undo(world, "pick")
        assert (await world.get_run(child.run_id)).recovery is Recovery.COMPENSATED
    await pass_on_all(world)
    assert (await world.get_run(run.run_id)).phase is Phase.TERMINAL
    await assert_nothing_began_after_the_stop(world, child.run_id)
    await world.check()


@pytest.mark.parametrize("what", ["pass", "leased callback", "timer", "wait", "blocker"])
async def test_the_intent_fences_what_the_child_has_not_begun(world: World, what: str) -> None:
    """RFD 2, "the intent fences every new forward authorization of the child, and its pending timers and waits"."""
    run, child = await family(world)
    work = await world.lease_pass(function="pick")
    if what == "leased callback":
        await world.declare(work, "a")
        work = work_of(await world.lease(function="pick"))
    elif what == "timer":
        await sleep(world, work, delay_ms=MINUTE_MS)
    elif what == "wait":
        await world.declare(
            work, "w", retry=ONCE, terms=WaitTerms(event="order.packed", match={}, timeout_ms=MINUTE_MS)
        )
    elif what == "blocker":
        await block(world, work)
        assert (await world.get_run(child.run_id)).phase is Phase.DEFINITION_BLOCKED
    await cancel(world, run.run_id)
    await pass_on(world)
    child = await world.get_run(child.run_id)
    assert (child.phase, child.recovery) == (Phase.TERMINAL, Recovery.EMPTY_UNWIND)
    assert await blocker_of(world, child.run_id) is None
    assert await world.records(WAIT_INDEX) == []
    if what == "leased callback":
        assert isinstance(await world.authorize(work), Stale)
    elif what == "pass":
        assert await world.declare(work, "a") == Stale("run_stopping")
    assert [item.kind for item in await world.records(ITEM)] == [WorkKind.CHILD_SETTLE]
    await pass_on_all(world)
    await world.check()


@pytest.mark.parametrize("decided", ["its own deadline", "cancelled", "unwinding", "completed"])
async def test_the_childs_own_decision_wins(world: World, decided: str) -> None:
    """RFD 2, "the child's own decision wins when it is already stopping or terminal"; FILLED-IN 10, C4: its item goes."""
    run, child = await family(world, child_timeout_ms=MINUTE_MS)
    work = await start_child_step(world)
    if decided == "its own deadline":
        await time_over(world, child)
    elif decided == "cancelled":
        await cancel(world, child.run_id)
    elif decided == "unwinding":
        await world.succeed(work)
        await world.fail(await world.lease_pass(function="pick"))
    await cancel(world, run.run_id)
    if decided == "completed":
        await world.succeed(work)
        await world.complete(await world.lease_pass(function="pick"))
        assert [item.kind for item in await settle_work(world)] == [WorkKind.CHILD_SETTLE], "no stop is left to pass on"
    else:
        before = await world.get_run(child.run_id)
        assert await pass_on(world) == [Propagated.CHILD_DECIDED]
        assert await world.get_run(child.run_id) == before
        await world.check()
        if decided != "unwinding":
            await world.succeed(work)
        await undo(world, "pick")
    ends = {"its own deadline": Execution.TIMED_OUT, "unwinding": Execution.FAILED, "completed": Execution.COMPLETED}
    assert (await world.get_run(child.run_id)).execution is ends.get(decided, Execution.CANCELLED)
    await pass_on_all(world)
    run = await world.get_run(run.run_id)
    assert (run.phase, run.execution) == (Phase.TERMINAL, Execution.CANCELLED)
    await world.check()


async def test_a_child_that_ended_unheard_needs_no_stop(world: World) -> None:
    """FILLED-IN 11, "An unsettled child counts as a settlement token of its parent's stop", even one that has ended."""
    run, _ = await family(world)
    await world.complete(await world.lease_pass(function="pick"), b"7")
    reply = await cancel(world, run.run_id)
    assert reply.phase is Phase.CANCELLING
    assert [item.kind for item in await settle_work(world)] == [WorkKind.CHILD_SETTLE]
    await world.check()
    assert await pass_on(world) == [Settled.SETTLED]
    assert await world.value(run.run_id, CALL) == b"7"
    assert (await world.get_run(run.run_id)).phase is Phase.TERMINAL
    await world.check()


async def test_a_settlement_that_is_the_last_token_begins_the_unwind(world: World) -> None:
    """RFD 2, "Compensation order is snapshotted only after every effectful settlement token resolves": the child is one."""
    await publish_each(world, {"fulfil": None, "pick": None})
    run = await world.start_run()
    await world.run_step("a")
    await invoke(world, await world.lease_pass())
    await cancel(world, run.run_id)
    assert (await world.get_run(run.run_id)).phase is Phase.CANCELLING
    await pass_on_all(world)
    run = await world.get_run(run.run_id)
    assert run.phase is Phase.COMPENSATING and run.unwind is not None and run.unwind.upper == 1
    await world.check()
    await undo(world, "fulfil")
    assert (await world.get_run(run.run_id)).recovery is Recovery.COMPENSATED
    await world.check()


# -- three generations


async def grandchild_at_work(world: World, timeout_ms: int | None) -> tuple[list[RunRecord], Work]:
    """Root, child and grandchild; the grandchild has completed two steps and runs the third."""
    await publish_each(world, {"fulfil": timeout_ms, "mid": None, "pick": None})
    root = await world.start_run()
    child = await invoke(world, await world.lease_pass(), "mid")
    grandchild = await invoke(world, await world.lease_pass(function="mid"), "pick")
    for step_id in ("a", "b"):
        assert await world.succeed(await start_child_step(world, step_id)) == Accepted()
    work = await start_child_step(world)
    return [await world.get_run(run.run_id) for run in (root, child, grandchild)], work


@pytest.mark.case(38)
@pytest.mark.parametrize("by", ["cancel", "deadline"])
@pytest.mark.parametrize("later", ["success", "nothing", "failure"])
async def test_stopping_a_root_leaves_nothing_running(world: World, by: str, later: str) -> None:
    """Case 038: the intent moves down one level a transaction with the same reason; each level authorizes nothing new,
    settles what runs, unwinds, and ends leaf first."""
    (root, child, grandchild), work = await grandchild_at_work(world, None if by == "cancel" else MINUTE_MS)
    stopped = Execution.CANCELLED if by == "cancel" else Execution.TIMED_OUT
    if by == "cancel":
        await cancel(world, root.run_id)
    else:
        await time_over(world, root)
    assert await pass_on(world) == [Propagated.STOPPED]
    assert await pass_on(world) == [Propagated.STOPPED]
    assert await pass_on(world) == []
    family_now = [await world.get_run(run.run_id) for run in (root, child, grandchild)]
    assert {run.phase for run in family_now} == {Phase.CANCELLING}
    assert {run.stop.reason.execution for run in family_now if run.stop is not None} == {stopped}
    await world.check()
    if later == "success":
        await world.succeed(work)
        await undo(world, "pick")
    elif later == "failure":
        await world.fail_attempt(work)
    else:
        await let_be_lost(world, work)
        assert (await world.get_run(grandchild.run_id)).phase is Phase.CANCELLING
        await world.check()
        await resolve(world, target_of(work), DeclareFailure(FailureRecord(category="application", message="gone")))
    await undo(world, "pick")
    await undo(world, "pick")
    assert (await world.get_run(child.run_id)).phase is Phase.CANCELLING
    assert await pass_on(world) == [Settled.SETTLED]
    assert (await world.get_run(root.run_id)).phase is Phase.CANCELLING
    assert await pass_on(world) == [Settled.SETTLED]
    ended = [await world.get_run(run.run_id) for run in (root, child, grandchild)]
    assert {(run.phase, run.execution) for run in ended} == {(Phase.TERMINAL, stopped)}
    assert ended[2].recovery is Recovery.COMPENSATED
    instants = [run.terminal_at_ms or 0 for run in ended]
    assert instants == sorted(instants, reverse=True), "leaf first"
    step = await world.step(child.run_id, CALL)
    assert step.state is StepState.FAILED
    for run in ended:
        await assert_nothing_began_after_the_stop(world, run.run_id)
    await world.check()


async def test_a_stop_in_the_middle_leaves_the_root_running(world: World) -> None:
    """RFD 2, "the parent then continues exactly as it does after any other server-owned step": only what is below stops."""
    chain = await descend(world, 3)
    await cancel(world, chain[1].run_id)
    await pass_on_all(world)
    assert [(await world.get_run(run.run_id)).phase for run in chain] == [Phase.RUNNING] + [Phase.TERMINAL] * 3
    work = await world.lease_pass(function="deep")
    assert work.run_id == chain[0].run_id
    step = await world.step(chain[0].run_id, CALL)
    assert step.failure is not None and step.failure.category == "child.cancelled"
    await world.check()


async def test_a_stop_with_another_reason_is_refused_all_the_same(world: World) -> None:
    """RFD 2, "A different stop outcome cannot replace the one that committed": while the child holds the run too."""
    run, child = await family(world, parent_timeout_ms=MINUTE_MS)
    await start_child_step(world)
    await time_over(world, run)
    await must_refuse(world, "stop_conflict", cancel(world, run.run_id))
    await pass_on(world)
    await must_refuse(world, "stop_conflict", cancel(world, child.run_id))


# -- at once


async def raced_world() -> tuple[World, InterruptingStore]:
    """A world without runs whose commits can be interrupted."""
    clock = EagerClock()
    store = InterruptingStore(memory_store(clock=clock))
    world = World(clock=clock, store=store)
    await world.begin()
    await world.hello()
    return world, store


async def _settle(world: World, _: Work) -> Any:
    return await pass_on_item(world, (await settle_work(world))[0])


async def _stop_root(world: World, work: Work) -> Any:
    return (await cancel(world, await root_of(world, work))).outcome


async def root_of(world: World, work: Work) -> str:
    run = await world.get_run(work.run_id)
    return run.run_id if run.parent is None else run.parent.run_id


@pytest.mark.case(19)
@pytest.mark.parametrize("is_stop_first", [True, False])
async def test_a_stop_races_the_settlement(is_stop_first: bool) -> None:
    """Case 019, "child settle" and "stop intent" on one run: one serial order explains what it came to."""
    world, store = await raced_world()
    run, _ = await family(world)
    work = await world.lease_pass(function="pick")
    await world.complete(work)
    order = (_stop_root, _settle) if is_stop_first else (_settle, _stop_root)
    told = await race(world, store, *order, work)
    assert set(told) == {StopOutcome.ACCEPTED, Settled.SETTLED}
    run = await world.get_run(run.run_id)
    assert (run.phase, run.execution) == (Phase.TERMINAL, Execution.CANCELLED)
    assert (await world.step(run.run_id, CALL)).state is StepState.COMPLETED
    assert await world.records(ITEM) == []
    await world.check()


@pytest.mark.case(19)
@pytest.mark.parametrize("is_stop_first", [True, False])
@pytest.mark.parametrize("end", ["complete", "fail"])
async def test_a_stop_of_the_parent_races_the_childs_end(is_stop_first: bool, end: str) -> None:
    """FILLED-IN 10, C4: whichever is first, no stop is left on its way to a child that has ended."""
    world, store = await raced_world()
    run, child = await family(world)
    work = await world.lease_pass(function="pick")

    async def ending(world: World, work: Work) -> Any:
        return await (world.complete(work) if end == "complete" else world.fail(work))

    order = (_stop_root, ending) if is_stop_first else (ending, _stop_root)
    told = await race(world, store, *order, work)
    assert set(told) == {StopOutcome.ACCEPTED, Accepted()}
    assert [item.kind for item in await settle_work(world)] == [WorkKind.CHILD_SETTLE]
    await world.check()
    await pass_on_all(world)
    assert (await world.get_run(child.run_id)).execution is not Execution.CANCELLED
    assert (await world.get_run(run.run_id)).execution is Execution.CANCELLED
    await world.check()


@pytest.mark.case(19)
@pytest.mark.parametrize("is_stop_first", [True, False])
async def test_an_intent_races_the_childs_own_end(is_stop_first: bool) -> None:
    """Case 019 one level down: the child has ended, or it was stopped; never both."""
    world, store = await raced_world()
    run, child = await family(world)
    work = await world.lease_pass(function="pick")
    await cancel(world, run.run_id)
    ending = (_settle, lambda world, work: world.complete(work))
    told = await race(world, store, *(ending if is_stop_first else ending[::-1]), work)
    if is_stop_first:
        assert told == (Propagated.STOPPED, Stale("run_stopping"))
    else:
        assert told == (Accepted(), Propagated.GONE)
    expected = Execution.CANCELLED if is_stop_first else Execution.COMPLETED
    assert (await world.get_run(child.run_id)).execution is expected
    await pass_on_all(world)
    assert (await world.get_run(run.run_id)).phase is Phase.TERMINAL
    await world.check()


@pytest.mark.case(16)
@pytest.mark.case(19)
@pytest.mark.parametrize("what", ["settlement", "intent"])
async def test_two_dispatchers_deliver_one_item(what: str) -> None:
    """Case 016, "two dispatchers ... settle one child, propagate one stop": the loser is told that it is gone."""
    world, store = await raced_world()
    run, _ = await family(world)
    work = await world.lease_pass(function="pick")
    if what == "settlement":
        await world.complete(work)
    else:
        await cancel(world, run.run_id)
    (item,) = await settle_work(world)

    async def deliver(world: World, _: Work) -> Any:
        return await pass_on_item(world, item)

    first, second = await race(world, store, deliver, deliver, work)
    assert first is (Settled.SETTLED if what == "settlement" else Propagated.STOPPED)
    assert second is (Settled.GONE if what == "settlement" else Propagated.GONE)
    await world.check()


@pytest.mark.case(19)
@pytest.mark.parametrize("is_deadline_first", [True, False])
async def test_a_deadline_races_the_settlement(is_deadline_first: bool) -> None:
    """RFD 2, "delayed timer dispatch cannot let completion bypass the deadline": TimedOut in either order."""
    world, store = await raced_world()
    run, _ = await family(world, parent_timeout_ms=MINUTE_MS)
    work = await world.lease_pass(function="pick")
    await world.complete(work)
    world.clock.advance(MINUTE_MS)
    timer = run.timeout_item
    assert timer is not None

    async def elapse(world: World, work: Work) -> Any:
        return await fire_item(world, run.run_id, timer)

    order = (elapse, _settle) if is_deadline_first else (_settle, elapse)
    told = await race(world, store, *order, work)
    assert set(told) <= {Fired.STOPPED, Fired.GONE, Settled.SETTLED}
    run = await world.get_run(run.run_id)
    assert (run.phase, run.execution) == (Phase.TERMINAL, Execution.TIMED_OUT)
    assert (await world.step(run.run_id, CALL)).state is StepState.COMPLETED
    await world.check()


async def test_the_stopped_childs_parent_is_found_by_its_child_only(world: World) -> None:
    """RFD 2, "every transaction stays bounded by its own run's records": an intent names no run above its parent."""
    chain = await descend(world, 2)
    await cancel(world, chain[0].run_id)
    await pass_on(world)
    child = await child_of(world, chain[0].run_id)
    assert child.stop is not None and child.stop.by == f"parent:{chain[0].run_id}"
    await pass_on(world)
    last = await world.get_run(chain[2].run_id)
    assert last.stop is not None and last.stop.by == f"parent:{chain[1].run_id}"
