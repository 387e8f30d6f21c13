"""Release choice by frames: the newest live release first, older ones after a moment, and none that may not run the work."""

from __future__ import annotations

import msgspec
import pytest
from dispatch_rig import FakeWorker, Rig, hello
from ryusen.protocol.frames import (
    CONTINUATION,
    Answer,
    Assign,
    Bye,
    Declare,
    Drain,
    FunctionOffer,
    GiveBack,
    Hello,
    Proceed,
    Refused,
    Result,
    Settled,
    StepDeclaration,
    Succeeded,
)
from transitions.world import World

from keyspace.history import HistoryKind
from keyspace.layout import ITEM, RELEASE, RELEASE_HEAD, RELEASE_LIST
from keyspace.limits import LIVE_MS, RELEASES_MAX
from keyspace.transitions.activate_routing import activate_routing
from keyspace.transitions.publish_manifest import FunctionSpec, ManifestSpec, TriggerSpec, publish_manifest
from keyspace.transitions.register_release import register_release
from keyspace.tx import Tx
from keyspace.waiting import waiting_for
from services.dispatcher.options import LIVE_LOOK_MS, YIELD_MS

OLD, NEW, THIRD = "aa" * 16, "bb" * 16, "cc" * 16


def of_release(
    name: str, instance: str, *, capacity: int = 4, contract: str = "", features: list[str] | None = None
) -> Hello:
    said = hello(instance=instance, capacity=capacity, features=features)
    return msgspec.structs.replace(said, release=name, functions=[FunctionOffer(name="fulfil", contract=contract)])


async def declare_contract(world: World, contract: str) -> None:
    """Publish and activate a manifest that declares the function's execution contract."""
    function = FunctionSpec("fulfil", (TriggerSpec("order.placed", "fulfil@order.placed"),), contract)

    async def body(tx: Tx) -> None:
        record, _ = await publish_manifest(tx, "acme", ManifestSpec("shop", (function,)), published_by="test")
        await activate_routing(tx, "acme", {"shop": record.generation}, activated_by="test", is_merge=True)

    await world.run("publish", body)


async def word(world: World) -> str:
    """Return what the only run waits for."""
    (run,) = await world.runs()
    assert run.item_id is not None
    item = await world.read(lambda tx: tx.load(ITEM.at("acme", str(run.item_id))))
    waiting = waiting_for(run, item, world.clock.now_ms())
    assert waiting is not None
    return waiting.word


def assigned(worker: FakeWorker) -> int:
    return sum(isinstance(frame, Assign) for frame in worker.heard())


async def start_runs(world: World, count: int) -> None:
    for number in range(count):
        await world.start_run(payload=str(number).encode())


async def test_the_newest_release_gets_the_work_however_free_the_older_is(rig: Rig) -> None:
    """RFD 2, "it prefers the greatest server-assigned release position, uses instance capacity for balancing"."""
    old = await rig.join(of_release("v1", OLD, capacity=8))
    new = await rig.join(of_release("v2", NEW, capacity=2))
    twin = await rig.join(of_release("v2", THIRD, capacity=2))
    await start_runs(rig.world, 4)
    for worker in (new, new, twin, twin):
        await worker.assigned_pass()
    await rig.until_settled()
    assert assigned(old) == 0
    await rig.world.check()


async def test_an_older_release_takes_what_has_been_ready_for_the_yield_time(rig: Rig) -> None:
    """ARCHITECTURE 6, "Release choice": the newer is full; the older waits exactly the yield time, and asks in vain once."""
    old = await rig.join(of_release("v1", OLD))
    new = await rig.join(of_release("v2", NEW, capacity=1))
    await start_runs(rig.world, 2)
    await new.assigned_pass()
    await rig.until_settled()
    assert assigned(old) == 0
    empty_before = rig.metric("claims_total", outcome="empty")
    await rig.pass_time(YIELD_MS - 50)
    assert assigned(old) == 0
    assert rig.metric("claims_total", outcome="empty") == empty_before, "waiting asks nothing of the store"
    await rig.pass_time(50)
    await old.assigned_pass()
    await rig.world.check()


async def test_a_newer_session_that_gets_room_goes_before_the_yield_time_ends(rig: Rig) -> None:
    """Would catch a lane that sleeps for the older release's sake while the newest has a place again."""
    old = await rig.join(of_release("v1", OLD))
    new = await rig.join(of_release("v2", NEW, capacity=1))
    await start_runs(rig.world, 2)
    first = await new.assigned_pass()
    await rig.pass_time(YIELD_MS // 2)
    new.complete(first)
    await new.assigned_pass()
    await rig.pass_time(2 * YIELD_MS)
    assert assigned(old) == 0


async def test_an_application_full_of_older_sessions_is_not_polled(rig: Rig) -> None:
    """S3 and S4: a backlog behind a busy newest release costs the older ones one look a yield time, not a busy loop."""
    old = await rig.join(of_release("v1", OLD, capacity=1))
    await rig.join(of_release("v2", NEW, capacity=1))
    await start_runs(rig.world, 6)
    await rig.pass_time(YIELD_MS)
    await old.assigned_pass()
    await rig.until_settled()
    before = sum(rig.metric("claims_total", outcome=outcome) for outcome in ("leased", "empty"))
    await rig.pass_time(10 * YIELD_MS)
    claims = sum(rig.metric("claims_total", outcome=outcome) for outcome in ("leased", "empty")) - before
    assert claims == 0, "nobody has room"


async def test_what_lives_at_another_dispatcher_counts_and_runs_out_when_it_dies(world: World) -> None:
    """ARCHITECTURE 6, "liveness is one record for each dispatcher": seen within a look, void within its stated time."""
    async with (
        Rig(world, process_id="d1", peers=("d2",)).running() as here,
        Rig(world, process_id="d2", peers=("d1",)).running() as there,
    ):
        old = await here.join(of_release("v1", OLD))
        new = await there.join(of_release("v2", NEW, capacity=1))
        await here.pass_time(2 * LIVE_LOOK_MS)
        await start_runs(world, 2)
        await new.assigned_pass()
        await here.until_settled()
        assert assigned(old) == 0
        await here.pass_time(YIELD_MS)
        await old.assigned_pass()
        there.kill()
        new.cut()
        await here.pass_time(LIVE_MS + 2 * LIVE_LOOK_MS, step_ms=250)
        await world.start_run(payload=b"9")
        await old.assigned_pass()  # without any time passing: the dead dispatcher's word counts no more


async def test_a_draining_release_is_out_at_once(rig: Rig) -> None:
    """RFD 2, "excludes draining connections": a rollback; the newest says that it leaves while it still works."""
    old = await rig.join(of_release("v1", OLD))
    new = await rig.join(of_release("v2", NEW))
    await rig.world.start_run()
    busy = await new.assigned_pass()
    new.say(Drain())
    await rig.until_settled()
    await rig.world.start_run(payload=b"2")
    await old.assigned_pass()
    new.complete(busy)
    assert (await new.hear(Settled)).verdict == "accepted"
    new.say(Bye())
    await new.parted()
    assert assigned(new) == 0
    await rig.world.check()


@pytest.mark.case(50)
async def test_going_back_to_the_old_release_needs_no_new_name(rig: Rig) -> None:
    """Case 050, "roll back again": when the newest is gone, the old one is the greatest live position, without a wait."""
    await rig.join(of_release("v1", OLD))
    new = await rig.join(of_release("v2", NEW))
    new.drop()
    await new.parted()
    old = await rig.join(of_release("v1", THIRD))
    await rig.world.start_run()
    await old.assigned_pass()
    first, second = await rig.world.records(RELEASE_LIST)
    names = {record.release_id: record.name for record in await rig.world.records(RELEASE)}
    assert [names[first], names[second]] == ["v1", "v2"], "the rollback registered nothing anew"
    (head,) = await rig.world.records(RELEASE_HEAD)
    assert head.release_id == second, "the newest registered one stays the head"
    await rig.world.check()


async def test_workers_without_a_release_come_last_and_register_nothing(rig: Rig) -> None:
    """RFD 2, "unversioned workers do not provide trustworthy code-change identity": below every release, not refused."""
    plain = await rig.join(of_release("", OLD))
    assert await rig.world.records(RELEASE) == []
    await rig.world.start_run()
    await plain.assigned_pass()
    named = await rig.join(of_release("v1", NEW))
    await rig.world.start_run(payload=b"2")
    await named.assigned_pass()
    assert assigned(plain) == 0
    await rig.world.check()


async def test_a_session_under_another_contract_waits_visibly_until_one_fits(rig: Rig) -> None:
    """RFD 2, "It hard-filters": the active manifest's contract decides, whatever the position; the run says what it waits for."""
    await declare_contract(rig.world, "c1")
    old = await rig.join(of_release("v1", OLD, contract="c0"))
    new = await rig.join(of_release("v2", NEW, contract="c2"))
    await rig.world.start_run()
    await rig.pass_time(2 * YIELD_MS)
    assert (assigned(old), assigned(new)) == (0, 0)
    assert await word(rig.world) == "worker"
    await declare_contract(rig.world, "c2")
    await rig.pass_time(2 * LIVE_LOOK_MS)
    await new.assigned_pass()
    assert assigned(old) == 0
    await rig.world.check()


async def test_a_release_that_may_not_run_the_function_holds_none_back(rig: Rig) -> None:
    """Only eligible releases count: a newer one under another contract must not cost the older a yield time at each step."""
    await declare_contract(rig.world, "c1")
    old = await rig.join(of_release("v1", OLD, contract="c1"))
    await rig.join(of_release("v2", NEW, contract="c2"))
    await rig.world.start_run()
    await old.assigned_pass()


@pytest.mark.case(50)
async def test_a_run_moves_to_the_new_release_behind_its_running_step(rig: Rig) -> None:
    """Case 050, ARCHITECTURE 6, "Continuation": the step that runs is settled here, what follows goes to the newest release."""
    run = await rig.world.start_run()
    old = await rig.join(of_release("v1", OLD, features=[CONTINUATION]))
    first = await old.assigned_pass()
    old.say(Answer(request=first.request, ref=first.ref, ending=declared("s1")))
    proceed = await old.hear(Proceed)
    new = await rig.join(of_release("v2", NEW, features=[CONTINUATION]))
    outcome = Succeeded(value=msgspec.Raw(b'"ok"'))
    following = "f" * 32
    old.say(Result(request=proceed.following, ref=proceed.ref, outcome=outcome, following=following))
    assert (await old.hear(Settled)).verdict == "accepted"
    moved = await new.assigned_pass()
    assert [memo.id for memo in moved.memo] == ["s1"]
    new.complete(moved)
    assert (await new.hear(Settled)).verdict == "accepted"
    entries = await rig.world.history(run.run_id)
    starts = (HistoryKind.PASS_AUTHORIZED, HistoryKind.ATTEMPT_AUTHORIZED)
    assert [entry.data["release"] for entry in entries if entry.kind in starts] == ["v1", "v1", "v2"]
    assert (await rig.world.attempt(run.run_id, "s1", 1)).release == "v1"
    await rig.world.check()


async def test_a_returned_start_goes_to_the_newest_release_too(rig: Rig) -> None:
    """RFD 1, "Every discovery, retry, resume, and compensation selects": no affinity, wherever the item was before."""
    await rig.world.start_run()
    old = await rig.join(of_release("v1", OLD))
    await old.declare(await old.assigned_pass())
    callback = await old.hear(Assign, lambda assign: assign.ref.kind == "callback")
    new = await rig.join(of_release("v2", NEW))
    old.say(GiveBack(request=callback.request, ref=callback.ref, reason="busy"))
    again = await new.hear(Assign)
    assert (again.ref.item, again.ref.attempt) == (callback.ref.item, 1)


async def test_more_releases_than_may_be_live_are_refused_for_now(rig: Rig) -> None:
    """Every list is bounded: with a full one of releases that have just come, the worker hears why and tries again."""
    for number in range(RELEASES_MAX):
        name = f"v{number}"
        await rig.world.run(
            "register", lambda tx, name=name: register_release(tx, "acme", "shop", name, {"fulfil": ""})
        )
    worker = rig.connect()
    worker.say(of_release("one more", OLD))
    refused = await worker.hear(Refused)
    assert (refused.code, refused.definitive) == ("too_many_releases", False)
    rig.clock.advance(LIVE_MS)
    await rig.join(of_release("one more", OLD))
    assert len(await rig.world.records(RELEASE)) == RELEASES_MAX
    await rig.world.check()


def declared(step: str) -> Declare:
    return Declare(steps=[StepDeclaration(id=step)])
