"""Lease work of one application lane to free seats: Discovery is authorized with its lease, effects are not yet."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from keyspace import history
from keyspace.history import HistoryKind
from keyspace.layout import ITEM, RUN
from keyspace.lifecycle import ItemState
from keyspace.limits import CLAIM_ITEMS_MAX, DEADLINE_STOPS_MAX
from keyspace.queue import claims, items
from keyspace.queue.items import Seat
from keyspace.records.run import RunRecord
from keyspace.records.work import ItemRecord, Lane, WorkKind
from keyspace.transitions.deadline import is_past_deadline, stop_for_deadline
from keyspace.transitions.pass_receipt import PASSING_PHASES
from keyspace.transitions.work import engine_now_ms, save_run
from keyspace.tx import Tx

__all__ = ["Delivery", "lease_items"]


class Delivery(NamedTuple):
    """A leased item and the run it belongs to, as the assignment needs them.

    `input` is the run's, where whoever leased read it in the same transaction.
    """

    workspace: str
    item: ItemRecord
    run: RunRecord
    seat: Seat
    input: bytes | None = None


async def lease_items(
    tx: Tx,
    workspace: str,
    lane: Lane,
    seats: list[Seat],
    *,
    lease_ms: int,
    tried: dict[str, Seat],
    skip: int = 0,
    ready_for_ms: int = 0,
) -> list[Delivery]:
    """Lease up to one vested item of `lane` to each seat.

    Args:
        tx: the open transaction.
        workspace: whose lane it is.
        lane: an application lane.
        seats: the free seats, at most 64; each brings its own lease token, minted before the retry loop.
        lease_ms: how long a lease lasts, in milliseconds.
        tried: empty, and the same object in every attempt of this call: the items that an earlier attempt took, whose
            commit may be unknown, by item id. It is this transition's receipt.
        skip: how many entries to pass over, so that several dispatchers on one lane start apart.
        ready_for_ms: take only what has been ready for so long, in milliseconds: what a newer release had time to take.

    Reads: candidates by snapshot; the items taken and their runs with conflict.
    Writes: each item and its index entries; for Discovery also the run and its history. A run past its deadline is stopped
        instead, so many in one transaction; what is beyond is left to its timer.
    Conflicts: with another claimer of the same item.  Budget: about 3 kB an item; 24 kB for a run
        past its deadline.
    Idempotent: an item already leased under a seat's token is delivered again, not leased twice.
    """
    assert len(seats) <= CLAIM_ITEMS_MAX
    deliveries = await _already_leased(tx, workspace, tried)
    held = {delivery.seat.token for delivery in deliveries}
    free = [seat for seat in seats if seat.token not in held]
    if not free:
        return deliveries
    taken = await claims.vested_items(tx, workspace, lane, skip=skip, limit=len(free), ready_for_ms=ready_for_ms)
    runs = await tx.load_all(RUN.at(workspace, item.target) for item in taken)
    stops_left = DEADLINE_STOPS_MAX
    for item, run in zip(taken, runs, strict=True):
        if run is None or run.item_id != item.item_id:
            items.consume(tx, workspace, item)
            continue
        if is_past_deadline(run, engine_now_ms(tx, run)):
            if stops_left:
                stops_left -= 1
                await stop_for_deadline(tx, workspace, run, engine_now_ms(tx, run))
            continue
        seat = free.pop()
        tried[item.item_id] = seat
        deliveries.append(_deliver(tx, workspace, item, run, seat, lease_ms))
    return deliveries


async def _already_leased(tx: Tx, workspace: str, tried: dict[str, Seat]) -> list[Delivery]:
    """Return what an earlier attempt of this call leased after all."""
    records = await tx.load_all(ITEM.at(workspace, item_id) for item_id in tried)
    mine = [item for item in records if item is not None and item.token == tried[item.item_id].token]
    mine = [item for item in mine if item.state in (ItemState.LEASED, ItemState.AUTHORIZED)]
    runs = await tx.load_all(RUN.at(workspace, item.target) for item in mine)
    return [
        Delivery(workspace, item, run, tried[item.item_id])
        for item, run in zip(mine, runs, strict=True)
        if run is not None
    ]


def _deliver(tx: Tx, workspace: str, item: ItemRecord, run: RunRecord, seat: Seat, lease_ms: int) -> Delivery:
    if item.kind is not WorkKind.DISCOVERY:
        leased = items.lease(tx, workspace, item, seat, tx.now_ms + lease_ms)
        return Delivery(workspace, leased, run, seat)
    assert run.phase in PASSING_PHASES, "discovery work of a run that takes no pass"
    now_ms = engine_now_ms(tx, run)
    leased = items.lease(tx, workspace, item, seat, tx.now_ms + lease_ms, authorized_at_ms=now_ms)
    entry = {
        "delivery": leased.delivery_count,
        "instance": seat.instance,
        "release": seat.release,
        "pass": run.generation,
    }
    after = history.append(tx, workspace, run, now_ms, (HistoryKind.PASS_AUTHORIZED, entry))
    after = msgspec.structs.replace(after, updated_at_ms=now_ms)
    save_run(tx, workspace, run, after)
    return Delivery(workspace, leased, after, seat)
