"""Which keys recent commits wrote, so that a commit can tell whether what it read has changed.

Each group of commits appends one row to the engine: its version and its write conflict ranges. Every process tails those
rows into a `ConflictLog` of its own before it decides, so it sees the commits of all. Rows older than `RETAINED_VERSIONS`
go; the greatest version gone is the floor, below which a transaction with reads is too old to be judged.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Iterable

from keyspace.store.api import KeyRange
from keyspace.store.sizes import LIFETIME_MS_MAX

__all__ = ["RETAINED_VERSIONS", "VERSIONS_PER_MS", "ConflictLog", "Written", "decode_written", "encode_written"]

VERSIONS_PER_MS = 1_000
"""How fast commit versions rise, as on a cluster: about a million a second."""
RETAINED_VERSIONS = (LIFETIME_MS_MAX + 1_000) * VERSIONS_PER_MS
"""Just over a transaction's lifetime, so that the lifetime ends a transaction before the log forgets."""

_COUNT = struct.Struct(">I")
_LENGTH = struct.Struct(">H")


class Written:
    """The write conflict ranges of one commit version: single keys apart, because nearly all are."""

    __slots__ = ("keys", "ranges")

    def __init__(self, keys: list[bytes], ranges: list[KeyRange]) -> None:
        self.keys = keys
        """Sorted."""
        self.ranges = ranges

    def touches(self, begin: bytes, end: bytes) -> bool:
        """Return whether any key of [begin, end) was written."""
        at = bisect_left(self.keys, begin)
        if at < len(self.keys) and self.keys[at] < end:
            return True
        return any(wrote.begin < end and begin < wrote.end for wrote in self.ranges)


def encode_written(written: Written) -> bytes:
    """Return the log row's value: the number of keys, then keys and the bounds of ranges, each behind its length."""
    parts = [_COUNT.pack(len(written.keys))]
    for part in written.keys:
        parts += (_LENGTH.pack(len(part)), part)
    for bounds in written.ranges:
        for part in bounds:
            parts += (_LENGTH.pack(len(part)), part)
    return b"".join(parts)


def decode_written(packed: bytes) -> Written:
    """Return what `encode_written` packed."""
    (key_count,) = _COUNT.unpack_from(packed)
    parts: list[bytes] = []
    at = _COUNT.size
    while at < len(packed):
        (length,) = _LENGTH.unpack_from(packed, at)
        at += _LENGTH.size
        parts.append(packed[at : at + length])
        at += length
    bounds = parts[key_count:]
    return Written(parts[:key_count], [KeyRange(*pair) for pair in zip(bounds[::2], bounds[1::2], strict=True)])


class ConflictLog:
    """The commits after `floor` up to `version`, in memory."""

    def __init__(self, floor: int) -> None:
        """Start empty at commit version `floor`: what reads at it or later can be judged."""
        self.floor = floor
        self.version = floor
        self._commits: deque[tuple[int, Written]] = deque()
        self._ranged: deque[tuple[int, KeyRange]] = deque()
        self._last_version: dict[bytes, int] = {}

    def append(self, version: int, written: Written) -> None:
        """Add a commit; versions only rise (a group adds several commits at one version)."""
        assert version >= self.version, (version, self.version)
        self.version = version
        self._commits.append((version, written))
        # One call in C for all keys, instead of a step of the interpreter for each.
        self._last_version.update(dict.fromkeys(written.keys, version))
        for wrote in written.ranges:
            self._ranged.append((version, wrote))

    def has_conflict(self, read_version: int, keys: Collection[bytes], ranges: Iterable[KeyRange]) -> bool:
        """Return whether any of the read `keys` and `ranges` was written after `read_version`."""
        if read_version >= self.version:
            return False
        last_version = self._last_version
        for key in keys:
            if last_version.get(key, 0) > read_version:
                return True
        for begin, end in self._ranged_after(read_version):
            if any(begin <= key < end for key in keys):
                return True
        return any(self._is_range_written(read_version, read) for read in ranges)

    def drop_up_to(self, version: int) -> None:
        """Forget commits up to `version` and raise the floor to it."""
        if version <= self.floor:
            return
        self.floor = version
        self.version = max(self.version, version)
        while self._commits and self._commits[0][0] <= version:
            dropped, written = self._commits.popleft()
            for key in written.keys:
                if self._last_version.get(key) == dropped:
                    del self._last_version[key]
        while self._ranged and self._ranged[0][0] <= version:
            self._ranged.popleft()

    def _ranged_after(self, read_version: int) -> list[KeyRange]:
        found: list[KeyRange] = []
        for version, wrote in reversed(self._ranged):
            if version <= read_version:
                break
            found.append(wrote)
        return found

    def _is_range_written(self, read_version: int, read: KeyRange) -> bool:
        # Most transactions are a few commits old, so walking back beats an index over all keys that each commit must feed.
        for version, written in reversed(self._commits):
            if version <= read_version:
                return False
            if written.touches(*read):
                return True
        return False
