"""Range reads in both directions, their limits, and how far each conflicts."""

from __future__ import annotations

import pytest
from store_steps import commits, keys_of, put, rows_of

from keyspace.store.api import KeyRange, Store
from keyspace.store.errors import NotCommitted, StoreError


async def fill(store: Store, prefix: bytes, count: int = 10) -> list[bytes]:
    keys = [prefix + b"%02d" % index for index in range(count)]
    await put(store, *((key, b"v") for key in keys))
    return keys


@pytest.mark.parametrize("limit", [1, 3, 9, 10, 11])
async def test_both_directions(store: Store, prefix: bytes, limit: int) -> None:
    keys = await fill(store, prefix)
    transaction = store.begin()
    up = await transaction.get_range(prefix, prefix + b"\xff", limit=limit)
    down = await transaction.get_range(prefix, prefix + b"\xff", limit=limit, reverse=True)
    assert keys_of(up) == keys[:limit]
    assert keys_of(down) == keys[::-1][:limit]


async def test_bounds_are_half_open(store: Store, prefix: bytes) -> None:
    keys = await fill(store, prefix)
    transaction = store.begin()
    for reverse in (False, True):
        rows = await transaction.get_range(keys[2], keys[5], limit=100, reverse=reverse)
        assert sorted(keys_of(rows)) == keys[2:5]
    assert await transaction.get_range(keys[2], keys[2], limit=100) == []
    assert keys_of(await transaction.get_range(keys[2], keys[2] + b"\x00", limit=100)) == [keys[2]]


async def test_an_inverted_range_reads_as_empty(store: Store, prefix: bytes) -> None:
    keys = await fill(store, prefix)
    transaction = store.begin()
    assert await transaction.get_range(keys[5], keys[2], limit=100) == []


async def test_a_limit_below_one_is_refused(store: Store, prefix: bytes) -> None:
    transaction = store.begin()
    with pytest.raises((StoreError, ValueError)):
        await transaction.get_range(prefix, prefix + b"\xff", limit=0)


@pytest.mark.parametrize(
    ("reverse", "outside", "inside"),
    [(False, b"025", b"015"), (True, b"065", b"075")],
)
async def test_a_limited_read_conflicts_up_to_its_last_row(
    store: Store, prefix: bytes, reverse: bool, outside: bytes, inside: bytes
) -> None:
    await fill(store, prefix)
    first, second = store.begin(), store.begin()
    for transaction in (first, second):
        assert len(await transaction.get_range(prefix, prefix + b"\xff", limit=3, reverse=reverse)) == 3
        transaction.set(prefix + b"\xff/out", b"")
    await put(store, (prefix + outside, b""))
    assert await commits(first) == [None]
    await put(store, (prefix + inside, b""))
    assert await commits(second) == [NotCommitted]


async def test_the_extents_of_limited_reads(store: Store, prefix: bytes) -> None:
    keys = await fill(store, prefix)
    up, down, out = store.begin(), store.begin(), store.begin()
    await up.get_range(keys[1], keys[9], limit=2)
    await down.get_range(keys[1], keys[9], limit=2, reverse=True)
    await out.get_range(keys[1], keys[9], limit=100)
    assert await up.read_conflict_ranges() == [KeyRange(keys[1], keys[2] + b"\x00")]
    assert await down.read_conflict_ranges() == [KeyRange(keys[7], keys[9])]
    assert await out.read_conflict_ranges() == [KeyRange(keys[1], keys[9])]


async def test_a_read_that_runs_out_conflicts_to_the_end(store: Store, prefix: bytes) -> None:
    keys = await fill(store, prefix)
    transaction = store.begin()
    assert len(await transaction.get_range(prefix, prefix + b"\xff", limit=11)) == len(keys)
    transaction.set(prefix + b"\xff/out", b"")
    await put(store, (prefix + b"99", b""))
    assert await commits(transaction) == [NotCommitted]


@pytest.mark.parametrize("length", [499, 500, 501, 511, 512, 2_000, 9_900])
async def test_keys_of_every_length_keep_their_order(store: Store, prefix: bytes, length: int) -> None:
    """Keys beyond an engine's own key length still sort, read, clear and conflict as bytes."""
    stem = prefix + b"m" * (length - len(prefix))
    keys = sorted(
        [stem[:-1], stem, stem + b"\x00", stem + b"\x00\x01", stem + b"n", stem[:-1] + b"l", stem[:-1] + b"z"]
    )
    await put(store, *((key, key[-2:]) for key in keys))
    assert await rows_of(store, prefix) == [(key, key[-2:]) for key in keys]
    transaction = store.begin()
    for first in range(len(keys)):
        for last in range(first, len(keys)):
            for limit in (1, 2, 100):
                up = await transaction.get_range(keys[first], keys[last], limit=limit)
                down = await transaction.get_range(keys[first], keys[last], limit=limit, reverse=True)
                assert keys_of(up) == keys[first:last][:limit]
                assert keys_of(down) == keys[first:last][::-1][:limit]
    for key in keys:
        assert await transaction.get(key) == key[-2:]
    transaction.clear(keys[1])
    transaction.clear_range(keys[3], keys[5])
    await transaction.commit()
    assert keys_of(await rows_of(store, prefix)) == [keys[0], keys[2], keys[5], keys[6]]


async def test_a_range_of_many_rows_is_complete(store: Store, prefix: bytes) -> None:
    keys = [prefix + b"%05d" % index for index in range(2_500)]
    await put(store, *((key, b"x" * 40) for key in keys))
    transaction = store.begin()
    assert keys_of(await transaction.get_range(prefix, prefix + b"\xff", limit=10_000)) == keys
    assert keys_of(await transaction.get_range(prefix, prefix + b"\xff", limit=10_000, reverse=True)) == keys[::-1]


async def test_empty_values_are_values(store: Store, prefix: bytes) -> None:
    await put(store, (prefix + b"k", b""))
    assert await rows_of(store, prefix) == [(prefix + b"k", b"")]
