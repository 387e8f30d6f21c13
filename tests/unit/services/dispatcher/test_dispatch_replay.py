"""What is sent of a run's replay: everything once, then only what is new, and everything again to whoever asks."""

from __future__ import annotations

import pytest
from dispatch_rig import RETRY_AT_ONCE, FakeWorker, Rig, hello
from ryusen.protocol.frames import (
    REPLAY,
    Assign,
    Failed,
    Failure,
    NeedReplay,
    Result,
    Settled,
)
from ryusen.protocol.replay import extend_digest, first_digest
from transitions.world import World

from services.dispatcher.replays import Replays, Sent


async def run_step(worker: FakeWorker, step: str, value: bytes = b"1") -> tuple[Assign, Assign]:
    """Take a run one step further; return the assignments of its pass and of its callback."""
    its_pass = await worker.assigned_pass()
    await worker.declare(its_pass, step)
    callback = await worker.start()
    worker.succeed(callback, value)
    await worker.hear(Settled, lambda settled: settled.request == callback.request)
    return its_pass, callback


def ids(frame: Assign) -> list[str]:
    return [memo.id for memo in frame.memo]


async def test_settled_steps_are_sent_once_in_the_order_of_settlement(rig: Rig) -> None:
    worker = await rig.join(hello(features=[REPLAY]))
    await rig.world.start_run(payload=b'"given"')
    first, callback = await run_step(worker, "b")
    assert (bytes(first.input), first.base_digest) == (b'"given"', "")
    digest = first_digest(first.ref.run, b'"given"')
    assert (bytes(callback.input), callback.base, callback.base_digest, ids(callback)) == (b"null", 0, digest, [])
    second, callback = await run_step(worker, "a")
    assert (second.base, second.base_digest, ids(second)) == (0, digest, ["b"])
    digest = extend_digest(digest, second.memo)
    assert (callback.base, callback.base_digest, ids(callback)) == (1, digest, [])
    third = await worker.assigned_pass()
    assert (third.base, third.base_digest, ids(third)) == (1, digest, ["a"])


async def test_a_worker_that_keeps_no_replays_is_sent_everything_each_time(rig: Rig) -> None:
    worker = await rig.join()
    await rig.world.start_run(payload=b'"given"')
    await run_step(worker, "b")
    await run_step(worker, "a")
    third = await worker.assigned_pass()
    assert (bytes(third.input), third.base_digest, ids(third)) == (b'"given"', "", ["b", "a"])


async def test_whoever_lacks_what_was_sent_is_sent_it_again_under_the_same_request(rig: Rig) -> None:
    worker = await rig.join(hello(features=[REPLAY]))
    await rig.world.start_run()
    await run_step(worker, "b")
    lacking = await worker.assigned_pass()
    worker.say(NeedReplay(request=lacking.request))
    full = await worker.assigned_pass()
    assert (full.request, full.ref, full.base_digest, ids(full)) == (lacking.request, lacking.ref, "", ["b"])
    worker.complete(full)
    await worker.hear(Settled, lambda settled: settled.verdict == "accepted")


async def test_a_failed_step_has_its_place_among_the_settled_ones(rig: Rig) -> None:
    worker = await rig.join(hello(features=[REPLAY]))
    await rig.world.start_run()
    await run_step(worker, "b")
    its_pass = await worker.assigned_pass()
    await worker.declare(its_pass, "a", retry=RETRY_AT_ONCE)
    callback = await worker.start()
    outcome = Failed(failure=Failure(category="application", message="no"), retryable=False)
    worker.say(Result(request=callback.request, ref=callback.ref, outcome=outcome))
    after = await worker.assigned_pass()
    assert (after.base, ids(after)) == (1, ["a"])
    (failed,) = after.memo
    assert failed.failure is not None
    assert (failed.failure.message, failed.failure.attempts) == ("no", 1)


async def test_a_new_session_is_sent_everything(rig: Rig) -> None:
    """What a worker has is remembered by its session alone."""
    worker = await rig.join(hello(features=[REPLAY]))
    await rig.world.start_run()
    await run_step(worker, "b")
    await worker.assigned_pass()
    worker.drop()
    worker = await rig.join(hello(features=[REPLAY]))
    await rig.pass_time(3_000)
    again = await worker.assigned_pass()
    assert (again.base_digest, ids(again)) == ("", ["b"])


@pytest.mark.parametrize("moment", ["unknown", "started", "answered"])
async def test_asking_when_nothing_is_assigned_brings_nothing(rig: Rig, moment: str) -> None:
    worker = await rig.join(hello(features=[REPLAY]))
    await rig.world.start_run()
    its_pass = await worker.assigned_pass()
    if moment == "started":
        await worker.declare(its_pass, "b")
        its_pass = await worker.start()
    elif moment == "answered":
        worker.complete(its_pass)
        await worker.hear(Settled)
    worker.say(NeedReplay(request="?" if moment == "unknown" else its_pass.request))
    await rig.until_settled()
    assert worker.heard() == []


async def test_asking_over_and_over_is_answered_one_at_a_time(rig: Rig) -> None:
    worker = await rig.join(hello(features=[REPLAY]))
    await rig.world.start_run()
    its_pass = await worker.assigned_pass()
    for _ in range(50):
        worker.say(NeedReplay(request=its_pass.request))
    await rig.until_settled()
    assert 1 <= len(worker.heard()) <= 50
    worker.complete(its_pass)
    await worker.hear(Settled, lambda settled: settled.verdict == "accepted")


def test_the_memory_of_a_session_is_bounded() -> None:
    replays = Replays(runs_max=2)
    for number, run in enumerate(("a", "b", "a", "c")):
        replays.remember(run, Sent(number, "d"))
    assert [replays.of(run) for run in "abc"] == [Sent(2, "d"), None, Sent(3, "d")]
    replays.forget("a")
    replays.forget("never there")
    assert replays.of("a") is None


async def test_only_what_is_new_is_read(rig: Rig, world: World) -> None:
    """Case 049: the thousandth assignment reads no more than the tenth."""
    worker = await rig.join(hello(features=[REPLAY]))
    await rig.world.start_run()
    costs = []
    for number in range(6):
        before = rig.keyspace.meter.snapshot().get("load_progress")
        await run_step(worker, f"s{number}")
        after = rig.keyspace.meter.snapshot()["load_progress"]
        costs.append(after.read_count - (before.read_count if before else 0))
    assert len(set(costs[1:])) == 1, costs
