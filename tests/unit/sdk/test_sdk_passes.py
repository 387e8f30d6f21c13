"""Passes: replay, turns, refusals, and user code that does not let go (RFD 1, "Workflow discovery is repeatable orchestration")."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from ryusen import (
    App,
    Context,
    DeclarationRefused,
    InvalidValue,
    NotInAttempt,
    StepFailed,
    current_attempt,
)
from ryusen.protocol.frames import Complete, Fail, Failure, StepMemo
from ryusen.protocol.values import decode_value
from ryusen.worker import passes
from ryusen.worker.passes import Ended, Met, Pass, PassInput, Turn
from sdk_waiting import until

DEADLINE_S = 5.0

Handler = Callable[..., Coroutine[Any, Any, Any]]


class Watched:
    """A pass whose turns a test awaits."""

    def __init__(
        self, handler: Handler, *memo: StepMemo, payload: bytes = b"null", value_bytes_max: int = 1_000
    ) -> None:
        app = App("test")
        app.function(handler)
        self.turns: asyncio.Queue[Turn] = asyncio.Queue()
        given = PassInput("run-1", "event-1", "order.placed", payload, memo, value_bytes_max)
        self.its_pass = Pass(app.functions[handler.__name__], given, self.turns.put_nowait)
        self.its_pass.start()

    async def turn(self) -> Turn:
        async with asyncio.timeout(DEADLINE_S):
            return await self.turns.get()

    async def met(self) -> str:
        turn = await self.turn()
        assert isinstance(turn, Met), turn
        return turn.call.declaration.id

    async def completed(self) -> Any:
        turn = await self.turn()
        assert isinstance(turn, Ended), turn
        assert isinstance(turn.ending, Complete), turn
        return decode_value(bytes(turn.ending.value))

    async def failed(self) -> Failure:
        turn = await self.turn()
        assert isinstance(turn, Ended), turn
        assert isinstance(turn.ending, Fail), turn
        return turn.ending.failure

    async def close(self) -> None:
        self.its_pass.close()
        await until(lambda: self.its_pass._task is None or self.its_pass._task.done())


def done(step: str, text: bytes) -> StepMemo:
    return StepMemo(id=step, value=msgspec.Raw(text))


async def never(*args: Any) -> Any:
    raise AssertionError("a pass runs no callback")


@dataclass
class Order:
    id: str
    quantity: int = 1


async def echo(order: Order) -> Order:
    return order


async def test_a_pass_stops_at_the_first_unresolved_step() -> None:
    async def flow(ctx: Context) -> None:
        await ctx.step.run("a", never)
        await ctx.step.run("b", never, 1, key=2, retry=None, timeout="30s", name="Bee")

    watched = Watched(flow, done("a", b"1"))
    turn = await watched.turn()
    assert isinstance(turn, Met)
    declaration = turn.call.declaration
    assert (declaration.id, declaration.name, declaration.timeout_ms) == ("b", "Bee", 30_000)
    assert declaration.location.partition(":")[0].endswith("test_sdk_passes.py")
    assert (turn.call.args, turn.call.kwargs) == ((1,), {"key": 2})
    await watched.close()
    assert watched.turns.empty()


async def test_recorded_values_come_back_as_the_callbacks_type() -> None:
    """FILLED-IN 11, "Values": workflow code sees the value decoded from the accepted bytes in every pass."""

    async def flow(ctx: Context, order: Order) -> list[Any]:
        first = await ctx.step.run("a", echo, order)
        again = await ctx.step.run("b", never)
        assert isinstance(first, Order)
        return [first.id, first.quantity, again, ctx.run_id, ctx.event_id, ctx.event_name, ctx.function]

    watched = Watched(flow, done("a", b'{"id":"x","quantity":7}'), done("b", b"null"), payload=b'{"id":"in"}')
    assert await watched.completed() == ["x", 7, None, "run-1", "event-1", "order.placed", "flow"]


async def test_a_recorded_failure_is_raised_and_may_be_handled() -> None:
    """RFD 1, "A failure is handled when user code consumes or transforms it"."""

    async def flow(ctx: Context) -> str:
        try:
            await ctx.step.run("pay", never)
        except StepFailed as exc:
            return f"{exc.step_id} {exc.category} {exc.attempts} {exc.details}"
        return "not reached"

    failure = Failure(category="application", message="declined", details=msgspec.Raw(b"[1]"), attempts=3)
    watched = Watched(flow, StepMemo(id="pay", failure=failure))
    assert await watched.completed() == "pay application 3 [1]"
    assert watched.its_pass.failed_met == ["pay"]


async def test_an_uncaught_step_failure_fails_the_function_as_it_was() -> None:
    async def flow(ctx: Context) -> None:
        await ctx.step.run("pay", never)

    failure = await Watched(
        flow, StepMemo(id="pay", failure=Failure(category="sdk.timeout", message="slow", attempts=2))
    ).failed()
    assert (failure.category, failure.message, failure.attempts) == ("sdk.timeout", "slow", 2)


@pytest.mark.case(67)
@pytest.mark.parametrize("payload", [b'{"id":1}', b"NaN", b"[", b'{"id":"a","quantity":1e400}'])
async def test_an_input_that_is_not_of_the_annotated_type_fails_the_run(payload: bytes) -> None:
    """Case 067: the refusal is typed and names the path; the handler never sees a half-read input."""

    async def flow(ctx: Context, order: Order) -> None:
        raise AssertionError("not reached")

    failure = await Watched(flow, payload=payload).failed()
    assert failure.category == "sdk.invalid_input"
    assert failure.message.startswith("$")


@pytest.mark.case(46)
@pytest.mark.case(68)
@pytest.mark.parametrize(
    ("value", "part"),
    [
        ("x" * 1_000, "1002 bytes when encoded; the limit is 1000"),
        (object(), "not a portable value: $"),
        (iter(()), "$"),
    ],
)
async def test_a_return_value_that_cannot_travel_fails_the_function(value: Any, part: str) -> None:
    """Cases 046, 068: immediate and terminal, naming field, size and limit or the path."""

    async def flow(ctx: Context) -> Any:
        return value

    failure = await Watched(flow).failed()
    assert failure.category == "sdk.invalid_result"
    assert part in failure.message
    assert failure.message.startswith("the function's return value")


@pytest.mark.case(68)
@pytest.mark.parametrize(
    "exc",
    [
        SystemExit(1),
        KeyboardInterrupt(),
        GeneratorExit(),
        asyncio.CancelledError(),
        StopAsyncIteration(),
        ExceptionGroup("g", [OSError()]),
    ],
)
async def test_whatever_the_function_raises_fails_the_run_and_not_the_worker(exc: BaseException) -> None:
    async def flow(ctx: Context) -> None:
        raise exc

    assert (await Watched(flow).failed()).category == "application"


async def test_gathered_steps_line_up_in_the_order_they_were_reached() -> None:
    """FILLED-IN 11, "One outstanding step"."""

    async def flow(ctx: Context) -> list[int]:
        return list(await asyncio.gather(*(ctx.step.run(f"s{n}", never) for n in range(3))))

    assert await Watched(flow).met() == "s0"
    assert await Watched(flow, done("s0", b"0")).met() == "s1"
    assert await Watched(flow, done("s0", b"0"), done("s1", b"1")).met() == "s2"
    memo = [done(f"s{n}", str(n).encode()) for n in range(3)]
    assert await Watched(flow, *memo).completed() == [0, 1, 2]


async def test_a_refused_declaration_raises_at_its_call_and_the_pass_goes_on() -> None:
    """FILLED-IN 11, "A refused declaration answers the pass"."""

    async def flow(ctx: Context) -> str:
        try:
            await ctx.step.run("too-much", never)
        except DeclarationRefused as exc:
            return f"{exc.refusal} {exc.field} {exc.limit}"
        return "not reached"

    watched = Watched(flow)
    assert await watched.met() == "too-much"
    watched.its_pass.refuse(DeclarationRefused("too_many_steps", "steps", 1_000))
    assert await watched.completed() == "too_many_steps steps 1000"


async def test_after_a_refusal_the_next_gathered_step_is_offered() -> None:
    async def flow(ctx: Context) -> list[Any]:
        return list(await asyncio.gather(ctx.step.run("a", never), ctx.step.run("b", never), return_exceptions=True))

    watched = Watched(flow)
    assert await watched.met() == "a"
    await asyncio.sleep(0)
    watched.its_pass.refuse(DeclarationRefused("x", "y"))
    assert await watched.met() == "b"
    await watched.close()


async def test_what_a_parked_function_does_in_the_meantime_is_not_heard() -> None:
    """The turn is given away once; a timeout of the user's own around a step cannot answer a second time."""

    async def flow(ctx: Context) -> str:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(ctx.step.run("a", never), 0.001)
        return "went on"

    watched = Watched(flow)
    assert await watched.met() == "a"
    assert watched.its_pass._task is not None
    await asyncio.wait_for(watched.its_pass._task, DEADLINE_S)
    assert watched.turns.empty()
    watched.its_pass.refuse(DeclarationRefused("x", "y"))
    assert await watched.completed() == "went on"


async def test_closing_runs_the_functions_clean_up() -> None:
    cleaned: list[str] = []

    async def flow(ctx: Context) -> None:
        try:
            await ctx.step.run("a", never)
        finally:
            cleaned.append("finally")

    watched = Watched(flow)
    await watched.met()
    await watched.close()
    assert cleaned == ["finally"]


async def test_broad_handlers_cannot_swallow_the_end_of_a_turn() -> None:
    """`except Exception`, even `except BaseException`, around a step must not corrupt the pass."""

    async def flow(ctx: Context) -> str:
        try:
            await ctx.step.run("a", never)
        except BaseException:  # noqa: BLE001
            await ctx.step.run("b", never)
        return "never heard"

    watched = Watched(flow)
    assert await watched.met() == "a"
    await watched.close()
    assert watched.turns.empty()


async def test_a_function_that_swallows_every_cancellation_is_left_behind_by_name(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(passes, "CLOSE_PATIENCE_S", 0.001)
    release = asyncio.Event()
    swallowed = 0

    async def stubborn(ctx: Context) -> str:
        nonlocal swallowed
        with contextlib.suppress(asyncio.CancelledError):
            await ctx.step.run("a", never)
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                swallowed += 1
        return "ignored"

    watched = Watched(stubborn)
    await watched.met()
    with caplog.at_level(logging.WARNING, "ryusen.worker"):
        watched.its_pass.close()
        await until(lambda: caplog.records)
    assert "stubborn" in caplog.text
    assert 0 < swallowed <= passes.CLOSE_CANCELS_MAX
    release.set()
    assert watched.its_pass._task is not None
    await asyncio.wait_for(watched.its_pass._task, DEADLINE_S)
    assert watched.turns.empty()


@pytest.mark.case(44)
@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"step": ""}, "id"),
        ({"step": " x"}, "id"),
        ({"step": "x" * 10_000}, "id"),
        ({"step": "a\x00b"}, "id"),
        ({"step": 7}, "id"),
        ({"name": " "}, "name"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": "PT1S"}, "timeout"),
        ({"retry": 3}, "retry"),
        ({"fn": None}, "fn"),
        ({"idempotent": "yes"}, "idempotent"),
        ({"compensate": never, "compensate_idempotent": never}, "compensate_idempotent"),
        ({"compensate_idempotent": True}, "compensate"),
    ],
)
async def test_a_nonsensical_declaration_is_refused_at_its_call(arguments: dict[str, Any], field: str) -> None:
    """Case 044: before anything is sent, and the function may handle it."""
    given = {"step": "a", "fn": never, **arguments}

    async def flow(ctx: Context) -> str:
        try:
            await ctx.step.run(given.pop("step"), given.pop("fn"), **given)
        except DeclarationRefused as exc:
            return exc.field
        return "accepted"

    assert await Watched(flow).completed() == field


async def test_the_class_travels_with_the_declaration() -> None:
    """FILLED-IN 2, "steps declared idempotent": effectful unless said otherwise, the compensator for itself."""

    async def flow(ctx: Context) -> str:
        await ctx.step.run("plain", never, compensate=never)
        await ctx.step.run("read", never, compensate=never, idempotent=True)
        return await ctx.step.run("write", never, compensate=never, compensate_idempotent=True)

    told = []
    for settled in ((), ("plain",), ("plain", "read")):
        watched = Watched(flow, *(done(step, b"1") for step in settled))
        turn = await watched.turn()
        assert isinstance(turn, Met)
        told.append((turn.call.declaration.repeatable, turn.call.declaration.undo_repeatable))
        await watched.close()
    assert told == [(False, False), (True, False), (False, True)]


async def test_a_recorded_value_of_another_type_names_step_and_path() -> None:
    async def flow(ctx: Context) -> str:
        try:
            await ctx.step.run("a", echo, Order("x"))
        except InvalidValue as exc:
            return f"{exc.path} {exc.reason}"
        return "not reached"

    told = await Watched(flow, done("a", b'{"id":1}')).completed()
    assert told.startswith("$.id the recorded result of step 'a'")


async def test_no_attempt_is_current_in_workflow_code() -> None:
    async def flow(ctx: Context) -> None:
        current_attempt()

    failure = await Watched(flow).failed()
    assert NotInAttempt().sentence in failure.message


async def test_a_thousand_recorded_steps_replay() -> None:
    """Case 049's SDK half: a pass over 1,000 memoized steps is one turn."""

    async def flow(ctx: Context) -> int:
        return sum([await ctx.step.run(f"s{n}", never) for n in range(1_000)])

    assert await Watched(flow, *(done(f"s{n}", b"1") for n in range(1_000))).completed() == 1_000
