"""Reading the annotations of users' functions, which may be missing, quoted, or not resolvable at all."""

from __future__ import annotations

import collections.abc
import functools
import inspect
import typing
import weakref
from collections.abc import Callable
from typing import Any

from ryusen.typed import UNTYPED

__all__ = ["is_async", "resolve_annotations", "result_annotation"]

_UNKNOWN = object()
_returns: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
"""What functions say they return, as long as they live: a pass over a thousand steps asks a thousand times."""


def resolve_annotations(fn: Callable[..., Any], local_names: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return a function's annotations as types; parts that quote unknown names raise NameError."""
    return typing.get_type_hints(fn, localns=local_names, include_extras=True)


def result_annotation(callback: Callable[..., Any]) -> Any:
    """Return the type a step's callback says it returns, or `UNTYPED` when it does not say or cannot be asked."""
    target: Any = callback
    while isinstance(target, functools.partial):
        target = target.func
    if not inspect.isroutine(target) and not isinstance(target, type):
        target = type(target).__call__
    if isinstance(target, type):
        return target
    target = inspect.unwrap(target)
    target = getattr(target, "__func__", target)
    if not getattr(target, "__annotations__", None):
        return UNTYPED
    try:
        known = _returns.get(target, _UNKNOWN)
        if known is not _UNKNOWN:
            return known
        annotation = _returns[target] = _awaited(resolve_annotations(target).get("return", UNTYPED))
    except (NameError, AttributeError, TypeError, ValueError, SyntaxError):
        # Plain values still pass; a typed one is refused with the advice to annotate. A name may be defined later.
        return UNTYPED
    return annotation


def _awaited(annotation: Any) -> Any:
    if typing.get_origin(annotation) in (collections.abc.Awaitable, collections.abc.Coroutine):
        return typing.get_args(annotation)[-1]
    return annotation


def is_async(callback: Callable[..., Any]) -> bool:
    """Return whether calling `callback` gives an awaitable at once and does its work on the event loop."""
    target: Any = callback
    while isinstance(target, functools.partial):
        target = target.func
    return inspect.iscoroutinefunction(target) or inspect.iscoroutinefunction(type(target).__call__)
