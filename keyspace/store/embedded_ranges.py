"""A set of byte-string ranges, kept sorted, disjoint and merged: cleared ranges and unreadable ranges of one transaction."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from keyspace.store.api import KeyRange

__all__ = ["RangeSet", "key_after", "merge_ranges"]


def key_after(key: bytes) -> bytes:
    """Return the first key that sorts after `key`."""
    return key + b"\x00"


def merge_ranges(ranges: Iterable[tuple[bytes, bytes]]) -> list[KeyRange]:
    """Return the same keys as `ranges` cover, as sorted ranges that neither overlap nor touch."""
    merged: list[KeyRange] = []
    for begin, end in sorted(ranges):
        if merged and begin <= merged[-1].end:
            if end > merged[-1].end:
                merged[-1] = KeyRange(merged[-1].begin, end)
        else:
            merged.append(KeyRange(begin, end))
    return merged


class RangeSet:
    """Disjoint [begin, end) ranges in order; small, so plain lists beat a tree."""

    __slots__ = ("_begins", "_ends")

    def __init__(self) -> None:
        self._begins: list[bytes] = []
        self._ends: list[bytes] = []

    def __bool__(self) -> bool:
        return bool(self._begins)

    def add(self, begin: bytes, end: bytes) -> None:
        """Add [begin, end), merging what it overlaps or touches."""
        first = bisect_left(self._ends, begin)
        last = bisect_right(self._begins, end)
        if first < last:
            begin = min(begin, self._begins[first])
            end = max(end, self._ends[last - 1])
        self._begins[first:last] = [begin]
        self._ends[first:last] = [end]

    def subtract(self, begin: bytes, end: bytes) -> None:
        """Remove [begin, end), splitting what it cuts."""
        first = bisect_right(self._ends, begin)
        last = bisect_left(self._begins, end)
        if first >= last:
            return
        begins: list[bytes] = []
        ends: list[bytes] = []
        if self._begins[first] < begin:
            begins.append(self._begins[first])
            ends.append(begin)
        if self._ends[last - 1] > end:
            begins.append(end)
            ends.append(self._ends[last - 1])
        self._begins[first:last] = begins
        self._ends[first:last] = ends

    def contains(self, key: bytes) -> bool:
        """Return whether `key` lies in one of the ranges."""
        index = bisect_right(self._begins, key) - 1
        return index >= 0 and key < self._ends[index]

    def intersect(self, begin: bytes, end: bytes) -> list[KeyRange]:
        """Return the parts of the set inside [begin, end), in order."""
        first = bisect_right(self._ends, begin)
        last = bisect_left(self._begins, end)
        return [KeyRange(max(begin, self._begins[index]), min(end, self._ends[index])) for index in range(first, last)]

    def overlaps(self, begin: bytes, end: bytes) -> bool:
        """Return whether any key of [begin, end) lies in the set."""
        return bisect_right(self._ends, begin) < bisect_left(self._begins, end)
