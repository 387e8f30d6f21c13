"""What a workflow function is given, and what a step's callback can ask about itself."""

from __future__ import annotations

import contextvars
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol, TypeVar, overload

from ryusen.annotations import result_annotation
from ryusen.app import Function
from ryusen.durations import Duration, parse_duration_ms
from ryusen.errors import DeclarationRefused, NotInAttempt
from ryusen.invocations import Invoked, invocation_of
from ryusen.protocol.frames import Emission, StepDeclaration, Timer, Wait
from ryusen.protocol.limits import ATTEMPT_TIMEOUT_MS_MAX, LOCATION_CHARS_MAX
from ryusen.retry import Retry
from ryusen.server_steps import emission_of, require_names, server_step, timer_of, timer_until, wait_of

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


def bind_attempt(attempt: Attempt) -> None:
    """Make `attempt` the current one in this context."""
    _current.set(attempt)


@dataclass(frozen=True)
class StepCall:
    """One step as a pass met it: its declaration, and the callback with its arguments as current code has them.

    `callback` is None for a step that the service settles itself. `compensate` undoes the step when the run does not succeed;
    None when current code has no compensator.
    """

    declaration: StepDeclaration
    callback: Callable[..., Any] | None
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    annotation: Any
    context: contextvars.Context
    compensate: Callable[..., Any] | None = None


class StepHost(Protocol):
    """Whatever decides what becomes of a step that workflow code calls."""

    async def resolve(self, call: StepCall) -> Any:
        """Return the step's recorded value, raise its recorded failure, or end this pass's turn."""
        ...


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


class Step:
    """The steps of a run."""

    def __init__(self, host: StepHost, functions: Mapping[str, Function] | None = None) -> None:
        """Bind the steps to the pass that answers for them, and to the functions of its application by name."""
        self._host = host
        self._functions = functions or {}

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
        location = _caller()
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

    def sleep(self, id: str, duration: Duration, /, *, name: str | None = None) -> Coroutine[Any, Any, None]:
        """Let the run go on after a while. Nothing is held meanwhile: no process, no slot, no lease.

        The time counts from when the service accepts the step, by the service's clock, and is recorded then: later code that
        says something else moves nothing, and neither does a restart. A run that is stopped or whose own timeout is over does
        not wake.

        Args:
            id: names the step in its run, as for `run`.
            duration: seconds, a timedelta or text such as "1h30m"; 0 to ten years.
            name: shown to people in place of the id.

        Raises:
            DeclarationRefused: an argument is outside its bounds, or the server refused the step.
            DuplicateStepId: this pass has met the id already.
        """
        location = _caller()
        return self._sleep(id, name, location, lambda: timer_of(duration))

    def sleep_until(self, id: str, when: datetime | int, /, *, name: str | None = None) -> Coroutine[Any, Any, None]:
        """Let the run go on at an instant, at once when it has passed; otherwise as `sleep`.

        Args:
            id: names the step in its run, as for `run`.
            when: a datetime with a zone, or Unix epoch milliseconds; from 1970, at most ten years ahead.
            name: shown to people in place of the id.

        Raises:
            DeclarationRefused: an argument is outside its bounds, or the server refused the step.
            DuplicateStepId: this pass has met the id already.
        """
        location = _caller()
        return self._sleep(id, name, location, lambda: timer_until(when))

    async def _sleep(self, step_id: str, name: str | None, location: str, timer: Callable[[], Timer]) -> None:
        await self._settled_by_server(server_step(step_id, name, location, kind="timer", timer=timer()))

    def send_event(
        self,
        id: str,
        event: str,
        payload: object = None,
        /,
        *,
        correlation: Mapping[str, str] | None = None,
        name: str | None = None,
    ) -> Coroutine[Any, Any, str]:
        """Submit an event, once, and return its id. The run goes on as soon as the event is accepted; nobody has acted on it yet.

        The event is accepted in the same transaction as the step is recorded, so a run that repeats itself, crashes or is
        stopped never submits it twice and never takes it back.

        Args:
            id: names the step in its run, as for `run`.
            event: the event's name; 1 to 200 characters, not beginning with `ryusen/`.
            payload: a portable value or a model.
            correlation: pairs that waits may match, at most 16; none is taken from the event that started this run.
            name: shown to people in place of the id.

        Raises:
            DeclarationRefused: an argument is outside its bounds, or the server refused the step.
            DuplicateStepId: this pass has met the id already.
        """
        location = _caller()
        return self._send_event(id, name, location, lambda: emission_of(event, payload, correlation))

    async def _send_event(self, step_id: str, name: str | None, location: str, emission: Callable[[], Emission]) -> str:
        declaration = server_step(step_id, name, location, kind="emission", emission=emission())
        event_id: str = await self._settled_by_server(declaration)
        return event_id

    def wait_for_event(
        self,
        id: str,
        event: str,
        /,
        *,
        timeout: Duration,
        match: Mapping[str, str] | None = None,
        name: str | None = None,
    ) -> Coroutine[Any, Any, Any]:
        """Let the run go on when an event comes, and return its payload. Nothing is held meanwhile: no process, no slot, no lease.

        Only an event that the service accepts after it has accepted this step counts, and before the timeout is over; one that
        came first is not remembered. Where the event may come early, declare the wait before causing it, or let the sender
        repeat it. An event settles every wait it satisfies and is consumed by none.

        Args:
            id: names the step in its run, as for `run`.
            event: the exact name of the event; 1 to 200 characters.
            timeout: how long to wait, 0 to ten years, from when the service accepts the step; later code moves nothing.
            match: pairs of text that the event's correlation must carry, at most 16; more in the event do no harm.
            name: shown to people in place of the id.

        Raises:
            StepFailed: `sdk.timeout` when no such event came in time; `sdk.invalid_result` when this run cannot carry what came.
            DeclarationRefused: an argument is outside its bounds, or the server refused the step.
            DuplicateStepId: this pass has met the id already.
        """
        location = _caller()
        return self._wait_for_event(id, name, location, lambda: wait_of(event, match, timeout))

    async def _wait_for_event(self, step_id: str, name: str | None, location: str, wait: Callable[[], Wait]) -> Any:
        return await self._settled_by_server(server_step(step_id, name, location, kind="wait", wait=wait()))

    @overload
    def invoke(
        self,
        id: str,
        function: Callable[..., Awaitable[T]],
        input: object = None,
        /,
        *,
        timeout: Duration | None = None,
        name: str | None = None,
    ) -> Coroutine[Any, Any, T]: ...

    @overload
    def invoke(
        self,
        id: str,
        function: str,
        input: object = None,
        /,
        *,
        timeout: Duration | None = None,
        name: str | None = None,
    ) -> Coroutine[Any, Any, Any]: ...

    def invoke(
        self,
        id: str,
        function: Callable[..., Awaitable[Any]] | str,
        input: object = None,
        /,
        *,
        timeout: Duration | None = None,
        name: str | None = None,
    ) -> Coroutine[Any, Any, Any]:
        """Start another function of this application as a run of its own, and return what it returns.

        The child has its own steps, retries and compensators. This run goes on when the child has ended, and if it failed,
        when it has undone what it had done. When this run is stopped or out of time, so is the child, and this run ends after
        it. A child that has completed is not undone with this run: undo it by a step or an invocation of its own.

        Args:
            id: names the step in its run, as for `run`.
            function: a function of this application, or its name.
            input: what it gets; a value of the type it declares or a portable one.
            timeout: how long it may take, 0 to ten years; the function's own timeout and what is left of this run's hold too.
                0 is over at once: nothing of the child runs.
            name: shown to people in place of the id.

        Raises:
            StepFailed: the child did not complete: `child.failed`, `child.cancelled`, `child.timed_out`, or `sdk.timeout` for
                a timeout of 0; or `sdk.invalid_result` when this run cannot carry what it returned.
            DeclarationRefused: an argument is outside its bounds, the function is none of this application's when this run
                was started, or the chain of invocations is 16 deep.
        """
        location = _caller()
        return self._invoke(id, name, location, lambda: invocation_of(function, input, timeout, self._functions))

    async def _invoke(self, step_id: str, name: str | None, location: str, invocation: Callable[[], Invoked]) -> Any:
        require_names(step_id, name)
        child, annotation = invocation()
        declaration = server_step(step_id, name, location, kind="child", child=child)
        return await self._settled_by_server(declaration, annotation)

    async def _settled_by_server(self, declaration: StepDeclaration, annotation: Any = Any) -> Any:
        """Return the recorded outcome of a step that the service settles, of the annotated type."""
        call = StepCall(declaration, None, (), {}, annotation, contextvars.copy_context())
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


def _caller() -> str:
    """Return where the method that asks was called; the end of a long path."""
    frame = sys._getframe(2)
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"[-LOCATION_CHARS_MAX:]
