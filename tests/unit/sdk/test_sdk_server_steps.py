"""Steps that the service settles, as workflow code meets them: what is declared, and what comes back."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest
from ryusen import Context, DeclarationRefused
from ryusen.protocol.frames import (
    Answer,
    Failure,
    GiveBack,
    NotFound,
    Resume,
    RetryPolicy,
    Settled,
    StepDeclaration,
    StepMemo,
    Timer,
    Wait,
)
from ryusen.protocol.limits import TIMER_MS_MAX, TIMESTAMP_MS_MAX, VALUE_BYTES_MAX
from ryusen.protocol.values import decode_value
from ryusen.server_steps import emission_of, timer_of, timer_until, wait_of
from ryusen.worker.effects import ClosePass, ContinuePass
from ryusen.worker.passes import Met
from sdk_bench import ENDED, Bench, FakeCall, assign, ref
from test_sdk_passes import Watched, done


async def declared(pending: Any) -> StepDeclaration:
    """Return what a pass that calls one step declares."""

    async def function(ctx: Context) -> None:
        await pending(ctx)

    watched = Watched(function)
    turn = await watched.turn()
    assert isinstance(turn, Met), turn
    await watched.close()
    return turn.call.declaration


# -- timers


async def test_a_sleep_is_declared_as_a_timer_with_nothing_of_an_attempt() -> None:
    """RFD 2, "A declaration may be a durable timer rather than a callback": the delay travels, the service measures it."""
    step = await declared(lambda ctx: ctx.step.sleep("nap", "5m", name="a short nap"))
    assert (step.id, step.name, step.kind, step.timer) == ("nap", "a short nap", "timer", Timer(delay_ms=300_000))
    assert step.retry == RetryPolicy(attempts=1, initial_ms=0, coefficient=1.0, cap_ms=0)
    assert (step.compensable, step.timeout_ms, step.undo_retry, step.undo_timeout_ms) == (False, None, None, None)
    assert "test_sdk_server_steps.py:" in step.location


@pytest.mark.case(65)
@pytest.mark.parametrize(
    ("when", "until_ms"),
    [
        (datetime(2027, 1, 1, tzinfo=UTC), 1_798_761_600_000),
        (datetime(2027, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))), 1_798_761_600_000),
        (datetime(2027, 1, 1, microsecond=1, tzinfo=UTC), 1_798_761_600_001),
        (datetime(1970, 1, 1, tzinfo=UTC), 0),
        (1_234, 1_234),
        (0, 0),
        (TIMESTAMP_MS_MAX, TIMESTAMP_MS_MAX),
    ],
)
def test_an_instant_travels_as_it_is(when: Any, until_ms: int) -> None:
    """Case 065: nothing is computed from the worker's clock, and no instant becomes an earlier one."""
    assert timer_until(when) == Timer(until_ms=until_ms)


@pytest.mark.case(44)
@pytest.mark.parametrize(
    "when",
    [
        datetime(2027, 1, 1),
        datetime(1969, 12, 31, tzinfo=UTC),
        -1,
        TIMESTAMP_MS_MAX + 1,
        10**30,
        1.5,
        True,
        None,
        "2027-01-01T00:00:00Z",
        timedelta(seconds=1),
    ],
)
def test_what_is_no_instant_is_refused(when: Any) -> None:
    """Case 044: an instant without a zone, or of another type, is named where it is written."""
    with pytest.raises(DeclarationRefused) as refused:
        timer_until(when)
    assert refused.value.field == "when"
    assert len(str(refused.value)) < 400


@pytest.mark.case(44)
@pytest.mark.parametrize("duration", [-1, "-5m", TIMER_MS_MAX / 1_000 + 1, float("nan"), None, True, "soon"])
def test_what_is_no_time_to_sleep_is_refused(duration: Any) -> None:
    """Case 044: 0 to ten years; never clamped."""
    with pytest.raises(DeclarationRefused) as refused:
        timer_of(duration)
    assert refused.value.field == "duration"


def test_no_time_and_ten_years_are_time_to_sleep() -> None:
    assert timer_of(0) == Timer(delay_ms=0)
    assert timer_of("3650d") == Timer(delay_ms=TIMER_MS_MAX)


@pytest.mark.parametrize("step_id", ["", " ", "a" * 201, "\x00", 5])
async def test_an_id_that_is_none_is_refused_at_its_call(step_id: Any) -> None:
    async def function(ctx: Context) -> str:
        try:
            await ctx.step.sleep(step_id, 1)
        except DeclarationRefused as refusal:
            return refusal.field
        return "accepted"

    assert await Watched(function).completed() == "id"


async def test_a_timer_that_woke_returns_nothing_and_the_pass_goes_on() -> None:
    """RFD 2, "an ordinary successful step result"; a value recorded under another kind of step is not handed over."""

    async def function(ctx: Context) -> list[Any]:
        return [await ctx.step.sleep("a", 1), await ctx.step.sleep_until("b", 5)]  # type: ignore[func-returns-value]

    assert await Watched(function, done("a", b"null"), done("b", b'"a callback once"')).completed() == [None, None]


async def test_sleeps_that_are_gathered_are_declared_one_after_another() -> None:
    """FILLED-IN 11, "One outstanding step": in the order first reached."""

    async def function(ctx: Context) -> str:
        await asyncio.gather(ctx.step.sleep("a", 1), ctx.step.sleep("b", 2))
        return "done"

    assert await Watched(function).met() == "a"
    assert await Watched(function, done("a", b"null")).met() == "b"
    assert await Watched(function, done("a", b"null"), done("b", b"null")).completed() == "done"


async def test_a_recorded_failure_of_such_a_step_is_raised() -> None:
    """FILLED-IN 3: StepFailed, whoever settled the step; it had no attempts."""
    memo = StepMemo(id="a", failure=Failure(category="sdk.invalid_result", message="too large"))

    async def function(ctx: Context) -> None:
        await ctx.step.sleep("a", 1)

    failure = await Watched(function, memo).failed()
    assert failure.category == "sdk.invalid_result"


# -- emissions


@dataclass
class Told:
    order: str
    at: datetime


async def test_an_emission_carries_the_exact_bytes_of_its_payload() -> None:
    """RFD 2, "The payload is the exact event payload bytes, carried as the portable bytes value"; correlation is what is
    given."""
    told = Told("7", datetime(2027, 1, 1, tzinfo=UTC))
    step = await declared(lambda ctx: ctx.step.send_event("tell", "order.told", told, correlation={"order": "7"}))
    assert (step.id, step.kind, step.retry.attempts, step.compensable) == ("tell", "emission", 1, False)
    assert step.emission is not None
    assert (step.emission.event, step.emission.correlation) == ("order.told", {"order": "7"})
    payload = decode_value(bytes(step.emission.payload))
    assert payload == b'{"order":"7","at":{"$datetime":"2027-01-01T00:00:00+00:00"}}'


async def test_nothing_is_inherited_and_no_payload_is_null() -> None:
    step = await declared(lambda ctx: ctx.step.send_event("tell", "order.told"))
    assert step.emission is not None
    assert (decode_value(bytes(step.emission.payload)), step.emission.correlation) == (b"null", {})


async def test_the_receipt_is_the_events_id() -> None:
    async def function(ctx: Context) -> str:
        return await ctx.step.send_event("tell", "order.told", {"n": 1})

    assert await Watched(function, done("tell", b'"0123"')).completed() == "0123"


@pytest.mark.case(44)
@pytest.mark.parametrize(
    ("event", "payload", "correlation", "field"),
    [
        ("", None, None, "event"),
        (" ", None, None, "event"),
        ("e" * 201, None, None, "event"),
        (None, None, None, "event"),
        ("e", object(), None, "payload"),
        ("e", float("nan"), None, "payload"),
        ("e", datetime(2027, 1, 1), None, "payload"),
        ("e", "x" * VALUE_BYTES_MAX, None, "payload"),
        ("e", None, [("a", "b")], "correlation"),
        ("e", None, {"a": 1}, "correlation"),
        ("e", None, {1: "a"}, "correlation"),
    ],
    ids=lambda value: str(value).split(" at 0x")[0][:20],
)
def test_what_is_no_event_is_refused(event: Any, payload: Any, correlation: Any, field: str) -> None:
    """Case 044: named where it is written; a payload that no frame could carry is not even sent."""
    with pytest.raises(DeclarationRefused) as refused:
        emission_of(event, payload, correlation)
    assert refused.value.field == field
    assert len(str(refused.value)) < 500


# -- going on behind a step that was settled where it was declared


def told_answer(bench: Bench) -> None:
    """Bring a pass to where its answer, an emission, is said and not yet settled."""
    bench.get(assign("q1", "discovery"))
    call = FakeCall(StepDeclaration(id="tell", kind="emission"), None, None)
    bench.turn("q1", Met(call))  # type: ignore[arg-type]
    assert [type(frame) for frame in bench.sent()] == [Answer]


def resume(**changes: Any) -> Resume:
    return Resume(request="q1", following="q2", ref=ref("discovery", token="q2"), value=msgspec.Raw(b'"e1"'), **changes)


def test_the_pass_goes_on_under_its_new_name_with_the_value() -> None:
    """ARCHITECTURE 6: the same pass, a discovery of its own; its next answer carries the new reference, and is renewed."""
    bench = Bench().up()
    told_answer(bench)
    assert bench.get(resume()) == [ContinuePass("q1", "q2", b'"e1"')]
    assert bench.get(resume()) == [], "repeated"
    bench.turn("q2", ENDED)
    (answer,) = bench.sent()
    assert isinstance(answer, Answer)
    assert (answer.request, answer.ref, answer.ending) == ("q2", resume().ref, ENDED.ending)
    assert bench.get(Settled(request="q2", verdict="accepted")) == [ClosePass("q2")]


def test_work_whose_pass_is_gone_goes_back_unharmed() -> None:
    """The session was lost between the answer and what follows it: nobody here can go on, so the queue has it at once."""
    bench = Bench().up()
    bench.get(resume())
    assert bench.sent() == [GiveBack(request="q2", ref=resume().ref, reason="its pass is gone")]


def test_the_result_that_was_accepted_with_the_answer_is_forgotten() -> None:
    """`joint` acknowledges the success in the same frame, so that it is not said again in a later session."""
    bench = Bench().up(continues=True).running("q0")
    bench.ended("q0")
    call = FakeCall(StepDeclaration(id="tell", kind="emission"), None, None)
    bench.turn("q0+", Met(call))  # type: ignore[arg-type]
    bench.get(
        Resume(request="q0+", following="q2", ref=ref("discovery", token="q2"), value=msgspec.Raw(b"1"), joint="q0")
    )
    bench.down()
    assert [held.request for held in bench.hello().held] == ["q2"]


# -- code that has changed


def test_a_callback_whose_step_is_a_timer_now_is_not_found() -> None:
    """FILLED-IN 6, "a step that awaits its next attempt is removed": what the code calls so now has no callback."""
    bench = Bench().up()
    bench.get(assign("q1"))
    call = FakeCall(StepDeclaration(id="pay", kind="timer", timer=Timer(delay_ms=1)), None, None)
    bench.turn("q1", Met(call))  # type: ignore[arg-type]
    assert [type(frame) for frame in bench.sent()] == [NotFound]


# -- waits


async def test_a_wait_is_declared_with_its_event_its_pairs_and_its_timeout() -> None:
    """RFD 2, "the exact event name, the correlation the event must carry, and a required relative timeout"."""
    step = await declared(lambda ctx: ctx.step.wait_for_event("it", "told", match={"b": "2", "a": "1"}, timeout="24h"))
    assert (step.kind, step.wait) == ("wait", Wait(event="told", match={"b": "2", "a": "1"}, timeout_ms=86_400_000))
    assert step.retry == RetryPolicy(attempts=1, initial_ms=0, coefficient=1.0, cap_ms=0)
    assert (step.compensable, step.timeout_ms) == (False, None)
    assert "test_sdk_server_steps.py:" in step.location
    assert wait_of("told", None, 0) == Wait(event="told", match={}, timeout_ms=0)


@pytest.mark.case(35)
@pytest.mark.parametrize(
    ("event", "match", "timeout", "field"),
    [
        ("", {}, 1, "event"),
        (" told", {}, 1, "event"),
        (5, {}, 1, "event"),
        ("told", {"order": 123}, 1, "match"),
        ("told", {"order": True}, 1, "match"),
        ("told", {"order": None}, 1, "match"),
        ("told", {1: "order"}, 1, "match"),
        ("told", ["order"], 1, "match"),
        ("told", {}, None, "timeout"),
        ("told", {}, -1, "timeout"),
        ("told", {}, TIMER_MS_MAX / 1_000 + 1, "timeout"),
    ],
)
def test_what_is_no_wait_is_refused_where_it_is_written(event: Any, match: Any, timeout: Any, field: str) -> None:
    """Case 035: names and values are text; anything else is refused with the argument's name, never converted."""
    with pytest.raises(DeclarationRefused) as refused:
        wait_of(event, match, timeout)
    assert refused.value.field == field
