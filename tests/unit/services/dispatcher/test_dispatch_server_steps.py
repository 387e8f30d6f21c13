"""What a worker's pass declares of the steps that the service settles, as the dispatcher takes it."""

from __future__ import annotations

import msgspec
import pytest
from dispatch_rig import FakeWorker, Rig
from ryusen.protocol.frames import Answer, Child, Declare, Emission, RetryPolicy, Settled, StepDeclaration, Timer
from ryusen.protocol.values import encode_value

from keyspace.layout import EVENT, EVENT_PAYLOAD
from keyspace.lifecycle import Execution, Phase, StepState
from keyspace.transitions.stop_run import cancel_run

PATIENCE_BUCKETS = 100
"""Tenths of a virtual second in which what is due has been done by any dispatcher that lives."""
ONCE = RetryPolicy(attempts=1, initial_ms=0, coefficient=1.0, cap_ms=0)


def emitting(payload: bytes, event: str = "order.told") -> StepDeclaration:
    return StepDeclaration(
        id="tell", kind="emission", retry=ONCE, emission=Emission(event=event, payload=msgspec.Raw(payload))
    )


def calling(data: bytes, function: str = "fulfil") -> StepDeclaration:
    return StepDeclaration(id="call", kind="child", retry=ONCE, child=Child(function=function, input=msgspec.Raw(data)))


async def answered(worker: FakeWorker, step: StepDeclaration) -> Settled:
    assign = await worker.assigned_pass()
    worker.say(Answer(request=assign.request, ref=assign.ref, ending=Declare(steps=[step])))
    return await worker.hear(Settled, lambda settled: settled.request == assign.request)


async def test_a_timer_ends_the_pass_and_holds_nothing(rig: Rig) -> None:
    """RFD 2, "A declaration may be a durable timer": the worker is told, and has no work of the run meanwhile."""
    run = await rig.world.start_run()
    worker = await rig.join()
    step = StepDeclaration(id="nap", kind="timer", retry=ONCE, timer=Timer(delay_ms=60_000))
    assert (await answered(worker, step)).verdict == "accepted"
    assert (await rig.world.step(run.run_id, "nap")).state is StepState.WAITING
    await rig.world.check()


async def test_an_emission_is_accepted_and_its_receipt_is_in_the_next_pass(rig: Rig) -> None:
    """RFD 2, "the accepted result is the receipt": the exact bytes are the payload, the event's id the result."""
    run = await rig.world.start_run()
    worker = await rig.join()
    payload = b'{"when":{"$datetime":"2027-01-01T00:00:00Z"}}'
    assert (await answered(worker, emitting(encode_value(payload)))).verdict == "accepted"
    following = await worker.assigned_pass()
    step = await rig.world.step(run.run_id, "tell")
    assert step.server is not None
    (memo,) = following.memo
    assert (memo.id, bytes(memo.value or b"")) == ("tell", f'"{step.server.event_id}"'.encode())
    assert await rig.world.records(EVENT_PAYLOAD, step.server.event_id) == [payload]
    await rig.world.check()


async def test_a_child_is_assigned_its_exact_input_and_its_output_is_in_the_parents_next_pass(rig: Rig) -> None:
    """RFD 2, "the exact input the child receives": over the wire and back, and the parent is not asked before it has ended."""
    run = await rig.world.start_run()
    worker = await rig.join()
    assert (await answered(worker, calling(b'{"b":1,"a":[1.0]}'))).verdict == "accepted"
    child = await worker.assigned_pass()
    assert child.ref.run != run.run_id and child.ref.run == (await rig.world.get_run(run.run_id)).child_id
    assert (bytes(child.input), child.event, child.event_name, child.memo) == (b'{"b":1,"a":[1.0]}', "", "", [])
    worker.complete(child, b'{"label":  "x"}')
    following = await worker.assigned_pass()
    assert following.ref.run == run.run_id
    (memo,) = following.memo
    assert (memo.id, bytes(memo.value or b"")) == ("call", b'{"label":  "x"}')
    await rig.world.check()


@pytest.mark.case(38)
async def test_the_dispatcher_passes_a_stop_on_and_settles_what_ends(rig: Rig) -> None:
    """Case 038: both kinds of work between runs are in a lane that dispatchers look into; the child ends, then its parent."""
    run = await rig.world.start_run()
    worker = await rig.join()
    await answered(worker, calling(b"1"))
    child = await worker.assigned_pass()
    await rig.world.run("cancel_run", lambda tx: cancel_run(tx, "acme", run.run_id, by="operator"))

    async def has_ended() -> bool:
        return (await rig.world.get_run(run.run_id)).phase is Phase.TERMINAL

    for _ in range(PATIENCE_BUCKETS):
        if await has_ended():
            break
        await rig.pass_time(100)
    ended = [await rig.world.get_run(run_id) for run_id in (run.run_id, child.ref.run)]
    assert {(one.phase, one.execution) for one in ended} == {(Phase.TERMINAL, Execution.CANCELLED)}
    await rig.world.check()


@pytest.mark.case(44)
@pytest.mark.parametrize(
    ("step", "code"),
    [
        (calling(b'{"$bytes":"*"}'), "invalid_value"),
        (calling(b'{"a":1,"a":2}'), "invalid_value"),
        (calling(b"1", function=""), "invalid_name"),
        (calling(b"1", function="nowhere"), "unknown_function"),
        (StepDeclaration(id="call", kind="child", retry=ONCE), "invalid_name"),
        (
            StepDeclaration(id="call", kind="child", child=Child(function="fulfil", input=msgspec.Raw(b"1"))),
            "invalid_retry",
        ),
        (emitting(b'"text"'), "invalid_value"),
        (emitting(b"null"), "invalid_value"),
        (emitting(b'{"n":1}'), "invalid_value"),
        (emitting(encode_value(b"")), "invalid_value"),
        (emitting(encode_value(b"not json")), "invalid_value"),
        (emitting(encode_value(b'{"a":1,"a":2}')), "invalid_value"),
        (emitting(encode_value(b"1"), event=""), "invalid_name"),
        (emitting(encode_value(b"1"), event="ryusen/function.invoked"), "reserved_name"),
        (StepDeclaration(id="tell", kind="emission", retry=ONCE), "invalid_name"),
        (StepDeclaration(id="nap", kind="timer", retry=ONCE), "invalid_timer"),
        (StepDeclaration(id="nap", kind="timer", timer=Timer(delay_ms=1)), "invalid_retry"),
        (StepDeclaration(id="nap", kind="timer", retry=ONCE, timer=Timer(delay_ms=-1)), "invalid_timer"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_what_is_refused_mutates_nothing_and_the_pass_goes_on(rig: Rig, step: StepDeclaration, code: str) -> None:
    """RFD 2, "the server refuses a payload that is not bytes rather than reinterpreting it"; FILLED-IN 11, "A refused
    declaration"."""
    run = await rig.world.start_run()
    worker = await rig.join()
    assign = await worker.assigned_pass()
    worker.say(Answer(request=assign.request, ref=assign.ref, ending=Declare(steps=[step])))
    settled = await worker.hear(Settled)
    assert (settled.verdict, settled.code) == ("refused", code)
    assert (await rig.world.get_run(run.run_id)).step_count == 0
    assert len(await rig.world.records(EVENT)) == 1
    worker.complete(assign)
    assert (await worker.hear(Settled)).verdict == "accepted"
