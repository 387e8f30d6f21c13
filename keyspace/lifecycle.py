"""The state machines of RFD 1 and RFD 2 as tables: run, step, attempt, compensation and work item.

Each table says, for a state and an event, the state that follows. `advance` is the only function that applies an edge;
what is not in a table raises IllegalEdge and changes nothing. keyspace/README.md draws these tables; which edge an event
takes, in every situation that there is, `decisions.py` says.

A run's phase and its two outcomes are separate (RFD 2, "A run moves through"): `Execution` says how forward work ended,
`Recovery` what became of the unwind, and the latter is set only when the run terminalizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

from keyspace.errors import IllegalEdge

__all__ = [
    "ATTEMPT",
    "COMPENSATION",
    "ITEM",
    "MACHINES",
    "RUN",
    "STEP",
    "AttemptEvent",
    "AttemptState",
    "CompensationEvent",
    "CompensationState",
    "DeadlineSource",
    "Execution",
    "ItemEvent",
    "ItemState",
    "Phase",
    "Recovery",
    "RunEvent",
    "StepEvent",
    "StepKind",
    "StepState",
    "StopReason",
    "advance",
]


class Phase(StrEnum):
    """Where a run stands."""

    RUNNING = "running"
    DEFINITION_BLOCKED = "definition_blocked"
    CANCELLING = "cancelling"
    COMPENSATING = "compensating"
    TERMINAL = "terminal"


class Execution(StrEnum):
    """How forward execution ended."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"


class Recovery(StrEnum):
    """What became of the unwind."""

    EXECUTION_SUCCEEDED = "not_required:execution_succeeded"
    EMPTY_UNWIND = "not_required:empty_unwind"
    COMPENSATED = "compensated"
    PARTIALLY_COMPENSATED = "partially_compensated"
    COMPENSATION_FAILED = "compensation_failed"


class StopReason(StrEnum):
    """Why a run was told to stop; the first committed reason decides how its execution ends."""

    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"

    @property
    def execution(self) -> Execution:
        """How execution ends for this reason."""
        return Execution(self.value)


class DeadlineSource(StrEnum):
    """Who gave a run its deadline: its function's declaration, the deployment's default, its invocation, or its parent's own."""

    FUNCTION = "function"
    DEPLOYMENT = "deployment"
    INVOKE = "invoke"
    PARENT = "parent"


class RunEvent(StrEnum):
    """What can happen to a run."""

    PROGRESSED = "progressed"
    BLOCKED = "blocked"
    UNBLOCKED = "unblocked"
    COMPLETED = "completed"
    FAILED_EMPTY = "failed, empty unwind"
    FAILED_UNWINDING = "failed, unwind begins"
    STOPPED_SETTLING = "stopped, tokens left"
    STOPPED_EMPTY = "stopped, empty unwind"
    STOPPED_UNWINDING = "stopped, unwind begins"
    SETTLED_EMPTY = "last token settled, empty unwind"
    SETTLED_UNWINDING = "last token settled, unwind begins"
    UNWIND_ADVANCED = "unwind advanced"
    UNWIND_ENDED = "unwind ended"


class StepKind(StrEnum):
    """What a step is: a callback that workers run, or something that the server itself settles."""

    CALLBACK = "callback"
    TIMER = "timer"
    CHILD = "child"
    EMISSION = "emission"
    WAIT = "wait"

    @property
    def is_server_owned(self) -> bool:
        """Whether the server settles the step; such a step has no attempts and is never part of an unwind."""
        return self is not StepKind.CALLBACK


class StepState(StrEnum):
    """Where a step stands."""

    PENDING = "pending"
    RUNNING = "running"
    BACKING_OFF = "backing_off"
    WAITING = "waiting"
    UNKNOWN = "unknown"
    COMPLETED = "completed"
    FAILED = "failed"
    OBSOLETE = "obsolete"


class StepEvent(StrEnum):
    """What can happen to a step. Timers, waits, children and emissions wait on the server, not on an attempt."""

    AUTHORIZED = "start authorized"
    NOT_STARTED = "proven not started"
    REDELIVERED = "repeatable work lost"
    WITHDRAWN = "redelivery withdrawn"
    LOST = "effect lost"
    SUCCEEDED = "success accepted"
    RETRIED = "retry scheduled"
    RETRY_AUTHORIZED = "retry authorized by an operator"
    EXHAUSTED = "failed for good"
    REMOVED = "no longer in the code"
    FENCED = "fenced by a stop"
    DECLARED = "declared anew"
    OWNED = "declared as owned by the server"


class AttemptState(StrEnum):
    """Where one physical attempt stands."""

    QUEUED = "queued"
    AUTHORIZED = "authorized"
    UNKNOWN = "unknown"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    FENCED = "fenced"
    RETRY_AUTHORIZED = "retry_authorized"


class AttemptEvent(StrEnum):
    """What can happen to an attempt."""

    AUTHORIZED = "start authorized"
    NOT_STARTED = "proven not started"
    REDELIVERED = "repeatable work lost"
    WITHDRAWN = "redelivery withdrawn"
    LOST = "effect lost"
    SUCCEEDED = "success accepted"
    FAILED = "failure accepted"
    FENCED = "fenced"
    RETRY_AUTHORIZED = "retry authorized by an operator"


class CompensationState(StrEnum):
    """What became of a completed step's place in the unwind."""

    NONE = "none"
    PENDING = "pending"
    RUNNING = "running"
    BACKING_OFF = "backing_off"
    UNKNOWN = "unknown"
    DONE = "done"
    SKIPPED = "skipped"
    FAILED = "failed"


class CompensationEvent(StrEnum):
    """What can happen to a step in the unwind."""

    REACHED = "reached by the unwind"
    AUTHORIZED = "start authorized"
    NOT_STARTED = "proven not started"
    REDELIVERED = "repeatable work lost"
    WITHDRAWN = "redelivery withdrawn"
    LOST = "effect lost"
    SUCCEEDED = "success accepted"
    RETRIED = "retry scheduled"
    RETRY_AUTHORIZED = "retry authorized by an operator"
    EXHAUSTED = "failed for good"
    TARGET_NOT_FOUND = "no compensator"


class ItemState(StrEnum):
    """Where a work item stands; a consumed one is gone."""

    READY = "ready"
    LEASED = "leased"
    AUTHORIZED = "authorized"
    GONE = "gone"


class ItemEvent(StrEnum):
    """What can happen to a work item."""

    LEASED = "leased"
    LEASED_AUTHORIZED = "leased and authorized"
    AUTHORIZED = "start authorized"
    RENEWED = "renewed"
    RETURNED = "returned or expired before authorization"
    REDELIVERED = "repeatable work lost"
    NOT_STARTED = "proven not started"
    DEFERRED = "deferred"
    CONSUMED = "consumed"


State = TypeVar("State", bound=StrEnum)
Event = TypeVar("Event", bound=StrEnum)
Table = Mapping[State, Mapping[Event, State]]

RUN: dict[Phase, dict[RunEvent, Phase]] = {
    Phase.RUNNING: {
        RunEvent.PROGRESSED: Phase.RUNNING,
        RunEvent.BLOCKED: Phase.DEFINITION_BLOCKED,
        RunEvent.COMPLETED: Phase.TERMINAL,
        RunEvent.FAILED_EMPTY: Phase.TERMINAL,
        RunEvent.FAILED_UNWINDING: Phase.COMPENSATING,
        RunEvent.STOPPED_SETTLING: Phase.CANCELLING,
        RunEvent.STOPPED_EMPTY: Phase.TERMINAL,
        RunEvent.STOPPED_UNWINDING: Phase.COMPENSATING,
    },
    Phase.DEFINITION_BLOCKED: {
        RunEvent.BLOCKED: Phase.DEFINITION_BLOCKED,
        RunEvent.UNBLOCKED: Phase.RUNNING,
        RunEvent.STOPPED_SETTLING: Phase.CANCELLING,
        RunEvent.STOPPED_EMPTY: Phase.TERMINAL,
        RunEvent.STOPPED_UNWINDING: Phase.COMPENSATING,
    },
    Phase.CANCELLING: {
        RunEvent.PROGRESSED: Phase.CANCELLING,
        RunEvent.SETTLED_EMPTY: Phase.TERMINAL,
        RunEvent.SETTLED_UNWINDING: Phase.COMPENSATING,
    },
    Phase.COMPENSATING: {
        RunEvent.UNWIND_ADVANCED: Phase.COMPENSATING,
        RunEvent.UNWIND_ENDED: Phase.TERMINAL,
    },
    Phase.TERMINAL: {},
}

STEP: dict[StepState, dict[StepEvent, StepState]] = {
    StepState.PENDING: {
        StepEvent.OWNED: StepState.WAITING,
        StepEvent.AUTHORIZED: StepState.RUNNING,
        StepEvent.WITHDRAWN: StepState.RUNNING,
        StepEvent.REMOVED: StepState.OBSOLETE,
        StepEvent.FENCED: StepState.OBSOLETE,
    },
    StepState.RUNNING: {
        StepEvent.NOT_STARTED: StepState.PENDING,
        StepEvent.REDELIVERED: StepState.PENDING,
        StepEvent.LOST: StepState.UNKNOWN,
        StepEvent.SUCCEEDED: StepState.COMPLETED,
        StepEvent.RETRIED: StepState.BACKING_OFF,
        StepEvent.EXHAUSTED: StepState.FAILED,
    },
    StepState.BACKING_OFF: {
        StepEvent.AUTHORIZED: StepState.RUNNING,
        StepEvent.REMOVED: StepState.OBSOLETE,
        StepEvent.FENCED: StepState.OBSOLETE,
    },
    StepState.WAITING: {
        StepEvent.SUCCEEDED: StepState.COMPLETED,
        StepEvent.EXHAUSTED: StepState.FAILED,
        StepEvent.FENCED: StepState.OBSOLETE,
    },
    StepState.UNKNOWN: {
        StepEvent.NOT_STARTED: StepState.PENDING,
        StepEvent.SUCCEEDED: StepState.COMPLETED,
        StepEvent.RETRIED: StepState.BACKING_OFF,
        StepEvent.RETRY_AUTHORIZED: StepState.PENDING,
        StepEvent.EXHAUSTED: StepState.FAILED,
    },
    StepState.COMPLETED: {},
    StepState.FAILED: {StepEvent.REMOVED: StepState.OBSOLETE},
    StepState.OBSOLETE: {
        StepEvent.DECLARED: StepState.PENDING,
        StepEvent.OWNED: StepState.WAITING,
    },
}

ATTEMPT: dict[AttemptState, dict[AttemptEvent, AttemptState]] = {
    AttemptState.QUEUED: {
        AttemptEvent.AUTHORIZED: AttemptState.AUTHORIZED,
        AttemptEvent.WITHDRAWN: AttemptState.AUTHORIZED,
        AttemptEvent.FENCED: AttemptState.FENCED,
    },
    AttemptState.AUTHORIZED: {
        AttemptEvent.NOT_STARTED: AttemptState.QUEUED,
        AttemptEvent.REDELIVERED: AttemptState.QUEUED,
        AttemptEvent.LOST: AttemptState.UNKNOWN,
        AttemptEvent.SUCCEEDED: AttemptState.SUCCEEDED,
        AttemptEvent.FAILED: AttemptState.FAILED,
    },
    AttemptState.UNKNOWN: {
        AttemptEvent.NOT_STARTED: AttemptState.QUEUED,
        AttemptEvent.SUCCEEDED: AttemptState.SUCCEEDED,
        AttemptEvent.FAILED: AttemptState.FAILED,
        AttemptEvent.RETRY_AUTHORIZED: AttemptState.RETRY_AUTHORIZED,
    },
    AttemptState.SUCCEEDED: {},
    AttemptState.FAILED: {},
    AttemptState.FENCED: {},
    AttemptState.RETRY_AUTHORIZED: {},
}

COMPENSATION: dict[CompensationState, dict[CompensationEvent, CompensationState]] = {
    CompensationState.NONE: {CompensationEvent.REACHED: CompensationState.PENDING},
    CompensationState.PENDING: {
        CompensationEvent.AUTHORIZED: CompensationState.RUNNING,
        CompensationEvent.WITHDRAWN: CompensationState.RUNNING,
        CompensationEvent.TARGET_NOT_FOUND: CompensationState.SKIPPED,
    },
    CompensationState.RUNNING: {
        CompensationEvent.NOT_STARTED: CompensationState.PENDING,
        CompensationEvent.REDELIVERED: CompensationState.PENDING,
        CompensationEvent.LOST: CompensationState.UNKNOWN,
        CompensationEvent.SUCCEEDED: CompensationState.DONE,
        CompensationEvent.RETRIED: CompensationState.BACKING_OFF,
        CompensationEvent.EXHAUSTED: CompensationState.FAILED,
    },
    CompensationState.BACKING_OFF: {
        CompensationEvent.AUTHORIZED: CompensationState.RUNNING,
        CompensationEvent.TARGET_NOT_FOUND: CompensationState.SKIPPED,
    },
    CompensationState.UNKNOWN: {
        CompensationEvent.NOT_STARTED: CompensationState.PENDING,
        CompensationEvent.SUCCEEDED: CompensationState.DONE,
        CompensationEvent.RETRIED: CompensationState.BACKING_OFF,
        CompensationEvent.RETRY_AUTHORIZED: CompensationState.PENDING,
        CompensationEvent.EXHAUSTED: CompensationState.FAILED,
    },
    CompensationState.DONE: {},
    CompensationState.SKIPPED: {},
    CompensationState.FAILED: {},
}

ITEM: dict[ItemState, dict[ItemEvent, ItemState]] = {
    ItemState.READY: {
        ItemEvent.LEASED: ItemState.LEASED,
        ItemEvent.LEASED_AUTHORIZED: ItemState.AUTHORIZED,
        ItemEvent.DEFERRED: ItemState.READY,
        ItemEvent.CONSUMED: ItemState.GONE,
    },
    ItemState.LEASED: {
        ItemEvent.AUTHORIZED: ItemState.AUTHORIZED,
        ItemEvent.RENEWED: ItemState.LEASED,
        ItemEvent.RETURNED: ItemState.READY,
        ItemEvent.CONSUMED: ItemState.GONE,
    },
    ItemState.AUTHORIZED: {
        ItemEvent.RENEWED: ItemState.AUTHORIZED,
        ItemEvent.REDELIVERED: ItemState.READY,
        ItemEvent.NOT_STARTED: ItemState.READY,
        ItemEvent.CONSUMED: ItemState.GONE,
    },
    ItemState.GONE: {},
}

MACHINES: dict[str, Mapping[StrEnum, Mapping[StrEnum, StrEnum]]] = {
    "run": RUN,  # type: ignore[dict-item]
    "step": STEP,  # type: ignore[dict-item]
    "attempt": ATTEMPT,  # type: ignore[dict-item]
    "compensation": COMPENSATION,  # type: ignore[dict-item]
    "work item": ITEM,  # type: ignore[dict-item]
}
"""Every machine by name, for the generated pictures and the total test."""


def advance(table: Mapping[State, Mapping[Event, State]], state: State, event: Event) -> State:
    """Return the state that follows `state` on `event`.

    Raises:
        IllegalEdge: the table has no such edge.
    """
    try:
        return table[state][event]
    except KeyError:
        raise IllegalEdge(type(state).__name__, state.value, event.value) from None
