"""What a workflow function is given, and what a step's callback can ask about itself."""

from __future__ import annotations

import contextvars
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar, overload

from ryusen.annotations import result_annotation
from ryusen.durations import Duration, parse_duration_ms
from ryusen.errors import DeclarationRefused, NotInAttempt
from ryusen.protocol.limits import ATTEMPT_TIMEOUT_MS_MAX
from ryusen.protocol.steps import StepDeclaration
from ryusen.retry import Retry
from ryusen.server_steps import require_names
from ryusen.server_verbs import ServerVerbs
from ryusen.step_calls import StepCall, StepHost, caller_location

__all__ = ["Attempt", "Context", "Step", "StepCall", "StepHost", "current_attempt"]

T = TypeVar("T")

_DEFAULT_RETRY = Retry()
_current: contextvars.ContextVar[Attempt | None] = contextvars.ContextVar("ryusen_attempt", default=None)


@dataclass(frozen=True)
class Attempt:
    """The running attempt of a step, as its callback or its compensator sees it.

    Attributes:
        operation_id: the same for every attempt of this step of this run, and another one for every attempt of its
            compensator; the idempotency key to give to what it calls.
        attempt: the attempt's ordinal, from 1.
        run_id: the run.
        step_id: the step.
        function: the workflow function's name.
    """

    operation_id: str
    attempt: int
    run_id: str
    step_id: str
    function: str


def current_attempt() -> Attempt:
    """Return the attempt whose callback this code runs in, also in threads and tasks that it started with its context.

    Raises:
        NotInAttempt: no attempt runs here.
    """
    attempt = _current.get()
    if attempt is None:
        raise NotInAttempt
    return attempt


def refuse_inside_attempt(step_id: str) -> None:
    """Refuse a step that is called while an attempt's callback runs here: its turn would come only after that has ended.

    Raises:
        DeclarationRefused: `nested_step`.
    """
    attempt = _current.get()
    if attempt is not None:
        message = f"step {step_id!r} is called inside the callback of step {attempt.step_id!r}; call it in the function itself"
        raise DeclarationRefused("nested_step", "id", message=message)


def bind_attempt(attempt: Attempt) -> None:
    """Make `attempt` the current one in this context."""
    _current.set(attempt)


@dataclass(frozen=True)
class Undo:
    """How a step is undone: its compensator and the compensator's own policy."""

    compensate: Callable[..., Any] | None = None
    retry: Retry | None = None
    timeout: Duration | None = None
    idempotent: bool = False

    def check(self) -> None:
        """Refuse what is no compensator or no policy.

        Raises:
            DeclarationRefused: `invalid_argument`.
        """
        if self.compensate is not None and not callable(self.compensate):
            kind = type(self.compensate).__name__
            raise DeclarationRefused("invalid_argument", "compensate", message=f"a {kind} is not callable")
        if self.retry is not None and not isinstance(self.retry, Retry):
            kind = type(self.retry).__name__
            raise DeclarationRefused("invalid_argument", "compensate_retry", message=f"a {kind}; pass a Retry")
        _require_flag(self.idempotent, "compensate_idempotent")
        has_policy = self.retry is not None or self.timeout is not None or self.idempotent
        if self.compensate is None and has_policy:
            raise DeclarationRefused(
                "invalid_argument", "compensate", message="a compensator's policy needs a compensator beside it"
            )


class Step(ServerVerbs):
    """The steps of a run: those whose callbacks workers run, and those that the service settles itself."""

    @overload
    def run(
        self,
        id: str,
        fn: Callable[..., Awaitable[T]],
        /,
        *args: Any,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        name: str | None = None,
        idempotent: bool = False,
        compensate: Callable[..., Any] | None = None,
        compensate_retry: Retry | None = None,
        compensate_timeout: Duration | None = None,
        compensate_idempotent: bool = False,
        **kwargs: Any,
    ) -> Coroutine[Any, Any, T]: ...

    @overload
    def run(
        self,
        id: str,
        fn: Callable[..., T],
        /,
        *args: Any,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        name: str | None = None,
        idempotent: bool = False,
        compensate: Callable[..., Any] | None = None,
        compensate_retry: Retry | None = None,
        compensate_timeout: Duration | None = None,
        compensate_idempotent: bool = False,
        **kwargs: Any,
    ) -> Coroutine[Any, Any, T]: ...

    def run(
        self,
        id: str,
        fn: Callable[..., Any],
        /,
        *args: Any,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        name: str | None = None,
        idempotent: bool = False,
        compensate: Callable[..., Any] | None = None,
        compensate_retry: Retry | None = None,
        compensate_timeout: Duration | None = None,
        compensate_idempotent: bool = False,
        **kwargs: Any,
    ) -> Coroutine[Any, Any, Any]:
        """Return the result of one durable step; its callback runs until one attempt succeeds or the policy is spent.

        The callback runs at least once and may run again when an attempt fails; use `current_attempt().operation_id` to make
        what it does idempotent. The value is always the one decoded from the recorded bytes, never the live object. A plain
        function runs in a thread of its own, so that it does not stop other work.

        Args:
            id: names the step in its run; 1 to 200 characters, each id once in a pass: a pass that meets an id
                again stops there, and the run waits for code in which one of the two calls has another id.
            fn: the callback, async or plain. An argument that is itself called like one of those below: use functools.partial.
            *args: its positional arguments.
            retry: when to try again; three attempts, from 1 s doubling to 5 min, by default.
            timeout: how long one attempt may take, 1 ms to seven days; no limit by default.
            name: shown to people in place of the id; 1 to 200 characters.
            idempotent: says that running the callback again under its operation id does no harm, so that it is run again by
                itself when its worker is lost while it runs. Otherwise such an attempt is *Unknown*, for an operator to settle.
            compensate: undoes the step, async or plain, when the run fails or is stopped after the step has completed. It
                gets the step's recorded result. Completed steps are undone one at a time, the last one first, by the code
                that is deployed then.
            compensate_retry: when to try the compensator again; five attempts by default.
            compensate_timeout: how long one attempt of the compensator may take; no limit by default.
            compensate_idempotent: says of the compensator what `idempotent` says of the callback.
            **kwargs: its keyword arguments.

        Raises:
            StepFailed: the step failed for good.
            DeclarationRefused: an argument is outside its bounds, or the server refused the step.
        """
        location = caller_location()
        undo = Undo(compensate, compensate_retry, compensate_timeout, compensate_idempotent)
        return self._run(id, fn, args, kwargs, retry, timeout, name, idempotent, location, undo)

    async def _run(
        self,
        step_id: str,
        callback: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        retry: Retry | None,
        timeout: Duration | None,
        name: str | None,
        idempotent: bool,
        location: str,
        undo: Undo,
    ) -> Any:
        require_names(step_id, name)
        if not callable(callback):
            raise DeclarationRefused("invalid_argument", "fn", message=f"a {type(callback).__name__} is not callable")
        if retry is not None and not isinstance(retry, Retry):
            raise DeclarationRefused("invalid_argument", "retry", message=f"a {type(retry).__name__}; pass a Retry")
        _require_flag(idempotent, "idempotent")
        undo.check()
        declaration = StepDeclaration(
            id=step_id,
            name=name or "",
            retry=(retry or _DEFAULT_RETRY).policy(),
            timeout_ms=_timeout_ms(timeout, "timeout"),
            compensable=undo.compensate is not None,
            undo_retry=None if undo.retry is None else undo.retry.policy(),
            undo_timeout_ms=_timeout_ms(undo.timeout, "compensate_timeout"),
            repeatable=idempotent,
            undo_repeatable=undo.idempotent,
            location=location,
        )
        context = contextvars.copy_context()
        call = StepCall(declaration, callback, args, kwargs, result_annotation(callback), context, undo.compensate)
        return await self._host.resolve(call)


@dataclass(frozen=True)
class Context:
    """What a workflow function gets as its first argument.

    Attributes:
        run_id: this run.
        event_id: the event that started it; empty when another run did.
        event_name: that event's name; empty when another run started it.
        function: this function's name.
        step: the durable steps.
    """

    run_id: str
    event_id: str
    event_name: str
    function: str
    step: Step


def _timeout_ms(timeout: Duration | None, field: str) -> int | None:
    return None if timeout is None else parse_duration_ms(timeout, field, most_ms=ATTEMPT_TIMEOUT_MS_MAX)


def _require_flag(value: object, field: str) -> None:
    # Taken for its truth, a callback passed here by mistake would make the step repeatable.
    if not isinstance(value, bool):
        raise DeclarationRefused("invalid_argument", field, message=f"a {type(value).__name__}; pass True or False")
