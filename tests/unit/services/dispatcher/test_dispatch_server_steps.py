"""What a worker's pass declares of the steps that the service settles, as the dispatcher takes it."""

from __future__ import annotations

import msgspec
import pytest
from dispatch_rig import FakeWorker, Rig
from ryusen.protocol.frames import Answer, Declare, Emission, RetryPolicy, Settled, StepDeclaration, Timer
from ryusen.protocol.values import encode_value

from keyspace.layout import EVENT, EVENT_PAYLOAD
from keyspace.lifecycle import StepState

ONCE = RetryPolicy(attempts=1, initial_ms=0, coefficient=1.0, cap_ms=0)


def emitting(payload: bytes, event: str = "order.told") -> StepDeclaration:
    return StepDeclaration(
        id="tell", kind="emission", retry=ONCE, emission=Emission(event=event, payload=msgspec.Raw(payload))
    )


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


@pytest.mark.case(44)
@pytest.mark.parametrize(
    ("step", "code"),
    [
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
