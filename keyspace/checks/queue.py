"""The queue: every item in exactly one place, owned by what it works for (C2, C3, C4, C7)."""

from __future__ import annotations

from keyspace.checks.children import check_child_work
from keyspace.checks.reading import has_key
from keyspace.checks.report import Case, checks
from keyspace.layout import (
    EXPANSION,
    ITEM,
    LEASE,
    READY,
    READY_APP,
    RUN,
    WAKE,
    bucket_of,
    due_pointer,
    ready_key,
    shard_of_id,
)
from keyspace.lifecycle import ItemState
from keyspace.queue.items import lease_key
from keyspace.records.work import Direction, ItemRecord, Lane, LaneKind, WorkKind
from keyspace.transitions.blockers import blocker_key

__all__: list[str] = []


@checks(ITEM)
async def check_item(case: Case) -> None:
    """An item is where its state says and belongs to something that names it."""
    item: ItemRecord = case.record
    ws = case.workspace
    case.report.item_count += 1
    case.expect(item.item_id == case.elements[1], "C7", "the record names another item")
    if item.state is ItemState.READY:
        ready = ready_key(ws, item.where, item.vesting_ms, item.priority, item.item_id)
        case.expect(await has_key(case, ready), "C7", "a ready item has no ready entry")
        pointer = due_pointer(ws, item.where, bucket_of(item.vesting_ms))
        case.expect(await has_key(case, pointer), "C3", "a ready item has no due pointer")
    else:
        case.expect(item.token is not None and item.expires_at_ms is not None, "C3", "a leased item without a lease")
        case.expect(await has_key(case, lease_key(ws, item)), "C7", "a leased item has no lease entry")
    if item.kind is WorkKind.FANOUT:
        expansion = await case.tx.load(EXPANSION.at(ws, item.target), snapshot=True)
        case.expect(
            expansion is not None and expansion.item_id == item.item_id, "C2", "an obligation without its event"
        )
        return
    if item.kind in (WorkKind.CHILD_SETTLE, WorkKind.STOP_PROPAGATE):
        await check_child_work(case, item)
        return
    if item.kind is WorkKind.RELEASE_WAKE:
        wake = await case.tx.load(WAKE.at(ws, item.target), snapshot=True)
        case.expect(wake is not None and wake.item_id == item.item_id, "C4", "no wake owns this work")
        return
    if item.kind is WorkKind.DEFINITION_PROBE:
        blocker = await case.tx.load(blocker_key(ws, item.target), snapshot=True)
        case.expect(blocker is not None and blocker.probe_item == item.item_id, "C4", "no blocker owns this probe")
        return
    run = await case.tx.load(RUN.at(ws, item.target), snapshot=True)
    is_timer = item.kind is WorkKind.RUN_TIMEOUT
    owned = None if run is None else (run.timeout_item if is_timer else run.item_id)
    case.expect(owned == item.item_id, "C4", "a run does not own this work")


async def _check_entry(case: Case, lane: Lane, vesting_ms: int, priority: int, item_id: str) -> None:
    item = await case.tx.load(ITEM.at(case.workspace, item_id), snapshot=True)
    case.expect(
        item is not None
        and item.state is ItemState.READY
        and (item.where, item.vesting_ms, item.priority) == (lane, vesting_ms, priority),
        "C7",
        "the entry is not where its item says",
    )


@checks(READY)
async def check_ready(case: Case) -> None:
    """A ready entry of a server lane names a ready item."""
    _, kind, vesting_ms, priority, item_id = case.elements
    await _check_entry(case, Lane(LaneKind(kind)), vesting_ms, priority, item_id)


@checks(READY_APP)
async def check_ready_app(case: Case) -> None:
    """A ready entry of an application lane names a ready item."""
    _, kind, application, function, direction, vesting_ms, priority, item_id = case.elements
    lane = Lane(LaneKind(kind), application, function, Direction(direction))
    await _check_entry(case, lane, vesting_ms, priority, item_id)


@checks(LEASE)
async def check_lease(case: Case) -> None:
    """A lease entry names a leased item that expires in its bucket."""
    shard, bucket, workspace, item_id = case.elements
    item = await case.tx.load(ITEM.at(workspace, item_id), snapshot=True)
    case.expect(
        item is not None
        and item.state in (ItemState.LEASED, ItemState.AUTHORIZED)
        and item.expires_at_ms is not None
        and (shard_of_id(item_id), bucket_of(item.expires_at_ms)) == (shard, bucket),
        "C7",
        "no item is leased until then",
    )
