"""The worker's core behind its own successes: one durable transaction a step (ARCHITECTURE 6, "Continuation")."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from ryusen.protocol.frames import (
    Answer,
    Assign,
    Complete,
    Declare,
    Drain,
    Fail,
    Failed,
    Failure,
    GiveBack,
    HeldWork,
    Proceed,
    Ready,
    Renewed,
    Result,
    ServerFrame,
    Settled,
    Start,
    StepDeclaration,
    Succeeded,
    WorkerFrame,
)
from ryusen.worker import work as bounds
from ryusen.worker.effects import (
    CancelCallback,
    ClosePass,
    ContinuePass,
    Exit,
    MovePass,
    ResumePass,
    RunCallback,
    Send,
    Warn,
)
from sdk_bench import ENDED, RENEW_MS, SUCCESS, Bench, assign, met, ref, welcome

NEXT_REF = ref(step="ship", token="t2")
JOINT = Result(request="q1", ref=ref(), outcome=SUCCESS, following="q1+")
ALONE = Result(request="q1", ref=ref(), outcome=SUCCESS)


def chain(capacity: int = 1) -> Bench:
    """Return a bench whose callback `q1` runs in a session that goes on behind successes."""
    return Bench(capacity=capacity).up(continues=True).running("q1")


def following(capacity: int = 1) -> Bench:
    """Return a bench whose callback has succeeded and whose pass is under way."""
    bench = chain(capacity)
    bench.ended("q1")
    return bench


def answered(capacity: int = 1) -> Bench:
    """Return a bench whose following pass has declared `ship`."""
    bench = following(capacity)
    bench.turn("q1+", met("ship"))
    return bench


def proceed(**changes: Any) -> Proceed:
    given: dict[str, Any] = {"request": "q1+", "following": "t2", "ref": NEXT_REF, "joint": "q1"}
    return Proceed(**{**given, **changes})


def sent(bench: Bench, *frames: ServerFrame) -> list[WorkerFrame]:
    bench.get(*frames)
    return bench.sent()


def held(bench: Bench) -> list[HeldWork]:
    """Return what a hello would list; the bench has no session afterwards."""
    bench.down()
    return bench.hello().held


# ---- a chain that goes well


def test_a_success_is_reported_before_any_other_user_code_runs() -> None:
    """ARCHITECTURE 6: the result frame goes first, flagged; then the pass goes on."""
    assert chain().ended("q1") == [Send(JOINT), ContinuePass("q1", "q1+", b"1")]


def test_the_pass_goes_on_with_the_bytes_that_were_reported() -> None:
    """ARCHITECTURE 6: workflow code sees the value decoded from what it reported, never the live object."""
    outcome = Succeeded(value=msgspec.Raw(b'{"a":[1,2]}'))
    effects = chain().ended("q1", outcome)
    assert effects[1] == ContinuePass("q1", "q1+", b'{"a":[1,2]}')


def test_an_answer_names_the_result_that_it_follows() -> None:
    bench = following()
    bench.turn("q1+", met("ship"), "earlier")
    declare = Declare(steps=[StepDeclaration(id="ship")])
    assert bench.sent() == [Answer(request="q1+", ref=ref(), ending=declare, failed_met=["earlier"])]


def test_the_next_step_runs_at_once_in_the_pass_that_declared_it() -> None:
    """Its start is durable with the answer: there is no `ready` and no `start`."""
    bench = answered()
    bench.get(proceed())
    assert bench.effects == [
        ClosePass("q1"),
        MovePass("q1+", "t2", NEXT_REF),
        RunCallback("t2", 4_096),
    ]
    assert bench.ended("t2")[0] == Send(Result(request="t2", ref=NEXT_REF, outcome=SUCCESS, following="t2+"))


def test_a_first_answer_may_be_answered_by_its_step_too() -> None:
    """The first pass came from the queue and follows no result."""
    bench = Bench().up(continues=True)
    bench.get(assign("d1", "discovery"))
    bench.turn("d1", met("pay"))
    bench.get(proceed(request="d1", following="t1", ref=ref(), joint=""))
    assert bench.effects == [MovePass("d1", "t1", ref()), RunCallback("t1", 4_096)]


def test_a_chain_ends_with_the_function() -> None:
    bench = following()
    bench.turn("q1+", ENDED)
    assert bench.sent() == [Answer(request="q1+", ref=ref(), ending=Complete(value=msgspec.Raw(b"1")))]
    bench.get(Settled(request="q1+", verdict="accepted", joint="q1"))
    assert held(bench) == [], "the result is acknowledged with the answer"


def test_a_chain_of_many_steps_holds_no_more_than_one_step_does() -> None:
    bench = chain()
    request = "q1"
    for number in range(200):
        bench.ended(request)
        bench.turn(f"{request}+", met(f"s{number}"))
        following = f"t{number}"
        bench.get(proceed(request=f"{request}+", following=following, joint=request))
        assert RunCallback(following, 4_096) in bench.effects
        request = following
        assert len(bench.core._works) == 1
        assert len(bench.core._works._busy) == 1


# ---- where no pass follows


def test_without_the_sessions_leave_a_result_goes_alone() -> None:
    bench = Bench().up().running("q1")
    assert bench.ended("q1") == [ClosePass("q1"), Send(ALONE)]


def test_a_failure_goes_alone() -> None:
    outcome = Failed(failure=Failure(category="application", message="m"))
    assert chain().ended("q1", outcome) == [ClosePass("q1"), Send(Result(request="q1", ref=ref(), outcome=outcome))]


def test_without_a_session_a_success_is_kept_and_goes_alone_in_the_next_one() -> None:
    bench = chain()
    bench.down()
    assert bench.ended("q1") == [ClosePass("q1")]
    bench.hello()
    assert sent(bench, welcome(continues=True)) == [ALONE]


def test_a_leaving_worker_begins_no_pass_behind_its_success() -> None:
    bench = chain()
    bench.took(bench.core.drain(bench.now_ms, 3_000))
    assert bench.ended("q1") == [ClosePass("q1"), Send(ALONE)]


# ---- the answer is void


@pytest.mark.parametrize("has_answered", [False, True])
def test_the_pass_behind_a_result_that_lost_is_void(has_answered: bool) -> None:
    """ARCHITECTURE 6: void unless the result was accepted as a success with these bytes."""
    bench = answered() if has_answered else following()
    bench.get(Settled(request="q1", verdict="stale", code="lease_lost"))
    assert ClosePass("q1+") in bench.effects
    assert held(bench) == []


def test_the_pass_behind_a_result_that_was_refused_is_void() -> None:
    """The refused value is replaced by a failure, behind which no pass goes on."""
    bench = answered()
    bench.get(Settled(request="q1", verdict="refused", code="invalid_value"))
    (said,) = bench.sent()
    assert isinstance(said, Result)
    assert isinstance(said.outcome, Failed)
    assert (said.following, said.outcome.retryable) == ("", False)
    assert ClosePass("q1+") in bench.effects
    assert [work.request for work in held(bench)] == ["q1"]


def test_a_result_accepted_alone_leaves_its_pass_under_way() -> None:
    """The hold ended first: the pass goes on under a lease of its own, and its answer is accepted by itself."""
    bench = following()
    assert bench.get(Settled(request="q1", verdict="accepted")) == [ClosePass("q1")]
    bench.turn("q1+", met("ship"))
    assert [type(frame) for frame in bench.sent()] == [Answer]
    bench.get(proceed(joint=""))
    assert RunCallback("t2", 4_096) in bench.effects


def test_an_answer_that_lost_ends_its_pass_and_nothing_else() -> None:
    bench = answered()
    bench.get(Settled(request="q1", verdict="accepted"))
    assert bench.get(Settled(request="q1+", verdict="stale", code="lease_lost")) == [ClosePass("q1+")]
    assert held(bench) == []


# ---- a refused declaration


def test_a_refused_declaration_goes_back_into_the_following_pass() -> None:
    """FILLED-IN 11: the pass stays open and sees the refusal at that call; its result is acknowledged all the same."""
    bench = answered()
    bench.get(Settled(request="q1+", verdict="refused", code="step_limit", limit=5, joint="q1"))
    assert bench.effects[0] == ClosePass("q1")
    (resumed,) = bench.effects[1:]
    assert isinstance(resumed, ResumePass)
    assert resumed.request == "q1+"
    assert "step_limit" in str(resumed.refusal)
    bench.turn("q1+", ENDED)
    assert bench.sent() == [Answer(request="q1+", ref=ref(), ending=Complete(value=msgspec.Raw(b"1")))]
    bench.get(Settled(request="q1+", verdict="accepted"))
    assert held(bench) == []


def test_a_refused_output_fails_the_function_in_the_same_pass() -> None:
    bench = following()
    bench.turn("q1+", ENDED)
    (said,) = sent(bench, Settled(request="q1+", verdict="refused", code="invalid_value", joint="q1"))
    assert isinstance(said, Answer)
    assert isinstance(said.ending, Fail)
    assert (said.request, said.ref) == ("q1+", ref())


# ---- authorized, and not started


@pytest.mark.parametrize("gone", ["never known", "settled", "declared again"])
def test_a_step_that_proceeds_in_no_pass_goes_back(gone: str) -> None:
    """What is authorized and cannot run here was never started, and says so."""
    bench = Bench().up(continues=True) if gone == "never known" else answered()
    if gone == "settled":
        bench.get(Settled(request="q1+", verdict="stale"))
    elif gone == "declared again":
        bench.get(Settled(request="q1+", verdict="refused", code="c"))
    assert sent(bench, proceed()) == [GiveBack(request="t2", ref=NEXT_REF, reason="its pass is gone")]
    assert not [effect for effect in bench.effects if isinstance(effect, RunCallback)]


def test_a_step_that_proceeds_twice_runs_once() -> None:
    """And it is not given back either: to say that it never started would have it run again elsewhere."""
    bench = answered()
    bench.get(proceed())
    assert bench.get(proceed()) == []
    bench.ended("t2")
    bench.get(Settled(request="t2", verdict="accepted"))
    assert bench.get(proceed()) == []


def test_a_leaving_worker_starts_no_further_step() -> None:
    """Its pass had answered before it was told to leave: the step goes back, proven not started."""
    bench = answered()
    bench.took(bench.core.drain(bench.now_ms, 3_000))
    bench.get(proceed())
    assert bench.sent()[0] == GiveBack(request="t2", ref=NEXT_REF, reason="the worker is leaving")
    assert not [effect for effect in bench.effects if isinstance(effect, RunCallback)]
    assert isinstance(bench.effects[-1], Exit), "with the result acknowledged nothing is left"


def test_a_leaving_worker_gives_back_the_pass_that_is_under_way() -> None:
    bench = following()
    bench.took(bench.core.drain(bench.now_ms, 3_000))
    assert bench.sent() == [Drain(), GiveBack(request="q1+", ref=ref(), reason="the worker is leaving")]
    assert ClosePass("q1+") in bench.effects
    bench.get(Settled(request="q1", verdict="accepted"))
    assert isinstance(bench.effects[-1], Exit)


# ---- losing the session in the middle of a chain


@pytest.mark.case(71)
@pytest.mark.parametrize("has_answered", [False, True])
def test_a_pass_does_not_outlive_its_session_and_its_result_goes_alone(has_answered: bool) -> None:
    """Case 071, between result and acknowledgement: only the result is kept."""
    bench = answered() if has_answered else following()
    assert ClosePass("q1+") in bench.down()
    assert bench.hello().held == [HeldWork(ref=ref(), request="q1", state="finished")]
    assert sent(bench, welcome(continues=True)) == [ALONE]
    bench.get(Settled(request="q1", verdict="replayed"))
    assert held(bench) == []


def test_a_pass_whose_result_is_acknowledged_is_dropped_with_the_session_too() -> None:
    bench = following()
    bench.get(Settled(request="q1", verdict="accepted"))
    assert bench.down() == [ClosePass("q1+")]
    assert bench.hello().held == []


@pytest.mark.case(71)
def test_a_step_that_never_proceeded_is_absent_from_the_next_hello() -> None:
    """It was authorized here in the lost transaction; its absence proves that it never started."""
    bench = answered()
    assert all(work.ref != NEXT_REF for work in held(bench))
    bench.get(welcome(continues=True))
    assert not [frame for frame in sent(bench, proceed()) if not isinstance(frame, GiveBack)]


def test_a_step_that_runs_in_a_chain_is_listed() -> None:
    bench = answered()
    bench.get(proceed())
    assert held(bench) == [HeldWork(ref=NEXT_REF, request="t2", state="running")]


def test_a_leaving_dispatcher_ends_the_chain_and_loses_nothing() -> None:
    bench = following()
    bench.get(Drain())
    assert bench.turn("q1+", met("ship")) == [], "nothing is said on a connection that closes"
    assert held(bench) == [HeldWork(ref=ref(), request="q1", state="finished")]


# ---- slots


def test_a_chain_keeps_its_slot_until_it_ends_and_then_gives_it_to_who_waits() -> None:
    bench = chain(capacity=1)
    bench.get(assign("q9", run="run-9"))
    bench.turn("q9", met())
    assert bench.sent() == [], "no slot is free"
    bench.ended("q1")
    assert not [frame for frame in bench.sent() if isinstance(frame, Ready)], "the slot goes on with the pass"
    bench.turn("q1+", ENDED)
    assert not [frame for frame in bench.sent() if isinstance(frame, Ready)]
    assert sent(bench, Settled(request="q1+", verdict="accepted", joint="q1")) == [Ready(request="q9")]


@pytest.mark.parametrize("verdict", ["stale", "refused"])
def test_a_pass_that_is_void_gives_its_slot_to_who_waits(verdict: Any) -> None:
    bench = chain(capacity=1)
    bench.get(assign("q9", run="run-9"))
    bench.turn("q9", met())
    bench.ended("q1")
    assert Ready(request="q9") in sent(bench, Settled(request="q1", verdict=verdict, code="c"))


def test_a_pass_that_takes_too_long_gives_its_slot_to_who_waits() -> None:
    bench = Bench(capacity=1).up(continues=True, silence_ms=2 * bounds.PASS_MS_MAX).running("q1")
    bench.ended("q1")
    bench.get(Settled(request="q1", verdict="accepted"))
    bench.after(bounds.PASS_MS_MAX - 1_000)
    bench.get(assign("q9", run="run-9"))
    bench.turn("q9", met())
    bench.after(1_000)
    assert Ready(request="q9") in bench.sent()
    assert [effect for effect in bench.effects if isinstance(effect, Warn)]


@pytest.mark.case(13)
def test_a_step_proceeds_into_a_free_slot_only() -> None:
    """Case 013: a callback that overran its timeout keeps a slot the dispatcher does not count; the step goes back.

    The slot that is free is for compensators alone.
    """
    bench = Bench(capacity=1, undo_capacity=1).up(continues=True).running("q1", timeout_ms=100)
    bench.after(100)
    assert CancelCallback("q1") in bench.effects
    bench.get(Settled(request="q1", verdict="accepted"))
    bench.get(assign("d1", "discovery", run="run-2"))
    bench.turn("d1", met("pay"))
    next_ref = ref(run="run-2", token="t5")
    effects = bench.get(Proceed(request="d1", following="t5", ref=next_ref))
    assert effects == [Send(GiveBack(request="t5", ref=next_ref, reason="no slot is free")), ClosePass("d1")]


# ---- time


def test_a_timeout_in_a_chain_counts_from_the_start_of_its_step() -> None:
    bench = answered()
    bench.get(proceed(timeout_ms=700))
    assert bench.after(699) == []
    bench.after(1)
    assert bench.effects[0] == CancelCallback("t2")
    (said,) = bench.sent()
    assert isinstance(said, Result)
    assert isinstance(said.outcome, Failed)
    assert (said.request, said.outcome.failure.category, said.following) == ("t2", "sdk.timeout", "")
    bench.get(Settled(request="t2", verdict="accepted"))
    assert bench.ended("t2") == [ClosePass("t2")], "what it returns later no longer counts"


def test_the_lease_of_a_pass_that_follows_is_renewed_and_its_loss_changes_nothing_here() -> None:
    bench = following()
    bench.get(Settled(request="q1", verdict="accepted"))
    bench.after(RENEW_MS)
    (renewal,) = bench.sent()
    assert renewal.requests == ["q1+"]  # type: ignore[union-attr]
    assert bench.get(Renewed(requests=[], lost=["q1+"])) == []
    bench.turn("q1+", ENDED)
    assert [type(frame) for frame in bench.sent()] == [Answer], "whether it counts is for the service to say"


def test_a_repeated_delivery_of_what_a_chain_did_starts_nothing() -> None:
    bench = answered()
    bench.get(proceed())
    repeated: list[Assign | Start] = [assign("q1"), assign("q1+", "discovery"), assign("t2"), Start(request="t2")]
    assert bench.get(*repeated) == []
