"""The lease index: which leases have expired. It is its own pointer, sharded by item, read by any dispatcher."""

from __future__ import annotations

from typing import NamedTuple

from keyspace.layout import LEASE
from keyspace.store.api import KeyRange
from keyspace.tuple_layer import pack_int
from keyspace.tx import Tx

__all__ = ["LeaseEntry", "expired_leases"]


class LeaseEntry(NamedTuple):
    """An entry of the lease index; `key` is the cursor for the next page."""

    key: bytes
    bucket: int
    workspace: str
    item_id: str


async def expired_leases(
    tx: Tx, shard: int, *, before_bucket: int, after: bytes | None = None, limit: int
) -> list[LeaseEntry]:
    """Return entries of a shard whose expiry bucket is at most `before_bucket`, oldest first, after the cursor `after`.

    The caller pages with the last entry's `key`, so that entries nobody can recover never hide those behind them.
    """
    prefix = LEASE.pack((shard,))
    begin = prefix if after is None else after + b"\x00"
    span = KeyRange(begin, prefix + pack_int(before_bucket + 1))
    if span.begin >= span.end:
        return []
    rows = await tx.page(span, limit=limit, snapshot=True)
    entries = []
    for key, _ in rows:
        _, bucket, workspace, item_id = LEASE.parse(key)
        entries.append(LeaseEntry(key, bucket, workspace, item_id))
    return entries
