"""The worker's core over lost sessions, passing time, refusals and its own leaving."""

from __future__ import annotations

import pytest
from ryusen.protocol.frames import (
    Answer,
    Bye,
    Drain,
    Failed,
    GiveBack,
    HeldWork,
    Ready,
    Refused,
    Renew,
    Renewed,
    Result,
    ServerFrame,
    Settled,
    Start,
    Void,
)
from ryusen.worker import work as bounds
from ryusen.worker.effects import (
    CancelCallback,
    Close,
    ClosePass,
    Exit,
    RunCallback,
    Send,
    Warn,
)
from sdk_bench import ENDED, RENEW_MS, SUCCESS, Bench, assign, met, ref, welcome

# ---- losing the session


@pytest.mark.case(71)
@pytest.mark.parametrize("progress", ["passing", "waiting", "ready"])
def test_what_has_not_started_is_forgotten_with_its_session(progress: str) -> None:
    """ARCHITECTURE 6: its absence from the next hello proves that it never started."""
    bench = Bench(capacity=1).up()
    if progress == "waiting":
        bench.running("other")
    bench.get(assign("q1"))
    if progress != "passing":
        bench.turn("q1", met())
    assert bench.down() == [ClosePass("q1")]
    assert all(held.request != "q1" for held in bench.hello().held)
    bench.get(welcome())
    assert bench.get(Start(request="q1")) == []


@pytest.mark.case(71)
def test_what_runs_and_what_has_ended_is_held_and_delivered_in_a_later_session() -> None:
    """Case 071: at rest, during a callback, and between result and acknowledgement."""
    bench = Bench(capacity=3).up().running("q1").running("q2")
    bench.ended("q2")
    bench.get(assign("q3", "discovery"), assign("q4", "discovery"))
    bench.turn("q4", ENDED)
    bench.down()
    assert bench.ended("q1", SUCCESS) == [ClosePass("q1")], "nothing is sent while there is no session"
    assert bench.hello().held == [
        HeldWork(ref=ref(), request="q1", state="finished"),
        HeldWork(ref=ref(), request="q2", state="finished"),
        HeldWork(ref=ref("discovery"), request="q3", state="running"),
        HeldWork(ref=ref("discovery"), request="q4", state="finished"),
    ]
    bench.get(welcome())
    assert [frame.request for frame in bench.sent() if isinstance(frame, Result | Answer)] == ["q1", "q2", "q4"]
    bench.turn("q3", ENDED)
    assert [type(frame) for frame in bench.sent()] == [Answer]
    bench.down()
    assert bench.hello().held, "until each is settled"
    bench.get(welcome(), *(Settled(request=f"q{number}", verdict="accepted") for number in range(1, 5)))
    bench.down()
    assert bench.hello().held == []


def test_a_running_callback_is_held_as_running_and_its_result_goes_to_the_new_session() -> None:
    bench = Bench().up().running()
    bench.down()
    assert [held.state for held in bench.hello().held] == ["running"]
    bench.get(welcome())
    bench.ended("q1")
    assert bench.sent() == [Result(request="q1", ref=ref(), outcome=SUCCESS)]


def test_every_hello_counts_its_connection() -> None:
    """A hello delayed on a former connection must be told from the present one."""
    bench = Bench()
    connections = []
    for _ in range(3):
        connections.append(bench.hello().connection)
        bench.down()
    assert connections == [1, 2, 3]


def test_frames_of_an_older_session_are_dropped() -> None:
    bench = Bench().up()
    old = bench.core.session
    bench.down()
    bench.up()
    assert bench.core.received(old, assign("q1"), bench.now_ms) == []
    assert bench.core.received(old, Refused(code="x", message="y", definitive=True), bench.now_ms) == []


# ---- time


def test_everything_held_is_renewed_in_pages() -> None:
    bench = Bench(capacity=20).up()
    for number in range(70):
        bench.get(assign(f"q{number}", "discovery"))
    assert bench.after(RENEW_MS - 1) == []
    bench.after(1)
    pages = [frame.requests for frame in bench.sent() if isinstance(frame, Renew)]
    assert [len(page) for page in pages] == [64, 6]
    assert {request for page in pages for request in page} == {f"q{number}" for number in range(70)}


def test_an_idle_worker_sends_its_heartbeat() -> None:
    bench = Bench().up()
    assert bench.core.next_due_ms() == RENEW_MS
    assert bench.after(RENEW_MS) == [Send(Renew(requests=[]))]


def test_a_nonsensical_renewal_period_is_not_a_busy_loop() -> None:
    bench = Bench().up(renew_every_ms=0)
    due_ms = bench.core.next_due_ms()
    assert due_ms is not None
    assert due_ms >= bounds.RENEW_EVERY_MS_MIN


def test_silence_ends_the_session_once() -> None:
    bench = Bench().up()
    for _ in range(4):
        bench.after(RENEW_MS)
    assert bench.after(RENEW_MS) == [Close("the dispatcher is silent")]
    assert bench.after(RENEW_MS) == []
    assert bench.get(assign("q1")) == []


def test_any_frame_breaks_the_silence() -> None:
    bench = Bench().up()
    for _ in range(20):
        bench.after(RENEW_MS)
        bench.get(Renewed(requests=[]))
        assert not any(isinstance(effect, Close) for effect in bench.effects)


def test_a_hello_without_an_answer_ends_the_session() -> None:
    bench = Bench()
    bench.hello()
    assert bench.core.next_due_ms() == bounds.HELLO_MS_MAX
    assert bench.after(bounds.HELLO_MS_MAX) == [Close("no answer to hello")]
    assert bench.core.next_due_ms() is None


def test_a_lost_lease_ends_what_has_not_started_and_nothing_else() -> None:
    bench = Bench(capacity=1).up().running("q1")
    bench.get(assign("q2"), assign("q3", "discovery"))
    assert bench.get(Renewed(requests=[], lost=["q1", "q2", "q3"])) == [ClosePass("q2")]
    bench.ended("q1")
    bench.turn("q3", ENDED)
    assert [type(frame) for frame in bench.sent()] == [Answer]


def test_a_lease_lost_after_ready_still_waits_for_the_word() -> None:
    """Its start may have been authorized already: dropping it would leave an attempt that nobody runs."""
    bench = Bench().up()
    bench.get(assign("q1"))
    bench.turn("q1", met())
    assert bench.get(Renewed(requests=[], lost=["q1"])) == []
    assert bench.get(Start(request="q1")) == [RunCallback("q1", 4_096)]


def test_an_attempt_beyond_its_timeout_fails_and_keeps_its_slot() -> None:
    """FILLED-IN 11, "Attempt timeout": a structured failure; the thread cannot be killed, so its slot stays taken."""
    bench = Bench(capacity=1).up(silence_ms=60_000).running("q1", timeout_ms=500)
    assert bench.core.next_due_ms() == 500
    assert bench.after(499) == []
    bench.after(1)
    (result,) = bench.sent()
    assert isinstance(result, Result)
    assert isinstance(result.outcome, Failed)
    assert (result.outcome.failure.category, result.outcome.retryable) == ("sdk.timeout", True)
    assert CancelCallback("q1") in bench.effects
    assert bench.get(Settled(request="q1", verdict="accepted")) == []
    bench.get(assign("q2"))
    assert bench.turn("q2", met()) == [], "no slot yet"
    bench.after(bounds.OVERRUN_WARN_MS)
    (warning,) = [effect for effect in bench.effects if isinstance(effect, Warn)]
    assert "step pay of function fulfil" in warning.message
    bench.ended("q1", SUCCESS)
    assert bench.effects == [ClosePass("q1"), Send(Ready(request="q2"))], "its late outcome is not sent"


def test_the_outcome_that_came_first_counts() -> None:
    bench = Bench().up().running("q1", timeout_ms=500)
    bench.now_ms = 600
    bench.ended("q1")
    assert bench.sent() == [Result(request="q1", ref=ref(), outcome=SUCCESS)]
    bench.after(0)
    assert not any(isinstance(frame, Result) for frame in bench.sent())


def test_a_pass_that_never_ends_its_turn_is_dropped_by_name() -> None:
    bench = Bench().up(silence_ms=10_000_000)
    bench.get(assign("q1", "discovery"), assign("q2"))
    bench.after(bounds.PASS_MS_MAX)
    assert GiveBack(request="q2", ref=ref(), reason="the pass took too long") in bench.sent()
    assert {ClosePass("q1"), ClosePass("q2")} <= {effect for effect in bench.effects if isinstance(effect, ClosePass)}
    assert any(isinstance(effect, Warn) and "fulfil" in effect.message for effect in bench.effects)
    assert bench.turn("q1", ENDED) == []


# ---- refusal and leaving


@pytest.mark.case(71)
@pytest.mark.parametrize("is_greeting", [True, False])
def test_only_a_definitive_refusal_ends_the_worker(is_greeting: bool) -> None:
    """Case 071: with a message and a non-zero code."""
    bench = Bench()
    bench.hello()
    if not is_greeting:
        bench.get(welcome())
    assert bench.get(Refused(code="busy", message="later", definitive=False)) == [
        Close("no session for now: busy: later")
    ]
    bench.down()
    bench.hello()
    (effect,) = bench.get(Refused(code="bad_key", message="no", definitive=True))
    assert isinstance(effect, Exit)
    assert (effect.code, "bad_key" in effect.message) == (bounds.EXIT_REFUSED, True)


@pytest.mark.parametrize("frame", [assign("q1"), Drain(), Renewed(requests=[]), welcome(protocol=2)])
def test_anything_but_a_welcome_in_answer_to_hello_ends_the_session(frame: ServerFrame) -> None:
    bench = Bench()
    bench.hello()
    (effect,) = bench.get(frame)
    assert isinstance(effect, Close)


def test_a_leaving_dispatcher_gets_its_unstarted_work_back() -> None:
    bench = Bench(capacity=2).up().running("q1")
    bench.get(assign("q2"))
    assert bench.get(Drain()) == [
        Send(GiveBack(request="q2", ref=ref(), reason="the dispatcher is leaving")),
        ClosePass("q2"),
        Close("the dispatcher is leaving"),
    ]
    bench.down()
    assert [held.request for held in bench.hello().held] == ["q1"]


def test_a_worker_with_nothing_to_do_leaves_at_once() -> None:
    bench = Bench().up()
    assert bench.took(bench.core.drain(0, 1_000)) == [Send(Bye()), Exit(0, "all work is delivered")]
    assert bench.core.next_due_ms() is None
    assert bench.took(Bench().core.drain(0, 1_000)) == [Exit(0, "all work is delivered")]


def test_leaving_gives_back_what_has_not_started_and_delivers_the_rest() -> None:
    bench = Bench(capacity=2).up().running("q1")
    bench.get(assign("q2"), assign("q3"), assign("q4", "discovery"))
    bench.turn("q3", met())
    assert bench.took(bench.core.drain(0, 30_000)) == [
        Send(Drain()),
        Send(GiveBack(request="q2", ref=ref(), reason="the worker is leaving")),
        ClosePass("q2"),
    ]
    assert bench.get(assign("q5"))[0] == Send(GiveBack(request="q5", ref=ref(), reason="the worker is leaving"))
    assert bench.get(Start(request="q3")) == [RunCallback("q3", 4_096)], "its start was on the way"
    bench.ended("q1")
    bench.ended("q3")
    bench.turn("q4", ENDED)
    bench.get(Settled(request="q1", verdict="accepted"), Settled(request="q3", verdict="accepted"))
    assert not any(isinstance(effect, Exit) for effect in bench.effects)
    bench.get(Settled(request="q4", verdict="accepted"))
    assert bench.effects == [ClosePass("q4"), Send(Bye()), Exit(0, "all work is delivered")]


def test_a_worker_that_connects_again_while_it_leaves_says_so_again() -> None:
    """RFD 2, "excludes draining connections": the next dispatcher has not heard it, and must not lease for this worker."""
    bench = Bench().up().running("q1")
    bench.took(bench.core.drain(0, 30_000))
    bench.ended("q1")
    bench.down()
    bench.up()
    assert [type(frame).__name__ for frame in bench.sent()][-2:] == ["Drain", "Result"]


def test_a_grace_that_ends_first_names_what_is_left() -> None:
    bench = Bench().up(silence_ms=60_000).running("q1")
    bench.took(bench.core.drain(0, 2_000))
    bench.after(2_000)
    (effect,) = [effect for effect in bench.effects if isinstance(effect, Exit)]
    assert effect.code == bounds.EXIT_UNFINISHED
    assert "step pay of function fulfil" in effect.message


def test_forgotten_requests_are_remembered_within_a_bound() -> None:
    bench = Bench().up()
    for number in range(bounds.RECENT_MAX + 10):
        bench.get(assign(f"q{number}", "discovery"), Void(request=f"q{number}", reason="x"))
    assert len(bench.core._works._recent) == bounds.RECENT_MAX
