"""Versionstamps: unique, rising in commit order over every connection, unreadable before the commit."""

from __future__ import annotations

import asyncio

import pytest
from store_adapters import Adapter
from store_steps import commits, keys_of, put, refused, rows_of, value_of

from keyspace.store.api import KeyRange, Store
from keyspace.store.errors import AccessedUnreadable, NotCommitted, StoreError, UsageError
from keyspace.store.stamps import STAMP_BYTES, stamp_version

BLANK = b"\x00" * STAMP_BYTES


async def append(store: Store, prefix: bytes, value: bytes) -> bytes:
    """Append to a stamped list and return the stamp."""
    transaction = store.begin()
    transaction.set_versionstamped_key(prefix + BLANK, len(prefix), value)
    stamp = transaction.get_versionstamp()
    await transaction.commit()
    return await stamp


async def test_a_stamped_key_lies_at_the_commits_stamp(store: Store, prefix: bytes) -> None:
    transaction = store.begin()
    transaction.set_versionstamped_key(prefix + BLANK + b"/tail", len(prefix), b"value")
    asked = transaction.get_versionstamp()
    await transaction.commit()
    stamp = await asked
    assert len(stamp) == STAMP_BYTES
    assert stamp_version(stamp) == transaction.committed_version()
    assert await rows_of(store, prefix) == [(prefix + stamp + b"/tail", b"value")]


async def test_a_stamped_value_holds_the_commits_stamp(store: Store, prefix: bytes) -> None:
    transaction = store.begin()
    transaction.set_versionstamped_value(prefix + b"k", b"head" + BLANK + b"tail", 4)
    asked = transaction.get_versionstamp()
    await transaction.commit()
    assert await value_of(store, prefix + b"k") == b"head" + await asked + b"tail"


async def test_one_transactions_stamps_are_one_stamp(store: Store, prefix: bytes) -> None:
    transaction = store.begin()
    transaction.set_versionstamped_key(prefix + b"list/" + BLANK + b"a", len(prefix) + 5, b"")
    transaction.set_versionstamped_key(prefix + b"list/" + BLANK + b"b", len(prefix) + 5, b"")
    transaction.set_versionstamped_value(prefix + b"mine", BLANK, 0)
    asked = transaction.get_versionstamp()
    await transaction.commit()
    stamp = await asked
    assert keys_of(await rows_of(store, prefix + b"list/")) == [prefix + b"list/" + stamp + end for end in (b"a", b"b")]
    assert await value_of(store, prefix + b"mine") == stamp


async def test_stamps_rise_in_commit_order_over_connections(adapter: Adapter, prefix: bytes) -> None:
    stores = [await adapter.open() for _ in range(3)]
    stamps = [await append(stores[index % 3], prefix, b"%02d" % index) for index in range(15)]
    assert stamps == sorted(set(stamps))
    rows = await rows_of(stores[0], prefix)
    assert [value for _, value in rows] == [b"%02d" % index for index in range(15)]


async def test_stamps_of_commits_that_share_a_batch_are_distinct_and_in_order(store: Store, prefix: bytes) -> None:
    """Whole stamps follow the order in which a batch's transactions take effect: the counter's last value is the last's."""
    stamps = await asyncio.gather(*(_append_and_set(store, prefix, index) for index in range(40)))
    assert len(set(stamps)) == 40
    last = max(range(40), key=stamps.__getitem__)
    assert await value_of(store, prefix + b"last") == b"%d" % last
    assert keys_of(await rows_of(store, prefix + b"list/")) == [prefix + b"list/" + stamp for stamp in sorted(stamps)]


async def _append_and_set(store: Store, prefix: bytes, index: int) -> bytes:
    transaction = store.begin()
    transaction.set_versionstamped_key(prefix + b"list/" + BLANK, len(prefix) + 5, b"")
    transaction.set(prefix + b"last", b"%d" % index)
    stamp = transaction.get_versionstamp()
    await transaction.commit()
    return await stamp


async def test_reading_a_stamped_value_back_is_refused(store: Store, prefix: bytes) -> None:
    transaction = store.begin()
    transaction.set_versionstamped_value(prefix + b"k", BLANK, 0)
    with pytest.raises(AccessedUnreadable):
        await transaction.get(prefix + b"k")


async def test_a_range_read_over_a_stamped_value_is_refused(store: Store, prefix: bytes) -> None:
    transaction = store.begin()
    transaction.set_versionstamped_value(prefix + b"k", BLANK, 0)
    with pytest.raises(AccessedUnreadable):
        await transaction.get_range(prefix, prefix + b"\xff", limit=10)


@pytest.mark.parametrize("snapshot", [False, True])
async def test_the_whole_possible_range_of_a_stamped_key_is_unreadable(
    store: Store, prefix: bytes, snapshot: bool
) -> None:
    transaction = store.begin()
    transaction.set_versionstamped_key(prefix + BLANK, len(prefix), b"")
    with pytest.raises(AccessedUnreadable):
        await transaction.get(prefix + b"\x7f" * STAMP_BYTES, snapshot=snapshot)


async def test_a_range_read_over_a_stamped_key_is_refused(store: Store, prefix: bytes) -> None:
    transaction = store.begin()
    transaction.set_versionstamped_key(prefix + BLANK, len(prefix), b"")
    with pytest.raises(AccessedUnreadable):
        await transaction.get_range(prefix, prefix + b"\xff", limit=10)


async def test_keys_outside_the_possible_range_stay_readable(store: Store, prefix: bytes) -> None:
    await put(store, (prefix + b"a", b"1"), (prefix + b"list/", b"2"))
    transaction = store.begin()
    transaction.set_versionstamped_key(prefix + b"list/" + BLANK, len(prefix) + 5, b"")
    assert await transaction.get(prefix + b"a") == b"1"
    assert await transaction.get_range(prefix, prefix + b"list/", limit=10) == [(prefix + b"a", b"1")]


async def test_older_stamps_stay_readable_once_the_read_version_is_known(store: Store, prefix: bytes) -> None:
    """A commit's stamp is not below its read version, so what was stamped before that can still be read by its key."""
    older = await append(store, prefix, b"older")
    await put(store, (prefix + b"between", b""))
    transaction = store.begin()
    await transaction.get_read_version()
    transaction.set_versionstamped_key(prefix + BLANK, len(prefix), b"newer")
    assert await transaction.get(prefix + older) == b"older"


async def test_a_set_over_a_stamped_value_stays_unreadable(store: Store, prefix: bytes) -> None:
    transaction = store.begin()
    transaction.set_versionstamped_value(prefix + b"k", BLANK, 0)
    transaction.set(prefix + b"k", b"plain")
    with pytest.raises(AccessedUnreadable):
        await transaction.get(prefix + b"k")
    other = store.begin()
    other.set_versionstamped_value(prefix + b"k", BLANK, 0)
    other.set(prefix + b"k", b"plain")
    await other.commit()
    assert await value_of(store, prefix + b"k") == b"plain"


async def test_a_clear_of_a_stamped_value_makes_it_readable(store: Store, prefix: bytes) -> None:
    transaction = store.begin()
    transaction.set_versionstamped_value(prefix + b"k", BLANK, 0)
    transaction.clear(prefix + b"k")
    assert await transaction.get(prefix + b"k") is None
    transaction.set(prefix + b"k", b"plain")
    assert await transaction.get(prefix + b"k") == b"plain"
    await transaction.commit()
    assert await value_of(store, prefix + b"k") == b"plain"


async def test_a_clear_of_the_whole_list_takes_the_new_entry_with_it(store: Store, prefix: bytes) -> None:
    transaction = store.begin()
    transaction.set_versionstamped_key(prefix + BLANK, len(prefix), b"gone")
    transaction.clear_range(prefix, prefix + b"\xff")
    await transaction.commit()
    assert await rows_of(store, prefix) == []


async def test_writes_in_the_possible_range_made_before_the_stamp_are_kept(store: Store, prefix: bytes) -> None:
    await put(store, (prefix + b"old", b"1"))
    transaction = store.begin()
    transaction.clear(prefix + b"old")
    transaction.set(prefix + b"kept", b"1")
    transaction.set_versionstamped_key(prefix + BLANK, len(prefix), b"new")
    asked = transaction.get_versionstamp()
    await transaction.commit()
    rows = dict(await rows_of(store, prefix))
    assert rows == {prefix + b"kept": b"1", prefix + await asked: b"new"}


async def test_two_stamped_keys_of_one_template_are_one_key(store: Store, prefix: bytes) -> None:
    transaction = store.begin()
    transaction.set_versionstamped_key(prefix + BLANK, len(prefix), b"first")
    transaction.set_versionstamped_key(prefix + BLANK, len(prefix), b"second")
    await transaction.commit()
    assert [value for _, value in await rows_of(store, prefix)] == [b"second"]


async def test_a_stamped_key_is_a_conflict_for_readers_of_its_range(store: Store, prefix: bytes) -> None:
    reader = store.begin()
    assert await reader.get_range(prefix, prefix + b"\xff", limit=10) == []
    reader.set(prefix + b"\xff/out", b"")
    await append(store, prefix, b"")
    assert await commits(reader) == [NotCommitted]


async def test_stamped_appends_never_conflict_with_each_other(store: Store, prefix: bytes) -> None:
    transactions = [store.begin() for _ in range(5)]
    for transaction in transactions:
        await transaction.get_read_version()
        transaction.set_versionstamped_key(prefix + BLANK, len(prefix), b"")
    assert await commits(*transactions) == [None] * 5
    assert len(await rows_of(store, prefix)) == 5


async def test_a_stamped_keys_conflict_range_is_everywhere_it_may_lie(store: Store, prefix: bytes) -> None:
    transaction = store.begin()
    version = await transaction.get_read_version()
    transaction.set_versionstamped_key(prefix + BLANK + b"t", len(prefix), b"")
    assert await transaction.write_conflict_ranges() == [
        KeyRange(prefix + version.to_bytes(8, "big") + b"\x00\x00t", prefix + b"\xff" * STAMP_BYTES + b"t\x00")
    ]


async def test_a_transaction_that_wrote_nothing_has_no_stamp(store: Store, prefix: bytes) -> None:
    transaction = store.begin()
    await transaction.get(prefix + b"k")
    asked = transaction.get_versionstamp()
    await transaction.commit()
    with pytest.raises(StoreError):
        await asked


async def test_a_transaction_that_failed_has_no_stamp(store: Store, prefix: bytes) -> None:
    transaction = store.begin()
    await transaction.get(prefix + b"k")
    transaction.set(prefix + b"out", b"")
    asked = transaction.get_versionstamp()
    await put(store, (prefix + b"k", b""))
    assert await commits(transaction) == [NotCommitted]
    with pytest.raises(StoreError):
        await asked


@pytest.mark.parametrize("offset", [-1, 1, 20])
async def test_a_stamp_must_lie_inside_its_template(store: Store, prefix: bytes, offset: int) -> None:
    async with refused(UsageError):
        transaction = store.begin()
        transaction.set_versionstamped_value(prefix + b"k", BLANK, offset)
        await transaction.commit()
    assert await value_of(store, prefix + b"k") is None


async def test_a_swallowed_unreadable_read_still_refuses_the_commit(store: Store, prefix: bytes) -> None:
    """As seen on a 7.3 server: the client awaits every read before it commits, and fails with what one of them failed with."""
    transaction = store.begin()
    transaction.set_versionstamped_key(prefix + BLANK, len(prefix), b"")
    with pytest.raises(AccessedUnreadable):
        await transaction.get_range(prefix, prefix + b"\xff", limit=5)
    assert await commits(transaction) == [AccessedUnreadable]
    assert await rows_of(store, prefix) == []
