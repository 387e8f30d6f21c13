"""Give back leased work that was not started: it returns to its lane at once, unharmed."""

from __future__ import annotations

from keyspace.layout import ITEM
from keyspace.lifecycle import ItemEvent, ItemState
from keyspace.queue import items
from keyspace.tx import Tx

__all__ = ["give_back"]


async def give_back(tx: Tx, workspace: str, item_id: str, token: str) -> bool:
    """Return a leased, unauthorized item to its lane; only its delivery count has grown. Says whether it did.

    Reads: the item.  Writes: the item, its index entries and bell.
    Conflicts: with its authorization or recovery.  Budget: under 1 kB.
    Idempotent: an item that is not leased under `token` is left alone.
    Source: RFD 2, "Lease expiry before start authorization makes an item eligible again".
    """
    item = await tx.load(ITEM.at(workspace, item_id))
    if item is None or item.token != token or item.state is not ItemState.LEASED:
        return False
    items.return_to_queue(tx, workspace, item, ItemEvent.RETURNED, tx.now_ms, is_loss=False)
    return True
