"""The pump of server lanes over a real keyspace: on time, in turns, whatever one handler does, and for nothing when idle."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from prometheus_client import CollectorRegistry
from transitions.world import World

from keyspace.clock import VirtualClock
from keyspace.keyspace import Keyspace
from keyspace.layout import DUE, ITEM, RUN
from keyspace.lifecycle import Phase
from keyspace.limits import SHARDS
from keyspace.records.run import RunRecord
from keyspace.records.work import ItemRecord, LaneKind, WorkKind
from keyspace.store.embedded import memory_store
from keyspace.tx import Tx
from services.dispatcher.server_handlers import SERVER_LANES, server_handlers
from services.lanes.affinity import owned_shards
from services.lanes.handlers import Handler, Handlers
from services.lanes.metrics import LaneMetrics
from services.lanes.options import TURN_ITEMS, LaneOptions
from services.lanes.pump import LanePump

LOOP_TURNS = 200
TIMEOUT_MS = 60_300
HANDLERS = server_handlers(value_bytes_max=1_000)


class Lanes:
    """One process that does server work in a world, without any worker."""

    def __init__(
        self,
        world: World,
        process_id: str = "d1",
        peers: tuple[str, ...] = (),
        handlers: Handlers = HANDLERS,
        **options: int,
    ) -> None:
        self.registry = CollectorRegistry()
        self.peers = list(peers)
        store = memory_store(clock=world.clock, engine=world.engine)
        self.keyspace = Keyspace(store, clock=world.clock, prefix=world.keyspace.prefix, rng=random.Random(process_id))
        self.pump = LanePump(
            self.keyspace,
            SERVER_LANES,
            handlers,
            LaneOptions(**options),
            LaneMetrics(self.registry, "lanes"),
            process_id=process_id,
            peers=lambda: [process_id, *self.peers],
        )

    def metric(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"lanes_{name}", labels) or 0.0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Lanes]:
        """Run for as long as the block; leaving it is a kill."""
        async with anyio.create_task_group() as group:
            group.start_soon(self.pump.run)
            yield self
            group.cancel_scope.cancel()


async def turns(count: int = LOOP_TURNS) -> None:
    for _ in range(count):
        await checkpoint()


async def pass_time(world: World, delta_ms: int, step_ms: int = 250) -> None:
    for _ in range(0, delta_ms, step_ms):
        world.clock.advance(step_ms)
        await turns(60)


@pytest.fixture
async def world(anyio_backend: str) -> World:
    """A workspace whose runs have a minute, in virtual time."""
    made = World(clock=VirtualClock())
    await made.begin(timeout_ms=TIMEOUT_MS)
    return made


async def start_runs(world: World, count: int) -> list[RunRecord]:
    return [await world.start_run() for _ in range(count)]


async def stopped_count(world: World) -> int:
    return sum(run.stop is not None for run in await world.runs())


async def test_what_comes_due_while_turns_begin_does_not_wait_for_the_bucket(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ARCHITECTURE 4, "a timer is on time", though its millisecond comes between the look at lanes and the wait."""
    begin_turns = LanePump._start_turns
    held_up_ms: list[int] = []

    def begin_slowly(pump: LanePump, *args: Any) -> None:
        begin_turns(pump, *args)
        if held_up_ms:
            world.clock.advance(held_up_ms.pop())

    monkeypatch.setattr(LanePump, "_start_turns", begin_slowly)
    async with Lanes(world).running() as lanes:
        (run,) = await start_runs(world, 1)
        assert run.deadline_at_ms is not None
        await pass_time(world, 60_250)
        world.clock.advance(run.deadline_at_ms - world.clock.now_ms() - 1)
        await turns()
        held_up_ms.append(1)
        lanes.pump._alarm.ring()
        await turns()
        assert not held_up_ms
        assert world.clock.now_ms() == run.deadline_at_ms
        assert (await world.get_run(run.run_id)).stop is not None


@pytest.mark.case(65)
async def test_a_deadline_fires_at_its_millisecond(world: World) -> None:
    """ARCHITECTURE 4, "a timer is on time": not 1 ms early, and at the instant itself without any ring."""
    async with Lanes(world).running() as lanes:
        (run,) = await start_runs(world, 1)
        assert run.deadline_at_ms is not None
        await pass_time(world, 60_250)
        world.clock.advance(run.deadline_at_ms - world.clock.now_ms() - 1)
        await turns()
        assert (await world.get_run(run.run_id)).stop is None
        world.clock.advance(1)
        await turns()
        stop = (await world.get_run(run.run_id)).stop
        assert stop is not None and stop.at_ms == run.deadline_at_ms
        assert lanes.metric("handled_total", kind="run_timeout") == 1
        assert lanes.metric("late_seconds_sum", kind="run_timeout") == 0.0
        assert lanes.metric("late_seconds_count", kind="run_timeout") == 1
    await world.check()


@pytest.mark.case(28)
async def test_deadlines_that_passed_while_nobody_lived_fire_at_once(world: World) -> None:
    """Case 028: no process for an hour; the first scan of the next one finds what its pointers say, in all shards."""
    for number in range(6):
        await world.begin(workspace=f"ws-{number}", timeout_ms=TIMEOUT_MS)
        await world.start_run(workspace=f"ws-{number}")
    world.clock.advance(3_600_000)
    async with Lanes(world).running():
        await pass_time(world, 1_000)
        for number in range(6):
            (run,) = await world.runs(workspace=f"ws-{number}")
            assert run.phase is Phase.TERMINAL
    await world.check()


async def test_many_deadlines_at_one_instant_all_fire(world: World) -> None:
    """W6, "deadlines at one instant": more than one turn takes, each fired once, their pointers cleared behind them."""
    count = 3 * TURN_ITEMS + 1
    async with Lanes(world).running() as lanes:
        await start_runs(world, count)
        await pass_time(world, 62_000)
        assert await stopped_count(world) == count
        assert lanes.metric("handled_total", kind="run_timeout") == count
        await pass_time(world, 3_000)
        span = DUE.span(LaneKind.TIME)
        assert not [key for key in await world.dump() if span.begin <= key < span.end]
    await world.check()


@pytest.mark.case(8)
async def test_timers_that_always_fail_hide_none_behind_them(world: World) -> None:
    """Case 008 for the new lanes: a turn's worth that cannot be handled or even read, and a sound one behind them."""
    broken = await start_runs(world, TURN_ITEMS + 2)
    world.clock.advance(100)
    sound = await world.start_run()

    async def damage(tx: Tx) -> None:
        for run in broken[1:]:
            tx._raw.set(world.keyspace.prefix + RUN.at("acme", run.run_id).data, b"\x01broken")
        assert broken[0].timeout_item is not None
        tx._raw.set(world.keyspace.prefix + ITEM.at("acme", broken[0].timeout_item).data, b"\x01broken")

    async with Lanes(world).running() as lanes:
        await world.run("damage", damage)
        await pass_time(world, 61_000)
        assert (await world.get_run(sound.run_id)).stop is not None
        failures = lanes.metric("failures_total", kind="run_timeout") + lanes.metric(
            "failures_total", kind="unreadable"
        )
        assert failures == len(broken), "each one counted, none tried in a hot loop"
        assert lanes.metric("failing_items") == len(broken), "failing items are visible"


@pytest.mark.case(10)
async def test_a_killed_process_leaves_its_timers_to_the_others(world: World) -> None:
    """Case 010, "deadline and timer firing": nothing is leased, so whoever lives fires within the rescan period."""
    async with Lanes(world, process_id="d1").running():
        runs = await start_runs(world, 3)
        await pass_time(world, 2_000)
    async with Lanes(world, process_id="d2", peers=("d1",), rescan_ms=5_000).running():
        await pass_time(world, TIMEOUT_MS + 6_000)
        for run in runs:
            assert (await world.get_run(run.run_id)).phase is Phase.TERMINAL
    await world.check()


@pytest.mark.case(10)
async def test_a_process_that_looks_after_nothing_inherits_at_once(world: World) -> None:
    """Case 010: among many processes some have no shard; when the others die, the next second and not the next rescan is theirs."""
    peers = ("d1", "d2", "d3")
    own = next(name for n in range(1_000) if not owned_shards(name := f"heir{n}", peers, range(SHARDS)))
    heir = Lanes(world, process_id=own, peers=peers, rescan_ms=45_000)
    async with heir.running():
        runs = await start_runs(world, 3)
        await pass_time(world, TIMEOUT_MS - 10_000)
        heir.peers.clear()
        await pass_time(world, 11_000)
        for run in runs:
            found = await world.get_run(run.run_id)
            assert found.stop is not None and run.deadline_at_ms is not None
            assert 0 <= found.stop.at_ms - run.deadline_at_ms < 1_000
        assert heir.metric("shards") == SHARDS


@pytest.mark.case(16)
async def test_two_processes_fire_each_timer_once(world: World) -> None:
    """Case 016: both look after one shard; one commits, the other finds the item gone, and nobody failed."""
    first, second = Lanes(world, process_id="d1"), Lanes(world, process_id="d2")
    async with first.running(), second.running():
        await start_runs(world, 20)
        await pass_time(world, 62_000)
        assert await stopped_count(world) == 20
        failed = [one.metric("failures_total", kind="run_timeout") for one in (first, second)]
        assert failed == [0, 0]
        for run in await world.runs():
            assert (await world.kinds(run.run_id)).count("stop-committed") == 1
    await world.check()


async def test_a_kind_that_nobody_here_knows_is_left_where_it_is(world: World) -> None:
    """HOUSE 4: an older release's process passes over what a newer one enqueued, and defers none of it."""
    (run,) = await start_runs(world, 1)
    before = (await world.item(run.timeout_item or "")) if run.timeout_item else None
    async with Lanes(world, handlers={}).running() as lanes:
        await pass_time(world, TIMEOUT_MS + 5_000)
        assert await world.item(run.timeout_item or "") == before
        assert lanes.metric("failing_items") == 0
    async with Lanes(world, process_id="d2").running():
        await turns(600)
        assert (await world.get_run(run.run_id)).phase is Phase.TERMINAL


async def test_an_item_that_its_handler_leaves_is_handled_again_at_once(world: World) -> None:
    """A handler that works in chunks says so, and its lane is not left until it has ended."""
    seen: list[str] = []

    async def count(tx: Tx, workspace: str, item: ItemRecord) -> int:
        tx.put(ITEM.at(workspace, item.item_id), item)
        seen.append(item.item_id)
        return len(seen)

    handlers: dict[WorkKind, Any] = {WorkKind.RUN_TIMEOUT: Handler("count", count, goes_on=lambda done: done < 3)}
    (run,) = await start_runs(world, 1)
    async with Lanes(world, handlers=handlers).running():
        world.clock.advance(TIMEOUT_MS)
        await turns(600)
        assert seen == [run.timeout_item] * 3


async def test_idle_cost_is_one_scan_a_second_for_all_lanes(world: World) -> None:
    """FILLED-IN S4: one transaction a bucket, whatever is at rest; a million timers to come change nothing."""
    await start_runs(world, 40)
    async with Lanes(world).running() as lanes:
        await pass_time(world, 2_000)
        before = lanes.keyspace.meter.snapshot()["scan_lanes"].commit_count
        looks = lanes.keyspace.meter.snapshot().get("find_items")
        await pass_time(world, 10_000)
        figures = lanes.keyspace.meter.snapshot()
        assert 9 <= figures["scan_lanes"].commit_count - before <= 11
        assert figures.get("find_items") == looks, "nothing that is not due is looked at"


async def test_draining_ends_after_what_is_under_way(world: World) -> None:
    """ARCHITECTURE 2, "SIGTERM drains": `run` returns by itself, and what was not begun waits for another process."""
    lanes = Lanes(world)
    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(lanes.pump.run)
            await turns()
            lanes.pump.drain()
