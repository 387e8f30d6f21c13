"""Clocks compared through the store, and a process that stops committing when its own is off."""

from __future__ import annotations

import dataclasses

import pytest
from waiting import until

from keyspace.clock import VirtualClock
from keyspace.layout import PROCESS
from keyspace.opening import announce_process
from keyspace.policy import ANY_TIME, RunTimePolicy
from keyspace.records.work import ProcessRecord
from keyspace.store.embedded import memory_store
from keyspace.store.memory_engine import MemoryEngine
from keyspace.tx import Tx
from services.runtime.config import Config
from services.runtime.health import DISAGREEMENTS_MAX, ClockMark, Health, NotServing
from services.runtime.process import FORGOTTEN_MS, HEARTBEAT_MS, LIVE_MS, Process, open_process

CONFIG = Config(store="memory:")


class Shifted(VirtualClock):
    """A wall clock that lies some milliseconds off the virtual one it shares its pace with."""

    def __init__(self, base: VirtualClock, offset_ms: int = 0) -> None:
        super().__init__()
        self.base = base
        self.offset_ms = offset_ms

    def now_ms(self) -> int:
        return self.base.now_ms() + self.offset_ms

    def monotonic_ms(self) -> float:
        return self.base.monotonic_ms()


async def beat(*processes: Process) -> None:
    for process in processes:
        await process.heartbeat()


def started(count: int) -> tuple[VirtualClock, list[Shifted], list[Process]]:
    base, engine = VirtualClock(), MemoryEngine()
    clocks = [Shifted(base) for _ in range(count)]
    processes = [Process(CONFIG, "gateway", memory_store(clock=base, engine=engine), clock) for clock in clocks]
    return base, clocks, processes


@pytest.mark.parametrize("offset_ms", [-2_000, 700])
async def test_the_one_clock_that_is_off_is_found_and_the_others_serve(offset_ms: int) -> None:
    """ARCHITECTURE 5: further than the skew bound from the median of the live peers, after several comparisons."""
    base, clocks, processes = started(3)
    clocks[2].offset_ms = offset_ms
    for _ in range(DISAGREEMENTS_MAX + 1):
        base.advance(HEARTBEAT_MS)
        await beat(*processes)
    assert [bool(process.health.clock_fault) for process in processes] == [False, False, True]
    assert processes[2].health.clock_offset_ms == pytest.approx(offset_ms, abs=5)

    async def nothing(tx: Tx) -> None:
        await tx.read_version()

    with pytest.raises(NotServing):
        await processes[2].keyspace.transact("anything", nothing)
    await processes[0].keyspace.transact("anything", nothing)
    clocks[2].offset_ms = 0
    base.advance(HEARTBEAT_MS)
    await beat(*processes)
    assert processes[2].health.faults == []
    await processes[2].keyspace.transact("anything", nothing)


async def test_a_difference_within_the_bound_is_none() -> None:
    base, clocks, processes = started(3)
    clocks[1].offset_ms = CONFIG.skew_ms - 10
    for _ in range(6):
        base.advance(HEARTBEAT_MS)
        await beat(*processes)
    assert all(process.health.faults == [] for process in processes)


async def test_peers_are_live_while_they_beat_and_forgotten_long_after() -> None:
    base, _, (first, second) = started(2)
    await beat(first, second, first)
    assert first.peers() == sorted([first.process_id, second.process_id])
    assert first.peers("fanout") == []
    base.advance(LIVE_MS + 1)
    await beat(first)
    assert first.peers() == [first.process_id]
    base.advance(FORGOTTEN_MS)
    await beat(first)
    await beat(first)
    assert "forget_process" in first.keyspace.meter.snapshot()


def test_one_disagreement_is_no_verdict() -> None:
    """A cluster's recovery makes versions jump once; marks from before it tell nothing."""
    health = Health(500)
    for _ in range(DISAGREEMENTS_MAX - 1):
        health.compare_clocks(ClockMark(10_000, 0), [ClockMark(0, 0)])
    health.compare_clocks(ClockMark(0, 0), [ClockMark(0, 0)])
    health.compare_clocks(ClockMark(10_000, 0), [ClockMark(0, 0)])
    assert health.faults == []


def test_without_peers_no_clock_is_wrong() -> None:
    health = Health(500)
    for _ in range(10):
        health.compare_clocks(ClockMark(10**9, 0), [])
    assert health.faults == []


async def test_an_open_process_announces_itself_and_leaves_nothing_behind() -> None:
    clock = VirtualClock()
    store = memory_store(clock=clock)
    async with open_process(CONFIG, "gateway", clock=clock, store=store) as process:
        seen = Process(CONFIG, "dispatcher", store, clock)
        await seen.heartbeat()
        assert process.process_id in seen.peers("gateway")
        commits = process.keyspace.meter.snapshot()["announce_process"].commit_count
        await until(lambda: clock.next_wake_ms() is not None)
        clock.advance(HEARTBEAT_MS)
        await until(lambda: process.keyspace.meter.snapshot()["announce_process"].commit_count > commits)
        assert process.keyspace.meter.snapshot()["record_high_water"].commit_count == 1
    await seen.heartbeat()
    assert seen.peers("gateway") == []
    await store.close()


async def test_a_version_that_came_late_accuses_nobody() -> None:
    """On a busy machine the version may come long after the clock was asked; such a mark is dropped."""
    base, clocks, processes = started(3)
    await beat(*processes)
    busy = processes[2]
    asked = clocks[2].now_ms

    def slow() -> int:
        base.advance(CONFIG.skew_ms)
        return asked()

    clocks[2].now_ms = slow  # type: ignore[method-assign]
    for _ in range(2 * DISAGREEMENTS_MAX):
        base.advance(HEARTBEAT_MS)
        await beat(busy)
    assert busy.health.faults == []


async def test_a_process_whose_marks_are_never_prompt_lets_go_of_the_dead() -> None:
    """Nothing waits for the dead: a busy machine, which yields no mark, must not keep their shards from being looked after."""
    base, clocks, (first, second, third) = started(3)
    await beat(first, second, third, first, second, third)
    busy = Process(CONFIG, "gateway", first.keyspace.store, clocks[0])
    asked = clocks[0].now_ms

    def slow() -> int:
        base.advance(CONFIG.skew_ms)
        return asked()

    clocks[0].now_ms = slow  # type: ignore[method-assign]
    await beat(busy)
    assert set(busy.peers()) == {one.process_id for one in (busy, first, second, third)}
    for _ in range(LIVE_MS // HEARTBEAT_MS + 1):
        base.advance(HEARTBEAT_MS)
        await beat(third, busy)
    assert set(busy.peers()) == {busy.process_id, third.process_id}


async def test_a_dead_peer_goes_though_the_clusters_versions_jumped() -> None:
    """A recovery adds 100 s to the versions: a mark from before it makes the dead look as if their clock were off."""
    base, _, (first, second) = started(2)
    await beat(first, second, first)
    jump = ProcessRecord(
        process_id=second.process_id, role="gateway", address="", clock_ms=base.now_ms(), started_at_ms=0, version="",
        mark_ms=base.now_ms(), mark_version=10**9,
    )  # fmt: skip
    await first.keyspace.transact("announce_process", lambda tx: announce_process(tx, jump))
    await beat(first)
    assert second.process_id in first.peers()
    for _ in range(LIVE_MS // HEARTBEAT_MS + 1):
        base.advance(HEARTBEAT_MS)
        await beat(first)
    assert first.peers() == [first.process_id]


async def test_a_record_of_a_newer_release_makes_a_process_unready_not_dead() -> None:
    """In the middle of an upgrade an older process may meet what it cannot read; it says so and serves again later."""
    clock = VirtualClock()
    store = memory_store(clock=clock)
    async with open_process(CONFIG, "gateway", clock=clock, store=store) as process:
        key = PROCESS.at("newer").data

        async def change(value: bytes | None) -> None:
            raw = store.begin()
            if value is None:
                raw.clear(key)
            else:
                raw.set(key, value)
            await raw.commit()
            await until(lambda: clock.next_wake_ms() is not None)
            clock.advance(HEARTBEAT_MS)

        await change(bytes((127,)) + b"[]")
        await until(lambda: bool(process.health.faults))
        assert "newer release" in process.health.store_fault
        await change(None)
        await until(lambda: not process.health.faults)
    await store.close()


def test_a_process_carries_the_deployments_word_on_run_times() -> None:
    """RFD 2, "a visible deployment policy": whichever process creates a run knows it; 0 says nothing."""
    base = VirtualClock()
    store = memory_store(clock=base)
    assert Process(CONFIG, "dispatcher", store, base).keyspace.run_time == ANY_TIME
    bounded = dataclasses.replace(CONFIG, run_timeout_default_ms=5_000, run_timeout_max_ms=9_000)
    assert Process(bounded, "dispatcher", store, base).keyspace.run_time == RunTimePolicy(5_000, 9_000)
