"""Pass a parent's stop to its child: one level, and the intent only."""

from __future__ import annotations

from enum import StrEnum

from keyspace.errors import CorruptRecord
from keyspace.layout import ITEM, RUN
from keyspace.lifecycle import Phase, StopReason
from keyspace.queue import items
from keyspace.records.run import RunRecord
from keyspace.records.work import ItemRecord, WorkKind
from keyspace.transitions.stop_run import commit_stop
from keyspace.transitions.work import engine_now_ms, save_run
from keyspace.tx import Tx

__all__ = ["PARENT", "Propagated", "decide", "propagate_stop"]

PARENT = "parent"
"""Who history names as the one who stopped such a child."""
_STOPPABLE = frozenset((Phase.RUNNING, Phase.DEFINITION_BLOCKED))


class Propagated(StrEnum):
    """What became of a StopPropagate item."""

    STOPPED = "stopped"
    CHILD_DECIDED = "child_decided"
    GONE = "gone"


def decide(child: RunRecord | None, parent: RunRecord | None, item: ItemRecord | None) -> Propagated | StopReason:
    """Return the reason to stop the child with, or why it is not stopped: its own decision wins when it has made one.

    The reason is the parent's committed one, so that a redelivery passes on the same (RFD 2, "Stop intent propagates").

    Raises:
        CorruptRecord: the work names no child, or a parent that was not stopped.
    """
    if item is None or item.kind is not WorkKind.STOP_PROPAGATE:
        return Propagated.GONE
    if child is None or child.parent is None or parent is None or parent.stop is None:
        raise CorruptRecord(record="ItemRecord", reason="a stop to pass on without its runs", item=item.item_id)
    return parent.stop.reason if child.phase in _STOPPABLE else Propagated.CHILD_DECIDED


async def propagate_stop(tx: Tx, workspace: str, item: ItemRecord) -> Propagated:
    """Commit a parent's stop on its child, which passes it on to its own in turn.

    Args:
        tx: the open transaction.
        workspace: whose run it is.
        item: the work as it was found; read again here.

    Reads: item, child, parent; what a stop reads.  Writes: what a stop writes; the item goes.
    Conflicts: with the child's transitions and the parent's, and as a stop with those of the child's own child.
    Budget: under 26 kB, whatever the tree.
    Idempotent: the item that is gone is the receipt.
    """
    found, child = await tx.load(ITEM.at(workspace, item.item_id), RUN.at(workspace, item.target))
    at = child.parent.run_id if child is not None and child.parent is not None else None
    parent = None if at is None else await tx.load(RUN.at(workspace, at))
    outcome = decide(child, parent, found)
    if found is None or child is None or outcome is Propagated.GONE:
        return Propagated.GONE
    items.consume(tx, workspace, found)
    if not isinstance(outcome, StopReason):
        return outcome
    after = await commit_stop(tx, workspace, child, outcome, f"{PARENT}:{at}", engine_now_ms(tx, child))
    save_run(tx, workspace, child, after)
    return Propagated.STOPPED
