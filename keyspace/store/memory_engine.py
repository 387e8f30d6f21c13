"""The in-memory engine: a multi-version ordered map for fast, deterministic tests and simulation.

Several stores may share one `MemoryEngine`, as processes share a file; a store made anew on it is a process that restarted.
It has no threads and no locks: everything happens in the caller, so all its stores must be on one event loop.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable
from typing import Protocol, cast
from weakref import WeakValueDictionary

from sortedcontainers import SortedDict, SortedList

from keyspace.store.api import KeyRange, KeyValue

__all__ = ["ChangeListener", "MemoryEngine"]


class ChangeListener(Protocol):
    """Whoever watches keys on this engine."""

    def notify(self, buckets: Iterable[int], ranges: Iterable[KeyRange]) -> None:
        """Hear that something was written in these buckets of keys and in these ranges."""
        ...


class _Row:
    """A key's values by ascending sequence; None says absent from there on."""

    __slots__ = ("sequences", "values")

    def __init__(self) -> None:
        self.sequences: list[int] = []
        self.values: list[bytes | None] = []

    def at(self, sequence: int) -> bytes | None:
        for index in range(len(self.sequences) - 1, -1, -1):
            if self.sequences[index] <= sequence:
                return self.values[index]
        return None


class _MemoryView:
    """Reads at one sequence; the base of snapshots and of the open write."""

    def __init__(self, engine: MemoryEngine, sequence: int) -> None:
        self._engine = engine
        self._sequence = sequence

    def get(self, key: bytes) -> bytes | None:
        row = self._engine.rows.get(key)
        return None if row is None else cast(_Row, row).at(self._sequence)

    def get_range(self, begin: bytes, end: bytes, limit: int, reverse: bool) -> list[KeyValue]:
        found: list[KeyValue] = []
        rows = self._engine.rows
        for key in rows.irange(begin, end, inclusive=(True, False), reverse=reverse):
            value = rows[key].at(self._sequence)
            if value is not None:
                found.append((key, value))
                if len(found) == limit:
                    break
        return found


class _MemorySnapshot(_MemoryView):
    def __init__(self, engine: MemoryEngine, sequence: int) -> None:
        super().__init__(engine, sequence)
        self._is_open = True
        engine.pinned.add(sequence)

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._engine.pinned.remove(self._sequence)


class _MemoryWrite(_MemoryView):
    """Writes in place at the next sequence, which nobody can read before `commit` publishes it."""

    def __init__(self, engine: MemoryEngine) -> None:
        super().__init__(engine, engine.sequence + 1)
        self._is_open = True
        self._touched: set[bytes] = set()

    def put(self, key: bytes, value: bytes) -> None:
        self._write(key, value)

    def delete(self, key: bytes) -> None:
        if key in self._engine.rows:
            self._write(key, None)

    def delete_range(self, begin: bytes, end: bytes) -> None:
        for key in list(self._engine.rows.irange(begin, end, inclusive=(True, False))):
            self._write(key, None)

    def commit(self) -> bool:
        self._is_open = False
        self._engine.publish(self._sequence, self._touched)
        return True

    def abort(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        for key in self._touched:
            row = self._engine.rows[key]
            row.sequences.pop()
            row.values.pop()
            if not row.sequences:
                del self._engine.rows[key]
        self._engine.is_writing = False

    def _write(self, key: bytes, value: bytes | None) -> None:
        row = self._engine.rows.get(key)
        if row is None:
            row = self._engine.rows[key] = _Row()
        if key in self._touched:
            row.values[-1] = value
            return
        self._touched.add(key)
        row.sequences.append(self._sequence)
        row.values.append(value)


class MemoryEngine:
    """The map itself, kept while any store or test holds it."""

    def __init__(self) -> None:
        self.rows: SortedDict = SortedDict()
        self.sequence = 0
        self.pinned: SortedList = SortedList()
        self.is_writing = False
        # Weak, so that a store that is dropped without being closed is gone as a killed process would be.
        self._listeners: WeakValueDictionary[int, ChangeListener] = WeakValueDictionary()
        self._listener_ids = itertools.count()
        # Rows with values that only older snapshots can see, by the sequence that superseded them.
        self._stale: deque[tuple[int, bytes]] = deque()

    @property
    def name(self) -> str:
        """Return `memory`."""
        return "memory"

    def snapshot(self) -> _MemorySnapshot:
        """Return a view of what has been committed so far."""
        return _MemorySnapshot(self, self.sequence)

    def write(self) -> _MemoryWrite:
        """Begin the write; a second one while the first is open is a defect, since nothing here ever waits."""
        assert not self.is_writing, "the memory engine is used by one thread and its writes never wait"
        self.is_writing = True
        return _MemoryWrite(self)

    def listen(self, listener: ChangeListener) -> None:
        """Tell `listener` of every change while it lives."""
        self._listeners[next(self._listener_ids)] = listener

    def tell(self, buckets: list[int], ranges: list[KeyRange]) -> None:
        """Tell every listener, in the order they came, what was written."""
        for listener in list(self._listeners.values()):
            listener.notify(buckets, ranges)

    def publish(self, sequence: int, touched: set[bytes]) -> None:
        """Make `sequence` the newest, and drop values that no snapshot can see any more."""
        self.sequence = sequence
        self.is_writing = False
        for key in touched:
            row = self.rows[key]
            if len(row.sequences) > 1 or row.values[-1] is None:
                self._stale.append((sequence, key))
        self._prune()

    def _prune(self) -> None:
        oldest = self.pinned[0] if self.pinned else self.sequence
        while self._stale and self._stale[0][0] <= oldest:
            _, key = self._stale.popleft()
            row = self.rows.get(key)
            if row is None:
                continue
            while len(row.sequences) > 1 and row.sequences[1] <= oldest:
                del row.sequences[0], row.values[0]
            if len(row.sequences) == 1 and row.values[0] is None and row.sequences[0] <= oldest:
                del self.rows[key]

    def sync(self) -> None:
        """Do nothing: what is committed stays as long as the engine does."""

    def release_dead_readers(self) -> int:
        """Return 0: a reader here is an object, and dies with its holder."""
        return 0

    def close(self) -> None:
        """Do nothing: the map outlives its stores, as a file outlives its processes."""
