"""Timers whose time is far away cost nothing, a hundred thousand or a million; those due at one instant fire once each."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import anyio
import pytest
from prometheus_client import CollectorRegistry
from sizes import at_scale
from test_lane_pump import HANDLERS, Lanes, pass_time, turns
from transitions.world import World

from keyspace.clock import VirtualClock
from keyspace.keyspace import Keyspace
from keyspace.layout import ITEM
from keyspace.lifecycle import StepState
from keyspace.queue import items
from keyspace.records.run import RetryRecord
from keyspace.records.work import ItemRecord, LaneKind, WorkKind, server_lane
from keyspace.store.api import Store, Transaction
from keyspace.store.embedded import memory_store
from keyspace.store.errors import RetryableError
from keyspace.transitions.declaration import TimerTerms
from keyspace.transitions.fire_timer import Fired
from keyspace.transitions.work import Accepted
from keyspace.tx import Tx
from services.dispatcher.server_handlers import SERVER_LANES
from services.lanes.metrics import LaneMetrics
from services.lanes.options import LaneOptions
from services.lanes.pump import LanePump

ONCE = RetryRecord(attempts=1, initial_ms=0, coefficient=1.0, cap_ms=0)
DELAY_MS = 60_000
BATCH = 1_000
FAR_MS = 3_600_000
SPREAD_MS = 30 * 86_400_000
SIX_HOURS_MS = 6 * 3_600_000
PROCESSES = ("d1", "d2", "d3")
LOST_SHARE_MAX = 0.05
"""Of a burst, what is handled a second time in vain, because another process has just fired it."""
BURST_S_MAX = 120
"""Virtual seconds in which a burst has been worked off, in which one process's shards are also read by the others."""


@dataclass
class Reads:
    """What a process has read: calls of the store, and rows that came back."""

    calls: int = 0
    rows: int = 0


class CountingStore:
    """Behaves as `inner` and counts what is read through it."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.reads = Reads()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def begin(self) -> Transaction:
        counting: Any = _Counting(self.reads, self.inner.begin())
        made: Transaction = counting
        return made

    async def backoff(self, error: RetryableError, attempt_count: int) -> None:
        await self.inner.backoff(error, attempt_count)


class _Counting:
    def __init__(self, reads: Reads, inner: Any) -> None:
        self._reads = reads
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def get(self, *args: Any, **options: Any) -> Any:
        self._reads.calls += 1
        self._reads.rows += 1
        return self._inner.get(*args, **options)

    async def get_range(self, *args: Any, **options: Any) -> Any:
        rows = await self._inner.get_range(*args, **options)
        self._reads.calls += 1
        self._reads.rows += len(rows)
        return rows


async def load_at_rest(world: World, count: int) -> None:
    """Write the work of timers that lie an hour to a month ahead, through the layout, many in one transaction."""
    rng = random.Random(count)
    now_ms = world.clock.now_ms()
    for first in range(0, count, BATCH):
        batch = [
            ItemRecord(
                item_id=world.keyspace.mint(),
                kind=WorkKind.TIMER,
                lane=server_lane(LaneKind.TIME).stored,
                target="ff" * 16,
                step_id="nap",
                priority=4,
                vesting_ms=now_ms + FAR_MS + rng.randrange(SPREAD_MS),
                ordinal=1,
                generation=1,
                operation_id="00" * 16,
                repeatable=True,
                enqueued_at_ms=now_ms,
            )
            for _ in range(min(BATCH, count - first))
        ]

        async def write(tx: Tx, batch: list[ItemRecord] = batch) -> None:
            for item in batch:
                items.enqueue(tx, "acme", item)

        await world.run("load_at_rest", write)


async def reads_of_one_firing(count: int) -> tuple[Reads, Reads]:
    """Return what a process reads while it fires one timer among `count` at rest, and in as long a time with none due."""
    world = World(clock=VirtualClock())
    await world.begin()
    await world.hello()
    await load_at_rest(world, count)
    run = await world.start_run()
    store = CountingStore(memory_store(clock=world.clock, engine=world.engine))
    keyspace: Any = Keyspace(store, clock=world.clock, prefix=world.keyspace.prefix, rng=random.Random(1))
    metrics = LaneMetrics(CollectorRegistry(), "lanes")
    pump = LanePump(keyspace, SERVER_LANES, HANDLERS, LaneOptions(), metrics, process_id="d1", peers=lambda: ["d1"])
    async with anyio.create_task_group() as group:
        group.start_soon(pump.run)
        await turns()
        nap = TimerTerms(delay_ms=DELAY_MS)
        assert await world.declare(await world.lease_pass(), "nap", retry=ONCE, terms=nap) == Accepted()
        await pass_time(world, DELAY_MS - 3_000)
        store.reads.calls = store.reads.rows = 0
        await pass_time(world, 6_000)
        firing = Reads(store.reads.calls, store.reads.rows)
        assert (await world.step(run.run_id, "nap")).state is StepState.COMPLETED
        await pass_time(world, 6_000)
        store.reads.calls = store.reads.rows = 0
        await pass_time(world, 6_000)
        group.cancel_scope.cancel()
    return firing, Reads(store.reads.calls, store.reads.rows)


@pytest.mark.case(29)
@pytest.mark.parametrize("count", [100_000, at_scale(1_000_000)])
async def test_what_waits_far_ahead_costs_nothing_now(count: int) -> None:
    """S3, S4 and case 029, "a million future items at rest": unvested work is never read, and idle cost does not grow with it."""
    few, idle_few = await reads_of_one_firing(10)
    many, idle_many = await reads_of_one_firing(count)
    print(f"\nfiring one among 10: {few}; among {count:,}: {many}; idle: {idle_few}, {idle_many}")
    assert many == few
    assert idle_many == idle_few
    assert few.rows - idle_few.rows < 40


async def fall_asleep(world: World, count: int) -> list[str]:
    """Start runs that sleep for six hours from one instant on, and return them."""
    nap = TimerTerms(delay_ms=SIX_HOURS_MS)
    runs = []
    for _ in range(count):
        await world.expand_chunk((await world.submit()).event_id)
        passed = await world.lease_pass()
        assert await world.declare(passed, "nap", retry=ONCE, terms=nap) == Accepted()
        runs.append(passed.run_id)
    return runs


@pytest.mark.case(16)
@pytest.mark.case(29)
@pytest.mark.parametrize("count", [200, at_scale(10_000)])
async def test_a_burst_at_one_instant_fires_once_each(count: int) -> None:
    """Case 029, "three dispatchers; then a due burst of 10,000 at one instant": each fires once, whoever else finds it, and none before."""
    world = World(clock=VirtualClock())
    await world.begin()
    await world.hello()
    runs = await fall_asleep(world, count)
    heard: Counter[Fired] = Counter()
    timers = replace(HANDLERS[WorkKind.TIMER], tell=lambda outcome: heard.update([outcome]))
    handlers = {**HANDLERS, WorkKind.TIMER: timers}
    one, two, three = (
        Lanes(world, own, tuple(other for other in PROCESSES if other != own), handlers=handlers) for own in PROCESSES
    )
    async with one.running(), two.running(), three.running():
        await pass_time(world, SIX_HOURS_MS - 10_000, step_ms=10_000)
        await pass_time(world, 10_000 - 250)
        await pass_time(world, 249, step_ms=249)
        assert heard == {}, "nothing is delivered before its time"
        await pass_time(world, 1, step_ms=1)
        for _ in range(BURST_S_MAX):
            if heard[Fired.FIRED] == count:
                break
            await pass_time(world, 1_000)
        # Every process looks at every shard again, and finds nothing.
        await pass_time(world, 2 * LaneOptions().rescan_ms, step_ms=1_000)
    print(f"\n{count:,} timers due at one instant, three processes: {dict(heard)}")
    assert heard[Fired.FIRED] == count
    # Every rescan_ms a process also looks at the shards of others, and loses to them where a burst is still worked off.
    assert heard.keys() <= {Fired.FIRED, Fired.GONE} and heard[Fired.GONE] <= count * LOST_SHARE_MAX
    for run_id in runs:
        assert (await world.kinds(run_id)).count("step-completed") == 1
    assert len(await world.records(ITEM)) == count, "the pass that goes on in each run, and nothing else"
    await world.check()
