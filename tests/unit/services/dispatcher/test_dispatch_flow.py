"""A worker's life by frames: runs from their first pass to their end, over a real keyspace."""

from __future__ import annotations

import pytest
from dispatch_rig import RETRY_AT_ONCE, Rig, hello
from ryusen.protocol.frames import (
    Answer,
    Assign,
    Bye,
    Declare,
    Drain,
    Fail,
    Failed,
    Failure,
    GiveBack,
    NotFound,
    Ready,
    Refused,
    Renew,
    Renewed,
    Result,
    RetryPolicy,
    Settled,
    Start,
    StepDeclaration,
    Void,
)
from transitions.world import World

from keyspace.lifecycle import ItemState, Phase
from keyspace.transitions.lose_lease import Loss


async def test_a_run_of_two_steps_goes_from_its_event_to_its_output(rig: Rig) -> None:
    """ARCHITECTURE 6: assign, answer, ready, start, result, each settled durably; the memo carries what was settled."""
    run = await rig.world.start_run(payload=b'{"order":7}')
    worker = await rig.join()
    first = await worker.assigned_pass()
    assert (bytes(first.input), first.memo, first.function, first.event) == (b'{"order":7}', [], "fulfil", run.event_id)
    assert (await worker.declare(first, "reserve")).verdict == "accepted"
    worker.succeed(await worker.start(), b'{"n":1}')
    assert (await worker.hear(Settled)).verdict == "accepted"
    second = await worker.assigned_pass()
    assert [(memo.id, bytes(memo.value or b"")) for memo in second.memo] == [("reserve", b'{"n":1}')]
    assert (await worker.declare(second, "ship", timeout_ms=5_000)).verdict == "accepted"
    callback = await worker.start()
    assert callback.timeout_ms == 5_000
    worker.succeed(callback)
    await worker.hear(Settled)
    worker.complete(await worker.assigned_pass(), b'"shipped"')
    assert (await worker.hear(Settled)).verdict == "accepted"
    ended = await rig.world.get_run(run.run_id)
    assert (ended.phase, ended.output_bytes) == (Phase.TERMINAL, len(b'"shipped"'))
    await rig.world.check()


async def test_work_that_waited_is_found_by_the_first_worker_and_new_work_by_its_bell(rig: Rig) -> None:
    """ARCHITECTURE 4: a hello brings a full scan; after it a ring alone wakes the pump, without any time passing."""
    await rig.world.start_run()
    await rig.pass_time(60_000, step_ms=10_000)
    worker = await rig.join()
    await worker.assigned_pass()
    await rig.world.start_run(payload=b"2")
    await worker.assigned_pass()


async def test_a_refused_declaration_leaves_the_pass_open_on_its_lease(rig: Rig) -> None:
    """FILLED-IN 11, "A refused declaration": the pass hears code, field and limit, and may answer again."""
    await rig.world.start_run()
    worker = await rig.join()
    assign = await worker.assigned_pass()
    refused = await worker.declare(assign, retry=RetryPolicy(attempts=5_000))
    assert (refused.verdict, refused.code, refused.field, refused.limit) == (
        "refused",
        "invalid_retry",
        "retry.attempts",
        1_000,
    )
    worker.say(Answer(request=assign.request, ref=assign.ref, ending=Declare(steps=[])))
    assert (await worker.hear(Settled)).code == "step_count"
    worker.say(Renew(requests=[assign.request]))
    assert (await worker.hear(Renewed)).requests == [assign.request]
    assert (await worker.declare(assign)).verdict == "accepted"
    await rig.world.check()


async def test_a_retry_comes_at_its_instant_and_idle_costs_one_scan_a_second(rig: Rig) -> None:
    """ARCHITECTURE 4, "Wake-ups": the delayed attempt is neither early nor a bucket late; idle cost does not grow."""
    await rig.world.start_run()
    worker = await rig.join()
    await worker.declare(await worker.assigned_pass(), retry=RetryPolicy(attempts=3, initial_ms=7_350))
    callback = await worker.start()
    outcome = Failed(failure=Failure(category="application", message="no stock"))
    worker.say(Result(request=callback.request, ref=callback.ref, outcome=outcome))
    await worker.hear(Settled)
    due_ms = rig.clock.now_ms() + 7_350
    scans_before = sum(rig.metric("scans_total", reason=reason) for reason in ("bell", "bucket", "full"))
    for _ in range(14):
        worker.say(Renew(requests=[]))
        await rig.pass_time(500)
        assert [frame for frame in worker.heard() if isinstance(frame, Assign)] == [], "early"
    await rig.pass_time(due_ms - rig.clock.now_ms(), step_ms=10)
    again = await worker.hear(Assign)
    assert (again.ref.attempt, again.ref.generation) == (2, 2)
    assert rig.clock.now_ms() - due_ms <= 10
    scans = sum(rig.metric("scans_total", reason=reason) for reason in ("bell", "bucket", "full")) - scans_before
    assert scans <= 10, "one a second and one for the ring"
    await rig.world.check()


async def test_current_code_without_the_step_makes_it_obsolete(rig: Rig) -> None:
    """FILLED-IN 6, "its worker answers target_not_found before any user code of the step runs": a new pass goes on."""
    await rig.world.start_run()
    worker = await rig.join()
    await worker.declare(await worker.assigned_pass())
    assign = await worker.hear(Assign)
    worker.say(NotFound(request=assign.request, ref=assign.ref))
    assert (await worker.hear(Settled)).verdict == "accepted"
    worker.complete(await worker.assigned_pass())
    assert (await worker.hear(Settled)).verdict == "accepted"
    await rig.world.check()


async def test_work_given_back_returns_unharmed_and_its_session_pauses(rig: Rig) -> None:
    """RFD 2, "Lease expiry before start authorization": only the delivery count grows, and no hot loop comes of it."""
    await rig.world.start_run()
    worker = await rig.join()
    await worker.declare(await worker.assigned_pass())
    assign = await worker.hear(Assign)
    worker.say(GiveBack(request=assign.request, ref=assign.ref, reason="no slot"))
    await rig.until_settled()
    assert worker.heard() == [], "the session that gave it back is passed over for a while"
    await rig.pass_time(300)
    again = await worker.hear(Assign)
    assert (again.ref.attempt, again.delivery, again.ref.item) == (1, 2, assign.ref.item)
    assert again.request != assign.request
    declined = again
    worker.say(GiveBack(request=declined.request, ref=declined.ref))
    other = await rig.join(hello(instance="22" * 16))
    taken = await other.hear(Assign)
    assert (taken.ref.item, taken.delivery) == (assign.ref.item, 3), "another session is not paused"
    await rig.world.check()


async def test_a_declined_pass_returns_unharmed_too(rig: Rig) -> None:
    """RFD 2, "Lease expiry before start authorization": a leaving worker declines passes; none counts as lost."""
    run = await rig.world.start_run()
    worker = await rig.join()
    assign = await worker.assigned_pass()
    worker.say(GiveBack(request=assign.request, ref=assign.ref, reason="the worker is leaving"))
    await rig.pass_time(300)
    again = await worker.assigned_pass()
    assert again.ref.item == assign.ref.item
    item = await rig.world.item(again.ref.item)
    assert item is not None and item.loss_count == 0
    assert "pass-lost" not in await rig.world.kinds(run.run_id)
    await rig.world.check()


async def test_a_worker_that_says_bye_is_forgotten(rig: Rig) -> None:
    """A graceful end: the connection closes normally and the instance's record goes."""
    worker = await rig.join()
    worker.say(Bye())
    assert await worker.parted() == (1000, "bye")
    await rig.until_settled()
    dump = await rig.world.dump()
    assert not any(bytes.fromhex("11" * 16) in key for key in dump)


async def test_a_drained_dispatcher_sends_its_workers_elsewhere_and_gives_back(rig: Rig) -> None:
    """ARCHITECTURE 2, "SIGTERM drains": nothing more is leased, unstarted work goes back without a loss, results settle."""
    await rig.world.start_run()
    worker = await rig.join(hello(capacity=2))
    await worker.declare(await worker.assigned_pass())
    running = await worker.start()
    await rig.world.start_run(payload=b"2")
    waiting = await worker.assigned_pass()
    rig.group.start_soon(rig.dispatcher.drain, 2_000)
    await worker.hear(Drain)
    worker.succeed(running)
    assert (await worker.hear(Settled)).verdict == "accepted"
    worker.drop()
    await worker.parted()
    await rig.until_settled()
    item = await rig.world.item(waiting.ref.item)
    assert item is not None and (item.state, item.loss_count) == (ItemState.READY, 0)
    late = rig.connect()
    late.say(hello(instance="22" * 16))
    refused = await late.hear(Refused)
    assert (refused.code, refused.definitive) == ("draining", False)
    await rig.world.check()


async def test_renewal_keeps_work_leased_and_silence_ends_a_session(rig: Rig) -> None:
    """FILLED-IN 11, "Lease expiry and results": renewed work stays; a session that says nothing for a lease is gone."""
    await rig.world.start_run()
    worker = await rig.join()
    await worker.declare(await worker.assigned_pass(), retry=RETRY_AT_ONCE)
    callback = await worker.start()
    for _ in range(8):
        await rig.pass_time(5_000, step_ms=500)
        worker.say(Renew(requests=[callback.request]))
        assert (await worker.hear(Renewed)).requests == [callback.request]
    assert rig.metric("losses_total", outcome=Loss.UNKNOWN.name.lower()) == 0
    await rig.pass_time(15_500, step_ms=500)
    assert await worker.parted() == (4408, "silence")
    await rig.pass_time(3_000, step_ms=500)
    assert rig.metric("losses_total", outcome=Loss.UNKNOWN.name.lower()) == 1
    await rig.world.check()


async def test_a_start_that_is_no_longer_wanted_is_void(rig: Rig) -> None:
    """RFD 2, "Lease expiry before start authorization": after expiry `ready` is answered `void`, never `start`."""
    await rig.world.start_run()
    worker = await rig.join()
    await worker.declare(await worker.assigned_pass())
    assign = await worker.hear(Assign)
    for _ in range(3):
        await rig.pass_time(5_500, step_ms=500)
        worker.say(Renew(requests=[]))
    heard = worker.heard()
    worker.say(Ready(request=assign.request))
    void = await worker.hear(Void)
    assert void.request == assign.request
    assert not [frame for frame in heard if isinstance(frame, Start)]
    await rig.world.check()


@pytest.mark.parametrize("functions", ["other", "other fulfil"])
async def test_a_session_gets_work_of_the_functions_it_serves_only(world: World, functions: str) -> None:
    """RFD 2, "Compatible": work waits, visibly, for a worker that serves its function."""
    async with Rig(world).running() as rig:
        await world.start_run()
        worker = await rig.join(hello(functions=functions))
        await rig.pass_time(2_000, step_ms=500)
        assigned = [frame.function for frame in worker.heard() if isinstance(frame, Assign)]
        assert assigned == (["fulfil"] if "fulfil" in functions else [])


async def test_declarations_of_unknown_shape_are_refused_not_guessed(rig: Rig) -> None:
    """ARCHITECTURE 7: two steps at once are refused with a code, and nothing is recorded."""
    run = await rig.world.start_run()
    worker = await rig.join()
    assign = await worker.assigned_pass()
    steps = [StepDeclaration(id="a"), StepDeclaration(id="b")]
    worker.say(Answer(request=assign.request, ref=assign.ref, ending=Declare(steps=steps)))
    answer = await worker.hear(Settled)
    assert (answer.verdict, answer.code, answer.limit) == ("refused", "step_count", 1)
    assert (await rig.world.get_run(run.run_id)).step_count == 0


async def test_a_full_worker_costs_no_scans_beyond_the_bucket(rig: Rig) -> None:
    """FILLED-IN S4: work that waits for a seat is not asked for again and again; a freed seat takes it at once."""
    for number in range(3):
        await rig.world.start_run(payload=str(number).encode())
    worker = await rig.join(hello(capacity=1))
    first = await worker.assigned_pass()
    await rig.until_settled()
    claims = rig.metric("claims_total", outcome="leased") + rig.metric("claims_total", outcome="empty")
    for _ in range(4):
        worker.say(Renew(requests=[first.request]))
        await rig.pass_time(2_500, step_ms=250)
    assert rig.metric("claims_total", outcome="leased") + rig.metric("claims_total", outcome="empty") == claims
    worker.complete(first)
    await worker.hear(Settled)
    await worker.assigned_pass()


async def test_several_dispatchers_start_apart_and_still_find_the_only_item(world: World) -> None:
    """ARCHITECTURE 4, "Claims": a random place in the first batches must not delay a lane that has one entry."""
    async with Rig(world, peers=("d2", "d3")).running() as rig:
        worker = await rig.join(hello(capacity=4))
        for number in range(12):
            await world.start_run(payload=str(number).encode())
            assign = await worker.assigned_pass()
            worker.complete(assign)
            assert (await worker.hear(Settled)).verdict == "accepted"
        for number in range(12):
            await world.start_run(payload=str(100 + number).encode())
        for _ in range(12):
            worker.complete(await worker.assigned_pass())
            await worker.hear(Settled)
    await world.check()


async def test_compensation_is_never_behind_forward_work(rig: Rig) -> None:
    """RFD 2, "Compensation work uses a separate": a forward backlog leaves an unwind its seat; here it is skipped."""
    failing = await rig.world.start_run()
    worker = await rig.join(hello(capacity=1))
    await worker.declare(await worker.assigned_pass())
    worker.succeed(await worker.start())
    await worker.hear(Settled)
    last = await worker.assigned_pass()
    for number in range(5):
        await rig.world.start_run(payload=str(number).encode())
    worker.say(Answer(request=last.request, ref=last.ref, ending=Fail(failure=Failure(category="c", message="m"))))
    await worker.hear(Settled)
    undo = await worker.hear(Assign)
    assert (undo.ref.kind, undo.ref.run, bytes(undo.result or b"")) == ("compensation", failing.run_id, b'"ok"')
    worker.say(NotFound(request=undo.request, ref=undo.ref))
    assert (await worker.hear(Settled)).verdict == "accepted"
    assert (await rig.world.get_run(failing.run_id)).phase is Phase.TERMINAL
    await worker.assigned_pass()
    await rig.world.check()


async def test_many_idle_applications_are_scanned_in_few_transactions(rig: Rig) -> None:
    """FILLED-IN S4: at the turn of a bucket every pump asked on its own, a transaction each, all at the same moment."""
    names = [f"idle-{number}" for number in range(40)]
    for number, name in enumerate(names):
        await rig.world.begin(workspace=name)
        await rig.join(hello(instance=f"{number:032x}"), workspace=name)
    await rig.until_settled()

    def scans() -> tuple[int, float]:
        figures = rig.keyspace.meter.snapshot()["scan_due"]
        return figures.commit_count, rig.metric("scans_total", reason="bucket")

    before = scans()
    await rig.pass_time(5_000, step_ms=50)
    after = scans()
    assert after[1] - before[1] >= 4 * len(names)
    assert after[0] - before[0] <= 5 * 2 + 1, "two transactions a bucket for forty applications"
    for name in names[::13]:
        await rig.world.submit(workspace=name)
        await rig.world.expand(workspace=name)
    await rig.until_settled()
    assert rig.metric("assigned_total") == 4, "a ring is answered at once, without waiting for the others"
