"""Settle the step that invoked a child from the outcome the child has ended with."""

from __future__ import annotations

from enum import StrEnum

from keyspace.errors import CorruptRecord
from keyspace.layout import ITEM, OUTPUT, RUN, STEP
from keyspace.lifecycle import DeadlineSource, Execution, Phase, StepState
from keyspace.limits import FAILURE_MESSAGE_BYTES_MAX
from keyspace.queue import items
from keyspace.records.run import FailureRecord, RunRecord, StepRecord
from keyspace.records.work import Direction, ItemRecord, WorkKind
from keyspace.transitions.deadline import meet_deadline
from keyspace.transitions.settle_server_step import continue_after, settle_server_step
from keyspace.transitions.stop_run import settlement_gate
from keyspace.transitions.work import engine_now_ms, save_run
from keyspace.tx import Tx

__all__ = ["Settled", "child_failure", "decide", "settle_child"]

CHILD_FAILED = "child.failed"
CHILD_CANCELLED = "child.cancelled"
CHILD_TIMED_OUT = "child.timed_out"
TIMEOUT = "sdk.timeout"


class Settled(StrEnum):
    """What became of a ChildSettle item."""

    SETTLED = "settled"
    GONE = "gone"


def child_failure(child: RunRecord) -> FailureRecord | None:
    """Return the failure that a child's end is to its parent; None when it completed (FILLED-IN 3).

    A child that had no time at all timed out by the invocation itself: RFD 2, "A zero invoke timeout is due at acceptance".
    """
    if child.execution is Execution.COMPLETED:
        return None
    if child.execution is Execution.FAILED:
        told = child.failure
        if told is None:
            return FailureRecord(category=CHILD_FAILED, message="The invoked function failed.")
        message = f"{told.category}: {told.message}"
        if len(message.encode()) > FAILURE_MESSAGE_BYTES_MAX:
            message = told.message
        return FailureRecord(category=CHILD_FAILED, message=message, details=told.details)
    if child.execution is Execution.CANCELLED:
        return FailureRecord(category=CHILD_CANCELLED, message="The invoked run was cancelled.")
    if child.deadline_source is DeadlineSource.INVOKE and child.deadline_at_ms == child.created_at_ms:
        return FailureRecord(category=TIMEOUT, message="The invocation's timeout was zero.")
    return FailureRecord(category=CHILD_TIMED_OUT, message="The invoked run did not end before its deadline.")


def decide(run: RunRecord | None, step: StepRecord | None, child: RunRecord | None, item: ItemRecord | None) -> Settled:
    """Decide what a delivery of a child's settlement comes to; one that was consumed before is benign.

    Raises:
        CorruptRecord: the work outlived what it settles, or came before the child's end.
    """
    if item is None or item.kind is not WorkKind.CHILD_SETTLE:
        return Settled.GONE
    if (
        run is None
        or step is None
        or child is None
        or step.server is None
        or step.state is not StepState.WAITING
        or not run.child_id == step.server.child_id == child.run_id
        or child.phase is not Phase.TERMINAL
    ):
        raise CorruptRecord(record="ItemRecord", reason="a settlement without its step or child", item=item.item_id)
    return Settled.SETTLED


async def settle_child(tx: Tx, workspace: str, item: ItemRecord, *, value_bytes_max: int) -> Settled:
    """Record a child's terminal outcome on its parent's step (RFD 2, "A child's terminal transition schedules").

    The parent then goes on as after any other server-owned step, or, when it has been stopped, its settlement gate runs: an
    unsettled child counts as a settlement token (FILLED-IN 11). At the parent's deadline or after it the TimedOut stop and
    this settlement are one commit.

    Args:
        tx: the open transaction.
        workspace: whose run it is.
        item: the work as it was found; read again here.
        value_bytes_max: the largest value a record takes.

    Reads: item, the parent's run and step, the child's run, its output by snapshot; a stop on its way to a parent that ends
        with it.  Writes: step, its value, its place in the replay, run, history, discovery item or what the settlement gate
        writes; the ChildSettle item goes.
    Conflicts: only with the parent's other transitions: the child has ended.  Budget: the output plus 24 kB.
    Idempotent: the item that is gone is the receipt; the following discovery's id derives from it.
    """
    assert item.step_id is not None
    found, run, step = await tx.load(
        ITEM.at(workspace, item.item_id),
        RUN.at(workspace, item.target),
        STEP.at(workspace, item.target, item.step_id),
    )
    child_id = None if run is None else run.child_id
    child = None if child_id is None else await tx.load(RUN.at(workspace, child_id))
    if decide(run, step, child, found) is Settled.GONE:
        return Settled.GONE
    assert run is not None and step is not None and child is not None and found is not None and child_id is not None
    now_ms = engine_now_ms(tx, run)
    outcome: bytes | FailureRecord | None = child_failure(child)
    if outcome is None:
        # What a run ended with never changes, so the child's record is conflict enough.
        outcome = await tx.load_blob(OUTPUT, workspace, child_id, size_bytes=child.output_bytes or 0, snapshot=True)
    run = await meet_deadline(tx, workspace, run, Direction.FORWARD)
    items.consume(tx, workspace, found)
    told = {"child": child_id}
    after = settle_server_step(tx, workspace, run, step, outcome, now_ms, value_bytes_max=value_bytes_max, told=told)
    if after.phase is Phase.CANCELLING:
        after = await settlement_gate(tx, workspace, after, now_ms)
    else:
        after = continue_after(tx, workspace, after, found.item_id, now_ms)
    save_run(tx, workspace, run, after)
    return Settled.SETTLED
