"""The work between a parent and its child: settling the parent's step once the child has ended, and passing a stop down.

Each item belongs to the run it goes to, has an id derived from the child, and moves one level: no transaction grows with the
tree (RFD 2, "A child's terminal transition schedules" and "Stop intent propagates one level per transaction").
"""

from __future__ import annotations

from keyspace.layout import ITEM
from keyspace.limits import PRIORITY_FIRST
from keyspace.queue import items
from keyspace.records.run import RunRecord
from keyspace.records.work import ItemRecord, LaneKind, WorkKind, server_lane
from keyspace.tx import Tx, digest_of

__all__ = ["announce_end", "enqueue_stop", "settle_item_id", "stop_item_id"]


def settle_item_id(child_id: str) -> str:
    """Return the id of the work that settles the step which a child was invoked by."""
    return digest_of("ryusen.child_settle", child_id)


def stop_item_id(child_id: str) -> str:
    """Return the id of the work that passes its parent's stop to a child."""
    return digest_of("ryusen.stop_propagate", child_id)


def enqueue_stop(tx: Tx, workspace: str, child: RunRecord, now_ms: int) -> None:
    """Enqueue the intent for a child whose parent has been stopped; its reason is read from the parent when it is delivered."""
    _enqueue(tx, workspace, WorkKind.STOP_PROPAGATE, stop_item_id(child.run_id), child.run_id, None, child, now_ms)


async def announce_end(tx: Tx, workspace: str, run: RunRecord, now_ms: int) -> None:
    """Enqueue the settlement of its parent's step for a run that becomes Terminal now; does nothing for one without a parent.

    A stop that was on its way to the child goes, having nothing left to stop (FILLED-IN 10, C4).
    """
    if run.parent is None:
        return
    late = await tx.load(ITEM.at(workspace, stop_item_id(run.run_id)))
    if late is not None:
        items.consume(tx, workspace, late)
    at = (settle_item_id(run.run_id), run.parent.run_id, run.parent.step_id)
    _enqueue(tx, workspace, WorkKind.CHILD_SETTLE, *at, run, now_ms)


def _enqueue(
    tx: Tx,
    workspace: str,
    kind: WorkKind,
    item_id: str,
    target: str,
    step_id: str | None,
    child: RunRecord,
    now_ms: int,
) -> None:
    item = ItemRecord(
        item_id=item_id,
        kind=kind,
        lane=server_lane(LaneKind.SETTLE).stored,
        target=target,
        step_id=step_id,
        priority=PRIORITY_FIRST,
        vesting_ms=now_ms,
        ordinal=1,
        generation=child.generation,
        operation_id=digest_of("ryusen.child_work", workspace, kind.value, child.run_id),
        repeatable=True,
        enqueued_at_ms=now_ms,
    )
    items.enqueue(tx, workspace, item)
