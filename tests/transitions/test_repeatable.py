"""Steps declared repeatable: delivered again when they are lost, and Unknown where they may not be repeated."""

from __future__ import annotations

import msgspec
import pytest
from operator_verbs import cancel, resolve, start_undo, target_of, unresolved
from world import LEASE_MS, RETRY, World, work_of

from keyspace.fsck import check_keyspace
from keyspace.layout import INSTANCE_WORK, ITEM
from keyspace.lifecycle import AttemptState, CompensationState, Execution, ItemState, Phase, Recovery, StepState
from keyspace.limits import REPEATABLE_LOSSES_MAX
from keyspace.records.run import RunRecord
from keyspace.records.work import Direction
from keyspace.transitions.activate_routing import activate_routing
from keyspace.transitions.declaration import Declaration, declaration_digest
from keyspace.transitions.lose_lease import Loss
from keyspace.transitions.publish_manifest import FunctionSpec, ManifestSpec, TriggerSpec, publish_manifest
from keyspace.transitions.resolve_attempt import RetryAttempt
from keyspace.transitions.work import Accepted, Stale, Work
from keyspace.tx import Tx

OTHER_INSTANCE = "22" * 16


async def lose(world: World, work: Work) -> Loss:
    """Let a lease run out and recover it, as the sweep does."""
    world.clock.advance(LEASE_MS)
    loss = await world.lose(work.item_id)
    await world.check()
    return loss


async def lose_and_wait(world: World, work: Work) -> None:
    """Lose a repeatable attempt and let the delay of its next delivery pass."""
    assert await lose(world, work) is Loss.REDELIVERED
    item = await world.item(work.item_id)
    assert item is not None
    world.clock.advance(max(0, item.vesting_ms - world.clock.now_ms()))


async def begin(world: World) -> tuple[RunRecord, Work]:
    """Start a run whose repeatable step is running."""
    run = await world.start_run()
    return run, await world.start_step(repeatable=True)


# -- delivered again


@pytest.mark.case(7)
async def test_a_lost_repeatable_attempt_is_delivered_again(world: World) -> None:
    """RFD 2, "protocol work classified as repeatable": the same physical attempt, ordinal and operation id, another delivery."""
    run, work = await begin(world)
    before = await world.attempt(run.run_id, "s1", 1)
    assert await lose(world, work) is Loss.REDELIVERED
    step, attempt = await world.step(run.run_id, "s1"), await world.attempt(run.run_id, "s1", 1)
    assert (step.state, attempt.state, attempt.loss_count) == (StepState.PENDING, AttemptState.QUEUED, 1)
    assert await unresolved(world) == []
    again = await world.lease()
    assert (again.item.item_id, again.item.ordinal, again.item.delivery_count) == (work.item_id, 1, 2)
    assert again.item.operation_id == before.operation_id == step.operation_id
    assert await world.authorize(work_of(again)) == Accepted()
    assert await world.succeed(work_of(again), b"7") == Accepted()
    assert await world.value(run.run_id, "s1") == b"7"
    assert (await world.step(run.run_id, "s1")).failure_count == 0, "a loss is no failure of the policy's"
    assert (await world.kinds(run.run_id))[3:] == [
        "attempt-authorized",
        "attempt-redelivered",
        "attempt-authorized",
        "step-completed",
    ]
    await world.check()


async def test_an_effect_is_what_is_not_declared_otherwise(world: World) -> None:
    """FILLED-IN 2, "effectful (every other Callback and Compensation)": the class is the item's, effectful by default."""
    await world.start_run()
    work = await world.start_step()
    item = await world.item(work.item_id)
    assert item is not None and not item.repeatable
    assert await lose(world, work) is Loss.UNKNOWN


async def test_each_loss_waits_longer(world: World) -> None:
    """FILLED-IN 11, "redelivered with growing, capped delay": at once after the first loss, then later."""
    _, work = await begin(world)
    delays = []
    for _ in range(REPEATABLE_LOSSES_MAX - 1):
        assert await lose(world, work) is Loss.REDELIVERED
        item = await world.item(work.item_id)
        assert item is not None
        delays.append(item.vesting_ms - world.clock.now_ms())
        world.clock.advance(delays[-1])
        work = await world.start_attempt()
    assert delays == [0, 1_000]


async def test_the_third_loss_in_a_row_makes_it_unknown(world: World) -> None:
    """FILLED-IN 2, "and so does any that is lost three times in a row"; a retry by an operator begins to count anew."""
    run, work = await begin(world)
    for _ in range(REPEATABLE_LOSSES_MAX - 1):
        await lose_and_wait(world, work)
        work = await world.start_attempt()
    assert await lose(world, work) is Loss.UNKNOWN
    assert (await world.get_run(run.run_id)).unknown_count == 1
    assert await world.lease_many(5) == []
    await resolve(world, target_of(work), RetryAttempt())
    again = await world.start_attempt()
    assert await lose(world, again) is Loss.REDELIVERED
    assert (await world.attempt(run.run_id, "s1", 2)).loss_count == 1


async def test_leases_lost_before_the_start_are_not_losses_of_the_attempt(world: World) -> None:
    """FILLED-IN 2 counts attempts that are lost; work that waited in a busy worker had not begun (case 013)."""
    await world.start_run()
    await world.declare(await world.lease_pass(), "s1", repeatable=True)
    for _ in range(REPEATABLE_LOSSES_MAX):
        waiting = work_of(await world.lease())
        assert await lose(world, waiting) is Loss.RETURNED
        world.clock.advance(10_000)
    assert await lose(world, await world.start_attempt()) is Loss.REDELIVERED


async def test_a_lost_session_leaves_it_its_lease(world: World) -> None:
    """RFD 2 speaks of lease expiry: a callback that has begun keeps its lease, for its worker may come back and go on."""
    _, work = await begin(world)
    assert await world.lose(work.item_id, token=work.token, is_session_lost=True) is Loss.NOT_LOST
    await world.hello("session-2")
    assert await world.renew((work.item_id, work.token)) == [True]
    assert await world.succeed(work) == Accepted()
    await world.check()


async def test_a_continued_step_is_of_its_declared_class(world: World) -> None:
    """ARCHITECTURE 6, "Continuation": a step that its session goes on with is delivered again like one from the queue."""
    run = await world.start_run()
    first = await world.start_step()
    continued = await world.go_on(first, Declaration("s2", RETRY, repeatable=True))
    assert continued.following is not None and continued.following.repeatable
    world.clock.advance(LEASE_MS)
    assert await world.lose(continued.following.item_id) is Loss.REDELIVERED
    await world.check()
    assert await world.succeed(await world.start_attempt()) == Accepted()
    assert (await world.step(run.run_id, "s2")).state is StepState.COMPLETED


async def test_the_class_is_part_of_a_declaration(world: World) -> None:
    """Declaration equality covers the class: the same step in another class is another answer."""
    work = await _declared_pass(world)
    plain = Declaration("s1", RETRY)
    for other in (plain._replace(repeatable=True), plain._replace(undo_repeatable=True)):
        assert declaration_digest(other) != declaration_digest(plain)
    assert await world.declare(work, "s1", repeatable=True) == Stale("pass_settled")


async def _declared_pass(world: World) -> Work:
    await world.start_run()
    work = await world.lease_pass()
    assert await world.declare(work, "s1") == Accepted()
    return work


# -- whose report counts


@pytest.mark.case(17)
@pytest.mark.parametrize("outcome", ["success", "retry", "exhausted"])
async def test_the_former_holder_settles_what_nobody_leased_again(world: World, outcome: str) -> None:
    """FILLED-IN 11, "A report is accepted while its token is still the item's current one", swept or not; a retry counts on."""
    run, work = await begin(world)
    assert await lose(world, work) is Loss.REDELIVERED
    await world.hello("session-2")
    if outcome == "success":
        assert await world.succeed(work, b"3") == Accepted()
        assert await world.value(run.run_id, "s1") == b"3"
    else:
        assert await world.fail_attempt(work, retryable=outcome == "retry") == Accepted()
    state = {"success": StepState.COMPLETED, "retry": StepState.BACKING_OFF, "exhausted": StepState.FAILED}[outcome]
    assert (await world.step(run.run_id, "s1")).state is state
    assert await world.item(work.item_id) is None, "the redelivery is gone with the report"
    await world.check()
    world.clock.advance(60_000)
    assert len(await world.lease_many(5)) == 1


@pytest.mark.case(16)
@pytest.mark.parametrize("is_started", [False, True], ids=["leased", "authorized"])
async def test_the_former_holder_is_stale_once_somebody_leased(world: World, is_started: bool) -> None:
    """Case 016 and FILLED-IN 11: kept as a diagnostic, benign, and without effect on the delivery that is current."""
    run, former = await begin(world)
    await lose_and_wait(world, former)
    await world.hello("session-9", instance=OTHER_INSTANCE)
    current = work_of(await world.lease(instance=OTHER_INSTANCE))
    if is_started:
        assert await world.authorize(current, instance=OTHER_INSTANCE) == Accepted()
    code = "lease_lost" if is_started else "attempt_not_authorized"
    assert await world.succeed(former, b'"late"') == Stale(code)
    assert [result.outcome for result in await world.stale_results(run.run_id)] == ["success"]
    await world.check()
    if not is_started:
        assert await world.authorize(current, instance=OTHER_INSTANCE) == Accepted()
    assert await world.succeed(current, b'"mine"') == Accepted()
    assert await world.value(run.run_id, "s1") == b'"mine"'
    await world.check()


# -- where it may not be repeated


@pytest.mark.parametrize("point", ["before the stop", "after the stop"])
async def test_under_a_stop_a_lost_forward_attempt_is_unknown(world: World, point: str) -> None:
    """FILLED-IN 2, "lost after stop intent becomes Unknown all the same"; lost before it, it has begun all the same."""
    run, work = await begin(world)
    if point == "before the stop":
        assert await lose(world, work) is Loss.REDELIVERED
    assert (await cancel(world, run.run_id)).is_settling
    if point == "after the stop":
        assert await lose(world, work) is Loss.UNKNOWN
    await world.check()
    after = await world.get_run(run.run_id)
    assert (after.phase, after.unknown_count, after.item_id) == (Phase.CANCELLING, 1, None)
    assert (await world.step(run.run_id, "s1")).state is StepState.UNKNOWN
    assert await world.lease_many(5) == []
    assert await world.succeed(work) == Accepted(), "a valid late result resolves it"
    assert (await world.get_run(run.run_id)).phase is Phase.COMPENSATING
    await world.check()


@pytest.mark.parametrize("is_leased", [False, True], ids=["ready", "leased again"])
async def test_a_worker_that_forgot_a_refused_report_proves_nothing(world: World, is_leased: bool) -> None:
    """RFD 1, "settle before reverse recovery": an earlier delivery had begun, so no hello can fence the attempt as unstarted."""
    run, work = await begin(world)
    await lose_and_wait(world, work)
    if is_leased:
        await world.lease(instance=OTHER_INSTANCE)
    await cancel(world, run.run_id)
    assert await world.records(INSTANCE_WORK) == []
    await world.hello("session-2")
    assert not await world.prove(work)
    assert (await world.get_run(run.run_id)).phase is Phase.CANCELLING
    await world.check()


async def test_a_later_delivery_that_never_began_leaves_the_earlier_one_in_doubt(world: World) -> None:
    """RFD 2, "A transport that proves": the proof is of one delivery. The run goes on by repeating, or waits when it stops."""
    run, work = await begin(world)
    await lose_and_wait(world, work)
    second = await world.start_attempt()
    await world.hello("session-2")
    assert await world.prove(second)
    assert (await world.step(run.run_id, "s1")).state is StepState.PENDING
    await world.check()
    third = await world.start_attempt()
    await cancel(world, run.run_id)
    await world.hello("session-3")
    assert not await world.prove(third)
    assert await lose(world, third) is Loss.UNKNOWN
    assert (await world.step(run.run_id, "s1")).state is StepState.UNKNOWN


@pytest.mark.case(50)
async def test_a_begun_step_that_code_no_longer_has_is_unknown(world: World) -> None:
    """RFD 1, "not silently treated as either success or failure": the code that could repeat it is gone, its effect may not be."""
    run, work = await begin(world)
    await lose_and_wait(world, work)
    again = work_of(await world.lease())
    assert await world.not_found(again) == Accepted()
    assert (await world.step(run.run_id, "s1")).state is StepState.UNKNOWN
    before = await world.dump()
    await world.not_found(again)
    assert await world.dump() == before
    await world.check()
    await resolve(world, target_of(work), RetryAttempt())
    assert await world.not_found(work_of(await world.lease())) == Accepted()
    assert (await world.step(run.run_id, "s1")).state is StepState.OBSOLETE, "an attempt that never began is fenced"
    await world.check()


# -- at the deadline

TIMEOUT_MS = 10 * LEASE_MS


async def begin_timed(world: World) -> tuple[RunRecord, Work]:
    """Start a run with a deadline, and lose its repeatable step just before that."""
    trigger = TriggerSpec("order.placed", "fulfil@order.placed")
    spec = ManifestSpec("shop", (FunctionSpec("fulfil", (trigger,), timeout_ms=TIMEOUT_MS),))
    record, _ = await world.run("publish", lambda tx: publish_manifest(tx, "acme", spec, published_by="test"))
    await world.run(
        "activate",
        lambda tx: activate_routing(tx, "acme", {"shop": record.generation}, activated_by="test", is_merge=True),
    )
    run, work = await begin(world)
    assert run.deadline_at_ms is not None
    assert await lose(world, work) is Loss.REDELIVERED
    world.clock.advance(run.deadline_at_ms - world.clock.now_ms() - 1)
    return run, work


@pytest.mark.parametrize("outcome", ["success", "failure", "success, continued"])
@pytest.mark.parametrize("late_ms", [0, 1], ids=["before the deadline", "at the deadline"])
async def test_the_former_holder_reports_around_the_deadline(world: World, outcome: str, late_ms: int) -> None:
    """RFD 2, "Materializing stop intent and recording the reported outcome are one transaction": also of a lost delivery."""
    run, work = await begin_timed(world)
    world.clock.advance(late_ms)
    if outcome == "success":
        assert await world.succeed(work) == Accepted()
    elif outcome == "failure":
        assert await world.fail_attempt(work) == Accepted()
    else:
        assert (await world.go_on(work, None)).result == Accepted()
    await world.check()
    after = await world.get_run(run.run_id)
    assert (after.unknown_count, await unresolved(world)) == (0, [])
    if not late_ms:
        assert (after.phase, after.stop) == (Phase.RUNNING, None)
    elif outcome == "failure":
        assert (after.phase, after.execution) == (Phase.TERMINAL, Execution.TIMED_OUT)
        assert "retry-scheduled" not in await world.kinds(run.run_id)
    else:
        assert (after.phase, after.execution) == (Phase.COMPENSATING, Execution.TIMED_OUT)


@pytest.mark.parametrize("act", ["lease", "authorize", "not found"])
async def test_what_meets_the_deadline_leaves_it_unknown(world: World, act: str) -> None:
    """FILLED-IN 2 and RFD 2, "at or after the deadline": whoever commits the stop, the begun attempt keeps its token."""
    run, work = await begin_timed(world)
    again = None if act == "lease" else work_of(await world.lease())
    world.clock.advance(1)
    if again is None:
        assert await world.lease_many(1) == []
    elif act == "authorize":
        assert await world.authorize(again) == Stale("deadline_elapsed")
    else:
        assert await world.not_found(again) == Accepted()
    after = await world.get_run(run.run_id)
    assert (after.phase, after.unknown_count) == (Phase.CANCELLING, 1)
    await world.check()
    assert await world.succeed(work) == Accepted()
    assert (await world.get_run(run.run_id)).execution is Execution.TIMED_OUT
    await world.check()


async def test_a_proof_at_the_deadline_fences_nothing_that_began(world: World) -> None:
    """RFD 2, "A transport that proves": of the second delivery only; the first one's outcome is still owed."""
    run, _ = await begin_timed(world)
    second = await world.start_attempt()
    world.clock.advance(1)
    await world.hello("session-2")
    assert not await world.prove(second)
    assert (await world.get_run(run.run_id)).phase is Phase.CANCELLING
    await world.check()
    assert await lose(world, second) is Loss.UNKNOWN


# -- compensators


async def test_a_repeatable_undo_is_delivered_again(world: World) -> None:
    """FILLED-IN 2 in the other direction: the class is the compensator's own, and a stop does not forbid to repeat it."""
    run = await world.start_run()
    work = await world.start_step(compensable=True, undo_repeatable=True)
    await world.succeed(work)
    await cancel(world, run.run_id)
    undo = await start_undo(world)
    assert await lose(world, undo) is Loss.REDELIVERED
    assert (await world.step(run.run_id, "s1")).compensation is CompensationState.PENDING
    again = await start_undo(world)
    assert (again.item_id, again.generation) == (undo.item_id, undo.generation)
    assert await world.succeed(again) == Accepted()
    after = await world.get_run(run.run_id)
    assert (after.execution, after.recovery) == (Execution.CANCELLED, Recovery.COMPENSATED)
    await world.check()


async def test_a_lost_undo_whose_compensator_is_gone_is_unknown(world: World) -> None:
    """RFD 1, "the remaining unwind stops because Ryusen cannot know": it is not skipped, for it may have happened."""
    run = await world.start_run()
    await world.succeed(await world.start_step(undo_repeatable=True))
    await cancel(world, run.run_id)
    assert await lose(world, await start_undo(world)) is Loss.REDELIVERED
    again = work_of(await world.lease(direction=Direction.COMPENSATION))
    assert await world.not_found(again) == Accepted()
    assert (await world.step(run.run_id, "s1")).compensation is CompensationState.UNKNOWN
    await world.check()


async def test_the_class_of_the_step_is_not_that_of_its_undo(world: World) -> None:
    """FILLED-IN 2, "every other Callback and Compensation": each is declared for itself."""
    run = await world.start_run()
    await world.succeed(await world.start_step(compensable=True, repeatable=True))
    await cancel(world, run.run_id)
    undo = await start_undo(world)
    item = await world.item(undo.item_id)
    assert item is not None and (item.repeatable, item.state) == (False, ItemState.AUTHORIZED)
    assert await lose(world, undo) is Loss.UNKNOWN


async def test_fsck_sees_an_item_of_another_class(world: World) -> None:
    """C6: an item in a class that nobody declared would be run again, or not, against the declaration."""
    _, work = await begin(world)
    item = await world.item(work.item_id)
    assert item is not None

    async def damage(tx: Tx) -> None:
        tx.put(ITEM.at("acme", work.item_id), msgspec.structs.replace(item, repeatable=False))

    await world.run("damage", damage)
    report = await check_keyspace(world.keyspace)
    assert [problem.check for problem in report.problems] == ["C6"]
