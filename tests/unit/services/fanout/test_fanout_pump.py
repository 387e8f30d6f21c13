"""The fan-out process over a real keyspace: events become runs, in turns, whatever one of them does."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
from anyio.lowlevel import checkpoint
from prometheus_client import CollectorRegistry
from transitions.world import World

from keyspace.clock import VirtualClock
from keyspace.keyspace import Keyspace
from keyspace.layout import DUE, EVENT, ITEM, RUN_LIST
from keyspace.lifecycle import StepState
from keyspace.records.event import ExpansionState
from keyspace.records.run import RetryRecord
from keyspace.records.work import LaneKind
from keyspace.store.embedded import memory_store
from keyspace.transitions.declaration import WaitTerms
from keyspace.tx import Tx
from services.fanout.expansion import fan_out_pump
from services.lanes.options import TURN_ITEMS, LaneOptions

LOOP_TURNS = 200
ONCE = RetryRecord(attempts=1, initial_ms=0, coefficient=1.0, cap_ms=0)


class FanOut:
    """One fan-out process over a world."""

    def __init__(self, world: World, process_id: str = "f1", peers: tuple[str, ...] = (), **options: int) -> None:
        self.world = world
        self.registry = CollectorRegistry()
        store = memory_store(clock=world.clock, engine=world.engine)
        keyspace = Keyspace(store, clock=world.clock, prefix=world.keyspace.prefix, rng=random.Random(process_id))
        self.pump = fan_out_pump(
            keyspace,
            LaneOptions(**options),
            self.registry,
            process_id=process_id,
            peers=lambda: [process_id, *peers],
        )

    def metric(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"ryusen_fanout_{name}", labels) or 0.0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[FanOut]:
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
        await turns(50)


@pytest.fixture
async def world(anyio_backend: str) -> World:
    """A workspace whose function `fulfil` starts on `order.placed`, in virtual time."""
    made = World(clock=VirtualClock())
    await made.begin()
    return made


async def test_an_event_becomes_its_run_at_once_and_its_pointer_goes(world: World) -> None:
    """ARCHITECTURE 4: the bell wakes the process without time passing, and an emptied past bucket is cleared."""
    async with FanOut(world).running() as fanout:
        await turns()
        accepted = await world.submit()
        await turns()
        assert (await world.expansion(accepted.event_id)).state is ExpansionState.COMPLETE
        assert len(await world.runs()) == 1
        assert await pointer_count(world) == 1
        await pass_time(world, 3_000)
        assert await pointer_count(world) == 0
        assert fanout.metric("pointers_cleared_total") == 1
    await world.check()


async def test_waits_are_settled_at_once_and_counted(world: World) -> None:
    """RFD 2, "Matching runs in bounded pages ... inside the event's own fan-out obligation": what was met, and settled."""
    await world.hello()
    for place in ("a", "b"):
        run = await world.start_run()
        terms = WaitTerms(event="order.packed", match={"order": "7", "place": place}, timeout_ms=60_000)
        await world.declare(await world.lease_pass(), "packed", retry=ONCE, terms=terms)
    async with FanOut(world).running() as fanout:
        await turns()
        accepted = await world.submit("order.packed", b"1", correlation={"order": "7", "place": "b"})
        await turns()
        assert (await world.expansion(accepted.event_id)).state is ExpansionState.COMPLETE
        assert (await world.step(run.run_id, "packed")).state is StepState.COMPLETED
        # The empty pair's range and those of the two pairs it carries; both waits lie under their first pair.
        assert (fanout.metric("waits_inspected_total"), fanout.metric("waits_settled_total")) == (2, 1)
    await world.check()


async def pointer_count(world: World) -> int:
    span = DUE.span(LaneKind.FANOUT)
    return sum(span.begin <= key < span.end for key in await world.dump())


async def test_events_of_an_earlier_life_are_found_by_the_first_scan(world: World) -> None:
    """Case 034's spirit: acknowledged before any fan-out process lived, expanded by the first that does."""
    accepted = [await world.submit(payload=str(number).encode()) for number in range(3 * TURN_ITEMS)]
    await pass_time(world, 60_000, step_ms=4_000)
    async with FanOut(world).running():
        await pass_time(world, 2_000)
        for one in accepted:
            assert (await world.expansion(one.event_id)).state is ExpansionState.COMPLETE
    await world.check()


async def test_an_expansion_of_many_bindings_goes_on_chunk_by_chunk(world: World) -> None:
    """RFD 2, "Fan-out work traverses": bounded pages, each its own transaction, until every candidate is recorded."""
    await world.publish({f"f{number}": ["wide"] for number in range(150)})
    async with FanOut(world).running() as fanout:
        accepted = await world.submit("wide")
        await turns(1_000)
        expansion = await world.expansion(accepted.event_id)
        assert (expansion.state, expansion.matched_count) == (ExpansionState.COMPLETE, 150)
        assert fanout.metric("handled_total", kind="fanout") == 3
    await world.check()


@pytest.mark.case(58)
async def test_a_burst_of_one_workspace_does_not_hold_up_the_others(world: World) -> None:
    """Case 058's spirit: a workspace has its bounded turn, then the next one has its own."""
    for name in ("quiet-a", "quiet-b"):
        await world.begin(workspace=name)
    for number in range(20 * TURN_ITEMS):
        await world.submit(payload=str(number).encode())
    quiet = [(name, await world.submit(workspace=name)) for name in ("quiet-a", "quiet-b")]
    async with FanOut(world, concurrency=2).running():
        for _ in range(100):
            await turns(5)
            states = [(await world.expansion(one.event_id, workspace=name)).state for name, one in quiet]
            if all(state is ExpansionState.COMPLETE for state in states):
                break
        done = len(await world.records(RUN_LIST))
        assert all(state is ExpansionState.COMPLETE for state in states)
        assert done <= 6 * TURN_ITEMS, f"the quiet ones waited for {done} runs of the burst"


def failures(fanout: FanOut) -> float:
    return sum(fanout.metric("failures_total", kind=kind) for kind in ("fanout", "unreadable"))


@pytest.mark.case(8)
async def test_events_that_always_fail_hide_none_behind_them(world: World) -> None:
    """Case 008: a turn's worth of damaged events at the head of the lane, and one whose item cannot even be read."""
    broken = [await world.submit(payload=str(number).encode()) for number in range(TURN_ITEMS + 2)]
    unreadable = (await world.expansion(broken[0].event_id)).item_id

    async def damage(tx: Tx) -> None:
        for one in broken:
            tx._raw.set(world.keyspace.prefix + EVENT.at("acme", one.event_id).data, b"\x01broken")
        tx._raw.set(world.keyspace.prefix + ITEM.at("acme", unreadable).data, b"\x01broken")

    await world.run("damage", damage)
    sound = await world.submit(payload=b"sound")
    async with FanOut(world).running() as fanout:
        await turns(2_000)
        assert (await world.expansion(sound.event_id)).state is ExpansionState.COMPLETE
        assert failures(fanout) == len(broken), "each one counted, none tried in a hot loop"
        assert fanout.metric("failing_items") == len(broken)
        await pass_time(world, 20_000)
        tries = failures(fanout) / len(broken)
        assert 4 <= tries <= 6, "tried again after 1, 2, 4 and 8 seconds"
        late = await world.submit(payload=b"late")
        await turns(500)
        assert (await world.expansion(late.event_id)).state is ExpansionState.COMPLETE


@pytest.mark.case(10)
async def test_the_shards_of_a_dead_process_are_read_by_the_others(world: World) -> None:
    """Case 010: a peer that seems alive but works no more holds nothing up for longer than the rescan period."""
    async with FanOut(world, process_id="f1", peers=("f2", "f3", "f4", "f5"), rescan_ms=5_000).running() as fanout:
        await turns()
        assert 0 < fanout.metric("shards") < 8
        names = [f"ws-{number}" for number in range(8)]
        for name in names:
            await world.begin(workspace=name)
        accepted = [(name, await world.submit(workspace=name)) for name in names]
        await pass_time(world, 6_000)
        for name, one in accepted:
            assert (await world.expansion(one.event_id, workspace=name)).state is ExpansionState.COMPLETE
    await world.check()


@pytest.mark.case(16)
async def test_two_processes_on_one_event_make_its_runs_once(world: World) -> None:
    """Case 016: two fan-out processes run one chunk; the loser is benign."""
    first, second = FanOut(world, process_id="f1"), FanOut(world, process_id="f2")
    async with first.running(), second.running():
        accepted = [await world.submit(payload=str(number).encode()) for number in range(20)]
        await pass_time(world, 2_000)
        for one in accepted:
            assert (await world.expansion(one.event_id)).state is ExpansionState.COMPLETE
        assert len(await world.runs()) == 20
        assert failures(first) + failures(second) == 0
    await world.check()


async def test_draining_ends_after_the_chunk_under_way(world: World) -> None:
    """ARCHITECTURE 2, "SIGTERM drains": `run` returns by itself, and what was not begun waits for another process."""
    fanout = FanOut(world)
    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(fanout.pump.run)
            await turns()
            fanout.pump.drain()
    await world.submit()
    async with FanOut(world, process_id="f2").running():
        await turns()
        assert len(await world.runs()) == 1


async def test_idle_cost_is_one_scan_a_second_however_many_workspaces_there_are(world: World) -> None:
    """FILLED-IN S4: nothing grows with what is idle."""
    for number in range(30):
        await world.begin(workspace=f"idle-{number}")
    async with FanOut(world).running() as fanout:
        await pass_time(world, 2_000)
        before = fanout.metric("scans_total", reason="bucket")
        await pass_time(world, 10_000)
        scans = fanout.metric("scans_total", reason="bucket") - before
        assert scans <= 11, "one transaction for all shards"
        assert fanout.metric("scans_total", reason="bell") <= 1
