"""Transactions are strictly serializable: each behaves as if it ran alone, in the order of commits."""

from __future__ import annotations

import asyncio

from store_steps import commits, put, rows_of, value_of

from keyspace.store.api import Store
from keyspace.store.errors import NotCommitted, RetryableError


async def test_a_commit_is_seen_by_every_later_read_version(store: Store, prefix: bytes) -> None:
    version = await put(store, (prefix + b"k", b"1"))
    transaction = store.begin()
    assert await transaction.get(prefix + b"k") == b"1"
    assert await transaction.get_read_version() >= version


async def test_reads_stay_at_their_version(store: Store, prefix: bytes) -> None:
    await put(store, (prefix + b"a", b"1"), (prefix + b"b", b"1"))
    reader = store.begin()
    assert await reader.get(prefix + b"a") == b"1"
    await put(store, (prefix + b"a", b"2"), (prefix + b"b", b"2"), (prefix + b"c", b"2"))
    assert await reader.get(prefix + b"b") == b"1"
    assert await reader.get_range(prefix, prefix + b"\xff", limit=10) == [(prefix + b"a", b"1"), (prefix + b"b", b"1")]


async def test_uncommitted_writes_are_seen_by_nobody(store: Store, prefix: bytes) -> None:
    writer = store.begin()
    writer.set(prefix + b"k", b"1")
    assert await value_of(store, prefix + b"k") is None
    writer.cancel()
    assert await value_of(store, prefix + b"k") is None


async def test_a_lost_update_is_refused(store: Store, prefix: bytes) -> None:
    await put(store, (prefix + b"n", b"0"))
    first, second = store.begin(), store.begin()
    for transaction in (first, second):
        assert await transaction.get(prefix + b"n") == b"0"
        transaction.set(prefix + b"n", b"1")
    assert await commits(first, second) == [None, NotCommitted]


async def test_write_skew_is_refused(store: Store, prefix: bytes) -> None:
    """Each reads what the other writes: either order alone is fine, both together are not."""
    first, second = store.begin(), store.begin()
    assert await first.get(prefix + b"a") is None
    assert await second.get(prefix + b"b") is None
    first.set(prefix + b"b", b"1")
    second.set(prefix + b"a", b"1")
    assert await commits(first, second) == [None, NotCommitted]


async def test_a_phantom_is_refused(store: Store, prefix: bytes) -> None:
    """A key that appears in a range found empty."""
    reader = store.begin()
    assert await reader.get_range(prefix + b"r/", prefix + b"r0", limit=10) == []
    reader.set(prefix + b"out", b"1")
    await put(store, (prefix + b"r/new", b"1"))
    assert await commits(reader) == [NotCommitted]


async def test_a_key_cleared_from_a_range_read_is_a_conflict(store: Store, prefix: bytes) -> None:
    await put(store, (prefix + b"r/1", b"1"), (prefix + b"r/2", b"1"))
    reader = store.begin()
    assert len(await reader.get_range(prefix + b"r/", prefix + b"r0", limit=10)) == 2
    reader.set(prefix + b"out", b"1")
    other = store.begin()
    other.clear(prefix + b"r/2")
    assert await commits(other, reader) == [None, NotCommitted]


async def test_a_cleared_range_conflicts_with_a_read_inside_it(store: Store, prefix: bytes) -> None:
    """Even where it removed nothing: what is compared is the ranges."""
    reader = store.begin()
    assert await reader.get(prefix + b"m") is None
    reader.set(prefix + b"out", b"1")
    other = store.begin()
    other.clear_range(prefix + b"a", prefix + b"z")
    assert await commits(other, reader) == [None, NotCommitted]


async def test_a_cleared_range_conflicts_with_a_range_read_that_overlaps_it(store: Store, prefix: bytes) -> None:
    reader = store.begin()
    assert await reader.get_range(prefix + b"a", prefix + b"m", limit=5) == []
    reader.set(prefix + b"out", b"1")
    other = store.begin()
    other.clear_range(prefix + b"l", prefix + b"z")
    assert await commits(other, reader) == [None, NotCommitted]


async def test_blind_writes_never_conflict(store: Store, prefix: bytes) -> None:
    first, second = store.begin(), store.begin()
    first.set(prefix + b"k", b"1")
    second.set(prefix + b"k", b"2")
    assert await commits(second, first) == [None, None]
    assert await value_of(store, prefix + b"k") == b"1"


async def test_writes_before_the_read_version_do_not_conflict(store: Store, prefix: bytes) -> None:
    await put(store, (prefix + b"k", b"1"))
    transaction = store.begin()
    await transaction.get(prefix + b"k")
    transaction.set(prefix + b"k", b"2")
    assert await commits(transaction) == [None]


async def test_neighbouring_keys_do_not_conflict(store: Store, prefix: bytes) -> None:
    reader = store.begin()
    await reader.get(prefix + b"k")
    reader.set(prefix + b"out", b"1")
    await put(store, (prefix + b"j\xff", b"1"), (prefix + b"k\x00", b"1"))
    assert await commits(reader) == [None]


async def test_a_read_only_transaction_never_conflicts(store: Store, prefix: bytes) -> None:
    reader = store.begin()
    await reader.get(prefix + b"k")
    await put(store, (prefix + b"k", b"1"))
    assert await commits(reader) == [None]
    assert reader.committed_version() == -1


async def test_snapshot_reads_do_not_conflict(store: Store, prefix: bytes) -> None:
    reader = store.begin()
    assert await reader.get(prefix + b"k", snapshot=True) is None
    assert await reader.get_range(prefix, prefix + b"\xff", limit=10, snapshot=True) == []
    reader.set(prefix + b"out", b"1")
    await put(store, (prefix + b"k", b"1"))
    assert await commits(reader) == [None]


async def test_a_read_conflict_key_makes_the_commit_depend_on_it(store: Store, prefix: bytes) -> None:
    reader = store.begin()
    assert await reader.get(prefix + b"k", snapshot=True) is None
    reader.add_read_conflict_key(prefix + b"k")
    reader.set(prefix + b"out", b"1")
    await put(store, (prefix + b"k", b"1"))
    assert await commits(reader) == [NotCommitted]


async def test_a_read_conflict_range_makes_the_commit_depend_on_it(store: Store, prefix: bytes) -> None:
    reader = store.begin()
    await reader.get_read_version()
    reader.add_read_conflict_range(prefix + b"a", prefix + b"m")
    reader.set(prefix + b"out", b"1")
    await put(store, (prefix + b"l", b"1"))
    assert await commits(reader) == [NotCommitted]


async def test_a_read_conflict_on_an_own_write_is_skipped(store: Store, prefix: bytes) -> None:
    writer = store.begin()
    await writer.get_read_version()
    writer.set(prefix + b"k", b"1")
    writer.add_read_conflict_key(prefix + b"k")
    await put(store, (prefix + b"k", b"2"))
    assert await commits(writer) == [None]


async def test_a_write_conflict_key_refuses_later_readers_and_writes_nothing(store: Store, prefix: bytes) -> None:
    reader, marker = store.begin(), store.begin()
    assert await reader.get(prefix + b"k") is None
    reader.set(prefix + b"out", b"1")
    marker.add_write_conflict_key(prefix + b"k")
    assert await commits(marker, reader) == [None, NotCommitted]
    assert await value_of(store, prefix + b"k") is None


async def test_a_marked_transaction_is_not_read_only(store: Store, prefix: bytes) -> None:
    marker = store.begin()
    marker.add_write_conflict_key(prefix + b"k")
    await marker.commit()
    assert marker.committed_version() > 0


async def test_a_refused_commit_leaves_nothing(store: Store, prefix: bytes) -> None:
    loser = store.begin()
    await loser.get(prefix + b"k")
    loser.set(prefix + b"a", b"1")
    loser.add(prefix + b"b", 1)
    loser.clear(prefix + b"k")
    await put(store, (prefix + b"k", b"1"))
    assert await commits(loser) == [NotCommitted]
    assert await rows_of(store, prefix) == [(prefix + b"k", b"1")]


async def test_together_committed_transactions_are_still_ordered(store: Store, prefix: bytes) -> None:
    """Commits that arrive together may share a batch; of those that read and write one key, one may pass."""
    transactions = [store.begin() for _ in range(16)]
    for transaction in transactions:
        await transaction.get(prefix + b"n")
        transaction.set(prefix + b"n", b"1")
    ended = await asyncio.gather(*(transaction.commit() for transaction in transactions), return_exceptions=True)
    assert sum(end is None for end in ended) == 1
    assert all(end is None or isinstance(end, NotCommitted) for end in ended)


async def test_concurrent_increments_lose_nothing(store: Store, prefix: bytes) -> None:
    async def increment() -> None:
        for _ in range(10):
            attempt = 0
            while True:
                transaction = store.begin()
                try:
                    count = int(await transaction.get(prefix + b"n") or b"0")
                    transaction.set(prefix + b"n", b"%d" % (count + 1))
                    await transaction.commit()
                    break
                except RetryableError:
                    attempt += 1
                    assert attempt < 1_000
                    await asyncio.sleep(0)

    await asyncio.gather(*(increment() for _ in range(8)))
    assert await value_of(store, prefix + b"n") == b"80"


async def test_commit_versions_rise(store: Store, prefix: bytes) -> None:
    versions = [await put(store, (prefix + b"k", b"%d" % index)) for index in range(20)]
    assert versions == sorted(set(versions))
