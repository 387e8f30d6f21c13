"""Portable values: what an input, a result and a failure's details may be, and their one encoding, `portable-json/1`.

| Python                | JSON text                                                                    |
|-----------------------|------------------------------------------------------------------------------|
| None, bool            | null, true, false                                                            |
| int, 64 bit, signed   | digits only; `-0` is the float -0.0                                          |
| float, finite         | with a fraction or an exponent, shortest digits that give the same double    |
| str                   | text without lone surrogates                                                 |
| list (tuple accepted) | array; a tuple comes back as a list                                          |
| dict with str keys    | object, members in their order                                               |
| bytes                 | {"$bytes": standard base64 with padding}                                     |
| datetime, aware       | {"$datetime": RFC 3339, at most microseconds}                                |
| dict of one member named `$bytes`, `$datetime` or `$map` | {"$map": {...}}                           |

A datetime keeps its instant and its offset from UTC, so `fold` is decided when it is encoded; the name of its zone is not kept,
and a naive one is refused, since nobody could say later which instant it meant. Subclasses of these types (enums, numpy
scalars, defaultdict) are refused too: they would come back as something else. Nothing is ever changed silently.

Decoding is strict: duplicate member names, NaN, numbers that no 64-bit integer or double holds, broken tags, invalid UTF-8 and
nesting beyond `DEPTH_MAX` are refused with the path of the culprit.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from datetime import datetime, timedelta
from typing import Any

import msgspec

from ryusen.errors import InvalidValue

__all__ = ["DEPTH_MAX", "INT_MAX", "INT_MIN", "check_value", "decode_value", "encode_value", "format_path"]

DEPTH_MAX = 100
"""Levels of lists and maps inside one another; leaves the recursion limits of common JSON readers out of sight."""
INT_MIN = -(2**63)
INT_MAX = 2**63 - 1

_INT_DIGITS_MAX = 20  # the longest 64-bit integer with its sign; longer literals are never handed to int()
_TAG_BYTES, _TAG_DATETIME, _TAG_MAP = "$bytes", "$datetime", "$map"
_TAGS = frozenset((_TAG_BYTES, _TAG_DATETIME, _TAG_MAP))
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT(?:[01]\d|2[0-3]):\d\d:\d\d(?:\.\d{1,6})?(?:Z|[+-]\d\d:\d\d)", re.ASCII)
_PLAIN_KEY = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*", re.ASCII)
_SURROGATE = re.compile("[\ud800-\udfff]")

_Path = list[str | int]


def format_path(path: list[str | int]) -> str:
    """Return a path of keys and indexes as `$.order.lines[3]`."""
    parts = ["$"]
    for step in path:
        if isinstance(step, int):
            parts.append(f"[{step}]")
        elif _PLAIN_KEY.fullmatch(step):
            parts.append(f".{step}")
        else:
            parts.append(f"[{json.dumps(step)}]")
    return "".join(parts)


def encode_value(value: object) -> bytes:
    """Return the exact portable encoding of a plain value as UTF-8 JSON text.

    Raises:
        InvalidValue: some part of it has no exact encoding; the error names the path.
    """
    return msgspec.json.encode(_Lowering().lower(value))


def decode_value(data: bytes) -> Any:
    """Return the value that portable JSON text stands for.

    Raises:
        InvalidValue: not exactly one portable value; the error names the path.
    """
    try:
        text = bytes(data).decode("utf-8")
    except UnicodeDecodeError as exc:
        raise InvalidValue(f"not UTF-8 text: byte {exc.start} is invalid") from None
    try:
        tree = _READER.decode(text)
    except json.JSONDecodeError as exc:
        raise InvalidValue(f"not JSON: {exc.msg} at line {exc.lineno} column {exc.colno}") from None
    except RecursionError:
        raise InvalidValue(f"nested deeper than {DEPTH_MAX} levels") from None
    return _Lifting().lift(tree)


def check_value(data: bytes) -> None:
    """Refuse JSON text that is not a portable value, without changing or re-encoding it.

    Raises:
        InvalidValue: as `decode_value`.
    """
    decode_value(data)


class _Lowering:
    """One walk from a Python value to a tree that a JSON writer reproduces exactly."""

    def __init__(self) -> None:
        self._path: _Path = []
        self._open: set[int] = set()

    def _refusal(self, reason: str) -> InvalidValue:
        return InvalidValue(reason, format_path(self._path))

    def lower(self, value: Any) -> object:
        kind = type(value)
        if value is None or kind is bool:
            return value
        if kind is str:
            return self._text(value)
        if kind is int:
            if not INT_MIN <= value <= INT_MAX:
                raise self._refusal("an integer outside 64 bits; send it as text")
            return value
        if kind is float:
            if not math.isfinite(value):
                raise self._refusal("a float that is not finite (NaN or infinity)")
            return value
        if kind is dict or kind is list or kind is tuple:
            return self._container(value)
        if kind is bytes:
            return {_TAG_BYTES: base64.b64encode(value).decode("ascii")}
        if kind is datetime:
            return {_TAG_DATETIME: self._datetime(value)}
        raise self._refusal(_why_not_portable(value))

    def _container(self, value: Any) -> object:
        if id(value) in self._open:
            raise self._refusal("the value contains itself")
        if len(self._open) >= DEPTH_MAX:
            raise self._refusal(f"nested deeper than {DEPTH_MAX} levels")
        self._open.add(id(value))
        lowered: object = self._map(value) if type(value) is dict else self._items(value)
        self._open.remove(id(value))
        return lowered

    def _items(self, value: list[object]) -> list[object]:
        items: list[object] = []
        for index, item in enumerate(value):
            self._path.append(index)
            items.append(self.lower(item))
            self._path.pop()
        return items

    def _map(self, value: dict[object, object]) -> dict[str, object]:
        members: dict[str, object] = {}
        for key, item in value.items():
            if type(key) is not str:
                raise self._refusal(f"a map key of type {_type_name(key)}; keys are text")
            self._path.append(key)
            members[self._text(key)] = self.lower(item)
            self._path.pop()
        if len(members) == 1 and not _TAGS.isdisjoint(members):
            return {_TAG_MAP: members}
        return members

    def _text(self, value: str) -> str:
        if not value.isascii() and _SURROGATE.search(value):
            raise self._refusal("text with a lone surrogate, which is no Unicode text")
        return value

    def _datetime(self, value: datetime) -> str:
        offset = value.utcoffset()
        if offset is None:
            raise self._refusal("a naive datetime; attach a time zone, so that it names one instant")
        if offset % timedelta(minutes=1):
            raise self._refusal("a datetime whose offset from UTC is not whole minutes; convert it to UTC")
        return value.isoformat()


def _type_name(value: object) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _why_not_portable(value: object) -> str:
    name = _type_name(value)
    for base in (bool, int, float, str, bytes, dict, list, tuple, datetime):
        if isinstance(value, base):
            return f"a {name}, which would come back as a plain {base.__name__}; convert it first"
    return f"a {name} is not a portable value; annotate the function with its type, or convert it first"


class _Members(list[tuple[str, Any]]):
    """An object's members as they stood in the text, duplicates included."""


class _Refused:
    """A literal that the reader could not accept; refused with its path on the walk."""

    __slots__ = ("reason",)

    def __init__(self, reason: str) -> None:
        self.reason = reason


def _read_int(literal: str) -> object:
    if literal == "-0":
        return -0.0
    if len(literal) <= _INT_DIGITS_MAX and INT_MIN <= (value := int(literal)) <= INT_MAX:
        return value
    return _Refused("an integer outside 64 bits; send it as text")


def _read_float(literal: str) -> object:
    value = float(literal)
    if math.isinf(value):
        return _Refused("a number too large for a double")
    if value == 0.0 and any(digit in "123456789" for digit in literal.lower().partition("e")[0]):
        return _Refused("a number too small for a double; it would become zero")
    return value


def _read_constant(literal: str) -> object:
    return _Refused(f"{literal} is not JSON")


_READER = json.JSONDecoder(
    object_pairs_hook=_Members,
    parse_int=_read_int,
    parse_float=_read_float,
    parse_constant=_read_constant,
)


class _Lifting:
    """One walk from the reader's tree to Python values, with the path at hand."""

    def __init__(self) -> None:
        self._path: _Path = []
        self._depth = 0

    def _refusal(self, reason: str) -> InvalidValue:
        return InvalidValue(reason, format_path(self._path))

    def lift(self, node: Any) -> Any:
        kind = type(node)
        if kind is str:
            if not node.isascii() and _SURROGATE.search(node):
                raise self._refusal("text with a lone surrogate, which is no Unicode text")
            return node
        if kind is _Members:
            return self._object(node)
        if kind is list:
            self._enter()
            for index, item in enumerate(node):
                self._path.append(index)
                node[index] = self.lift(item)
                self._path.pop()
            self._depth -= 1
            return node
        if kind is _Refused:
            raise self._refusal(node.reason)
        return node

    def _enter(self) -> None:
        if self._depth >= DEPTH_MAX:
            raise self._refusal(f"nested deeper than {DEPTH_MAX} levels")
        self._depth += 1

    def _object(self, members: _Members) -> Any:
        if len(members) == 1 and members[0][0] in _TAGS:
            return self._tagged(*members[0])
        return self._map(members)

    def _map(self, members: _Members) -> dict[str, Any]:
        self._enter()
        result: dict[str, Any] = {}
        for key, item in members:
            self._path.append(key)
            if key in result:
                raise self._refusal("the member name stands twice")
            self.lift(key)
            result[key] = self.lift(item)
            self._path.pop()
        self._depth -= 1
        return result

    def _tagged(self, tag: str, content: Any) -> Any:
        if tag == _TAG_MAP:
            if type(content) is not _Members:
                raise self._refusal("$map must hold an object")
            return self._map(content)
        if type(content) is not str:
            raise self._refusal(f"{tag} must hold text; a map with that one member is written as $map")
        return self._bytes(content) if tag == _TAG_BYTES else self._datetime(content)

    def _bytes(self, content: str) -> bytes:
        try:
            data = base64.b64decode(content, validate=True)
        except (binascii.Error, ValueError):
            data = b""
        # Unused bits and odd padding decode too; only the canonical text comes back the same.
        if base64.b64encode(data).decode("ascii") != content:
            raise self._refusal("$bytes must hold standard base64 with padding")
        return data

    def _datetime(self, content: str) -> datetime:
        if not _RFC3339.fullmatch(content) or content.endswith("-00:00"):
            raise self._refusal(
                "$datetime must hold an RFC 3339 instant with an offset and at most six fraction digits"
            )
        try:
            return datetime.fromisoformat(content)
        except ValueError:
            raise self._refusal("$datetime holds no date and time that exists") from None
