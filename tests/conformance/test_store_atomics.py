"""Atomic operations change a value at commit without reading it."""

from __future__ import annotations

import struct

import pytest
from store_steps import commits, put, value_of

from keyspace.store.api import Store
from keyspace.store.errors import NotCommitted


def number(value: int) -> bytes:
    return struct.pack("<q", value)


async def add(store: Store, key: bytes, *deltas: int) -> bytes | None:
    transaction = store.begin()
    for delta in deltas:
        transaction.add(key, delta)
    await transaction.commit()
    return await value_of(store, key)


async def test_add_starts_from_nothing(store: Store, prefix: bytes) -> None:
    assert await add(store, prefix + b"n", 5) == number(5)
    assert await add(store, prefix + b"n", -7) == number(-2)
    assert await add(store, prefix + b"n", 1, 1, 1) == number(1)


async def test_add_wraps_at_64_bits(store: Store, prefix: bytes) -> None:
    await put(store, (prefix + b"n", number(2**63 - 1)))
    assert await add(store, prefix + b"n", 1) == number(-(2**63))


@pytest.mark.parametrize(
    ("stored", "wanted"),
    [(b"", number(3)), (b"\x02", number(5)), (b"\xff\xff", number(65_538)), (number(4) + b"tail", number(7))],
)
async def test_add_works_in_the_operands_width(store: Store, prefix: bytes, stored: bytes, wanted: bytes) -> None:
    await put(store, (prefix + b"n", stored))
    assert await add(store, prefix + b"n", 3) == wanted


async def test_concurrent_adds_all_count_and_never_conflict(store: Store, prefix: bytes) -> None:
    transactions = [store.begin() for _ in range(10)]
    for transaction in transactions:
        await transaction.get_read_version()
        transaction.add(prefix + b"n", 1)
    assert await commits(*transactions) == [None] * 10
    assert await value_of(store, prefix + b"n") == number(10)


async def test_an_own_add_is_read_over_the_stored_value_and_then_conflicts(store: Store, prefix: bytes) -> None:
    await put(store, (prefix + b"n", number(40)))
    transaction = store.begin()
    transaction.add(prefix + b"n", 2)
    assert await transaction.get(prefix + b"n") == number(42)
    await put(store, (prefix + b"n", number(1)))
    assert await commits(transaction) == [NotCommitted]


async def test_an_add_over_an_own_set_is_known_here(store: Store, prefix: bytes) -> None:
    transaction = store.begin()
    await transaction.get_read_version()
    transaction.set(prefix + b"n", number(1))
    transaction.add(prefix + b"n", 1)
    transaction.clear(prefix + b"m")
    transaction.add(prefix + b"m", 5)
    transaction.clear_range(prefix + b"x", prefix + b"z")
    transaction.add(prefix + b"y", 7)
    assert await transaction.get(prefix + b"n") == number(2)
    assert await transaction.get(prefix + b"m") == number(5)
    assert await transaction.get(prefix + b"y") == number(7)
    await put(store, (prefix + b"n", number(9)), (prefix + b"m", number(9)), (prefix + b"y", number(9)))
    assert await commits(transaction) == [None]
    assert [await value_of(store, prefix + key) for key in (b"n", b"m", b"y")] == [number(2), number(5), number(7)]


async def test_adds_apply_to_the_value_at_commit(store: Store, prefix: bytes) -> None:
    transaction = store.begin()
    assert await transaction.get(prefix + b"n", snapshot=True) is None
    transaction.add(prefix + b"n", 1)
    await put(store, (prefix + b"n", number(100)))
    assert await commits(transaction) == [None]
    assert await value_of(store, prefix + b"n") == number(101)


async def test_byte_max_keeps_the_greater_in_byte_order(store: Store, prefix: bytes) -> None:
    for value, wanted in [(b"b", b"b"), (b"a", b"b"), (b"ba", b"ba"), (b"", b"ba"), (b"c", b"c")]:
        transaction = store.begin()
        transaction.byte_max(prefix + b"m", value)
        await transaction.commit()
        assert await value_of(store, prefix + b"m") == wanted


async def test_byte_max_sees_own_writes(store: Store, prefix: bytes) -> None:
    transaction = store.begin()
    transaction.set(prefix + b"m", b"k")
    transaction.byte_max(prefix + b"m", b"c")
    assert await transaction.get(prefix + b"m") == b"k"
    transaction.byte_max(prefix + b"m", b"x")
    await transaction.commit()
    assert await value_of(store, prefix + b"m") == b"x"


async def test_a_set_over_an_add_forgets_it(store: Store, prefix: bytes) -> None:
    transaction = store.begin()
    transaction.add(prefix + b"n", 5)
    transaction.set(prefix + b"n", b"text")
    assert await transaction.get(prefix + b"n") == b"text"
    await transaction.commit()
    assert await value_of(store, prefix + b"n") == b"text"
