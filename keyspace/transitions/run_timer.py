"""A run's timer: the RunTimeout item that wakes the engine at the run's deadline.

The deadline on the run is authoritative; the item is only the durable wake-up (RFD 2, "When a deadline exists"). It exists
exactly while the run is Running or DefinitionBlocked, under the id that the run names: an item that its run does not name
decides nothing.
"""

from __future__ import annotations

import msgspec

from keyspace.layout import ITEM
from keyspace.lifecycle import DeadlineSource, Phase
from keyspace.limits import PRIORITY_DEFAULT
from keyspace.queue import items
from keyspace.records.run import RunRecord
from keyspace.records.work import ItemRecord, LaneKind, WorkKind, server_lane
from keyspace.tx import Tx, digest_of

__all__ = ["TIMED_PHASES", "consume_run_timer", "start_run_timer"]

TIMED_PHASES = frozenset((Phase.RUNNING, Phase.DEFINITION_BLOCKED))
"""The phases that a deadline can end; compensation has its own policies."""


def start_run_timer(
    tx: Tx, workspace: str, run: RunRecord, timeout_ms: int, source: DeadlineSource, now_ms: int
) -> RunRecord:
    """Return `run` with its absolute deadline, and enqueue the item that vests at that instant."""
    deadline_at_ms = now_ms + timeout_ms
    item = ItemRecord(
        item_id=tx.ids.mint(),
        kind=WorkKind.RUN_TIMEOUT,
        lane=server_lane(LaneKind.TIME).stored,
        target=run.run_id,
        step_id=None,
        priority=PRIORITY_DEFAULT,
        vesting_ms=deadline_at_ms,
        ordinal=1,
        generation=run.generation,
        operation_id=digest_of("ryusen.run_timeout", workspace, run.run_id),
        repeatable=True,
        enqueued_at_ms=now_ms,
    )
    items.enqueue(tx, workspace, item)
    return msgspec.structs.replace(
        run, deadline_at_ms=deadline_at_ms, deadline_source=source, timeout_item=item.item_id
    )


async def consume_run_timer(tx: Tx, workspace: str, run: RunRecord) -> RunRecord:
    """Return `run` without its timer, the item removed: forward execution ends or stops in this transaction.

    A run without a deadline costs nothing here.
    """
    if run.timeout_item is None:
        return run
    item = await tx.load(ITEM.at(workspace, run.timeout_item))
    if item is not None:
        items.consume(tx, workspace, item)
    return msgspec.structs.replace(run, timeout_item=None)
