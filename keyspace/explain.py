"""Replay a run's history: what the entries alone say of its phase, its steps and its outcomes (check C8)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from keyspace.history import HistoryKind
from keyspace.lifecycle import (
    CompensationState,
    DeadlineSource,
    Execution,
    Phase,
    Recovery,
    StepKind,
    StepState,
    StopReason,
)
from keyspace.records.run import HistoryRecord

__all__ = ["Story", "explain"]


@dataclass(slots=True)
class Story:
    """What a history tells.

    Attributes:
        phase: the run's phase after the last entry.
        execution: how forward execution ended, once it has.
        recovery: what became of the unwind, once the run is terminal.
        steps: each step's state.
        compensations: each unwound step's state.
        completions: the completed steps in the order of completion.
        unknown_count: attempts whose outcome is unknown.
        pass_count: discovery passes that were authorized.
        stop: why the run was told to stop, once it was.
        deadline_at_ms: when its forward execution must have ended (Unix epoch milliseconds); None is never.
        deadline_source: who gave it that deadline.
        blocked: the step id that blocks the run's definition.
    """

    phase: Phase = Phase.RUNNING
    execution: Execution | None = None
    recovery: Recovery | None = None
    steps: dict[str, StepState] = field(default_factory=dict)
    compensations: dict[str, CompensationState] = field(default_factory=dict)
    completions: list[str] = field(default_factory=list)
    unknown_count: int = 0
    pass_count: int = 0
    stop: StopReason | None = None
    deadline_at_ms: int | None = None
    deadline_source: DeadlineSource | None = None
    blocked: str | None = None


def explain(entries: Iterable[HistoryRecord]) -> Story:
    """Return what `entries`, in order, tell.

    Raises:
        ValueError: an entry of a kind this release does not know.
    """
    story = Story()
    for entry in entries:
        kind = HistoryKind(entry.kind)
        if kind in _COMPENSATION_STATES and (kind not in _STEP_STATES or "direction" in entry.data):
            _tell_compensation(story, kind, entry.data)
        elif kind in _STEP_STATES:
            _tell_step(story, kind, entry.data)
        else:
            _tell_run(story, kind, entry.data)
    return story


_STEP_STATES: dict[HistoryKind, StepState] = {
    HistoryKind.STEP_DECLARED: StepState.PENDING,
    HistoryKind.ATTEMPT_AUTHORIZED: StepState.RUNNING,
    HistoryKind.ATTEMPT_NOT_STARTED: StepState.PENDING,
    HistoryKind.ATTEMPT_REDELIVERED: StepState.PENDING,
    HistoryKind.ATTEMPT_UNKNOWN: StepState.UNKNOWN,
    HistoryKind.RETRY_SCHEDULED: StepState.BACKING_OFF,
    HistoryKind.RETRY_AUTHORIZED: StepState.PENDING,
    HistoryKind.STEP_COMPLETED: StepState.COMPLETED,
    HistoryKind.STEP_FAILED: StepState.FAILED,
    HistoryKind.STEP_OBSOLETE: StepState.OBSOLETE,
    HistoryKind.STEP_FENCED: StepState.OBSOLETE,
}

_COMPENSATION_STATES: dict[HistoryKind, CompensationState] = {
    HistoryKind.ATTEMPT_AUTHORIZED: CompensationState.RUNNING,
    HistoryKind.ATTEMPT_NOT_STARTED: CompensationState.PENDING,
    HistoryKind.ATTEMPT_REDELIVERED: CompensationState.PENDING,
    HistoryKind.ATTEMPT_UNKNOWN: CompensationState.UNKNOWN,
    HistoryKind.RETRY_SCHEDULED: CompensationState.BACKING_OFF,
    HistoryKind.RETRY_AUTHORIZED: CompensationState.PENDING,
    HistoryKind.COMPENSATION_SKIPPED: CompensationState.SKIPPED,
    HistoryKind.COMPENSATION_SUCCEEDED: CompensationState.DONE,
    HistoryKind.COMPENSATION_FAILED: CompensationState.FAILED,
}


def _tell_step(story: Story, kind: HistoryKind, data: dict[str, Any]) -> None:
    step_id = str(data["step"])
    was = story.steps.get(step_id)
    story.steps[step_id] = _STEP_STATES[kind]
    if kind is HistoryKind.STEP_DECLARED and StepKind(data.get("kind", StepKind.CALLBACK)).is_server_owned:
        story.steps[step_id] = StepState.WAITING
    if kind is HistoryKind.ATTEMPT_UNKNOWN:
        story.unknown_count += 1
    elif was is StepState.UNKNOWN:
        story.unknown_count -= 1
    if kind is HistoryKind.STEP_COMPLETED and "completion" in data:
        story.completions.append(step_id)


def _tell_compensation(story: Story, kind: HistoryKind, data: dict[str, Any]) -> None:
    step_id = str(data["step"])
    was = story.compensations.get(step_id)
    story.compensations[step_id] = _COMPENSATION_STATES[kind]
    if kind is HistoryKind.ATTEMPT_UNKNOWN:
        story.unknown_count += 1
    elif was is CompensationState.UNKNOWN:
        story.unknown_count -= 1
    if kind in (HistoryKind.COMPENSATION_SKIPPED, HistoryKind.COMPENSATION_SUCCEEDED):
        following = int(data["completion"]) - 1
        if following > 0:
            story.compensations[story.completions[following - 1]] = CompensationState.PENDING


def _tell_run(story: Story, kind: HistoryKind, data: dict[str, Any]) -> None:
    match kind:
        case HistoryKind.RUN_CREATED:
            story.deadline_at_ms = data.get("deadline_at_ms")
            source = data.get("deadline_source")
            story.deadline_source = None if source is None else DeadlineSource(source)
        case HistoryKind.PASS_AUTHORIZED:
            story.pass_count += 1
        case HistoryKind.RUN_COMPLETED:
            story.phase, story.execution = Phase.TERMINAL, Execution.COMPLETED
            story.recovery = Recovery.EXECUTION_SUCCEEDED
        case HistoryKind.COMPENSATION_NOT_REQUIRED:
            story.phase, story.execution = Phase.TERMINAL, Execution(data["execution"])
            story.recovery = Recovery.EMPTY_UNWIND
        case HistoryKind.UNWIND_STARTED:
            story.phase, story.execution = Phase.COMPENSATING, Execution(data["execution"])
            story.compensations[story.completions[-1]] = CompensationState.PENDING
        case HistoryKind.STOP_COMMITTED:
            story.stop = StopReason(data["reason"])
            story.blocked = None
            if story.phase in (Phase.RUNNING, Phase.DEFINITION_BLOCKED):
                story.phase = Phase.CANCELLING
        case HistoryKind.DEFINITION_BLOCKED | HistoryKind.DEFINITION_STILL_BLOCKED:
            story.phase, story.blocked = Phase.DEFINITION_BLOCKED, str(data["step"])
        case HistoryKind.DEFINITION_UNBLOCKED:
            story.phase, story.blocked = Phase.RUNNING, None
        case HistoryKind.UNWIND_ENDED:
            story.phase, story.recovery = Phase.TERMINAL, Recovery(data["recovery"])
        case _:
            pass
