"""A stop against everything else that a run can do, each pair in each order: the second reads, the first commits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from operator_verbs import (
    assert_nothing_began_after_the_stop,
    cancel,
    start_undo,
)
from test_races import InterruptingStore, prepared, race
from world import LEASE_MS, RETRY, EagerClock, World, work_of

from keyspace.layout import STEP
from keyspace.lifecycle import Execution, Phase, Recovery, StepState
from keyspace.records.run import RetryRecord, RunRecord
from keyspace.store.embedded import memory_store
from keyspace.store.fault import FaultStore
from keyspace.store.fault_plan import CommitFault, FaultPlan
from keyspace.transitions.accept_declaration import Declaration
from keyspace.transitions.lose_lease import Loss
from keyspace.transitions.stop_run import StopOutcome, StopReply
from keyspace.transitions.work import Accepted, Replayed, Stale, Work

ENDED = (Phase.TERMINAL, Execution.CANCELLED, Recovery.EMPTY_UNWIND)
UNWINDING = (Phase.COMPENSATING, Execution.CANCELLED, None)
NEXT = Declaration("next", RETRY)
ENDED_AT_ONCE = StopReply(StopOutcome.ACCEPTED, *ENDED, False)
SETTLING = StopReply(StopOutcome.ACCEPTED, Phase.CANCELLING, None, None, True)


def outcome(run: RunRecord) -> tuple[Phase, Execution | None, Recovery | None]:
    return run.phase, run.execution, run.recovery


Act = Callable[[World, Work], Awaitable[Any]]


async def stop(world: World, work: Work) -> StopReply:
    return await cancel(world, work.run_id)


async def both_orders(
    world: World, store: InterruptingStore, act: Act, work: Work, *, is_stop_first: bool
) -> tuple[StopReply, Any]:
    """Race the stop with `act`; return the stop's reply and the other's."""
    if is_stop_first:
        return await race(world, store, stop, act, work)
    told, reply = await race(world, store, act, stop, work)
    return reply, told


ON_PASS: dict[str, Act] = {
    "completion": lambda world, work: world.complete(work),
    "failure": lambda world, work: world.fail(work),
    "declaration": lambda world, work: world.declare(work, "s1"),
    "loss": lambda world, work: world.lose(work.item_id, is_session_lost=True),
}


@pytest.mark.case(19)
@pytest.mark.case(20)
@pytest.mark.parametrize("completed", [0, 1])
@pytest.mark.parametrize("is_stop_first", [True, False])
@pytest.mark.parametrize("other", list(ON_PASS))
async def test_a_stop_races_an_answer(other: str, is_stop_first: bool, completed: int) -> None:
    """Cases 019 and 020: one serial order explains the reply, the record and the history."""
    world, store = await prepared()
    for _ in range(completed):
        await world.run_step("s0")
    work = await world.lease_pass()
    reply, verdict = await both_orders(world, store, ON_PASS[other], work, is_stop_first=is_stop_first)
    run = await world.get_run(work.run_id)
    kinds = await world.kinds(work.run_id)
    stopped = UNWINDING if completed else ENDED
    if is_stop_first or other in ("declaration", "loss"):
        assert (reply.outcome, outcome(run)) == (StopOutcome.ACCEPTED, stopped)
        await assert_nothing_began_after_the_stop(world, work.run_id)
    else:
        execution = Execution.COMPLETED if other == "completion" else Execution.FAILED
        assert reply.execution is execution, "the reply tells who was first"
        assert "stop-committed" not in kinds
        has_ended = other == "completion" or not completed
        assert reply.outcome is (StopOutcome.ALREADY_TERMINAL if has_ended else StopOutcome.ALREADY_ENDING)
    if is_stop_first:
        assert verdict in (Stale("run_stopping"), Loss.NOT_LOST)
    else:
        assert verdict in (Accepted(), Loss.REDELIVERED)
    await world.check()


ON_EFFECT: dict[str, Act] = {
    "success": lambda world, work: world.succeed(work),
    "success and declaration": lambda world, work: world.go_on(work, NEXT),
    "failure": lambda world, work: world.fail_attempt(work),
    "loss": lambda world, work: world.lose(work.item_id),
    "proof": lambda world, work: world.prove(work),
}


@pytest.mark.case(19)
@pytest.mark.case(22)
@pytest.mark.parametrize("is_stop_first", [True, False])
@pytest.mark.parametrize("other", list(ON_EFFECT))
async def test_a_stop_races_an_effect(other: str, is_stop_first: bool) -> None:
    """Case 022: a result that was authorized before the stop counts, the declaration behind it does not; nothing begins."""
    world, store = await prepared()
    work = await world.start_step("s1")
    if other == "loss":
        world.clock.advance(LEASE_MS)
    if other == "proof":
        await world.hello("session-2")
    reply, told = await both_orders(world, store, ON_EFFECT[other], work, is_stop_first=is_stop_first)
    run, step = await world.get_run(work.run_id), await world.step(work.run_id, "s1")
    assert reply.outcome is StopOutcome.ACCEPTED
    await assert_nothing_began_after_the_stop(world, work.run_id)
    continued_before = other == "success and declaration" and not is_stop_first
    if other.startswith("success"):
        result = told if other == "success" else told.result
        assert (result, step.state) == (Accepted(), StepState.COMPLETED)
        if continued_before:
            assert outcome(run) == (Phase.CANCELLING, None, None), "the step that was declared first had begun"
        else:
            assert outcome(run) == UNWINDING
            assert "next" not in [one.step_id for one in await world.records(STEP, work.run_id)]
    elif other == "failure":
        assert told == Accepted()
        assert step.state is (StepState.FAILED if is_stop_first else StepState.OBSOLETE)
        assert outcome(run) == ENDED
    elif other == "loss":
        assert (told, run.phase, run.unknown_count) == (Loss.UNKNOWN, Phase.CANCELLING, 1)
    else:
        assert told is True
        assert (step.state, outcome(run)) == (StepState.OBSOLETE, ENDED)
    await world.check()


@pytest.mark.case(22)
@pytest.mark.parametrize("is_stop_first", [True, False])
async def test_a_stop_races_an_authorization(is_stop_first: bool) -> None:
    """Case 022, "zero authorizations after the stop": a granted start is waited for, a later one is not granted."""
    world, store = await prepared()
    await world.declare(await world.lease_pass(), "s1")
    work = work_of(await world.lease())
    reply, verdict = await both_orders(
        world, store, lambda world, work: world.authorize(work), work, is_stop_first=is_stop_first
    )
    assert reply == (ENDED_AT_ONCE if is_stop_first else SETTLING)
    assert verdict == (Stale("lease_lost") if is_stop_first else Accepted())
    await assert_nothing_began_after_the_stop(world, work.run_id)
    await world.check()


@pytest.mark.case(20)
@pytest.mark.parametrize("is_stop_first", [True, False])
@pytest.mark.parametrize("is_failing", [True, False])
async def test_a_repeated_stop_beside_the_last_compensation_changes_nothing(
    world: World, is_failing: bool, is_stop_first: bool
) -> None:
    """Case 020, "then against the last compensation": the outcomes are those of the first stop, in either order."""
    await world.start_run()
    only = RetryRecord(attempts=1, initial_ms=1, coefficient=1.0, cap_ms=1)
    step = await world.start_step("s1", undo_retry=only)
    await world.succeed(step)
    await cancel(world, step.run_id)
    work = await start_undo(world)
    before = len(await world.history(step.run_id))
    if is_stop_first:
        assert (await cancel(world, step.run_id)).outcome is StopOutcome.REPEATED
    ended = await (world.fail_attempt(work) if is_failing else world.succeed(work))
    assert ended == Accepted()
    if not is_stop_first:
        assert (await cancel(world, step.run_id)).outcome is StopOutcome.ALREADY_TERMINAL
    recovery = Recovery.COMPENSATION_FAILED if is_failing else Recovery.COMPENSATED
    assert outcome(await world.get_run(step.run_id)) == (Phase.TERMINAL, Execution.CANCELLED, recovery)
    later = [entry.kind for entry in (await world.history(step.run_id))[before:]]
    assert "stop-committed" not in later
    assert await world.succeed(work) == (Stale("attempt_settled") if is_failing else Replayed())
    await world.check()


async def test_two_stops_at_once_are_one() -> None:
    """RFD 2, "the first one already committed the outcome": of two at once one is accepted, the other repeats it."""
    world, store = await prepared()
    work = await world.start_step("s1")
    first, second = await race(world, store, stop, stop, work)
    assert (first, second) == (SETTLING, SETTLING._replace(outcome=StopOutcome.REPEATED))
    assert (await world.kinds(work.run_id)).count("stop-committed") == 1
    await world.check()


@pytest.mark.case(1)
@pytest.mark.parametrize("fault", [CommitFault.UNKNOWN_COMMITTED, CommitFault.UNKNOWN_NOT_COMMITTED])
@pytest.mark.parametrize("stage", ["queued", "authorized", "completed"])
async def test_a_stop_whose_commit_is_unknown_is_made_once(stage: str, fault: CommitFault) -> None:
    """Case 001: tried again it finds itself; the reply is true of the run either way, and history tells of one stop."""
    clock = EagerClock()
    plan = FaultPlan().at_commit(1, fault, transition="cancel_run")
    world = World(clock=clock, store=FaultStore(memory_store(clock=clock), plan, clock=clock))
    await world.begin()
    await world.hello()
    run = await world.start_run()
    if stage == "authorized":
        await world.start_step("s1")
    if stage == "completed":
        await world.run_step("s1")
    reply = await cancel(world, run.run_id)
    after = await world.get_run(run.run_id)
    assert (reply.phase, reply.execution, reply.recovery) == outcome(after)
    assert (
        after.phase
        is {"queued": Phase.TERMINAL, "authorized": Phase.CANCELLING, "completed": Phase.COMPENSATING}[stage]
    )
    if fault is CommitFault.UNKNOWN_NOT_COMMITTED:
        assert reply.outcome is StopOutcome.ACCEPTED
    assert (await world.kinds(run.run_id)).count("stop-committed") == 1
    await world.check()
