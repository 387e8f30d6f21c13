"""Due pointers: where vested work may be, so that nobody scans workspaces or lanes (ARCHITECTURE 4).

A pointer is written blind by every enqueue. It is removed only by a transaction that reads its lane's bucket with conflict
and finds it empty: an enqueue racing with that makes the removal conflict, never the enqueue. So a pointer is never
missing while its bucket holds work.
"""

from __future__ import annotations

from keyspace.layout import DUE, DUE_APP, due_pointer, ready_span
from keyspace.limits import BUCKET_MS
from keyspace.records.work import Direction, Lane, LaneKind, server_lane
from keyspace.store.api import KeyRange
from keyspace.tuple_layer import pack_int
from keyspace.tx import Tx

__all__ = ["DuePointer", "clear_due_pointer", "due_in_application", "due_in_shard"]

DuePointer = tuple[int, str, Lane]
"""Bucket, workspace, lane."""


async def due_in_shard(
    tx: Tx, kind: LaneKind, shard: int, *, from_bucket: int, to_bucket: int, limit: int
) -> list[DuePointer]:
    """Return the pointers of one kind of server lane and shard in buckets [from_bucket, to_bucket], oldest first.

    Snapshot reads: a scan conflicts with nobody.
    """
    prefix = DUE.pack((kind, shard))
    span = KeyRange(prefix + pack_int(from_bucket), prefix + pack_int(to_bucket + 1))
    pointers: list[DuePointer] = []
    for key, _ in await tx.page(span, limit=limit, snapshot=True):
        _, _, bucket, workspace = DUE.parse(key)
        pointers.append((bucket, workspace, server_lane(kind)))
    return pointers


async def due_in_application(
    tx: Tx, workspace: str, application: str, *, from_bucket: int, to_bucket: int, limit: int
) -> list[DuePointer]:
    """Return the pointers of one application's connected lanes in buckets [from_bucket, to_bucket], oldest first."""
    prefix = DUE_APP.pack((workspace, LaneKind.CONNECTED, application))
    span = KeyRange(prefix + pack_int(from_bucket), prefix + pack_int(to_bucket + 1))
    pointers: list[DuePointer] = []
    for key, _ in await tx.page(span, limit=limit, snapshot=True):
        _, kind, _, bucket, function, direction = DUE_APP.parse(key)
        lane = Lane(LaneKind(kind), application, function, Direction(direction))
        pointers.append((bucket, workspace, lane))
    return pointers


async def clear_due_pointer(tx: Tx, workspace: str, lane: Lane, bucket: int) -> bool:
    """Remove a pointer whose bucket holds no work; return whether it went.

    Reads: the lane's entries of the bucket, with conflict.  Writes: the pointer.
    Idempotent: removing it again changes nothing.
    """
    span = ready_span(workspace, lane, bucket * BUCKET_MS, (bucket + 1) * BUCKET_MS)
    if not await tx.is_empty(span):
        return False
    tx.remove(due_pointer(workspace, lane, bucket))
    return True
