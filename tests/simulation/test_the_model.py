"""Every rule of the reference model complains of what it is for, and of nothing in a run as it should be."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from keyspace.history import HistoryKind
from keyspace.lifecycle import (
    AttemptState,
    CompensationState,
    Execution,
    Phase,
    Recovery,
    StepKind,
    StepState,
    StopReason,
)
from keyspace.records.run import (
    AttemptRecord,
    FailureRecord,
    HistoryRecord,
    RetryRecord,
    RunRecord,
    StepRecord,
    StopRecord,
    UnwindRecord,
)
from keyspace.records.work import Direction
from keyspace.transitions.names import INVOCATION_EVENT
from keyspace.transitions.stop_run import StopOutcome
from simulation.model import FORGED, RULES, AttemptAt, Model, RunLook, stop_stands

RUN_ID = "11" * 16
FIRST, SECOND = AttemptAt(Direction.FORWARD, "s1", 1), AttemptAt(Direction.FORWARD, "s1", 2)
UNDO = AttemptAt(Direction.COMPENSATION, "s1", 1)
FAILURE = FailureRecord(category="application", message="no")
STOP = StopRecord(reason=StopReason.CANCELLED, at_ms=5, by="somebody")

Change = Callable[[Model, RunLook, RunLook], None]


def sound() -> tuple[Model, RunLook, RunLook]:
    """Return a run before and after a commit that completes its one step."""
    model = Model()
    retry = RetryRecord(attempts=2, initial_ms=1, coefficient=1.0, cap_ms=1)
    run = RunRecord(
        run_id=RUN_ID, application="shop", function="fulfil", event_id="22" * 16, event_name="placed", binding="b",
        manifest_generation=1, routing_generation=1, created_at_ms=1, updated_at_ms=1, input_bytes=2,
    )  # fmt: skip
    step = StepRecord(
        step_id="s1", name="", kind=StepKind.CALLBACK, state=StepState.RUNNING, generation=1, ordinal=1,
        operation_id="op", retry=retry, timeout_ms=None, compensable=True, location="", declared_at_ms=1, declared_by="p",
    )  # fmt: skip
    attempt = AttemptRecord(
        step_id="s1", generation=1, ordinal=1, operation_id="op", state=AttemptState.AUTHORIZED, item_id="i1",
        queued_at_ms=1, vesting_ms=1, authorized_at_ms=1,
    )  # fmt: skip
    entry = HistoryRecord(at_ms=1, kind=HistoryKind.RUN_CREATED.value, data={})
    before = RunLook(run, {"s1": step}, {FIRST: attempt}, {1: entry})
    after = before.copy()
    after.run = msgspec.structs.replace(run, completion_count=1, updated_at_ms=2)
    after.steps["s1"] = msgspec.structs.replace(step, state=StepState.COMPLETED, completion=1, settled_at_ms=2)
    after.attempts[FIRST] = msgspec.structs.replace(attempt, state=AttemptState.SUCCEEDED)
    after.history[2] = HistoryRecord(at_ms=2, kind=HistoryKind.STEP_COMPLETED.value, data={"step": "s1"})
    after.completions[1] = "s1"
    after.values["s1"] = b'"v"'
    model.ran[(RUN_ID, FIRST)] += 1
    model.value_said(RUN_ID, "s1", b'"v"')
    return model, before, after


def change_run(look: RunLook, **fields: object) -> None:
    look.run = msgspec.structs.replace(look.run, **fields)


def change_step(look: RunLook, **fields: object) -> None:
    look.steps["s1"] = msgspec.structs.replace(look.steps["s1"], **fields)


def change_attempt(look: RunLook, at: AttemptAt = FIRST, **fields: object) -> None:
    look.attempts[at] = msgspec.structs.replace(look.attempts[at], **fields)


def add_attempt(look: RunLook, at: AttemptAt, **fields: object) -> None:
    like = {"generation": at.generation, "ordinal": at.generation, "item_id": f"i{at}", "state": AttemptState.QUEUED}
    look.attempts[at] = msgspec.structs.replace(look.attempts[FIRST], **{**like, **fields})


def ended_and_changed(model: Model, before: RunLook, after: RunLook) -> None:
    change_run(before, phase=Phase.TERMINAL)


def stopped_anew(model: Model, before: RunLook, after: RunLook) -> None:
    change_run(before, stop=STOP)
    change_run(after, stop=msgspec.structs.replace(STOP, reason=StopReason.TIMED_OUT))


def history_rewritten(model: Model, before: RunLook, after: RunLook) -> None:
    after.history[1] = msgspec.structs.replace(after.history[1], at_ms=9)


def completed_anew(model: Model, before: RunLook, after: RunLook) -> None:
    change_step(before, state=StepState.COMPLETED, completion=2)


def settled_twice(model: Model, before: RunLook, after: RunLook) -> None:
    change_attempt(before, state=AttemptState.FAILED)


def another_operation(model: Model, before: RunLook, after: RunLook) -> None:
    add_attempt(after, SECOND, operation_id="other")


def retried_after_a_success(model: Model, before: RunLook, after: RunLook) -> None:
    add_attempt(after, SECOND)


def ran_and_forgotten(model: Model, before: RunLook, after: RunLook) -> None:
    change_attempt(after, state=AttemptState.QUEUED)


def started_after_a_stop(model: Model, before: RunLook, after: RunLook) -> None:
    change_run(before, stop=STOP)
    change_run(after, stop=STOP)
    add_attempt(after, SECOND)


def unwound_with_an_open_token(model: Model, before: RunLook, after: RunLook) -> None:
    change_run(after, phase=Phase.COMPENSATING)
    change_attempt(after, state=AttemptState.UNKNOWN)


def undone_out_of_order(model: Model, before: RunLook, after: RunLook) -> None:
    change_run(after, phase=Phase.COMPENSATING, completion_count=2, unwind=UnwindRecord(upper=2, cursor=2))
    after.steps["s2"] = msgspec.structs.replace(after.steps["s1"], step_id="s2", completion=2)
    after.completions[2] = "s2"
    change_step(after, compensation=CompensationState.PENDING)


def a_timer_in_the_unwind(model: Model, before: RunLook, after: RunLook) -> None:
    change_step(after, kind=StepKind.TIMER)


def settled_by_an_invocation(model: Model, before: RunLook, after: RunLook) -> None:
    data = {"step": "s1", "event": "33" * 16, "name": INVOCATION_EVENT}
    after.history[2] = HistoryRecord(at_ms=2, kind=HistoryKind.STEP_COMPLETED.value, data=data)


def declared_past_the_deadline(model: Model, before: RunLook, after: RunLook) -> None:
    change_run(after, deadline_at_ms=2)
    after.history[2] = HistoryRecord(at_ms=2, kind=HistoryKind.STEP_DECLARED.value, data={"step": "s1"})


def a_wrong_recovery(model: Model, before: RunLook, after: RunLook) -> None:
    change_run(after, phase=Phase.TERMINAL, execution=Execution.FAILED, recovery=Recovery.EMPTY_UNWIND)


def a_value_nobody_said(model: Model, before: RunLook, after: RunLook) -> None:
    after.values["s1"] = FORGED


def delivered_again(model: Model, before: RunLook, after: RunLook) -> None:
    change_attempt(after, loss_count=1)


def failed_too_often(model: Model, before: RunLook, after: RunLook) -> None:
    change_step(after, failure_count=3)


def failed_too_soon(model: Model, before: RunLook, after: RunLook) -> None:
    change_step(after, state=StepState.FAILED, failure=FAILURE, failure_count=1)
    change_attempt(after, state=AttemptState.FAILED, failure=FAILURE)
    model.failure_said(RUN_ID, FIRST, True)


def started_early(model: Model, before: RunLook, after: RunLook) -> None:
    change_attempt(before, state=AttemptState.QUEUED)
    change_attempt(after, state=AttemptState.AUTHORIZED, vesting_ms=7)


def went_on_while_blocked(model: Model, before: RunLook, after: RunLook) -> None:
    change_run(before, phase=Phase.DEFINITION_BLOCKED)
    change_run(after, phase=Phase.DEFINITION_BLOCKED)
    change_attempt(before, state=AttemptState.QUEUED)
    change_attempt(after, state=AttemptState.AUTHORIZED)


CASES: list[tuple[str, Change]] = [
    ("what ended never changes", ended_and_changed),
    ("the first stop stands", stopped_anew),
    ("history only grows", history_rewritten),
    ("what settled stays settled", completed_anew),
    ("one settlement a generation", settled_twice),
    ("attempts are numbered", another_operation),
    ("a new generation needs a decision", retried_after_a_success),
    ("what ran is not forgotten", ran_and_forgotten),
    ("nothing starts after a stop", started_after_a_stop),
    ("recovery waits for every token", unwound_with_an_open_token),
    ("the unwind goes backwards", undone_out_of_order),
    ("what the server settles is not undone", a_timer_in_the_unwind),
    ("no wait meets an invocation", settled_by_an_invocation),
    ("nothing goes forward past the deadline", declared_past_the_deadline),
    ("the recovery says what happened", a_wrong_recovery),
    ("a value was said by somebody", a_value_nobody_said),
    ("losses are counted", delivered_again),
    ("retries are counted", failed_too_often),
    ("retries are counted", failed_too_soon),
    ("nothing starts before its time", started_early),
    ("a blocked run does not go on", went_on_while_blocked),
]


def broken_rules(model: Model, before: RunLook, after: RunLook) -> set[str]:
    model.looks[("acme", RUN_ID)] = before
    return {broken.rule for broken in model.run_changed(("acme", RUN_ID), after)}


def test_a_sound_change_breaks_no_rule() -> None:
    """The change that every case begins with is one that the service makes a thousand times a second."""
    assert broken_rules(*sound()) == set()


@pytest.mark.parametrize(("rule", "change"), CASES, ids=[f"{rule}: {change.__name__}" for rule, change in CASES])
def test_a_rule_complains(rule: str, change: Change) -> None:
    """A rule that never complained would hold nothing."""
    model, before, after = sound()
    change(model, before, after)
    assert rule in broken_rules(model, before, after)


def test_every_rule_has_a_case() -> None:
    """A rule that is added without a case may be one that cannot fail."""
    assert {rule for rule, _ in CASES} == set(RULES)


def test_an_effect_begins_once_and_authorized() -> None:
    """RFD 2, "It is not blindly dispatched again": the second beginning of a generation is said, and one without a record."""
    model, before, _ = sound()
    again = {broken.rule for broken in model.effect_begins(RUN_ID, FIRST, before, is_repeatable=False)}
    assert again == {"an effect at most once"}
    assert not list(model.effect_begins(RUN_ID, FIRST, before, is_repeatable=True))
    change_attempt(before, state=AttemptState.QUEUED)
    queued = {broken.rule for broken in Model().effect_begins(RUN_ID, FIRST, before, is_repeatable=False)}
    assert queued == {"no effect without authorization"}


def test_a_key_is_one_event_and_a_replay_what_was_recorded() -> None:
    """What callers and workers are told is held against what they were told before."""
    model, _, after = sound()
    assert not list(model.event_acknowledged("key", "a")) and not list(model.event_acknowledged("key", "a"))
    assert [broken.rule for broken in model.event_acknowledged("key", "b")] == ["one key one event"]
    assert not list(model.pass_begins(RUN_ID, {"s1": b'"v"', "s0": None}, after))
    told = list(model.pass_begins(RUN_ID, {"s1": b'"w"'}, after))
    assert [broken.rule for broken in told] == ["a replay is what was recorded"]


def test_a_cancellation_is_answered_as_it_is() -> None:
    """RFD 2, "A different stop outcome cannot replace the one that committed": no answer may say that it did."""
    _, look, _ = sound()
    assert not stop_stands(look, StopOutcome.ACCEPTED)
    assert not stop_stands(look, StopOutcome.ALREADY_TERMINAL)
    change_run(look, stop=STOP)
    assert stop_stands(look, StopOutcome.ACCEPTED) and stop_stands(look, StopOutcome.REPEATED)
    change_run(look, phase=Phase.TERMINAL, stop=msgspec.structs.replace(STOP, reason=StopReason.TIMED_OUT))
    assert not stop_stands(look, StopOutcome.ALREADY_TERMINAL)
