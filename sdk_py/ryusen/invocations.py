"""What an invocation of another function is declared with, and of which type its outcome is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from ryusen.app import Function
from ryusen.durations import Duration, parse_duration_ms
from ryusen.errors import DeclarationRefused, InvalidValue
from ryusen.protocol.frames import Child
from ryusen.protocol.limits import INVOKE_TIMEOUT_MS_MAX, VALUE_BYTES_MAX
from ryusen.protocol.names import name_fault
from ryusen.typed import UNTYPED, encode_typed, is_model

__all__ = ["Invoked", "invocation_of"]


class Invoked(NamedTuple):
    """The child to declare, and the type that its function returns as current code has it."""

    child: Child
    annotation: Any


def invocation_of(
    function: object, value: object, timeout: Duration | None, functions: Mapping[str, Function]
) -> Invoked:
    """Return the invocation of a function with an input, encoded once: the child gets these bytes.

    A name need not be one that current code knows; the service compares it with the manifest that the run was started under.

    Args:
        function: a function of the application, or a name.
        value: the input.
        timeout: how long the child may take.
        functions: the application's functions by name.

    Raises:
        DeclarationRefused: no function of the application, an input without an exact form or too large, or a timeout that
            is none.
    """
    name = _name_of(function, functions)
    known = functions.get(name)
    timeout_ms = None
    if timeout is not None:
        timeout_ms = parse_duration_ms(timeout, "timeout", least_ms=0, most_ms=INVOKE_TIMEOUT_MS_MAX)
    if known is not None and not known.takes_input and value is not None:
        message = f"the function {name!r} takes no input"
        raise DeclarationRefused("invalid_argument", "input", message=message)
    data = _encoded(value, known)
    if len(data) > VALUE_BYTES_MAX:
        message = f"the child's input has {len(data)} bytes"
        raise DeclarationRefused("value_too_large", "input", VALUE_BYTES_MAX, message)
    child = Child(function=name, input=msgspec.Raw(data), timeout_ms=timeout_ms)
    return Invoked(child, UNTYPED if known is None else known.output_type)


def _name_of(function: object, functions: Mapping[str, Function]) -> str:
    if callable(function):
        for known in functions.values():
            if known.handler is function:
                return known.name
        message = f"{getattr(function, '__qualname__', 'it')!r} is no function of this application"
        raise DeclarationRefused("invalid_argument", "function", message=message)
    fault = name_fault(function)
    if fault is not None:
        raise DeclarationRefused("invalid_argument", "function", message=f"the function's name {fault}")
    return str(function)


def _encoded(value: object, known: Function | None) -> bytes:
    """Return the input as a value of the type that the function declares, or else of its own."""
    own_type = type(value) if is_model(type(value)) else UNTYPED
    try:
        if known is None or not known.takes_input:
            return encode_typed(value, own_type)
        return _encoded_as_declared(value, known.input_type, own_type)
    except InvalidValue as exc:
        raise DeclarationRefused("invalid_argument", "input", message=f"the child's input: {exc}") from exc


def _encoded_as_declared(value: object, declared_type: Any, own_type: Any) -> bytes:
    try:
        return encode_typed(value, declared_type)
    except InvalidValue as as_declared:
        try:
            # The plain form of a model is as good as the model: the child's own pass makes one of it.
            return encode_typed(value, own_type)
        except InvalidValue:
            raise as_declared from None
