"""A run's own transitions: declared, settled, retried, exhausted, completed, failed, undone, obsolete."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from world import RETRY, World, work_of

from keyspace.errors import Refusal
from keyspace.layout import ITEM, OUTPUT
from keyspace.lifecycle import AttemptState, CompensationState, Execution, Phase, Recovery, StepState
from keyspace.limits import (
    ATTEMPT_TIMEOUT_MS_MAX,
    FAILURE_CATEGORY_CHARS_MAX,
    FAILURE_DETAILS_BYTES_MAX,
    FAILURE_MESSAGE_BYTES_MAX,
    LOCATION_CHARS_MAX,
    REPLAY_BYTES_MAX,
    REPLAY_STEP_BYTES,
    STALE_RESULTS_MAX,
    STEP_NAME_CHARS_MAX,
    STEPS_MAX,
)
from keyspace.records.run import FailureRecord, RetryRecord, RunRecord
from keyspace.records.work import Direction, WorkKind
from keyspace.transitions.accept_declaration import FAILURE_RESERVE_BYTES, Declaration, check_room
from keyspace.transitions.work import Accepted, Replayed, Stale, Work

LIMIT = 262_144


async def undo_all(world: World) -> list[str]:
    """Answer every compensation with "not found"; return the steps in the order they were reached."""
    visited = []
    while leased := await world.lease_many(1, direction=Direction.COMPENSATION):
        work = work_of(leased[0])
        assert work.kind is WorkKind.COMPENSATION and work.step_id is not None
        visited.append(work.step_id)
        assert await world.not_found(work) == Accepted()
    return visited


# -- declarations


async def test_a_declaration_is_a_step_with_its_first_attempt(world: World) -> None:
    """RFD 2, "Discovery against the selected eligible function either completes the function or declares its next"."""
    run = await world.start_run()
    work = await world.lease_pass()
    assert (
        await world.declare(work, "s1", name="first", timeout_ms=5, compensable=True, location="a.py:1") == Accepted()
    )
    step, attempt = await world.step(run.run_id, "s1"), await world.attempt(run.run_id, "s1", 1)
    assert (step.state, step.generation, step.ordinal, step.compensable) == (StepState.PENDING, 1, 1, True)
    assert (attempt.state, attempt.ordinal, attempt.operation_id) == (AttemptState.QUEUED, 1, step.operation_id)
    after = await world.get_run(run.run_id)
    assert (after.generation, after.step_count, after.step_id, after.item_id) == (2, 1, "s1", attempt.item_id)
    assert await world.item(work.item_id) is None
    item = await world.item(attempt.item_id)
    assert item is not None and (item.kind, item.repeatable, item.ordinal) == (WorkKind.CALLBACK, False, 1)
    await world.check()


async def test_a_repeated_answer_is_answered_as_the_first(world: World) -> None:
    """ARCHITECTURE 3, "Unknown commits": the run's receipt of the pass tells a repeat from a different answer."""
    await world.start_run()
    work = await world.lease_pass()
    await world.declare(work, "s1")
    before = await world.dump()
    assert await world.declare(work, "s1") == Replayed()
    assert await world.declare(work, "s2") == Stale("pass_settled")
    assert await world.declare(work, "s1", timeout_ms=7) == Stale("pass_settled")
    assert await world.complete(work) == Stale("pass_settled")
    assert await world.fail(work) == Stale("pass_settled")
    assert await world.dump() == before


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"step_id": ""}, "invalid_name", "step id"),
    ({"step_id": "  "}, "invalid_name", "step id"),
    ({"step_id": "x" * 10_000}, "invalid_name", "step id"),
    ({"step_id": "a\x00"}, "invalid_name", "step id"),
    ({"retry": RetryRecord(attempts=0, initial_ms=1, coefficient=1, cap_ms=1)}, "invalid_retry", "retry.attempts"),
    ({"retry": RetryRecord(attempts=2**70, initial_ms=1, coefficient=1, cap_ms=1)}, "invalid_retry", "retry.attempts"),
    ({"retry": RetryRecord(attempts=1, initial_ms=-1, coefficient=1, cap_ms=1)}, "invalid_retry", "retry.initial_ms"),
    (
        {"retry": RetryRecord(attempts=1, initial_ms=1, coefficient=float("nan"), cap_ms=1)},
        "invalid_retry",
        "retry.coefficient",
    ),
    ({"timeout_ms": 0}, "invalid_timeout", "timeout_ms"),
    ({"timeout_ms": -1}, "invalid_timeout", "timeout_ms"),
    ({"timeout_ms": ATTEMPT_TIMEOUT_MS_MAX + 1}, "invalid_timeout", "timeout_ms"),
    ({"name": "n" * (STEP_NAME_CHARS_MAX + 1)}, "invalid_name", "name"),
    ({"location": "l" * (LOCATION_CHARS_MAX + 1)}, "invalid_name", "location"),
]


@pytest.mark.case(44)
@pytest.mark.parametrize(
    ("change", "code", "field"), REFUSED, ids=[f"{code}-{n}" for n, (_, code, _) in enumerate(REFUSED)]
)
async def test_a_refused_declaration_changes_nothing_and_keeps_its_lease(
    change: dict[str, Any], code: str, field: str, world: World
) -> None:
    """Case 044 and FILLED-IN 11, "A refused declaration": nothing is mutated, the pass goes on and then answers."""
    await world.start_run()
    work = await world.lease_pass()
    before = await world.dump()
    with pytest.raises(Refusal) as refused:
        await world.declare(work, **{"step_id": "s1"} | change)
    assert (refused.value.code, refused.value.details["field"]) == (code, field)
    assert await world.dump() == before
    assert await world.renew((work.item_id, work.token)) == [True]
    assert await world.complete(work) == Accepted()
    await world.check()


@pytest.mark.parametrize("state", ["completed", "failed"])
async def test_a_settled_step_is_not_declared_again(state: str, world: World) -> None:
    """RFD 1, "Once the server has accepted a successful result for that identifier": nor one that failed for good."""
    await world.start_run()
    work = await world.start_step("s1")
    await (world.succeed(work) if state == "completed" else world.fail_attempt(work, retryable=False))
    passing = await world.lease_pass()
    before = await world.dump()
    with pytest.raises(Refusal) as refused:
        await world.declare(passing, "s1")
    assert (refused.value.code, refused.value.details["state"]) == ("step_settled", state)
    assert await world.dump() == before


@pytest.mark.case(49)
def test_the_last_step_and_the_last_byte_are_refused_by_name() -> None:
    """Case 049, "at the bound a typed refusal that user code or an operator can act on, never a silent end"."""
    run = RunRecord(
        run_id="aa" * 16,
        application="a",
        function="f",
        event_id="ee" * 16,
        event_name="e",
        binding="b",
        manifest_generation=1,
        routing_generation=1,
        created_at_ms=1,
        updated_at_ms=1,
        input_bytes=1,
    )
    declaration = Declaration("s1", RETRY)
    needed = len("s1") + REPLAY_STEP_BYTES + FAILURE_RESERVE_BYTES

    def room(**fields: int) -> str | None:
        try:
            check_room(
                RunRecord(**{name: getattr(run, name) for name in run.__struct_fields__} | fields), None, declaration
            )
        except Refusal as refusal:
            assert {"field", "value", "limit"} <= set(refusal.details)
            return refusal.code
        return None

    assert room(step_count=STEPS_MAX - 1) is None
    assert room(step_count=STEPS_MAX) == "step_limit"
    assert room(replay_bytes=REPLAY_BYTES_MAX - needed) is None
    assert room(replay_bytes=REPLAY_BYTES_MAX - needed + 1) == "replay_budget"


async def test_a_value_that_the_replay_budget_cannot_carry(world: World) -> None:
    """FILLED-IN 11, "Replay budget": it settles its step as `sdk.invalid_result`, for which a reserve was kept."""
    run = await world.start_run()
    for number in range(32):
        assert await world.succeed(await world.start_step(f"s{number}"), bytes(LIMIT)) == Accepted()
    after = await world.get_run(run.run_id)
    assert after.replay_bytes <= REPLAY_BYTES_MAX < after.replay_bytes + LIMIT
    assert after.completion_count == 31
    last = await world.step(run.run_id, "s31")
    assert last.state is StepState.FAILED and last.failure is not None
    assert (last.failure.category, str(REPLAY_BYTES_MAX) in last.failure.message) == ("sdk.invalid_result", True)
    await world.run_step("small")
    assert await world.complete(await world.lease_pass()) == Accepted()
    await world.check()


# -- results


async def test_a_success_is_the_steps_one_result(world: World) -> None:
    """RFD 2, "Duplicate submission of the same accepted result is idempotent"."""
    run = await world.start_run()
    work = await world.start_step()
    assert await world.succeed(work, b'{"a":1}') == Accepted()
    step = await world.step(run.run_id, "s1")
    assert (step.state, step.completion, step.value_bytes) == (StepState.COMPLETED, 1, 7)
    before = await world.dump()
    assert await world.succeed(work, b'{"a":1}') == Replayed()
    assert await world.dump() == before
    assert await world.completions(run.run_id) == ["s1"]
    await world.check()


async def test_concurrent_results_of_one_attempt(world: World) -> None:
    """C5: of ten different results sent at once exactly one is accepted; the others are stale and shown."""
    run = await world.start_run()
    work = await world.start_step()
    verdicts = await asyncio.gather(*(world.succeed(work, b"%d" % number) for number in range(10)))
    accepted = [number for number, verdict in enumerate(verdicts) if verdict == Accepted()]
    assert len(accepted) == 1
    assert await world.value(run.run_id, "s1") == b"%d" % accepted[0]
    assert len(await world.stale_results(run.run_id)) == STALE_RESULTS_MAX
    await world.check()


async def test_stale_results_are_kept_up_to_a_bound(world: World) -> None:
    """FILLED-IN 11, "Stale diagnostic results are kept up to a stated number for each attempt": 8, a repeat counts once."""
    run = await world.start_run()
    work = await world.start_step()
    await world.succeed(work, b"right")
    for _ in range(3):
        assert await world.succeed(work, b"wrong") == Stale("attempt_settled")
    assert len(await world.stale_results(run.run_id)) == 1
    for number in range(20):
        await world.succeed(work, b"%d" % number)
    kept = await world.stale_results(run.run_id)
    assert len(kept) == STALE_RESULTS_MAX
    assert await world.value(run.run_id, "s1") == b"right"
    before = await world.dump()
    await world.succeed(work, b"one more")
    assert await world.dump() == before
    await world.check()


@pytest.mark.parametrize(
    "change",
    [
        {"token": "00" * 16},
        {"generation": 2},
        {"step_id": "other"},
        {"run_id": "00" * 16},
        {"item_id": "00" * 16},
        {"kind": WorkKind.COMPENSATION},
    ],
    ids=str,
)
async def test_a_result_that_names_something_else_settles_nothing(change: dict[str, Any], world: World) -> None:
    """RFD 2, "A stale worker cannot commit state": whatever part of the reference is wrong."""
    run = await world.start_run()
    work = await world.start_step()
    wrong = work._replace(**change)
    runs = await world.runs()
    assert isinstance(await world.succeed(wrong), Stale)
    assert isinstance(await world.fail_attempt(wrong), Stale)
    assert await world.runs() == runs
    assert await world.succeed(work) == Accepted()
    assert (await world.step(run.run_id, "s1")).state is StepState.COMPLETED
    await world.check()


async def test_a_retry_is_the_next_ordinal_of_one_operation(world: World) -> None:
    """RFD 2, "create a distinct delayed successor with the next application-attempt ordinal and deterministic backoff"."""
    run = await world.start_run()
    works: list[Work] = [await world.start_step("s1")]
    for delay_ms in (1_000, 2_000):
        assert await world.fail_attempt(works[-1]) == Accepted()
        await world.check()
        step = await world.step(run.run_id, "s1")
        assert step.state is StepState.BACKING_OFF
        world.clock.advance(delay_ms - 1)
        assert await world.lease_many(1) == []
        world.clock.advance(1)
        works.append(await world.start_attempt())
    assert len({work.item_id for work in works}) == 3
    attempts = [await world.attempt(run.run_id, "s1", number) for number in (1, 2, 3)]
    assert [attempt.ordinal for attempt in attempts] == [1, 2, 3]
    assert len({attempt.operation_id for attempt in attempts}) == 1
    assert await world.fail_attempt(works[0]) == Replayed()
    assert await world.succeed(works[0]) == Stale("attempt_settled"), "the generation before settles nothing any more"
    assert await world.fail_attempt(works[-1], FailureRecord(category="application", message="last")) == Accepted()
    step = await world.step(run.run_id, "s1")
    assert (step.state, step.failure_count) == (StepState.FAILED, 3)
    assert step.failure == FailureRecord(category="application", message="last")
    kinds = await world.kinds(run.run_id)
    assert (kinds.count("attempt-failed"), kinds.count("retry-scheduled"), kinds.count("step-failed")) == (3, 2, 1)
    assert (await world.lease()).item.kind is WorkKind.DISCOVERY
    await world.check()


async def test_a_failure_that_forbids_retry_exhausts_at_once(world: World) -> None:
    """RFD 2, "Exhaustion durably records a terminal failure for the logical step and creates discovery work"."""
    run = await world.start_run()
    work = await world.start_step()
    await world.fail_attempt(work, retryable=False)
    assert (await world.step(run.run_id, "s1")).state is StepState.FAILED
    passing = await world.lease_pass()
    assert await world.complete(passing) == Accepted(), "a handled failure does not fail the run"
    after = await world.get_run(run.run_id)
    assert (after.execution, after.recovery) == (Execution.COMPLETED, Recovery.EXECUTION_SUCCEEDED)
    await world.check()


@pytest.mark.case(43)
async def test_two_hundred_attempts_on_a_virtual_clock(world: World) -> None:
    """Case 043, "then drive 200 attempts on a virtual clock": each waits its capped delay, none is a hot loop."""
    retry = RetryRecord(attempts=200, initial_ms=1_000, coefficient=10.0, cap_ms=30_000)
    run = await world.start_run()
    work = await world.start_step(retry=retry)
    for number in range(1, 200):
        before = world.clock.now_ms()
        await world.fail_attempt(work)
        world.clock.advance({1: 1_000, 2: 10_000}.get(number, 30_000))
        work = await world.start_attempt()
        attempt = await world.attempt(run.run_id, "s1", number + 1)
        assert attempt.vesting_ms - before == {1: 1_000, 2: 10_000}.get(number, 30_000)
    await world.fail_attempt(work)
    assert (await world.step(run.run_id, "s1")).failure_count == 200
    await world.check()


@pytest.mark.case(46)
@pytest.mark.parametrize("size", [LIMIT - 1, LIMIT, LIMIT + 1, 50 * LIMIT])
async def test_results_around_their_limit(size: int, world: World) -> None:
    """Case 046: at once a terminal typed failure that names size and limit; no retry although the policy has some."""
    run = await world.start_run()
    assert await world.succeed(await world.start_step(), bytes(size)) == Accepted()
    step = await world.step(run.run_id, "s1")
    if size <= LIMIT:
        assert step.state is StepState.COMPLETED
        assert await world.value(run.run_id, "s1") == bytes(size)
    else:
        assert step.state is StepState.FAILED and step.failure is not None
        assert step.failure.category == "sdk.invalid_result"
        assert str(size) in step.failure.message and str(LIMIT) in step.failure.message
    assert (await world.lease()).item.kind is WorkKind.DISCOVERY
    await world.check()


@pytest.mark.case(46)
@pytest.mark.parametrize("size", [LIMIT - 1, LIMIT, LIMIT + 1, 50 * LIMIT])
async def test_outputs_around_their_limit(size: int, world: World) -> None:
    """Case 046 and FILLED-IN 11: a function's own oversized return value fails the function with that category."""
    run = await world.start_run()
    await world.run_step("s1")
    assert await world.complete(await world.lease_pass(), bytes(size)) == Accepted()
    after = await world.get_run(run.run_id)
    if size <= LIMIT:
        assert (after.execution, after.output_bytes) == (Execution.COMPLETED, size)
        assert b"".join(await world.records(OUTPUT, run.run_id)) == bytes(size)
    else:
        assert (after.phase, after.execution) == (Phase.COMPENSATING, Execution.FAILED)
        assert after.failure is not None and after.failure.category == "sdk.invalid_result"
        assert await undo_all(world) == ["s1"]
    await world.check()


PARTS = [
    ("category", FAILURE_CATEGORY_CHARS_MAX),
    ("message", FAILURE_MESSAGE_BYTES_MAX),
    ("details", FAILURE_DETAILS_BYTES_MAX),
]


@pytest.mark.case(46)
@pytest.mark.parametrize(("part", "limit"), PARTS)
@pytest.mark.parametrize("excess", [-1, 0, 1, 50])
async def test_failures_around_their_limits(part: str, limit: int, excess: int, world: World) -> None:
    """Case 046, "failure message": over its limit a failure is not cut short and not retried, but says which part."""
    size = limit * 50 if excess == 50 else limit + excess
    failure = FailureRecord(**{"category": "c", "message": "m", "details": "d"} | {part: "x" * size})
    run = await world.start_run()
    work = await world.start_step()
    assert await world.fail_attempt(work, failure) == Accepted()
    attempt = await world.attempt(run.run_id, "s1", 1)
    step = await world.step(run.run_id, "s1")
    if size <= limit:
        assert (attempt.failure, step.state) == (failure, StepState.BACKING_OFF)
    else:
        assert step.state is StepState.FAILED and attempt.failure is not None
        assert attempt.failure.category == "sdk.invalid_result"
        assert part in attempt.failure.message and str(size) in attempt.failure.message
    assert await world.fail_attempt(work, failure) == Replayed()
    await world.check()


# -- the end


async def test_a_completed_run_owns_nothing(world: World) -> None:
    """C4: terminal, both outcomes set, no work left; a late answer changes nothing."""
    run = await world.start_run()
    work = await world.lease_pass()
    assert await world.complete(work, b"[1]") == Accepted()
    after = await world.get_run(run.run_id)
    assert (after.phase, after.execution, after.recovery) == (
        Phase.TERMINAL,
        Execution.COMPLETED,
        Recovery.EXECUTION_SUCCEEDED,
    )
    assert await world.records(ITEM) == []
    before = await world.dump()
    assert await world.complete(work, b"[1]") == Replayed()
    assert await world.complete(work, b"[2]") == Stale("pass_settled")
    assert await world.declare(work, "s1") == Stale("pass_settled")
    assert await world.dump() == before
    await world.check()


async def test_a_failed_run_without_completed_steps_ends_at_once(world: World) -> None:
    """RFD 2, "An empty plan appends a CompensationNotRequired history record with reason EmptyUnwind"."""
    run = await world.start_run()
    await world.fail_attempt(await world.start_step(), retryable=False)
    assert await world.fail(await world.lease_pass()) == Accepted()
    after = await world.get_run(run.run_id)
    assert (after.phase, after.execution, after.recovery) == (Phase.TERMINAL, Execution.FAILED, Recovery.EMPTY_UNWIND)
    assert (await world.history(run.run_id))[-1].data["reason"] == "EmptyUnwind"
    await world.check()


async def test_completed_steps_are_visited_in_reverse_order_of_completion(world: World) -> None:
    """RFD 1, "visits completed steps sequentially in reverse completion order"; FILLED-IN 5, every target skipped."""
    run = await world.start_run()
    for step_id in ("b", "a", "c"):
        await world.run_step(step_id)
    await world.fail_attempt(await world.start_step("d"), retryable=False)
    await world.fail(await world.lease_pass(), FailureRecord(category="application", message="no"))
    during = await world.get_run(run.run_id)
    assert (during.phase, during.execution, during.recovery) == (Phase.COMPENSATING, Execution.FAILED, None)
    await world.check()
    assert await world.lease_many(5) == [], "nothing forward is left"
    assert await undo_all(world) == ["c", "a", "b"]
    after = await world.get_run(run.run_id)
    assert (after.phase, after.recovery) == (Phase.TERMINAL, Recovery.PARTIALLY_COMPENSATED)
    assert after.failure == FailureRecord(category="application", message="no")
    assert (await world.step(run.run_id, "a")).compensation is CompensationState.SKIPPED
    assert (await world.step(run.run_id, "d")).compensation is CompensationState.NONE
    await world.check()


async def test_a_compensation_is_never_without_its_next_work(world: World) -> None:
    """RFD 2, "never creates a Compensating run without durable next work": also when its lease is lost on the way."""
    run = await world.start_run()
    for step_id in ("a", "b"):
        await world.run_step(step_id)
    await world.fail(await world.lease_pass())
    leased = work_of(await world.lease(direction=Direction.COMPENSATION))
    world.clock.advance(15_000)
    await world.lose(leased.item_id)
    await world.check()
    assert await world.not_found(leased) == Accepted(), "the token of the ended lease still answers"
    assert await world.not_found(leased) == Replayed()
    assert await undo_all(world) == ["a"]
    assert (await world.get_run(run.run_id)).recovery is Recovery.PARTIALLY_COMPENSATED
    await world.check()


async def test_a_target_that_is_gone_becomes_obsolete_and_may_come_back(world: World) -> None:
    """FILLED-IN 6: "Obsolete, discovery follows"; "An Obsolete step is met again: declared anew, next step generation"."""
    run = await world.start_run()
    await world.declare(await world.lease_pass(), "s1")
    work = work_of(await world.lease())
    assert await world.not_found(work) == Accepted()
    step = await world.step(run.run_id, "s1")
    assert (step.state, (await world.attempt(run.run_id, "s1", 1)).state) == (StepState.OBSOLETE, AttemptState.FENCED)
    await world.check()
    assert await world.not_found(work) == Replayed()
    assert await world.authorize(work) == Stale("lease_lost")
    again = await world.start_step("s1")
    step = await world.step(run.run_id, "s1")
    assert (again.generation, step.generation, step.ordinal, step.first_ordinal) == (2, 2, 2, 2)
    assert (await world.get_run(run.run_id)).step_count == 1
    assert await world.succeed(again) == Accepted()
    assert (await world.attempt(run.run_id, "s1", 1)).operation_id == step.operation_id
    await world.check()


async def test_a_retry_whose_step_is_gone_becomes_obsolete(world: World) -> None:
    """FILLED-IN 6, "A step that awaits its next attempt is removed": the attempt is fenced, its ordinals only grow."""
    run = await world.start_run()
    await world.fail_attempt(await world.start_step())
    world.clock.advance(1_000)
    assert await world.not_found(work_of(await world.lease())) == Accepted()
    await world.check()
    again = await world.start_step("s1")
    step = await world.step(run.run_id, "s1")
    assert (again.generation, step.ordinal, step.first_ordinal, step.failure_count) == (3, 3, 3, 0)
    await world.fail_attempt(again)
    await world.check()
    assert (await world.step(run.run_id, "s1")).failure_count == 1, "the policy counts from the new declaration"


async def test_an_authorized_attempt_cannot_be_called_missing(world: World) -> None:
    """A target is looked for before its start; afterwards only a result settles the attempt."""
    await world.start_run()
    work = await world.start_step()
    before = await world.dump()
    assert await world.not_found(work) == Stale("attempt_not_queued")
    assert await world.dump() == before


async def test_engine_time_never_goes_back_for_a_run(world: World) -> None:
    """FILLED-IN 11, "Engine clocks": a process whose clock is behind decides with the run's last recorded instant."""
    run = await world.start_run()
    work = await world.start_step()
    recorded_ms = (await world.get_run(run.run_id)).updated_at_ms
    world.clock.step(-400)
    await world.succeed(work)
    assert (await world.get_run(run.run_id)).updated_at_ms == recorded_ms
    assert await world.lease_many(1) == [], "the work vests at the run's instant, which is yet to come for this process"
    world.clock.step(400)
    await world.complete(await world.lease_pass())
    instants = [entry.at_ms for entry in await world.history(run.run_id)]
    assert instants == sorted(instants)
    await world.check()
