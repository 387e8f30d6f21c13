"""One attempt of a step's callback: async ones as a task of the user's event loop, plain ones in a thread of their own.

Whatever user code raises, returns or swallows, an attempt ends with an `Outcome`. A thread cannot be ended from outside, so
an attempt that overran its timeout keeps its slot until the thread returns; the core has reported it long before.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import threading
from collections.abc import Callable
from typing import Any

from ryusen.annotations import is_async
from ryusen.context import Attempt, StepCall, bind_attempt
from ryusen.durations import parse_duration_ms
from ryusen.errors import DeclarationRefused, NonRetryable, RetryAfter
from ryusen.failures import describe_exception, encode_result
from ryusen.protocol.frames import Failed, Failure, Outcome, Succeeded
from ryusen.protocol.limits import RETRY_DELAY_MS_MAX

__all__ = ["AttemptRun", "failed_outcome"]

_Return = tuple[Any, BaseException | None]


class AttemptRun:
    """One running attempt; lives on the user's event loop.

    Attributes:
        label: names the attempt for people.
    """

    def __init__(self, call: StepCall, attempt: Attempt, value_bytes_max: int) -> None:
        """Prepare the attempt.

        Args:
            call: the callback and its arguments.
            attempt: what `current_attempt()` will say.
            value_bytes_max: the largest encoded result the server accepts, in bytes.
        """
        self.label = f"step {attempt.step_id} of function {attempt.function}, run {attempt.run_id}"
        assert call.callback is not None, "only a callback runs as an attempt"
        self._call = call
        self._callback = call.callback
        self._attempt = attempt
        self._value_bytes_max = value_bytes_max
        self._task: asyncio.Task[Outcome] | None = None
        self._in_thread = False

    def start(self, on_end: Callable[[Outcome], None]) -> None:
        """Start the callback on the running event loop; `on_end` hears its outcome there, once, when it has truly ended."""
        context = self._call.context.copy()
        context.run(bind_attempt, self._attempt)
        self._task = asyncio.get_running_loop().create_task(self._outcome(), name=self.label, context=context)
        self._task.add_done_callback(lambda task: on_end(_ended(task)))

    def cancel(self) -> None:
        """Ask an async callback to end; a thread cannot be asked."""
        if self._task is not None and not self._in_thread:
            self._task.cancel()

    async def _outcome(self) -> Outcome:
        call = self._call
        try:
            if is_async(self._callback):
                value = await self._callback(*call.args, **call.kwargs)
            else:
                value = await self._in_own_thread()
                if inspect.iscoroutine(value):  # `lambda: charge(order)` with an async charge
                    value = await value
        except BaseException as exc:  # noqa: BLE001 - SystemExit and the like end the attempt, not the worker
            return failed_outcome(exc)
        encoded = encode_result(
            value, call.annotation, self._value_bytes_max, f"the result of step {self._attempt.step_id!r}"
        )
        if isinstance(encoded, Failure):
            return Failed(failure=encoded, retryable=False)
        return Succeeded(value=encoded)

    async def _in_own_thread(self) -> Any:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[_Return] = loop.create_future()
        context = contextvars.copy_context()

        def body() -> None:
            value, error = None, None
            try:
                value = context.run(self._callback, *self._call.args, **self._call.kwargs)
            except BaseException as exc:  # noqa: BLE001 - carried to the attempt, which reports it
                error = exc
            # The loop is closed when the process is leaving; then nobody listens any more.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(_deliver, ended, (value, error))

        self._in_thread = True
        # A daemon thread: one that hangs must not keep the process from leaving after its grace.
        threading.Thread(target=body, name=self.label, daemon=True).start()
        value, error = await ended
        self._in_thread = False
        if error is not None:
            raise error
        return value


def _ended(task: asyncio.Task[Outcome]) -> Outcome:
    # Cancelled before its first line ran, the callback never began; the slot must come free all the same.
    return failed_outcome(asyncio.CancelledError()) if task.cancelled() else task.result()


def _deliver(ended: asyncio.Future[_Return], value: _Return) -> None:
    if not ended.done():  # a task that was cancelled all the same no longer waits
        ended.set_result(value)


def failed_outcome(exc: BaseException) -> Failed:
    """Return the outcome for what a callback raised."""
    failure = describe_exception(exc)
    if isinstance(exc, NonRetryable | DeclarationRefused):
        return Failed(failure=failure, retryable=False)
    if isinstance(exc, RetryAfter):
        try:
            delay_ms = parse_duration_ms(exc.delay, "RetryAfter.delay", least_ms=0, most_ms=RETRY_DELAY_MS_MAX)
            return Failed(failure=failure, retry_after_ms=delay_ms)
        except DeclarationRefused as refusal:
            # The step's own policy decides when; the mistake is shown where the failure is read.
            return Failed(failure=describe_exception(refusal))
    return Failed(failure=failure)
