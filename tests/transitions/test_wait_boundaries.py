"""Where a wait begins and ends: the registration among the commits, its anchor, its run's deadline, and a page's edge."""

from __future__ import annotations

import pytest
from deadline_verbs import at_deadline
from server_steps import ONCE
from test_waits import MINUTE_MS, send, waiting
from world import World

from keyspace.layout import WAIT_INDEX
from keyspace.lifecycle import StepState
from keyspace.transitions import wait_page
from keyspace.transitions.declaration import WaitTerms
from keyspace.transitions.expand_event import expand_event
from keyspace.transitions.work import Accepted

TIMEOUT_MS = 3_600_000
EXPANSIONS_MAX = 20


async def state(world: World, run_id: str) -> StepState:
    return (await world.step(run_id, "packed")).state


@pytest.mark.parametrize("is_event_first", [True, False])
async def test_commit_order_alone_decides_between_event_and_registration(world: World, is_event_first: bool) -> None:
    """RFD 2, "The registration commit is the registration boundary": also when the event is expanded after both."""
    run = await world.start_run()
    passing = await world.lease_pass()
    if is_event_first:
        await world.submit("order.packed", b"1", correlation={"order": "7"})
    terms = WaitTerms(event="order.packed", match={"order": "7"}, timeout_ms=MINUTE_MS)
    assert await world.declare(passing, "packed", retry=ONCE, terms=terms) == Accepted()
    if not is_event_first:
        await world.submit("order.packed", b"1", correlation={"order": "7"})
    world.clock.advance(1)
    await world.expand()
    assert await state(world, run.run_id) is (StepState.WAITING if is_event_first else StepState.COMPLETED)
    await world.check()


@pytest.mark.parametrize(("offset_ms", "settles"), [(-1, True), (0, False), (1, False)])
async def test_a_match_is_made_strictly_before_the_anchor(world: World, offset_ms: int, settles: bool) -> None:
    """RFD 2, "A registration may be settled by a match only": the event came in time, and its expansion may be late."""
    run = await waiting(world)
    await world.submit("order.packed", b"1", correlation={"order": "7"})
    world.clock.advance(MINUTE_MS + offset_ms)
    await world.expand()
    assert await state(world, run.run_id) is (StepState.COMPLETED if settles else StepState.WAITING)
    await world.check()


@pytest.mark.parametrize(("offset_ms", "settles"), [(-1, True), (0, False)])
async def test_no_match_is_made_at_the_run_s_deadline(empty: World, offset_ms: int, settles: bool) -> None:
    """RFD 2, "delayed timer dispatch cannot let completion bypass the deadline": nor can an event."""
    await empty.begin(timeout_ms=TIMEOUT_MS)
    await empty.hello()
    run = await waiting(empty, timeout_ms=2 * TIMEOUT_MS)
    await at_deadline(empty, run.run_id, offset_ms - 1)
    await send(empty)
    assert await state(empty, run.run_id) is (StepState.COMPLETED if settles else StepState.WAITING)
    await empty.check()


async def test_each_registration_is_inspected_once_over_pages_of_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RFD 2, "Matching runs in bounded pages": the cursor stands behind what was inspected, matched or not."""
    monkeypatch.setattr(wait_page, "WAIT_PAGE_ITEMS", 1)
    matches: list[dict[str, str]] = [{}, {"order": "8"}, {"order": "8", "place": "b"}, {"order": "8"}]
    runs = [await waiting(world, match=match) for match in matches]
    event = (await world.submit("order.packed", b"1", correlation={"order": "8", "place": "a"})).event_id
    world.clock.advance(1)
    for _ in range(EXPANSIONS_MAX):
        item_id = (await world.expansion(event)).item_id
        if item_id is None:
            break
        await world.run(
            "expand_event",
            lambda tx, item_id=item_id: expand_event(tx, "acme", event, item_id),
        )
    expansion = await world.expansion(event)
    assert (expansion.item_id, expansion.inspected_count, expansion.settled_count) == (None, 4, 3)
    done, left = StepState.COMPLETED, StepState.WAITING
    assert [await state(world, run.run_id) for run in runs] == [done, done, left, done]
    assert len(await world.records(WAIT_INDEX)) == 1
    await world.check()
