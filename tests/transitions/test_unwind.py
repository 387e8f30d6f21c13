"""The unwind as a whole: its order, one at a time, and each way it can end; and that nothing cancels it."""

from __future__ import annotations

import pytest
from child_verbs import pass_on
from deadline_verbs import at_deadline, fire_item
from operator_verbs import cancel, let_be_lost, resolve, target_of
from server_steps import ONCE, fire_due, sleep
from world import World, work_of

from keyspace.layout import STEP
from keyspace.lifecycle import CompensationState, Execution, Phase, Recovery
from keyspace.records.run import FailureRecord, RetryRecord, RunRecord
from keyspace.records.work import Direction
from keyspace.transitions.declaration import ChildTerms
from keyspace.transitions.fire_deadline import Fired
from keyspace.transitions.resolve_attempt import DeclareFailure
from keyspace.transitions.stop_run import StopOutcome
from keyspace.transitions.work import Accepted, Stale, Work

STEP_COUNT = 12
UNDO_RETRY = RetryRecord(attempts=3, initial_ms=1_000, coefficient=2.0, cap_ms=60_000)
TIMEOUT_MS = 3_600_000
FAILURE = FailureRecord(category="operator", message="the bank says no")
STEPS = [f"s{number:02}" for number in range(1, STEP_COUNT + 1)]


async def twelve_steps(world: World) -> RunRecord:
    """Return a run of twelve completed steps, the last of which completed after its cancellation.

    A timer and a child have settled in between.
    """
    await world.publish({"fulfil": ["order.placed"], "pick": []})
    run = await world.start_run()
    for number, step_id in enumerate(STEPS[:-1]):
        if number == 4:
            await sleep(world, await world.lease_pass(), delay_ms=1_000)
            world.clock.advance(1_000)
            await fire_due(world)
        if number == 8:
            terms = ChildTerms(function="pick", input=b"1")
            await world.declare(await world.lease_pass(), "pick-it", retry=ONCE, terms=terms)
            await world.complete(await world.lease_pass(function="pick"))
            await pass_on(world)
        # One failure going forward, so that the two counts of failures are told apart.
        work = await world.start_step(step_id, undo_retry=UNDO_RETRY, timeout_ms=5_000)
        if step_id == "s02":
            await world.fail_attempt(work)
            world.clock.advance(1_000)
            work = await world.start_attempt()
        assert await world.succeed(work, f'"{step_id}"'.encode()) == Accepted()
    late = await world.start_step(STEPS[-1], undo_retry=UNDO_RETRY)
    assert (await cancel(world, run.run_id)).is_settling
    assert await world.lease_many(4, direction=Direction.COMPENSATION) == []
    assert await world.succeed(late) == Accepted()
    return await world.get_run(run.run_id)


async def next_undo(world: World, step_id: str) -> Work:
    """Start the one undo that is ready, which must be this step's."""
    ready = await world.lease_many(4, direction=Direction.COMPENSATION)
    assert [one.item.step_id for one in ready] == [step_id], "one at a time, the last completed first"
    work = work_of(ready[0])
    assert await world.authorize(work) == Accepted()
    return work


async def undo(world: World, step_ids: list[str]) -> None:
    for step_id in step_ids:
        assert await world.succeed(await next_undo(world, step_id)) == Accepted()


async def states(world: World, run_id: str) -> dict[str, CompensationState]:
    return {step.step_id: step.compensation for step in await world.records(STEP, run_id)}


@pytest.mark.case(55)
async def test_twelve_steps_are_undone_one_by_one_in_reverse(world: World) -> None:
    """Case 055: a late success has the place of its completion, timers and children are in no plan, a skip makes it partial."""
    run = await twelve_steps(world)
    assert run.unwind is not None and run.unwind.upper == STEP_COUNT
    await undo(world, STEPS[:9:-1])
    # s10: current code has no compensator for it.
    missing = work_of(await world.lease(direction=Direction.COMPENSATION))
    assert missing.step_id == "s10"
    assert await world.not_found(missing) == Accepted()
    # s09: fails twice, and is tried again later each time.
    for delay_ms in (1_000, 2_000):
        assert await world.fail_attempt(await next_undo(world, "s09")) == Accepted()
        assert await world.lease_many(1, direction=Direction.COMPENSATION) == []
        world.clock.advance(delay_ms)
    await undo(world, STEPS[8::-1])
    ended = await world.get_run(run.run_id)
    assert (ended.phase, ended.execution, ended.recovery) == (
        Phase.TERMINAL,
        Execution.CANCELLED,
        Recovery.PARTIALLY_COMPENSATED,
    )
    assert ended.unwind is not None
    assert (ended.unwind.executed_count, ended.unwind.skipped_count) == (STEP_COUNT - 1, 1)
    done = await states(world, run.run_id)
    assert {done.pop("nap"), done.pop("pick-it")} == {CompensationState.NONE}
    assert done.pop("s10") is CompensationState.SKIPPED
    assert set(done.values()) == {CompensationState.DONE}
    undone = [
        entry.data["step"] for entry in await world.history(run.run_id) if entry.kind.startswith("compensation-s")
    ]
    assert undone == STEPS[::-1]
    await world.check()


@pytest.mark.case(55)
async def test_a_compensator_that_fails_for_good_ends_the_unwind(world: World) -> None:
    """Case 055, FILLED-IN 5: by its own policy, however often the step failed; what is behind it is told as one range."""
    run = await twelve_steps(world)
    await undo(world, STEPS[:2:-1])
    assert await world.fail_attempt(await next_undo(world, "s03"), retryable=False) == Accepted()
    ended = await world.get_run(run.run_id)
    assert (ended.phase, ended.recovery) == (Phase.TERMINAL, Recovery.COMPENSATION_FAILED)
    entries = {entry.kind: entry.data for entry in await world.history(run.run_id)}
    assert entries["compensations-not-attempted"] == {"from": 2, "to": 1}
    left = await states(world, run.run_id)
    assert (left["s03"], left["s02"], left["s01"]) == (
        CompensationState.FAILED,
        CompensationState.NONE,
        CompensationState.NONE,
    )
    assert await world.lease_many(1, direction=Direction.COMPENSATION) == []
    await world.check()


async def test_a_compensator_has_its_own_count_of_attempts(world: World) -> None:
    """RFD 1, "It has an independent retry policy": three attempts for the undo of a step that had failed once itself."""
    run = await twelve_steps(world)
    await undo(world, STEPS[:1:-1])
    for delay_ms in (1_000, 2_000):
        assert await world.fail_attempt(await next_undo(world, "s02")) == Accepted()
        world.clock.advance(delay_ms)
    assert (await world.get_run(run.run_id)).phase is Phase.COMPENSATING
    assert await world.fail_attempt(await next_undo(world, "s02")) == Accepted()
    ended = await world.get_run(run.run_id)
    assert ended.recovery is Recovery.COMPENSATION_FAILED
    await world.check()


@pytest.mark.case(55)
async def test_an_unknown_undo_halts_the_unwind_and_spends_no_retry(world: World) -> None:
    """Case 055, RFD 1 ¶61: nothing goes on behind it; an operator's failure is its first, and the retry follows."""
    run = await twelve_steps(world)
    await undo(world, STEPS[:9:-1])
    lost = await let_be_lost(world, await next_undo(world, "s10"))
    halted = await world.get_run(run.run_id)
    assert (halted.phase, halted.recovery, halted.unknown_count) == (Phase.COMPENSATING, None, 1)
    assert await world.lease_many(4, direction=Direction.COMPENSATION) == []
    await world.check()
    await resolve(world, target_of(lost), DeclareFailure(FAILURE))
    assert (await world.step(run.run_id, "s10")).undo_failure_count == 1
    world.clock.advance(1_000)
    await undo(world, STEPS[9::-1])
    assert (await world.get_run(run.run_id)).recovery is Recovery.COMPENSATED
    await world.check()


@pytest.mark.case(56)
async def test_nothing_cancels_an_unwind(empty: World) -> None:
    """Case 056: repeated cancels, the run's own deadline and forward work of others; each undo fails once and all succeed."""
    world = empty
    await world.begin(timeout_ms=TIMEOUT_MS)
    await world.hello()
    run = await world.start_run()
    for step_id in STEPS[:3]:
        work = await world.start_step(step_id, undo_retry=UNDO_RETRY)
        assert await world.succeed(work) == Accepted()
    timer = (await world.get_run(run.run_id)).timeout_item
    assert timer is not None
    await cancel(world, run.run_id)
    told = len(await world.history(run.run_id))
    for step_id in STEPS[2::-1]:
        assert await world.fail_attempt(await next_undo(world, step_id)) == Accepted()
        before = await world.dump()
        assert (await cancel(world, run.run_id)).outcome is StopOutcome.REPEATED
        assert await world.dump() == before, "a repeated stop mutates nothing"
        world.clock.advance(1_000)
        if step_id == "s03":
            await at_deadline(world, run.run_id, 1)
            assert await fire_item(world, run.run_id, timer) is Fired.GONE
            for number in range(3):
                await world.start_run(payload=str(number).encode())
        assert await world.succeed(await next_undo(world, step_id)) == Accepted()
    ended = await world.get_run(run.run_id)
    assert (ended.execution, ended.recovery) == (Execution.CANCELLED, Recovery.COMPENSATED)
    assert "stop-committed" not in [entry.kind for entry in (await world.history(run.run_id))[told:]]
    assert (await cancel(world, run.run_id)).outcome is StopOutcome.ALREADY_TERMINAL
    assert len(await world.lease_many(10)) == 3, "forward work of other runs was waiting all the while"
    await world.check()


@pytest.mark.parametrize("settled", ["success", "skip", "failure"])
async def test_what_the_unwind_has_settled_is_not_reopened(world: World, settled: str) -> None:
    """RFD 2, "An accepted success, terminal failure, or skip is not reopened by later code changes": whatever a worker of other
    code reports of it afterwards is stale, changes nothing that decides, and the plan goes on below it."""
    run = await world.start_run()
    for step_id in ("a", "b"):
        await world.succeed(await world.start_step(step_id, undo_retry=ONCE))
    await world.fail(await world.lease_pass())
    work = work_of(await world.lease(direction=Direction.COMPENSATION))
    if settled == "skip":
        assert await world.not_found(work) == Accepted()
    else:
        assert await world.authorize(work) == Accepted()
        told = world.succeed(work) if settled == "success" else world.fail_attempt(work)
        assert await told == Accepted()
    words = {"success": CompensationState.DONE, "skip": CompensationState.SKIPPED, "failure": CompensationState.FAILED}
    before, history = await states(world, run.run_id), await world.history(run.run_id)
    assert before["b"] is words[settled]
    reports = (world.succeed(work, b'"late"'), world.fail_attempt(work, FAILURE), world.authorize(work))
    assert [type(await report) for report in reports] == [Stale] * 3
    assert (await states(world, run.run_id), await world.history(run.run_id)) == (before, history)
    if settled != "failure":
        await undo(world, ["a"])
    recovery = {"success": "compensated", "skip": "partially_compensated", "failure": "compensation_failed"}[settled]
    after = await world.get_run(run.run_id)
    assert (after.phase, after.recovery) == (Phase.TERMINAL, Recovery(recovery))
    await world.check()
