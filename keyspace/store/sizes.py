"""FoundationDB's hard limits, and its own accounting of a transaction's size.

The formulas are those of the read-your-writes client at API 730, so what fits here fits on a cluster. Keys and values are
counted as encoded. A conflict range costs its two bounds and `RANGE_BYTES`; a single key's range is the key twice and one.

Source: apple/foundationdb release-7.3 fdbclient/ReadYourWrites.actor.cpp (approximateSize), checked on a 7.3.80 server.
"""

from __future__ import annotations

__all__ = [
    "KEY_BYTES_MAX",
    "LIFETIME_MS_MAX",
    "SYSTEM_KEYS_BEGIN",
    "TRANSACTION_BYTES_MAX",
    "VALUE_BYTES_MAX",
    "WATCH_COUNT_MAX",
    "atomic_bytes",
    "clear_key_bytes",
    "clear_range_bytes",
    "conflict_key_bytes",
    "conflict_range_bytes",
    "set_bytes",
    "stamped_key_bytes",
]

KEY_BYTES_MAX = 10_000
VALUE_BYTES_MAX = 100_000
TRANSACTION_BYTES_MAX = 10_000_000
LIFETIME_MS_MAX = 5_000
"""From a transaction's first read to its last read or its commit. Source: documentation/sphinx/source/known-limitations.rst."""
WATCH_COUNT_MAX = 10_000
"""Watches one store connection may hold. Source: documentation/sphinx/source/developer-guide.rst (Watches)."""
SYSTEM_KEYS_BEGIN = b"\xff"

RANGE_BYTES = 24
"""Size of a range's struct on x86-64."""
MUTATION_BYTES = 44
"""Size of a mutation's struct on x86-64."""
SET_BYTES = MUTATION_BYTES + 1 + RANGE_BYTES
"""What a set costs besides its key, three times, and its value."""
OFFSET_BYTES = 4
"""The little-endian offset that a versionstamped key or value carries at its end."""


def conflict_range_bytes(begin_bytes: int, end_bytes: int) -> int:
    """Return what a range in a conflict set costs: a range read, or an explicit range."""
    return begin_bytes + end_bytes + RANGE_BYTES


def conflict_key_bytes(key_bytes: int) -> int:
    """Return what one key in a conflict set costs: a point read, or an explicit key."""
    return 2 * key_bytes + 1 + RANGE_BYTES


def set_bytes(key_bytes: int, value_bytes: int) -> int:
    """Return what writing one pair costs, its write conflict range included."""
    return 3 * key_bytes + value_bytes + SET_BYTES


def atomic_bytes(key_bytes: int, operand_bytes: int) -> int:
    """Return what an atomic operation costs; a versionstamped value is one whose operand ends in its offset."""
    return set_bytes(key_bytes, operand_bytes)


def stamped_key_bytes(key_bytes: int, value_bytes: int) -> int:
    """Return what a versionstamped key costs; `key_bytes` is without the offset, and the conflict range is added later."""
    return key_bytes + OFFSET_BYTES + value_bytes + MUTATION_BYTES


def clear_key_bytes(key_bytes: int) -> int:
    """Return what clearing one key costs."""
    return 2 * conflict_key_bytes(key_bytes)


def clear_range_bytes(begin_bytes: int, end_bytes: int) -> int:
    """Return what clearing a range costs, however much it removes."""
    return begin_bytes + end_bytes + MUTATION_BYTES + conflict_range_bytes(begin_bytes, end_bytes)
