"""How a work item moves: enqueued, leased, renewed, returned, consumed.

An item is in exactly one place: the ready index of its lane while READY, the lease index while LEASED or AUTHORIZED. Every
function here takes the record as loaded (with conflict) and keeps record and indexes in step; states change only by the
table `lifecycle.ITEM`. The token of an ended lease stays on the item until somebody else leases it, so that a late report
of its holder is still accepted (FILLED-IN 11, "Lease expiry and results").
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from keyspace.layout import ITEM, LEASE, bell_of, bucket_of, due_pointer, ready_key, shard_of_id
from keyspace.leaf import Key
from keyspace.lifecycle import ITEM as ITEM_TABLE
from keyspace.lifecycle import ItemEvent, ItemState, advance
from keyspace.limits import BUCKET_MS, LOSS_DELAY_MS_INITIAL, LOSS_DELAY_MS_MAX
from keyspace.records.work import ItemRecord
from keyspace.tx import Tx

__all__ = [
    "Seat",
    "authorize",
    "consume",
    "defer",
    "enqueue",
    "enqueue_authorized",
    "holds_token",
    "lease",
    "lease_key",
    "loss_delay_ms",
    "renew",
    "return_to_queue",
]


class Seat(NamedTuple):
    """A free place in a worker session: who would hold a lease."""

    session: str
    instance: str
    release: str
    token: str


def lease_key(workspace: str, item: ItemRecord) -> Key[None]:
    """Return a leased item's place in the lease index."""
    assert item.expires_at_ms is not None
    return LEASE.at(shard_of_id(item.item_id), bucket_of(item.expires_at_ms), workspace, item.item_id)


def _place(tx: Tx, workspace: str, item: ItemRecord) -> None:
    lane = item.where
    tx.put(ready_key(workspace, lane, item.vesting_ms, item.priority, item.item_id), None)
    tx.put(due_pointer(workspace, lane, bucket_of(item.vesting_ms)), None)
    if item.vesting_ms < (bucket_of(tx.now_ms) + 2) * BUCKET_MS:
        tx.ring(bell_of(workspace, lane))


def _unplace(tx: Tx, workspace: str, item: ItemRecord) -> None:
    if item.state is ItemState.READY:
        tx.remove(ready_key(workspace, item.where, item.vesting_ms, item.priority, item.item_id))
    else:
        tx.remove(lease_key(workspace, item))


def enqueue(tx: Tx, workspace: str, item: ItemRecord) -> None:
    """Put a new item into its lane; writes the item, its ready entry and due pointer, and rings when it vests soon."""
    tx.put(ITEM.at(workspace, item.item_id), item)
    _place(tx, workspace, item)


def enqueue_authorized(
    tx: Tx, workspace: str, item: ItemRecord, seat: Seat, now_ms: int, expires_at_ms: int, renew_until_ms: int | None
) -> ItemRecord:
    """Write a new item leased and authorized to `seat`: it is never in its lane, has no pointer and rings no bell."""
    authorized = msgspec.structs.replace(
        item,
        state=advance(ITEM_TABLE, item.state, ItemEvent.LEASED_AUTHORIZED),
        delivery_count=1,
        token=seat.token,
        session=seat.session,
        instance=seat.instance,
        expires_at_ms=expires_at_ms,
        authorized_at_ms=now_ms,
        renew_until_ms=renew_until_ms,
    )
    tx.put(ITEM.at(workspace, item.item_id), authorized)
    tx.put(lease_key(workspace, authorized), None)
    return authorized


def consume(tx: Tx, workspace: str, item: ItemRecord) -> None:
    """Remove an item wherever it stands."""
    advance(ITEM_TABLE, item.state, ItemEvent.CONSUMED)
    _unplace(tx, workspace, item)
    tx.remove(ITEM.at(workspace, item.item_id))


def lease(
    tx: Tx, workspace: str, item: ItemRecord, seat: Seat, expires_at_ms: int, *, authorized_at_ms: int | None = None
) -> ItemRecord:
    """Lease a ready item to `seat`, authorized at once when `authorized_at_ms` is given (Discovery)."""
    event = ItemEvent.LEASED if authorized_at_ms is None else ItemEvent.LEASED_AUTHORIZED
    leased = msgspec.structs.replace(
        item,
        state=advance(ITEM_TABLE, item.state, event),
        delivery_count=item.delivery_count + 1,
        token=seat.token,
        session=seat.session,
        instance=seat.instance,
        expires_at_ms=expires_at_ms,
        authorized_at_ms=authorized_at_ms,
    )
    _unplace(tx, workspace, item)
    tx.put(lease_key(workspace, leased), None)
    tx.put(ITEM.at(workspace, item.item_id), leased)
    return leased


def authorize(
    tx: Tx, workspace: str, item: ItemRecord, now_ms: int, expires_at_ms: int, renew_until_ms: int | None
) -> ItemRecord:
    """Record that a leased item's effect may begin, and extend its lease."""
    authorized = msgspec.structs.replace(
        item,
        state=advance(ITEM_TABLE, item.state, ItemEvent.AUTHORIZED),
        authorized_at_ms=now_ms,
        expires_at_ms=expires_at_ms,
        renew_until_ms=renew_until_ms,
    )
    _move_lease(tx, workspace, item, authorized)
    return authorized


def renew(tx: Tx, workspace: str, item: ItemRecord, expires_at_ms: int) -> ItemRecord:
    """Extend a lease; touches the item and its lease entry only."""
    renewed = msgspec.structs.replace(
        item, state=advance(ITEM_TABLE, item.state, ItemEvent.RENEWED), expires_at_ms=expires_at_ms
    )
    _move_lease(tx, workspace, item, renewed)
    return renewed


def _move_lease(tx: Tx, workspace: str, before: ItemRecord, after: ItemRecord) -> None:
    old, new = lease_key(workspace, before), lease_key(workspace, after)
    if old.data != new.data:
        tx.remove(old)
        tx.put(new, None)
    tx.put(ITEM.at(workspace, after.item_id), after)


def return_to_queue(
    tx: Tx, workspace: str, item: ItemRecord, event: ItemEvent, vesting_ms: int, *, is_loss: bool
) -> ItemRecord:
    """Put a leased item back into its lane; the ordinal stays, a loss is counted, the token stays valid until re-leased."""
    returned = msgspec.structs.replace(
        item,
        state=advance(ITEM_TABLE, item.state, event),
        vesting_ms=vesting_ms,
        expires_at_ms=None,
        authorized_at_ms=None,
        renew_until_ms=None,
        loss_count=item.loss_count + 1 if is_loss else item.loss_count,
    )
    _unplace(tx, workspace, item)
    tx.put(ITEM.at(workspace, item.item_id), returned)
    _place(tx, workspace, returned)
    return returned


def defer(tx: Tx, workspace: str, item: ItemRecord, vesting_ms: int) -> ItemRecord:
    """Move a ready item to another vesting time."""
    deferred = msgspec.structs.replace(
        item, state=advance(ITEM_TABLE, item.state, ItemEvent.DEFERRED), vesting_ms=vesting_ms
    )
    _unplace(tx, workspace, item)
    tx.put(ITEM.at(workspace, item.item_id), deferred)
    _place(tx, workspace, deferred)
    return deferred


def holds_token(item: ItemRecord | None, token: str) -> bool:
    """Whether `token` is still the item's current one: nobody else leased it, nothing settled it."""
    return item is not None and item.token == token


def loss_delay_ms(loss_count: int) -> int:
    """Return the delay before redelivery after `loss_count` losses in a row: 0 for the first, then 1 s doubling to 5 min.

    Source: FILLED-IN 11, "Crashing discovery".
    """
    if loss_count <= 1:
        return 0
    return min(LOSS_DELAY_MS_MAX, LOSS_DELAY_MS_INITIAL << min(loss_count - 2, 30))
