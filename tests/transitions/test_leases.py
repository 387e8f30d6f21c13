"""Leases: one holder at a time, renewed within bounds, lost by the rule of the item's class, whoever finds out."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from test_races import prepared, race
from world import LEASE_MS, EagerClock, World, work_of

from keyspace.layout import DUE_APP, ITEM, READY_APP, RUN, bucket_of, shard_of_workspace
from keyspace.lifecycle import AttemptState, ItemState, StepState
from keyspace.limits import LOSS_DELAY_MS_MAX, RENEW_ITEMS_MAX, SHARDS
from keyspace.queue.leases import expired_leases
from keyspace.queue.pointers import clear_due_pointer, due_in_application, due_in_shard
from keyspace.records.work import LaneKind, WorkKind, application_lane
from keyspace.store.embedded import memory_store
from keyspace.store.fault import FaultStore
from keyspace.store.fault_plan import CommitFault, FaultPlan
from keyspace.transitions.lose_lease import Loss
from keyspace.transitions.work import Accepted, Stale
from keyspace.tx import Tx


async def test_a_pass_is_authorized_with_its_lease(world: World) -> None:
    """ARCHITECTURE 6, "Discovery: lease and authorization in one transaction"; nobody else gets it."""
    run = await world.start_run()
    delivery = await world.lease()
    item = await world.item(delivery.item.item_id)
    assert item is not None and item == delivery.item
    assert (item.kind, item.state, item.delivery_count) == (WorkKind.DISCOVERY, ItemState.AUTHORIZED, 1)
    assert item.expires_at_ms == world.clock.now_ms() + LEASE_MS
    assert await world.lease_many(3) == []
    assert await world.kinds(run.run_id) == ["run-created", "pass-authorized"]
    await world.check()


async def test_as_many_items_as_seats(empty: World) -> None:
    """A claim takes one item a seat, each under its own token; several dispatchers never share one."""
    await empty.begin()
    for _ in range(10):
        await empty.submit()
    await empty.expand()
    claims = await asyncio.gather(empty.lease_many(4), empty.lease_many(4), empty.lease_many(4))
    taken = [delivery for claim in claims for delivery in claim]
    assert len(taken) == 10
    assert len({delivery.item.item_id for delivery in taken}) == 10
    assert len({delivery.item.token for delivery in taken}) == 10
    assert await empty.records(READY_APP) == []
    await empty.check()


async def test_a_claim_never_reads_what_has_not_vested(world: World) -> None:
    """S3: a delayed successor is not seen before its instant, to the millisecond."""
    await world.start_run()
    work = await world.start_step()
    await world.fail_attempt(work, retry_after_ms=5_000)
    world.clock.advance(4_999)
    assert await world.lease_many(5) == []
    world.clock.advance(1)
    assert len(await world.lease_many(5)) == 1


async def test_renewal_extends_within_its_bounds(world: World) -> None:
    """ARCHITECTURE 4, "nothing is renewed past authorization + attempt timeout + one lease"."""
    await world.start_run()
    authorized_at_ms = world.clock.now_ms()
    work = await world.start_step(timeout_ms=20_000)
    end_ms = authorized_at_ms + 20_000 + LEASE_MS
    instants = []
    while world.clock.now_ms() < end_ms:
        world.clock.advance(5_000)
        if await world.renew((work.item_id, work.token)) == [False]:
            break
        item = await world.item(work.item_id)
        assert item is not None and item.expires_at_ms is not None
        instants.append(item.expires_at_ms - authorized_at_ms)
        await world.check()
    assert instants == [20_000, 25_000, 30_000, 35_000, 35_000, 35_000]
    assert world.clock.now_ms() == end_ms
    assert await world.lose(work.item_id) is Loss.UNKNOWN


async def test_an_expired_or_foreign_lease_is_not_renewed(world: World) -> None:
    """FILLED-IN 11, "Renewal after expiry is refused", at the very instant; nor under another token, nor twice as late."""
    await world.start_run()
    work = await world.start_step()
    assert await world.renew((work.item_id, "00" * 16), ("00" * 16, work.token)) == [False, False]
    world.clock.advance(LEASE_MS - 1)
    assert await world.renew((work.item_id, work.token)) == [True]
    world.clock.advance(LEASE_MS)
    before = await world.dump()
    assert await world.renew((work.item_id, work.token)) == [False]
    assert await world.dump() == before


async def test_one_sessions_renewals_are_one_transaction(empty: World) -> None:
    """ARCHITECTURE 4, "at most 64 items"; Budget: about 1 kB an item; the runs are not touched."""
    await empty.begin()
    for _ in range(RENEW_ITEMS_MAX):
        await empty.submit()
    await empty.expand()
    held = [(delivery.item.item_id, delivery.item.token or "") for delivery in await empty.lease_many(RENEW_ITEMS_MAX)]
    runs = await empty.runs()
    empty.clock.advance(5_000)
    assert await empty.renew(*held) == [True] * RENEW_ITEMS_MAX
    assert await empty.runs() == runs
    assert empty.keyspace.meter.snapshot()["renew_leases"].size_bytes < 1_400 * RENEW_ITEMS_MAX
    await empty.check()


async def test_what_is_given_back_is_unharmed(world: World) -> None:
    """RFD 2, "Lease recovery and redelivery change only delivery identity and fencing": ready at once, same ordinal."""
    await world.start_run()
    await world.declare(await world.lease_pass(), "s1")
    first = work_of(await world.lease())
    assert await world.give_back(first)
    assert not await world.give_back(first), "once"
    await world.check()
    second = await world.lease()
    assert (second.item.item_id, second.item.ordinal, second.item.delivery_count, second.item.loss_count) == (
        first.item_id,
        1,
        2,
        0,
    )
    assert not await world.give_back(first), "the token is another's now"
    assert await world.authorize(first) == Stale("lease_lost")
    assert await world.authorize(work_of(second)) == Accepted()
    assert not await world.give_back(work_of(second)), "an effect that may have begun is not given back"


@pytest.mark.case(13)
async def test_a_lease_that_ends_before_its_start_costs_no_attempt(world: World) -> None:
    """Case 013: work that waited inside a busy worker returns with its ordinal; only deliveries are counted."""
    await world.start_run()
    await world.declare(await world.lease_pass(), "s1")
    for delivery_count in (1, 2, 3):
        delivery = await world.lease()
        assert (delivery.item.delivery_count, delivery.item.ordinal) == (delivery_count, 1)
        world.clock.advance(LEASE_MS)
        assert await world.lose(delivery.item.item_id) is Loss.RETURNED
        await world.check()
        world.clock.advance(2_000)
    run = (await world.runs())[0]
    assert (run.unknown_count, (await world.step(run.run_id, "s1")).failure_count) == (0, 0)
    assert "attempt-failed" not in await world.kinds(run.run_id)


async def test_a_lost_session_ends_what_may_be_repeated_at_once(world: World) -> None:
    """ARCHITECTURE 6: a pass and a start not yet authorized go back; an authorized effect keeps its lease."""
    await world.start_run()
    passing = await world.lease_pass()
    assert await world.lose(passing.item_id, token=passing.token, is_session_lost=True) is Loss.REDELIVERED
    await world.declare(await world.lease_pass(), "s1")
    waiting = work_of(await world.lease())
    assert await world.lose(waiting.item_id, token=waiting.token, is_session_lost=True) is Loss.RETURNED
    running = await world.start_attempt()
    assert await world.lose(running.item_id, token=running.token, is_session_lost=True) is Loss.NOT_LOST
    assert await world.leased_state(running) is ItemState.AUTHORIZED
    await world.check()


@pytest.mark.case(53)
async def test_a_crashing_pass_is_redelivered_later_each_time(world: World) -> None:
    """Case 053 and FILLED-IN 11, "Crashing discovery": growing, capped delay; never failed on its own."""
    run = await world.start_run()
    delays = []
    for _ in range(14):
        delivery = await world.lease()
        await world.lose(delivery.item.item_id, is_session_lost=True)
        item = await world.item(delivery.item.item_id)
        assert item is not None
        delays.append(item.vesting_ms - world.clock.now_ms())
        world.clock.advance(max(0, delays[-1]))
    assert delays == [0, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 128_000, 256_000, *[LOSS_DELAY_MS_MAX] * 4]
    assert (await world.get_run(run.run_id)).phase.value == "running"
    assert (await world.lease()).item.delivery_count == 15
    await world.check()


@pytest.mark.parametrize("sweeps", [0, 1, 3], ids=["no sweep", "one sweep", "three sweeps"])
async def test_a_late_answer_does_not_depend_on_a_sweeper(sweeps: int, world: World) -> None:
    """FILLED-IN 11, "The outcome never depends on whether a sweeper had run": the pass's lease expired long ago."""
    run = await world.start_run()
    work = await world.lease_pass()
    world.clock.advance(10 * LEASE_MS)
    for _ in range(sweeps):
        await world.lose(work.item_id)
    assert await world.declare(work, "s1") == Accepted()
    assert (await world.step(run.run_id, "s1")).state is StepState.PENDING
    await world.check()


async def test_a_token_is_stale_once_somebody_else_leases(world: World) -> None:
    """FILLED-IN 11, "A report is accepted while its token is still the item's current one"."""
    await world.start_run()
    former = await world.lease_pass()
    world.clock.advance(LEASE_MS)
    await world.lose(former.item_id)
    current = await world.lease_pass()
    before = await world.dump()
    assert await world.declare(former, "s1") == Stale("lease_lost")
    assert await world.complete(former) == Stale("lease_lost")
    assert await world.fail(former) == Stale("lease_lost")
    assert await world.dump() == before
    assert await world.declare(current, "s2") == Accepted()
    assert await world.declare(former, "s1") == Stale("pass_settled")
    await world.check()


async def test_a_pass_that_names_another_generation_is_stale(world: World) -> None:
    """RFD 2, "Result acceptance requires the current lease ... plus the run and step generation": a lease is not enough."""
    await world.start_run()
    work = await world.lease_pass()
    other = work._replace(generation=work.generation + 1)
    before = await world.dump()
    assert await world.declare(other, "s1") == Stale("generation_superseded")
    assert await world.complete(other) == Stale("generation_superseded")
    assert await world.fail(other) == Stale("generation_superseded")
    assert await world.block(other) == Stale("generation_superseded")
    assert await world.dump() == before
    assert await world.declare(work, "s1") == Accepted()
    await world.check()


@pytest.mark.case(7)
@pytest.mark.parametrize("sweeps", [0, 1, 2], ids=["no sweep", "one sweep", "two sweeps"])
@pytest.mark.parametrize("outcome", ["success", "retry", "exhausted"])
async def test_a_late_result_settles_its_attempt(sweeps: int, outcome: str, world: World) -> None:
    """Cases 007 and 017: the report of a former session settles the attempt, Unknown or not, and the run goes on alone."""
    run = await world.start_run()
    work = await world.start_step()
    world.clock.advance(10 * LEASE_MS)
    for _ in range(sweeps):
        await world.lose(work.item_id)
    step = await world.step(run.run_id, "s1")
    assert step.state is (StepState.UNKNOWN if sweeps else StepState.RUNNING)
    await world.check()
    await world.hello("session-2")
    assert await world.lease_many(5) == [], "it is never dispatched again on its own (C6)"
    if outcome == "success":
        assert await world.succeed(work) == Accepted()
    else:
        assert await world.fail_attempt(work, retryable=outcome == "retry") == Accepted()
    after = await world.get_run(run.run_id)
    assert (after.unknown_count, after.item_id is not None) == (0, True)
    await world.check()
    world.clock.advance(60_000)
    assert len(await world.lease_many(5)) == 1


@pytest.mark.case(17)
async def test_a_result_after_its_settlement_is_kept_as_stale(world: World) -> None:
    """Case 017, "it is never lost": the attempt was settled by an earlier result, the later one is shown beside it."""
    run = await world.start_run()
    work = await world.start_step()
    await world.succeed(work, b"1")
    assert await world.succeed(work, b"2") == Stale("attempt_settled")
    assert await world.fail_attempt(work) == Stale("attempt_settled")
    assert await world.value(run.run_id, "s1") == b"1"
    kept = await world.stale_results(run.run_id)
    assert [(result.outcome, result.value_bytes) for result in kept] == [("success", 1), ("failure", 0)]
    await world.check()


# -- who finds expired leases and vested work


async def test_expired_leases_are_found_page_by_page(empty: World) -> None:
    """Case 008's cursor: pages move on by the last key, whatever is done with their entries."""
    await empty.begin()
    for _ in range(40):
        await empty.submit()
    await empty.expand()
    early = {delivery.item.item_id for delivery in await empty.lease_many(20)}
    empty.clock.advance(3_000)
    await empty.lease_many(20)
    empty.clock.advance(LEASE_MS - 3_000)
    now_bucket = bucket_of(empty.clock.now_ms())
    found = []
    for shard in range(SHARDS):
        after: bytes | None = None
        while True:
            page = await empty.read(
                lambda tx, s=shard, a=after: expired_leases(tx, s, before_bucket=now_bucket, after=a, limit=3)  # type: ignore[misc]
            )
            if not page:
                break
            found += page
            after = page[-1].key
    assert {entry.item_id for entry in found} == early
    assert len(found) == 20
    assert {entry.workspace for entry in found} == {"acme"}


async def test_a_pointer_stays_while_its_bucket_holds_work(world: World) -> None:
    """Case 062 and ARCHITECTURE 4: cleared only by a transaction that finds the bucket empty."""
    await world.start_run()
    lane = application_lane("shop", "fulfil")
    bucket = bucket_of(world.clock.now_ms())

    async def pointers() -> list[int]:
        found = await world.read(
            lambda tx: due_in_application(tx, "acme", "shop", from_bucket=0, to_bucket=bucket + 100, limit=10)
        )
        return [at for at, _, at_lane in found if at_lane == lane]

    async def clear() -> bool:
        return await world.run("clear", lambda tx: clear_due_pointer(tx, "acme", lane, bucket))

    assert await pointers() == [bucket]
    assert not await clear()
    work = await world.lease_pass()
    assert await clear()
    assert await pointers() == []
    assert await world.give_back(work)
    assert await pointers() == [bucket], "written again by whoever enqueues"
    await world.check()


async def test_an_enqueue_that_races_with_the_clearing_wins(world: World) -> None:
    """ARCHITECTURE 4, "a racing enqueue makes the clearing transaction conflict": the pointer is never lost."""
    await world.start_run()
    work = await world.lease_pass()
    lane = application_lane("shop", "fulfil")
    bucket = bucket_of(world.clock.now_ms())
    attempts = 0

    async def clear(tx: Tx) -> bool:
        nonlocal attempts
        attempts += 1
        is_clear = await clear_due_pointer(tx, "acme", lane, bucket)
        if attempts == 1:
            assert is_clear
            assert await world.give_back(work)
        return is_clear

    assert not await world.run("clear_due_pointer", clear)
    assert attempts == 2
    assert len(await world.records(DUE_APP)) == 1
    await world.check()


async def test_a_servers_pointer_names_its_workspace(world: World) -> None:
    """A fan-out process finds a workspace by its shard, and no other lane's pointers."""
    await world.submit()
    shard, bucket = shard_of_workspace("acme"), bucket_of(world.clock.now_ms())
    found = await world.read(
        lambda tx: due_in_shard(tx, LaneKind.FANOUT, shard, from_bucket=bucket, to_bucket=bucket, limit=10)
    )
    assert [(at, workspace, lane.kind) for at, workspace, lane in found] == [(bucket, "acme", LaneKind.FANOUT)]
    for kind in (LaneKind.TIME, LaneKind.SETTLE):
        assert not await world.read(
            lambda tx, k=kind: due_in_shard(tx, k, shard, from_bucket=0, to_bucket=bucket, limit=10)  # type: ignore[misc]
        )


async def test_the_attempt_that_is_lost_shows_as_unknown(world: World) -> None:
    """RFD 2, "An authorized effectful forward or compensation callback instead becomes Unknown"."""
    run = await world.start_run()
    work = await world.start_step()
    world.clock.advance(LEASE_MS - 1)
    assert await world.lose(work.item_id) is Loss.NOT_LOST
    world.clock.advance(1)
    assert await world.lose(work.item_id, token="00" * 16) is Loss.NOT_LOST
    assert await world.lose(work.item_id, token=work.token) is Loss.UNKNOWN
    attempt = await world.attempt(run.run_id, "s1", 1)
    assert (attempt.state, attempt.lost_at_ms, attempt.token) == (
        AttemptState.UNKNOWN,
        world.clock.now_ms(),
        work.token,
    )
    assert (await world.get_run(run.run_id)).item_id is None
    assert await world.kinds(run.run_id) == [
        "run-created",
        "pass-authorized",
        "step-declared",
        "attempt-authorized",
        "attempt-unknown",
    ]
    before = await world.dump()
    assert await world.lose(work.item_id) is Loss.NOT_LOST
    assert await world.dump() == before
    await world.check()


async def test_work_that_its_run_does_not_name_is_dropped(world: World) -> None:
    """keyspace/README "One item a run": what no run owns is not handed out, and goes."""
    run = await world.start_run()
    assert run.item_id is not None

    async def disown(tx: Tx) -> None:
        tx.put(RUN.at("acme", run.run_id), msgspec.structs.replace(run, item_id=None))

    await world.run("disown", disown)
    assert await world.lease_many(1) == []
    assert await world.item(run.item_id) is None


@pytest.mark.parametrize("kind", ["pass", "effect"])
async def test_of_two_claimers_one_gets_it(kind: str) -> None:
    """RFD 2, "Dispatchers scan vested work, acquire a random-token lease": an item is leased once, whoever looked first."""
    world, store = await prepared()
    work = await world.lease_pass() if kind == "effect" else None
    if work is not None:
        await world.declare(work)

    async def claim(world: World, _: Any) -> int:
        return len(await world.lease_many(1))

    assert await race(world, store, claim, claim, work) == (1, 0)  # type: ignore[arg-type]
    (item,) = await world.records(ITEM)
    assert item.delivery_count == 1
    await world.check()


async def test_a_lease_whose_commit_was_unknown_is_delivered() -> None:
    """Case 001, for leases: without its receipt the item would stand leased to a session that never hears of it."""
    clock = EagerClock()
    plan = FaultPlan().at_commit(1, CommitFault.UNKNOWN_COMMITTED, transition="lease_items")
    world = World(clock=clock, store=FaultStore(memory_store(clock=clock), plan, clock=clock))
    await world.begin()
    await world.hello()
    await world.start_run()
    (delivery,) = await world.lease_many(1)
    assert delivery.item.delivery_count == 1
    assert isinstance(await world.complete(work_of(delivery)), Accepted)
    await world.check()
