"""The deciders of a deadline by table: every phase, stop and instant, and what a timer comes to."""

from __future__ import annotations

import msgspec
import pytest
from sample_records import ITEM, ITEM_ID, NOW_MS, OTHER_ID, RUN
from test_deciders import every

from keyspace.errors import Refusal
from keyspace.lifecycle import Phase, StopReason
from keyspace.records.run import FailureRecord, StopRecord
from keyspace.records.work import Direction, WorkKind
from keyspace.transitions.deadline import is_past_deadline
from keyspace.transitions.fire_deadline import Fired, decide
from keyspace.transitions.pass_receipt import stale_by_stop
from keyspace.transitions.resolve_attempt import DeclareFailure, RetryAttempt, SupplySuccess, Target, check_policy
from keyspace.transitions.work import Stale

REASONS = (None, StopReason.CANCELLED, StopReason.TIMED_OUT)
DEADLINES = (None, NOW_MS - 1, NOW_MS, NOW_MS + 1)
FORWARD = (Phase.RUNNING, Phase.DEFINITION_BLOCKED)


def run_of(case: dict[str, object]):  # type: ignore[no-untyped-def]
    reason = case["reason"]
    stop = StopRecord(reason=reason, at_ms=1, by="k") if isinstance(reason, StopReason) else None
    return msgspec.structs.replace(RUN, phase=case["phase"], stop=stop, deadline_at_ms=case["deadline_at_ms"])


def is_past_rule(case: dict[str, object]) -> bool:
    has_passed = case["deadline_at_ms"] in (NOW_MS - 1, NOW_MS)
    return has_passed and case["reason"] is None and case["phase"] in FORWARD


def test_what_is_past_its_deadline() -> None:
    """RFD 2, "At or after the deadline": at the instant itself it is over, 1 ms before it is not, once stopped never again."""
    for case in every(phase=Phase, reason=REASONS, deadline_at_ms=DEADLINES):
        assert is_past_deadline(run_of(case), NOW_MS) is is_past_rule(case), case


def test_what_a_timer_comes_to() -> None:
    """RFD 2, "one generation-fenced, server-owned RunTimeout work item": only the one that the run names, only when due."""
    timer = msgspec.structs.replace(ITEM, kind=WorkKind.RUN_TIMEOUT)
    for case in every(
        phase=Phase, reason=REASONS, deadline_at_ms=DEADLINES, named=(ITEM_ID, OTHER_ID, None), item=(timer, None)
    ):
        run = msgspec.structs.replace(run_of(case), timeout_item=case["named"])
        if case["item"] is None:
            expected = Fired.GONE
        elif case["named"] != ITEM_ID:
            expected = Fired.OBSOLETE
        else:
            expected = Fired.STOPPED if is_past_rule(case) else Fired.NOT_DUE
        assert decide(run, case["item"], NOW_MS) is expected, case
    assert decide(None, timer, NOW_MS) is Fired.OBSOLETE
    assert decide(None, None, NOW_MS) is Fired.GONE


COMMANDS = (
    SupplySuccess(b"1"),
    DeclareFailure(FailureRecord(category="operator", message="m")),
    RetryAttempt(),
)


def test_the_policy_of_resolutions() -> None:
    """FILLED-IN 7, column by column: only a forward retry is refused, by the committed stop or by the elapsed deadline."""
    for case in every(
        phase=(Phase.RUNNING, Phase.CANCELLING, Phase.COMPENSATING),
        reason=REASONS,
        deadline_at_ms=DEADLINES,
        direction=Direction,
        command=COMMANDS,
    ):
        target = Target(RUN.run_id, case["direction"], "s1", 1)
        expected = None
        if isinstance(case["command"], RetryAttempt) and case["direction"] is Direction.FORWARD:
            if case["reason"] is StopReason.CANCELLED:
                expected = "retry_forbidden"
            elif case["reason"] is StopReason.TIMED_OUT or is_past_rule(case):
                expected = "deadline_elapsed"
        if expected is None:
            check_policy(run_of(case), target, case["command"], NOW_MS)
        else:
            with pytest.raises(Refusal) as refused:
                check_policy(run_of(case), target, case["command"], NOW_MS)
            assert refused.value.code == expected, case


@pytest.mark.parametrize(
    ("reason", "code"), [(StopReason.TIMED_OUT, "deadline_elapsed"), (StopReason.CANCELLED, "run_stopping")]
)
def test_an_answer_after_the_stop_is_told_which_stop(reason: StopReason, code: str) -> None:
    """The same word whether the timer or the answer committed the stop, so that the order of the two never shows."""
    stopped = run_of({"phase": Phase.CANCELLING, "reason": reason, "deadline_at_ms": None})
    assert stale_by_stop(stopped) == Stale(code)
