"""Places that only compensation may take, end to end: a worker full of forward work still undoes what failed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from dispatch_rig import FakeWorker, Rig, hello
from ryusen import App, Context, NonRetryable, Retry
from ryusen.protocol.frames import (
    Assign,
    Failed,
    Failure,
    Ready,
    Renew,
    Result,
    RetryPolicy,
    Settled,
    Start,
)
from whole_rig import Whole, effect

from keyspace.lifecycle import Execution, Phase, Recovery
from keyspace.records.run import RunRecord
from keyspace.transitions.stop_run import cancel_run

HOUR_MS = 3_600_000
POLL_MS = 100
POLLS_MAX = 50


async def undoable(rig: Rig, worker: FakeWorker, payload: bytes) -> RunRecord:
    """Return a run with a completed step, whose next one waits an hour for its second attempt: it has no place."""
    run = await rig.world.start_run(payload=payload)
    await worker.declare(await worker.assigned_pass(), "s1")
    worker.succeed(await worker.start())
    await worker.hear(Settled)
    await worker.declare(await worker.assigned_pass(), "s2", retry=RetryPolicy(attempts=2, initial_ms=HOUR_MS))
    started = await worker.start()
    outcome = Failed(failure=Failure(category="application", message="later"))
    worker.say(Result(request=started.request, ref=started.ref, outcome=outcome))
    await worker.hear(Settled)
    return run


async def running(rig: Rig, worker: FakeWorker, payload: bytes) -> Assign:
    """Return a callback of another run that has begun."""
    await rig.world.start_run(payload=payload)
    await worker.declare(await worker.assigned_pass(), "long")
    return await worker.start()


async def cancel(rig: Rig, run: RunRecord) -> None:
    await rig.world.run("cancel_run", lambda tx: cancel_run(tx, "acme", run.run_id, by="operator-1"))
    await rig.until_settled()


async def assigned_undo(worker: FakeWorker) -> Assign:
    return await worker.hear(Assign, lambda assign: assign.ref.kind == "compensation")


def assigns(worker: FakeWorker) -> list[Assign]:
    return [frame for frame in worker.heard() if isinstance(frame, Assign)]


@pytest.mark.case(13)
@pytest.mark.case(56)
async def test_an_undo_has_a_place_when_forward_work_has_all_others(rig: Rig) -> None:
    """Case 056: assigned without any time passing; forward work stays within its capacity, all within what was declared."""
    worker = await rig.join(hello(capacity=2, undo_capacity=1))
    undone = [await undoable(rig, worker, b'"a"'), await undoable(rig, worker, b'"b"')]
    callbacks = [await running(rig, worker, b"1"), await running(rig, worker, b"2")]
    await rig.world.start_run(payload=b"3")
    await rig.until_settled()
    assert assigns(worker) == [], "forward work has its two places and waits for more"
    await cancel(rig, undone[0])
    first = await assigned_undo(worker)
    assert first.ref.run == undone[0].run_id
    await cancel(rig, undone[1])
    await rig.pass_time(2_000)
    assert assigns(worker) == [], "two callbacks and one undo are all that was declared"
    worker.say(Ready(request=first.request))
    await worker.hear(Start)
    worker.succeed(first, b"null")
    second = await assigned_undo(worker)
    assert second.ref.run == undone[1].run_id, "the place that an undo leaves is the next one's at once"
    worker.succeed(callbacks[0])
    await worker.hear(Settled, lambda settled: settled.request == callbacks[0].request)
    assert (await worker.assigned_pass()).ref.kind == "discovery"
    await rig.until_settled()
    assert assigns(worker) == [], "a place that a callback leaves is one for a pass, and only one"
    ended = await rig.world.get_run(undone[0].run_id)
    assert (ended.phase, ended.recovery) == (Phase.TERMINAL, Recovery.COMPENSATED)
    await rig.world.check()


async def test_a_worker_that_reserves_nothing_undoes_first_in_the_next_free_place(rig: Rig) -> None:
    """Workers of before the field was there: what they declare is what they are given, and an undo is first."""
    worker = await rig.join(hello(capacity=1))
    run = await undoable(rig, worker, b'"a"')
    callback = await running(rig, worker, b"1")
    await rig.world.start_run(payload=b"2")
    await cancel(rig, run)
    assert assigns(worker) == []
    worker.succeed(callback)
    await worker.hear(Settled)
    assert (await assigned_undo(worker)).ref.run == run.run_id


async def test_a_reserved_place_costs_nothing_while_no_undo_waits(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full worker's every frame would wake the pump for its forward backlog, which has no place."""
    worker = await rig.join(hello(capacity=1, undo_capacity=1))
    callback = await running(rig, worker, b"1")
    for number in range(3):
        await rig.world.start_run(payload=b"%d" % (2 + number))
    await rig.until_settled()
    (pump,) = rig.dispatcher._pumps.values()
    rings: list[int] = []

    def counting(ring: Callable[[], None]) -> Callable[[], None]:
        def counted() -> None:
            rings.append(1)
            ring()

        return counted

    monkeypatch.setattr(pump.alarm, "ring", counting(pump.alarm.ring))
    for _ in range(20):
        worker.say(Renew(requests=[callback.request]))
    await rig.until_settled()
    assert rings == []
    worker.succeed(callback)
    await worker.assigned_pass()
    assert rings, "a place for forward work is told"


@pytest.mark.case(56)
async def test_callbacks_that_end_only_after_an_undo_do_not_keep_it_from_running() -> None:
    """Case 056: the worker's one callback waits for another run's undo, which would wait for it without a slot of its own."""
    app = App("shop")
    undone: list[int] = []

    @app.function(on="order.placed", name="fulfil")
    async def fulfil(ctx: Context, payload: int) -> None:
        await ctx.step.run("first", first, payload, compensate=undo)
        await ctx.step.run("second", second, payload, retry=Retry(attempts=2, initial="5m"))

    async def first(payload: int) -> int:
        effect()
        return payload

    async def undo(payload: int) -> None:
        undone.append(payload)

    async def second(payload: int) -> None:
        effect()
        if payload == 1:
            raise RuntimeError("in five minutes")
        await whole.world.run("cancel_run", lambda tx: cancel_run(tx, "acme", runs[0].run_id, by="operator-1"))
        for _ in range(POLLS_MAX):
            if undone:
                return
            await whole.world.clock.sleep_ms(POLL_MS)
        raise NonRetryable("the undo has not run")

    whole = Whole(app, capacity=1)
    await whole.world.begin()
    runs = [await whole.world.start_run(payload=payload) for payload in (b"1", b"2")]
    await whole.to_the_end()
    assert undone == [1]
    ended = [await whole.world.get_run(run.run_id) for run in runs]
    assert [run.execution for run in ended] == [Execution.CANCELLED, Execution.COMPLETED]
    assert ended[0].recovery is Recovery.COMPENSATED
    await whole.world.check()
