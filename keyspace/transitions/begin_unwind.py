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
    Phase,
    Recovery,
    RunEvent,
    advance,
)
from keyspace.limits import PRIORITY_FIRST
from keyspace.queue import items
from keyspace.records.run import AttemptRecord, RunRecord, UnwindRecord
from keyspace.records.work import Direction, ItemRecord, WorkKind, application_lane
from keyspace.transitions.work import operation_id
from keyspace.tx import Tx

__all__ = ["begin_unwind", "enqueue_compensation"]

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
    operation = operation_id(workspace, run.run_id, step_id, Direction.COMPENSATION)
    attempt = AttemptRecord(
        step_id=step_id,
        generation=FIRST_GENERATION,
        ordinal=1,
        operation_id=operation,
        state=AttemptState.QUEUED,
        item_id=tx.ids.mint(),
        queued_at_ms=now_ms,
        vesting_ms=now_ms,
    )
    item = ItemRecord(
        item_id=attempt.item_id,
        kind=WorkKind.COMPENSATION,
        lane=application_lane(run.application, run.function, Direction.COMPENSATION).stored,
        target=run.run_id,
        step_id=step_id,
        priority=PRIORITY_FIRST,
        vesting_ms=now_ms,
        ordinal=1,
        generation=FIRST_GENERATION,
        operation_id=operation,
        repeatable=False,
        enqueued_at_ms=now_ms,
    )
    state = advance(COMPENSATION_TABLE, step.compensation, CompensationEvent.REACHED)
    tx.put(STEP.at(workspace, run.run_id, step_id), msgspec.structs.replace(step, compensation=state))
    tx.put(ATTEMPT.at(workspace, run.run_id, Direction.COMPENSATION, step_id, FIRST_GENERATION), attempt)
    items.enqueue(tx, workspace, item)
    return item


def is_unwinding(run: RunRecord) -> bool:
    """Whether the run is being undone."""
    return run.phase is Phase.COMPENSATING and run.unwind is not None
