"""The reference model: what may be true of a run, given what was acknowledged and which effects have run.

It knows nothing of items, leases, tokens or sessions. It remembers what each run looked like after the last commit and holds
the next look against the rules of RFD 1 and RFD 2, one function a rule; and it remembers what the outside world saw and what
callers were told. A rule that is broken raises nothing, because it is found inside a commit: it is said, and the scenario ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from keyspace import lifecycle
from keyspace.history import HistoryKind
from keyspace.lifecycle import (
    AttemptState,
    CompensationState,
    Execution,
    Phase,
    Recovery,
    StepState,
    StopReason,
)
from keyspace.limits import REPEATABLE_LOSSES_MAX
from keyspace.records.run import AttemptRecord, HistoryRecord, RunRecord, StepRecord
from keyspace.records.work import Direction
from keyspace.transitions.names import INVOCATION_EVENT
from keyspace.transitions.stop_run import StopOutcome

__all__ = ["AttemptAt", "Broken", "Model", "RunLook"]

FORGED = b'"forged"'
"""The value of every forged result: it must never be accepted."""

SETTLED_STEPS = frozenset((StepState.COMPLETED, StepState.FAILED))
SETTLED_ATTEMPTS = frozenset(
    (AttemptState.SUCCEEDED, AttemptState.FAILED, AttemptState.FENCED, AttemptState.RETRY_AUTHORIZED)
)
PASSED = frozenset((CompensationState.DONE, CompensationState.SKIPPED))
UNDER_WAY = frozenset(
    (
        CompensationState.PENDING,
        CompensationState.RUNNING,
        CompensationState.BACKING_OFF,
        CompensationState.UNKNOWN,
    )
)


class AttemptAt(NamedTuple):
    """Names one physical attempt."""

    direction: Direction
    step_id: str
    generation: int


class Broken(NamedTuple):
    """A rule that does not hold: its name, and what was seen."""

    rule: str
    sentence: str


@dataclass
class RunLook:
    """A run as it stands after a commit."""

    run: RunRecord
    steps: dict[str, StepRecord] = field(default_factory=dict)
    attempts: dict[AttemptAt, AttemptRecord] = field(default_factory=dict)
    history: dict[int, HistoryRecord] = field(default_factory=dict)
    completions: dict[int, str] = field(default_factory=dict)
    values: dict[str, bytes] = field(default_factory=dict)
    output: bytes | None = None

    def copy(self) -> RunLook:
        """Return a look that later changes leave alone."""
        return RunLook(
            self.run,
            dict(self.steps),
            dict(self.attempts),
            dict(self.history),
            dict(self.completions),
            dict(self.values),
            self.output,
        )


Rule = Callable[["Model", RunLook | None, RunLook], Iterator[str]]
RULES: dict[str, Rule] = {}


def rule(function: Rule) -> Rule:
    """Declare a rule; its name is the function's."""
    RULES[function.__name__.replace("_", " ")] = function
    return function


class Model:
    """Everything the simulation has seen, by run."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self.looks: dict[tuple[str, str], RunLook] = {}
        self.ran: Counter[tuple[str, AttemptAt]] = Counter()
        self.told: dict[tuple[str, str], set[bytes]] = {}
        self.events: dict[str, str] = {}
        self.retryable: set[tuple[str, AttemptAt]] = set()
        self.latest_ms = 0

    # -- what the world tells

    def clock_said(self, now_ms: int) -> None:
        """The wall clock said so; it may be set back later."""
        self.latest_ms = max(self.latest_ms, now_ms)

    def event_acknowledged(self, key: str, event_id: str) -> Iterator[Broken]:
        """A submission was acknowledged. One key, one event (RFD 2, "An identical retry returns the original event")."""
        known = self.events.setdefault(key, event_id)
        if known != event_id:
            yield Broken("one key one event", f"{key}: {known} and {event_id}")

    def value_said(self, run_id: str, step_id: str, value: bytes) -> None:
        """A worker reported a step's value, or an operator supplied it."""
        self.told.setdefault((run_id, step_id), set()).add(value)

    def failure_said(self, run_id: str, at: AttemptAt, is_retryable: bool) -> None:
        """A worker reported a failure of an attempt."""
        if is_retryable:
            self.retryable.add((run_id, at))

    def pass_begins(self, run_id: str, memo: Mapping[str, bytes | None], look: RunLook | None) -> Iterator[Broken]:
        """A worker begins a pass with these settled steps; None is a failure.

        RFD 1, "later replays return the recorded result": byte for byte, to passes and compensators alike.
        """
        for step_id, value in memo.items():
            recorded = None if look is None else look.values.get(step_id)
            if value is not None and value != recorded:
                yield Broken("a replay is what was recorded", f"{step_id} of {run_id}: {value!r}, and {recorded!r} is")

    def effect_begins(self, run_id: str, at: AttemptAt, look: RunLook | None, is_repeatable: bool) -> Iterator[Broken]:
        """User code of an attempt begins in the outside world.

        RFD 2, "It is not blindly dispatched again": once for each generation, and only after an authorization that is durable.
        """
        self.ran[(run_id, at)] += 1
        attempt = None if look is None else look.attempts.get(at)
        is_redelivered = attempt is not None and attempt.state is AttemptState.QUEUED and attempt.loss_count > 0
        if attempt is None or (attempt.state in (AttemptState.QUEUED, AttemptState.FENCED) and not is_redelivered):
            state = "nothing" if attempt is None else attempt.state.value
            yield Broken("no effect without authorization", f"{at} began and its record says {state}")
        if self.ran[(run_id, at)] > 1 and not is_repeatable:
            yield Broken("an effect at most once", f"{at} of run {run_id} began {self.ran[(run_id, at)]} times")

    # -- what the store shows

    def run_changed(self, key: tuple[str, str], after: RunLook) -> Iterator[Broken]:
        """A commit touched a run."""
        before = self.looks.get(key)
        for name, check in RULES.items():
            for sentence in check(self, before, after):
                yield Broken(name, f"run {after.run.run_id}: {sentence}")
        self.looks[key] = after.copy()

    def attempts_ran(self, run_id: str) -> set[AttemptAt]:
        """Return the attempts of a run whose user code has begun."""
        return {at for run, at in self.ran if run == run_id}


# -- the rules


@rule
def what_ended_never_changes(model: Model, before: RunLook | None, after: RunLook) -> Iterator[str]:
    """RFD 2, "An accepted success, terminal failure, or skip is not reopened"; FILLED-IN 10, C4."""
    if before is None or before.run.phase is not Phase.TERMINAL:
        return
    if before.run != after.run or before.steps != after.steps or before.history != after.history:
        yield "it had ended and changed"


@rule
def the_first_stop_stands(model: Model, before: RunLook | None, after: RunLook) -> Iterator[str]:
    """RFD 2, "The first committed stop reason decides"."""
    run = after.run
    if before is not None and before.run.stop is not None and before.run.stop != run.stop:
        yield f"its stop {before.run.stop} became {run.stop}"
    if run.stop is not None and run.execution not in (None, run.stop.reason.execution):
        yield f"it was stopped as {run.stop.reason} and ended as {run.execution}"
    if run.execution in (Execution.CANCELLED, Execution.TIMED_OUT) and run.stop is None:
        yield f"it ended as {run.execution} without a stop"


@rule
def history_only_grows(model: Model, before: RunLook | None, after: RunLook) -> Iterator[str]:
    """RFD 2, "Every accepted transition appends a history entry with the same commit"."""
    earlier = {} if before is None else before.history
    if any(after.history.get(ordinal) != entry for ordinal, entry in earlier.items()):
        yield "an entry of its history changed"
    if before is not None and before.run != after.run and len(after.history) == len(earlier):
        yield "it changed and its history did not grow"


@rule
def what_settled_stays_settled(model: Model, before: RunLook | None, after: RunLook) -> Iterator[str]:
    """RFD 2, "A successful result is immutable for the logical step ID"; a failed step may only become Obsolete."""
    if before is None:
        return
    for step_id, step in before.steps.items():
        now = after.steps[step_id]
        if step.state is StepState.COMPLETED and (
            (now.state, now.completion, now.settled_at_ms, now.value_bytes)
            != (step.state, step.completion, step.settled_at_ms, step.value_bytes)
            or before.values.get(step_id) != after.values.get(step_id)
        ):
            yield f"the completed step {step_id} changed"
        if step.state is StepState.FAILED and now.state not in (StepState.FAILED, StepState.OBSOLETE):
            yield f"the failed step {step_id} became {now.state}"


@rule
def one_settlement_a_generation(model: Model, before: RunLook | None, after: RunLook) -> Iterator[str]:
    """RFD 2, "A generation has one immutable settlement"; generations and ordinals only grow."""
    if before is None:
        return
    for at, attempt in before.attempts.items():
        now = after.attempts.get(at)
        if now is None:
            yield f"{at} is gone"
        elif attempt.state in SETTLED_ATTEMPTS and (now.state, now.result_digest) != (
            attempt.state,
            attempt.result_digest,
        ):
            yield f"{at} was {attempt.state} and became {now.state}"
        elif now.ordinal != attempt.ordinal or now.operation_id != attempt.operation_id:
            yield f"{at} changed its ordinal or its operation"
        elif not _leads(lifecycle.ATTEMPT, attempt.state, now.state):
            yield f"{at} went from {attempt.state} to {now.state}"


@rule
def attempts_are_numbered(model: Model, before: RunLook | None, after: RunLook) -> Iterator[str]:
    """RFD 2, "The logical operation ID remains stable across those physical items"; ordinals rise with generations."""
    for at, attempt in after.attempts.items():
        earlier = after.attempts.get(at._replace(generation=at.generation - 1))
        if earlier is None:
            continue
        if earlier.operation_id != attempt.operation_id:
            yield f"{at} has another operation than the attempt before it"
        if attempt.ordinal != earlier.ordinal + 1:
            yield f"{at} has the ordinal {attempt.ordinal} after {earlier.ordinal}"
        if attempt.item_id == earlier.item_id:
            yield f"{at} is the same work as the attempt before it"


@rule
def a_new_generation_needs_a_decision(model: Model, before: RunLook | None, after: RunLook) -> Iterator[str]:
    """FILLED-IN 10, C6: what ran and did not settle as failed, or by an operator, is never followed by another attempt."""
    ran = model.attempts_ran(after.run.run_id)
    for at in after.attempts:
        earlier = at._replace(generation=at.generation - 1)
        if earlier in ran and after.attempts[earlier].state not in (
            AttemptState.FAILED,
            AttemptState.RETRY_AUTHORIZED,
        ):
            yield f"{at} follows {earlier}, which ran and is {after.attempts[earlier].state}"


@rule
def what_ran_is_not_forgotten(model: Model, before: RunLook | None, after: RunLook) -> Iterator[str]:
    """RFD 2, "A transport that proves an authorized effect never began": nothing proves that of one that did."""
    for at in model.attempts_ran(after.run.run_id):
        attempt = after.attempts.get(at)
        if attempt is None or attempt.state is AttemptState.FENCED:
            yield f"{at} ran and its record says otherwise"
        elif attempt.state is AttemptState.QUEUED and not (may_repeat(after, at) and attempt.loss_count):
            yield f"{at} ran and waits to run again"


def may_repeat(look: RunLook, at: AttemptAt) -> bool:
    """Whether an attempt was declared safe to repeat under its operation id."""
    step = look.steps.get(at.step_id)
    return step is not None and step.is_repeatable(at.direction)


@rule
def nothing_starts_after_a_stop(model: Model, before: RunLook | None, after: RunLook) -> Iterator[str]:
    """RFD 1, "Run cancellation and timeout first stop new forward scheduling"; RFD 2, "prevents discovery from creating"."""
    if before is None or before.run.stop is None:
        return
    for at, attempt in after.attempts.items():
        earlier = before.attempts.get(at)
        if at.direction is Direction.FORWARD and earlier is None:
            yield f"{at} was created after the stop"
        if (
            at.direction is Direction.FORWARD
            and attempt.state is AttemptState.AUTHORIZED
            and (earlier is None or earlier.state is not AttemptState.AUTHORIZED)
        ):
            yield f"{at} was authorized after the stop"


@rule
def recovery_waits_for_every_token(model: Model, before: RunLook | None, after: RunLook) -> Iterator[str]:
    """RFD 2, "Compensation order is snapshotted only after every effectful settlement token resolves"."""
    if after.run.phase not in (Phase.COMPENSATING, Phase.TERMINAL):
        return
    for at, attempt in after.attempts.items():
        is_open = attempt.state in (AttemptState.AUTHORIZED, AttemptState.UNKNOWN)
        if is_open and (at.direction is Direction.FORWARD or after.run.phase is Phase.TERMINAL):
            yield f"{at} is {attempt.state} while the run is {after.run.phase}"


@rule
def the_unwind_goes_backwards(model: Model, before: RunLook | None, after: RunLook) -> Iterator[str]:
    """RFD 2, "Entering compensation snapshots every completed step in reverse completion order": one at a time."""
    unwind = after.run.unwind
    if unwind is None:
        if any(step.compensation is not CompensationState.NONE for step in after.steps.values()):
            yield "a step is in an unwind that does not exist"
        return
    if unwind.upper != after.run.completion_count:
        yield f"its unwind covers {unwind.upper} of {after.run.completion_count} completed steps"
    states = {ordinal: after.steps[step_id].compensation for ordinal, step_id in after.completions.items()}
    failed = [ordinal for ordinal, state in states.items() if state is CompensationState.FAILED]
    turn = failed[0] if failed else unwind.cursor
    for ordinal, state in states.items():
        if ordinal > turn and state not in PASSED:
            yield f"completion {ordinal} is behind the unwind and {state}"
        if ordinal < turn and state is not CompensationState.NONE:
            yield f"completion {ordinal} is before its turn and {state}"
        if ordinal == turn and state not in UNDER_WAY | {CompensationState.FAILED}:
            yield f"completion {ordinal} is at its turn and {state}"


@rule
def what_the_server_settles_is_not_undone(model: Model, before: RunLook | None, after: RunLook) -> Iterator[str]:
    """RFD 2, "a settled timer is never part of an unwind", and the same of waits, children and emissions."""
    for step_id in after.completions.values():
        if after.steps[step_id].kind.is_server_owned:
            yield f"the {after.steps[step_id].kind} {step_id} is among the completions"
    if any(
        after.steps[at.step_id].kind.is_server_owned and at.generation == after.steps[at.step_id].generation
        for at in after.attempts
    ):
        yield "a step that the server settles has an attempt"


@rule
def no_wait_meets_an_invocation(model: Model, before: RunLook | None, after: RunLook) -> Iterator[str]:
    """RFD 2, "An addressed event is broadcast to nothing": a wait for its reserved name runs into its timeout."""
    for ordinal in range(1 if before is None else len(before.history) + 1, len(after.history) + 1):
        entry = after.history[ordinal]
        if entry.kind == HistoryKind.STEP_COMPLETED and entry.data.get("name") == INVOCATION_EVENT:
            yield f"a wait of it was settled by the invocation {entry.data.get('event')}"


FORWARD = frozenset(
    (
        HistoryKind.PASS_AUTHORIZED,
        HistoryKind.STEP_DECLARED,
        HistoryKind.ATTEMPT_AUTHORIZED,
        HistoryKind.RETRY_SCHEDULED,
        HistoryKind.RETRY_AUTHORIZED,
        HistoryKind.RUN_COMPLETED,
        HistoryKind.RUN_FAILED,
        HistoryKind.DEFINITION_BLOCKED,
    )
)


@rule
def nothing_goes_forward_past_the_deadline(model: Model, before: RunLook | None, after: RunLook) -> Iterator[str]:
    """RFD 2, "At or after the deadline, it first materializes TimedOut stop intent"."""
    deadline_ms, stop = after.run.deadline_at_ms, after.run.stop
    if deadline_ms is None:
        if stop is not None and stop.reason is StopReason.TIMED_OUT:
            yield "it timed out and has no deadline"
        return
    if stop is not None and stop.reason is StopReason.TIMED_OUT and stop.at_ms < deadline_ms:
        yield f"it timed out {deadline_ms - stop.at_ms} ms before its deadline"
    for ordinal in range(1 if before is None else len(before.history) + 1, len(after.history) + 1):
        entry = after.history[ordinal]
        is_forward = HistoryKind(entry.kind) in FORWARD and "direction" not in entry.data
        if is_forward and entry.at_ms >= deadline_ms:
            yield f"{entry.kind} {entry.at_ms - deadline_ms} ms after its deadline"


@rule
def the_recovery_says_what_happened(model: Model, before: RunLook | None, after: RunLook) -> Iterator[str]:
    """FILLED-IN 5."""
    run = after.run
    if run.phase is not Phase.TERMINAL:
        return
    undone = [after.steps[step_id].compensation for step_id in after.completions.values()]
    if run.execution is Execution.COMPLETED:
        expected = Recovery.EXECUTION_SUCCEEDED
    elif not undone:
        expected = Recovery.EMPTY_UNWIND
    elif CompensationState.FAILED in undone:
        expected = Recovery.COMPENSATION_FAILED
    elif CompensationState.SKIPPED in undone:
        expected = Recovery.PARTIALLY_COMPENSATED
    else:
        expected = Recovery.COMPENSATED
    if run.recovery is not expected:
        yield f"its recovery is {run.recovery}, and {undone} make it {expected}"


@rule
def a_value_was_said_by_somebody(model: Model, before: RunLook | None, after: RunLook) -> Iterator[str]:
    """A step's value is what its worker reported or an operator supplied, byte for byte; nothing forged is ever accepted."""
    if after.output == FORGED:
        yield "it completed with a forged output"
    for at, attempt in after.attempts.items():
        if attempt.failure is not None and attempt.failure.category == "forged":
            yield f"{at} failed with a forged failure"
    for step_id, value in after.values.items():
        if after.steps[step_id].kind.is_server_owned:
            continue
        if value == FORGED or value not in model.told.get((after.run.run_id, step_id), ()):
            yield f"step {step_id} has the value {value!r}, which nobody said"


@rule
def losses_are_counted(model: Model, before: RunLook | None, after: RunLook) -> Iterator[str]:
    """FILLED-IN 2: what is repeatable is delivered again, and Unknown when it is lost three times in a row."""
    for at, attempt in after.attempts.items():
        if attempt.loss_count and not may_repeat(after, at):
            yield f"{at} was delivered again and may not be repeated"
        if attempt.loss_count >= REPEATABLE_LOSSES_MAX:
            yield f"{at} was delivered again after {attempt.loss_count} losses"


@rule
def retries_are_counted(model: Model, before: RunLook | None, after: RunLook) -> Iterator[str]:
    """RFD 1, "Transient failures consume the step's forward retry policy"; the recorded policy governs the step."""
    for step in after.steps.values():
        if step.failure_count > step.retry.attempts:
            yield f"step {step.step_id} failed {step.failure_count} times of {step.retry.attempts}"
        was = None if before is None else before.steps.get(step.step_id)
        at = AttemptAt(Direction.FORWARD, step.step_id, step.generation)
        attempt = after.attempts.get(at)
        is_new = step.state is StepState.FAILED and was is not None and was.state is not StepState.FAILED
        was_reported = attempt is not None and attempt.failure == step.failure
        is_too_soon = step.failure_count < step.retry.attempts and after.run.stop is None
        if is_new and was_reported and is_too_soon and (after.run.run_id, at) in model.retryable:
            yield f"step {step.step_id} failed for good after {step.failure_count} failures of {step.retry.attempts}"


@rule
def nothing_starts_before_its_time(model: Model, before: RunLook | None, after: RunLook) -> Iterator[str]:
    """RFD 2, "create a distinct delayed successor with the next application-attempt ordinal and deterministic backoff".

    Work is leased when it has vested; when it is authorized, the clock may have been set back.
    """
    for at, attempt in after.attempts.items():
        earlier = None if before is None else before.attempts.get(at)
        if attempt.state is AttemptState.AUTHORIZED and (earlier is None or earlier.state is AttemptState.QUEUED):
            early_ms = attempt.vesting_ms - max(attempt.authorized_at_ms or 0, model.latest_ms)
            if early_ms > 0:
                yield f"{at} was authorized {early_ms} ms before its time"


@rule
def a_blocked_run_does_not_go_on(model: Model, before: RunLook | None, after: RunLook) -> Iterator[str]:
    """RFD 2, "While blocked, the engine authorizes no new forward callback work"."""
    if before is None or before.run.phase is not Phase.DEFINITION_BLOCKED or after.run.phase is not before.run.phase:
        return
    for at, attempt in after.attempts.items():
        earlier = before.attempts.get(at)
        if attempt.state is AttemptState.AUTHORIZED and earlier is not None and earlier.state is AttemptState.QUEUED:
            yield f"{at} was authorized while the run is blocked"


def _leads(table: Mapping[Any, Mapping[Any, Any]], begin: Any, end: Any) -> bool:
    """Whether a state can be reached from another, in any number of edges of one commit."""
    reached, edge = {begin}, [begin]
    while edge:
        state = edge.pop()
        for following in table[state].values():
            if following not in reached:
                reached.add(following)
                edge.append(following)
    return end in reached


def stop_stands(look: RunLook | None, outcome: StopOutcome) -> bool:
    """Whether what a cancellation was answered is so: it is in force, or came when there was nothing left to stop.

    RFD 2, "A different stop outcome cannot replace the one that committed": then the answer is a refusal.
    """
    if look is None or (look.run.stop is not None and look.run.stop.reason is not StopReason.CANCELLED):
        return False
    if outcome in (StopOutcome.ACCEPTED, StopOutcome.REPEATED):
        return look.run.stop is not None
    return look.run.phase in (Phase.COMPENSATING, Phase.TERMINAL)
