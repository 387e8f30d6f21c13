"""The session fence: one session of a worker process starts work, and only it proves what never started."""

from __future__ import annotations

import pytest
from world import INSTANCE_ID, World, work_of

from keyspace.errors import Refusal
from keyspace.layout import INSTANCE, INSTANCE_WORK
from keyspace.lifecycle import AttemptState, ItemState, StepState
from keyspace.transitions.open_session import RecordedStart, close_session, recorded_starts
from keyspace.transitions.work import Accepted, Replayed, Stale, Work


async def leased_callback(world: World) -> Work:
    """Return a callback that is leased and not yet authorized."""
    await world.start_run()
    await world.declare(await world.lease_pass(), "s1")
    return work_of(await world.lease())


async def test_an_older_session_authorizes_nothing(world: World) -> None:
    """RFD 2, "Result acceptance requires the current lease": after a newer hello the former session starts nothing more."""
    work = await leased_callback(world)
    await world.hello("session-2")
    before = await world.dump()
    assert await world.authorize(work, session="session-1") == Stale("session_superseded")
    assert await world.dump() == before
    assert await world.authorize(work, session="session-2") == Accepted()


async def test_an_unknown_instance_authorizes_nothing(world: World) -> None:
    """An instance that never said hello, or said bye, holds no session."""
    work = await leased_callback(world)
    assert await world.authorize(work, instance="22" * 16) == Stale("session_superseded")


async def test_a_repeated_authorization_is_told_so_to_its_own_session_only(world: World) -> None:
    """ARCHITECTURE 3, "Unknown commits": the authorized item is the receipt, and it belongs to one session."""
    work = await leased_callback(world)
    assert await world.authorize(work) == Accepted()
    before = await world.dump()
    assert await world.authorize(work) == Replayed()
    assert await world.authorize(work, session="session-2") == Stale("lease_lost")
    assert await world.dump() == before


async def test_an_expired_lease_is_not_authorized(world: World) -> None:
    """RFD 2, "Lease expiry before start authorization makes an item eligible again": at the very instant of expiry."""
    work = await leased_callback(world)
    world.clock.advance(14_999)
    early = await world.item(work.item_id)
    assert early is not None and early.expires_at_ms == world.clock.now_ms() + 1
    world.clock.advance(1)
    assert await world.authorize(work) == Stale("lease_expired")


async def test_a_start_that_was_never_sent_goes_back_with_its_ordinal(world: World) -> None:
    """RFD 2, "the same physical attempt is requeued without consuming an attempt ordinal"."""
    await world.start_run()
    work = await world.start_step()
    assert await world.prove(work)
    step, attempt = await world.step(work.run_id, "s1"), await world.attempt(work.run_id, "s1", 1)
    assert (step.state, step.generation, step.ordinal) == (StepState.PENDING, 1, 1)
    assert (attempt.state, attempt.token, attempt.ordinal) == (AttemptState.QUEUED, None, 1)
    assert await world.leased_state(work) is ItemState.READY
    await world.check()
    again = await world.start_attempt()
    assert (again.item_id, again.generation) == (work.item_id, 1)
    assert again.token != work.token
    assert (await world.attempt(work.run_id, "s1", 1)).operation_id == step.operation_id
    assert await world.succeed(work) == Stale("lease_lost"), "the disproved delivery settles nothing"
    assert await world.succeed(again) == Accepted()
    await world.check()


async def test_the_proof_is_given_once(world: World) -> None:
    """A repeated proof changes nothing: the attempt is no longer authorized under that token."""
    await world.start_run()
    work = await world.start_step()
    assert await world.prove(work)
    before = await world.dump()
    assert not await world.prove(work)
    assert await world.dump() == before


async def test_an_unknown_attempt_can_be_proven_not_started(world: World) -> None:
    """RFD 2, "A transport that proves an authorized effect never began": also after its lease was lost."""
    await world.start_run()
    work = await world.start_step()
    world.clock.advance(15_000)
    await world.lose(work.item_id)
    assert (await world.get_run(work.run_id)).unknown_count == 1
    assert await world.prove(work)
    run = await world.get_run(work.run_id)
    assert (run.unknown_count, run.item_id is not None) == (0, True)
    await world.check()
    again = await world.start_attempt()
    assert (again.generation, (await world.attempt(work.run_id, "s1", 1)).ordinal) == (1, 1)
    assert await world.succeed(again) == Accepted()
    await world.check()


async def test_a_superseded_session_proves_nothing(world: World) -> None:
    """Would catch a slow hello that takes back what a newer session of the same worker has started: the effect ran twice.

    C6: session 1 says hello and is slow to go through the recorded starts; the worker has connected again and runs s1.
    """
    await world.hello("session-1", connection=1)
    await world.hello("session-2", connection=2)
    await world.start_run()
    work = await world.start_step()
    assert work.token
    before = await world.dump()
    assert not await world.prove(work, session="session-1")
    assert await world.dump() == before
    assert await world.prove(work, session="session-2"), "the present session's proof counts"


async def test_a_delayed_hello_does_not_take_the_instance_back(world: World) -> None:
    """Would catch a hello that lands after a newer one of the same process, and then disproves what that one started."""
    await world.hello("session-2", connection=2)
    before = await world.dump()
    with pytest.raises(Refusal) as refused:
        await world.hello("session-1", connection=1)
    assert refused.value.code == "session_superseded"
    assert await world.dump() == before


async def test_the_same_hello_again_is_the_same_session(world: World) -> None:
    """Idempotent by the session's id: an unknown commit's retry must not count as another connection."""
    await world.hello("session-2", connection=2)
    before = await world.dump()
    await world.hello("session-2", connection=2)
    assert await world.dump() == before
    await world.hello("session-3", connection=3)
    record = await world.read(lambda tx: tx.load(INSTANCE.at("acme", INSTANCE_ID)))
    assert record is not None and (record.session, record.connection) == ("session-3", 3)


async def test_recorded_starts_are_what_is_authorized_or_unknown(empty: World) -> None:
    """A hello learns of every start recorded to its instance, page by page, and of none that is settled."""
    await empty.begin()
    await empty.hello()
    for _ in range(70):
        await empty.submit()
    await empty.expand()
    passes = [work_of(delivery) for delivery in await empty.lease_many(64)]
    passes += [work_of(delivery) for delivery in await empty.lease_many(6)]
    for work in passes:
        await empty.declare(work, "s1")
    works = [work_of(delivery) for delivery in await empty.lease_many(64)]
    works += [work_of(delivery) for delivery in await empty.lease_many(6)]
    for work in works:
        assert await empty.authorize(work) == Accepted()
    await empty.succeed(works[0])
    first = await empty.read(lambda tx: recorded_starts(tx, "acme", INSTANCE_ID))
    rest = await empty.read(lambda tx: recorded_starts(tx, "acme", INSTANCE_ID, after=first[-1]))
    assert (len(first), len(rest)) == (64, 5)
    listed = {(start.run_id, start.token) for start in [*first, *rest]}
    assert listed == {(work.run_id, work.token) for work in works[1:]}
    assert all(isinstance(start, RecordedStart) for start in first)
    await empty.check()


async def test_an_instance_that_holds_something_is_not_forgotten(world: World) -> None:
    """Bye forgets an instance only when nothing is recorded to it and no other session has it."""
    await world.start_run()
    work = await world.start_step()

    async def close(session: str) -> bool:
        return await world.run("close_session", lambda tx: close_session(tx, "acme", INSTANCE_ID, session))

    assert not await close("session-1")
    await world.succeed(work)
    assert not await close("session-0")
    assert await close("session-1")
    assert await world.records(INSTANCE) == []
    assert await world.records(INSTANCE_WORK) == []
    assert not await close("session-1")


async def test_an_old_proof_does_not_take_back_a_later_start(world: World) -> None:
    """RFD 2, "A transport that proves": the proof is of one delivery; the same session may have started the next one."""
    await world.start_run()
    first = await world.start_step()
    await world.hello("session-2")
    assert await world.prove(first)
    again = await world.start_attempt()
    assert (again.item_id, again.generation) == (first.item_id, first.generation)
    before = await world.dump()
    assert not await world.prove(first)
    assert await world.dump() == before
    assert await world.prove(again)
    await world.check()
