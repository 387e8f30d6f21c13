"""Runs under way yield to vested work of a higher priority: what the pump knows of it, and whole stories (ARCHITECTURE 6)."""

from __future__ import annotations

import msgspec
import pytest
from dispatch_rig import Rig, hello
from ryusen import App, Context
from ryusen.protocol.frames import Settled
from transitions.world import World
from whole_rig import Whole, effect

from keyspace.layout import ITEM
from keyspace.limits import PRIORITY_DEFAULT, PRIORITY_FIRST
from keyspace.queue import items
from keyspace.queue.claims import Candidate
from keyspace.records.run import RunRecord
from keyspace.records.work import Direction, application_lane
from keyspace.tx import Tx
from services.dispatcher.urgency import PEEK_LANES_MAX, PEEK_MS, PEEKED_ITEMS, Urgency, first_urgent
from services.lanes.duebook import LaneOf

URGENT = PRIORITY_FIRST - 1
STEPS = 6
STEP_MS = 60
"""How long a step takes: two looks lie within any three."""


def lane(number: int) -> LaneOf:
    return LaneOf("acme", application_lane("shop", f"f{number}", Direction.FORWARD))


ONE, TWO = lane(1), lane(2)


def entries(*priorities: int) -> list[Candidate]:
    return [Candidate(1_000 + number, priority, f"{number:032x}") for number, priority in enumerate(priorities)]


@pytest.mark.parametrize(
    ("found", "place"),
    [
        (entries(), None),
        (entries(PRIORITY_DEFAULT, PRIORITY_FIRST), None),
        (entries(URGENT), 0),
        (entries(PRIORITY_DEFAULT, PRIORITY_FIRST, URGENT, 0), 2),
    ],
)
def test_what_is_urgent_is_above_a_run_under_way(found: list[Candidate], place: int | None) -> None:
    """A run under way must not yield to another one like it: both would yield for ever."""
    assert first_urgent(found) == place


def test_a_look_follows_a_change_and_no_other_look_too_soon() -> None:
    """Nothing may poll: what did not change is not looked at, and what changes all the time ten times a second."""
    urgency = Urgency()
    assert urgency.to_peek([ONE, TWO], 0) == []
    assert urgency.due_in_ms(0) is None
    urgency.stirred([ONE])
    assert urgency.to_peek([ONE, TWO], 0) == [ONE]
    urgency.peeked([ONE], {}, 0)
    assert urgency.to_peek([ONE, TWO], 1_000) == []
    assert urgency.due_in_ms(1_000) is None
    urgency.stirred([ONE, TWO])
    urgency.peeked([TWO], {}, 1_000)
    assert urgency.to_peek([ONE, TWO], 1_000 + PEEK_MS - 1) == []
    assert urgency.due_in_ms(1_000 + PEEK_MS - 1) == 1
    assert urgency.to_peek([ONE, TWO], 1_000 + PEEK_MS) == [ONE]


def test_what_is_known_goes_with_the_work_the_seat_and_the_lane() -> None:
    """A note that outlived its work would keep runs from going on for nothing."""
    urgency = Urgency()
    urgency.stirred([ONE, TWO])
    urgency.peeked([ONE, TWO], {ONE: 3, TWO: 0}, 0)
    assert (urgency.place_in(ONE), urgency.place_in(TWO)) == (3, 0)
    assert urgency.is_waited_for(lambda key: key == TWO)
    assert not urgency.is_waited_for(lambda key: key == lane(9))
    urgency.taken(TWO)
    assert urgency.place_in(TWO) is None
    assert urgency.to_peek([ONE, TWO], PEEK_MS) == [ONE, TWO], "more of it may wait, there and here"
    urgency.peeked([ONE, TWO], {}, PEEK_MS)
    assert not urgency.is_waited_for(lambda key: True)
    urgency.peeked([ONE], {ONE: 1}, 2 * PEEK_MS)
    assert urgency.to_peek([TWO], 2 * PEEK_MS) == [], "the first lane has a seat, or nothing due"
    assert not urgency.is_waited_for(lambda key: True)
    assert urgency.due_in_ms(2 * PEEK_MS) is None


def test_a_look_is_bounded() -> None:
    urgency = Urgency()
    many = [lane(number) for number in range(2 * PEEK_LANES_MAX)]
    urgency.stirred(many)
    assert urgency.to_peek(many, 0) == many[:PEEK_LANES_MAX]
    urgency.peeked(many[:PEEK_LANES_MAX], {}, 0)
    assert urgency.to_peek(many, PEEK_MS) == many[PEEK_LANES_MAX:]


async def make_urgent(world: World, run: RunRecord) -> None:
    """Have a run's waiting item stand in its lane as an operator's command would put it there."""

    async def body(tx: Tx) -> None:
        assert run.item_id is not None
        item = await tx.load(ITEM.at("acme", run.item_id))
        assert item is not None
        items.consume(tx, "acme", item)
        items.enqueue(tx, "acme", msgspec.structs.replace(item, priority=URGENT))

    await world.run("make_urgent", body)


async def test_urgent_work_is_leased_before_what_came_first_and_is_looked_for_within_a_bound(rig: Rig) -> None:
    """The pump peeks only while no seat is free; a freed seat takes the urgent item from behind a backlog."""
    runs = [await rig.world.start_run(payload=b"%d" % number) for number in range(5)]
    worker = await rig.join(hello(capacity=1))
    first = await worker.assigned_pass()
    await rig.until_settled()
    await make_urgent(rig.world, runs[4])
    await rig.pass_time(10 * PEEK_MS)
    looks = rig.keyspace.meter.snapshot()["peek_lanes"]
    assert 1 <= looks.commit_count <= 12
    assert looks.write_count == 0
    worker.complete(first)
    await worker.hear(Settled)
    assert (await worker.assigned_pass()).ref.run == runs[4].run_id
    await rig.until_settled()
    before = rig.keyspace.meter.snapshot()["peek_lanes"].commit_count
    await rig.pass_time(20 * PEEK_MS)
    after = rig.keyspace.meter.snapshot()["peek_lanes"].commit_count
    assert after - before <= 3, "nothing urgent waits any more, and nothing changed"


async def test_urgent_work_behind_a_page_of_others_is_found_as_they_go(rig: Rig) -> None:
    """One look is bounded, so what it cannot see must be seen by a later one."""
    runs = [await rig.world.start_run(payload=b"%d" % number) for number in range(PEEKED_ITEMS + 3)]
    await make_urgent(rig.world, runs[-1])
    worker = await rig.join(hello(capacity=1))
    order = []
    for _ in range(5):
        assign = await worker.assigned_pass()
        order.append(assign.ref.run)
        await rig.pass_time(2 * PEEK_MS)
        worker.complete(assign)
        await worker.hear(Settled)
    assert runs[-1].run_id in order, "it would be the sixty-seventh"


@pytest.mark.parametrize("is_urgent", [True, False])
async def test_a_run_under_way_yields_to_urgent_work_and_to_nothing_else(is_urgent: bool) -> None:
    """ARCHITECTURE 6, "when work of higher priority has vested, it yields": with one seat, the run stops between two steps."""
    app = App("shop")
    order: list[bytes] = []
    later: list[RunRecord] = []

    @app.function(on="order.placed", name="fulfil")
    async def fulfil(ctx: Context, payload: int) -> int:
        for number in range(STEPS):
            await ctx.step.run(f"step-{number}", work, payload, number)
        return payload

    async def work(payload: int, number: int) -> int:
        effect()
        order.append(b"%d.%d" % (payload, number))
        if (payload, number) == (1, 1):
            later.extend([await whole.world.start_run(payload=payload) for payload in (b"2", b"3")])
            if is_urgent:
                await make_urgent(whole.world, later[1])
        await whole.world.clock.sleep_ms(STEP_MS)
        return payload

    whole = Whole(app, capacity=1)
    await whole.world.begin()
    await whole.world.start_run(payload=b"1")
    await whole.to_the_end()
    runs = {number: [b"%d.%d" % (number, step) for step in range(STEPS)] for number in (1, 2, 3)}
    assert sorted(order) == sorted(one for steps in runs.values() for one in steps)
    if is_urgent:
        begun = order.index(b"3.0")
        assert order[begun : begun + STEPS] == runs[3], "what it yielded to goes on by itself"
        assert begun < order.index(b"1.5"), "the run under way did not go on to its end first"
        assert begun < order.index(b"2.0"), "it went before what had come first"
    else:
        assert order[:STEPS] == runs[1]
    await whole.world.check()
