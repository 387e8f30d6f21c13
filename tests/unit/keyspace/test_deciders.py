"""Every decider by table: each combination of what it may be given, against the rules in the order they are applied."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from sample_records import ATTEMPT, ITEM, ITEM_ID, MINE, NOW_MS, OTHER, OTHER_ID, RUN, RUN_ID, STEP

from keyspace.lifecycle import AttemptState, ItemState, Phase, StopReason
from keyspace.limits import REPEATABLE_LOSSES_MAX, RETRY_DELAY_MS_MAX
from keyspace.records.run import FailureRecord, StopRecord, UnwindRecord
from keyspace.records.work import InstanceRecord, WorkKind
from keyspace.transitions import authorize_start, lose_lease, target_not_found
from keyspace.transitions.accept_failure import retry_delay_ms
from keyspace.transitions.accept_result import Settling, decide_result
from keyspace.transitions.accept_success import unrecordable
from keyspace.transitions.begin_unwind import recovery_outcome
from keyspace.transitions.lose_lease import Loss
from keyspace.transitions.lost_attempt import may_redeliver
from keyspace.transitions.pass_receipt import UNNAMED_GENERATION, Pass, decide_pass
from keyspace.transitions.renew_leases import renewed_until_ms
from keyspace.transitions.target_not_found import Missing
from keyspace.transitions.work import Loaded, Replayed, Stale, Work

CALLBACK = Work(WorkKind.CALLBACK, RUN_ID, "s1", ITEM_ID, MINE, 2)
LIVE_ITEM_STATES = (ItemState.READY, ItemState.LEASED, ItemState.AUTHORIZED)


def put(record: Any, **fields: Any) -> Any:
    return msgspec.structs.replace(record, **fields)


def every(**choices: Any) -> list[dict[str, Any]]:
    """Return every combination of the choices by name."""
    return [dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())]


# -- results


def test_results() -> None:
    """RFD 2, "Result acceptance requires the current lease or an unresolved settlement identity, plus the run and step"."""
    accepted = 0
    for case in every(
        phase=Phase,
        state=AttemptState,
        token=(MINE, OTHER, None),
        digest=("same", "other", None),
        item_id=(ITEM_ID, OTHER_ID),
        generation=(2, 3),
        item=(ITEM, put(ITEM, token=OTHER), None),
        losses=(0, 1),
    ):
        attempt = put(
            ATTEMPT, state=case["state"], token=case["token"], result_digest=case["digest"], item_id=case["item_id"]
        )
        attempt = put(attempt, loss_count=case["losses"])
        loaded = Loaded(put(RUN, phase=case["phase"]), put(STEP, generation=case["generation"]), attempt, case["item"])
        outcome = decide_result(loaded, CALLBACK, "same")
        assert _kind(outcome) == _result_rule(case), case
        if isinstance(outcome, Settling):
            accepted += 1
            assert (outcome.item is not None) == (
                case["state"] is not AttemptState.UNKNOWN and case["item"] is not None
            )
            assert outcome.attempt.state in (AttemptState.AUTHORIZED, AttemptState.UNKNOWN)
    assert accepted == 2 * 3 * (2 * 3 * 2 + 1), (
        "running or stopping, any digest so far; authorized or unknown, whatever its item and losses; or lost once and not leased since"
    )


def _result_rule(case: dict[str, Any]) -> str:
    if case["token"] != MINE or case["item_id"] != ITEM_ID:
        return "lease_lost"
    if case["state"] in (AttemptState.SUCCEEDED, AttemptState.FAILED):
        return "replayed" if case["digest"] == "same" else "attempt_settled"
    is_redelivered = case["state"] is AttemptState.QUEUED and case["losses"] and case["item"] is ITEM
    if case["state"] not in (AttemptState.AUTHORIZED, AttemptState.UNKNOWN) and not is_redelivered:
        return "attempt_not_authorized"
    if case["generation"] != 2:
        return "generation_superseded"
    return "accepted" if case["phase"] in (Phase.RUNNING, Phase.CANCELLING) else "run_not_running"


def _kind(outcome: Any) -> str:
    if isinstance(outcome, Stale):
        return outcome.code
    return "replayed" if isinstance(outcome, Replayed) else "accepted"


@pytest.mark.parametrize("missing", ["run", "step", "attempt"])
def test_a_result_for_what_is_not_there(missing: str) -> None:
    """A worker may name anything."""
    loaded = Loaded(RUN, STEP, ATTEMPT, ITEM)._replace(**{missing: None})
    assert decide_result(loaded, CALLBACK, "same") == Stale("attempt_not_found")
    assert target_not_found.decide(loaded, CALLBACK) == Stale("attempt_not_found")
    assert authorize_start.decide(loaded, None, CALLBACK, "s", NOW_MS) == Stale("lease_lost")


# -- starts

INSTANCE = InstanceRecord(instance="i", application="shop", session="s", release="r", connected_at_ms=1)


def test_starts() -> None:
    """RFD 2, "Lease expiry before start authorization": the current lease, unexpired, of the instance's present session."""
    started = 0
    for case in every(
        phase=Phase,
        kind=(WorkKind.CALLBACK, WorkKind.COMPENSATION),
        attempt=AttemptState,
        generation=(2, 3),
        item=LIVE_ITEM_STATES,
        token=(MINE, OTHER, None),
        expires=(NOW_MS - 1, NOW_MS, NOW_MS + 1, None),
        holder=("s", "former"),
        instance=(INSTANCE, put(INSTANCE, session="newer"), None),
    ):
        item = put(ITEM, state=case["item"], token=case["token"], expires_at_ms=case["expires"], session=case["holder"])
        loaded = Loaded(
            put(RUN, phase=case["phase"]),
            put(STEP, generation=case["generation"], undo_generation=case["generation"]),
            put(ATTEMPT, state=case["attempt"]),
            item,
        )
        work = CALLBACK._replace(kind=case["kind"])
        outcome = authorize_start.decide(loaded, case["instance"], work, "s", NOW_MS)
        assert _kind(outcome) == _start_rule(case), case
        started += _kind(outcome) == "accepted"
    assert started == 4, "one combination in each direction, whoever held the lease before"


def _start_rule(case: dict[str, Any]) -> str:
    if case["token"] != MINE:
        return "lease_lost"
    if case["item"] is ItemState.AUTHORIZED:
        return "replayed" if case["holder"] == "s" else "lease_lost"
    if case["item"] is ItemState.READY or case["expires"] in (NOW_MS - 1, NOW_MS, None):
        return "lease_expired"
    if case["instance"] is not INSTANCE:
        return "session_superseded"
    if case["phase"] is not (Phase.RUNNING if case["kind"] is WorkKind.CALLBACK else Phase.COMPENSATING):
        return "run_not_running"
    if case["attempt"] is not AttemptState.QUEUED or case["generation"] != 2:
        return "attempt_not_queued"
    return "accepted"


def test_a_start_of_work_that_is_gone() -> None:
    """Consumed items are not there at all."""
    loaded = Loaded(RUN, STEP, ATTEMPT, None)
    assert authorize_start.decide(loaded, INSTANCE, CALLBACK, "s", NOW_MS) == Stale("lease_lost")


def test_a_start_that_mixes_two_works() -> None:
    """The item and the attempt must be each other's: a worker may name the item of one and the step of another."""
    mixed = Loaded(RUN, STEP, put(ATTEMPT, item_id=OTHER_ID), put(ITEM, state=ItemState.LEASED))
    assert authorize_start.decide(mixed, INSTANCE, CALLBACK, "s", NOW_MS) == Stale("lease_lost")
    assert target_not_found.decide(mixed, CALLBACK) == Stale("lease_lost")


# -- losses


def test_losses() -> None:
    """RFD 2, "Lease expiry before start authorization makes an item eligible again", and what follows it."""
    for case in every(
        state=LIVE_ITEM_STATES,
        kind=(WorkKind.DISCOVERY, WorkKind.CALLBACK, WorkKind.COMPENSATION),
        repeatable=(True, False),
        expires=(NOW_MS - 1, NOW_MS, NOW_MS + 1),
        named=(None, MINE, OTHER),
        is_session_lost=(True, False),
    ):
        item = put(ITEM, state=case["state"], repeatable=case["repeatable"], expires_at_ms=case["expires"])
        item = put(item, kind=case["kind"])
        outcome = lose_lease.decide(item, case["named"], NOW_MS, is_session_lost=case["is_session_lost"])
        assert outcome is _loss_rule(case), case
    assert lose_lease.decide(None, None, NOW_MS, is_session_lost=True) is Loss.NOT_LOST


def _loss_rule(case: dict[str, Any]) -> Loss:
    is_expired = case["expires"] <= NOW_MS
    if case["state"] is ItemState.READY or case["named"] == OTHER:
        return Loss.NOT_LOST
    goes_with_its_session = case["state"] is ItemState.LEASED or case["kind"] is WorkKind.DISCOVERY
    if not is_expired and not (case["is_session_lost"] and goes_with_its_session):
        return Loss.NOT_LOST
    if case["state"] is ItemState.LEASED:
        return Loss.RETURNED
    return Loss.REDELIVERED if case["repeatable"] else Loss.UNKNOWN


def test_redeliveries() -> None:
    """FILLED-IN 2: repeatable, not forward under a stop, not at the third loss in a row; an undo is never forbidden by a stop."""
    stop = StopRecord(reason=StopReason.CANCELLED, at_ms=1, by="k")
    allowed = []
    for case in every(
        kind=(WorkKind.CALLBACK, WorkKind.COMPENSATION),
        repeatable=(True, False),
        stop=(None, stop),
        losses=range(REPEATABLE_LOSSES_MAX + 1),
    ):
        item = put(ITEM, kind=case["kind"], repeatable=case["repeatable"])
        if may_redeliver(put(RUN, stop=case["stop"]), item, put(ATTEMPT, loss_count=case["losses"])):
            allowed.append((case["kind"], case["repeatable"], case["stop"] is None, case["losses"]))
    forward, undo = (WorkKind.CALLBACK, True, True), (WorkKind.COMPENSATION, True)
    assert set(allowed) == {(*forward, 0), (*forward, 1)} | {
        (*undo, any_stop, n) for any_stop in (True, False) for n in (0, 1)
    }


# -- passes


def test_passes() -> None:
    """FILLED-IN 11, "Lease expiry and results": current, not unexpired, is what counts; the receipt answers a repeat.

    RFD 2, "plus the run and step generation": the pass's own, or none where nobody has told its worker one.
    """
    passing = Work(WorkKind.DISCOVERY, RUN_ID, None, ITEM_ID, MINE, ITEM.generation)
    for case in every(
        phase=Phase,
        settled=(None, ITEM_ID, OTHER_ID),
        answer=("same", "other"),
        owned=(ITEM_ID, OTHER_ID, None),
        item=(*LIVE_ITEM_STATES, None),
        kind=(WorkKind.DISCOVERY, WorkKind.CALLBACK),
        token=(MINE, OTHER),
        target=(RUN_ID, OTHER_ID),
        named=(ITEM.generation, UNNAMED_GENERATION, ITEM.generation + 1),
    ):
        work = passing._replace(generation=case["named"])
        run = put(
            RUN, phase=case["phase"], settled_item=case["settled"], settled_answer=case["answer"], item_id=case["owned"]
        )
        item = case["item"] and put(
            ITEM, state=case["item"], kind=case["kind"], token=case["token"], target=case["target"], expires_at_ms=1
        )
        outcome = decide_pass(run, item, work, "same")
        assert _kind(outcome) == _pass_rule(case), case
        assert not isinstance(outcome, Pass) or (outcome.run, outcome.item) == (run, item)
    assert decide_pass(None, ITEM, passing, "same") == Stale("run_not_found")


def _pass_rule(case: dict[str, Any]) -> str:
    if case["settled"] == ITEM_ID:
        return "replayed" if case["answer"] == "same" else "pass_settled"
    item = (case["item"] is not None, case["token"], case["kind"], case["target"])
    if item != (True, MINE, WorkKind.DISCOVERY, RUN_ID):
        return "lease_lost"
    if case["named"] > ITEM.generation:
        return "generation_superseded"
    # A blocked run is looked at by passes too: only one of them can clear its blocker.
    if case["phase"] not in (Phase.RUNNING, Phase.DEFINITION_BLOCKED) or case["owned"] != ITEM_ID:
        return "run_not_running"
    return "accepted"


# -- missing targets


def test_missing_targets() -> None:
    """FILLED-IN 6: only under the item's current token and before any authorization; the fenced attempt is the receipt."""
    for case in every(
        phase=Phase,
        kind=(WorkKind.CALLBACK, WorkKind.COMPENSATION),
        attempt=AttemptState,
        owned=(ITEM_ID, OTHER_ID, None),
        item=(*LIVE_ITEM_STATES, None),
        token=(MINE, OTHER),
        losses=(0, 1),
    ):
        item = case["item"] and put(ITEM, state=case["item"], token=case["token"])
        attempt = put(ATTEMPT, state=case["attempt"], loss_count=case["losses"])
        loaded = Loaded(put(RUN, phase=case["phase"], item_id=case["owned"]), STEP, attempt, item)
        outcome = target_not_found.decide(loaded, CALLBACK._replace(kind=case["kind"]))
        assert _kind(outcome) == _missing_rule(case), case
        assert not isinstance(outcome, Missing) or outcome.item is item


def _missing_rule(case: dict[str, Any]) -> str:
    if case["attempt"] is AttemptState.FENCED or (case["attempt"] is AttemptState.UNKNOWN and case["losses"]):
        return "replayed"
    if case["item"] is None or case["token"] != MINE or case["owned"] != ITEM_ID:
        return "lease_lost"
    if case["attempt"] is not AttemptState.QUEUED:
        return "attempt_not_queued"
    running = Phase.COMPENSATING if case["kind"] is WorkKind.COMPENSATION else Phase.RUNNING
    return "accepted" if case["phase"] is running else "run_not_running"


# -- renewals


def test_renewals() -> None:
    """FILLED-IN 11, "Renewal after expiry is refused"; ARCHITECTURE 4, "nothing is renewed past authorization"."""
    lease_ms = 100
    for case in every(
        state=LIVE_ITEM_STATES,
        token=(MINE, OTHER),
        expires=(NOW_MS - 1, NOW_MS, NOW_MS + 1, None),
        until=(None, NOW_MS - 1, NOW_MS, NOW_MS + 50, NOW_MS + 500),
    ):
        item = put(
            ITEM, state=case["state"], token=case["token"], expires_at_ms=case["expires"], renew_until_ms=case["until"]
        )
        assert renewed_until_ms(item, MINE, NOW_MS, lease_ms) == _renewal_rule(case, lease_ms), case
    assert renewed_until_ms(None, MINE, NOW_MS, lease_ms) is None


def _renewal_rule(case: dict[str, Any], lease_ms: int) -> int | None:
    if case["token"] != MINE or case["state"] is ItemState.READY or case["expires"] != NOW_MS + 1:
        return None
    until = NOW_MS + lease_ms if case["until"] is None else min(NOW_MS + lease_ms, case["until"])
    return until if until > NOW_MS else None


# -- retries and outcomes


def test_retries() -> None:
    """RFD 2, "Retryable failures atomically complete": the recorded policy counts; RetryAfter replaces only the delay."""
    for case in every(failures=range(5), attempts=(1, 2, 3, 4), retryable=(True, False), after=(None, -5, 0, 7, 2**60)):
        step = put(STEP, failure_count=case["failures"], retry=put(STEP.retry, attempts=case["attempts"]))
        delay = retry_delay_ms(step, is_retryable=case["retryable"], retry_after_ms=case["after"])
        if not case["retryable"] or case["failures"] + 1 >= case["attempts"]:
            assert delay is None, case
        elif case["after"] is None:
            assert delay == 1_000 * 2 ** case["failures"]
        else:
            assert delay == {-5: 0, 0: 0, 7: 7, 2**60: RETRY_DELAY_MS_MAX}[case["after"]]


@pytest.mark.parametrize(
    ("executed", "skipped", "outcome"),
    [(1, 0, "compensated"), (3, 0, "compensated"), (1, 1, "partially_compensated"), (0, 2, "partially_compensated")],
)
def test_recovery_outcomes(executed: int, skipped: int, outcome: str) -> None:
    """FILLED-IN 5, the table's two rows for an unwind that reached its end."""
    unwind = UnwindRecord(upper=3, cursor=0, executed_count=executed, skipped_count=skipped)
    assert recovery_outcome(unwind).value == outcome


@pytest.mark.case(46)
@pytest.mark.parametrize("value_bytes", [99, 100, 101, 5_000])
def test_a_value_over_its_limit_is_unrecordable(value_bytes: int) -> None:
    """Case 046: limit - 1, limit, limit + 1, 50 times the limit; the failure names size and limit."""
    failure = unrecordable(RUN, "s1", value_bytes, 100)
    if value_bytes <= 100:
        assert failure is None
        return
    assert failure == FailureRecord(
        category="sdk.invalid_result", message=f"The result has {value_bytes} bytes; the limit is 100."
    )
