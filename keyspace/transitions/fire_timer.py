"""Fire a timer: record the wake as its step's result and let the run go on, in the transaction that consumes the work."""

from __future__ import annotations

from enum import StrEnum

from keyspace.errors import CorruptRecord
from keyspace.layout import ITEM, RUN, STEP
from keyspace.lifecycle import Phase, StepKind, StepState
from keyspace.limits import PAYLOAD_BYTES_MAX
from keyspace.queue import items
from keyspace.records.run import FailureRecord, RunRecord, StepRecord
from keyspace.records.work import ItemRecord, WorkKind
from keyspace.transitions.deadline import is_past_deadline, stop_for_deadline
from keyspace.transitions.declaration import TIMER_OUTCOME
from keyspace.transitions.declare_wait import WAIT_TIMEOUT
from keyspace.transitions.forget_wait import forget_wait
from keyspace.transitions.settle_server_step import continue_after, settle_server_step
from keyspace.transitions.work import engine_now_ms, save_run
from keyspace.tx import Tx

__all__ = ["Fired", "decide", "fire_timer"]


class Fired(StrEnum):
    """What became of a Timer item."""

    FIRED = "fired"
    STOPPED = "stopped"
    NOT_DUE = "not_due"
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
    if now_ms < step.server.due_at_ms:
        return Fired.NOT_DUE
    return Fired.STOPPED if is_past_deadline(run, now_ms) else Fired.FIRED


async def fire_timer(tx: Tx, workspace: str, item: ItemRecord) -> Fired:
    """Settle a due timer (RFD 2, "Firing the item records the accepted wake"); one that is not due stays for its anchor.

    Args:
        tx: the open transaction.
        workspace: whose run it is.
        item: the work as it was found; read again here.

    A wait whose time is over settles as the `sdk.timeout` failure, its registration gone (RFD 2, "A wait that reaches its
    timeout records").

    Once the run's deadline has elapsed the TimedOut stop is committed instead, which fences the timer: whatever order work
    is dispatched in, such a run has no wake (RFD 2, "The run's own deadline is authoritative over dispatch order").

    Reads: item, run, step; a wait's registration; past the deadline what a stop reads.  Writes: step, its value, its place in the replay,
        discovery item, run, history; the Timer item goes. Past the deadline: what a stop writes.
    Conflicts: only with this run's other transitions.  Budget: under 8 kB; 24 kB past the deadline.
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
    if fired is Fired.NOT_DUE:
        if found.vesting_ms != step.server.due_at_ms:
            items.defer(tx, workspace, found, step.server.due_at_ms or now_ms)
        return fired
    if fired is Fired.STOPPED:
        await stop_for_deadline(tx, workspace, run, now_ms)
        return fired
    items.consume(tx, workspace, found)
    outcome: bytes | FailureRecord = TIMER_OUTCOME
    if step.kind is StepKind.WAIT:
        outcome = WAIT_TIMEOUT
        await forget_wait(tx, workspace, run.run_id, step.step_id)
    told = {"due_at_ms": step.server.due_at_ms}
    after = settle_server_step(tx, workspace, run, step, outcome, now_ms, value_bytes_max=PAYLOAD_BYTES_MAX, told=told)
    save_run(tx, workspace, run, continue_after(tx, workspace, after, found.item_id, now_ms))
    return fired
