"""What an attempt conflicts with and what it costs: conflict ranges, FoundationDB's size of it, and counts."""

from __future__ import annotations

from keyspace.store import sizes
from keyspace.store.api import KeyRange
from keyspace.store.embedded_ranges import key_after, merge_ranges
from keyspace.store.embedded_writes import OwnWrites
from keyspace.store.errors import InvertedRange, KeyOutsideLegalRange, KeyTooLarge, UsageError, ValueTooLarge
from keyspace.store.meter import TransactionCounts
from keyspace.store.stamps import STAMP_BYTES

__all__ = ["INVALID_OPERATION_CODE", "Footprint", "check_offset", "check_pair", "check_range"]

INVALID_OPERATION_CODE = 2000
SHOWN_BYTES = 64
"""How much of a key a refusal shows."""


class Footprint:
    """Grows with every operation of one attempt."""

    __slots__ = (
        "marked_keys",
        "read_count",
        "read_keys",
        "read_ranges",
        "size_bytes",
        "stamp_reaches",
        "write_count",
        "write_keys",
        "write_ranges",
    )

    def __init__(self) -> None:
        self.size_bytes = 0
        self.read_count = 0
        self.write_count = 0
        self.read_keys: set[bytes] = set()
        self.read_ranges: list[KeyRange] = []
        self.write_keys: set[bytes] = set()
        self.write_ranges: list[KeyRange] = []
        self.marked_keys: set[bytes] = set()
        """Write conflict keys without a write; they cut what is read later into pieces, as the client charges it."""
        self.stamp_reaches: list[KeyRange] = []
        """Where stamped keys may come to lie; the commit conflicts where they do."""

    def read_key(self, key: bytes) -> None:
        """Depend on one key."""
        self.read_keys.add(key)
        self.size_bytes += sizes.conflict_key_bytes(len(key))

    def read_range(self, read: KeyRange, writes: OwnWrites) -> None:
        """Depend on a range, except where the attempt's own `writes` decide; the client charges each part for the whole."""
        cost = sizes.conflict_range_bytes(len(read.begin), len(read.end))
        for part in [read] if writes.is_empty else writes.foreign_parts(*read):
            self.size_bytes += cost * self._pieces_of(part)
            if part.end == key_after(part.begin):
                self.read_keys.add(part.begin)
            else:
                self.read_ranges.append(part)

    def _pieces_of(self, part: KeyRange) -> int:
        cuts = {cut for key in self.marked_keys for cut in (key, key_after(key)) if part.begin < cut < part.end}
        return 1 + len(cuts)

    def write_key(self, key: bytes, cost: int) -> None:
        """Write one key at a cost in bytes that includes its conflict range."""
        self.write_count += 1
        self.write_keys.add(key)
        self.size_bytes += cost

    def write_range(self, wrote: KeyRange) -> None:
        """Clear a range."""
        self.write_count += 1
        self.size_bytes += sizes.clear_range_bytes(len(wrote.begin), len(wrote.end))
        if wrote.begin < wrote.end:
            self.write_ranges.append(wrote)

    def mark_key(self, key: bytes) -> None:
        """Conflict readers of a key that is not written."""
        self.write_keys.add(key)
        self.marked_keys.add(key)
        self.size_bytes += sizes.conflict_key_bytes(len(key))

    def stamp_key(self, template: bytes, value: bytes, reach: KeyRange) -> None:
        """Write a stamped key somewhere in `reach`."""
        self.write_count += 1
        self.size_bytes += sizes.stamped_key_bytes(len(template), len(value))
        self.stamp_reaches.append(reach)

    def merged_reads(self) -> list[KeyRange]:
        """Return the read conflict ranges."""
        return merge_ranges([*((key, key_after(key)) for key in self.read_keys), *self.read_ranges])

    def merged_writes(self) -> list[KeyRange]:
        """Return the write conflict ranges; a stamped key's is everywhere it may come to lie."""
        keys = ((key, key_after(key)) for key in self.write_keys)
        return merge_ranges([*keys, *self.write_ranges, *self.stamp_reaches])

    def counts(self) -> TransactionCounts:
        """Return what the attempt has asked of the store so far."""
        return TransactionCounts(self.read_count, self.write_count, self.size_bytes)


def check_pair(key: bytes, value: bytes, *, key_extra: int = 0, value_extra: int = 0) -> None:
    """Refuse a pair that can never be stored; `key_extra` and `value_extra` are bytes of the encoding that count too.

    Raises:
        LimitError: the key or the value is too large, or the key is the system's; names the key.
    """
    if key >= sizes.SYSTEM_KEYS_BEGIN:
        raise KeyOutsideLegalRange(f"a key lies in the system's own range key={key[:SHOWN_BYTES]!r}")
    if len(key) + key_extra > sizes.KEY_BYTES_MAX:
        limit = sizes.KEY_BYTES_MAX - key_extra
        raise KeyTooLarge(f"a key exceeds the limit bytes={len(key)} limit={limit} key={key[:SHOWN_BYTES]!r}...")
    if len(value) + value_extra > sizes.VALUE_BYTES_MAX:
        limit = sizes.VALUE_BYTES_MAX - value_extra
        raise ValueTooLarge(f"a value exceeds the limit bytes={len(value)} limit={limit} key={key[:SHOWN_BYTES]!r}")


def check_range(begin: bytes, end: bytes) -> None:
    """Refuse a range that cannot be written or conflicted with.

    Raises:
        InvertedRange: it begins after its end.
        KeyOutsideLegalRange: it reaches into the system's keys.
    """
    if begin > end:
        raise InvertedRange(f"a range begins after its end begin={begin[:SHOWN_BYTES]!r} end={end[:SHOWN_BYTES]!r}")
    if end > sizes.SYSTEM_KEYS_BEGIN:
        raise KeyOutsideLegalRange(f"a range ends in the system's own range end={end[:SHOWN_BYTES]!r}")


def check_offset(template: bytes, offset: int) -> None:
    """Refuse a stamp that does not lie inside its template.

    Raises:
        UsageError: it does not.
    """
    if offset < 0 or offset + STAMP_BYTES > len(template):
        raise UsageError(
            f"a stamp does not fit its place offset={offset} bytes={len(template)}", code=INVALID_OPERATION_CODE
        )
