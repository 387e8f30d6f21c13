"""Case 077 for the worker protocol: whatever a peer sends costs at most its own session, and says so with a code."""

from __future__ import annotations

import anyio
import msgspec
import pytest
from dispatch_rig import FakeWorker, Rig, hello
from ryusen.protocol.frames import (
    FRAME_BYTES_MAX,
    Answer,
    Assign,
    Complete,
    Failed,
    Failure,
    FunctionOffer,
    GiveBack,
    HeldWork,
    Hello,
    NotFound,
    Ready,
    Refused,
    Renew,
    Renewed,
    Result,
    Settled,
    Succeeded,
    Void,
    WorkRef,
    encode_frame,
)
from transitions.world import Dump

from keyspace.layout import INSTANCE, LIVE
from services.dispatcher.options import CAPACITY_MAX, HANDLERS_MAX, OUTBOX_FRAMES_MAX

SOUND = hello()
NOWHERE = "f" * 32


def changed(**fields: object) -> Hello:
    return msgspec.structs.replace(SOUND, **fields)


def owned(dump: Dump) -> Dump:
    """Return what belongs to some workspace; what a dispatcher says of its own sessions belongs to none."""
    span = LIVE.span()
    return {key: value for key, value in dump.items() if not span.begin <= key < span.end}


@pytest.mark.case(77)
@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("", "bad_frame"),
        ("{", "bad_frame"),
        ("[]", "bad_frame"),
        ('"hello"', "bad_frame"),
        (b"\xff\xfe", "bad_frame"),
        ("[" * 100_000, "bad_frame"),
        ('{"frame":"hullo"}', "bad_frame"),
        ('{"frame":"hello"}', "bad_frame"),
        ('{"frame":"hello","application":7}', "bad_frame"),
        (encode_frame(Renew(requests=[])).decode(), "hello_expected"),
    ],
)
async def test_a_connection_that_does_not_begin_with_a_hello_is_closed_with_a_code(
    rig: Rig, said: str | bytes, reason: str
) -> None:
    """Case 077: a bogus first frame led to a hang and then to a transport error."""
    worker = rig.connect()
    worker.say(said)
    code, why = await worker.parted()
    assert (code, why.partition(":")[0]) == (4400, reason)
    assert await rig.world.records(INSTANCE) == []


@pytest.mark.case(77)
@pytest.mark.parametrize(
    ("said", "code"),
    [
        (changed(protocols=[99]), "protocol_unsupported"),
        (changed(protocols=[]), "protocol_unsupported"),
        (changed(codecs=["pickle/5"]), "codec_unsupported"),
        (changed(capacity=0), "invalid_hello"),
        (changed(capacity=CAPACITY_MAX + 1), "invalid_hello"),
        (changed(undo_capacity=-1), "invalid_hello"),
        (changed(undo_capacity=CAPACITY_MAX + 1), "invalid_hello"),
        (changed(functions=[]), "invalid_hello"),
        (changed(functions=[FunctionOffer(name=" ")]), "invalid_hello"),
        (changed(instance="no id"), "invalid_hello"),
        (changed(application=""), "invalid_hello"),
        (changed(application="a\x00b"), "invalid_hello"),
        (changed(release="r" * 201), "invalid_hello"),
        (changed(features=["f"] * 65), "invalid_hello"),
    ],
)
async def test_a_hello_that_can_never_be_served_is_refused_for_good(rig: Rig, said: Hello, code: str) -> None:
    """ARCHITECTURE 6: "only a definitive refusal ends the process, with a message"; nothing is mutated."""
    worker = rig.connect()
    worker.say(said)
    refused = await worker.hear(Refused)
    assert (refused.code, refused.definitive) == (code, True)
    assert refused.message
    await worker.parted()
    assert await rig.world.records(INSTANCE) == []


def refs(assign: Assign) -> list[WorkRef]:
    """Return names of work that cannot be, or is not this worker's."""
    ref = assign.ref
    change = msgspec.structs.replace
    return [
        change(ref, run="not hexadecimal"),
        change(ref, run=NOWHERE),
        change(ref, run="", item=""),
        change(ref, item=NOWHERE),
        change(ref, token=NOWHERE),
        change(ref, token="x" * 100_000),
        change(ref, generation=2**40),
        change(ref, generation=-1),
        change(ref, step="s" * 5_000, kind="callback"),
        change(ref, step=None, kind="callback"),
        change(ref, step="s1", kind="discovery"),
        change(ref, step="s1", kind="compensation"),
        change(ref, step="never", kind="callback"),
    ]


@pytest.mark.case(77)
@pytest.mark.case(41)
async def test_references_to_what_is_not_ones_own_are_stale_and_change_nothing(rig: Rig) -> None:
    """Cases 041 and 077: tokens and ids of other objects are answered like what does not exist."""
    await rig.world.start_run()
    worker = await rig.join()
    assign = await worker.assigned_pass()
    before = await rig.world.dump()
    success = Succeeded(value=msgspec.Raw(b"1"))
    failure = Failed(failure=Failure(category="c", message="m"))
    for number, ref in enumerate(refs(assign)):
        request = f"foreign-{number}"
        frames = [
            Result(request=request, ref=ref, outcome=success),
            Result(request=request, ref=ref, outcome=failure),
            Answer(request=request, ref=ref, ending=Complete(value=msgspec.Raw(b"1"))),
            NotFound(request=request, ref=ref),
        ]
        for frame in frames:
            worker.say(frame)
            answer = await worker.hear(Settled)
            assert (answer.request, answer.verdict) == (request, "stale"), frame
            assert answer.code
        worker.say(GiveBack(request=request, ref=ref))
    worker.say(Result(request=assign.request, ref=refs(assign)[1], outcome=success))
    assert (await worker.hear(Settled)).code == "ref_mismatch"
    worker.say(Ready(request="nobody"))
    assert (await worker.hear(Void)).reason == "unknown_request"
    worker.say(Renew(requests=["nobody", "nobody"]))
    assert (await worker.hear(Renewed)).lost == ["nobody"]
    await rig.until_settled()
    assert await rig.world.dump() == before
    worker.complete(assign)
    assert (await worker.hear(Settled)).verdict == "accepted"


@pytest.mark.case(41)
async def test_a_worker_of_one_workspace_reaches_nothing_of_another(rig: Rig) -> None:
    """Case 041: the workspace comes from the credential; a reference that is right elsewhere is unknown here."""
    await rig.world.begin(workspace="other")
    await rig.world.start_run()
    mine = await rig.join()
    assign = await mine.assigned_pass()
    await mine.declare(assign)
    callback = await mine.start()
    stranger = await rig.join(hello(instance="33" * 16), workspace="other")
    before = owned(await rig.world.dump())
    stranger.succeed(callback)
    assert (await stranger.hear(Settled)).verdict == "stale"
    stranger.say(GiveBack(request=callback.request, ref=callback.ref))
    stranger.say(Renew(requests=[callback.request]))
    assert (await stranger.hear(Renewed)).lost == [callback.request]
    held = [HeldWork(ref=callback.ref, request=callback.request, state="running")]
    again = await rig.join(hello(instance="44" * 16, held=held), workspace="other")
    again.say(Renew(requests=[callback.request]))
    assert (await again.hear(Renewed)).lost == [callback.request]
    after = {key: value for key, value in owned(await rig.world.dump()).items() if key in before}
    assert after == before
    mine.succeed(callback)
    assert (await mine.hear(Settled)).verdict == "accepted"


@pytest.mark.case(77)
@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("{", "bad_frame"),
        (b"\xff", "bad_frame"),
        ('{"frame":"result","request":1}', "bad_frame"),
        ('{"frame":"assign"}', "bad_frame"),
        ("[" * 50_000 + "]" * 50_000, "bad_frame"),
        (encode_frame(SOUND).decode(), "unexpected_hello"),
        (encode_frame(Renew(requests=[str(number) for number in range(65)])).decode(), "too_many_renewals"),
        ('"' + "x" * FRAME_BYTES_MAX + '"', "frame_too_large"),
    ],
)
async def test_a_bad_frame_costs_its_own_session_only(rig: Rig, said: str | bytes, reason: str) -> None:
    """Case 077: prompt close with a stable code, the work goes back, other sessions and the process are unaffected."""
    await rig.world.start_run()
    bad = await rig.join()
    held = await bad.assigned_pass()
    good = await rig.join(hello(instance="22" * 16))
    bad.say(said)
    code, why = await bad.parted()
    assert why.partition(":")[0] == reason
    assert 4400 <= code < 4500
    again = await good.assigned_pass()
    assert again.ref.item == held.ref.item
    good.complete(again)
    assert (await good.hear(Settled)).verdict == "accepted"
    await rig.world.check()


@pytest.mark.case(77)
async def test_repeated_frames_are_settled_once(rig: Rig) -> None:
    """Case 077: a repeated request id is answered or ignored, and authorizes or settles nothing twice."""
    run = await rig.world.start_run()
    worker = await rig.join()
    assign = await worker.assigned_pass()
    for _ in range(3):
        worker.complete(assign)
    first = await worker.hear(Settled)
    await rig.until_settled()
    rest = [frame for frame in worker.heard() if isinstance(frame, Settled)]
    assert first.verdict == "accepted"
    assert {frame.verdict for frame in rest} <= {"replayed"}
    assert (await rig.world.kinds(run.run_id)).count("run-completed") == 1
    await rig.world.start_run(payload=b"2")
    await worker.declare(await worker.assigned_pass())
    callback = await worker.hear(Assign)
    for _ in range(5):
        worker.say(Ready(request=callback.request))
    await rig.until_settled()
    starts = [frame for frame in worker.heard() if type(frame).__name__ == "Start"]
    assert len(starts) == 1
    await rig.world.check()


@pytest.mark.case(77)
@pytest.mark.parametrize("value", [b"1e999", b"123456789012345678901234567890", b'{"a":1,"a":2}', b'{"$bytes":"!"}'])
async def test_a_value_that_nobody_could_decode_is_refused_before_it_is_recorded(rig: Rig, value: bytes) -> None:
    """Case 077 and case 067's spirit: later passes of the run would have failed on it for ever."""
    run = await rig.world.start_run()
    worker = await rig.join()
    await worker.declare(await worker.assigned_pass())
    callback = await worker.start()
    worker.succeed(callback, value)
    answer = await worker.hear(Settled)
    assert (answer.verdict, answer.code) == ("refused", "invalid_value")
    assert (await rig.world.step(run.run_id, "s1")).completion is None
    worker.succeed(callback, b"1")
    assert (await worker.hear(Settled)).verdict == "accepted"
    await rig.world.check()


async def test_a_peer_that_takes_no_frames_costs_its_own_session_only(rig: Rig) -> None:
    """ARCHITECTURE 6: the queue to a slow peer is bounded, and what waits for others does not wait for it."""
    slow = await rig.join(hello(capacity=1))
    slow.takes_frames = anyio.Event()
    good = await rig.join(hello(instance="22" * 16))
    for number in range(OUTBOX_FRAMES_MAX + 2 * HANDLERS_MAX):
        slow.say(Ready(request=str(number)))
    assert (await slow.parted()) == (4429, "slow_peer")
    await rig.world.start_run()
    await good.assigned_pass()


async def test_sessions_are_bounded_and_the_refusal_is_not_for_good(rig: Rig) -> None:
    """ARCHITECTURE 7: every input has a bound; a full dispatcher sends the worker to try again."""
    rig.dispatcher._connection_count = rig.dispatcher._options.sessions_max
    worker: FakeWorker = rig.connect()
    refused = await worker.hear(Refused)
    assert (refused.code, refused.definitive) == ("too_many_sessions", False)
    rig.dispatcher._connection_count = 0
    await rig.join()
