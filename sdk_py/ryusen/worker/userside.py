"""The user's side of a worker: an event loop on a thread of its own, on which passes and callbacks run.

The connection lives on another loop, so that user code which blocks this one loses nobody's lease (FILLED-IN 11, "Workers").
All calls come in by `perform` from any thread; all news go out through `sink`, which must be safe to call from this thread.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from ryusen.app import App, Function
from ryusen.context import Attempt, StepCall
from ryusen.protocol.frames import Outcome, WorkRef
from ryusen.worker.attempts import AttemptRun
from ryusen.worker.effects import (
    CancelCallback,
    ClosePass,
    ContinuePass,
    MovePass,
    ResumePass,
    RunCallback,
    StartPass,
)
from ryusen.worker.passes import Met, Pass, PassInput, Turn

__all__ = ["CallbackEnded", "PassTurn", "UserEffect", "UserEvent", "UserSide"]

_log = logging.getLogger("ryusen.worker")

STOP_S = 2.0
"""Seconds that user code is given to notice that its loop stops, before its thread is left behind."""


@dataclass(frozen=True)
class PassTurn:
    """A pass met an unresolved step or ended."""

    request: str
    turn: Turn
    failed_met: tuple[str, ...]


@dataclass(frozen=True)
class CallbackEnded:
    """A callback has truly ended."""

    request: str
    outcome: Outcome


UserEvent = PassTurn | CallbackEnded
UserEffect = StartPass | ResumePass | ContinuePass | MovePass | RunCallback | CancelCallback | ClosePass


class _Open:
    """A pass that is not closed, the request it goes by, the call it is parked at and the callback running for it."""

    def __init__(
        self, request: str, ref: WorkRef, function: Function, given: PassInput, heard: Callable[[_Open, Turn], None]
    ) -> None:
        self.request = request
        self.ref = ref
        self.its_pass = Pass(function, given, lambda turn: heard(self, turn))
        self.call: StepCall | None = None
        self.attempt: AttemptRun | None = None


class UserSide:
    """Runs user code for one application."""

    def __init__(self, app: App, sink: Callable[[UserEvent], None]) -> None:
        """Prepare the loop; nothing runs before `start`."""
        self._app = app
        self._sink = sink
        self._open: dict[str, _Open] = {}
        self._loop = asyncio.new_event_loop()
        self._asked: deque[UserEffect] = deque()
        self._is_called = False
        self._is_stopping = False
        self._beat = True
        self._thread = threading.Thread(target=self._run, name="ryusen-user", daemon=True)

    def start(self) -> None:
        """Start the thread and its loop."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the loop, cancelling what it runs; a thread that user code blocks is left behind."""
        self._is_stopping = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STOP_S)

    def perform(self, effect: UserEffect) -> None:
        """Do what the core asks, in order, on the user's loop."""
        self._asked.append(effect)
        if not self._is_called:
            # One waking of the user's loop for whatever is asked until it has woken: each is a system call on both sides.
            self._is_called = True
            self._loop.call_soon_threadsafe(self._take)

    def _take(self) -> None:
        # Before the queue is emptied: what is asked from here on calls again.
        self._is_called = False
        while self._asked:
            self._loop.call_soon(self._perform, self._asked.popleft())

    # ---- is the loop blocked?

    def beat(self) -> bool:
        """Return whether the loop has turned since the last call, and ask it to turn again."""
        has_turned, self._beat = self._beat, False
        self._loop.call_soon_threadsafe(self._turned)
        return has_turned

    def _turned(self) -> None:
        self._beat = True

    def blocker(self) -> str:
        """Name the user code that holds the loop just now."""
        task = asyncio.current_task(self._loop)
        frame = sys._current_frames().get(self._thread.ident or 0)
        place = f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}" if frame else "unknown"
        return f"{task.get_name() if task else 'code outside tasks'}, at {place}"

    # ---- on the user's thread

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        while not self._is_stopping:
            try:
                self._loop.run_forever()
            except BaseException as exc:  # noqa: BLE001 - asyncio lets SystemExit of a user's own task end the loop; here it must not
                _log.warning("user code raised %s out of a task of its own; the worker goes on", type(exc).__name__)
        self._finish()

    def _finish(self) -> None:
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        try:
            if tasks:
                self._loop.run_until_complete(asyncio.wait(tasks, timeout=STOP_S / 2))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        except BaseException as exc:  # noqa: BLE001 - user code's last words change nothing
            _log.warning("user code raised %s while it was stopped", type(exc).__name__)
        self._loop.close()

    def _perform(self, effect: UserEffect) -> None:
        if isinstance(effect, StartPass):
            self._start_pass(effect)
            return
        opened = self._open.get(effect.request)
        if opened is None:
            return
        if isinstance(effect, RunCallback):
            self._run_callback(effect, opened)
        elif isinstance(effect, ResumePass):
            opened.its_pass.refuse(effect.refusal)
        elif isinstance(effect, ContinuePass):
            self._move(opened, effect.following)
            opened.its_pass.proceed(effect.value)
        elif isinstance(effect, MovePass):
            self._move(opened, effect.following)
            opened.ref = effect.ref
        elif isinstance(effect, CancelCallback):
            if opened.attempt is not None:
                opened.attempt.cancel()
        else:
            del self._open[effect.request]
            opened.its_pass.close()

    def _start_pass(self, effect: StartPass) -> None:
        assign, request = effect.assign, effect.request
        given = PassInput(
            run_id=assign.ref.run,
            event_id=assign.event,
            event_name=assign.event_name,
            payload=bytes(assign.input),
            memo=assign.memo,
            value_bytes_max=effect.value_bytes_max,
            undo_target=assign.ref.step if assign.ref.kind == "compensation" else None,
        )
        opened = _Open(request, assign.ref, self._app.functions[assign.function], given, self._turn)
        self._open[request] = opened
        opened.its_pass.start()

    def _turn(self, opened: _Open, turn: Turn) -> None:
        if self._open.get(opened.request) is opened:
            opened.call = turn.call if isinstance(turn, Met) else None
            self._sink(PassTurn(opened.request, turn, tuple(opened.its_pass.failed_met)))

    def _move(self, opened: _Open, following: str) -> None:
        del self._open[opened.request]
        opened.request = following
        self._open[following] = opened

    def _run_callback(self, effect: RunCallback, opened: _Open) -> None:
        ref, call = opened.ref, opened.call
        assert call is not None, "the core starts a callback only after its pass has met the step"
        attempt = Attempt(
            operation_id=ref.operation,
            attempt=ref.attempt,
            run_id=ref.run,
            step_id=call.declaration.id,
            function=opened.its_pass.function.name,
        )
        if ref.kind == "compensation":
            call = opened.its_pass.undo_of(call)
        opened.attempt = AttemptRun(call, attempt, effect.value_bytes_max)
        opened.attempt.start(lambda outcome: self._sink(CallbackEnded(effect.request, outcome)))
