"""The worker's core, frame by frame, in every odd order. No loop, no clock, no socket."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from ryusen import DeclarationRefused
from ryusen.protocol.frames import (
    Answer,
    CallSite,
    Cancel,
    Complete,
    Declare,
    DefinitionBlocked,
    Fail,
    Failed,
    Failure,
    GiveBack,
    NotFound,
    Ready,
    Renew,
    Renewed,
    Result,
    ServerFrame,
    Settled,
    Start,
    StepDeclaration,
    Void,
)
from ryusen.worker import work as bounds
from ryusen.worker.effects import (
    ClosePass,
    ResumePass,
    RunCallback,
    Send,
    StartPass,
    Warn,
)
from ryusen.worker.passes import Ended, Turn
from sdk_bench import ENDED, ONE, RENEW_MS, SUCCESS, Bench, assign, met, ref, welcome

# ---- the plain course


def test_hello_says_who_serves_what() -> None:
    hello = Bench(undo_capacity=3).hello()
    assert hello.undo_capacity == 3
    assert (hello.application, hello.instance, hello.capacity, hello.release) == ("orders", "instance-1", 2, "r1")
    assert [offer.name for offer in hello.functions] == ["fulfil"]
    assert hello.functions[0].contract
    assert hello.held == []


def test_a_discovery_is_passed_answered_and_forgotten_when_settled() -> None:
    bench = Bench().up()
    given = assign("q1", "discovery")
    assert bench.get(given) == [StartPass("q1", given, 4_096)]
    bench.turn("q1", met("pay"), "failed-1")
    answer = Answer(
        request="q1",
        ref=given.ref,
        ending=Declare(steps=[StepDeclaration(id="pay")]),
        failed_met=["failed-1"],
    )
    assert bench.sent() == [answer]
    assert bench.get(Settled(request="q1", verdict="accepted")) == [ClosePass("q1")]
    assert bench.hello().held == []


BLOCKED = DefinitionBlocked(
    reason="duplicate_step_id",
    step="pay",
    first=CallSite(location="a.py:1"),
    duplicate=CallSite(location="a.py:2", name="again"),
)


@pytest.mark.parametrize(
    "ending", [Complete(value=ONE), Fail(failure=Failure(category="application", message="m")), BLOCKED]
)
def test_a_function_that_ends_is_answered_so(ending: Any) -> None:
    bench = Bench().up()
    bench.get(assign("q1", "discovery"))
    bench.turn("q1", Ended(ending))
    assert bench.sent() == [Answer(request="q1", ref=ref("discovery"), ending=ending)]


def test_a_callback_runs_only_after_ready_and_start() -> None:
    """ARCHITECTURE 6: lease, assign, ready, authorize, start, and only then user code."""
    bench = Bench().up()
    given = assign("q1")
    assert bench.get(given) == [StartPass("q1", given, 4_096)]
    assert bench.turn("q1", met()) == [Send(Ready(request="q1"))]
    assert bench.get(Start(request="q1")) == [RunCallback("q1", 4_096)]
    assert bench.ended("q1") == [ClosePass("q1"), Send(Result(request="q1", ref=given.ref, outcome=SUCCESS))]
    assert bench.get(Settled(request="q1", verdict="accepted")) == [ClosePass("q1")]


@pytest.mark.parametrize("turn", [met("other"), ENDED, Ended(BLOCKED)])
def test_code_that_no_longer_has_the_step_is_not_found(turn: Turn) -> None:
    """FILLED-IN 6: before any user code of the step runs."""
    bench = Bench().up()
    bench.get(assign("q1"))
    assert bench.turn("q1", turn) == [Send(NotFound(request="q1", ref=ref()))]
    assert bench.get(Start(request="q1")) == []


@pytest.mark.parametrize("turn", [met(compensate=None), met("other"), ENDED])
def test_code_without_the_compensator_is_not_found(turn: Turn) -> None:
    """RFD 1, "if none exists, target_not_found records a durable skip": no user code of the compensator runs."""
    bench = Bench().up()
    bench.get(assign("q1", "compensation"))
    assert bench.turn("q1", turn) == [Send(NotFound(request="q1", ref=ref("compensation")))]


def test_a_compensator_waits_for_its_start_like_any_effect_and_nothing_follows_it() -> None:
    """RFD 1, "It must tolerate duplicate physical invocation for the same reason as a forward callback": authorized first."""
    bench = Bench().up()
    bench.get(assign("q1", "compensation"))
    assert bench.turn("q1", met()) == [Send(Ready(request="q1"))]
    bench.get(Start(request="q1"))
    bench.ended("q1", SUCCESS)
    assert bench.sent()[-1:] == [Result(request="q1", ref=ref("compensation"), outcome=SUCCESS)]


# ---- odd orders


@pytest.mark.parametrize("count", [1, 2])
def test_repeated_frames_start_nothing_twice(count: int) -> None:
    bench = Bench().up()
    assert len(bench.get(*[assign("q1")] * (count + 1))) == 1
    bench.turn("q1", met())
    assert bench.turn("q1", met()) == []
    assert bench.get(*[Start(request="q1")] * (count + 1)) == [RunCallback("q1", 4_096)]
    bench.ended("q1")
    assert bench.get(Start(request="q1")) == []
    bench.get(*[Settled(request="q1", verdict="accepted")] * (count + 1))
    assert bench.get(assign("q1"), Start(request="q1")) == []


@pytest.mark.parametrize(
    "frame",
    [
        Start(request="nobody"),
        Void(request="nobody", reason="x"),
        Settled(request="nobody", verdict="stale"),
        Settled(request="nobody", verdict="refused"),
        Cancel(request="nobody", reason="x"),
        Renewed(requests=["nobody"], lost=["nobody"]),
        welcome(),
    ],
)
def test_frames_about_unknown_work_do_nothing(frame: ServerFrame) -> None:
    assert Bench().up().get(frame) == []


def test_a_start_before_ready_starts_nothing() -> None:
    bench = Bench().up()
    bench.get(assign("q1"))
    assert bench.get(Start(request="q1")) == []


@pytest.mark.parametrize("progress", ["passing", "waiting", "ready"])
def test_void_ends_what_has_not_started_and_a_late_start_finds_nothing(progress: str) -> None:
    bench = Bench(capacity=1).up()
    if progress == "waiting":
        bench.running("other")
    bench.get(assign("q1"))
    if progress != "passing":
        bench.turn("q1", met())
    assert bench.get(Void(request="q1", reason="expired")) == [ClosePass("q1")]
    assert bench.get(Start(request="q1")) == []
    assert bench.turn("q1", met()) == []


def test_void_never_ends_what_runs() -> None:
    bench = Bench().up().running()
    assert bench.get(Void(request="q1", reason="stopped"), Cancel(request="q1", reason="stopped")) == []
    bench.ended("q1")
    assert bench.sent() == [Result(request="q1", ref=ref(), outcome=SUCCESS)]


def test_settled_before_the_end_forgets_nothing() -> None:
    bench = Bench().up().running()
    assert bench.get(Settled(request="q1", verdict="stale")) == []
    bench.ended("q1")
    assert bench.sent() == [Result(request="q1", ref=ref(), outcome=SUCCESS)]


@pytest.mark.case(14)
def test_one_run_delivered_twice_is_two_pieces_of_work() -> None:
    """Case 014: both are tracked by request id; the stale answer is refused quietly, the current one accepted."""
    bench = Bench().up()
    bench.get(assign("q1", "discovery", token="old"))
    bench.get(Renewed(requests=[], lost=["q1"]))
    bench.get(assign("q2", "discovery", token="new"))
    assert bench.effects
    bench.turn("q1", ENDED)
    assert [(frame.request, frame.ref.token) for frame in bench.sent() if isinstance(frame, Answer)] == [("q1", "old")]
    assert bench.get(Settled(request="q1", verdict="stale")) == [ClosePass("q1")]
    bench.turn("q2", ENDED)
    assert [(frame.request, frame.ref.token) for frame in bench.sent() if isinstance(frame, Answer)] == [("q2", "new")]
    bench.get(Settled(request="q2", verdict="accepted"))
    assert bench.get(assign("q3", "discovery")), "the worker keeps serving"


# ---- capacity


@pytest.mark.case(13)
def test_ready_never_exceeds_the_capacity() -> None:
    """Case 013: five assigned to a worker of two; the others wait here without a slot, and start as slots come free."""
    bench = Bench(capacity=2).up()
    for number in range(5):
        bench.get(assign(f"q{number}"))
    ready = []
    for number in range(5):
        bench.turn(f"q{number}", met())
        ready += bench.sent()
    assert ready == [Ready(request="q0"), Ready(request="q1")]
    bench.get(Start(request="q0"))
    bench.ended("q0")
    assert Ready(request="q2") in bench.sent()
    bench.get(Void(request="q1", reason="x"))
    assert bench.sent() == [Ready(request="q3")]


def ready(bench: Bench) -> list[str]:
    return [frame.request for frame in bench.sent() if isinstance(frame, Ready)]


@pytest.mark.case(56)
def test_an_undo_has_a_slot_that_no_callback_takes() -> None:
    """Case 056: it passes the callbacks that wait before it; they get no more slots than the capacity, all together both."""
    bench = Bench(capacity=2, undo_capacity=1).up().running("q1").running("q2")
    for request, kind in (("q3", "callback"), ("u1", "compensation"), ("u2", "compensation")):
        bench.get(assign(request, kind))
        bench.turn(request, met())
        assert ready(bench) == (["u1"] if request == "u1" else [])
    bench.get(Start(request="u1"))
    bench.ended("q1")
    assert ready(bench) == ["u2"], "undos come first, and take any slot"
    bench.get(Void(request="u2", reason="x"))
    assert ready(bench) == ["q3"]
    bench.get(assign("q4"))
    bench.turn("q4", met())
    bench.ended("u1")
    assert ready(bench) == [], "two callbacks run"


@pytest.mark.case(13)
def test_an_undo_that_overruns_keeps_its_slot_and_no_other() -> None:
    """Case 013: what the dispatcher does not count any more is still running here."""
    bench = Bench(capacity=1, undo_capacity=1).up().running("u1", "compensation", timeout_ms=100)
    bench.after(100)
    bench.get(Settled(request="u1", verdict="accepted"))
    bench.running("q1")
    bench.get(assign("u2", "compensation"))
    bench.turn("u2", met())
    assert ready(bench) == []
    bench.ended("u1")
    assert ready(bench) == ["u2"]


@pytest.mark.case(71)
def test_what_ran_on_between_two_sessions_is_renewed_at_once() -> None:
    """Case 071: nobody has renewed it meanwhile; would catch a lease that runs out in the first third of the new session."""
    bench = Bench().up().running("q1")
    bench.down()
    bench.up()
    assert bench.core.next_due_ms() == bench.now_ms
    assert bench.after(0) == [Send(Renew(requests=["q1"]))]
    assert bench.core.next_due_ms() == bench.now_ms + RENEW_MS


@pytest.mark.case(13)
def test_work_without_a_slot_goes_back_in_time() -> None:
    """Case 013: another worker may be idle; nothing failed and nothing ran."""
    bench = Bench(capacity=1).up().running("q1")
    bench.get(assign("q2"))
    bench.turn("q2", met())
    assert bench.core.next_due_ms() is not None
    for _ in range(bounds.SLOT_WAIT_MS_MAX // RENEW_MS - 1):
        bench.after(RENEW_MS)
        bench.get(Renewed(requests=[]))
    bench.after(RENEW_MS)
    assert GiveBack(request="q2", ref=ref(), reason="no slot became free") in bench.sent()
    assert ClosePass("q2") in bench.effects


def test_more_work_than_may_be_held_is_given_back() -> None:
    bench = Bench(capacity=1).up()
    for number in range(1 + bounds.HELD_EXTRA_MAX):
        bench.get(assign(f"q{number}", "discovery"))
        bench.turn(f"q{number}", ENDED)
    bench.get(assign("more", "discovery"))
    assert bench.sent() == [GiveBack(request="more", ref=ref("discovery"), reason="the worker holds all it may")]


def test_work_of_a_function_that_is_not_served_is_given_back() -> None:
    bench = Bench().up()
    bench.get(msgspec.structs.replace(assign("q1"), function="unknown"))
    assert bench.sent() == [GiveBack(request="q1", ref=ref(), reason="the function is not served here")]


# ---- refusals


def test_a_refused_declaration_goes_back_into_the_open_pass() -> None:
    """FILLED-IN 11, "A refused declaration": the next answer uses the same ref."""
    bench = Bench().up()
    bench.get(assign("q1", "discovery"))
    bench.turn("q1", met("too-much"))
    refused = Settled(request="q1", verdict="refused", code="too_many_steps", field="steps", limit=9, message="no")
    (effect,) = bench.get(refused)
    assert isinstance(effect, ResumePass)
    assert isinstance(effect.refusal, DeclarationRefused)
    assert (effect.refusal.refusal, effect.refusal.field, effect.refusal.limit) == ("too_many_steps", "steps", 9)
    bench.turn("q1", ENDED)
    assert bench.sent() == [Answer(request="q1", ref=ref("discovery"), ending=Complete(value=ONE))]


def test_a_pass_that_declares_refused_steps_for_ever_is_failed() -> None:
    bench = Bench().up()
    bench.get(assign("q1", "discovery"))
    for _ in range(bounds.REFUSALS_MAX + 1):
        bench.turn("q1", met("too-much"))
        bench.get(Settled(request="q1", verdict="refused", code="too_many_steps"))
    (answer,) = bench.sent()
    assert isinstance(answer, Answer)
    assert isinstance(answer.ending, Fail)
    assert answer.ending.failure.category == "sdk.declaration_refused"


@pytest.mark.case(46)
def test_a_refused_return_value_fails_the_function_and_a_refused_result_the_step() -> None:
    """Case 046: the service's own limit is the last word; a typed, terminal failure instead of the same frame for ever."""
    refused = {"verdict": "refused", "code": "value_too_large", "field": "value", "limit": 10}
    bench = Bench().up()
    bench.get(assign("q1", "discovery"))
    bench.turn("q1", ENDED)
    bench.get(Settled(request="q1", **refused))  # type: ignore[arg-type]
    (answer,) = bench.sent()
    assert isinstance(answer, Answer)
    assert isinstance(answer.ending, Fail)
    assert answer.ending.failure.category == "sdk.invalid_result"
    bench.running("q2")
    bench.ended("q2")
    bench.get(Settled(request="q2", **refused))  # type: ignore[arg-type]
    (result,) = bench.sent()
    assert isinstance(result, Result)
    assert isinstance(result.outcome, Failed)
    assert (result.outcome.failure.category, result.outcome.retryable) == ("sdk.invalid_result", False)
    bench.get(Settled(request="q2", **refused))  # type: ignore[arg-type]
    assert any(isinstance(effect, Warn) for effect in bench.effects)
    assert bench.sent() == []
