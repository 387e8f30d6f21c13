"""Continued steps: a result and the answer behind it in one transaction, to the same end as through the queue."""

from __future__ import annotations

from typing import Any

import pytest
from world import LEASE_MS, RETRY, World, work_of

from keyspace.layout import DUE_APP, READY_APP, STEP
from keyspace.lifecycle import AttemptState, Execution, ItemState, Phase, Recovery, StepState
from keyspace.records.run import FailureRecord, RetryRecord
from keyspace.records.work import Direction, WorkKind
from keyspace.transitions.accept_declaration import Declaration
from keyspace.transitions.continue_run import (
    Completion,
    Continued,
    Ending,
    FunctionFailure,
    answer_pass,
    continue_run,
    following_pass,
)
from keyspace.transitions.hold import Hold
from keyspace.transitions.work import Accepted, Replayed, Stale, Work

NEXT = Declaration("s2", RETRY)


def next_work(continued: Continued) -> Work:
    item = continued.following
    assert item is not None and item.token is not None
    return Work(item.kind, item.target, item.step_id, item.item_id, item.token, item.generation)


async def answer(world: World, work: Work, ending: Ending) -> Any:
    """Answer the pass that follows `work` by itself."""
    hold = Hold(world.seat(), LEASE_MS)
    verdict, _ = await world.run(
        "answer_pass",
        lambda tx: answer_pass(tx, "acme", following_pass(work), ending, hold=hold, value_bytes_max=1_000),
    )
    return verdict


async def test_the_next_step_is_authorized_with_the_answer(world: World) -> None:
    """ARCHITECTURE 6: "commits both in one transaction, leasing and authorizing the next step to the same session"."""
    run = await world.start_run()
    work = await world.start_step("s1")
    continued = await world.go_on(work, NEXT)
    assert (continued.result, continued.answer) == (Accepted(), Accepted())
    following = next_work(continued)
    attempt = await world.attempt(run.run_id, "s2", 1)
    assert (attempt.state, attempt.token, attempt.session) == (AttemptState.AUTHORIZED, following.token, "session-1")
    assert await world.leased_state(following) is ItemState.AUTHORIZED
    assert await world.records(READY_APP) == [], "it was never in its lane"
    kinds = (await world.kinds(run.run_id))[-4:]
    assert kinds == ["step-completed", "pass-authorized", "step-declared", "attempt-authorized"]
    await world.check()
    assert (await world.go_on(following, Completion(b"1"))).answer == Accepted()
    after = await world.get_run(run.run_id)
    assert (after.execution, after.recovery, after.item_id) == (
        Execution.COMPLETED,
        Recovery.EXECUTION_SUCCEEDED,
        None,
    )
    await world.check()


async def test_a_repeat_is_told_the_same_and_is_given_the_work_again(world: World) -> None:
    """ARCHITECTURE 5: "A composite's receipt is its last half's"; work goes to the hold whose token it carries."""
    await world.start_run()
    work = await world.start_step("s1")
    hold = Hold(world.seat(), LEASE_MS)

    async def again() -> Continued:
        return await world.run(
            "continue_run",
            lambda tx: continue_run(tx, "acme", work, b"1", NEXT, hold=hold, value_bytes_max=1_000),
        )

    first = await again()
    before = await world.dump()
    second = await again()
    assert (second.result, second.answer, second.following) == (Replayed(), Replayed(), first.following)
    other = await world.go_on(work, NEXT, b"1")
    assert (other.result, other.answer, other.following) == (Replayed(), Replayed(), None), "another hold's token"
    assert await world.dump() == before


async def test_the_answer_is_void_without_its_result(world: World) -> None:
    """ARCHITECTURE 6: "void unless the result was accepted as a success with these bytes"; the result never is."""
    run = await world.start_run()
    work = await world.start_step("s1")
    await world.succeed(work, b"1")
    continued = await world.go_on(work, NEXT, b"2")
    assert (continued.result, continued.answer) == (Stale("attempt_settled"), Stale("result_stale"))
    assert await world.value(run.run_id, "s1") == b"1"
    assert len(await world.records(STEP, run.run_id)) == 1
    await world.check()


async def test_an_unrecordable_result_voids_the_answer(world: World) -> None:
    """Case 046 on this way too: the step fails for good, its pass goes through the queue."""
    run = await world.start_run()
    work = await world.start_step("s1")
    continued = await world.go_on(work, NEXT, bytes(262_145))
    assert (continued.result, continued.answer) == (Accepted(), Stale("result_unrecordable"))
    step = await world.step(run.run_id, "s1")
    assert step.state is StepState.FAILED and step.failure is not None
    assert step.failure.category == "sdk.invalid_result"
    assert (await world.lease()).item.kind is WorkKind.DISCOVERY
    await world.check()


async def test_an_answer_names_the_generation_of_the_result_before_it(world: World) -> None:
    """RFD 2, "Result acceptance requires the current lease ... plus the run and step generation": of the pass behind it too."""
    await world.start_run()
    work = await world.start_step("s1")
    await world.go_on(work, None)
    before = await world.dump()
    assert await answer(world, work._replace(generation=work.generation + 1), NEXT) == Stale("lease_lost")
    assert await world.dump() == before
    assert await answer(world, work, NEXT) == Accepted()
    await world.check()


@pytest.mark.parametrize("held", [True, False], ids=["held", "queued"])
async def test_a_result_whose_answer_has_not_come(held: bool, world: World) -> None:
    """ARCHITECTURE 6: "the result commits alone, with its discovery item leased and authorized to that session"."""
    run = await world.start_run()
    work = await world.start_step("s1")
    continued = await world.go_on(work, None, held=held)
    assert (continued.result, continued.answer) == (Accepted(), Stale("no_answer"))
    passing = following_pass(work)
    item = await world.item(passing.item_id)
    assert item is not None and item.kind is WorkKind.DISCOVERY
    assert item.state is (ItemState.AUTHORIZED if held else ItemState.READY)
    await world.check()
    assert await answer(world, work, NEXT) == (Accepted() if held else Stale("lease_lost"))
    if held:
        assert await answer(world, work, NEXT) == Replayed()
        assert (await world.attempt(run.run_id, "s2", 1)).state is AttemptState.AUTHORIZED
    else:
        assert await world.declare(await world.lease_pass(), "s2") == Accepted()
    await world.check()


async def test_a_session_that_is_superseded_holds_nothing(world: World) -> None:
    """The session fence on this way too: after a newer hello the next step goes through the queue."""
    run = await world.start_run()
    work = await world.start_step("s1")
    await world.hello("session-2")
    continued = await world.go_on(work, NEXT, session="session-1")
    assert (continued.result, continued.answer, continued.following) == (Accepted(), Accepted(), None)
    assert (await world.attempt(run.run_id, "s2", 1)).state is AttemptState.QUEUED
    await world.check()
    assert await world.authorize(work_of(await world.lease())) == Accepted()


@pytest.mark.case(44)
async def test_a_refused_declaration_leaves_the_result_and_the_pass(world: World) -> None:
    """FILLED-IN 11, "A refused declaration": the result stands, the pass is still open, and answers."""
    run = await world.start_run()
    work = await world.start_step("s1")
    bad = Declaration("s2", RetryRecord(attempts=0, initial_ms=1, coefficient=1, cap_ms=1))
    continued = await world.go_on(work, bad)
    assert continued.result == Accepted() and continued.refusal is not None
    assert continued.refusal.code == "invalid_retry"
    assert (await world.step(run.run_id, "s1")).state is StepState.COMPLETED
    await world.check()
    again = await world.go_on(work, bad)
    assert again.result == Replayed() and again.refusal is not None
    assert await answer(world, work, Completion(b"1")) == Accepted()
    await world.check()


async def test_a_function_that_fails_behind_its_last_step(world: World) -> None:
    """A failure at the entry unwinds what completed, the step it came behind included."""
    run = await world.start_run()
    work = await world.start_step("s1")
    failure = FailureRecord(category="application", message="no")
    assert (await world.go_on(work, FunctionFailure(failure))).answer == Accepted()
    after = await world.get_run(run.run_id)
    assert (after.phase, after.failure) == (Phase.COMPENSATING, failure)
    undone = work_of(await world.lease(direction=Direction.COMPENSATION))
    assert undone.step_id == "s1"
    await world.not_found(undone)
    assert (await world.get_run(run.run_id)).recovery is Recovery.PARTIALLY_COMPENSATED
    await world.check()


async def test_a_start_that_never_reached_the_worker(world: World) -> None:
    """C6: what was authorized with the answer and never sent is proven not started, like any other start."""
    run = await world.start_run()
    following = next_work(await world.go_on(await world.start_step("s1"), NEXT))
    await world.hello("session-2")
    assert await world.prove(following)
    assert await world.succeed(following) == Stale("lease_lost")
    await world.check()
    again = await world.start_attempt()
    assert (again.step_id, again.generation, again.item_id) == ("s2", 1, following.item_id)
    assert await world.succeed(again) == Accepted()
    assert (await world.step(run.run_id, "s2")).ordinal == 1
    await world.check()


async def test_a_lost_continued_effect_is_unknown(world: World) -> None:
    """RFD 2, "An authorized effectful ... callback instead becomes Unknown": also one that never was in the queue."""
    run = await world.start_run()
    following = next_work(await world.go_on(await world.start_step("s1"), NEXT))
    world.clock.advance(LEASE_MS)
    await world.lose(following.item_id)
    assert (await world.step(run.run_id, "s2")).state is StepState.UNKNOWN
    await world.check()
    assert (await world.go_on(following, Completion(b"1"))).answer == Accepted()
    assert (await world.get_run(run.run_id)).execution is Execution.COMPLETED
    await world.check()


async def test_a_continued_lease_is_bounded_by_the_attempts_timeout(world: World) -> None:
    """ARCHITECTURE 4: renewal past authorization, attempt timeout and one lease is refused here too."""
    await world.start_run()
    following = next_work(await world.go_on(await world.start_step("s1"), Declaration("s2", RETRY, timeout_ms=1_000)))
    world.clock.advance(10_000)
    assert await world.renew((following.item_id, following.token)) == [True]
    item = await world.item(following.item_id)
    assert item is not None and item.expires_at_ms == item.renew_until_ms == world.clock.now_ms() + 6_000
    assert len(await world.records(DUE_APP)) == 1, "of the first pass only; nothing of this was ever queued"
