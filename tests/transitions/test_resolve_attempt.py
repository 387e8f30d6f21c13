"""An operator settles an attempt whose outcome is unknown: every row of the successor table, the order of refusals, the races."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from operator_verbs import (
    assert_nothing_began_after_the_stop,
    cancel,
    let_be_lost,
    must_refuse,
    prove,
    resolve,
    start_undo,
    target_of,
    time_out,
    unknown_step,
    unknown_undo,
    unresolved,
)
from world import World, work_of

from keyspace.errors import Refusal
from keyspace.layout import RESOLUTION
from keyspace.lifecycle import AttemptState, CompensationState, Execution, Phase, Recovery, StepState
from keyspace.limits import FAILURE_MESSAGE_BYTES_MAX, IDEMPOTENCY_KEY_BYTES_MAX, REPLAY_BYTES_MAX
from keyspace.records.run import FailureRecord, RetryRecord
from keyspace.records.work import Direction
from keyspace.transitions.resolve_attempt import (
    Command,
    DeclareFailure,
    Resolution,
    RetryAttempt,
    SupplySuccess,
    Target,
)
from keyspace.transitions.resolve_attempt import unresolved as decide_unresolved
from keyspace.transitions.work import Accepted, Stale

DECLARED = FailureRecord(category="operator", message="the bank says no", details='{"code":51}')
SUCCESS, FAILURE, RETRY_IT = SupplySuccess(b'"by hand"'), DeclareFailure(DECLARED), RetryAttempt()
COMMANDS: dict[str, Command] = {"success": SUCCESS, "failure": FAILURE, "retry": RETRY_IT}
ONCE = RetryRecord(attempts=1, initial_ms=1_000, coefficient=2.0, cap_ms=60_000)
TWICE = RetryRecord(attempts=2, initial_ms=1_000, coefficient=2.0, cap_ms=60_000)


# -- forward, Running


async def test_a_supplied_success_completes_the_step(world: World) -> None:
    """FILLED-IN 7, forward and Running: "step Completed, discovery item"; the value is kept byte for byte."""
    work = await unknown_step(world)
    made = await resolve(world, target_of(work), SupplySuccess(b'{"n":  1.0}'), by="key-of-ann")
    assert (made.is_replay, made.record.command, made.record.by) == (False, "supply_success", "key-of-ann")
    assert (made.record.run_phase, made.record.attempt_state) == (Phase.RUNNING, AttemptState.SUCCEEDED)
    assert await world.value(work.run_id, "s1") == b'{"n":  1.0}'
    step, attempt = await world.step(work.run_id, "s1"), await world.attempt(work.run_id, "s1", 1)
    assert (step.state, step.completion, attempt.state) == (StepState.COMPLETED, 1, AttemptState.SUCCEEDED)
    run = await world.get_run(work.run_id)
    assert (run.unknown_count, await unresolved(world)) == (0, [])
    resolved, completed = (await world.history(work.run_id))[-2:]
    assert (resolved.kind, completed.kind) == ("attempt-resolved", "step-completed")
    assert resolved.data == {
        "step": "s1", "attempt": 1, "generation": 1, "command": "supply_success", "by": "key-of-ann",
    }  # fmt: skip
    await world.check()
    assert await world.complete(await world.lease_pass()) == Accepted()
    await world.check()


async def test_a_declared_failure_is_retried_by_the_policy(world: World) -> None:
    """FILLED-IN 7: "a reported failure: retry policy decides", here a delayed successor with the next ordinal."""
    work = await unknown_step(world, retry=TWICE)
    made = await resolve(world, target_of(work), FAILURE)
    assert (made.record.attempt_state, made.record.following_generation) == (AttemptState.FAILED, None)
    step = await world.step(work.run_id, "s1")
    assert (step.state, step.generation, step.ordinal, step.failure_count) == (StepState.BACKING_OFF, 2, 2, 1)
    assert (await world.attempt(work.run_id, "s1", 1)).failure == DECLARED
    assert (await world.kinds(work.run_id))[-3:] == ["attempt-resolved", "attempt-failed", "retry-scheduled"]
    assert await world.lease_many(1) == [], "not before its delay"
    await world.check()
    world.clock.advance(1_000)
    assert await world.succeed(await world.start_attempt()) == Accepted()
    await world.check()


async def test_a_declared_failure_may_be_the_last(world: World) -> None:
    """FILLED-IN 7: "... and exhaustion plus discovery"; the function is told."""
    work = await unknown_step(world, retry=ONCE)
    await resolve(world, target_of(work), FAILURE)
    step = await world.step(work.run_id, "s1")
    assert (step.state, step.failure) == (StepState.FAILED, DECLARED)
    assert await world.complete(await world.lease_pass()) == Accepted()
    await world.check()


async def test_a_retry_is_a_new_generation_of_one_operation(world: World) -> None:
    """RFD 2, "the stable operation ID lets an idempotent external system recognize": G, G+1, G+2, one operation id."""
    work = await unknown_step(world, retry=ONCE)
    operation = (await world.attempt(work.run_id, "s1", 1)).operation_id
    works = [work]
    for generation in (2, 3):
        made = await resolve(world, target_of(works[-1]), RETRY_IT, key=f"again-{generation}")
        assert made.record.following_generation == generation
        assert made.record.attempt_state is AttemptState.RETRY_AUTHORIZED
        before, after = [await world.attempt(work.run_id, "s1", number) for number in (generation - 1, generation)]
        assert (before.state, before.settled_at_ms is None) == (AttemptState.RETRY_AUTHORIZED, False)
        assert (after.state, after.ordinal, after.operation_id) == (AttemptState.QUEUED, generation, operation)
        assert await unresolved(world) == []
        await world.check()
        works.append(await let_be_lost(world, await world.start_attempt()))
        await world.check()
    for stale in works[:2]:
        history = await world.history(work.run_id)
        assert await world.succeed(stale, b'"too late"') == Stale("attempt_not_authorized")
        await must_refuse(world, "stale_attempt", resolve(world, target_of(stale), SUCCESS, key="of-an-old-one"))
        assert await world.history(work.run_id) == history
    assert len(await world.stale_results(work.run_id)) == 2, "kept as diagnostics"
    step = await world.step(work.run_id, "s1")
    assert (step.generation, step.ordinal, step.failure_count) == (3, 3, 0)
    assert await world.succeed(works[2], b'"third"') == Accepted()
    assert await world.value(work.run_id, "s1") == b'"third"'
    await world.check()


async def test_an_authorized_retry_does_not_count_against_the_policy(world: World) -> None:
    """FILLED-IN 7: "not counted against the retry policy": two attempts may still fail."""
    work = await unknown_step(world, retry=TWICE)
    await resolve(world, target_of(work), RETRY_IT)
    assert await world.fail_attempt(await world.start_attempt()) == Accepted()
    step = await world.step(work.run_id, "s1")
    assert (step.state, step.generation, step.ordinal, step.failure_count) == (StepState.BACKING_OFF, 3, 3, 1)
    world.clock.advance(60_000)
    await world.fail_attempt(await world.start_attempt())
    assert (await world.step(work.run_id, "s1")).state is StepState.FAILED
    await world.check()


# -- forward, Cancelling

STOPS: dict[str, tuple[Callable[[World, str], Awaitable[Any]], Execution, str]] = {
    "cancelled": (cancel, Execution.CANCELLED, "retry_forbidden"),
    "timed out": (time_out, Execution.TIMED_OUT, "deadline_elapsed"),
}


@pytest.mark.parametrize("reason", list(STOPS))
@pytest.mark.parametrize("completed", [0, 1])
@pytest.mark.parametrize("name", list(COMMANDS))
async def test_a_stopping_run_takes_an_outcome_and_no_retry(
    world: World, name: str, completed: int, reason: str
) -> None:
    """FILLED-IN 7, forward and Cancelling: "step Completed" or "attempt failed, settlement gate"; a retry is refused."""
    stop, execution, refused = STOPS[reason]
    run = await world.start_run()
    for _ in range(completed):
        await world.run_step("s0")
    work = await let_be_lost(world, await world.start_step("s1"))
    await stop(world, run.run_id)
    if name == "retry":
        await must_refuse(world, refused, resolve(world, target_of(work), RETRY_IT))
        await world.check()
        return
    made = await resolve(world, target_of(work), COMMANDS[name])
    after, step = await world.get_run(run.run_id), await world.step(run.run_id, "s1")
    assert step.state is (StepState.COMPLETED if name == "success" else StepState.FAILED)
    is_unwinding = completed or name == "success"
    recovery = None if is_unwinding else Recovery.EMPTY_UNWIND
    phase = Phase.COMPENSATING if is_unwinding else Phase.TERMINAL
    assert (after.phase, after.execution, after.recovery) == (phase, execution, recovery)
    assert made.record.run_phase is phase
    assert await world.completions(run.run_id) == ["s0"][:completed] + (["s1"] if name == "success" else [])
    assert await world.lease_many(1) == []
    await assert_nothing_began_after_the_stop(world, run.run_id)
    await world.check()


# -- compensation


async def test_a_supplied_undo_advances_the_unwind(world: World) -> None:
    """FILLED-IN 7, compensation: "item done, next item or Terminal"."""
    work = await unknown_undo(world, completed=2)
    assert await unresolved(world) == [(work.run_id, Direction.COMPENSATION, "s2", 1)]
    assert (await world.get_run(work.run_id)).recovery is None, "an Unknown compensation is no outcome"
    made = await resolve(world, target_of(work), SUCCESS)
    assert made.record.run_phase is Phase.COMPENSATING
    assert (await world.step(work.run_id, "s2")).compensation is CompensationState.DONE
    assert await world.value(work.run_id, "s2") == b'"ok"', "the forward result is not touched"
    await world.check()
    second = await let_be_lost(world, await start_undo(world))
    assert second.step_id == "s1"
    made = await resolve(world, target_of(second), SUCCESS, key="key-2")
    assert made.record.run_phase is Phase.TERMINAL
    run = await world.get_run(work.run_id)
    assert (run.execution, run.recovery) == (Execution.CANCELLED, Recovery.COMPENSATED)
    await world.check()


async def test_a_declared_failure_of_an_undo_is_retried_by_its_own_policy(world: World) -> None:
    """FILLED-IN 7, compensation: "the compensation's own retry policy, then CompensationFailed and Terminal"."""
    run = await world.start_run()
    await world.run_step("s1")
    await world.succeed(await world.start_step("s2", retry=ONCE, undo_retry=TWICE))
    await cancel(world, run.run_id)
    work = await let_be_lost(world, await start_undo(world))
    made = await resolve(world, target_of(work), FAILURE)
    assert made.record.run_phase is Phase.COMPENSATING
    step = await world.step(run.run_id, "s2")
    assert (step.compensation, step.undo_generation) == (CompensationState.BACKING_OFF, 2)
    await world.check()
    world.clock.advance(1_000)
    second = await let_be_lost(world, await start_undo(world))
    made = await resolve(world, target_of(second), FAILURE, key="key-2")
    assert made.record.run_phase is Phase.TERMINAL
    after = await world.get_run(run.run_id)
    assert (after.execution, after.recovery) == (Execution.CANCELLED, Recovery.COMPENSATION_FAILED)
    left = [entry.data for entry in await world.history(run.run_id) if entry.kind == "compensations-not-attempted"]
    assert left == [{"from": 1, "to": 1}]
    await world.check()


@pytest.mark.parametrize("reason", list(STOPS))
async def test_an_undo_may_be_retried_whatever_stopped_the_run(world: World, reason: str) -> None:
    """RFD 2, "An unresolved compensation attempt ignores the forward deadline"; G+1 has the same operation id."""
    run = await world.start_run()
    await world.run_step("s1")
    await STOPS[reason][0](world, run.run_id)
    work = await let_be_lost(world, await start_undo(world))
    made = await resolve(world, target_of(work), RETRY_IT)
    assert made.record.following_generation == 2
    attempts = [await world.attempt(run.run_id, "s1", number, Direction.COMPENSATION) for number in (1, 2)]
    assert [one.state for one in attempts] == [AttemptState.RETRY_AUTHORIZED, AttemptState.QUEUED]
    assert len({one.operation_id for one in attempts}) == 1
    assert attempts[0].operation_id != (await world.attempt(run.run_id, "s1", 1)).operation_id
    await world.check()
    assert await world.succeed(work) == Stale("attempt_not_authorized")
    assert await world.succeed(await start_undo(world)) == Accepted()
    after = await world.get_run(run.run_id)
    assert (after.execution, after.recovery) == (STOPS[reason][1], Recovery.COMPENSATED)
    await world.check()


# -- anything else


async def _other_targets(world: World) -> list[Target]:
    """Return attempts that are not unresolved: every other state, generation, direction and id."""
    run = await world.start_run()
    await world.run_step("done")
    failing = await world.start_step("retried")
    await world.fail_attempt(failing)
    targets = [Target(run.run_id, Direction.FORWARD, step, 1) for step in ("done", "retried", "never")]
    world.clock.advance(1_000)
    lost = await let_be_lost(world, await world.start_attempt())
    targets += [target_of(lost)._replace(generation=number) for number in (0, 1, 3, 10**15)]
    targets.append(target_of(lost)._replace(direction=Direction.COMPENSATION))
    targets.append(target_of(lost)._replace(run_id="0" * 32))
    return targets


@pytest.mark.parametrize("name", list(COMMANDS))
async def test_anything_else_is_stale(world: World, name: str) -> None:
    """FILLED-IN 7, "anything else: refused `stale_attempt`": settled, queued, superseded, other direction, no such thing."""
    for target in await _other_targets(world):
        await must_refuse(world, "stale_attempt", resolve(world, target, COMMANDS[name]))
    await world.check()


@pytest.mark.parametrize("name", list(COMMANDS))
async def test_an_attempt_that_runs_is_not_unresolved(world: World, name: str) -> None:
    """RFD 2, "compare-and-sets the attempt from unresolved Unknown": a held lease is nobody else's to settle."""
    await world.start_run()
    await world.declare(await world.lease_pass(), "s1")
    work = work_of(await world.lease())
    await must_refuse(world, "stale_attempt", resolve(world, target_of(work), COMMANDS[name]))
    await world.authorize(work)
    await must_refuse(world, "stale_attempt", resolve(world, target_of(work), COMMANDS[name]))
    assert await world.succeed(work) == Accepted()


async def test_the_fence_holds_by_itself(world: World) -> None:
    """RFD 2, "Incrementing the fencing generation prevents generation G from committing": even were G still Unknown."""
    work = await unknown_step(world)
    target, run = target_of(work), await world.get_run(work.run_id)
    step, attempt = await world.step(work.run_id, "s1"), await world.attempt(work.run_id, "s1", 1)
    assert decide_unresolved(run, step, attempt, target).attempt == attempt
    for change in (
        (run, msgspec.structs.replace(step, generation=2), attempt),
        (msgspec.structs.replace(run, phase=Phase.COMPENSATING), step, attempt),
        (msgspec.structs.replace(run, phase=Phase.TERMINAL), step, attempt),
    ):
        with pytest.raises(Refusal, match="not unresolved"):
            decide_unresolved(*change, target)


# -- keys and the order of refusals


@pytest.mark.parametrize("name", list(COMMANDS))
async def test_the_same_command_with_the_same_key_is_answered_from_its_record(world: World, name: str) -> None:
    """RFD 2, "An identical repeat returns the recorded response", whatever has become of the run since."""
    work = await unknown_step(world)
    first = await resolve(world, target_of(work), COMMANDS[name], by="ann")
    before = await world.dump()
    again = await resolve(world, target_of(work), COMMANDS[name], by="bob")
    assert again == Resolution(first.record, is_replay=True)
    assert again.record.by == "ann"
    assert await world.dump() == before
    await cancel(world, work.run_id)
    assert await resolve(world, target_of(work), COMMANDS[name]) == again, "also where the stop would refuse it now"
    assert len(await world.records(RESOLUTION, work.run_id)) == 1
    await world.check()


@pytest.mark.parametrize("name", list(COMMANDS))
async def test_another_command_with_the_same_key_conflicts(world: World, name: str) -> None:
    """RFD 2, "Reusing an idempotency key with a different command conflicts", before the attempt is looked at."""
    work = await unknown_step(world)
    target = target_of(work)
    await resolve(world, target, COMMANDS[name])
    others: list[tuple[Target, Command]] = [(target, command) for other, command in COMMANDS.items() if other != name]
    others += [
        (target, SupplySuccess(b'"other"')),
        (target, DeclareFailure(FailureRecord(category="operator", message="another"))),
        (target._replace(generation=2), COMMANDS[name]),
        (target._replace(step_id="s2"), COMMANDS[name]),
        (target._replace(direction=Direction.COMPENSATION), COMMANDS[name]),
    ]
    for at, command in others:
        await must_refuse(world, "idempotency_conflict", resolve(world, at, command))
    await must_refuse(world, "stale_attempt", resolve(world, target, COMMANDS[name], key="key-2"))


async def test_a_key_belongs_to_its_run(world: World) -> None:
    """FILLED-IN 11: "Resolution keys live as long as their run": another run's is another key."""
    first = await unknown_step(world)
    await resolve(world, target_of(first), SUCCESS)
    await world.complete(await world.lease_pass())
    second = await unknown_step(world)
    assert not (await resolve(world, target_of(second), FAILURE)).is_replay
    await world.check()


BIG = SupplySuccess(b'"' + bytes(300_000) + b'"')
MALFORMED: list[tuple[str, dict[str, Any], Command, str]] = [
    ("invalid_idempotency_key", {}, SUCCESS, ""),
    ("invalid_idempotency_key", {}, SUCCESS, " "),
    ("invalid_idempotency_key", {}, SUCCESS, "k" * (IDEMPOTENCY_KEY_BYTES_MAX + 1)),
    ("not_found", {"run_id": "no id"}, SUCCESS, "key-1"),
    ("invalid_name", {"step_id": ""}, SUCCESS, "key-1"),
    ("value_too_large", {}, BIG, "key-1"),
]


@pytest.mark.parametrize(("code", "wrong", "command", "key"), MALFORMED, ids=lambda value: str(value)[:24])
async def test_a_malformed_command_is_refused_first(
    world: World, code: str, wrong: dict[str, Any], command: Command, key: str
) -> None:
    """RFD 2, "Refusals are decided in one order": the request itself, although its key is recorded and its attempt settled."""
    work = await unknown_step(world)
    await resolve(world, target_of(work), RETRY_IT)
    await must_refuse(world, code, resolve(world, target_of(work)._replace(**wrong), command, key=key))


async def test_a_settled_attempt_is_stale_at_any_clock(world: World) -> None:
    """RFD 2, "A settled or stale attempt is therefore stale at any clock": before the stop's policy is asked."""
    run = await world.start_run()
    lost = await let_be_lost(world, await world.start_step("s1"))
    await resolve(world, target_of(lost), RETRY_IT)
    await let_be_lost(world, await world.start_attempt())
    await cancel(world, run.run_id)
    for target, code in (
        (target_of(lost), "stale_attempt"),
        (target_of(lost)._replace(generation=2), "retry_forbidden"),
    ):
        await must_refuse(world, code, resolve(world, target, RETRY_IT, key="key-2"))


async def test_a_refused_command_leaves_its_key_free(world: World) -> None:
    """ARCHITECTURE 7: "A refusal mutates nothing": the operator thinks again and uses the same key."""
    work = await unknown_step(world)
    await cancel(world, work.run_id)
    await must_refuse(world, "retry_forbidden", resolve(world, target_of(work), RETRY_IT))
    assert not (await resolve(world, target_of(work), SUCCESS)).is_replay
    await world.check()


async def test_a_value_that_the_run_cannot_carry_is_refused(world: World) -> None:
    """ARCHITECTURE 7: a typed refusal to the operator, who can act on it; a worker's result would fail its step instead."""
    work = await unknown_step(world)
    huge = SupplySuccess(b'"' + b"x" * REPLAY_BYTES_MAX + b'"')
    call = resolve(world, target_of(work), huge, value_bytes_max=2 * REPLAY_BYTES_MAX)
    assert (await must_refuse(world, "replay_budget", call)).details["field"] == "value"
    assert not (await resolve(world, target_of(work), SUCCESS)).is_replay


async def test_a_failure_over_its_limits_settles_as_one_that_says_so(world: World) -> None:
    """FILLED-IN 11, "Oversized or unserializable own result": nothing is cut short; the API refuses it before."""
    work = await unknown_step(world, retry=ONCE)
    long = FailureRecord(category="operator", message="m" * (FAILURE_MESSAGE_BYTES_MAX + 1))
    await resolve(world, target_of(work), DeclareFailure(long))
    failure = (await world.step(work.run_id, "s1")).failure
    assert failure is not None and failure.category == "sdk.invalid_result"
    await world.check()


async def test_a_proof_ends_the_need_for_a_decision(world: World) -> None:
    """RFD 2, "A transport that proves an authorized effect never began": the same attempt is queued, so it is stale."""
    work = await unknown_step(world)
    assert await prove(world, work)
    await must_refuse(world, "stale_attempt", resolve(world, target_of(work), SUCCESS))
    assert await world.succeed(await world.start_attempt()) == Accepted()
    await world.check()
