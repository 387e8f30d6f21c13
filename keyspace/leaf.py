"""How a key of the tree is described: element types, leaves, keys and ranges. `layout` declares the tree with these.

A leaf knows the shape of its keys and what its values decode to. `at` builds one key, `span` the range below a partial
tuple, `parse` turns a stored key back into its elements. Keys here are logical: the physical prefix of a deployment is
added by `Tx`, the one place where keys meet the store.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from keyspace.store.api import KeyRange
from keyspace.tuple_layer import (
    COMMIT_STAMP_BYTES,
    STAMP_BYTES,
    Element,
    pack_bytes,
    pack_int,
    pack_stamp,
    pack_str,
    range_of,
    unpack,
)

__all__ = ["Codec", "ElementType", "Id", "Int", "Key", "Leaf", "Name", "Stamp", "Text"]

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
PREFIX_CACHE_ITEMS = 8_192
ELEMENT_CACHE_ITEMS = 8_192
KEY_CACHE_ITEMS = 4_096
"""Keys that each leaf that keeps them remembers: enough for those of some hundred runs under way in one process."""
ID_BYTES = 16


class Codec(Protocol[R]):
    """Turns a leaf's values into records and back."""

    @property
    def label(self) -> str:
        """What the key table calls the value."""
        ...

    def encode(self, record: R) -> bytes:
        """Return the stored bytes of `record`."""
        ...

    def decode(self, data: bytes) -> R:
        """Return the record in `data`."""
        ...


@dataclass(frozen=True, slots=True)
class ElementType:
    """One typed position of a key."""

    label: str
    pack: Callable[[Any], bytes]
    restore: Callable[[Element], Any]
    """Returns the element as transitions know it; raises ValueError for one of another type."""


# Names, ids and numbers recur in key after key, and looking a packed one up costs a fraction of packing it.
_pack_name = lru_cache(maxsize=ELEMENT_CACHE_ITEMS)(pack_str)
_pack_number = lru_cache(maxsize=ELEMENT_CACHE_ITEMS)(pack_int)


@lru_cache(maxsize=ELEMENT_CACHE_ITEMS)
def _pack_id(value: str) -> bytes:
    return pack_bytes(bytes.fromhex(value))


def _restore_str(value: Element) -> str:
    if not isinstance(value, str):
        raise ValueError("not a text")
    return value


def _restore_int(value: Element) -> int:
    if not isinstance(value, int):
        raise ValueError("not an integer")
    return value


def _restore_id(value: Element) -> str:
    if not isinstance(value, bytes) or len(value) != ID_BYTES:
        raise ValueError("not an id")
    return value.hex()


def _restore_stamp(value: Element) -> bytes:
    if not isinstance(value, bytes) or len(value) != STAMP_BYTES:
        raise ValueError("not a versionstamp")
    return value


Name = ElementType("name", _pack_name, _restore_str)
"""A caller's name: workspace, application, function, event, binding, step id."""
Text = ElementType("text", _pack_name, _restore_str)
"""A word of our own."""
Int = ElementType("int", _pack_number, _restore_int)
Id = ElementType("id", _pack_id, _restore_id)
"""Sixteen bytes; 32 hexadecimal digits outside the key."""
Stamp = ElementType("stamp", pack_stamp, _restore_stamp)
"""A commit versionstamp of ten bytes and two that order entries inside one transaction."""


class Key(msgspec.Struct, Generic[R_co], frozen=True, gc=False):
    """One logical key and how its value decodes."""

    leaf: Leaf[Any]
    data: bytes


@lru_cache(maxsize=PREFIX_CACHE_ITEMS)
def _head(leaf: Leaf[Any], values: tuple[Any, ...]) -> bytes:
    return leaf.pack(values)


_Plan = tuple[tuple[Callable[[Any], bytes], bytes], ...]


def _plan_of(shape: tuple[int | ElementType, ...]) -> tuple[bytes, _Plan]:
    """Return the packed constants before the first element, and for each element how it packs and what follows it."""
    lead = b""
    plan: list[tuple[Callable[[Any], bytes], bytes]] = []
    for part in shape:
        if isinstance(part, ElementType):
            plan.append((part.pack, b""))
        elif plan:
            pack, following = plan[-1]
            plan[-1] = (pack, following + pack_int(part))
        else:
            lead += pack_int(part)
    return lead, tuple(plan)


def _joined(packed: bytes, plan: _Plan, values: tuple[Any, ...]) -> bytes:
    """Return `packed` and what follows it for `values`, as far as they go."""
    for (pack, following), value in zip(plan, values):  # noqa: B905 - saying strict=False costs as much as packing a number
        packed += pack(value) + following if following else pack(value)
    return packed


class Leaf(Generic[R]):
    """One kind of key: constants (ints) and typed elements in order.

    The first `cached` elements are packed once and kept, because a transaction builds many keys of one run. Whole keys
    are kept for the leaves whose keys a run's transactions name again and again: more than half of all keys built.
    """

    __slots__ = (
        "_lead",
        "_plan",
        "_rest",
        "at",
        "cached",
        "codec",
        "fixed",
        "name",
        "note",
        "readers",
        "shape",
        "writers",
    )

    at: Callable[..., Key[R]]
    """Returns the key of this leaf with exactly these elements."""

    def __init__(
        self,
        name: str,
        *shape: int | ElementType,
        codec: Codec[R],
        writers: str,
        readers: str,
        note: str = "",
        cached: int = 0,
        keeps: bool = False,
    ) -> None:
        """Declare a leaf.

        Args:
            name: upper-case name, as in the key table.
            shape: the tuple's elements; an int stands for itself.
            codec: how values decode.
            writers: who writes it, for the key table.
            readers: who reads it, for the key table.
            note: what else the table should say.
            cached: how many leading typed elements share a cached packed prefix.
            keeps: whether the last few thousand whole keys are kept: for keys that are named several times.
        """
        self.name = name
        self.shape = shape
        self.codec = codec
        self.writers = writers
        self.readers = readers
        self.note = note
        self.cached = cached
        self.fixed = sum(1 for part in shape if isinstance(part, ElementType))
        self._lead, self._plan = _plan_of(shape)
        self._rest = self._plan[cached:]
        # The cache itself is the attribute, so that a key that is there costs no call of a Python function.
        self.at = lru_cache(maxsize=KEY_CACHE_ITEMS)(self._key) if keeps else self._key

    def pack(self, values: tuple[Any, ...]) -> bytes:
        """Return the packed leading elements for `values`, with the constants that follow each of them."""
        return _joined(self._lead, self._plan, values)

    def _tail(self, values: tuple[Any, ...]) -> bytes:
        cached = self.cached
        if not cached:
            return _joined(self._lead, self._plan, values)
        return _joined(_head(self, values[:cached]), self._rest, values[cached:])

    def _key(self, *values: Any) -> Key[R]:
        assert len(values) == self.fixed, f"{self.name} takes {self.fixed} elements"
        return Key(self, self._tail(values))

    def span(self, *values: Any) -> KeyRange:
        """Return the range of every key whose leading elements are `values`."""
        return range_of(self._tail(values) if len(values) >= self.cached else self.pack(values))

    def stamped(self, *values: Any, order: int = 0) -> tuple[bytes, int]:
        """Return a key with a placeholder for its stamp, and the stamp's offset.

        Args:
            values: the elements before the stamp, which is the last.
            order: the entry's place inside the transaction, 0 to 65,535.
        """
        prefix = self.pack(values)
        return prefix + b"\x33" + bytes(COMMIT_STAMP_BYTES) + order.to_bytes(2, "big"), len(prefix) + 1

    def parse(self, data: bytes) -> tuple[Any, ...]:
        """Return the typed elements of a stored key.

        Raises:
            ValueError: `data` is not a key of this leaf.
        """
        return self.restore(unpack(data))

    def restore(self, elements: tuple[Element, ...]) -> tuple[Any, ...]:
        """Return the typed elements of an unpacked key.

        Raises:
            ValueError: they are not those of a key of this leaf.
        """
        if len(elements) != len(self.shape):
            raise ValueError(f"not a key of {self.name}")
        values = []
        for part, value in zip(self.shape, elements, strict=True):
            if isinstance(part, ElementType):
                values.append(part.restore(value))
            elif part != value:
                raise ValueError(f"not a key of {self.name}")
        return tuple(values)
