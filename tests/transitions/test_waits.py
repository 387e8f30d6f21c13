"""Durable event waits: the registration boundary, who is eligible, what settles once, and what a stop leaves."""

from __future__ import annotations

import pytest
from operator_verbs import cancel
from server_steps import ONCE, fire_due
from world import World

from keyspace.layout import ITEM, WAIT, WAIT_INDEX
from keyspace.lifecycle import Phase, StepState
from keyspace.records.run import RunRecord
from keyspace.transitions.declaration import WaitTerms
from keyspace.transitions.fire_timer import Fired
from keyspace.transitions.work import Accepted

MINUTE_MS = 60_000


async def waiting(
    world: World, *, match: dict[str, str] | None = None, timeout_ms: int = MINUTE_MS, event: str = "order.packed"
) -> RunRecord:
    """Start a run that waits for an event."""
    run = await world.start_run()
    terms = WaitTerms(event=event, match={"order": "7"} if match is None else match, timeout_ms=timeout_ms)
    assert await world.declare(await world.lease_pass(), "packed", retry=ONCE, terms=terms) == Accepted()
    return await world.get_run(run.run_id)


async def send(world: World, *, correlation: dict[str, str] | None = None, payload: bytes = b'"p"') -> str:
    """Submit the awaited event and expand it."""
    pairs = {"order": "7"} if correlation is None else correlation
    accepted = await world.submit("order.packed", payload, correlation=pairs)
    world.clock.advance(1)
    await world.expand()
    return accepted.event_id


async def test_a_match_settles_the_wait_with_the_payload(world: World) -> None:
    """RFD 2, "A match records the matched event's payload as an ordinary successful step result"."""
    run = await waiting(world)
    await world.check()
    event_id = await send(world)
    step = await world.step(run.run_id, "packed")
    assert step.state is StepState.COMPLETED
    assert await world.value(run.run_id, "packed") == b'"p"'
    assert await world.records(WAIT) == [] and await world.records(WAIT_INDEX) == []
    expansion = await world.expansion(event_id)
    assert (expansion.inspected_count, expansion.settled_count) == (1, 1)
    await world.check()
    assert await world.complete(await world.lease_pass(), b"1") == Accepted()
    await world.check()


@pytest.mark.parametrize(
    ("match", "correlation", "settles"),
    [
        ({}, {}, True),
        ({}, {"order": "7"}, True),
        ({"order": "7"}, {}, False),
        ({"order": "7"}, {"order": "8"}, False),
        ({"order": "7"}, {"order": "7", "more": "x"}, True),
        ({"order": "7", "place": "a"}, {"order": "7"}, False),
        ({"order": "7", "place": "a"}, {"place": "a", "order": "7"}, True),
        ({"order": "7", "place": "a"}, {"place": "b", "order": "7"}, False),
    ],
)
async def test_every_declared_pair_must_be_carried(
    world: World, match: dict[str, str], correlation: dict[str, str], settles: bool
) -> None:
    """RFD 2, "Every correlation pair the registration declared must appear"; case 035."""
    run = await waiting(world, match=match)
    await send(world, correlation=correlation)
    step = await world.step(run.run_id, "packed")
    assert step.state is (StepState.COMPLETED if settles else StepState.WAITING)
    await world.check()


async def test_an_event_accepted_before_the_registration_never_settles_it(world: World) -> None:
    """RFD 2, "a wait registered later holds an ordinal at or beyond that bound"; case 031: commit order alone decides."""
    await world.submit("order.packed", b"1", correlation={"order": "7"})
    run = await waiting(world)
    await world.expand()
    assert (await world.step(run.run_id, "packed")).state is StepState.WAITING
    await world.check()


async def test_a_wait_that_reaches_its_timeout_fails(world: World) -> None:
    """RFD 2, "A wait that reaches its timeout records the accepted sdk.timeout step failure"."""
    run = await waiting(world)
    world.clock.advance(MINUTE_MS)
    await send(world)
    assert (await world.step(run.run_id, "packed")).state is StepState.WAITING, "the timeout is authoritative"
    assert await fire_due(world) == [Fired.FIRED]
    step = await world.step(run.run_id, "packed")
    assert step.failure is not None and step.failure.category == "sdk.timeout"
    assert await world.records(WAIT_INDEX) == []
    await world.check()


async def test_a_stop_takes_the_registration_with_it(world: World) -> None:
    """RFD 2, "Stop intent fences a pending wait and removes its registration in the transaction that commits the stop"."""
    run = await waiting(world)
    await cancel(world, run.run_id)
    assert (await world.get_run(run.run_id)).phase is Phase.TERMINAL
    assert await world.records(WAIT_INDEX) == [] and await world.records(ITEM) == []
    await send(world)
    await world.check()
