"""FoundationDB's limits of size and time, and its own account of a transaction's size."""

from __future__ import annotations

import contextlib

import pytest
from store_steps import commits, put, refused, value_of

from keyspace.clock import VirtualClock
from keyspace.store import sizes
from keyspace.store.api import Store, Transaction
from keyspace.store.errors import (
    InvertedRange,
    KeyOutsideLegalRange,
    KeyTooLarge,
    TransactionCancelled,
    TransactionTooLarge,
    TransactionTooOld,
    UsageError,
    ValueTooLarge,
)


@pytest.mark.case(64)
@pytest.mark.parametrize("size", [99_999, 100_000, 100_001])
async def test_values_of_about_the_limit(store: Store, prefix: bytes, size: int) -> None:
    """Case 064: a value above 100,000 bytes is refused, never half written; one at the limit is kept whole."""
    if size <= sizes.VALUE_BYTES_MAX:
        await put(store, (prefix + b"k", b"v" * size))
        assert await value_of(store, prefix + b"k") == b"v" * size
        return
    async with refused(ValueTooLarge):
        await put(store, (prefix + b"a", b"1"), (prefix + b"k", b"v" * size))
    assert await value_of(store, prefix + b"k") is None
    assert await value_of(store, prefix + b"a") is None


@pytest.mark.case(64)
@pytest.mark.parametrize("size", [9_999, 10_000, 10_001])
async def test_keys_of_about_the_limit(store: Store, prefix: bytes, size: int) -> None:
    """Case 064: a key above 10,000 bytes is refused; one at the limit is kept and found."""
    key = prefix + b"k" * (size - len(prefix))
    if size <= sizes.KEY_BYTES_MAX:
        await put(store, (key, b"v"))
        assert await value_of(store, key) == b"v"
        return
    async with refused(KeyTooLarge):
        await put(store, (key, b"v"))
    assert await value_of(store, key) is None


@pytest.mark.case(64)
async def test_a_swallowed_refusal_still_refuses_the_commit(store: Store, prefix: bytes) -> None:
    """Case 064: an error that nobody looked at must not let the rest of its transaction through."""
    transaction = store.begin()
    transaction.set(prefix + b"a", b"1")
    with contextlib.suppress(ValueTooLarge):
        transaction.set(prefix + b"k", b"v" * 100_001)
    async with refused(ValueTooLarge):
        await transaction.commit()
    assert await value_of(store, prefix + b"a") is None


@pytest.mark.case(64)
@pytest.mark.parametrize("excess", [0, 1])
async def test_transactions_of_about_the_limit(store: Store, prefix: bytes, excess: int) -> None:
    """Case 064: the hard limit of 10,000,000 bytes as accounted, to the byte; what exceeds it leaves nothing."""
    transaction = store.begin()
    index = 0
    while True:
        size = await transaction.approximate_size()
        left = sizes.TRANSACTION_BYTES_MAX - size
        key = prefix + b"%06d" % index
        cost_empty = sizes.set_bytes(len(key), 0)
        value_bytes = min(sizes.VALUE_BYTES_MAX, left - cost_empty)
        if 0 < left - cost_empty - value_bytes < 2 * cost_empty:
            value_bytes //= 2
        is_last = cost_empty + value_bytes == left
        transaction.set(key, b"v" * (value_bytes + (excess if is_last else 0)))
        index += 1
        if is_last:
            break
    assert await transaction.approximate_size() == sizes.TRANSACTION_BYTES_MAX + excess
    if excess:
        async with refused(TransactionTooLarge):
            await transaction.commit()
    else:
        await transaction.commit()
    assert (await value_of(store, prefix + b"%06d" % 0) is None) is bool(excess)


@pytest.mark.parametrize("key", [b"\xff", b"\xff/any", b"\xff\xff"])
async def test_the_systems_own_keys_are_refused(store: Store, key: bytes) -> None:
    async with refused(KeyOutsideLegalRange):
        await put(store, (key, b""))
    with pytest.raises(KeyOutsideLegalRange):
        await store.begin().get(key)
    async with refused(KeyOutsideLegalRange):
        transaction = store.begin()
        transaction.clear(key)
        await transaction.commit()


async def test_ranges_end_at_the_systems_keys(store: Store, prefix: bytes) -> None:
    transaction = store.begin()
    await transaction.get_range(prefix, b"\xff", limit=1)
    with pytest.raises(KeyOutsideLegalRange):
        await transaction.get_range(prefix, b"\xff\x00", limit=1)
    async with refused(KeyOutsideLegalRange):
        other = store.begin()
        other.clear_range(prefix, b"\xff\x00")
        await other.commit()


async def test_inverted_ranges_are_refused(store: Store, prefix: bytes) -> None:
    async with refused(InvertedRange):
        transaction = store.begin()
        transaction.clear_range(prefix + b"b", prefix + b"a")
        await transaction.commit()
    async with refused(InvertedRange):
        transaction = store.begin()
        transaction.add_read_conflict_range(prefix + b"b", prefix + b"a")
        transaction.set(prefix + b"k", b"")
        await transaction.commit()


async def test_keys_too_long_to_exist_are_absent(store: Store, prefix: bytes) -> None:
    transaction = store.begin()
    assert await transaction.get(prefix + b"k" * 10_001) is None
    transaction.clear(prefix + b"k" * 10_001)
    assert await commits(transaction) == [None]


async def test_an_ended_transaction_takes_no_more(store: Store, prefix: bytes) -> None:
    committed, cancelled = store.begin(), store.begin()
    committed.set(prefix + b"k", b"1")
    await committed.commit()
    async with refused(UsageError):
        committed.set(prefix + b"k", b"2")
        await committed.commit()
    cancelled.set(prefix + b"k", b"3")
    cancelled.cancel()
    async with refused(TransactionCancelled):
        await cancelled.get(prefix + b"k")
    async with refused(TransactionCancelled):
        await cancelled.commit()
    assert await value_of(store, prefix + b"k") == b"1"


async def test_reads_end_five_seconds_after_the_first(store: Store, prefix: bytes, virtual: VirtualClock) -> None:
    transaction = store.begin()
    virtual.advance(60_000)
    assert await transaction.get(prefix + b"k") is None
    virtual.advance(sizes.LIFETIME_MS_MAX)
    assert await transaction.get(prefix + b"k") is None
    virtual.advance(1)
    with pytest.raises(TransactionTooOld):
        await transaction.get(prefix + b"k")
    transaction.set(prefix + b"out", b"")
    assert await commits(transaction) == [TransactionTooOld]


async def test_a_commit_that_read_ends_with_its_reads(store: Store, prefix: bytes, virtual: VirtualClock) -> None:
    transaction = store.begin()
    await transaction.get(prefix + b"k")
    transaction.set(prefix + b"out", b"")
    virtual.advance(sizes.LIFETIME_MS_MAX + 1)
    assert await commits(transaction) == [TransactionTooOld]


async def test_what_has_no_read_version_is_never_too_old(store: Store, prefix: bytes, virtual: VirtualClock) -> None:
    blind, reader = store.begin(), store.begin()
    blind.set(prefix + b"a", b"1")
    await reader.get(prefix + b"k")
    virtual.advance(sizes.LIFETIME_MS_MAX + 1)
    assert await commits(blind, reader) == [None, None]


async def test_a_snapshot_reader_that_writes_grows_too_old(store: Store, prefix: bytes, virtual: VirtualClock) -> None:
    """As seen on a 7.3 server: the client makes every writer conflict with itself, so its read version counts."""
    snapshot, version = store.begin(), store.begin()
    await snapshot.get(prefix + b"k", snapshot=True)
    snapshot.set(prefix + b"b", b"1")
    await version.get_read_version()
    version.set(prefix + b"c", b"1")
    virtual.advance(sizes.LIFETIME_MS_MAX + 1)
    assert await commits(snapshot, version) == [TransactionTooOld, TransactionTooOld]


async def test_a_clock_set_back_or_far_forward_keeps_stamps_rising(
    store: Store, prefix: bytes, virtual: VirtualClock
) -> None:
    versions = []
    for step in (0, -3_600_000, 5, 86_400_000, -86_400_000, 0):
        virtual.step(step)
        versions.append(await put(store, (prefix + b"k", b"")))
    assert versions == sorted(set(versions))


async def test_versions_keep_times_pace_while_nothing_is_written(
    store: Store, prefix: bytes, virtual: VirtualClock
) -> None:
    """About a million a second, read on an idle store too, and never beyond what a later commit gets."""
    first = await put(store, (prefix + b"k", b""))
    for _ in range(5):
        virtual.advance(2_000)
        read = await store.begin().get_read_version()
        assert abs(read - first - 2_000_000) < 10
        virtual.step(-900_000)
        second = await put(store, (prefix + b"k", b""))
        assert second > read
        assert abs(second - first - 2_000_000) < 10
        first = second


async def test_commits_over_a_long_time_keep_conflicts_right(
    store: Store, prefix: bytes, virtual: VirtualClock
) -> None:
    """Recent commits are forgotten by age; a transaction that is young enough must still be judged by all since its read."""
    for round_index in range(150):
        virtual.advance(700)
        loser, winner = store.begin(), store.begin()
        for transaction in (loser, winner):
            await transaction.get(prefix + b"n")
            transaction.set(prefix + b"n", b"%d" % round_index)
        virtual.advance(sizes.LIFETIME_MS_MAX // 2)
        ended = await commits(winner, loser)
        assert ended[0] is None and ended[1] is not None


def _each_operation(prefix: bytes) -> list[tuple[str, int]]:
    k, v = len(prefix) + 3, 50
    return [
        ("set", 3 * k + v + 69),
        ("clear", 4 * k + 50),
        ("clear_range", 2 * (2 * k) + 68),
        ("add", 3 * k + 8 + 69),
        ("byte_max", 3 * k + v + 69),
        ("stamped_key", (k + 10 + 4) + v + 44),
        ("stamped_value", 3 * k + (v + 4) + 69),
        ("get", 2 * k + 25),
        ("get_snapshot", 0),
        ("get_range", 2 * k + 24),
        ("get_range_snapshot", 0),
        ("read_conflict_key", 2 * k + 25),
        ("read_conflict_range", 2 * k + 24),
        ("write_conflict_key", 2 * k + 25),
    ]


async def _do(transaction: Transaction, operation: str, prefix: bytes) -> None:
    key, other, value = prefix + b"abc", prefix + b"abz", bytes(50)
    match operation:
        case "set":
            transaction.set(key, value)
        case "clear":
            transaction.clear(key)
        case "clear_range":
            transaction.clear_range(key, other)
        case "add":
            transaction.add(key, 1)
        case "byte_max":
            transaction.byte_max(key, value)
        case "stamped_key":
            transaction.set_versionstamped_key(key + bytes(10), len(key), value)
        case "stamped_value":
            transaction.set_versionstamped_value(key, value, 0)
        case "get" | "get_snapshot":
            await transaction.get(key, snapshot=operation == "get_snapshot")
        case "get_range" | "get_range_snapshot":
            await transaction.get_range(key, other, limit=5, snapshot=operation == "get_range_snapshot")
        case "read_conflict_key":
            transaction.add_read_conflict_key(key)
        case "read_conflict_range":
            transaction.add_read_conflict_range(key, other)
        case _:
            assert operation == "write_conflict_key"
            transaction.add_write_conflict_key(key)


OPERATIONS = [name for name, _ in _each_operation(b"")]


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_each_operation_costs_what_the_client_accounts(store: Store, prefix: bytes, operation: str) -> None:
    """ARCHITECTURE 5, "FoundationDB's own accounting": the formula, on every adapter, a real cluster included."""
    transaction = store.begin()
    await _do(transaction, operation, prefix)
    assert await transaction.approximate_size() == dict(_each_operation(prefix))[operation]


async def test_costs_add_up(store: Store, prefix: bytes) -> None:
    transaction = store.begin()
    for operation in ("get", "get_range", "set", "add", "clear", "write_conflict_key"):
        before = await transaction.approximate_size()
        await _do(transaction, operation, prefix + operation.encode()[:3])
        after = await transaction.approximate_size()
        assert after - before == dict(_each_operation(prefix + operation.encode()[:3]))[operation]


async def test_a_limited_range_read_is_charged_for_what_it_saw(store: Store, prefix: bytes) -> None:
    await put(store, *((prefix + b"%d" % index, b"") for index in range(5)))
    transaction = store.begin()
    rows = await transaction.get_range(prefix + b"0", prefix + b"9", limit=2)
    begin, end = len(prefix) + 1, len(rows[-1][0]) + 1
    assert await transaction.approximate_size() == begin + end + 24


async def test_a_range_cut_by_a_write_conflict_key_is_charged_in_pieces(store: Store, prefix: bytes) -> None:
    """As measured on a 7.3 server: the client charges each piece what the whole range costs."""
    transaction = store.begin()
    transaction.add_write_conflict_key(prefix + b"m")
    transaction.add_write_conflict_key(prefix + b"a")
    before = await transaction.approximate_size()
    transaction.add_read_conflict_range(prefix + b"a", prefix + b"z")
    after = await transaction.approximate_size()
    # The pieces: the key a, what lies up to m, the key m, and the rest.
    assert after - before == 4 * sizes.conflict_range_bytes(len(prefix) + 1, len(prefix) + 1)
    assert await transaction.read_conflict_ranges() == [(prefix + b"a", prefix + b"z")]
