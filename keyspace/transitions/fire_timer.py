"""Fire a timer: record the wake as its step's result and let the run go on, in the transaction that consumes the work."""

from __future__ import annotations

from enum import StrEnum

from keyspace.errors import CorruptRecord
from keyspace.layout import ITEM, RUN, STEP
from keyspace.lifecycle import Phase, StepKind, StepState
from keyspace.limits import PAYLOAD_BYTES_MAX
from keyspace.queue import items
from keyspace.records.run import RunRecord, StepRecord
from keyspace.records.work import ItemRecord, WorkKind
from keyspace.transitions.declaration import TIMER_OUTCOME
from keyspace.transitions.settle_server_step import continue_after, settle_server_step
from keyspace.transitions.work import engine_now_ms, save_run
from keyspace.tx import Tx

__all__ = ["Fired", "decide", "fire_timer"]


class Fired(StrEnum):
    """What became of a Timer item."""

    FIRED = "fired"
    DEFERRED = "deferred"
    GONE = "gone"


def decide(run: RunRecord | None, step: StepRecord | None, item: ItemRecord | None, now_ms: int) -> Fired:
    """Decide what a delivery of a timer's work comes to; one that was consumed before is benign.

    Raises:
        CorruptRecord: the work outlived what it waits for.
    """
    if item is None or item.kind is not WorkKind.TIMER:
        return Fired.GONE
    if (
        run is None
        or step is None
        or step.server is None
        or step.state is not StepState.WAITING
        or run.phase is not Phase.RUNNING
        or not run.item_id == step.server.item_id == item.item_id
        or step.server.due_at_ms is None
    ):
        raise CorruptRecord(record="ItemRecord", reason="a timer without its waiting step", item=item.item_id)
    return Fired.FIRED if now_ms >= step.server.due_at_ms else Fired.DEFERRED


async def fire_timer(tx: Tx, workspace: str, item: ItemRecord) -> Fired:
    """Settle a due timer (RFD 2, "Firing the item records the accepted wake"); one that is not due stays for its anchor.

    Args:
        tx: the open transaction.
        workspace: whose run it is.
        item: the work as it was found; read again here.

    Reads: item, run, step.  Writes: step, its value, its place in the replay, discovery item, run, history; the Timer item
        goes.
    Conflicts: only with this run's other transitions.  Budget: under 8 kB.
    Idempotent: the item that is gone is the receipt; the following discovery's id derives from it.
    """
    assert item.step_id is not None
    found, run, step = await tx.load(
        ITEM.at(workspace, item.item_id),
        RUN.at(workspace, item.target),
        STEP.at(workspace, item.target, item.step_id),
    )
    now_ms = tx.now_ms if run is None else engine_now_ms(tx, run)
    fired = decide(run, step, found, now_ms)
    if fired is Fired.GONE or run is None or step is None or step.server is None or found is None:
        return fired
    if fired is Fired.DEFERRED:
        if found.vesting_ms != step.server.due_at_ms:
            items.defer(tx, workspace, found, step.server.due_at_ms or now_ms)
        return fired
    assert step.kind is StepKind.TIMER
    items.consume(tx, workspace, found)
    told = {"due_at_ms": step.server.due_at_ms}
    after = settle_server_step(
        tx, workspace, run, step, TIMER_OUTCOME, now_ms, value_bytes_max=PAYLOAD_BYTES_MAX, told=told
    )
    save_run(tx, workspace, run, continue_after(tx, workspace, after, found.item_id, now_ms))
    return fired
