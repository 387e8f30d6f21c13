"""Waits, events, timeouts and stops that meet: whichever commits first decides, whoever dies or does not hear of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

import pytest
from operator_verbs import cancel
from server_steps import ONCE, emission, emit, fire_due
from test_races import InterruptingStore
from test_waits import MINUTE_MS, waiting
from world import EagerClock, World

from keyspace.layout import EVENT_STAMP, WAIT, WAIT_INDEX, WAIT_STAMP
from keyspace.lifecycle import StepState
from keyspace.records.event import ExpansionState
from keyspace.store.embedded import memory_store
from keyspace.store.fault import FaultStore, ProcessStopped
from keyspace.store.fault_plan import CommitFault, FaultPlan
from keyspace.store.memory_engine import MemoryEngine
from keyspace.transitions import wait_page
from keyspace.transitions.accept_declaration import accept_declaration
from keyspace.transitions.declaration import Declaration, WaitTerms
from keyspace.transitions.expand_event import Expanded, expand_event
from keyspace.transitions.fire_timer import Fired
from keyspace.transitions.names import INVOCATION_EVENT
from keyspace.transitions.work import Accepted
from keyspace.tx import Tx

RUNS = 4
Interruption = Callable[[World, str], Coroutine[Any, Any, Any]]


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a page take two registrations, so that an expansion has several."""
    monkeypatch.setattr(wait_page, "WAIT_PAGE_ITEMS", 2)


async def furnish(world: World) -> list[str]:
    """Make a workspace in which runs wait for one event; return the runs."""
    await world.begin()
    await world.hello()
    return [(await waiting(world)).run_id for _ in range(RUNS)]


async def submit(world: World) -> str:
    event_id = (await world.submit("order.packed", b'"p"', correlation={"order": "7"})).event_id
    world.clock.advance(1)
    return event_id


async def settled_once(world: World, event_id: str, runs: list[str]) -> None:
    """The event is complete, and each run has its wait settled by it once, with one pass to go on from there."""
    expansion = await world.expansion(event_id)
    assert (expansion.state, expansion.inspected_count) == (ExpansionState.COMPLETE, RUNS)
    assert expansion.settled_count == RUNS
    for run_id in runs:
        step = await world.step(run_id, "packed")
        assert step.server is not None and (step.state, step.server.event_id) == (StepState.COMPLETED, event_id)
        assert (await world.kinds(run_id)).count("step-completed") == 1
    assert await world.records(WAIT) == await world.records(WAIT_INDEX) == []
    await world.check()
    for _ in runs:
        assert await world.complete(await world.lease_pass()) == Accepted()
    assert await world.lease_many(1) == [], "one continuation for each"
    await world.check()


@pytest.mark.case(1)
@pytest.mark.case(32)
@pytest.mark.parametrize("fault", [CommitFault.UNKNOWN_COMMITTED, CommitFault.UNKNOWN_NOT_COMMITTED])
@pytest.mark.parametrize("chunk", [1, 2, 3])
async def test_a_page_whose_commit_is_unknown_settles_once(fault: CommitFault, chunk: int) -> None:
    """Case 032: the page is reported as unknown; its cursor is the receipt, and the retry goes on with the next page."""
    clock = EagerClock()
    # The chunks that created the runs come first: one for each.
    plan = FaultPlan().at_commit(RUNS + chunk, fault, transition="expand_event")
    world = World(clock=clock, store=FaultStore(memory_store(clock=clock), plan, clock=clock))
    runs = await furnish(world)
    event_id = await submit(world)
    await world.expand()
    await settled_once(world, event_id, runs)


@pytest.mark.case(32)
@pytest.mark.parametrize("fault", [CommitFault.STOP_AFTER, CommitFault.STOP_BEFORE])
@pytest.mark.parametrize("chunk", [1, 2])
async def test_a_fan_out_killed_at_a_page_leaves_the_rest_to_another(fault: CommitFault, chunk: int) -> None:
    """Case 032, "kill fan-out after the wait page's commit": recorded candidates are never evaluated again."""
    clock, engine = EagerClock(), MemoryEngine()
    plan = FaultPlan().at_commit(RUNS + chunk, fault, transition="expand_event")
    world = World(clock=clock, store=FaultStore(memory_store(clock=clock, engine=engine), plan, clock=clock))
    runs = await furnish(world)
    event_id = await submit(world)
    with pytest.raises(ProcessStopped):
        await world.expand()
    successor = World(seed=1, clock=clock, store=memory_store(clock=clock, engine=engine))
    await successor.check()
    await successor.expand()
    await settled_once(successor, event_id, runs)


@pytest.mark.case(1)
@pytest.mark.case(32)
@pytest.mark.parametrize("fault", [CommitFault.UNKNOWN_COMMITTED, CommitFault.UNKNOWN_NOT_COMMITTED])
async def test_a_declaration_whose_commit_is_unknown_registers_once(fault: CommitFault) -> None:
    """Case 001 for the registration: one wait, one timer, one entry in the index."""
    clock = EagerClock()
    plan = FaultPlan().at_commit(1, fault, transition="accept_declaration")
    world = World(clock=clock, store=FaultStore(memory_store(clock=clock), plan, clock=clock))
    await world.begin()
    await world.hello()
    run = await waiting(world)
    assert len(await world.records(WAIT)) == len(await world.records(WAIT_INDEX)) == 1
    assert (await world.kinds(run.run_id)).count("step-declared") == 1
    await world.check()


@pytest.mark.case(32)
@pytest.mark.parametrize("fault", [CommitFault.UNKNOWN_COMMITTED, CommitFault.UNKNOWN_NOT_COMMITTED])
async def test_a_timeout_whose_commit_is_unknown_fails_once(fault: CommitFault) -> None:
    """Case 032 for the timeout: one failure, one continuation; the event that comes then finds nobody."""
    clock = EagerClock()
    plan = FaultPlan().at_commit(1, fault, transition="fire_timer")
    world = World(clock=clock, store=FaultStore(memory_store(clock=clock), plan, clock=clock))
    await world.begin()
    await world.hello()
    run = await waiting(world)
    world.clock.advance(MINUTE_MS)
    assert await fire_due(world) in ([Fired.FIRED], [Fired.GONE])
    await submit(world)
    await world.expand()
    assert (await world.kinds(run.run_id)).count("step-failed") == 1
    assert await world.complete(await world.lease_pass()) == Accepted()
    await world.check()


async def interrupted() -> tuple[World, InterruptingStore]:
    clock = EagerClock()
    store = InterruptingStore(memory_store(clock=clock))
    return World(clock=clock, store=store), store


@pytest.mark.case(32)
async def test_two_processes_on_one_obligation_settle_each_wait_once() -> None:
    """Case 032, "run two fan-out processes on one obligation": the loser of each page reads the cursor of the winner."""
    world, store = await interrupted()
    runs = await furnish(world)
    event_id = await submit(world)
    await expand_against(world, store, event_id, lambda: world.expand_chunk(event_id))
    await world.check()
    assert (await world.expansion(event_id)).inspected_count == 2 + 1, (
        "a page of the first, and half a page of the other"
    )
    await world.expand()
    await settled_once(world, event_id, runs)


async def later(steps: int, body: Callable[[], Awaitable[Any]]) -> Any:
    """Run `body` after so many turns of the loop."""
    for _ in range(steps):
        await asyncio.sleep(0)
    return await body()


async def expand_against(
    world: World, store: InterruptingStore, event_id: str, other: Callable[[], Awaitable[Any]]
) -> Expanded:
    """Run one chunk, and let `other` commit between its reads and its commit."""
    item_id = (await world.expansion(event_id)).item_id
    assert item_id is not None

    async def interrupt() -> None:
        await other()

    store.interruption = interrupt
    chunk = await world.run("expand_event", lambda tx: expand_event(tx, "acme", event_id, item_id))
    assert store.interruption is None, "the chunk wrote nothing, so nothing raced"
    return chunk


async def _cancel(world: World, run_id: str) -> None:
    await cancel(world, run_id)


async def _fire(world: World, run_id: str) -> None:
    await fire_due(world)


@pytest.mark.case(19)
@pytest.mark.case(32)
@pytest.mark.parametrize(("other", "state"), [(_cancel, StepState.OBSOLETE), (_fire, StepState.FAILED)])
@pytest.mark.parametrize("is_match_first", [True, False])
async def test_a_match_against_a_stop_and_a_timeout(
    other: Interruption, state: StepState, is_match_first: bool
) -> None:
    """Case 019 and 032, "let a stop or timeout fall between page and retry": one of the two, by the order of commits."""
    world, store = await interrupted()
    await world.begin()
    await world.hello()
    run = await waiting(world)
    # The timeout is delivered at its instant by a process whose clock is ahead; fan-out's sample is of before.
    world.clock.advance(MINUTE_MS - 2)
    event_id = (await world.submit("order.packed", b"1", correlation={"order": "7"})).event_id
    if is_match_first:
        await world.expand()
        world.clock.advance(2)
        await other(world, run.run_id)
        found = await world.step(run.run_id, "packed")
        assert found.state is StepState.COMPLETED, "what was settled stands"
    else:

        async def come_first() -> None:
            world.clock.advance(2)
            await other(world, run.run_id)

        await expand_against(world, store, event_id, come_first)
        assert world.keyspace.meter.snapshot()["expand_event"].conflict_count == 1
        assert (await world.step(run.run_id, "packed")).state is state
        assert (await world.expansion(event_id)).settled_count == 0
    kinds = await world.kinds(run.run_id)
    assert sum(kinds.count(kind) for kind in ("step-completed", "step-failed", "step-fenced")) == 1
    assert (await world.expansion(event_id)).state is ExpansionState.COMPLETE
    await world.check()


async def test_a_page_that_conflicts_is_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    """ARCHITECTURE 5, "after a conflict the page halves": what another transaction holds up is made smaller, down to one."""
    monkeypatch.setattr(wait_page, "WAIT_PAGE_ITEMS", RUNS)
    world, store = await interrupted()
    runs = await furnish(world)
    event_id = await submit(world)
    chunks = [await expand_against(world, store, event_id, partial(_cancel, world, runs[0]))]
    while not chunks[-1].is_complete:
        chunks.append(await world.expand_chunk(event_id))
    assert [chunk.inspected_count for chunk in chunks] == [RUNS // 2, RUNS - 1 - RUNS // 2]
    assert (await world.expansion(event_id)).settled_count == RUNS - 1
    assert [wait_page.page_items(index) for index in (0, 1, 2, 3, 40)] == [RUNS, RUNS // 2, 1, 1, 1]
    await world.check()


@pytest.mark.case(31)
@pytest.mark.parametrize("is_event_first", [True, False])
async def test_a_registration_and_an_event_under_way_at_once(is_event_first: bool) -> None:
    """Case 031: both have read before either commits; "commit order alone decides", and nobody conflicts."""
    world, store = await interrupted()
    await world.begin()
    await world.hello()
    run = await world.start_run()
    passed = await world.lease_pass()
    terms = WaitTerms(event="order.packed", match={"order": "7"}, timeout_ms=MINUTE_MS)
    declare = partial(world.declare, passed, "packed", retry=ONCE, terms=terms)
    send = partial(world.submit, "order.packed", b"1", correlation={"order": "7"})
    first, second = (send, declare) if is_event_first else (declare, send)

    async def interrupt() -> None:
        await first()

    store.interruption = interrupt
    await second()
    world.clock.advance(1)
    await world.expand()
    step = await world.step(run.run_id, "packed")
    assert step.state is (StepState.WAITING if is_event_first else StepState.COMPLETED)
    conflicts = world.keyspace.meter.snapshot()
    assert conflicts["accept_event"].conflict_count == conflicts["accept_declaration"].conflict_count == 0
    await world.check()


@pytest.mark.case(31)
async def test_registrations_and_events_let_loose_together_follow_their_stamps(world: World) -> None:
    """Case 031, "at random delays around the registration commit ... checking eligibility against commit order"."""
    seen = set()
    for number in range(60):
        run = await world.start_run()
        passed = await world.lease_pass()
        pairs = {"order": str(number)}
        terms = WaitTerms(event="order.packed", match=pairs, timeout_ms=MINUTE_MS)

        declare = partial(world.declare, passed, "packed", retry=ONCE, terms=terms)
        send = partial(world.submit, "order.packed", b"1", correlation=pairs)
        _, accepted = await asyncio.gather(
            later(world.rng.randrange(12), declare), later(world.rng.randrange(12), send)
        )
        own, events = await world.read(
            lambda tx, run=run, accepted=accepted: tx.load(
                WAIT_STAMP.at("acme", run.run_id, "packed"), EVENT_STAMP.at("acme", accepted.event_id)
            )
        )
        world.clock.advance(1)
        await world.expand()
        is_after = own < events
        assert (await world.step(run.run_id, "packed")).state is (
            StepState.COMPLETED if is_after else StepState.WAITING
        ), number
        seen.add(is_after)
        if not is_after:
            await cancel(world, run.run_id)
        else:
            await world.complete(await world.lease_pass())
    assert seen == {True, False}, "the delays favour one of the two"
    await world.check()


@pytest.mark.parametrize("is_wait_first", [True, False])
async def test_what_is_stamped_in_one_transaction_does_not_meet(world: World, is_wait_first: bool) -> None:
    """ARCHITECTURE 4, "a wait and an event stamped in one transaction are not eligible for each other"."""
    for _ in range(2):
        await world.start_run()
    waiter, emitter = await world.lease_pass(), await world.lease_pass()
    terms = WaitTerms(event="order.told", match={}, timeout_ms=MINUTE_MS)
    pair = [(waiter, Declaration("packed", ONCE, terms=terms)), (emitter, emission())]

    async def both(tx: Tx) -> None:
        for work, declaration in pair if is_wait_first else reversed(pair):
            assert await accept_declaration(tx, "acme", work, declaration) == Accepted()

    await world.run("both", both)
    world.clock.advance(1)
    await world.expand()
    assert (await world.step(waiter.run_id, "packed")).state is StepState.WAITING
    assert await emit(world, await world.lease_pass(), "again") == Accepted()
    world.clock.advance(1)
    await world.expand()
    assert (await world.step(waiter.run_id, "packed")).state is StepState.COMPLETED
    await world.check()


async def test_an_addressed_event_meets_no_wait(world: World) -> None:
    """RFD 2, "An addressed event never evaluates trigger bindings and never matches a durable wait"."""
    run = await waiting(world, match={}, event=INVOCATION_EVENT)
    invoked = await world.invoke("fulfil")
    world.clock.advance(1)
    await world.expand()
    assert (await world.step(run.run_id, "packed")).state is StepState.WAITING
    expansion = await world.expansion(invoked.event_id)
    assert (expansion.state, expansion.inspected_count) == (ExpansionState.COMPLETE, 0)
    await world.check()
