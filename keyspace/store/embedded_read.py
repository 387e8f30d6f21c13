"""Reads of one transaction: its own writes laid over a snapshot, and awaitables that never leave the event loop's turn."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Generic, TypeVar

from keyspace.store.api import KeyRange, KeyValue
from keyspace.store.embedded_ranges import key_after
from keyspace.store.embedded_writes import OwnWrites
from keyspace.store.engine import Snapshot
from keyspace.store.errors import StoreError

__all__ = ["Failed", "Ready", "read_extent", "read_range"]

T = TypeVar("T")

PAGE_ROWS_MIN = 16
"""Stored rows fetched at once where own writes may hide some: fewer would cost a call for each hidden row."""
PAGE_ROWS_MAX = 1_000


class Ready(Generic[T]):
    """An awaitable whose value is already there: awaiting it costs no turn of the event loop."""

    __slots__ = ("_value",)

    def __init__(self, value: T) -> None:
        """Yield `value` when awaited, any number of times."""
        self._value = value

    def __await__(self) -> Generator[None, None, T]:
        return self._value
        yield


class Failed(Generic[T]):
    """An awaitable that raises when awaited and, unlike a future, keeps quiet when nobody does."""

    __slots__ = ("_error",)

    def __init__(self, error: StoreError) -> None:
        """Raise `error` when awaited."""
        self._error = error

    def __await__(self) -> Generator[None, None, T]:
        raise self._error
        yield


def read_range(
    snapshot: Snapshot, writes: OwnWrites, begin: bytes, end: bytes, limit: int, reverse: bool
) -> list[KeyValue]:
    """Return at most `limit` pairs of [begin, end) as the transaction sees them.

    Raises:
        AccessedUnreadable: a key on the way holds a stamp that only the commit knows.
    """
    own_keys = writes.keys_in(begin, end)
    parts = writes.uncleared_in(begin, end)
    if not own_keys and parts == [(begin, end)]:
        return snapshot.get_range(begin, end, limit, reverse)
    page_rows = min(max(limit, PAGE_ROWS_MIN), PAGE_ROWS_MAX)
    stored = _stored_rows(snapshot, parts, page_rows, reverse)
    rows: list[KeyValue] = []
    for row in _merged(stored, writes, own_keys, reverse):
        rows.append(row)
        if len(rows) == limit:
            break
    return rows


def read_extent(begin: bytes, end: bytes, rows: list[KeyValue], limit: int, reverse: bool) -> KeyRange:
    """Return what of [begin, end) a read has looked at: up to its last row when the limit ended it, else everything."""
    if len(rows) < limit:
        return KeyRange(begin, end)
    last = rows[-1][0]
    return KeyRange(last, end) if reverse else KeyRange(begin, key_after(last))


def _stored_rows(snapshot: Snapshot, parts: list[KeyRange], page_rows: int, reverse: bool) -> Iterator[KeyValue]:
    for begin, end in reversed(parts) if reverse else parts:
        while True:
            page = snapshot.get_range(begin, end, page_rows, reverse)
            yield from page
            if len(page) < page_rows:
                break
            if reverse:
                end = page[-1][0]
            else:
                begin = key_after(page[-1][0])


def _merged(stored: Iterator[KeyValue], writes: OwnWrites, own_keys: list[bytes], reverse: bool) -> Iterator[KeyValue]:
    head = next(stored, None)
    for key in reversed(own_keys) if reverse else own_keys:
        while head is not None and (head[0] > key if reverse else head[0] < key):
            yield head
            head = next(stored, None)
        below: bytes | None = None
        if head is not None and head[0] == key:
            below = head[1]
            head = next(stored, None)
        value = writes.value_over(key, below)
        if value is not None:
            yield key, value
    while head is not None:
        yield head
        head = next(stored, None)
