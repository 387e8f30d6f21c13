"""Cases from the field that the dispatcher answers for: recovery, redelivery, late results, lost connections."""

from __future__ import annotations

from itertools import pairwise

import anyio
import pytest
from dispatch_rig import Rig, hello, turns
from ryusen.protocol.frames import Assign, GiveBack, HeldWork, Ready, Renew, Renewed, Settled, Start, Void
from transitions.world import World

from keyspace.layout import ITEM, LEASE, RUN, bucket_of
from keyspace.lifecycle import AttemptState, Execution, ItemState, Phase, StepState
from keyspace.store.embedded import memory_store
from keyspace.tx import Tx
from services.dispatcher.options import RECOVERY_PAGE_ITEMS


async def sit_out(rig: Rig, delta_ms: int, *renewing: object, step_ms: int = 500) -> None:
    """Let time pass while workers keep their sessions alive without renewing any lease."""
    for _ in range(0, delta_ms, 2_500):
        for worker in renewing:
            worker.say(Renew(requests=[]))  # type: ignore[attr-defined]
        await rig.pass_time(min(2_500, delta_ms), step_ms=step_ms)


@pytest.mark.case(7)
async def test_a_step_that_runs_through_an_outage_of_all_dispatchers_runs_once(world: World) -> None:
    """Case 007: the engine came back and dispatched a step again that its worker had never stopped running."""
    run = await world.start_run()
    async with Rig(world, process_id="d1").running() as first:
        worker = await first.join()
        await worker.declare(await worker.assigned_pass())
        running = await worker.start()
        await sit_out(first, 10_000, worker)
        first.kill()
    world.clock.advance(20_000)
    async with Rig(world, process_id="d2").running() as second:
        await second.pass_time(2_000, step_ms=500)
        assert (await world.attempt(run.run_id, "s1", 1)).state is AttemptState.UNKNOWN
        idle = await second.join(hello(instance="22" * 16))
        held = HeldWork(ref=running.ref, request=running.request, state="running")
        back = await second.join(hello(held=[held]))
        await sit_out(second, 20_000, idle, back)
        assert not [frame for frame in idle.heard() + back.heard() if isinstance(frame, Assign)], "dispatched again"
        back.succeed(running)
        assert (await back.hear(Settled)).verdict == "accepted"
        step = await world.step(run.run_id, "s1")
        assert (step.state, step.ordinal) == (StepState.COMPLETED, 1)
        await sit_out(second, 2_500, idle, back)
        assigned = [frame for frame in idle.heard() + back.heard() if isinstance(frame, Assign)]
        assert [assign.ref.kind for assign in assigned] == ["discovery"], "the run goes on without an operator"
        await world.check()


async def damage(world: World, item_id: str) -> None:
    """Replace an item's record by bytes that no release wrote."""

    async def body(tx: Tx) -> None:
        tx._raw.set(world.keyspace.prefix + ITEM.at("acme", item_id).data, b"\x01broken")

    await world.run("damage", body)


@pytest.mark.case(8)
async def test_a_page_of_leases_that_nobody_can_recover_hides_none_behind_it(world: World) -> None:
    """Case 008: recovery read the first page, failed on each of its entries, and never reached the next one."""
    await world.hello()
    run = await world.start_run()
    leased = await world.lease()
    shard = int(leased.item.item_id[:2], 16) % 8
    stuck = [f"{shard:02x}{number:030x}" for number in range(RECOVERY_PAGE_ITEMS + 6)]

    async def plant(tx: Tx) -> None:
        for item_id in stuck:
            tx.put(LEASE.at(shard, bucket_of(tx.now_ms), "acme", item_id), None)

    await world.run("plant", plant)
    for item_id in stuck:
        await damage(world, item_id)
    async with Rig(world).running() as rig:
        await rig.pass_time(18_000, step_ms=500)
        item = await world.item(leased.item.item_id)
        assert item is not None and (item.state, item.loss_count) == (ItemState.READY, 1)
        failed = rig.metric("recovery_failures_total")
        assert failed >= len(stuck), "visible"
        await rig.pass_time(20_000, step_ms=500)
        tries = rig.metric("recovery_failures_total") / len(stuck)
        assert tries <= 7, "tried later and later: after 1, 2, 4, 8, 16 seconds"
        assert (await world.get_run(run.run_id)).item_id == leased.item.item_id


@pytest.mark.case(8)
async def test_an_item_that_cannot_be_leased_hides_none_behind_it(world: World) -> None:
    """Case 008, the whole kind: a damaged item or run at the head of a lane failed every claim of that lane."""
    broken = await world.start_run()
    assert broken.item_id is not None
    await damage(world, broken.item_id)
    halted = await world.start_run(payload=b"2")

    async def halt(tx: Tx) -> None:
        tx._raw.set(world.keyspace.prefix + RUN.at("acme", halted.run_id).data, b"\x01broken")

    await world.run("halt", halt)
    sound = await world.keyspace.transact("read", lambda tx: tx.load(RUN.at("acme", broken.run_id)))
    assert sound is not None
    async with Rig(world).running() as rig:
        await world.submit(payload=b"3")
        await world.expand()
        worker = await rig.join(hello(capacity=8))
        assert bytes((await worker.assigned_pass()).input) == b"3"
        await world.submit(payload=b"4")
        await world.expand()
        assert bytes((await worker.assigned_pass()).input) == b"4"
        assert rig.metric("claim_failures_total") >= 2


@pytest.mark.case(10)
async def test_another_dispatcher_recovers_what_a_dead_one_had_claimed(world: World) -> None:
    """Case 010: the recoverer died holding work, and nobody else would take it while it seemed alive."""
    run = await world.start_run()
    async with Rig(world, process_id="d1", peers=("d2",)).running() as first:
        worker = await first.join()
        await worker.assigned_pass()
        first.kill()
    store = memory_store(clock=world.clock, engine=world.engine)
    # The dead one still counts as live, so that affinity alone would leave its shards to it.
    async with Rig(world, process_id="d2", peers=("d1", "d3", "d4"), store=store).running() as second:
        await second.pass_time(22_000, step_ms=500)
        assert run.item_id is not None
        item = await world.item(run.item_id)
        assert item is not None and item.state is ItemState.READY
        fresh = await second.join(hello(instance="22" * 16))
        assert (await fresh.assigned_pass()).delivery == 2
    await world.check()


@pytest.mark.case(13)
async def test_work_that_waits_inside_a_worker_costs_no_attempt(world: World) -> None:
    """Case 013: buffered work timed out before user code began, and attempts climbed."""
    async with Rig(world).running() as rig:
        runs = [await world.start_run(payload=str(number).encode()) for number in range(5)]
        starter = await rig.join(hello(instance="aa" * 16, capacity=8))
        for _ in runs:
            await starter.declare(await starter.assigned_pass())
        starter.drop()
        await starter.parted()
        await rig.pass_time(2_000, step_ms=500)
        worker = await rig.join(hello(capacity=1))
        first = await worker.hear(Assign)
        await rig.until_settled()
        assert worker.heard() == [], "never more than the declared capacity"
        await sit_out(rig, 17_500, worker)
        frames = worker.heard()
        told = [type(frame) for frame in frames if not isinstance(frame, Renewed)]
        assert told == [Void, Assign], "the unstarted one is called off, and its place is free again"
        item = await world.item(first.ref.item)
        assert item is not None and item.ordinal == 1
        worker.drop()
        await worker.parted()
        await rig.pass_time(3_000, step_ms=500)
        for run in runs:
            step = await world.step(run.run_id, "s1")
            assert (step.ordinal, step.generation, step.failure_count, step.state) == (1, 1, 0, StepState.PENDING)
            assert (await world.get_run(run.run_id)).unknown_count == 0
    await world.check()


@pytest.mark.case(14)
async def test_a_pass_redelivered_to_the_worker_that_still_runs_it(rig: Rig) -> None:
    """Case 014: the client raised on the duplicate; here both are told apart by request id and token."""
    run = await rig.world.start_run()
    worker = await rig.join()
    old = await worker.assigned_pass()
    await sit_out(rig, 17_500, worker)
    new = await worker.assigned_pass()
    assert (new.ref.item, new.delivery) == (old.ref.item, 2)
    assert new.request != old.request
    worker.complete(old, b'"old"')
    stale = await worker.hear(Settled)
    assert (stale.request, stale.verdict, stale.code) == (old.request, "stale", "lease_lost")
    worker.complete(new, b'"new"')
    assert (await worker.hear(Settled)).verdict == "accepted"
    assert (await rig.world.get_run(run.run_id)).output_bytes == len(b'"new"')
    await rig.world.start_run(payload=b"2")
    await worker.assigned_pass()
    await rig.world.check()


@pytest.mark.case(16)
@pytest.mark.parametrize(("late", "verdict"), [(b'"done"', "replayed"), (b'"other"', "stale")])
async def test_a_completion_that_comes_second_is_benign(rig: Rig, late: bytes, verdict: str) -> None:
    """Case 016: the harmless duplicate of a slow worker was passed on as a failure."""
    run = await rig.world.start_run()
    slow = await rig.join(hello(capacity=1))
    first = await slow.assigned_pass()
    await sit_out(rig, 15_000, slow)
    quick = await rig.join(hello(instance="22" * 16, capacity=2))
    await rig.pass_time(2_500, step_ms=500)
    frames = quick.heard() + slow.heard()
    (second,) = [frame for frame in frames if isinstance(frame, Assign)]
    holder = quick if second.request not in {first.request} else slow
    holder.complete(second, b'"done"')
    await holder.hear(Settled)
    before = await rig.world.kinds(run.run_id)
    slow.complete(first, late)
    answer = await slow.hear(Settled)
    assert answer.verdict == verdict
    ended = await rig.world.get_run(run.run_id)
    assert (ended.phase, ended.execution, ended.failure) == (Phase.TERMINAL, Execution.COMPLETED, None)
    assert await rig.world.kinds(run.run_id) == before
    await rig.world.check()


@pytest.mark.case(53)
async def test_a_pass_that_kills_its_worker_comes_back_later_each_time(rig: Rig) -> None:
    """Case 053 (b): code outside steps ended every process it met; the rate falls and the count is visible."""
    run = await rig.world.start_run()
    seen_ms: list[int] = []
    for number in range(13):
        worker = await rig.join(hello(instance=f"{number:032x}"))
        for _ in range(1_000):
            if any(isinstance(frame, Assign) for frame in worker.heard()):
                break
            worker.say(Renew(requests=[]))
            await rig.pass_time(500, step_ms=250)
        seen_ms.append(rig.clock.now_ms())
        worker.drop()
        await worker.parted()
        await rig.until_settled()
    gaps_s = [(later - earlier) / 1_000 for earlier, later in pairwise(seen_ms)]
    wanted_s = [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]
    for gap_s, want_s in zip(gaps_s, wanted_s, strict=True):
        assert want_s <= gap_s <= want_s + 1.0, (gaps_s, wanted_s)
    assert rig.metric("stuck_deliveries_total") == 3, "the eleventh delivery and those after it alert"
    assert (await rig.world.kinds(run.run_id)).count("pass-lost") == 13
    await rig.world.check()


@pytest.mark.case(53)
async def test_a_callback_that_kills_its_worker_is_unknown_and_never_sent_again(rig: Rig) -> None:
    """Case 053 (a): the job walked through the fleet; an effect that was lost is nobody's to repeat."""
    run = await rig.world.start_run()
    worker = await rig.join()
    await worker.declare(await worker.assigned_pass())
    await worker.start()
    worker.drop()
    await worker.parted()
    healthy = await rig.join(hello(instance="22" * 16))
    for _ in range(4):
        await sit_out(rig, 10_000, healthy)
    assert not [frame for frame in healthy.heard() if isinstance(frame, Assign)]
    assert (await rig.world.attempt(run.run_id, "s1", 1)).state is AttemptState.UNKNOWN
    await rig.world.start_run(payload=b"2")
    await healthy.assigned_pass()
    await rig.world.check()


@pytest.mark.case(71)
@pytest.mark.parametrize("moment", ["at rest", "assigned", "running", "unacknowledged"])
async def test_a_dropped_connection_costs_nothing_that_the_worker_still_has(rig: Rig, moment: str) -> None:
    """Case 071, the server's side: whenever the peer goes, a later session goes on from where the worker stands."""
    run = await rig.world.start_run()
    worker = await rig.join()
    await worker.declare(await worker.assigned_pass())
    held: list[HeldWork] = []
    assign = await worker.hear(Assign)
    if moment in ("running", "unacknowledged"):
        worker.say(Ready(request=assign.request))
        await worker.hear(Start)
        held = [HeldWork(ref=assign.ref, request=assign.request, state="running")]
    if moment == "unacknowledged":
        worker.succeed(assign)
        await rig.until_settled()
        held = [HeldWork(ref=assign.ref, request=assign.request, state="finished")]
    if moment == "at rest":
        worker.say(GiveBack(request=assign.request, ref=assign.ref))
        await rig.until_settled()
    worker.drop()
    await worker.parted()
    await rig.until_settled()
    back = await rig.join(hello(held=held))
    if moment in ("running", "unacknowledged"):
        back.succeed(assign)
        answer = await back.hear(Settled)
        assert answer.verdict == ("accepted" if moment == "running" else "replayed")
    else:
        await rig.pass_time(500)
        again = await back.start()
        assert (again.ref.attempt, again.ref.generation, again.delivery) == (1, 1, 2)
        back.succeed(again)
        await back.hear(Settled)
    step = await rig.world.step(run.run_id, "s1")
    assert (step.state, step.ordinal) == (StepState.COMPLETED, 1)
    await rig.world.check()


async def test_a_start_that_never_reached_its_worker_is_proven_by_the_next_hello(rig: Rig) -> None:
    """ARCHITECTURE 6, "Reconnection proves things": same ordinal, requeued at once, no Unknown, no retry spent."""
    run = await rig.world.start_run()
    worker = await rig.join()
    await worker.declare(await worker.assigned_pass())
    assign = await worker.hear(Assign)
    worker.takes_frames = anyio.Event()
    worker.say(Ready(request=assign.request))
    await rig.until_settled()
    assert (await rig.world.attempt(run.run_id, "s1", 1)).state is AttemptState.AUTHORIZED
    worker.drop()
    await worker.parted()
    assert (await rig.world.attempt(run.run_id, "s1", 1)).state is AttemptState.AUTHORIZED, "it may have been delivered"
    back = await rig.join()
    again = await back.start()
    assert (again.ref.attempt, again.ref.generation) == (1, 1)
    back.succeed(again)
    assert (await back.hear(Settled)).verdict == "accepted"
    assert "attempt-not-started" in await rig.world.kinds(run.run_id)
    await rig.world.check()


async def test_a_start_that_was_never_sent_is_taken_back_when_its_session_ends(rig: Rig) -> None:
    """RFD 2, "A transport that proves": a start frame still in the queue proves it without waiting for any hello."""
    runs = [await rig.world.start_run(payload=str(number).encode()) for number in range(2)]
    worker = await rig.join()
    for _ in runs:
        await worker.declare(await worker.assigned_pass())
    assigns = [await worker.hear(Assign) for _ in runs]
    worker.takes_frames = anyio.Event()
    for assign in assigns:
        worker.say(Ready(request=assign.request))
    await rig.until_settled()
    worker.drop()
    await worker.parted()
    await rig.until_settled()
    states = [(await rig.world.attempt(run.run_id, "s1", 1)).state for run in runs]
    assert sorted(states) == [AttemptState.AUTHORIZED, AttemptState.QUEUED], "one was with the transport, one was not"
    assert rig.metric("not_started_total") == 1
    await rig.world.check()


async def test_a_newer_session_of_an_instance_ends_the_older_one(rig: Rig) -> None:
    """ARCHITECTURE 6: "frames of older sessions are dropped"; the newer one goes on with the older one's work."""
    run = await rig.world.start_run()
    old = await rig.join()
    await old.declare(await old.assigned_pass())
    running = await old.start()
    held = HeldWork(ref=running.ref, request=running.request, state="running")
    new = await rig.join(hello(held=[held]))
    assert await old.parted() == (4409, "session_superseded")
    old.succeed(running)
    await turns()
    assert (await rig.world.attempt(run.run_id, "s1", 1)).state is AttemptState.AUTHORIZED
    new.say(Renew(requests=[running.request]))
    assert (await new.hear(Renewed)).requests == [running.request]
    new.succeed(running)
    assert (await new.hear(Settled)).verdict == "accepted"
    await rig.world.check()
