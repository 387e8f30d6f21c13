"""A run is told to stop: what is fenced, what is waited for, what follows, and who wins a race."""

from __future__ import annotations

import msgspec
import pytest
from operator_verbs import (
    assert_nothing_began_after_the_stop,
    cancel,
    let_be_lost,
    must_refuse,
    prove,
    time_out,
    unresolved,
)
from world import World, work_of

from keyspace.layout import ITEM, READY_APP
from keyspace.lifecycle import AttemptState, Execution, Phase, Recovery, StepState
from keyspace.records.run import RunRecord
from keyspace.records.work import Direction
from keyspace.transitions.lose_lease import Loss
from keyspace.transitions.stop_run import StopOutcome, StopReply, settlement_gate
from keyspace.transitions.work import Accepted, Replayed, Stale, Work

ENDED = (Phase.TERMINAL, Execution.CANCELLED, Recovery.EMPTY_UNWIND)
UNWINDING = (Phase.COMPENSATING, Execution.CANCELLED, None)
ENDED_AT_ONCE = StopReply(StopOutcome.ACCEPTED, *ENDED, False)
UNWINDING_AT_ONCE = StopReply(StopOutcome.ACCEPTED, *UNWINDING, False)
SETTLING = StopReply(StopOutcome.ACCEPTED, Phase.CANCELLING, None, None, True)


def outcome(run: RunRecord) -> tuple[Phase, Execution | None, Recovery | None]:
    return run.phase, run.execution, run.recovery


async def undo_all(world: World) -> list[str]:
    """Run every compensator to its success; return the steps in the order in which they were undone."""
    undone: list[str] = []
    while leased := await world.lease_many(1, direction=Direction.COMPENSATION):
        work = work_of(leased[0])
        assert work.step_id is not None
        assert await world.authorize(work) == Accepted()
        assert await world.succeed(work) == Accepted()
        undone.append(work.step_id)
    return undone


# -- what a stop removes


async def test_before_the_first_pass_a_stop_ends_the_run_at_once(world: World) -> None:
    """RFD 2, "cancellation or timeout after run creation but before first discovery authorization"."""
    run = await world.start_run()
    assert await cancel(world, run.run_id) == ENDED_AT_ONCE
    after = await world.get_run(run.run_id)
    assert outcome(after) == ENDED
    assert (after.item_id, after.terminal_at_ms is None) == (None, False)
    assert await world.kinds(run.run_id) == ["run-created", "stop-committed", "compensation-not-required"]
    assert await world.records(ITEM) == []
    assert await world.lease_many(1) == []
    await world.check()


async def test_history_names_the_reason_and_the_acting_key(world: World) -> None:
    """RFD 1, "Cancellation and run timeout record a durable stop intent": who asked for it stays visible."""
    run = await world.start_run()
    await cancel(world, run.run_id, by="key-of-ann")
    (stop,) = [entry for entry in await world.history(run.run_id) if entry.kind == "stop-committed"]
    assert stop.data == {"reason": "cancelled", "by": "key-of-ann"}
    record = (await world.get_run(run.run_id)).stop
    assert record is not None and (record.by, record.at_ms) == ("key-of-ann", stop.at_ms)


@pytest.mark.parametrize("completed", [0, 1])
@pytest.mark.parametrize("answer", ["declare", "complete", "fail"])
async def test_an_authorized_pass_is_discarded(world: World, answer: str, completed: int) -> None:
    """RFD 2, "discards authorized repeatable discovery": its answer is stale and changes nothing."""
    run = await world.start_run()
    for _ in range(completed):
        await world.run_step("s0")
    work = await world.lease_pass()
    assert await cancel(world, run.run_id) == (UNWINDING_AT_ONCE if completed else ENDED_AT_ONCE)
    before = await world.dump()
    assert await getattr(world, answer)(work) == Stale("run_stopping")
    assert await world.renew((work.item_id, work.token)) == [False]
    assert await world.lose(work.item_id, is_session_lost=True) is Loss.NOT_LOST
    assert await world.dump() == before
    await assert_nothing_began_after_the_stop(world, run.run_id)
    await world.check()


@pytest.mark.parametrize("stage", ["queued", "leased", "backing off"])
async def test_work_that_was_not_authorized_is_fenced(world: World, stage: str) -> None:
    """RFD 2, "It fences leased or queued forward attempts that have not committed start authorization"."""
    run = await world.start_run()
    work: Work | None = None
    if stage == "backing off":
        await world.fail_attempt(await world.start_step("s1"))
    else:
        await world.declare(await world.lease_pass(), "s1")
        work = work_of(await world.lease()) if stage == "leased" else None
    assert await cancel(world, run.run_id) == ENDED_AT_ONCE
    step = await world.step(run.run_id, "s1")
    attempt = await world.attempt(run.run_id, "s1", step.generation)
    assert (step.state, attempt.state) == (StepState.OBSOLETE, AttemptState.FENCED)
    assert (await world.kinds(run.run_id))[-3:] == ["stop-committed", "step-fenced", "compensation-not-required"]
    assert await world.records(ITEM) == [] and await world.records(READY_APP) == []
    if work is not None:
        assert await world.authorize(work) == Stale("lease_lost")
        assert await world.renew((work.item_id, work.token)) == [False]
        assert not await world.give_back(work)
        assert await world.not_found(work) == Replayed(), "it is fenced, which is all that this answer asks for"
    world.clock.advance(3_600_000)
    assert await world.lease_many(1) == []
    await world.check()


# -- what a stop waits for


async def test_an_authorized_effect_keeps_its_token_and_its_success_joins_the_unwind(world: World) -> None:
    """RFD 2, "A valid late success records the completed step but schedules no rediscovery"."""
    run = await world.start_run()
    await world.run_step("s1")
    work = await world.start_step("s2")
    assert await cancel(world, run.run_id) == SETTLING
    assert outcome(await world.get_run(run.run_id)) == (Phase.CANCELLING, None, None)
    assert await world.lease_many(1, direction=Direction.COMPENSATION) == [], "nothing is undone before it settles"
    assert await world.renew((work.item_id, work.token)) == [True]
    assert await world.succeed(work, b'"late"') == Accepted()
    assert await world.value(run.run_id, "s2") == b'"late"'
    assert outcome(await world.get_run(run.run_id)) == UNWINDING
    assert await world.lease_many(1) == []
    assert await undo_all(world) == ["s2", "s1"]
    assert outcome(await world.get_run(run.run_id)) == (Phase.TERMINAL, Execution.CANCELLED, Recovery.COMPENSATED)
    await assert_nothing_began_after_the_stop(world, run.run_id)
    await world.check()


@pytest.mark.parametrize("completed", [0, 1])
async def test_a_late_failure_is_recorded_and_not_retried(world: World, completed: int) -> None:
    """RFD 2, "A structured failure records the reported failure": the policy has attempts left, the run does not."""
    run = await world.start_run()
    for _ in range(completed):
        await world.run_step("s0")
    work = await world.start_step("s1")
    await cancel(world, run.run_id)
    assert await world.fail_attempt(work, retryable=True) == Accepted()
    step = await world.step(run.run_id, "s1")
    assert (step.state, step.generation, step.failure_count) == (StepState.FAILED, 1, 1)
    assert outcome(await world.get_run(run.run_id)) == (UNWINDING if completed else ENDED)
    assert await world.lease_many(1) == []
    await assert_nothing_began_after_the_stop(world, run.run_id)
    await world.check()


@pytest.mark.parametrize("is_lost_first", [True, False])
async def test_a_stopping_run_waits_for_an_unknown_outcome(world: World, is_lost_first: bool) -> None:
    """RFD 2, "While any token is Unknown, the run remains Cancelling"; a late result settles it."""
    run = await world.start_run()
    work = await world.start_step("s1")
    if is_lost_first:
        await let_be_lost(world, work)
    assert await cancel(world, run.run_id) == SETTLING
    if not is_lost_first:
        await let_be_lost(world, work)
    after = await world.get_run(run.run_id)
    assert (after.phase, after.unknown_count, after.item_id) == (Phase.CANCELLING, 1, None)
    assert await unresolved(world) == [(run.run_id, Direction.FORWARD, "s1", 1)]
    assert await world.records(ITEM) == []
    await world.check()
    assert await world.succeed(work) == Accepted()
    assert outcome(await world.get_run(run.run_id)) == UNWINDING
    assert await unresolved(world) == []
    await world.check()


async def test_the_gate_opens_for_the_last_token_only(world: World) -> None:
    """RFD 2, "only after every effectful settlement token resolves": counted, were there ever more than one."""
    run = await world.start_run()
    await world.start_step("s1")
    await cancel(world, run.run_id)
    stopping = msgspec.structs.replace(await world.get_run(run.run_id), item_id=None)
    before = await world.dump()
    for waiting in (
        msgspec.structs.replace(stopping, unknown_count=1),
        msgspec.structs.replace(stopping, item_id="aa" * 16),
        msgspec.structs.replace(stopping, phase=Phase.RUNNING),
    ):
        same = await world.run("gate", lambda tx, run=waiting: settlement_gate(tx, "acme", run, run.updated_at_ms))
        assert same == waiting
    assert await world.dump() == before


@pytest.mark.parametrize("completed", [0, 1])
@pytest.mark.parametrize("is_unknown", [True, False])
async def test_a_proof_that_it_never_started_fences_it(world: World, is_unknown: bool, completed: int) -> None:
    """RFD 2, "under stop intent the attempt is fenced, the run releases ownership of it, and the settlement gate runs"."""
    run = await world.start_run()
    for _ in range(completed):
        await world.run_step("s0")
    work = await world.start_step("s1")
    if is_unknown:
        await let_be_lost(world, work)
    await cancel(world, run.run_id)
    assert await prove(world, work)
    step, attempt = await world.step(run.run_id, "s1"), await world.attempt(run.run_id, "s1", 1)
    assert (step.state, attempt.state, attempt.token) == (StepState.OBSOLETE, AttemptState.FENCED, None)
    assert outcome(await world.get_run(run.run_id)) == (UNWINDING if completed else ENDED)
    assert await world.completions(run.run_id) == ["s0"][:completed], "what never ran is no part of the unwind"
    assert await unresolved(world) == []
    history = await world.history(run.run_id)
    assert await world.succeed(work) == Stale("lease_lost")
    assert await world.history(run.run_id) == history
    await world.check()


# -- repeated and conflicting stops


@pytest.mark.parametrize("stage", ["cancelling", "compensating", "terminal"])
async def test_a_repeated_stop_writes_nothing(world: World, stage: str) -> None:
    """RFD 2, "A repeated stop intent with the same outcome is idempotent while the run is Cancelling"."""
    run = await world.start_run()
    if stage == "compensating":
        await world.run_step("s1")
    if stage == "cancelling":
        await world.start_step("s1")
    first = await cancel(world, run.run_id)
    assert first.phase.value == stage
    before = await world.dump()
    for _ in range(3):
        again = await cancel(world, run.run_id, by="somebody else")
        expected = StopOutcome.ALREADY_TERMINAL if stage == "terminal" else StopOutcome.REPEATED
        assert again == first._replace(outcome=expected)
    assert await world.dump() == before
    await world.check()


async def test_the_first_reason_stands(world: World) -> None:
    """RFD 2, "A different stop outcome cannot replace the one that committed": refused, also after the run has ended."""
    run = await world.start_run()
    work = await world.start_step("s1")
    await time_out(world, run.run_id)
    refusal = await must_refuse(world, "stop_conflict", cancel(world, run.run_id))
    assert refusal.details["reason"] == "timed_out"
    await world.fail_attempt(work)
    assert outcome(await world.get_run(run.run_id)) == (Phase.TERMINAL, Execution.TIMED_OUT, Recovery.EMPTY_UNWIND)
    await must_refuse(world, "stop_conflict", cancel(world, run.run_id))
    await world.check()


async def test_a_run_that_has_ended_says_how(world: World) -> None:
    """Case 020, "Completion first: Completed, and the cancel's reply says already terminal with that outcome"."""
    run = await world.start_run()
    await world.complete(await world.lease_pass())
    before = await world.dump()
    assert await cancel(world, run.run_id) == StopReply(
        StopOutcome.ALREADY_TERMINAL, Phase.TERMINAL, Execution.COMPLETED, Recovery.EXECUTION_SUCCEEDED, False
    )
    assert await world.dump() == before


async def test_a_failed_run_that_is_being_undone_stays_failed(world: World) -> None:
    """RFD 1, "Recovery outcomes follow this table": how execution ended is decided when the unwind begins."""
    run = await world.start_run()
    await world.run_step("s1")
    await world.fail(await world.lease_pass())
    before = await world.dump()
    assert await cancel(world, run.run_id) == StopReply(
        StopOutcome.ALREADY_ENDING, Phase.COMPENSATING, Execution.FAILED, None, False
    )
    assert await world.dump() == before
    assert await undo_all(world) == ["s1"]
    assert outcome(await world.get_run(run.run_id)) == (Phase.TERMINAL, Execution.FAILED, Recovery.COMPENSATED)
    await world.check()


async def test_what_does_not_exist_cannot_be_stopped(world: World) -> None:
    for run_id in ("0" * 32, "no id"):
        await must_refuse(world, "not_found", cancel(world, run_id))
