"""The verbs of a run's steps that the service settles itself: no callback runs, and no worker is held meanwhile."""

from __future__ import annotations

import contextvars
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from datetime import datetime
from typing import Any, TypeVar, overload

from ryusen.app import Function
from ryusen.durations import Duration
from ryusen.invocations import Invoked, invocation_of
from ryusen.protocol.steps import Emission, StepDeclaration, Timer, Wait
from ryusen.server_steps import emission_of, require_names, server_step, timer_of, timer_until, wait_of
from ryusen.step_calls import StepCall, StepHost, caller_location

__all__ = ["ServerVerbs"]

T = TypeVar("T")


class ServerVerbs:
    """The steps of a run that the service settles itself."""

    def __init__(self, host: StepHost, functions: Mapping[str, Function] | None = None) -> None:
        """Bind the steps to the pass that answers for them, and to the functions of its application by name."""
        self._host = host
        self._functions = functions or {}

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
        location = caller_location()
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
        location = caller_location()
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
        location = caller_location()
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
        location = caller_location()
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
        location = caller_location()
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
