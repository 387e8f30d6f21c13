"""What the transitions around a blocked run share: its one blocker, the way out of it, and the pass that looks again."""

from __future__ import annotations

import msgspec

from keyspace import history
from keyspace.errors import CorruptRecord
from keyspace.history import HistoryKind
from keyspace.layout import BLOCKED, BLOCKER, ITEM
from keyspace.leaf import Key
from keyspace.lifecycle import RUN as RUN_TABLE
from keyspace.lifecycle import Phase, RunEvent, advance
from keyspace.limits import PRIORITY_DEFAULT
from keyspace.queue import items
from keyspace.records.blocker import BlockerRecord, BlockReason, probe_delay_ms
from keyspace.records.run import RunRecord
from keyspace.records.work import ItemRecord, LaneKind, WorkKind, server_lane
from keyspace.transitions.work import new_discovery_item, save_run
from keyspace.tx import Tx, digest_of

__all__ = [
    "blocked_key",
    "blocker_key",
    "clear_blocker",
    "enqueue_probe",
    "look_again",
    "unblock",
]


def blocker_key(workspace: str, run_id: str) -> Key[BlockerRecord]:
    """Return where the run's blocker stands; there is one reason a run can be blocked for."""
    return BLOCKER.at(workspace, run_id, BlockReason.DUPLICATE_STEP_ID.value)


def blocked_key(workspace: str, run: RunRecord) -> Key[None]:
    """Return the run's place among the blocked runs of its function."""
    return BLOCKED.at(workspace, run.application, run.function, run.run_id)


def enqueue_probe(tx: Tx, workspace: str, run: RunRecord, probe_count: int, now_ms: int) -> ItemRecord:
    """Enqueue the probe that follows `probe_count` of them and return its item."""
    item = ItemRecord(
        item_id=tx.ids.mint(),
        kind=WorkKind.DEFINITION_PROBE,
        lane=server_lane(LaneKind.PROBE).stored,
        target=run.run_id,
        step_id=None,
        priority=PRIORITY_DEFAULT,
        vesting_ms=now_ms + probe_delay_ms(probe_count),
        ordinal=probe_count + 1,
        generation=run.generation,
        operation_id=digest_of("ryusen.probe", workspace, run.run_id, str(run.generation)),
        repeatable=True,
        enqueued_at_ms=now_ms,
    )
    items.enqueue(tx, workspace, item)
    return item


async def clear_blocker(tx: Tx, workspace: str, run: RunRecord) -> BlockerRecord:
    """Remove a blocked run's blocker, its index entry and its probe; return what blocked it.

    Raises:
        CorruptRecord: there is none.
    """
    key = blocker_key(workspace, run.run_id)
    blocker = await tx.load(key)
    if blocker is None:
        raise CorruptRecord(record="BlockerRecord", reason="a blocked run without its blocker", run=run.run_id)
    if blocker.probe_item is not None:
        probe = await tx.load(ITEM.at(workspace, blocker.probe_item))
        if probe is not None:
            items.consume(tx, workspace, probe)
    tx.remove(key)
    tx.remove(blocked_key(workspace, run))
    return blocker


async def unblock(tx: Tx, workspace: str, run: RunRecord, now_ms: int) -> RunRecord:
    """Return `run` as an accepted answer goes on with it: a blocked one is Running again, and says so first.

    Source: RFD 2, "the pass that clears it appends definition-unblocked before the entries of its ordinary transition".
    """
    if run.phase is not Phase.DEFINITION_BLOCKED:
        return run
    blocker = await clear_blocker(tx, workspace, run)
    entry = {"step": blocker.step_id, "count": blocker.count, "since_ms": blocker.first_seen_at_ms}
    after = history.append(tx, workspace, run, now_ms, (HistoryKind.DEFINITION_UNBLOCKED, entry))
    return msgspec.structs.replace(after, phase=advance(RUN_TABLE, run.phase, RunEvent.UNBLOCKED))


def look_again(
    tx: Tx,
    workspace: str,
    run: RunRecord,
    blocker: BlockerRecord,
    probe: ItemRecord | None,
    entry: history.Entry,
    now_ms: int,
    *,
    item_id: str,
    priority: int,
) -> RunRecord:
    """Enqueue the discovery of a blocked run that has none, in place of its probe, and return the run, written.

    Args:
        tx: the open transaction.
        workspace: whose run it is.
        run: as loaded, or with fields of the command set; blocked, without outstanding work.
        blocker: to be written with its probe gone.
        probe: the item of the probe that waits, if there is one.
        entry: why it looks again.
        now_ms: engine time.
        item_id: of the discovery.
        priority: of the discovery.
    """
    assert run.phase is Phase.DEFINITION_BLOCKED and run.item_id is None, "only a blocked run at rest looks again"
    if probe is not None:
        items.consume(tx, workspace, probe)
    tx.put(blocker_key(workspace, run.run_id), msgspec.structs.replace(blocker, probe_item=None))
    items.enqueue(tx, workspace, new_discovery_item(workspace, run, now_ms, item_id, priority=priority))
    after = history.append(tx, workspace, run, now_ms, entry)
    after = msgspec.structs.replace(after, item_id=item_id, updated_at_ms=now_ms)
    save_run(tx, workspace, run, after)
    return after
