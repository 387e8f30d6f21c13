"""An application: its name and its workflow functions."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, TypeVar, overload

from ryusen.annotations import resolve_annotations
from ryusen.durations import Duration, parse_duration_ms
from ryusen.errors import ConfigurationError, DeclarationRefused
from ryusen.protocol.frames import CODEC, PROTOCOL_VERSION
from ryusen.protocol.limits import FUNCTIONS_MAX, RUN_TIMEOUT_MS_MAX, TRIGGERS_MAX
from ryusen.protocol.manifest import FunctionManifest, Manifest, build_trigger, validate_manifest
from ryusen.protocol.names import contract_digest, name_fault
from ryusen.typed import UNTYPED

__all__ = ["App", "Function"]

H = TypeVar("H", bound=Callable[..., Awaitable[Any]])


@dataclass(frozen=True)
class Function:
    """One workflow function as its application registered it.

    Attributes:
        name: unique in the application.
        handler: the user's coroutine function.
        events: the event names that start it; may be empty.
        takes_input: whether the handler has a second parameter for the event's payload.
        input_type: that parameter's type.
        output_type: the type the handler returns.
        timeout_ms: how long one run may take, in milliseconds; None is for ever.
        siblings: all functions of its application by name, itself included; a view that grows with the application.
    """

    name: str
    handler: Callable[..., Awaitable[Any]]
    events: tuple[str, ...]
    takes_input: bool
    input_type: Any
    output_type: Any
    timeout_ms: int | None = None
    siblings: Mapping[str, Function] = field(default_factory=dict, repr=False, compare=False)


class App:
    """An application.

    Args:
        name: 1 to 200 characters; the same in every release.

    Raises:
        ConfigurationError: the name is not one.
    """

    def __init__(self, name: str) -> None:
        """Start with no function."""
        _require_name(name, "application")
        self.name = name
        self._functions: dict[str, Function] = {}

    @property
    def functions(self) -> Mapping[str, Function]:
        """The functions by name, read-only."""
        return MappingProxyType(self._functions)

    @overload
    def function(self, handler: H, /) -> H: ...

    @overload
    def function(
        self, /, *, on: str | Iterable[str] | None = None, name: str | None = None, timeout: Duration | None = None
    ) -> Callable[[H], H]: ...

    def function(
        self,
        handler: H | None = None,
        /,
        *,
        on: str | Iterable[str] | None = None,
        name: str | None = None,
        timeout: Duration | None = None,
    ) -> H | Callable[[H], H]:
        """Register a workflow function; works bare and with options, and leaves the function as it is.

        Args:
            handler: `async def fn(ctx)` or `async def fn(ctx, payload)`.
            on: the event name, or up to 50 of them, that start a run; none when it is only called by name.
            name: the function's name; the Python name by default.
            timeout: how long one run may take, from when it is created: seconds, a timedelta or text such as "2d". Then
                no forward work starts any more, what has begun is waited for, and completed steps are undone, for which
                the timeout does not count. Without one a run may take for ever, unless the deployment has a default.

        Raises:
            ConfigurationError: not a coroutine function, a name out of bounds or taken, annotations that name nothing, a
                timeout that is no duration.
        """
        local_names = sys._getframe(1).f_locals
        events = _event_names(on)
        timeout_ms = _timeout_ms(timeout)

        def register(handler: H) -> H:
            function = _inspect(handler, events, name, local_names, timeout_ms)
            if function.name in self._functions:
                raise ConfigurationError("the function name is taken", name=function.name, application=self.name)
            if len(self._functions) >= FUNCTIONS_MAX:
                raise ConfigurationError("too many functions in one application", limit=FUNCTIONS_MAX)
            self._functions[function.name] = replace(function, siblings=self.functions)
            return handler

        return register if handler is None else register(handler)

    def manifest(self) -> Manifest:
        """Return what the application publishes about itself.

        Raises:
            ManifestRefused: it could not be published, for instance without any function.
        """
        functions = [
            FunctionManifest(
                name=function.name,
                triggers=[build_trigger(function.name, event) for event in function.events],
                contract=contract_digest(function.name, CODEC, PROTOCOL_VERSION),
                timeout_ms=function.timeout_ms,
            )
            for function in self._functions.values()
        ]
        manifest = Manifest(application=self.name, functions=functions)
        validate_manifest(manifest)
        return manifest


def _require_name(value: object, field: str) -> None:
    fault = name_fault(value)
    if fault is not None:
        raise ConfigurationError(f"the {field} name {fault}")


def _event_names(on: str | Iterable[str] | None) -> tuple[str, ...]:
    events = () if on is None else (on,) if isinstance(on, str) else tuple(on)
    if len(events) > TRIGGERS_MAX:
        raise ConfigurationError("too many events for one function", count=len(events), limit=TRIGGERS_MAX)
    for event in events:
        _require_name(event, "event")
    if len(set(events)) != len(events):
        raise ConfigurationError("an event name stands twice", on=list(events))
    return events


def _timeout_ms(timeout: Duration | None) -> int | None:
    if timeout is None:
        return None
    try:
        return parse_duration_ms(timeout, "timeout", most_ms=RUN_TIMEOUT_MS_MAX)
    except DeclarationRefused as exc:
        raise ConfigurationError("the function's timeout cannot be", reason=str(exc)[:200]) from None


def _inspect(
    handler: Callable[..., Awaitable[Any]],
    events: tuple[str, ...],
    name: str | None,
    local_names: dict[str, Any],
    timeout_ms: int | None,
) -> Function:
    if not inspect.iscoroutinefunction(handler):
        raise ConfigurationError("a workflow function is written with async def", function=repr(handler)[:200])
    own_name = handler.__name__ if name is None else name
    _require_name(own_name, "function")
    parameters = list(inspect.signature(handler).parameters.values())
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    extra = [p for p in parameters if p not in positional[:2] and p.default is p.empty]
    if not positional or extra:
        raise ConfigurationError("a workflow function takes the context and, if it wants it, one input", name=own_name)
    try:
        hints = resolve_annotations(handler, local_names)
    except (NameError, AttributeError, TypeError, SyntaxError) as exc:
        raise ConfigurationError("an annotation names nothing", name=own_name, reason=str(exc)[:200]) from None
    return Function(
        name=own_name,
        handler=handler,
        events=events,
        takes_input=len(positional) >= 2,
        input_type=hints.get(positional[1].name, UNTYPED) if len(positional) >= 2 else UNTYPED,
        output_type=hints.get("return", UNTYPED),
        timeout_ms=timeout_ms,
    )
