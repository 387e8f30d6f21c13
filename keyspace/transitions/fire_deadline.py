"""Fire a run's timer: the deadline has come and nothing else has met it yet."""

from __future__ import annotations

from enum import StrEnum

from keyspace.layout import ITEM, RUN
from keyspace.queue import items
from keyspace.records.run import RunRecord
from keyspace.records.work import ItemRecord
from keyspace.transitions.deadline import is_past_deadline, stop_for_deadline
from keyspace.transitions.work import engine_now_ms
from keyspace.tx import Tx

__all__ = ["Fired", "decide", "fire_deadline"]


class Fired(StrEnum):
    """What a timer came to."""

    STOPPED = "stopped"
    NOT_DUE = "not_due"
    OBSOLETE = "obsolete"
    GONE = "gone"


def decide(run: RunRecord | None, item: ItemRecord | None, now_ms: int) -> Fired:
    """Decide what the firing of a RunTimeout item comes to: only the item that its run names may stop it."""
    if item is None:
        return Fired.GONE
    if run is None or run.timeout_item != item.item_id:
        return Fired.OBSOLETE
    return Fired.STOPPED if is_past_deadline(run, now_ms) else Fired.NOT_DUE


async def fire_deadline(tx: Tx, workspace: str, run_id: str, item_id: str) -> Fired:
    """Stop a run at its deadline (RFD 2, "The timeout handler and every authoritative forward result").

    Args:
        tx: the open transaction.
        workspace: whose run it is.
        run_id: the run.
        item_id: its RunTimeout item.

    Reads: run, item; what a stop reads.  Writes: what a stop writes; the item goes. One that is not due is deferred to the
        deadline; one that nothing needs any more goes.
    Conflicts: only with this run's other transitions.  Budget: under 24 kB, whatever the run has done.
    Idempotent: the stop consumes the item, so a redelivered timer finds nothing.
    """
    run, item = await tx.load(RUN.at(workspace, run_id), ITEM.at(workspace, item_id))
    now_ms = tx.now_ms if run is None else engine_now_ms(tx, run)
    outcome = decide(run, item, now_ms)
    if item is None or outcome is Fired.GONE:
        return outcome
    if run is None or outcome is Fired.OBSOLETE:
        items.consume(tx, workspace, item)
    elif outcome is Fired.STOPPED:
        await stop_for_deadline(tx, workspace, run, now_ms)
    elif run.deadline_at_ms is not None and item.vesting_ms != run.deadline_at_ms:
        items.defer(tx, workspace, item, run.deadline_at_ms)
    return outcome
