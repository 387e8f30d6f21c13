"""Watches: armed by the commit, fired by a change from anywhere, never silent after one."""

from __future__ import annotations

import asyncio

import pytest
from store_adapters import Adapter
from store_steps import DEADLINE_S, clear, commits, fires, put, refused, value_of

from keyspace.store.api import Store, Watch
from keyspace.store.errors import NotCommitted, StoreError, TooManyWatches
from keyspace.store.sizes import WATCH_COUNT_MAX


async def watch(store: Store, key: bytes) -> Watch:
    """Set a watch in a transaction of its own."""
    transaction = store.begin()
    made = transaction.watch(key)
    await transaction.commit()
    return made


async def is_silent(store: Store, key: bytes, made: Watch) -> bool:
    """Return whether `made` has not fired although what would have fired it earlier has been delivered.

    Another watch, set after it on a key of its own, is changed and fires: what was told before it has then arrived.
    """
    waiting = asyncio.ensure_future(made.wait())
    fence = await watch(store, key + b"/fence")
    await put(store, (key + b"/fence", b"now"))
    await fires(fence)
    silent = not waiting.done()
    waiting.cancel()
    return silent


@pytest.mark.parametrize("before", [None, b"1"])
async def test_a_change_fires_it(store: Store, prefix: bytes, before: bytes | None) -> None:
    if before is not None:
        await put(store, (prefix + b"k", before))
    made = await watch(store, prefix + b"k")
    await put(store, (prefix + b"k", b"2"))
    await fires(made)


async def test_a_clear_fires_it(store: Store, prefix: bytes) -> None:
    await put(store, (prefix + b"k", b"1"), (prefix + b"m", b"1"))
    by_key, by_range = await watch(store, prefix + b"k"), await watch(store, prefix + b"m")
    await clear(store, prefix + b"k")
    await fires(by_key)
    transaction = store.begin()
    transaction.clear_range(prefix + b"l", prefix + b"n")
    await transaction.commit()
    await fires(by_range)


async def test_an_atomic_operation_fires_it(store: Store, prefix: bytes) -> None:
    made = await watch(store, prefix + b"bell")
    transaction = store.begin()
    transaction.add(prefix + b"bell", 1)
    await transaction.commit()
    await fires(made)


async def test_a_stamped_value_fires_it(store: Store, prefix: bytes) -> None:
    made = await watch(store, prefix + b"k")
    transaction = store.begin()
    transaction.set_versionstamped_value(prefix + b"k", bytes(10), 0)
    await transaction.commit()
    await fires(made)


async def test_changes_elsewhere_do_not(store: Store, prefix: bytes) -> None:
    made = await watch(store, prefix + b"k")
    await put(store, (prefix + b"j", b"1"), (prefix + b"k\x00", b"1"))
    assert await is_silent(store, prefix + b"k", made)
    made.cancel()


async def test_it_is_not_live_before_its_transaction_commits(store: Store, prefix: bytes) -> None:
    """A change between the read version and the commit is not missed either: it fires when it becomes live."""
    transaction = store.begin()
    made = transaction.watch(prefix + b"k")
    waiting = asyncio.ensure_future(made.wait())
    await put(store, (prefix + b"k", b"1"))
    await put(store, (prefix + b"other", b"1"))
    assert await commits(transaction) == [None]
    await asyncio.wait_for(waiting, DEADLINE_S)


async def test_it_starts_from_what_its_own_transaction_leaves(store: Store, prefix: bytes) -> None:
    transaction = store.begin()
    transaction.set(prefix + b"k", b"mine")
    made = transaction.watch(prefix + b"k")
    await transaction.commit()
    assert await is_silent(store, prefix + b"k", made)
    await put(store, (prefix + b"k", b"other"))
    await fires(made)


async def test_it_fails_with_its_transaction(store: Store, prefix: bytes) -> None:
    transaction = store.begin()
    made = transaction.watch(prefix + b"k")
    await transaction.get(prefix + b"r")
    transaction.set(prefix + b"out", b"")
    await put(store, (prefix + b"r", b"1"))
    assert await commits(transaction) == [NotCommitted]
    with pytest.raises(StoreError):
        await fires(made)


async def test_it_ends_with_a_cancelled_transaction(store: Store, prefix: bytes) -> None:
    transaction = store.begin()
    made = transaction.watch(prefix + b"k")
    transaction.cancel()
    with pytest.raises(StoreError):
        await fires(made)


async def test_cancelling_it_is_final(store: Store, prefix: bytes) -> None:
    made = await watch(store, prefix + b"k")
    made.cancel()
    made.cancel()
    with pytest.raises(StoreError):
        await fires(made)


async def test_many_watches_on_one_key_all_fire(store: Store, prefix: bytes) -> None:
    made = [await watch(store, prefix + b"k") for _ in range(20)]
    await put(store, (prefix + b"k", b"1"))
    await asyncio.gather(*(fires(each) for each in made))


async def test_a_fired_watch_answers_again(store: Store, prefix: bytes) -> None:
    made = await watch(store, prefix + b"k")
    await put(store, (prefix + b"k", b"1"))
    await fires(made)
    await fires(made)


async def test_another_connections_commit_fires_it(adapter: Adapter, prefix: bytes) -> None:
    mine, other = await adapter.open(), await adapter.open()
    for index in range(20):
        made = await watch(mine, prefix + b"k")
        await put(other, (prefix + b"k", b"%d" % index))
        await fires(made)


async def test_a_watch_reads_its_key(store: Store, prefix: bytes) -> None:
    """As on a cluster, setting a watch conflicts with a change of the key before the commit."""
    transaction = store.begin()
    made = transaction.watch(prefix + b"k")
    transaction.set(prefix + b"out", b"")
    # The read of the watch may be under way on a cluster; another read of the key ends after it.
    await transaction.get(prefix + b"k", snapshot=True)
    await put(store, (prefix + b"k", b"1"))
    assert await commits(transaction) == [NotCommitted]
    made.cancel()


async def test_a_connection_holds_a_bounded_number(store: Store, prefix: bytes) -> None:
    transaction = store.begin()
    made = [transaction.watch(prefix + b"%05d" % index) for index in range(WATCH_COUNT_MAX)]
    await transaction.commit()
    async with refused(TooManyWatches):
        one_more = store.begin()
        extra = one_more.watch(prefix + b"more")
        await one_more.commit()
        await fires(extra)
    for each in made:
        each.cancel()
    freed = await watch(store, prefix + b"more")
    await put(store, (prefix + b"more", b"1"))
    await fires(freed)
    assert await value_of(store, prefix + b"more") == b"1"


async def test_closing_the_store_ends_its_watches(adapter: Adapter, prefix: bytes) -> None:
    store = await adapter.open()
    made = await watch(store, prefix + b"k")
    await store.close()
    with pytest.raises(StoreError):
        await fires(made)
