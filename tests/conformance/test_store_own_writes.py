"""A transaction reads its own writes, laid over what is stored."""

from __future__ import annotations

import struct

import pytest
from store_steps import commits, keys_of, put, rows_of, value_of

from keyspace.store.api import KeyRange, Store


async def test_point_reads_see_own_sets_and_clears(store: Store, prefix: bytes) -> None:
    await put(store, (prefix + b"a", b"old"), (prefix + b"b", b"old"))
    transaction = store.begin()
    transaction.set(prefix + b"a", b"new")
    transaction.clear(prefix + b"b")
    transaction.set(prefix + b"c", b"new")
    assert await transaction.get(prefix + b"a") == b"new"
    assert await transaction.get(prefix + b"b") is None
    assert await transaction.get(prefix + b"c") == b"new"


async def test_the_last_write_counts(store: Store, prefix: bytes) -> None:
    key = prefix + b"k"
    transaction = store.begin()
    transaction.set(key, b"1")
    transaction.clear(key)
    assert await transaction.get(key) is None
    transaction.set(key, b"2")
    transaction.clear_range(prefix, prefix + b"\xff")
    assert await transaction.get(key) is None
    transaction.set(key, b"3")
    await transaction.commit()
    assert await rows_of(store, prefix) == [(key, b"3")]


async def test_snapshot_reads_see_own_writes(store: Store, prefix: bytes) -> None:
    transaction = store.begin()
    transaction.set(prefix + b"k", b"1")
    assert await transaction.get(prefix + b"k", snapshot=True) == b"1"
    assert await transaction.get_range(prefix, prefix + b"\xff", limit=5, snapshot=True) == [(prefix + b"k", b"1")]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("limit", [1, 2, 3, 4, 100])
async def test_range_reads_merge_own_writes(store: Store, prefix: bytes, reverse: bool, limit: int) -> None:
    await put(store, *((prefix + b"%02d" % index, b"old") for index in range(0, 20, 2)))
    transaction = store.begin()
    transaction.set(prefix + b"03", b"new")
    transaction.set(prefix + b"04", b"new")
    transaction.clear(prefix + b"06")
    transaction.clear_range(prefix + b"08", prefix + b"14")
    transaction.set(prefix + b"10", b"new")
    transaction.add(prefix + b"19", 1)
    expected = [
        (prefix + b"00", b"old"),
        (prefix + b"02", b"old"),
        (prefix + b"03", b"new"),
        (prefix + b"04", b"new"),
        (prefix + b"10", b"new"),
        (prefix + b"14", b"old"),
        (prefix + b"16", b"old"),
        (prefix + b"18", b"old"),
        (prefix + b"19", struct.pack("<q", 1)),
    ]
    wanted = (expected[::-1] if reverse else expected)[:limit]
    assert await transaction.get_range(prefix, prefix + b"\xff", limit=limit, reverse=reverse) == wanted
    await transaction.commit()
    assert await rows_of(store, prefix) == expected


@pytest.mark.parametrize("reverse", [False, True])
async def test_a_limit_is_reached_behind_many_cleared_rows(store: Store, prefix: bytes, reverse: bool) -> None:
    """Rows that own clears hide must not use up the limit."""
    await put(store, *((prefix + b"%04d" % index, b"") for index in range(300)))
    transaction = store.begin()
    for index in range(10, 290):
        transaction.clear(prefix + b"%04d" % index)
    rows = await transaction.get_range(prefix, prefix + b"\xff", limit=15, reverse=reverse)
    kept = [*range(10), *range(290, 300)]
    wanted = (kept[::-1] if reverse else kept)[:15]
    assert keys_of(rows) == [prefix + b"%04d" % index for index in wanted]


async def test_reading_what_was_written_here_adds_no_conflict(store: Store, prefix: bytes) -> None:
    transaction = store.begin()
    await transaction.get_read_version()
    transaction.set(prefix + b"a", b"1")
    transaction.clear(prefix + b"b")
    transaction.clear_range(prefix + b"c", prefix + b"f")
    assert await transaction.get(prefix + b"a") == b"1"
    assert await transaction.get(prefix + b"b") is None
    assert await transaction.get_range(prefix + b"c", prefix + b"f", limit=5) == []
    assert await transaction.read_conflict_ranges() == []
    await put(store, (prefix + b"a", b"2"), (prefix + b"b", b"2"), (prefix + b"d", b"2"))
    assert await commits(transaction) == [None]


async def test_a_range_read_conflicts_only_around_own_writes(store: Store, prefix: bytes) -> None:
    transaction = store.begin()
    transaction.set(prefix + b"b", b"1")
    transaction.clear_range(prefix + b"d", prefix + b"f")
    await transaction.get_range(prefix + b"a", prefix + b"h", limit=10)
    assert await transaction.read_conflict_ranges() == [
        KeyRange(prefix + b"a", prefix + b"b"),
        KeyRange(prefix + b"b\x00", prefix + b"d"),
        KeyRange(prefix + b"f", prefix + b"h"),
    ]


async def test_writes_come_out_as_their_conflict_ranges(store: Store, prefix: bytes) -> None:
    transaction = store.begin()
    transaction.set(prefix + b"a", b"1")
    transaction.add(prefix + b"b", 1)
    transaction.clear(prefix + b"c")
    transaction.clear_range(prefix + b"d", prefix + b"f")
    transaction.add_write_conflict_key(prefix + b"g")
    assert await transaction.write_conflict_ranges() == [
        KeyRange(prefix + b"a", prefix + b"a\x00"),
        KeyRange(prefix + b"b", prefix + b"b\x00"),
        KeyRange(prefix + b"c", prefix + b"c\x00"),
        KeyRange(prefix + b"d", prefix + b"f"),
        KeyRange(prefix + b"g", prefix + b"g\x00"),
    ]


async def test_own_writes_do_not_leak_into_the_next_attempt(store: Store, prefix: bytes) -> None:
    transaction = store.begin()
    transaction.set(prefix + b"k", b"1")
    transaction.cancel()
    assert await value_of(store, prefix + b"k") is None
