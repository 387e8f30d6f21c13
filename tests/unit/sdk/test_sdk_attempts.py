"""Attempts: user code in callbacks, whatever it does, ends as one outcome (cases 046, 068)."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from ryusen import App, Context, NonRetryable, RetryAfter, current_attempt
from ryusen.context import Attempt
from ryusen.protocol.frames import Failed, Outcome, Succeeded
from ryusen.protocol.values import decode_value
from ryusen.worker.attempts import AttemptRun
from ryusen.worker.passes import Met, Pass, PassInput, Turn
from sdk_waiting import until

DEADLINE_S = 5.0


handles: list[AttemptRun] = []
hooks: list[Callable[[AttemptRun], None]] = []


@pytest.fixture(autouse=True)
def no_handles() -> None:
    handles.clear()
    hooks.clear()


def begin(callback: Callable[..., Any], *args: Any, **kwargs: Any) -> asyncio.Future[Outcome]:
    """Run a pass to its only step, then an attempt of it."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[Outcome] = loop.create_future()
    app = App("test")

    @app.function
    async def flow(ctx: Context) -> None:
        await ctx.step.run("s", callback, *args, **kwargs)

    def turn(turn: Turn) -> None:
        assert isinstance(turn, Met)
        run = AttemptRun(turn.call, Attempt("op-1", 2, "run-1", "s", "flow"), 1_000)

        def finish(outcome: Outcome) -> None:
            its_pass.close()
            ended.set_result(outcome)

        run.start(finish)
        handles.append(run)
        for hook in hooks:
            hook(run)

    its_pass = Pass(app.functions["flow"], PassInput("run-1", "e", "n", b"null", (), 1_000), turn)
    its_pass.start()
    return ended


async def outcome_of(callback: Callable[..., Any], *args: Any, **kwargs: Any) -> Outcome:
    return await asyncio.wait_for(begin(callback, *args, **kwargs), DEADLINE_S)


async def value_of(callback: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    outcome = await outcome_of(callback, *args, **kwargs)
    assert isinstance(outcome, Succeeded), outcome
    return decode_value(bytes(outcome.value))


async def failure_of(callback: Callable[..., Any], *args: Any, **kwargs: Any) -> Failed:
    outcome = await outcome_of(callback, *args, **kwargs)
    assert isinstance(outcome, Failed), outcome
    return outcome


def raising(exc: BaseException, *, is_async: bool) -> Callable[[], Any]:
    async def later() -> None:
        raise exc

    def now() -> None:
        raise exc

    return later if is_async else now


async def test_async_callbacks_run_on_the_loop_and_plain_ones_off_it() -> None:
    async def on_loop() -> int:
        return threading.get_ident()

    def off_loop() -> int:
        return threading.get_ident()

    assert await value_of(on_loop) == threading.get_ident()
    assert await value_of(off_loop) != threading.get_ident()


async def test_every_shape_of_callable_is_served() -> None:
    async def add(a: int, b: int = 0) -> int:
        return a + b

    class Adder:
        async def __call__(self, a: int) -> int:
            return a + 10

        def plain(self, a: int) -> int:
            return a + 20

    assert await value_of(add, 1, b=2) == 3
    assert await value_of(functools.partial(add, 1), 5) == 6
    assert await value_of(Adder(), 1) == 11
    assert await value_of(Adder().plain, 1) == 21
    assert await value_of(lambda: add(3, 4)) == 7
    assert await value_of(len, [1, 2]) == 2


async def test_the_current_attempt_is_known_in_both_kinds() -> None:
    async def on_loop() -> list[Any]:
        attempt = current_attempt()
        return [attempt.operation_id, attempt.attempt, attempt.run_id, attempt.step_id, attempt.function]

    def off_loop() -> str:
        return current_attempt().operation_id

    assert await value_of(on_loop) == ["op-1", 2, "run-1", "s", "flow"]
    assert await value_of(off_loop) == "op-1"


@pytest.mark.case(68)
@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize(
    "exc",
    [
        ValueError("no"),
        SystemExit(137),
        KeyboardInterrupt(),
        StopIteration(1),
        GeneratorExit(),
        asyncio.CancelledError(),
        ExceptionGroup("g", [ValueError()]),
    ],
)
async def test_whatever_a_callback_raises_is_the_failure_of_that_attempt(exc: BaseException, is_async: bool) -> None:
    failed = await failure_of(raising(exc, is_async=is_async))
    assert failed.failure.category == "application"
    assert failed.retryable
    assert failed.retry_after_ms is None


async def test_a_callback_that_cancels_itself_fails() -> None:
    async def suicidal() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(DEADLINE_S)

    assert (await failure_of(suicidal)).failure.message == "CancelledError"


async def test_non_retryable_and_retry_after_say_so() -> None:
    assert not (await failure_of(raising(NonRetryable("no card"), is_async=True))).retryable
    later = await failure_of(raising(RetryAfter("1m30s", "busy"), is_async=False))
    assert (later.retryable, later.retry_after_ms, later.failure.message) == (True, 90_000, "busy")
    wrong = await failure_of(raising(RetryAfter("soon"), is_async=True))
    assert wrong.retryable
    assert wrong.retry_after_ms is None
    assert "soon" in wrong.failure.message


@pytest.mark.case(46)
@pytest.mark.case(68)
@pytest.mark.parametrize("value", ["x" * 1_000, "x" * 50_000, threading.Lock(), iter(()), {1}, float("inf")])
async def test_a_result_that_cannot_travel_is_terminal_at_once(value: Any) -> None:
    """Cases 046, 068; FILLED-IN 11, "Oversized or unserializable own result of a step: ... no retry"."""
    failed = await failure_of(lambda: value)
    assert (failed.failure.category, failed.retryable) == ("sdk.invalid_result", False)


async def test_the_slot_of_a_thread_is_free_only_when_the_thread_has_ended() -> None:
    started, release = threading.Event(), threading.Event()

    def hang() -> str:
        started.set()
        assert release.wait(DEADLINE_S)
        return "late"

    ended = begin(hang)
    await until(started.is_set)
    handles[0].cancel()
    await asyncio.sleep(0)
    assert not ended.done()
    release.set()
    outcome = await asyncio.wait_for(ended, DEADLINE_S)
    assert isinstance(outcome, Succeeded)


async def test_an_attempt_cancelled_before_its_first_line_ends_too() -> None:
    async def untouched() -> None:
        raise AssertionError("not reached")

    hooks.append(AttemptRun.cancel)
    assert (await failure_of(untouched)).failure.message == "CancelledError"


async def test_blocking_in_a_plain_callback_does_not_hold_the_loop() -> None:
    started = threading.Event()

    def block() -> None:
        started.set()
        time.sleep(0.2)

    ended = begin(block)
    turns = 0
    while not ended.done():
        await asyncio.sleep(0.001)
        turns += 1
    assert turns > 5
