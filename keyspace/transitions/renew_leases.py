"""Renew leases: one session's in one transaction, touching items and their lease entries only."""

from __future__ import annotations

from keyspace.layout import ITEM
from keyspace.lifecycle import ItemState
from keyspace.limits import RENEW_ITEMS_MAX
from keyspace.queue import items
from keyspace.records.work import ItemRecord
from keyspace.tx import Tx

__all__ = ["renew_leases", "renewed_until_ms"]


def renewed_until_ms(item: ItemRecord | None, token: str, now_ms: int, lease_ms: int) -> int | None:
    """Return the lease's new expiry, or None when it cannot be renewed.

    An expired lease is not renewed, and nothing is renewed past authorization + attempt timeout + one lease
    (FILLED-IN 11, "Lease expiry and results"; ARCHITECTURE 4).
    """
    if item is None or item.token != token or item.state not in (ItemState.LEASED, ItemState.AUTHORIZED):
        return None
    if item.expires_at_ms is None or now_ms >= item.expires_at_ms:
        return None
    until_ms = now_ms + lease_ms
    if item.renew_until_ms is not None:
        until_ms = min(until_ms, item.renew_until_ms)
    return until_ms if until_ms > now_ms else None


async def renew_leases(tx: Tx, workspace: str, held: list[tuple[str, str]], *, lease_ms: int) -> list[bool]:
    """Extend the leases of `held` (item id, lease token), at most 64; return which go on, in order.

    Reads: the items.  Writes: the items, and lease entries that change bucket.
    Conflicts: only with a settlement or recovery of the same items.  Budget: about 1 kB an item.
    Idempotent: renewing again extends again.
    """
    assert len(held) <= RENEW_ITEMS_MAX
    records = await tx.load_all(ITEM.at(workspace, item_id) for item_id, _ in held)
    kept: list[bool] = []
    for (_, token), item in zip(held, records, strict=True):
        until_ms = renewed_until_ms(item, token, tx.now_ms, lease_ms)
        if item is not None and until_ms is not None and item.expires_at_ms is not None:
            items.renew(tx, workspace, item, max(until_ms, item.expires_at_ms))
        kept.append(until_ms is not None)
    return kept
