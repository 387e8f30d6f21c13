"""Records of runs: the run, its steps, their attempts and its history."""

from __future__ import annotations

from typing import Any

from keyspace.lifecycle import (
    AttemptState,
    CompensationState,
    DeadlineSource,
    Execution,
    Phase,
    Recovery,
    StepKind,
    StepState,
    StopReason,
)
from keyspace.records.codec import Record, RecordCodec
from keyspace.records.work import Direction

__all__ = [
    "ATTEMPT",
    "HISTORY",
    "RESOLUTION",
    "RUN",
    "STALE",
    "STEP",
    "AttemptRecord",
    "FailureRecord",
    "HistoryRecord",
    "ParentRecord",
    "ResolutionRecord",
    "RetryRecord",
    "RunRecord",
    "ServerStepRecord",
    "StaleResultRecord",
    "StepRecord",
    "StopRecord",
    "UnwindRecord",
]


class FailureRecord(Record, frozen=True, kw_only=True, array_like=True):
    """A structured failure. `details` is portable JSON text or nothing."""

    category: str
    message: str
    details: str | None = None


class RetryRecord(Record, frozen=True, kw_only=True, array_like=True):
    """The retry policy that was recorded when the declaration was accepted; it governs the step for good."""

    attempts: int
    initial_ms: int
    coefficient: float
    cap_ms: int


class UnwindRecord(Record, frozen=True, kw_only=True, array_like=True):
    """The unwind: completion ordinals 1 to `upper` in reverse; `cursor` is the one being undone (0: none left)."""

    upper: int
    cursor: int
    executed_count: int = 0
    skipped_count: int = 0


class StopRecord(Record, frozen=True, kw_only=True, array_like=True):
    """A committed stop intent: it forbids new forward work and never changes."""

    reason: StopReason
    at_ms: int
    by: str


class ParentRecord(Record, frozen=True, kw_only=True, array_like=True):
    """The invocation a child run comes from; `depth` is 1 for the child of a run that has no parent."""

    run_id: str
    step_id: str
    depth: int


class RunRecord(Record, frozen=True, kw_only=True, array_like=True):
    """One run. Input, output, steps, attempts and history have keys of their own.

    `item_id` is the outstanding work item; `settled_item` and `settled_answer` are the receipt of the last answer that was
    accepted. `updated_at_ms` is the run's last recorded instant: engine time never goes below it. `settled_count` counts the
    completed and failed steps. `timeout_item` is the RunTimeout item that vests at `deadline_at_ms`, while nothing has ended
    or stopped forward execution. `child_id` is the child run that its outstanding step waits for; a run with a `parent` has an
    input of its own and no event. `rediscovery` is the last operator's request to look again at a blocked definition.
    `failed_count` and `failed_bytes` are those of its failed steps: their number, and what it takes to make them Obsolete.
    """

    run_id: str
    application: str
    function: str
    event_id: str
    event_name: str
    binding: str
    manifest_generation: int
    routing_generation: int
    created_at_ms: int
    updated_at_ms: int
    input_bytes: int
    phase: Phase = Phase.RUNNING
    generation: int = 1
    history_count: int = 0
    step_count: int = 0
    completion_count: int = 0
    replay_bytes: int = 0
    item_id: str | None = None
    step_id: str | None = None
    settled_item: str | None = None
    settled_answer: str | None = None
    unknown_count: int = 0
    execution: Execution | None = None
    recovery: Recovery | None = None
    failure: FailureRecord | None = None
    output_bytes: int | None = None
    terminal_at_ms: int | None = None
    unwind: UnwindRecord | None = None
    settled_count: int = 0
    stop: StopRecord | None = None
    deadline_at_ms: int | None = None
    deadline_source: DeadlineSource | None = None
    timeout_item: str | None = None
    parent: ParentRecord | None = None
    child_id: str | None = None
    rediscovery: str | None = None
    failed_count: int = 0
    failed_bytes: int = 0

    @property
    def status(self) -> str:
        """What the status index says: the phase, or how execution ended once terminal."""
        if self.phase is Phase.TERMINAL and self.execution is not None:
            return self.execution.value
        return self.phase.value


class ServerStepRecord(Record, frozen=True, kw_only=True, array_like=True):
    """What is recorded of a step that the server settles, in place of attempts.

    `terms` is the digest by which a repeated declaration is told from another one. `due_at_ms` is the durable anchor (Unix
    epoch milliseconds), `item_id` the work that waits for it; that item is gone when the step is settled or fenced.
    `child_id` is the run that an invocation created. `event_id` is the event
    that the step emitted.
    """

    terms: str
    due_at_ms: int | None = None
    item_id: str | None = None
    child_id: str | None = None
    event_id: str | None = None


class StepRecord(Record, frozen=True, kw_only=True, array_like=True):
    """One logical step. Its accepted value has keys of its own. `generation` fences physical attempts.

    `ordinal` is that of its newest attempt; 0 while there was none, because the server settles steps of some kinds itself.
    `repeatable` is the class of its forward attempts, `undo_repeatable` that of its compensator's (FILLED-IN 2).
    """

    step_id: str
    name: str
    kind: StepKind
    state: StepState
    generation: int
    ordinal: int
    operation_id: str
    retry: RetryRecord
    timeout_ms: int | None
    compensable: bool
    location: str
    declared_at_ms: int
    declared_by: str
    first_ordinal: int = 1
    failure_count: int = 0
    settled_at_ms: int | None = None
    completion: int | None = None
    value_bytes: int | None = None
    failure: FailureRecord | None = None
    compensation: CompensationState = CompensationState.NONE
    undo_generation: int = 0
    undo_failure_count: int = 0
    undo_retry: RetryRecord | None = None
    undo_timeout_ms: int | None = None
    server: ServerStepRecord | None = None
    repeatable: bool = False
    undo_repeatable: bool = False

    def generation_of(self, direction: Direction) -> int:
        """The generation of the present attempt in a direction."""
        return self.generation if direction is Direction.FORWARD else self.undo_generation

    def timeout_of(self, direction: Direction) -> int | None:
        """The attempt timeout in a direction, in milliseconds."""
        return self.timeout_ms if direction is Direction.FORWARD else self.undo_timeout_ms

    @property
    def is_in_replay(self) -> bool:
        """Whether passes see an outcome of it: also one that failed and became Obsolete when the function ended."""
        return self.state in (StepState.COMPLETED, StepState.FAILED) or self.failure is not None

    def is_repeatable(self, direction: Direction) -> bool:
        """Whether an attempt in a direction may be delivered again after it was lost."""
        return self.repeatable if direction is Direction.FORWARD else self.undo_repeatable


class AttemptRecord(Record, frozen=True, kw_only=True, array_like=True):
    """One physical attempt. While authorized or unknown its `token` is the settlement token.

    `loss_count` counts the deliveries that had begun and were lost, each answered by delivering it again: from the first of
    them on nobody knows any more whether its effect exists.
    """

    step_id: str
    generation: int
    ordinal: int
    operation_id: str
    state: AttemptState
    item_id: str
    queued_at_ms: int
    vesting_ms: int
    token: str | None = None
    session: str | None = None
    instance: str | None = None
    release: str | None = None
    authorized_at_ms: int | None = None
    lost_at_ms: int | None = None
    settled_at_ms: int | None = None
    result_digest: str | None = None
    failure: FailureRecord | None = None
    stale_count: int = 0
    loss_count: int = 0


class ResolutionRecord(Record, frozen=True, kw_only=True, array_like=True):
    """An operator's command under its idempotency key, and the response that its first execution committed."""

    fingerprint: str
    command: str
    at_ms: int
    by: str
    run_phase: Phase
    attempt_state: AttemptState
    following_generation: int | None = None


class StaleResultRecord(Record, frozen=True, kw_only=True, array_like=True):
    """A result that lost: kept as a diagnostic, never acted upon."""

    received_at_ms: int
    token: str
    outcome: str
    digest: str
    value_bytes: int
    failure: FailureRecord | None = None


class HistoryRecord(Record, frozen=True, kw_only=True, array_like=True):
    """One accepted transition of a run, in commit order."""

    at_ms: int
    kind: str
    data: dict[str, Any]


RUN = RecordCodec(RunRecord)
STEP = RecordCodec(StepRecord)
ATTEMPT = RecordCodec(AttemptRecord)
STALE = RecordCodec(StaleResultRecord)
HISTORY = RecordCodec(HistoryRecord)
RESOLUTION = RecordCodec(ResolutionRecord)
