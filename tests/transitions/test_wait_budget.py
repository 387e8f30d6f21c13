"""What an expansion with many waits weighs: every transaction within its allowance, in as many as the allowance says.

The waits are loaded in bulk: fewer with every test run, as many as the specification states with `make scale`.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import NamedTuple

import msgspec
import pytest
from many_waits import EVENT, load_entries, load_waits
from recording import RecordingStore
from sizes import at_scale
from test_waits import waiting
from world import EagerClock, World

from keyspace.layout import EVENT as EVENT_LEAF
from keyspace.layout import EXPANSION, ITEM, RUN, WAIT_INDEX
from keyspace.lifecycle import StepState
from keyspace.limits import (
    ALLOWANCE_BYTES_DEFAULT,
    ALLOWANCE_BYTES_MAX,
    BINDING_PAGE_ITEMS,
    FUNCTIONS_MAX,
    REPLAY_BYTES_MAX,
    REPLAY_STEP_BYTES,
    WAIT_PAGE_ITEMS,
)
from keyspace.records.event import ExpansionState
from keyspace.store.embedded import memory_store
from keyspace.transitions import wait_page
from keyspace.transitions.accept_event import Submission, accept_event
from keyspace.transitions.binding_page import next_candidates, reserved_bytes
from keyspace.transitions.declaration import WAIT_OUTCOME_BYTES_MAX
from keyspace.transitions.declare_wait import payload_charge_bytes
from keyspace.transitions.expand_event import finalization_bytes
from keyspace.tx import Tx

KIB, MIB = 1024, 1024 * 1024
CHUNKS_MAX = 20_000
WORST = '"\\' * 100
WIDE = "\U0001f600" * 200
TOLERANCE = 0.1


class Scale(NamedTuple):
    """How many waits, of which payload, beside how many bindings, in which allowance."""

    waits: int
    payload_bytes: int
    allowance_bytes: int = ALLOWANCE_BYTES_DEFAULT
    bindings: int = 0
    prefix: bytes = b"\x15\x07"
    name: str = "n"


SCALES = {
    "many small": Scale(625, KIB),
    "large": Scale(25, 256 * KIB),
    "largest": Scale(12, MIB, ALLOWANCE_BYTES_MAX),
    "bindings besides": Scale(20, 256 * KIB, bindings=312),
    # Less than a deployment may set: the first settlement has to borrow from the bindings' half.
    "borrowing": Scale(3, 256 * KIB, 400_000, bindings=100),
    "bindings alone": Scale(0, KIB, bindings=312),
    "worst names": Scale(150, KIB, name=WORST, prefix=b"\x00\xff" * 32),
    "wide names": Scale(60, 256 * KIB, name=WIDE, prefix=b"\x15" * 64),
    "long prefix": Scale(150, KIB, prefix=b"\x15" * 64),
}
STATED = {
    "many small": Scale(10_000, KIB),
    "large": Scale(100, 256 * KIB),
    "largest": Scale(24, MIB, ALLOWANCE_BYTES_MAX),
    "bindings besides": Scale(100, 256 * KIB, bindings=5_000),
    "bindings alone": Scale(0, KIB, bindings=5_000),
    "worst names": Scale(10_000, KIB, name=WORST, prefix=b"\x00\xff" * 32),
    "long prefix": Scale(10_000, KIB, prefix=b"\x15" * 64),
}
"""The specification's sizes, and both kinds of long keys at the largest of them."""
BOTH = [pytest.param(scale, id=name) for name, scale in SCALES.items()] + [
    at_scale(scale, name=f"{name}, as stated") for name, scale in STATED.items()
]


async def scaled(scale: Scale) -> tuple[World, RecordingStore, str]:
    """Return a world in which so many runs wait for an event that so many bindings are bound to, and the event."""
    clock = EagerClock()
    store = RecordingStore(memory_store(clock=clock))
    world = World(clock=clock, store=store, prefix=scale.prefix)
    world.keyspace.allowance_bytes = scale.allowance_bytes
    await world.begin()
    for begin in range(0, scale.bindings, FUNCTIONS_MAX):
        names = [f"f{number}" for number in range(begin, min(begin + FUNCTIONS_MAX, scale.bindings))]
        await world.publish({name: [EVENT] for name in names}, application=f"shop{begin}")
    name = scale.name[: 200 - len("fulfil")]
    await load_waits(
        world,
        scale.waits,
        match=lambda number: {"order": "7"},
        step_id=name + "s",
        application=name + "a",
        function=name + "f",
    )
    payload = b'"' + b"p" * (scale.payload_bytes - 2) + b'"'
    event_id = world.keyspace.mint()
    submission = Submission(EVENT, payload, {"order": "7"}, None, None)
    await world.run(
        "accept_event", lambda tx: accept_event(tx, "acme", submission, event_id=event_id, accepted_by="test")
    )
    world.clock.advance(1)
    store.commits.clear()
    return world, store, event_id


class Room(NamedTuple):
    """What the allowance leaves, and what one settlement and one binding are reserved."""

    left_bytes: int
    half_bytes: int
    wait_bytes: int
    binding_bytes: int


async def room_of(world: World, scale: Scale, event_id: str) -> Room:
    """Return the room of each of an event's chunks."""

    async def read(tx: Tx) -> Room:
        expansion, event = await tx.load(EXPANSION.at("acme", event_id), EVENT_LEAF.at("acme", event_id))
        assert expansion is not None and expansion.item_id is not None and event is not None
        item = await tx.load(ITEM.at("acme", expansion.item_id))
        assert item is not None
        page, _ = await next_candidates(tx, "acme", event, expansion, None)
        assert bool(page) == bool(scale.bindings)
        binding_bytes = reserved_bytes("acme", page, tx.prefix_bytes) // len(page) if page else 0
        wait_bytes = 0
        if scale.waits:
            (_, value), *_ = await tx.page(WAIT_INDEX.span("acme", EVENT), limit=1, snapshot=True)
            ref = WAIT_INDEX.codec.decode(value)
            wait_bytes = ref.settle_bytes + payload_charge_bytes(ref, "acme", event.payload_bytes, tx.prefix_bytes)
        left_bytes = tx.budget.left_bytes - finalization_bytes(tx, "acme", expansion, item)
        return Room(left_bytes, tx.budget.allowance_bytes // 2, wait_bytes, binding_bytes)

    return await world.read(read)


def computed_chunks(scale: Scale, room: Room) -> int:
    """Return how many transactions the allowance makes of waits and bindings (RFD 2, "half and remainder")."""
    waits, bindings, count = scale.waits, scale.bindings, 0
    while waits or bindings:
        planned = min(bindings, BINDING_PAGE_ITEMS, room.half_bytes // room.binding_bytes) if bindings else 0
        settled = 0
        if waits:
            remainder_bytes = room.left_bytes - planned * room.binding_bytes
            settled = min(waits, WAIT_PAGE_ITEMS, max(1, remainder_bytes // room.wait_bytes))
        if planned:
            unspent_bytes = room.left_bytes - settled * room.wait_bytes
            planned = max(min(planned, unspent_bytes // room.binding_bytes), 0 if settled else 1)
        waits, bindings, count = waits - settled, bindings - planned, count + 1
    return count


@pytest.mark.case(47)
@pytest.mark.case(59)
@pytest.mark.parametrize("scale", BOTH)
async def test_an_expansion_of_any_size_fits(scale: Scale, request: pytest.FixtureRequest) -> None:
    """RFD 2, "Both pages of the expansion transaction are bounded": measured by the store, with progress in each, and in as
    many transactions as the allowance computes."""
    world, store, event_id = await scaled(scale)
    computed = computed_chunks(scale, await room_of(world, scale, event_id))
    progress = (0, 0)
    for _ in range(CHUNKS_MAX):
        if (await world.expansion(event_id)).item_id is None:
            break
        await world.expand_chunk(event_id)
        expansion = await world.expansion(event_id)
        after = (expansion.inspected_count, expansion.evaluated_count)
        assert after != progress or expansion.state is ExpansionState.COMPLETE, "a chunk that moved nothing"
        progress = after
    expansion = await world.expansion(event_id)
    assert expansion.state is ExpansionState.COMPLETE
    assert (expansion.inspected_count, expansion.settled_count) == (scale.waits, scale.waits)
    assert expansion.evaluated_count == scale.bindings
    sizes = [commit.size_bytes for commit in store.commits if commit.name == "expand_event"]
    print(
        f"\n{request.node.callspec.id}: {scale.waits:,} waits, {scale.bindings:,} bindings, {len(sizes)} transactions "
        f"({computed} computed), largest {max(sizes):,} of {scale.allowance_bytes:,} bytes"
    )
    assert max(sizes) <= scale.allowance_bytes, "the store measures more than was charged"
    assert abs(len(sizes) - computed) <= computed * TOLERANCE, (len(sizes), computed)
    assert await world.records(WAIT_INDEX) == []


@pytest.mark.parametrize("name", [WORST, WIDE, "n"], ids=["worst", "wide", "n"])
@pytest.mark.parametrize("prefix", [b"", b"\x00" * 64], ids=["bare", "prefixed"])
@pytest.mark.parametrize("fits", [True, False])
async def test_the_reserve_is_never_below_what_a_settlement_charges(name: str, prefix: bytes, fits: bool) -> None:
    """RFD 2, "reserved before the page reads the candidate": by the charge of the names that are worst to store."""
    clock = EagerClock()
    store = RecordingStore(memory_store(clock=clock))
    world = World(clock=clock, store=store, prefix=prefix)
    scope = {"step_id": name[:199] + "s", "application": name[:199] + "a", "function": name[:199] + "f"}
    await world.begin()
    (run_id,) = await load_waits(world, 1, match=lambda number: {}, event=name, **scope)
    if not fits:
        await _fill_replay(world, run_id)
    payload = b'"p"' if fits else b'"' + b"p" * WAIT_OUTCOME_BYTES_MAX + b'"'
    event_id = (await world.submit(name, payload)).event_id
    entries = await world.records(WAIT_INDEX)
    world.clock.advance(1)
    charged: list[int] = []

    async def body(tx: Tx) -> None:
        expansion, event = await tx.load(EXPANSION.at("acme", event_id), EVENT_LEAF.at("acme", event_id))
        assert expansion is not None and event is not None
        before = tx.budget.spent_bytes
        page = await wait_page.match_waits(
            tx, "acme", event, expansion, within_bytes=tx.budget.left_bytes, borrowable_bytes=0
        )
        assert page.settled_count == 1
        charged.append(tx.budget.spent_bytes - before)

    await world.run("match", body)
    reserved = entries[0].settle_bytes + payload_charge_bytes(entries[0], "acme", len(payload), len(prefix))
    state = (await world.step(run_id, scope["step_id"])).state
    assert state is (StepState.COMPLETED if fits else StepState.FAILED)
    assert charged[0] <= reserved <= 3 * charged[0], (charged[0], reserved)


async def _fill_replay(world: World, run_id: str) -> None:
    """Leave the run's replay budget just what was kept free for the server's own word."""

    async def body(tx: Tx) -> None:
        run = await tx.load(RUN.at("acme", run_id))
        assert run is not None and run.step_id is not None
        left_bytes = len(run.step_id.encode()) + REPLAY_STEP_BYTES + WAIT_OUTCOME_BYTES_MAX
        tx.put(RUN.at("acme", run_id), msgspec.structs.replace(run, replay_bytes=REPLAY_BYTES_MAX - left_bytes))

    await world.run("fill", body)


async def test_a_settlement_that_fits_nothing_is_passed_over(world: World) -> None:
    """RFD 2, "A settlement no record can carry at all leaves the wait outstanding": the event completes all the same."""
    run = await waiting(world)
    event_id = (await world.submit(EVENT, b"1", correlation={"order": "7"})).event_id
    world.clock.advance(1)

    async def body(tx: Tx) -> wait_page.WaitPage:
        expansion, event = await tx.load(EXPANSION.at("acme", event_id), EVENT_LEAF.at("acme", event_id))
        assert expansion is not None and event is not None
        return await wait_page.match_waits(tx, "acme", event, expansion, within_bytes=500, borrowable_bytes=500)

    assert await world.run("match", body) == (wait_page.DONE, "", 1, 0)
    assert (await world.step(run.run_id, "packed")).state is StepState.WAITING
    await world.check()


async def test_the_bindings_wait_for_the_settlement_that_borrowed() -> None:
    """RFD 2, "the binding page then stops before the borrowed bytes": with the cursor it had, and never instead of the wait."""
    world, _, event_id = await scaled(SCALES["borrowing"])
    seen = []
    for _ in range(CHUNKS_MAX):
        if (await world.expansion(event_id)).item_id is None:
            break
        done = await world.expand_chunk(event_id)
        seen.append((done.settled_count, done.evaluated_count))
    assert [settled for settled, _ in seen[:3]] == [1, 1, 1], "one each time, from the first chunk on"
    assert all(evaluated < BINDING_PAGE_ITEMS for _, evaluated in seen[:3]), "bindings gave way"
    assert sum(evaluated for _, evaluated in seen) == SCALES["borrowing"].bindings


@pytest.mark.case(35)
async def test_ten_thousand_other_orders_are_not_looked_at() -> None:
    """FILLED-IN 9, S8: an event meets the registrations of its own pairs and of no pair only; counted."""
    clock = EagerClock()
    world = World(clock=clock)
    await world.begin()
    await load_entries(world, 10_000, lambda number: {"order": f"other {number}"})
    await load_waits(world, 3, match=lambda number: {}, first=10_000)
    (own,) = await load_waits(world, 1, match=lambda number: {"order": "mine"}, first=20_000)
    unheard = (await world.submit("nobody.waits", b"1", correlation={"order": "mine", "place": "a"})).event_id
    accepting = world.keyspace.meter.snapshot()["accept_event"].read_count
    event_id = (await world.submit(EVENT, b"1", correlation={"order": "mine", "place": "a"})).event_id
    accepted = world.keyspace.meter.snapshot()["accept_event"].read_count
    assert accepted == 2 * accepting, "FILLED-IN 9, S1: the acknowledgement reads the same, whatever waits"
    world.clock.advance(1)
    assert await world.expand() == 2
    assert (await world.expansion(unheard)).inspected_count == 0
    expansion = await world.expansion(event_id)
    assert (expansion.inspected_count, expansion.settled_count) == (4, 4)
    figures = world.keyspace.meter.snapshot()["expand_event"]
    assert figures.read_count < 40, "ranges and records of what was met, and nothing for the others"
    assert (await world.step(own, "packed")).state is StepState.COMPLETED
    assert len(await world.records(WAIT_INDEX)) == 10_000


@pytest.mark.case(35)
@pytest.mark.parametrize("count", [200, at_scale(10_000)])
async def test_each_order_wakes_its_own_run(count: int) -> None:
    """Runs that each wait for their own order, and an event for each: it meets one run, reads no more among many, and the
    ones that ask for no pair go with the first."""
    world = World()
    await world.begin()
    runs = await load_waits(world, count, match=lambda number: {"order": str(number)})
    anything = await load_waits(world, 3, match=lambda number: {}, first=count)
    reads: Counter[int] = Counter()
    for number in random.Random(count).sample(range(count), k=count):
        event_id = (await world.submit(EVENT, b"%d" % number, correlation={"order": str(number)})).event_id
        before = world.keyspace.meter.snapshot().get("expand_event")
        world.clock.advance(1)
        await world.expand_chunk(event_id)
        expansion = await world.expansion(event_id)
        met = 1 if before is not None else 1 + len(anything)
        assert (expansion.state, expansion.inspected_count, expansion.settled_count) == (
            ExpansionState.COMPLETE,
            met,
            met,
        )
        if before is not None:
            reads[world.keyspace.meter.snapshot()["expand_event"].read_count - before.read_count] += 1
        assert await world.value(runs[number], "packed") == b"%d" % number
    assert await world.records(WAIT_INDEX) == []
    assert len(reads) == 1, "an event reads the same, whether thousands wait or the last one"
    print(
        f"\n{count:,} runs, each waiting for its own order: an event expands in one transaction of {max(reads)} reads"
    )
    await world.check()


@pytest.mark.case(8)
async def test_pages_of_what_does_not_match_hide_nothing(world: World) -> None:
    """Case 008, the cursor rule: two pages of registrations under the same first pair, and the one that matches behind."""
    await load_entries(world, 2 * WAIT_PAGE_ITEMS, lambda number: {"a": "1", "z": f"other {number}"})
    (own,) = await load_waits(world, 1, match=lambda number: {"a": "1", "z": "mine"}, first=20_000)
    event_id = (await world.submit(EVENT, b"1", correlation={"a": "1", "z": "mine"})).event_id
    world.clock.advance(1)
    assert await world.expand() == 3
    expansion = await world.expansion(event_id)
    assert (expansion.inspected_count, expansion.settled_count) == (2 * WAIT_PAGE_ITEMS + 1, 1)
    assert (await world.step(own, "packed")).state is StepState.COMPLETED
