"""One pass over a workflow function: it replays recorded steps until it meets one that is not, or the function ends.

A pass has one turn at a time. Meeting an unresolved step or ending gives the turn away, and the pass stays parked there:
user code that was awaiting the step simply goes on awaiting. A refused declaration gives the turn back by raising at that
call. Closing cancels the parked code, so that its `finally` and `async with` blocks run. Code that swallows the cancellation
is asked a bounded number of times and then left behind, dead: nothing it does later is heard.

Steps met at the same time, in `asyncio.gather` for instance, line up in the order they were reached and only the first is
offered (FILLED-IN 11, "One outstanding step").

A step id names one operation. The second call of an id in a pass ends that pass before its callback can run: no exception is
raised, which user code could catch, and no value is returned, which would be the first call's; the call is left awaiting.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from ryusen.annotations import is_async
from ryusen.app import Function
from ryusen.context import Context, Step, StepCall, refuse_inside_attempt
from ryusen.errors import DeclarationRefused, InvalidValue
from ryusen.failures import INVALID_INPUT, describe_exception, encode_result, step_failed
from ryusen.protocol.frames import (
    CallSite,
    Complete,
    DefinitionBlocked,
    Fail,
    Failure,
    StepDeclaration,
    StepMemo,
)
from ryusen.typed import decode_typed

__all__ = ["CLOSE_PATIENCE_S", "Ended", "Met", "Pass", "PassInput", "Turn"]

_log = logging.getLogger("ryusen.worker")

CLOSE_PATIENCE_S = 1.0
"""Seconds between the cancellations of a closed pass that goes on."""
CLOSE_CANCELS_MAX = 5
"""Cancellations before a closed pass is left behind."""
ABANDONED_MAX = 100
"""Left-behind passes that are kept from the garbage collector's complaints; the oldest is forgotten first."""

_abandoned: deque[asyncio.Task[None]] = deque(maxlen=ABANDONED_MAX)


@dataclass(frozen=True)
class PassInput:
    """What a pass starts from: the run, its input as it was submitted, and its settled steps.

    Attributes:
        run_id: the run.
        event_id: the event that started it.
        event_name: that event's name.
        payload: the input, portable JSON text.
        memo: the settled steps.
        value_bytes_max: the largest encoded value the server accepts, in bytes.
        undo_target: the completed step whose compensator is wanted; the pass goes no further than its call.
    """

    run_id: str
    event_id: str
    event_name: str
    payload: bytes
    memo: Sequence[StepMemo]
    value_bytes_max: int
    undo_target: str | None = None


@dataclass(frozen=True)
class Met:
    """The turn ended at an unresolved step."""

    call: StepCall


@dataclass(frozen=True)
class Ended:
    """The turn ended with the function, or at a step id that the pass had met before."""

    ending: Complete | Fail | DefinitionBlocked


Turn = Met | Ended


class Pass:
    """One pass; lives on one event loop.

    Attributes:
        function: the workflow function.
        failed_met: the ids of the failed steps met so far, in order.
    """

    def __init__(self, function: Function, given: PassInput, on_turn: Callable[[Turn], None]) -> None:
        """Prepare a pass that tells `on_turn`, on its event loop, how each of its turns ends."""
        self.function = function
        self.failed_met: list[str] = []
        self._given = given
        self._on_turn = on_turn
        self._memo = {memo.id: memo for memo in given.memo}
        self._met: dict[str, StepDeclaration] = {}
        self._waiting: deque[tuple[StepCall, asyncio.Future[Any]]] = deque()
        self._duplicates: list[asyncio.Future[Any]] = []
        self._has_turn = True
        self._is_closed = False
        self._ending: Complete | Fail | DefinitionBlocked | None = None
        self._task: asyncio.Task[None] | None = None
        self._cancels = 0

    def start(self) -> None:
        """Start the function on the running event loop."""
        name = f"{self.function.name} of run {self._given.run_id}"
        self._task = asyncio.get_running_loop().create_task(self._run(), name=name)

    def refuse(self, refusal: DeclarationRefused) -> None:
        """Raise at the step that ended the last turn, and give the pass its turn back."""
        if self._has_turn or self._is_closed:
            return
        self._has_turn = True
        if self._waiting:
            _, waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_exception(refusal)
        if self._ending is not None:
            self._give_turn(Ended(self._ending))
        else:
            self._offer()

    def proceed(self, value: bytes) -> None:
        """Return the accepted `value` from the step that ended the last turn, and give the pass its turn back."""
        if self._has_turn or self._is_closed or not self._waiting:
            return
        self._has_turn = True
        call, waiter = self._waiting.popleft()
        if not waiter.done():
            try:
                waiter.set_result(self._recorded(StepMemo(id=call.declaration.id, value=msgspec.Raw(value)), call))
            except InvalidValue as exc:
                waiter.set_exception(exc)
        if self._ending is not None:
            self._give_turn(Ended(self._ending))
        else:
            self._offer()

    def undo_of(self, call: StepCall) -> StepCall:
        """Return the call of the step's compensator with the step's recorded result, decoded inside the attempt."""
        compensate, memo = call.compensate, self._memo.get(call.declaration.id)
        assert compensate is not None and memo is not None, "only a completed step with a compensator is undone"
        recorded = b"null" if memo.value is None else bytes(memo.value)

        # What a compensator returns is recorded nowhere, so it need not be a portable value.
        def undo() -> Any:
            returned = compensate(decode_typed(recorded, call.annotation))
            return _discarded(returned) if inspect.iscoroutine(returned) else None

        async def undo_async() -> None:
            await compensate(decode_typed(recorded, call.annotation))

        callback = undo_async if is_async(compensate) else undo
        return replace(call, callback=callback, args=(), kwargs={}, annotation=None)

    def close(self) -> None:
        """End the pass: cancel what is parked in it, and hear nothing more of it."""
        if self._is_closed:
            return
        self._is_closed = True
        for waiter in (*(waiter for _, waiter in self._waiting), *self._duplicates):
            waiter.cancel()
        self._waiting.clear()
        self._duplicates.clear()
        self._cancel_until_done()

    async def resolve(self, call: StepCall) -> Any:
        """Answer a step that the function calls (see `StepHost`)."""
        declaration = call.declaration
        refuse_inside_attempt(declaration.id)
        if self._is_closed:
            return await self._park(call)
        first = self._met.setdefault(declaration.id, declaration)
        # A pass that looks for a compensator starts nothing: what the code is blocked for must not leave steps undone.
        if first is not declaration and self._given.undo_target is None:
            return await self._stop_at_duplicate(first, declaration)
        if declaration.id == self._given.undo_target:
            return await self._park(call)
        memo = self._memo.get(declaration.id)
        return await self._park(call) if memo is None else self._recorded(memo, call)

    def _recorded(self, memo: StepMemo, call: StepCall) -> Any:
        if memo.failure is not None:
            self.failed_met.append(memo.id)
            raise step_failed(memo.id, memo.failure)
        if memo.value is None:
            return None
        try:
            return decode_typed(bytes(memo.value), call.annotation)
        except InvalidValue as exc:
            raise InvalidValue(f"the recorded result of step {memo.id!r}: {exc.reason}", exc.path) from None

    async def _park(self, call: StepCall) -> Any:
        waiter: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((call, waiter))
        self._offer()
        return await waiter

    async def _stop_at_duplicate(self, first: StepDeclaration, again: StepDeclaration) -> Any:
        """End the pass at the second call of a step id; the first conflict of a pass is the one that is told."""
        if self._ending is None:
            self._ending = DefinitionBlocked(
                reason="duplicate_step_id", step=first.id, first=_site(first), duplicate=_site(again)
            )
            _log.warning(
                "step id %r is used twice in one pass of function %s: first at %s, again at %s; run %s is blocked until one"
                " of the two calls has another id",
                first.id,
                self.function.name,
                first.location,
                again.location,
                self._given.run_id,
            )
            if self._has_turn:
                self._give_turn(Ended(self._ending))
        waiter: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self._is_closed:
            waiter.cancel()
        self._duplicates.append(waiter)
        return await waiter

    def _offer(self) -> None:
        # A waiter that user code gave up (wait_for) before its turn came is no longer met.
        while self._waiting and self._waiting[0][1].done():
            self._waiting.popleft()
        if self._has_turn and self._waiting:
            self._give_turn(Met(self._waiting[0][0]))

    def _give_turn(self, turn: Turn) -> None:
        self._has_turn = False
        if not self._is_closed:
            self._on_turn(turn)

    async def _run(self) -> None:
        ending = await self._follow()
        if self._ending is not None:
            return
        self._ending = ending
        if self._has_turn and not self._is_closed:
            self._give_turn(Ended(ending))

    async def _follow(self) -> Complete | Fail:
        function, given = self.function, self._given
        arguments: tuple[Any, ...] = ()
        if function.takes_input:
            try:
                arguments = (decode_typed(given.payload, function.input_type),)
            except Exception as exc:  # noqa: BLE001 - validators and __post_init__ of the input's type are user code
                return Fail(failure=msgspec.structs.replace(describe_exception(exc), category=INVALID_INPUT))
        context = Context(given.run_id, given.event_id, given.event_name, function.name, Step(self, function.siblings))
        try:
            value = await function.handler(context, *arguments)
        except BaseException as exc:  # noqa: BLE001 - SystemExit and cancellations of user code end the run, not the worker
            return Fail(failure=describe_exception(exc))
        encoded = encode_result(value, function.output_type, given.value_bytes_max, "the function's return value")
        return Fail(failure=encoded) if isinstance(encoded, Failure) else Complete(value=encoded)

    def _cancel_until_done(self) -> None:
        task = self._task
        if task is None or task.done():
            return
        if self._cancels >= CLOSE_CANCELS_MAX:
            _log.warning(
                "function %s swallows its cancellation after its pass has ended; it is left behind", self.function.name
            )
            _abandoned.append(task)
            return
        self._cancels += 1
        task.cancel()
        asyncio.get_running_loop().call_later(CLOSE_PATIENCE_S, self._cancel_until_done)


def _site(declaration: StepDeclaration) -> CallSite:
    return CallSite(location=declaration.location, name=declaration.name)


async def _discarded(pending: Coroutine[Any, Any, Any]) -> None:
    await pending
