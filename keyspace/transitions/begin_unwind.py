"""End forward execution other than by success: terminalize an empty unwind, or begin undoing what completed.

The unwind is not copied: it is an upper bound on the run's completion index and a cursor that walks down. A Compensating
run is never written without its next work (RFD 2, "The snapshot transaction never creates a Compensating run").
"""

from __future__ import annotations

import msgspec

from keyspace import history
from keyspace.errors import CorruptRecord
from keyspace.history import HistoryKind
from keyspace.layout import ATTEMPT, COMPLETION, STEP
from keyspace.lifecycle import COMPENSATION as COMPENSATION_TABLE
from keyspace.lifecycle import RUN as RUN_TABLE
from keyspace.lifecycle import (
    AttemptState,
    CompensationEvent,
    Execution,
    Recovery,
    RunEvent,
    advance,
)
from keyspace.limits import PRIORITY_FIRST
from keyspace.queue import items
from keyspace.records.run import AttemptRecord, RunRecord, StepRecord, UnwindRecord
from keyspace.records.work import Direction, ItemRecord
from keyspace.transitions.child_work import announce_end
from keyspace.transitions.enqueue_attempt import attempt_item
from keyspace.transitions.work import operation_id
from keyspace.tx import Tx

__all__ = [
    "advance_unwind",
    "begin_unwind",
    "end_unwind",
    "enqueue_compensation",
    "enqueue_undo",
    "recovery_outcome",
]

FIRST_GENERATION = 1


async def begin_unwind(
    tx: Tx, workspace: str, run: RunRecord, execution: Execution, now_ms: int, *, empty: RunEvent, unwinding: RunEvent
) -> RunRecord:
    """Return `run` Terminal with an empty unwind, or Compensating with its first compensation item; the caller saves it.

    Args:
        tx: the open transaction.
        workspace: whose run it is.
        run: as it stands, its history of this transition appended.
        execution: how forward execution ended.
        now_ms: engine time.
        empty: the edge to take when no step completed.
        unwinding: the edge to take otherwise.
    """
    if run.completion_count == 0:
        entry: dict[str, str | int] = {"reason": "EmptyUnwind", "execution": execution.value}
        after = history.append(tx, workspace, run, now_ms, (HistoryKind.COMPENSATION_NOT_REQUIRED, entry))
        await announce_end(tx, workspace, run, now_ms)
        return msgspec.structs.replace(
            after,
            phase=advance(RUN_TABLE, run.phase, empty),
            execution=execution,
            recovery=Recovery.EMPTY_UNWIND,
            terminal_at_ms=now_ms,
            item_id=None,
            step_id=None,
        )
    upper = run.completion_count
    item = await enqueue_compensation(tx, workspace, run, upper, now_ms)
    entry = {"upper": upper, "execution": execution.value}
    after = history.append(tx, workspace, run, now_ms, (HistoryKind.UNWIND_STARTED, entry))
    return msgspec.structs.replace(
        after,
        phase=advance(RUN_TABLE, run.phase, unwinding),
        execution=execution,
        unwind=UnwindRecord(upper=upper, cursor=upper),
        item_id=item.item_id,
        step_id=item.step_id,
    )


async def enqueue_compensation(tx: Tx, workspace: str, run: RunRecord, completion: int, now_ms: int) -> ItemRecord:
    """Reach the step at a completion ordinal: write its compensation attempt and enqueue its work, ready now.

    Compensation has its own lane, so that it is never behind forward work (RFD 2, "Compensation work uses a separate").
    """
    step_id = await tx.load(COMPLETION.at(workspace, run.run_id, completion))
    if step_id is None:
        raise CorruptRecord(
            record="COMPLETION", reason="no step at this completion", run=run.run_id, completion=completion
        )
    step = await tx.load(STEP.at(workspace, run.run_id, step_id))
    if step is None:
        raise CorruptRecord(record="StepRecord", reason="a completed step is missing", run=run.run_id, step=step_id)
    state = advance(COMPENSATION_TABLE, step.compensation, CompensationEvent.REACHED)
    reached = msgspec.structs.replace(step, compensation=state, undo_generation=FIRST_GENERATION)
    return enqueue_undo(tx, workspace, run, reached, ordinal=1, now_ms=now_ms, vesting_ms=now_ms)


def enqueue_undo(
    tx: Tx,
    workspace: str,
    run: RunRecord,
    step: StepRecord,
    *,
    ordinal: int,
    now_ms: int,
    vesting_ms: int,
    priority: int = PRIORITY_FIRST,
) -> ItemRecord:
    """Write a step in the unwind with the attempt of its present undo generation, and enqueue that attempt's work."""
    operation = operation_id(workspace, run.run_id, step.step_id, Direction.COMPENSATION)
    attempt = AttemptRecord(
        step_id=step.step_id,
        generation=step.undo_generation,
        ordinal=ordinal,
        operation_id=operation,
        state=AttemptState.QUEUED,
        item_id=tx.ids.mint(),
        queued_at_ms=now_ms,
        vesting_ms=vesting_ms,
    )
    tx.put(STEP.at(workspace, run.run_id, step.step_id), step)
    tx.put(ATTEMPT.at(workspace, run.run_id, Direction.COMPENSATION, step.step_id, step.undo_generation), attempt)
    item = attempt_item(run, step, attempt, Direction.COMPENSATION, now_ms, vesting_ms, priority=priority)
    items.enqueue(tx, workspace, item)
    return item


async def advance_unwind(tx: Tx, workspace: str, run: RunRecord, unwind: UnwindRecord, now_ms: int) -> RunRecord:
    """Return `run` with its next compensation item, or Terminal when the unwind has visited every target.

    Args:
        tx: the open transaction.
        workspace: whose run it is.
        run: with the history of the settled target appended.
        unwind: its cursor and counts moved past that target.
        now_ms: engine time.
    """
    after = msgspec.structs.replace(run, unwind=unwind)
    if unwind.cursor > 0:
        item = await enqueue_compensation(tx, workspace, after, unwind.cursor, now_ms)
        phase = advance(RUN_TABLE, run.phase, RunEvent.UNWIND_ADVANCED)
        return msgspec.structs.replace(after, phase=phase, item_id=item.item_id, step_id=item.step_id)
    return await end_unwind(tx, workspace, after, recovery_outcome(unwind), now_ms)


def recovery_outcome(unwind: UnwindRecord) -> Recovery:
    """Return the outcome after the last target: any skip makes it partial, even when every target was skipped.

    Source: FILLED-IN 5.
    """
    return Recovery.PARTIALLY_COMPENSATED if unwind.skipped_count else Recovery.COMPENSATED


async def end_unwind(tx: Tx, workspace: str, run: RunRecord, recovery: Recovery, now_ms: int) -> RunRecord:
    """Return `run` Terminal with its recovery outcome."""
    assert run.unwind is not None
    entry = {
        "recovery": recovery.value,
        "executed": run.unwind.executed_count,
        "skipped": run.unwind.skipped_count,
    }
    after = history.append(tx, workspace, run, now_ms, (HistoryKind.UNWIND_ENDED, entry))
    await announce_end(tx, workspace, run, now_ms)
    return msgspec.structs.replace(
        after,
        phase=advance(RUN_TABLE, run.phase, RunEvent.UNWIND_ENDED),
        recovery=recovery,
        terminal_at_ms=now_ms,
        item_id=None,
        step_id=None,
    )
