"""The fault adapter: it injects what its plan says, where the plan says it, and behaves as the wrapped store elsewhere."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest
from waiting import advance_while, until

from keyspace.clock import VirtualClock
from keyspace.store.api import Transaction
from keyspace.store.embedded import memory_store
from keyspace.store.errors import (
    BatchThrottled,
    CommitUnknownResult,
    FutureVersion,
    NotCommitted,
    ProcessBehind,
    RetryableError,
    StoreError,
    TransactionTimedOut,
    TransactionTooOld,
)
from keyspace.store.fault import FaultStore, ProcessStopped, TraceEntry
from keyspace.store.fault_plan import CommitFault, FaultPlan, FaultRates, ReadFault, WatchFault
from keyspace.store.memory_engine import MemoryEngine
from keyspace.store.meter import Meter
from keyspace.store.runner import Runner

REFUSALS: list[tuple[CommitFault, type[RetryableError]]] = [
    (CommitFault.NOT_COMMITTED, NotCommitted),
    (CommitFault.TRANSACTION_TOO_OLD, TransactionTooOld),
    (CommitFault.FUTURE_VERSION, FutureVersion),
    (CommitFault.PROCESS_BEHIND, ProcessBehind),
    (CommitFault.THROTTLED, BatchThrottled),
    (CommitFault.UNKNOWN_NOT_COMMITTED, CommitUnknownResult),
]


class Bench:
    """A fault store over a memory engine that outlives it, as a cluster outlives a process."""

    def __init__(self, plan: FaultPlan | None = None, engine: MemoryEngine | None = None) -> None:
        self.clock = VirtualClock()
        self.engine = engine or MemoryEngine()
        self.plan = plan or FaultPlan()
        self.inner = memory_store(clock=self.clock, engine=self.engine)
        self.store = FaultStore(self.inner, self.plan, clock=self.clock)
        self.runner = Runner(self.store, clock=self.clock, meter=Meter())

    async def stored(self, key: bytes) -> bytes | None:
        """Read past the faults."""
        reader = memory_store(clock=self.clock, engine=self.engine).begin()
        value = await reader.get(key)
        reader.cancel()
        return value


def write(key: bytes, value: bytes) -> Callable[[Transaction, int], Awaitable[int]]:
    async def body(transaction: Transaction, attempt_index: int) -> int:
        transaction.set(key, value)
        return attempt_index

    return body


@pytest.mark.parametrize(("fault", "error"), REFUSALS)
async def test_a_refused_commit_writes_nothing(fault: CommitFault, error: type[RetryableError]) -> None:
    """Would catch an injected refusal that lets the writes through."""
    bench = Bench(FaultPlan().at_commit(1, fault))
    transaction = bench.store.begin()
    transaction.set(b"k", b"v")
    stamp = transaction.get_versionstamp()
    with pytest.raises(error):
        await transaction.commit()
    with pytest.raises(error):
        await stamp
    assert await bench.stored(b"k") is None
    assert list(bench.store.trace) == [TraceEntry("commit", 1, None, fault.value)]


async def test_an_unknown_commit_may_have_committed() -> None:
    """Would catch the face of commit_unknown_result that a test with refusals alone never shows."""
    bench = Bench(FaultPlan().at_commit(1, CommitFault.UNKNOWN_COMMITTED))
    transaction = bench.store.begin()
    transaction.set(b"k", b"v")
    with pytest.raises(CommitUnknownResult):
        await transaction.commit()
    assert await bench.stored(b"k") == b"v"


async def test_a_sequence_follows_one_run_over_its_attempts() -> None:
    """Would catch a sequence that another transition's commit takes over in between."""
    sequence = (CommitFault.UNKNOWN_COMMITTED, CommitFault.NOT_COMMITTED)
    bench = Bench(FaultPlan().at_commit(2, *sequence, transition="struck"))

    async def interleaved(transaction: Transaction, attempt_index: int) -> int:
        transaction.set(b"struck", b"%d" % attempt_index)
        assert await bench.runner.run("other", write(b"other", b"o")) == 0
        return attempt_index

    assert await bench.runner.run("struck", write(b"first", b"f")) == 0
    assert await advance_while(bench.clock, bench.runner.run("struck", interleaved)) == 2
    assert [(entry.number, entry.transition, entry.fault) for entry in bench.store.trace] == [
        (3, "struck", "unknown_committed"),
        (5, "struck", "not_committed"),
    ]


async def test_a_read_only_commit_is_neither_numbered_nor_struck() -> None:
    """Would catch a loop over all commits that spends its numbers on commits which cannot fail."""
    bench = Bench(FaultPlan().at_commit(1, CommitFault.NOT_COMMITTED))

    async def look(transaction: Transaction, _: int) -> bytes | None:
        return await transaction.get(b"k")

    assert await bench.runner.run("look", look) is None
    assert bench.store.commit_count == 0
    assert not bench.store.trace


async def test_a_late_commit_lands_between_the_next_attempts_reads_and_its_commit() -> None:
    """HOUSE 17: after a time-out the commit may still land; the receipt makes it and the second try exclude each other."""
    bench = Bench(FaultPlan().at_commit(1, CommitFault.TIMED_OUT_LATE))

    async def once(transaction: Transaction, _: int) -> str:
        if await transaction.get(b"receipt") is not None:
            return "replayed"
        transaction.set(b"receipt", b"")
        transaction.add(b"count", 1)
        return "written"

    with pytest.raises(TransactionTimedOut):
        await bench.runner.run("once", once)
    assert await bench.stored(b"receipt") is None
    assert await advance_while(bench.clock, bench.runner.run("once", once)) == "replayed"
    assert await bench.stored(b"count") == (1).to_bytes(8, "little")
    assert bench.store.trace[-1] == TraceEntry("late", 1, "once", "landed")


async def test_a_late_commit_obeys_the_stores_rules() -> None:
    """Would catch a late commit that lands although what it read has changed meanwhile."""
    bench = Bench(FaultPlan().at_commit(1, CommitFault.TIMED_OUT_LATE))
    late = bench.store.begin()
    await late.get(b"k")
    late.set(b"k", b"late")
    with pytest.raises(TransactionTimedOut):
        await late.commit()
    other = bench.inner.begin()
    other.set(b"k", b"other")
    await other.commit()
    await bench.store.close()
    assert await bench.stored(b"k") == b"other"
    assert bench.store.trace[-1] == TraceEntry("late", 1, None, "NotCommitted")


async def test_a_lost_commit_never_lands() -> None:
    """Would catch a time-out that always turns out to have committed."""
    bench = Bench(FaultPlan().at_commit(1, CommitFault.TIMED_OUT_LOST))
    with pytest.raises(TransactionTimedOut):
        await bench.runner.run("name", write(b"k", b"v"))
    await bench.store.close()
    assert await bench.stored(b"k") is None


async def test_a_delayed_commit_waits_on_the_clock() -> None:
    """Would catch a delay in real time."""
    bench = Bench(FaultPlan(delay_ms_max=200.0).at_commit(1, CommitFault.DELAYED))
    task = asyncio.create_task(bench.runner.run("name", write(b"k", b"v")))
    await until(lambda: bench.clock.next_wake_ms() is not None)
    wake_ms = bench.clock.next_wake_ms()
    assert wake_ms is not None
    assert 0 < wake_ms <= 200.0
    assert await bench.stored(b"k") is None
    bench.clock.advance(wake_ms)
    assert await task == 0
    assert await bench.stored(b"k") == b"v"


@pytest.mark.parametrize(("fault", "stored"), [(CommitFault.STOP_BEFORE, None), (CommitFault.STOP_AFTER, b"v")])
async def test_a_stopped_process_does_nothing_more(fault: CommitFault, stored: bytes | None) -> None:
    """Would catch a task of a dead process that still writes."""
    bench = Bench(FaultPlan().at_commit(1, fault))
    survivor = bench.store.begin()
    survivor.set(b"survivor", b"")
    reading = bench.store.begin().get(b"k")
    with pytest.raises(ProcessStopped):
        await bench.runner.run("name", write(b"k", b"v"))
    with pytest.raises(ProcessStopped):
        await survivor.commit()
    with pytest.raises(ProcessStopped):
        await reading
    with pytest.raises(ProcessStopped):
        bench.store.begin()
    assert await bench.stored(b"k") == stored
    assert await bench.stored(b"survivor") is None
    again = Bench(engine=bench.engine)
    assert await again.runner.run("name", write(b"k", b"w")) == 0
    assert await again.stored(b"k") == b"w"


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (ReadFault.TRANSACTION_TOO_OLD, TransactionTooOld),
        (ReadFault.FUTURE_VERSION, FutureVersion),
        (ReadFault.PROCESS_BEHIND, ProcessBehind),
        (ReadFault.THROTTLED, BatchThrottled),
    ],
)
async def test_a_read_fails_and_its_run_is_tried_again(fault: ReadFault, error: type[StoreError]) -> None:
    """Would catch a body that treats a failed read as an absent value."""
    bench = Bench(FaultPlan().at_read(2, fault))
    failed: list[StoreError] = []

    async def body(transaction: Transaction, attempt_index: int) -> int:
        first, second = transaction.get(b"a"), transaction.get_range(b"a", b"b", limit=1)
        await first
        try:
            await second
        except StoreError as caught:
            failed.append(caught)
            raise
        return attempt_index

    assert await advance_while(bench.clock, bench.runner.run("name", body)) == 1
    assert [type(caught) for caught in failed] == [error]
    assert bench.store.trace[0] == TraceEntry("read", 2, "name", fault.value)


async def test_a_delayed_read_answers_as_of_its_read_version() -> None:
    """Would catch a delay that changes what is read."""
    bench = Bench(FaultPlan().at_read(2, ReadFault.DELAYED))
    transaction = bench.store.begin()
    await transaction.get_read_version()
    reading = transaction.get(b"k")
    other = bench.inner.begin()
    other.set(b"k", b"later")
    await other.commit()
    assert await advance_while(bench.clock, reading) is None
    assert bench.clock.monotonic_ms() > 0


async def test_an_early_watch_fires_at_once() -> None:
    """Would catch a waiter that takes a fired watch for a changed value."""
    bench = Bench(FaultPlan().at_watch(1, WatchFault.EARLY))
    transaction = bench.store.begin()
    watch = transaction.watch(b"k")
    await transaction.commit()
    await watch.wait()
    assert await bench.stored(b"k") is None


async def test_a_spurious_watch_fires_after_a_delay() -> None:
    """Would catch a waiter that only survives watches which are early."""
    bench = Bench(FaultPlan().at_watch(1, WatchFault.SPURIOUS))
    transaction = bench.store.begin()
    watch = transaction.watch(b"k")
    await transaction.commit()
    await advance_while(bench.clock, watch.wait())
    assert bench.clock.monotonic_ms() > 0


async def test_a_lost_watch_never_fires() -> None:
    """Would catch a waiter without a slow rescan; the watch ends only when it is given up."""
    bench = Bench(FaultPlan().at_watch(1, WatchFault.LOST))
    transaction = bench.store.begin()
    watch = transaction.watch(b"k")
    await transaction.commit()
    waiting = asyncio.ensure_future(watch.wait())
    assert await bench.runner.run("name", write(b"k", b"v")) == 0
    await asyncio.sleep(0)
    assert not waiting.done()
    watch.cancel()
    with pytest.raises(StoreError):
        await waiting


async def test_a_broken_watch_says_so() -> None:
    """Would catch a waiter that ends with its first lost watch."""
    bench = Bench(FaultPlan().at_watch(2, WatchFault.BROKEN))
    transaction = bench.store.begin()
    sound, broken = transaction.watch(b"k"), transaction.watch(b"k")
    await transaction.commit()
    with pytest.raises(StoreError, match="the watch was lost"):
        await broken.wait()
    assert await bench.runner.run("name", write(b"k", b"v")) == 0
    await sound.wait()


async def scramble(seed: int) -> tuple[list[TraceEntry], int]:
    rates = FaultRates(
        commit={fault: 0.08 for fault, _ in REFUSALS} | {CommitFault.UNKNOWN_COMMITTED: 0.1, CommitFault.DELAYED: 0.1},
        read={ReadFault.TRANSACTION_TOO_OLD: 0.05, ReadFault.DELAYED: 0.2},
    )
    bench = Bench(FaultPlan(seed, rates))

    async def deposit(transaction: Transaction, _: int) -> None:
        total = int(await transaction.get(b"total") or b"0")
        transaction.set(b"total", b"%d" % (total + 1))

    for _ in range(30):
        await advance_while(bench.clock, bench.runner.run("deposit", deposit))
    return list(bench.store.trace), int(await bench.stored(b"total") or b"0")


async def test_a_seed_replays() -> None:
    """HOUSE 13: a failing seed must fail again; without receipts the unknown commits show as deposits made twice."""
    seed = random.Random(20).randrange(1 << 32)
    first, again, other = await scramble(seed), await scramble(seed), await scramble(seed + 1)
    assert first == again
    assert first != other
    doubled = sum(entry.fault == "unknown_committed" for entry in first[0])
    assert doubled > 0
    assert first[1] == 30 + doubled


async def test_a_healed_plan_strikes_nothing() -> None:
    """Would catch faults that go on while a test asks whether everything finishes."""
    bench = Bench(FaultPlan(1, FaultRates(commit={CommitFault.NOT_COMMITTED: 1.0})))
    bench.plan.heal()
    assert await bench.runner.run("name", write(b"k", b"v")) == 0
    assert not bench.store.trace


@pytest.mark.parametrize(
    "rates", [{CommitFault.NOT_COMMITTED: -0.1}, {CommitFault.NOT_COMMITTED: 0.6, CommitFault.DELAYED: 0.6}]
)
def test_rates_are_a_distribution(rates: dict[CommitFault, float]) -> None:
    """Would catch probabilities that silently crowd each other out."""
    with pytest.raises(ValueError, match="sum to 1 at most"):
        FaultRates(commit=rates)


@pytest.mark.parametrize("number", [0, -1])
def test_a_script_names_a_point_that_exists(number: int) -> None:
    """Would catch a test that believes it injects a fault at commit 0."""
    with pytest.raises(ValueError, match="from 1 on"):
        FaultPlan().at_commit(number, CommitFault.NOT_COMMITTED)
    with pytest.raises(ValueError, match="at least one fault"):
        FaultPlan().at_commit(1)
