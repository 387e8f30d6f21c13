"""The session's decisions by table: every state of a delivery against every frame and every outcome, and its end."""

from __future__ import annotations

from itertools import product

import msgspec
import pytest
from dispatch_rig import hello
from ryusen.protocol.frames import (
    Answer,
    Assign,
    Bye,
    Complete,
    Drain,
    GiveBack,
    HeldWork,
    NotFound,
    Ready,
    Renew,
    Renewed,
    Result,
    Settled,
    Succeeded,
    WorkRef,
)

from keyspace.queue.items import Seat
from keyspace.records.run import RunRecord
from keyspace.records.work import Direction, ItemRecord, WorkKind, application_lane
from keyspace.transitions.lease_items import Delivery
from keyspace.transitions.open_session import RecordedStart
from keyspace.transitions.work import Accepted, Replayed, Stale
from services.dispatcher.effects import (
    Close,
    CloseSession,
    Effect,
    Leaving,
    Load,
    Renewal,
    Send,
    Settle,
)
from services.dispatcher.greeting import adopt, disproved
from services.dispatcher.held import Held, HeldState
from services.dispatcher.session_core import SessionCore
from services.dispatcher.settlement import Outcome

LEASE_MS = 15_000
NOW_MS = 1_000.0
TOKEN = "ab" * 16
RUN = RunRecord(
    run_id="12" * 16,
    application="shop",
    function="fulfil",
    event_id="34" * 16,
    event_name="order.placed",
    binding="b",
    manifest_generation=1,
    routing_generation=1,
    created_at_ms=0,
    updated_at_ms=0,
    input_bytes=1,
)


def delivery(kind: WorkKind = WorkKind.CALLBACK, token: str = TOKEN, number: int = 1) -> Delivery:
    item = ItemRecord(
        item_id=f"{number:032x}",
        kind=kind,
        lane=application_lane("shop", "fulfil").stored,
        target=RUN.run_id,
        step_id=None if kind is WorkKind.DISCOVERY else "s1",
        priority=4,
        vesting_ms=0,
        ordinal=1,
        generation=1,
        operation_id="op",
        repeatable=kind is WorkKind.DISCOVERY,
        enqueued_at_ms=0,
        token=token,
    )
    return Delivery("acme", item, RUN, Seat("s", "11" * 16, "r", token))


def core_with(
    state: HeldState | None, kind: WorkKind = WorkKind.CALLBACK, capacity: int = 2
) -> tuple[SessionCore, Held]:
    """Return a session that holds one delivery in `state`."""
    core = SessionCore("s", hello(capacity=capacity), [], lease_ms=LEASE_MS, now_ms=NOW_MS)
    (load,) = core.assigned(delivery(kind), NOW_MS)
    assert isinstance(load, Load)
    held = load.held
    if state is None:
        core.hand_over(held.request)
    else:
        held.state = state
        held.was_started = state is HeldState.STARTED
    return core, held


def kinds(effects: list[Effect]) -> list[str]:
    """Return the effects' names; frames by their own."""
    return [type(one.frame if isinstance(one, Send) else one).__name__ for one in effects]


FRAMES = ("ready", "result", "not_found", "give_back")
EXPECTED: dict[tuple[HeldState | None, str], list[str]] = {
    (None, "ready"): ["Void"],
    (None, "result"): ["Settle"],
    (None, "not_found"): ["Settle"],
    (None, "give_back"): ["Return"],
    (HeldState.LOADING, "ready"): [],
    (HeldState.LOADING, "result"): ["Close"],
    (HeldState.LOADING, "not_found"): ["Close"],
    (HeldState.LOADING, "give_back"): ["Return"],
    (HeldState.ASSIGNED, "ready"): ["Authorize"],
    (HeldState.ASSIGNED, "result"): ["Settle"],
    (HeldState.ASSIGNED, "not_found"): ["Settle"],
    (HeldState.ASSIGNED, "give_back"): ["Return"],
    (HeldState.AUTHORIZING, "ready"): [],
    (HeldState.AUTHORIZING, "result"): ["Close"],
    (HeldState.AUTHORIZING, "not_found"): ["Close"],
    (HeldState.AUTHORIZING, "give_back"): [],
    (HeldState.STARTING, "ready"): [],
    (HeldState.STARTING, "result"): ["Close"],
    (HeldState.STARTING, "not_found"): ["Close"],
    (HeldState.STARTING, "give_back"): ["Unstart"],
    (HeldState.STARTED, "ready"): [],
    (HeldState.STARTED, "result"): ["Settle"],
    (HeldState.STARTED, "not_found"): ["Settle"],
    (HeldState.STARTED, "give_back"): ["Unstart"],
    (HeldState.SETTLING, "ready"): [],
    (HeldState.SETTLING, "result"): ["Settle"],
    (HeldState.SETTLING, "not_found"): ["Settle"],
    (HeldState.SETTLING, "give_back"): [],
}


@pytest.mark.parametrize(("state", "frame"), list(product([None, *HeldState], FRAMES)))
def test_every_frame_in_every_state_has_one_answer(state: HeldState | None, frame: str) -> None:
    """HOUSE 5: total over state and event; nothing about work that is not held can authorize or return another."""
    core, held = core_with(state)
    said = {
        "ready": Ready(request=held.request),
        "result": Result(request=held.request, ref=held.ref, outcome=Succeeded(value=msgspec.Raw(b"1"))),
        "not_found": NotFound(request=held.request, ref=held.ref),
        "give_back": GiveBack(request=held.request, ref=held.ref),
    }[frame]
    assert kinds(core.received(said, NOW_MS)) == EXPECTED[state, frame]


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        (Accepted(), ["Start"]),
        (Replayed(), ["Start"]),
        (Stale("lease_expired"), ["Void", "Lose"]),
        (Stale("session_superseded"), ["Void", "Lose", "Close"]),
        (None, ["Unstart", "Void"]),
    ],
)
def test_what_follows_an_authorization(verdict: Accepted | Replayed | Stale | None, expected: list[str]) -> None:
    """ARCHITECTURE 6: only then `start`; an outcome that nobody knows is taken back, never started on a guess."""
    core, held = core_with(HeldState.AUTHORIZING)
    assert kinds(core.authorized(held, verdict)) == expected


def test_work_given_back_while_it_was_being_authorized_is_taken_back() -> None:
    """The authorization may have committed, so giving back takes the proof's way."""
    core, held = core_with(HeldState.AUTHORIZING)
    core.received(GiveBack(request=held.request, ref=held.ref), NOW_MS)
    assert kinds(core.authorized(held, Accepted())) == ["Unstart", "Void"]


def test_an_authorization_that_outlived_its_delivery_is_taken_back() -> None:
    """Handed over or ended meanwhile: a start that was never sent must not stay authorized."""
    core, held = core_with(HeldState.AUTHORIZING)
    core.hand_over(held.request)
    assert kinds(core.authorized(held, Accepted())) == ["Unstart"]


@pytest.mark.parametrize("is_leaving", [False, True])
@pytest.mark.parametrize("kind", [WorkKind.DISCOVERY, WorkKind.CALLBACK])
@pytest.mark.parametrize("state", list(HeldState))
def test_what_becomes_of_held_work_when_the_session_ends(state: HeldState, kind: WorkKind, is_leaving: bool) -> None:
    """RFD 2, "Lease expiry": unauthorized and repeatable work returns at once, a begun effect keeps its lease."""
    core, _ = core_with(state, kind)
    if is_leaving:
        core.leave()
    if state in (HeldState.AUTHORIZING, HeldState.STARTING):
        expected = ["Unstart"]
    elif state is HeldState.STARTED:
        expected = []
    else:
        expected = ["Return" if is_leaving else "Lose"]
    assert kinds(core.ended()) == expected
    assert (core.held_count, core.free_count(NOW_MS)) == (0, 0)


@pytest.mark.case(13)
def test_reserved_and_held_together_never_exceed_the_capacity() -> None:
    """Case 013: a seat counts from before its lease is made until its delivery is settled."""
    core = SessionCore("s", hello(capacity=3), [], lease_ms=LEASE_MS, now_ms=NOW_MS)
    for number in range(3):
        assert core.free_count(NOW_MS) == 3 - number
        core.reserve(f"{number:032x}")
    assert core.free_count(NOW_MS) == 0
    core.assigned(delivery(token=f"{0:032x}"), NOW_MS)
    assert core.free_count(NOW_MS) == 0
    core.release_seat(f"{1:032x}")
    core.release_seat(f"{2:032x}")
    assert (core.free_count(NOW_MS), core.held_count) == (2, 1)


@pytest.mark.case(56)
def test_a_seat_that_is_kept_for_an_undo_takes_none_from_forward_work() -> None:
    """Case 056: the session counts a claim of compensation apart, from before its lease until it is settled."""
    core = SessionCore("s", hello(capacity=1, undo_capacity=1), [], lease_ms=LEASE_MS, now_ms=NOW_MS)
    core.reserve(TOKEN, is_undo=True)
    assert (core.free_count(NOW_MS), core.free_count(NOW_MS, is_undo=True)) == (1, 1)
    core.assigned(delivery(WorkKind.COMPENSATION), NOW_MS)
    core.assigned(delivery(token="cd" * 16, number=2), NOW_MS)
    assert (core.free_count(NOW_MS), core.free_count(NOW_MS, is_undo=True)) == (0, 0)
    core.hand_over(TOKEN)
    assert (core.free_count(NOW_MS), core.free_count(NOW_MS, is_undo=True)) == (0, 1)
    core.leave()
    assert core.free_count(NOW_MS, is_undo=True) == 0


def test_a_session_that_gives_back_pauses_longer_each_time_until_it_works_again() -> None:
    """A worker that declines everything must not make a hot loop of leases."""
    core, held = core_with(HeldState.ASSIGNED)
    pauses: list[float] = []
    for _ in range(7):
        core.received(GiveBack(request="gone", ref=held.ref), NOW_MS)
        pauses.append(core.paused_for_ms(NOW_MS) or 0)
    assert pauses == [250, 500, 1_000, 2_000, 4_000, 5_000, 5_000]
    assert core.free_count(NOW_MS) == 0
    assert core.free_count(NOW_MS + 5_000) == 1
    answer = NotFound(request=held.request, ref=held.ref)
    core.received(answer, NOW_MS)
    core.settled(Settle(answer), Outcome(Settled(request=held.request, verdict="accepted")), NOW_MS)
    core.received(GiveBack(request="gone", ref=held.ref), NOW_MS + 9_000)
    assert core.paused_for_ms(NOW_MS + 9_000) == 250


def test_what_is_neither_renewed_nor_begun_is_let_go_when_its_lease_is_over() -> None:
    """Case 013: a worker that accepts the frame and never starts would keep its place for ever."""
    core, held = core_with(HeldState.ASSIGNED)
    assert core.tick(NOW_MS + LEASE_MS - 1) == []
    core.renewed(Renewal((held,)), [True], NOW_MS + 10_000)
    assert core.tick(NOW_MS + LEASE_MS) == []
    assert kinds(core.tick(NOW_MS + 10_000 + LEASE_MS)) == ["Void"]
    assert core.held_count == 0
    begun, _ = core_with(HeldState.STARTED)
    assert begun.tick(NOW_MS + 100 * LEASE_MS) == []
    assert begun.held_count == 1, "what runs keeps its place"


@pytest.mark.parametrize(("state", "left"), [(HeldState.ASSIGNED, 0), (HeldState.STARTED, 1), (HeldState.SETTLING, 1)])
def test_a_lost_lease_frees_the_place_of_what_has_not_begun(state: HeldState, left: int) -> None:
    """FILLED-IN 11: a running effect's late result is still welcome, and its worker's slot is still taken."""
    core, held = core_with(state)
    (sent,) = core.renewed(Renewal((held,), ("x",)), [False], NOW_MS)
    assert isinstance(sent, Send)
    assert isinstance(sent.frame, Renewed)
    assert (sent.frame.requests, sent.frame.lost) == ([], ["x", held.request])
    assert core.held_count == left
    answered = core.received(Renew(requests=[held.request]), NOW_MS)
    assert kinds(answered) == ["Renewed"], "a lease that was lost is not asked for again"


def test_a_bye_closes_the_session_and_forgets_the_instance() -> None:
    """A graceful end is told from a lost connection."""
    core, _ = core_with(HeldState.ASSIGNED)
    effects = core.received(Bye(), NOW_MS)
    assert [type(one) for one in effects] == [CloseSession, Close]
    assert kinds(core.ended()) == ["Return"]


def test_an_assignment_that_cannot_be_read_goes_back_as_a_loss() -> None:
    """Case 008: given back unharmed it would be leased again at once, for ever; as a loss it comes later each time."""
    core, held = core_with(HeldState.LOADING)
    assert kinds(core.loaded(held, None)) == ["Lose"]
    frame = Assign(
        request=held.request, ref=held.ref, function="f", input=msgspec.Raw(b"1"), memo=[], event="e", event_name="n"
    )
    assert core.loaded(held, frame) == [], "it is no longer held"


REF = WorkRef(
    kind="callback", item="1" * 32, token="2" * 32, run="3" * 32, attempt=1, generation=4, operation="o", step="s"
)
STARTED = RecordedStart(REF.run, Direction.FORWARD, "s", 4, REF.token)


@pytest.mark.parametrize(
    ("held", "is_disproved"),
    [
        ([], True),
        ([("running", REF)], False),
        ([("finished", REF)], False),
        ([("assigned", REF)], True),
        ([("running", msgspec.structs.replace(REF, token="9" * 32))], True),
        ([("running", msgspec.structs.replace(REF, generation=5))], True),
        ([("running", msgspec.structs.replace(REF, step="other"))], True),
        ([("running", msgspec.structs.replace(REF, run="9" * 32))], True),
        ([("running", msgspec.structs.replace(REF, kind="compensation"))], True),
        ([("running", msgspec.structs.replace(REF, item="9" * 32))], False),
    ],
)
def test_a_recorded_start_is_disproved_only_by_a_hello_that_does_not_list_it(
    held: list[tuple[str, WorkRef]], is_disproved: bool
) -> None:
    """ARCHITECTURE 6, "Reconnection proves things": run, direction, step, generation and token all count."""
    listed = [HeldWork(ref=ref, request="r", state=state) for state, ref in held]  # type: ignore[arg-type]
    assert disproved([STARTED], listed) == ([STARTED] if is_disproved else [])


def test_a_hello_hands_its_running_work_to_the_new_session() -> None:
    """Finished work comes as frames of its own; what names nothing is passed over."""
    passing = WorkRef(
        kind="discovery", item="1" * 32, token="2" * 32, run="3" * 32, attempt=1, generation=1, operation="o"
    )
    listed = [
        HeldWork(ref=REF, request="runs", state="running"),
        HeldWork(ref=REF, request="waits", state="assigned"),
        HeldWork(ref=REF, request="ended", state="finished"),
        HeldWork(ref=passing, request="passes", state="running"),
        HeldWork(ref=msgspec.structs.replace(REF, run="nonsense"), request="bad", state="running"),
        HeldWork(ref=REF, request="x" * 201, state="running"),
    ]
    found = {one.request: (one.state, one.was_started) for one in adopt(listed)}
    assert found == {
        "runs": (HeldState.STARTED, True),
        "waits": (HeldState.ASSIGNED, False),
        "passes": (HeldState.ASSIGNED, False),
    }
    core = SessionCore("s", hello(capacity=2), adopt(listed), lease_ms=LEASE_MS, now_ms=NOW_MS)
    assert core.free_count(NOW_MS) == 0, "what a worker holds counts, also above its capacity"
    assert isinstance(core.received(Renew(requests=["runs", "ended"]), NOW_MS)[0], Renewal)
    answer = Answer(request="passes", ref=passing, ending=Complete(value=msgspec.Raw(b"1")))
    assert kinds(core.received(answer, NOW_MS)) == ["Settle"]


def test_a_worker_that_drains_gets_nothing_more_and_keeps_what_it_has() -> None:
    """RFD 2, "excludes draining connections": no seat and no continuation, but its results are still taken."""
    core, held = core_with(HeldState.STARTED)
    assert core.free_count(NOW_MS) == 1
    assert core.received(Drain(), NOW_MS) == [Leaving()]
    assert (core.free_count(NOW_MS), core.held_count) == (0, 1)
    result = Result(request=held.request, ref=held.ref, outcome=Succeeded(value=msgspec.Raw(b"1")))
    assert core.received(result, NOW_MS) == [Settle(result, may_hold=False)]


@pytest.mark.parametrize("stays", [True, False])
def test_whether_a_run_goes_on_here_is_asked_with_its_function(stays: bool) -> None:
    """ARCHITECTURE 6, "Continuation": asked when the pass answers; a run of a release that is passed over goes to the queue."""
    asked: list[str] = []

    def goes_on(function: str) -> bool:
        asked.append(function)
        return stays

    core = SessionCore("s", hello(capacity=2), [], lease_ms=LEASE_MS, now_ms=NOW_MS, continues=True, goes_on=goes_on)
    (load,) = core.assigned(delivery(WorkKind.DISCOVERY), NOW_MS)
    assert isinstance(load, Load)
    load.held.state = HeldState.ASSIGNED
    answer = Answer(request=load.held.request, ref=load.held.ref, ending=Complete(value=msgspec.Raw(b"1")))
    assert core.received(answer, NOW_MS) == [Settle(answer, may_hold=stays)]
    assert asked == ["fulfil"]


def succeeded(held: Held, **changes: str) -> Result:
    ref = msgspec.structs.replace(held.ref, **changes)
    return Result(request=held.request, ref=ref, outcome=Succeeded(value=msgspec.Raw(b"1")))


def test_a_result_that_names_other_work_than_was_assigned_settles_nothing() -> None:
    """Would catch a confused worker settling what another session holds, under a request of its own."""
    core, held = core_with(HeldState.STARTED)
    (told,) = core.received(succeeded(held, item="9" * 32), NOW_MS)
    assert isinstance(told, Send) and isinstance(told.frame, Settled)
    assert (told.frame.verdict, told.frame.code) == ("stale", "ref_mismatch")
    assert held.state is HeldState.STARTED, "what it was assigned goes on"
    assert kinds(core.received(succeeded(held), NOW_MS)) == ["Settle"]


@pytest.mark.parametrize("state", [HeldState.STARTED, None])
def test_a_report_that_is_repeated_while_it_is_being_settled_is_one(state: HeldState | None) -> None:
    """Would catch two transactions at once for one report, the second of which is told that it lost."""
    core, held = core_with(state)
    assert kinds(core.received(succeeded(held), NOW_MS)) == ["Settle"]
    assert core.received(succeeded(held), NOW_MS) == []
