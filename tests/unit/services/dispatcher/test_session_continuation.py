"""The session's decisions behind a success: held for its answer, settled with it or alone (ARCHITECTURE 6, "Continuation")."""

from __future__ import annotations

import msgspec
import pytest
from dispatch_rig import hello
from ryusen.protocol.frames import (
    Answer,
    Complete,
    Failed,
    Failure,
    GiveBack,
    Proceed,
    Result,
    Settled,
    Succeeded,
    WorkRef,
)
from test_session_core import LEASE_MS, NOW_MS, TOKEN, delivery, kinds

from keyspace.records.work import ItemRecord, WorkKind
from services.dispatcher.effects import Lose, Return, Send, Settle, Wait
from services.dispatcher.held import Held, HeldState
from services.dispatcher.options import CONTINUED_STEPS_MAX
from services.dispatcher.session_core import SessionCore
from services.dispatcher.settlement import Outcome

FOLLOWING = f"{TOKEN}+"
NEXT = delivery(token="cd" * 16, number=2).item
VALUE = msgspec.Raw(b"1")


def started(
    kind: WorkKind = WorkKind.CALLBACK,
    *,
    continues: bool = True,
    chain_count: int = 0,
    capacity: int = 2,
    undo_capacity: int = 0,
) -> tuple[SessionCore, Held]:
    """Return a session that holds one effect which has begun."""
    said = hello(capacity=capacity, undo_capacity=undo_capacity)
    core = SessionCore("s", said, [], lease_ms=LEASE_MS, now_ms=NOW_MS, continues=continues)
    core.assigned(delivery(kind), NOW_MS)
    held = core._held[TOKEN]
    held.state, held.was_started, held.chain_count = HeldState.STARTED, True, chain_count
    return core, held


def success(held: Held, following: str = FOLLOWING) -> Result:
    return Result(request=held.request, ref=held.ref, outcome=Succeeded(value=VALUE), following=following)


def answer(held: Held, request: str = FOLLOWING, ref: WorkRef | None = None) -> Answer:
    return Answer(request=request, ref=ref or held.ref, ending=Complete(value=VALUE))


def accepted(frame: Result | Answer, joint: str = "") -> Outcome:
    return Outcome(Settled(request=frame.request, verdict="accepted", joint=joint))


def proceeding(item: ItemRecord = NEXT) -> Outcome:
    assert item.token is not None
    _, held = started()
    return Outcome(Proceed(request=FOLLOWING, following=item.token, ref=held.ref, joint=TOKEN), item)


def test_a_success_waits_for_the_answer_behind_it_and_both_are_settled_together() -> None:
    core, held = started()
    result = success(held)
    assert core.received(result, NOW_MS) == [Wait(FOLLOWING)]
    assert core.received(answer(held), NOW_MS) == [Settle(result, joint=answer(held), may_hold=True)]
    assert core.waited(FOLLOWING) == [], "the wait that ends later finds it under way"


def test_a_wait_that_ends_first_settles_the_success_alone_and_keeps_its_pass() -> None:
    """The pass goes on under a lease of its own; its answer is then settled by itself."""
    core, held = started()
    result = success(held)
    core.received(result, NOW_MS)
    (settle,) = core.waited(FOLLOWING)
    assert settle == Settle(result, may_hold=True)
    core.settled(settle, accepted(result)._replace(is_open=True), NOW_MS)
    assert core.held_count == 1
    assert core.received(answer(held), NOW_MS) == [Settle(answer(held), may_hold=True)]


def test_an_answer_that_comes_while_its_success_settles_alone_is_settled_after_it() -> None:
    core, held = started()
    result = success(held)
    core.received(result, NOW_MS)
    (settle,) = core.waited(FOLLOWING)
    assert isinstance(settle, Settle)
    assert core.received(answer(held), NOW_MS) == []
    effects = core.settled(settle, accepted(result)._replace(is_open=True), NOW_MS)
    assert effects == [Send(accepted(result).frame), Settle(answer(held), may_hold=True)]


def test_the_step_that_an_answer_declared_is_held_and_may_go_on() -> None:
    core, held = started()
    result = success(held)
    core.received(result, NOW_MS)
    (settle,) = core.received(answer(held), NOW_MS)
    assert isinstance(settle, Settle)
    assert kinds(core.settled(settle, proceeding(), NOW_MS)) == ["Proceed"]
    assert core.held_count == 1, "the settled one is not held any more"
    assert NEXT.token is not None
    following = core._held[NEXT.token]
    assert (following.state, following.chain_count) == (HeldState.STARTING, 1)
    core.start_leaves(NEXT.token)
    assert (following.state, following.was_started) == (HeldState.STARTED, True)


def test_a_step_whose_proceed_was_never_sent_is_taken_back_when_the_session_ends() -> None:
    """It is authorized and provably has not begun."""
    core, held = started()
    core.received(success(held), NOW_MS)
    (settle,) = core.received(answer(held), NOW_MS)
    assert isinstance(settle, Settle)
    core.settled(settle, proceeding(), NOW_MS)
    assert kinds(core.ended()) == ["Unstart"]


@pytest.mark.parametrize("frame", ["result", "answer"])
def test_what_is_said_twice_is_settled_once(frame: str) -> None:
    core, held = started()
    core.received(success(held), NOW_MS)
    if frame == "result":
        assert core.received(success(held), NOW_MS) == []
        assert kinds(core.received(answer(held), NOW_MS)) == ["Settle"]
    else:
        core.received(answer(held), NOW_MS)
    assert core.received(success(held), NOW_MS) == []
    assert core.received(answer(held), NOW_MS) == []


def test_an_answer_that_names_another_success_is_stale_and_changes_nothing() -> None:
    """What a worker says of its work is its own word only: the reference must be the announced result's."""
    core, held = started()
    core.received(success(held), NOW_MS)
    forged = msgspec.structs.replace(held.ref, run="99" * 16)
    (said,) = core.received(answer(held, ref=forged), NOW_MS)
    assert said == Send(Settled(request=FOLLOWING, verdict="stale", code="ref_mismatch"))
    assert kinds(core.received(answer(held), NOW_MS)) == ["Settle"], "the true one is still waited for"


def test_a_success_under_another_reference_than_its_own_announces_nothing() -> None:
    core, held = started()
    forged = msgspec.structs.replace(success(held), ref=msgspec.structs.replace(held.ref, token="99" * 16))
    assert kinds(core.received(forged, NOW_MS)) == ["Settled"]
    assert core.waited(FOLLOWING) == []


def test_an_answer_before_its_success_is_settled_from_its_reference() -> None:
    """Frames come in order; one that does not is left to the store, which knows no such pass."""
    core, held = started()
    assert kinds(core.received(answer(held), NOW_MS)) == ["Settle"]
    assert core.received(success(held), NOW_MS) == [Wait(FOLLOWING)]


def test_a_failure_is_settled_at_once_whatever_it_announces() -> None:
    core, held = started()
    failed = Failed(failure=Failure(category="application", message="m"))
    assert kinds(core.received(msgspec.structs.replace(success(held), outcome=failed), NOW_MS)) == ["Settle"]


@pytest.mark.parametrize("why", ["not offered", "yields", "leaving"])
def test_a_session_that_may_not_go_on_settles_the_success_at_once(why: str) -> None:
    """ARCHITECTURE 6: after 64 steps it yields to the queue; a session that drains goes on with nothing."""
    core, held = started(continues=why != "not offered", chain_count=CONTINUED_STEPS_MAX if why == "yields" else 0)
    if why == "leaving":
        core.leave()
    result = success(held)
    assert core.received(result, NOW_MS) == [Settle(result, may_hold=False)]
    core.settled(Settle(result, may_hold=False), accepted(result), NOW_MS)
    assert core.held_count == 0, "its pass is left to the queue"


def test_the_last_step_before_the_yield_still_goes_on() -> None:
    core, held = started(chain_count=CONTINUED_STEPS_MAX - 1)
    assert core.received(success(held), NOW_MS) == [Wait(FOLLOWING)]


def test_a_session_that_leaves_while_a_success_waits_hands_the_next_step_to_the_queue() -> None:
    core, held = started()
    result = success(held)
    core.received(result, NOW_MS)
    core.leave()
    assert core.received(answer(held), NOW_MS) == [Settle(result, joint=answer(held), may_hold=False)]


def test_a_session_that_leaves_settles_a_waiting_success_alone_without_its_pass() -> None:
    core, held = started()
    core.received(success(held), NOW_MS)
    core.leave()
    assert core.waited(FOLLOWING) == [Settle(success(held), may_hold=False)]


# ---- the worker gives the pass up


def test_a_pass_given_back_before_its_success_is_settled_is_left_to_the_queue() -> None:
    core, held = started()
    result = success(held)
    core.received(result, NOW_MS)
    assert core.received(GiveBack(request=FOLLOWING, ref=held.ref), NOW_MS) == [Settle(result)]
    assert core.waited(FOLLOWING) == []
    core.settled(Settle(result), accepted(result), NOW_MS)
    assert core.held_count == 0


def test_a_pass_given_back_while_its_success_settles_alone_is_returned_after_it() -> None:
    core, held = started()
    result = success(held)
    core.received(result, NOW_MS)
    (settle,) = core.waited(FOLLOWING)
    assert isinstance(settle, Settle)
    assert core.received(GiveBack(request=FOLLOWING, ref=held.ref), NOW_MS) == []
    sent, returned = core.settled(settle, accepted(result)._replace(is_open=True), NOW_MS)
    assert isinstance(sent, Send)
    assert isinstance(returned, Return)
    assert (returned.token, returned.item_id != held.work.item_id) == (TOKEN, True)
    assert core.held_count == 0


def test_a_pass_given_back_later_is_returned_at_once() -> None:
    core, held = started()
    result = success(held)
    core.received(result, NOW_MS)
    (settle,) = core.waited(FOLLOWING)
    assert isinstance(settle, Settle)
    core.settled(settle, accepted(result)._replace(is_open=True), NOW_MS)
    assert kinds(core.received(GiveBack(request=FOLLOWING, ref=held.ref), NOW_MS)) == ["Return"]


# ---- what the store says


def test_a_refused_success_is_still_held_and_its_answer_void() -> None:
    """The worker says a failure instead; until then its callback's lease goes on."""
    core, held = started()
    result = success(held)
    core.received(result, NOW_MS)
    (settle,) = core.received(answer(held), NOW_MS)
    assert isinstance(settle, Settle)
    refused = Outcome(Settled(request=result.request, verdict="refused", code="invalid_value"))
    assert kinds(core.settled(settle, refused, NOW_MS)) == ["Settled"]
    assert (core.held_count, held.state) == (1, HeldState.STARTED)
    assert kinds(core.received(success(held, following=""), NOW_MS)) == ["Settle"]


def test_a_refused_answer_keeps_its_pass_and_lets_go_of_its_success() -> None:
    core, held = started()
    core.received(success(held), NOW_MS)
    (settle,) = core.received(answer(held), NOW_MS)
    assert isinstance(settle, Settle)
    refused = Outcome(Settled(request=FOLLOWING, verdict="refused", code="step_limit", joint=TOKEN), is_open=True)
    core.settled(settle, refused, NOW_MS)
    assert core.held_count == 1
    assert kinds(core.received(answer(held), NOW_MS)) == ["Settle"], "the pass answers again"


def test_a_pass_that_did_not_stay_with_the_session_is_not_held() -> None:
    """Another session of the instance had begun: the transaction left the pass to the queue."""
    core, held = started()
    core.received(success(held), NOW_MS)
    (settle,) = core.waited(FOLLOWING)
    assert isinstance(settle, Settle)
    core.settled(settle, accepted(success(held)), NOW_MS)
    assert core.held_count == 0


def test_a_settlement_that_failed_leaves_the_success_to_be_said_again() -> None:
    core, held = started()
    core.received(success(held), NOW_MS)
    (settle,) = core.received(answer(held), NOW_MS)
    assert isinstance(settle, Settle)
    assert core.settled(settle, None, NOW_MS) == []
    assert core.received(success(held), NOW_MS) == [Wait(FOLLOWING)]


# ---- the end of the session


def test_a_success_that_still_waits_when_the_session_ends_is_settled_alone() -> None:
    """Nothing was acknowledged, and nothing the worker said is lost."""
    core, held = started()
    core.received(success(held), NOW_MS)
    assert core.ended() == [Settle(success(held))]


def test_a_success_under_way_when_the_session_ends_is_not_settled_twice() -> None:
    core, held = started()
    core.received(success(held), NOW_MS)
    core.received(answer(held), NOW_MS)
    assert core.ended() == []


def test_a_pass_under_way_when_the_session_ends_counts_as_lost() -> None:
    core, held = started()
    core.received(success(held), NOW_MS)
    (settle,) = core.waited(FOLLOWING)
    assert isinstance(settle, Settle)
    core.settled(settle, accepted(success(held))._replace(is_open=True), NOW_MS)
    (lost,) = core.ended()
    assert isinstance(lost, Lose)
    assert lost.held.work.kind is WorkKind.DISCOVERY


@pytest.mark.case(13)
@pytest.mark.parametrize("undo_capacity", [0, 1])
@pytest.mark.parametrize("is_full", [False, True])
def test_what_a_former_session_left_goes_on_only_where_there_is_a_place(is_full: bool, undo_capacity: int) -> None:
    """Case 013: an answer kept from a former session is accepted; its step needs a place here, and not a reserved one."""
    core, held = started(capacity=1 if is_full else 2, undo_capacity=undo_capacity)
    kept = answer(held, request="kept", ref=msgspec.structs.replace(held.ref, token="77" * 16))
    assert core.received(kept, NOW_MS) == [Settle(kept, may_hold=not is_full)]
    assert core.free_count(NOW_MS) == 0, "the place is kept while it is being settled"
    core.settled(Settle(kept, may_hold=not is_full), Outcome(Settled(request="kept", verdict="stale")), NOW_MS)
    assert core.free_count(NOW_MS) == (0 if is_full else 1)


def test_nothing_follows_an_undo() -> None:
    """A pass behind it would go on in a place that is reserved for compensation."""
    core, held = started(WorkKind.COMPENSATION, capacity=1, undo_capacity=1)
    assert core.received(success(held), NOW_MS) == [Settle(success(held), may_hold=False)]


@pytest.mark.parametrize("taken_by", ["announced", "held"])
def test_a_following_pass_under_a_name_that_is_taken_follows_nothing(taken_by: str) -> None:
    """A worker that gives one name to two things harms neither."""
    core, held = started()
    core.assigned(delivery(token="ef" * 16, number=2), NOW_MS)
    other = core._held["ef" * 16]
    other.state, other.was_started = HeldState.STARTED, True
    name = FOLLOWING if taken_by == "announced" else held.request
    if taken_by == "announced":
        core.received(success(held), NOW_MS)
    result = success(other, following=name)
    assert core.received(result, NOW_MS) == [Settle(result, may_hold=False)]


@pytest.mark.case(13)
def test_a_chain_never_takes_more_than_its_place() -> None:
    """Case 013: held and reserved together never exceed the capacity, however far a chain goes."""
    core, held = started(capacity=1)
    for number in range(CONTINUED_STEPS_MAX):
        assert core.held_count == 1
        assert core.free_count(NOW_MS) == 0
        core.received(success(held, following=f"{held.request}+"), NOW_MS)
        (settle,) = core.received(answer(held, request=f"{held.request}+"), NOW_MS)
        assert isinstance(settle, Settle)
        item = delivery(token=f"{number + 1:032x}", number=number + 3).item
        core.settled(settle, proceeding(item), NOW_MS)
        assert item.token is not None
        held = core._held[item.token]
        core.start_leaves(held.request)
    assert kinds(core.received(success(held), NOW_MS)) == ["Settle"], "and yields"
