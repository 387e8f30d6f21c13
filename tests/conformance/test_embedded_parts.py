"""The embedded store's parts against plain models: engines against a dict, range sets against sets of keys, backoff, the log."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from keyspace.clock import VirtualClock
from keyspace.store.api import KeyRange
from keyspace.store.conflict import ConflictLog, Written, decode_written, encode_written
from keyspace.store.embedded import BACKOFF_MS_MAX, memory_store
from keyspace.store.embedded_ranges import RangeSet, merge_ranges
from keyspace.store.engine import Engine
from keyspace.store.errors import NotCommitted
from keyspace.store.lmdb_engine import SHARED_BYTES, LmdbEngine
from keyspace.store.memory_engine import MemoryEngine
from perf.store_engines.sqlite_engine import SqliteEngine
from perf.store_engines.workload import TRANSACTIONS_A_RUN, drive

SEEDS = range(5)
LETTERS = [bytes([letter]) for letter in b"abcdefgh"]
STEMS = [b"", b"a", b"k" * (SHARED_BYTES - 1), b"k" * SHARED_BYTES, b"k" * (SHARED_BYTES + 30), b"m" * 2_000]
"""Short keys, and keys on both sides of where the file's engine begins to share rows."""

ENGINES: dict[str, Callable[[Path], Engine]] = {
    "memory": lambda folder: MemoryEngine(),
    "lmdb": LmdbEngine,
    "sqlite": SqliteEngine,
}
"""The last one is only measured against the others, and must do the same work to be."""


def drawn_key(rng: random.Random) -> bytes:
    return rng.choice(STEMS) + b"".join(rng.choices(LETTERS, k=rng.randint(0, 2)))


def in_order(
    rows: dict[bytes, bytes], begin: bytes, end: bytes, limit: int, reverse: bool
) -> list[tuple[bytes, bytes]]:
    keys = sorted((key for key in rows if begin <= key < end), reverse=reverse)
    return [(key, rows[key]) for key in keys[:limit]]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_is_an_ordered_map_with_snapshots(tmp_path: Path, name: str, seed: int) -> None:
    """Random batches, some given up, some older snapshots kept: every read of each is as a dict would answer."""
    rng = random.Random(seed)
    engine = ENGINES[name](tmp_path)
    rows: dict[bytes, bytes] = {}
    kept = [(engine.snapshot(), dict(rows))]
    for _ in range(40):
        batch, pending = engine.write(), dict(rows)
        for _ in range(rng.randint(1, 12)):
            key = drawn_key(rng)
            match rng.randrange(5):
                case 0 | 1 | 2:
                    value = rng.randbytes(rng.randint(0, 300))
                    batch.put(key, value)
                    pending[key] = value
                case 3:
                    batch.delete(key)
                    pending.pop(key, None)
                case _:
                    begin, end = sorted((key, drawn_key(rng)))
                    batch.delete_range(begin, end)
                    pending = {key: value for key, value in pending.items() if not begin <= key < end}
            assert batch.get(key) == pending.get(key)
        begin, end = sorted((drawn_key(rng), drawn_key(rng)))
        assert batch.get_range(begin, end, 7, False) == in_order(pending, begin, end, 7, False)
        if rng.random() < 0.2:
            batch.abort()
        else:
            batch.commit()
            rows = pending
        kept.append((engine.snapshot(), dict(rows)))
        if len(kept) > 4:
            kept.pop(rng.randrange(len(kept)))[0].close()
        for snapshot, seen in kept:
            begin, end = sorted((drawn_key(rng), drawn_key(rng)))
            limit, reverse = rng.randint(1, 9), rng.random() < 0.5
            assert snapshot.get_range(begin, end, limit, reverse) == in_order(seen, begin, end, limit, reverse)
            key = drawn_key(rng)
            assert snapshot.get(key) == seen.get(key)
    for snapshot, seen in kept:
        assert snapshot.get_range(b"", b"\xff", 10_000, False) == in_order(seen, b"", b"\xff", 10_000, False)
        snapshot.close()
    engine.close()


def test_the_memory_engine_keeps_only_what_can_be_seen() -> None:
    """A simulation runs for hours on one engine: superseded values must go when no snapshot shows them."""
    engine = MemoryEngine()
    pinned = engine.snapshot()
    for number in range(100):
        batch = engine.write()
        batch.put(b"k", b"%d" % number)
        batch.put(b"gone/%d" % number, b"")
        if number:
            batch.delete(b"gone/%d" % (number - 1))
        batch.commit()
    assert pinned.get(b"k") is None
    pinned.close()
    batch = engine.write()
    batch.put(b"k", b"last")
    batch.commit()
    assert sum(len(row.sequences) for row in engine.rows.values()) <= 3


@pytest.mark.parametrize("seed", SEEDS)
def test_a_range_set_is_a_set_of_keys(seed: int) -> None:
    rng = random.Random(seed)
    universe = [bytes([first, second]) for first in b"abcdef" for second in b"abcdef"]
    ranges, keys = RangeSet(), set[bytes]()
    for _ in range(200):
        begin, end = sorted(rng.sample(universe, 2))
        inside = {key for key in universe if begin <= key < end}
        if rng.random() < 0.6:
            ranges.add(begin, end)
            keys |= inside
        else:
            ranges.subtract(begin, end)
            keys -= inside
        assert {key for key in universe if ranges.contains(key)} == keys
        begin, end = sorted(rng.sample(universe, 2))
        inside = {key for key in universe if begin <= key < end}
        parts = ranges.intersect(begin, end)
        assert {key for key in universe if any(part.begin <= key < part.end for part in parts)} == keys & inside
        assert ranges.overlaps(begin, end) == bool(parts)
        assert parts == merge_ranges(parts), "parts must be sorted and apart"
        assert bool(ranges) == bool(keys)


def test_a_log_row_is_read_as_it_was_written() -> None:
    for written in (
        Written([], []),
        Written([b"", b"a", b"k" * 10_000], []),
        Written([b"a"], [KeyRange(b"", b"\xff"), KeyRange(b"b", b"b" * 10_000)]),
    ):
        read = decode_written(encode_written(written))
        assert (read.keys, read.ranges) == (written.keys, written.ranges)


def test_a_log_forgets_by_version_and_says_where_it_begins() -> None:
    log = ConflictLog(10)
    log.append(11, Written([b"a"], []))
    log.append(12, Written([b"a", b"b"], [KeyRange(b"m", b"p")]))
    log.append(13, Written([b"c"], []))
    assert log.has_conflict(11, [b"a"], []) and not log.has_conflict(12, [b"a"], [])
    assert log.has_conflict(11, [], [KeyRange(b"o", b"z")]) and log.has_conflict(11, [b"n"], [])
    log.drop_up_to(12)
    assert log.floor == 12
    assert not log.has_conflict(12, [b"a", b"b", b"n"], [KeyRange(b"a", b"c"), KeyRange(b"m", b"z")])
    assert log.has_conflict(12, [b"c"], []) and log.has_conflict(12, [], [KeyRange(b"a", b"d")])


async def test_backoff_grows_with_jitter_up_to_a_second() -> None:
    clock = VirtualClock()
    slept: list[float] = []

    async def sleep_ms(delay_ms: float) -> None:
        slept.append(delay_ms)

    clock.sleep_ms = sleep_ms  # type: ignore[method-assign]
    store = memory_store(clock=clock, rng=random.Random(3))
    for attempt_count in (1, 2, 5, 11, 40, 1_000_000):
        del slept[:]
        for _ in range(200):
            await store.backoff(NotCommitted(), attempt_count)
        bound = min(2.0 ** min(attempt_count - 1, 20), BACKOFF_MS_MAX)
        assert all(0 <= delay < bound for delay in slept)
        assert max(slept) > 0.9 * bound
        assert min(slept) < 0.1 * bound, "full jitter begins at nothing"


async def test_the_engines_workload_runs() -> None:
    """The comparison of engines is run by hand and must not rot in between."""
    figures = await drive(memory_store(clock=VirtualClock()), process=0, concurrency=2, duration_s=0.02)
    assert figures.run_count >= 2
    assert len(figures.commit_ms) == figures.run_count * TRANSACTIONS_A_RUN
    assert figures.conflict_count == 0
