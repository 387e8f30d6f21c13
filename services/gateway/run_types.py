"""What the API answers of runs: what becomes of one, why it waits, how it failed, and its history."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from services.gateway.blocker_types import Blocker
from services.gateway.operator_types import Stop

__all__ = [
    "Deadline",
    "Failure",
    "HistoryEntry",
    "HistoryPage",
    "OptionalRaw",
    "Parent",
    "Run",
    "RunSummary",
    "Unwind",
    "Waiting",
]

if TYPE_CHECKING:
    OptionalRaw: TypeAlias = msgspec.Raw | None
else:
    # The decoder keeps raw text only for a member declared as nothing but raw; an absent one stays None all the same.
    OptionalRaw = msgspec.Raw


class _Answer(msgspec.Struct, frozen=True, kw_only=True):
    pass


class Failure(_Answer, frozen=True, kw_only=True):
    """A structured failure; `details` is what the failing code attached, if anything."""

    category: str
    message: str
    details: OptionalRaw = None


class Waiting(_Answer, frozen=True, kw_only=True):
    """What a run that has not ended waits for, since when, and until when at most."""

    word: str
    sentence: str
    since_ms: int
    until_ms: int | None = None


class Deadline(_Answer, frozen=True, kw_only=True):
    """When a run's forward execution must have ended, who said so, and how much of that is left.

    `source` is function (its declaration), deployment (its default), invoke (the invocation that made it) or parent (what
    its parent had left). `left_ms` is null once forward execution has ended or was stopped: the deadline counts no more.
    """

    at_ms: int
    source: str
    left_ms: int | None


class Unwind(_Answer, frozen=True, kw_only=True):
    """How far the undoing of completed steps has come, in completion ordinals; `cursor` 0 means that none is left."""

    upper: int
    cursor: int
    executed_count: int
    skipped_count: int


class Parent(_Answer, frozen=True, kw_only=True):
    """The run and step that invoked a run; `depth` is 1 where that run was not invoked itself."""

    run: str
    step: str
    depth: int


class RunSummary(_Answer, frozen=True, kw_only=True):
    """A run in a list. `status` is the phase, or how execution ended once the run is terminal.

    A run comes from an event or from a `parent`, never from both. `child` is the run that it waits for.
    """

    run: str
    application: str
    function: str
    event: str | None
    event_name: str | None
    parent: Parent | None
    child: str | None
    status: str
    phase: str
    execution: str | None
    recovery: str | None
    created_at_ms: int
    updated_at_ms: int
    terminal_at_ms: int | None
    step_count: int
    unknown_count: int
    failure: Failure | None
    waiting: Waiting | None
    deadline: Deadline | None = None


class Run(RunSummary, frozen=True, kw_only=True):
    """A run with its input and, once it has completed, its output."""

    binding: str | None
    manifest_generation: int
    routing_generation: int
    generation: int
    history_count: int
    completion_count: int
    stop: Stop | None
    unwind: Unwind | None
    blocker: Blocker | None
    input_bytes: int
    input: msgspec.Raw
    output_bytes: int | None = None
    output: OptionalRaw = None


class HistoryEntry(_Answer, frozen=True, kw_only=True):
    """One accepted transition of a run; ordinals count from 1 without a gap."""

    ordinal: int
    at_ms: int
    kind: str
    data: dict[str, Any]


class HistoryPage(_Answer, frozen=True, kw_only=True):
    """A page of history. `next_after` asks for the next one; `is_complete` says that nothing will ever follow."""

    items: list[HistoryEntry]
    next_after: int | None
    is_complete: bool
