"""Give back leased work that was not started: it returns to its lane at once, unharmed."""

from __future__ import annotations

from keyspace.layout import ITEM
from keyspace.lifecycle import ItemEvent, ItemState
from keyspace.queue import items
from keyspace.records.work import ItemRecord, WorkKind
from keyspace.tx import Tx

__all__ = ["give_back"]


def _event(item: ItemRecord | None, token: str) -> ItemEvent | None:
    if item is None or item.token != token:
        return None
    if item.state is ItemState.LEASED:
        return ItemEvent.RETURNED
    # A pass is authorized with its lease, also when its worker declined it or its session was gone before it was assigned.
    if item.state is ItemState.AUTHORIZED and item.kind is WorkKind.DISCOVERY:
        return ItemEvent.NOT_STARTED
    return None


async def give_back(tx: Tx, workspace: str, item_id: str, token: str) -> bool:
    """Return a leased item that was not started to its lane; only its delivery count has grown. Says whether it did.

    An authorized effect is left alone: that it has not begun needs a proof (`prove_not_started`).

    Reads: the item.  Writes: the item, its index entries and bell.
    Conflicts: with its authorization or recovery.  Budget: under 2 kB.
    Idempotent: an item that is not leased under `token` is left alone.
    Source: RFD 2, "Lease expiry before start authorization makes an item eligible again".
    """
    item = await tx.load(ITEM.at(workspace, item_id))
    event = _event(item, token)
    if item is None or event is None:
        return False
    items.return_to_queue(tx, workspace, item, event, tx.now_ms, is_loss=False)
    return True
