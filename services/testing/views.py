"""What a test sees of runs: plain values, read in one transaction each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ryusen.app import App
from ryusen.protocol.values import decode_value
from ryusen.typed import decode_typed

from keyspace.layout import ATTEMPT, HISTORY, ITEM, OUTPUT, RUN, STEP, STEP_VALUE, WAIT
from keyspace.limits import ATTEMPTS_MAX, STEPS_MAX
from keyspace.records.blocker import BlockerRecord
from keyspace.records.run import AttemptRecord, FailureRecord, RunRecord, StepRecord
from keyspace.records.work import Direction, WorkKind
from keyspace.transitions.blockers import blocker_key
from keyspace.tx import Tx
from keyspace.waiting import waiting_for
from services.runtime.spans import shown_ms
from services.testing.engine import WORKSPACE
from services.testing.words import sentence

__all__ = ["AttemptView", "BlockerView", "FailureView", "HistoryEntry", "RunView", "StepView", "read_run"]

ROWS_MAX = STEPS_MAX * ATTEMPTS_MAX
"""Rows of one kind that a run may have; a bound for the store's sake, never met."""


@dataclass(frozen=True)
class FailureView:
    """A structured failure. `details` is decoded."""

    category: str
    message: str
    details: Any = None


@dataclass(frozen=True)
class AttemptView:
    """One physical attempt of a step.

    Attributes:
        ordinal: from 1.
        state: queued, authorized, unknown, succeeded, failed or fenced.
        failure: why it failed.
        operation_id: what `current_attempt()` told the callback.
        due_at_ms: from when it could start, Unix epoch milliseconds.
        started_at_ms: when it was authorized.
        lost_at_ms: when its worker was found lost.
        settled_at_ms: when its outcome was accepted.
    """

    ordinal: int
    state: str
    failure: FailureView | None
    operation_id: str
    due_at_ms: int
    started_at_ms: int | None
    lost_at_ms: int | None
    settled_at_ms: int | None


@dataclass(frozen=True)
class StepView:
    """One step.

    Attributes:
        id: its id.
        kind: callback, or what the service settles itself: timer, emission, child.
        state: pending, running, backing_off, waiting, unknown, completed, failed or obsolete.
        value: its recorded result as plain values; None before it completed.
        failure: why it failed for good.
        attempts: all of them, by ordinal.
        compensation: what became of it in the unwind.
        due_at_ms: the instant that a step of the service's waits for, Unix epoch milliseconds.
        event: the id of the event that it emitted.
        child: the id of the run that an invocation started; None of any other step.
    """

    id: str
    kind: str
    state: str
    value: Any
    failure: FailureView | None
    attempts: tuple[AttemptView, ...]
    compensation: str
    due_at_ms: int | None = None
    event: str | None = None
    child: str | None = None


@dataclass(frozen=True)
class HistoryEntry:
    """One entry of a run's history. `text` tells it as a sentence."""

    at_ms: int
    kind: str
    data: Mapping[str, Any]
    text: str


@dataclass(frozen=True)
class BlockerView:
    """Why a run cannot go on: one step id is used twice in a pass.

    Attributes:
        step: the id.
        first: where it is called first, as file:line; empty when that is not known.
        again: where it is called again.
        count: how many passes found it so.
    """

    step: str
    first: str
    again: str
    count: int


@dataclass(frozen=True)
class RunView:
    """One run as it is when it is read; read it again to see what became of it.

    Attributes:
        id: its id.
        application: the application.
        function: the function.
        event: the id of the event that started it; empty where a run did.
        status: running, completed, failed, ...
        recovery: what became of the unwind; None before the run has ended.
        output: what the function returned, of its annotated type; None before it completed.
        failure: why the run failed.
        steps: by id, in the order of their declaration.
        history: every entry.
        waiting: for whom or what a run that has not ended waits; empty otherwise.
        blocker: the step id that is used twice, while that keeps the run from going on.
        deadline_at_ms: when forward execution must have ended, Unix epoch milliseconds; None is never.
        parent: the id of the run that invoked it; None where an event started it.
    """

    id: str
    application: str
    function: str
    event: str
    status: str
    recovery: str | None
    output: Any
    failure: FailureView | None
    steps: Mapping[str, StepView]
    history: tuple[HistoryEntry, ...]
    waiting: str
    blocker: BlockerView | None = None
    deadline_at_ms: int | None = None
    parent: str | None = None

    @property
    def kinds(self) -> list[str]:
        """The kinds of the history's entries."""
        return [entry.kind for entry in self.history]

    @property
    def story(self) -> str:
        """The history in words, one line an entry, with the virtual time since the run began."""
        begun_ms = self.history[0].at_ms
        head = f"{self.function}, run {self.id}: {self.status}"
        lines = [f"  {shown_ms(entry.at_ms - begun_ms):>14}  {entry.text}" for entry in self.history]
        return "\n".join([head, *lines, *([f"  now: {self.waiting}"] if self.waiting else [])])


async def read_run(tx: Tx, run_id: str, apps: Mapping[str, App]) -> RunView:
    """Return a run.

    Args:
        tx: an open transaction.
        run_id: a run that exists.
        apps: the applications by name, for the type of the output.
    """
    run = await tx.load(RUN.at(WORKSPACE, run_id), snapshot=True)
    assert run is not None, "a run id that was read from the store"
    item = None
    if run.item_id is not None:
        item = await tx.load(ITEM.at(WORKSPACE, run.item_id), snapshot=True)
    blocker = await tx.load(blocker_key(WORKSPACE, run_id), snapshot=True)
    wait = None
    if item is not None and item.kind is WorkKind.TIMER and item.step_id is not None:
        wait = await tx.load(WAIT.at(WORKSPACE, run_id, item.step_id), snapshot=True)
    waiting = waiting_for(run, item, tx.now_ms, blocker=blocker, wait=wait)
    history = await _history(tx, run_id)
    return RunView(
        id=run_id,
        application=run.application,
        function=run.function,
        event=run.event_id,
        status=run.status,
        recovery=None if run.recovery is None else run.recovery.value,
        output=await _output(tx, run, apps),
        failure=_failure(run.failure),
        steps=await _steps(tx, run_id, history),
        history=history,
        waiting="" if waiting is None else waiting.sentence,
        blocker=_blocker(blocker),
        deadline_at_ms=run.deadline_at_ms,
        parent=None if run.parent is None else run.parent.run_id,
    )


async def _history(tx: Tx, run_id: str) -> tuple[HistoryEntry, ...]:
    rows = await tx.page(HISTORY.span(WORKSPACE, run_id), limit=ROWS_MAX, snapshot=True)
    records = [HISTORY.codec.decode(value) for _, value in rows]
    return tuple(
        HistoryEntry(record.at_ms, record.kind, record.data, sentence(record.kind, record.data, record.at_ms))
        for record in records
    )


async def _output(tx: Tx, run: RunRecord, apps: Mapping[str, App]) -> Any:
    if run.output_bytes is None:
        return None
    data = await tx.load_blob(OUTPUT, WORKSPACE, run.run_id, size_bytes=run.output_bytes, snapshot=True)
    app = apps.get(run.application)
    function = None if app is None else app.functions.get(run.function)
    return decode_value(data) if function is None else decode_typed(data, function.output_type)


async def _steps(tx: Tx, run_id: str, history: tuple[HistoryEntry, ...]) -> dict[str, StepView]:
    rows = await tx.page(STEP.span(WORKSPACE, run_id), limit=STEPS_MAX, snapshot=True)
    records = {record.step_id: record for record in (STEP.codec.decode(value) for _, value in rows)}
    attempts: dict[str, list[AttemptRecord]] = {}
    span = ATTEMPT.span(WORKSPACE, run_id, Direction.FORWARD)
    for _, value in await tx.page(span, limit=ROWS_MAX, snapshot=True):
        attempt = ATTEMPT.codec.decode(value)
        attempts.setdefault(attempt.step_id, []).append(attempt)
    declared = dict.fromkeys(str(entry.data["step"]) for entry in history if entry.kind == "step-declared")
    return {step_id: await _step(tx, run_id, records[step_id], attempts.get(step_id, [])) for step_id in declared}


async def _step(tx: Tx, run_id: str, step: StepRecord, attempts: list[AttemptRecord]) -> StepView:
    value = None
    if step.value_bytes is not None:
        value = decode_value(
            await tx.load_blob(STEP_VALUE, WORKSPACE, run_id, step.step_id, size_bytes=step.value_bytes, snapshot=True)
        )
    return StepView(
        id=step.step_id,
        kind=step.kind.value,
        state=step.state.value,
        value=value,
        failure=_failure(step.failure),
        attempts=tuple(_attempt(attempt) for attempt in attempts),
        compensation=step.compensation.value,
        due_at_ms=None if step.server is None else step.server.due_at_ms,
        event=None if step.server is None else step.server.event_id,
        child=None if step.server is None else step.server.child_id,
    )


def _attempt(record: AttemptRecord) -> AttemptView:
    return AttemptView(
        ordinal=record.ordinal,
        state=record.state.value,
        failure=_failure(record.failure),
        operation_id=record.operation_id,
        due_at_ms=record.vesting_ms,
        started_at_ms=record.authorized_at_ms,
        lost_at_ms=record.lost_at_ms,
        settled_at_ms=record.settled_at_ms,
    )


def _blocker(record: BlockerRecord | None) -> BlockerView | None:
    if record is None:
        return None
    return BlockerView(record.step_id, record.first.location, record.duplicate.location, record.count)


def _failure(record: FailureRecord | None) -> FailureView | None:
    if record is None:
        return None
    details = None if record.details is None else decode_value(record.details.encode())
    return FailureView(record.category, record.message, details)
