"""Clearing the pointers of buckets that are over, several in one transaction."""

from __future__ import annotations

from keyspace.errors import KeyspaceError
from keyspace.keyspace import Keyspace
from keyspace.queue.pointers import clear_due_pointer
from keyspace.store.errors import StoreError
from keyspace.tx import Tx
from services.lanes.duebook import DueBook, LaneOf

__all__ = ["CLEARED_BUCKETS_MAX", "clear_past_pointers"]

CLEARED_BUCKETS_MAX = 32
"""Pointers that one transaction clears: 32 range reads and clears are about 10 kB."""


async def clear_past_pointers(keyspace: Keyspace, book: DueBook, key: LaneOf) -> int:
    """Clear what pointers of `key` may go now, at most CLEARED_BUCKETS_MAX; return how many went.

    A failure leaves pointers that cost a look and hide nothing; the next look tries again.
    """
    buckets = book.clearable(key, keyspace.clock.now_ms())[:CLEARED_BUCKETS_MAX]
    if not buckets:
        return 0

    async def body(tx: Tx) -> list[bool]:
        return [await clear_due_pointer(tx, key.workspace, key.lane, bucket) for bucket in buckets]

    try:
        gone = await keyspace.transact("clear_due_pointer", body)
    except (StoreError, KeyspaceError):
        return 0
    for bucket, is_gone in zip(buckets, gone, strict=True):
        book.cleared(key, bucket, is_gone=is_gone)
    return sum(gone)
