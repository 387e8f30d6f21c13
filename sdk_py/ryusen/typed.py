"""Values of the types that a user's functions are annotated with: dataclasses, TypedDicts, enums, msgspec and pydantic models.

A typed value becomes a plain portable one on the way out and is rebuilt from the annotation on the way in. Without an
annotation nothing is guessed: only plain portable values pass. Whatever would come back as something else is refused
where it enters, in the attempt that made it, and not in some later pass.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, Final, cast

import msgspec

from ryusen.errors import InvalidValue
from ryusen.protocol.values import DEPTH_MAX, decode_value, encode_value, format_path

__all__ = ["UNTYPED", "decode_typed", "encode_typed", "is_model"]


class _Untyped:
    def __repr__(self) -> str:
        return "UNTYPED"


UNTYPED: Final = _Untyped()
"""Stands for "no annotation": only plain portable values."""

_BUILTIN = (bytes, datetime)  # they have a portable encoding of their own; everything else msgspec spells as text
_UNNAMED = "[...]"  # how msgspec writes a map's member in a path
PROBES_MAX = 200
"""Members of a map that are tried one by one to name the one at fault; an error's path stays vague beyond."""
_MSGSPEC_PATH = re.compile(r"^(?P<reason>.*) - at `(?P<path>\$.*)`$", re.DOTALL)


def encode_typed(value: object, annotation: Any = UNTYPED) -> bytes:
    """Return the portable encoding of a value of an annotated type, having checked that the annotation gives it back.

    Args:
        value: what a function returned or is given.
        annotation: the type it is annotated with; `UNTYPED`, `Any` and `object` accept plain portable values only.

    Raises:
        InvalidValue: it has no exact encoding, or would not come back as it is.
    """
    if _is_untyped(annotation):
        return encode_value(value)
    try:
        lowered = msgspec.to_builtins(value, builtin_types=_BUILTIN, str_keys=True, enc_hook=_lower_foreign)
    except RecursionError:
        raise InvalidValue(f"nested deeper than {DEPTH_MAX} levels, or the value contains itself") from None
    except _NotPortable as exc:
        raise InvalidValue(exc.reason, _find(value, exc.culprit)) from None
    except (TypeError, ValueError) as exc:
        raise InvalidValue(str(exc)) from None
    data = encode_value(lowered)
    difference = _difference(value, decode_typed(data, annotation), [])
    if difference is not None:
        raise difference
    return data


def decode_typed(data: bytes, annotation: Any = UNTYPED) -> Any:
    """Return the value of the annotated type that portable JSON text stands for.

    Raises:
        InvalidValue: not portable JSON, or not of that type; the error names the path.
    """
    plain = decode_value(data)
    if _is_untyped(annotation):
        return plain
    try:
        return _convert(plain, annotation)
    except msgspec.ValidationError as exc:
        raise _named(exc, plain, annotation) from None
    except RecursionError:
        raise InvalidValue(f"nested deeper than {DEPTH_MAX} levels") from None
    except (TypeError, NotImplementedError) as exc:
        raise InvalidValue(f"the annotation cannot be used for values: {exc}") from None


def _convert(plain: Any, annotation: Any) -> Any:
    return msgspec.convert(plain, annotation, builtin_types=_BUILTIN, str_keys=True, dec_hook=_lift_foreign)


def _named(error: msgspec.ValidationError, plain: Any, annotation: Any) -> InvalidValue:
    """Return the error with its path; members of maps, which msgspec leaves unnamed, are found by trying them."""
    match = _MSGSPEC_PATH.match(str(error))
    if match is None:
        return InvalidValue(str(error))
    named, *others = match["path"].split(_UNNAMED)
    spelled = named
    for number, part in enumerate(others):
        key = _failing_key(plain, annotation, named, spelled + _UNNAMED)
        if key is None:
            return InvalidValue(match["reason"], _UNNAMED.join([named, *others[number:]]))
        # What is left holds one member here, so that the next unnamed one is looked for on the way to the culprit only.
        plain = _with_only(plain, named, key)
        named += format_path([key])[1:] + part
        spelled += _UNNAMED + part
    return InvalidValue(match["reason"], named)


def _failing_key(plain: Any, annotation: Any, prefix: str, spelled: str) -> str | None:
    for key in list(_at(plain, prefix))[:PROBES_MAX]:
        try:
            _convert(_with_only(plain, prefix, key), annotation)
        except msgspec.ValidationError as exc:
            if f"`{spelled}" in str(exc):
                return str(key)
    return None


def _at(plain: Any, prefix: str) -> dict[str, Any]:
    found = [node for path, node in _walk(plain) if path == prefix and isinstance(node, dict)]
    return found[0] if found else {}


def _with_only(plain: Any, prefix: str, key: str, path: str = "$") -> Any:
    """Return a copy of `plain` whose map at `prefix` holds `key` alone."""
    if isinstance(plain, dict):
        kept = {key: plain[key]} if path == prefix else plain
        return {name: _with_only(item, prefix, key, path + format_path([name])[1:]) for name, item in kept.items()}
    if isinstance(plain, list):
        return [_with_only(item, prefix, key, f"{path}[{index}]") for index, item in enumerate(plain)]
    return plain


def _walk(plain: Any, path: str = "$") -> Iterable[tuple[str, Any]]:
    yield path, plain
    for name, child in _children(plain) or ():
        yield from _walk(child, path + format_path([name])[1:])


def is_model(kind: type) -> bool:
    """Return whether a type describes its own fields: a dataclass, or a msgspec or pydantic model."""
    return dataclasses.is_dataclass(kind) or issubclass(kind, msgspec.Struct) or _is_pydantic(kind)


def _is_untyped(annotation: Any) -> bool:
    return annotation is UNTYPED or annotation is Any or annotation is object


class _NotPortable(Exception):
    def __init__(self, culprit: object, reason: str) -> None:
        self.culprit = culprit
        self.reason = reason


def _is_pydantic(kind: Any) -> bool:
    # Recognized by shape: pydantic is used where the user has it, and never imported here.
    return hasattr(kind, "__pydantic_validator__") and hasattr(kind, "model_validate") and hasattr(kind, "model_dump")


def _lower_foreign(value: Any) -> Any:
    if _is_pydantic(type(value)):
        return value.model_dump(mode="python")
    raise _NotPortable(value, f"a {type(value).__name__} has no portable form")


def _lift_foreign(kind: type, plain: Any) -> Any:
    if not _is_pydantic(kind):
        raise NotImplementedError(f"{kind.__name__} is neither a dataclass nor another supported type")
    try:
        return cast(Any, kind).model_validate(plain)
    except ValueError as exc:
        raise ValueError(_pydantic_reason(exc)) from None


def _pydantic_reason(exc: ValueError) -> str:
    errors: Callable[[], list[dict[str, Any]]] | None = getattr(exc, "errors", None)
    if errors is None:
        return str(exc)
    first = errors()[0]
    return f"{first.get('msg', 'invalid')} in {format_path(list(first.get('loc', ())))}"


def _children(value: object) -> Iterable[tuple[str | int, object]] | None:
    """Return the named parts of a container, or None for a leaf."""
    if isinstance(value, dict):
        return [(str(key), item) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return list(enumerate(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name, None)) for field in dataclasses.fields(value)]
    if isinstance(value, msgspec.Struct):
        return [(name, getattr(value, name)) for name in value.__struct_fields__]
    return None


def _find(value: object, culprit: object) -> str:
    """Return where `culprit` stands inside `value`, or the root when it cannot be told."""
    pending: list[tuple[list[str | int], object]] = [([], value)]
    while pending:
        path, node = pending.pop()
        if node is culprit:
            return format_path(path)
        if len(path) <= DEPTH_MAX:
            pending.extend(([*path, name], child) for name, child in _children(node) or ())
    return "$"


def _difference(before: object, after: object, path: list[str | int]) -> InvalidValue | None:
    """Return the error for the first part that did not come back as it was, or None."""
    tuple_as_list = type(before) is tuple and type(after) is list
    number_as_float = type(before) is int and type(after) is float and before == after
    if type(before) is not type(after) and not (tuple_as_list or number_as_float):
        reason = f"a {type(before).__name__} would come back as a {type(after).__name__}; annotate its type exactly"
        return InvalidValue(reason, format_path(path))
    ours, theirs = _children(before), _children(after)
    if ours is None or theirs is None:
        if _is_pydantic(type(before)) or type(before).__eq__ is object.__eq__ or before == after:
            return None
        return InvalidValue("the value would come back changed", format_path(path))
    rebuilt = dict(theirs)
    for name, child in ours:
        if name not in rebuilt:
            return InvalidValue("the member would be lost", format_path([*path, name]))
        difference = _difference(child, rebuilt[name], [*path, name])
        if difference is not None:
            return difference
    return None
