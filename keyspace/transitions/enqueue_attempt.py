"""Enqueue a physical attempt: its record and the work item that delivers it. Declarations and retries share it."""

from __future__ import annotations

from keyspace.layout import ATTEMPT
from keyspace.lifecycle import AttemptState
from keyspace.limits import PRIORITY_FIRST
from keyspace.queue import items
from keyspace.records.run import AttemptRecord, RunRecord, StepRecord
from keyspace.records.work import Direction, ItemRecord, WorkKind, application_lane
from keyspace.tx import Tx

__all__ = ["attempt_item", "enqueue_attempt"]


def attempt_item(
    run: RunRecord,
    step: StepRecord,
    attempt: AttemptRecord,
    direction: Direction,
    now_ms: int,
    vesting_ms: int,
    *,
    priority: int = PRIORITY_FIRST,
) -> ItemRecord:
    """Return the work item that delivers an attempt of `step` in a direction, in the class that its declaration recorded."""
    return ItemRecord(
        item_id=attempt.item_id,
        kind=WorkKind.CALLBACK if direction is Direction.FORWARD else WorkKind.COMPENSATION,
        lane=application_lane(run.application, run.function, direction).stored,
        target=run.run_id,
        step_id=attempt.step_id,
        priority=priority,
        vesting_ms=vesting_ms,
        ordinal=attempt.ordinal,
        generation=attempt.generation,
        operation_id=attempt.operation_id,
        repeatable=step.is_repeatable(direction),
        enqueued_at_ms=now_ms,
    )


def enqueue_attempt(
    tx: Tx,
    workspace: str,
    run: RunRecord,
    step: StepRecord,
    now_ms: int,
    vesting_ms: int,
    *,
    priority: int = PRIORITY_FIRST,
) -> ItemRecord:
    """Write the attempt of the step's present generation and enqueue its work."""
    attempt = AttemptRecord(
        step_id=step.step_id,
        generation=step.generation,
        ordinal=step.ordinal,
        operation_id=step.operation_id,
        state=AttemptState.QUEUED,
        item_id=tx.ids.mint(),
        queued_at_ms=now_ms,
        vesting_ms=vesting_ms,
    )
    tx.put(ATTEMPT.at(workspace, run.run_id, Direction.FORWARD, step.step_id, step.generation), attempt)
    item = attempt_item(run, step, attempt, Direction.FORWARD, now_ms, vesting_ms, priority=priority)
    items.enqueue(tx, workspace, item)
    return item
