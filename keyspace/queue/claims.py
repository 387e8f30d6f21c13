"""Finding work in one lane: candidates are read by snapshot, then exactly the chosen items are read with conflict."""

from __future__ import annotations

from typing import NamedTuple

from keyspace.layout import ITEM, READY, READY_APP, ready_span
from keyspace.lifecycle import ItemState
from keyspace.records.work import ItemRecord, Lane
from keyspace.tx import Tx

__all__ = ["Candidate", "candidates", "next_vesting_ms", "vested_items"]


class Candidate(NamedTuple):
    """An entry of a ready index."""

    vesting_ms: int
    priority: int
    item_id: str


def _candidate(lane: Lane, key: bytes) -> Candidate:
    leaf = READY if lane.kind.is_server else READY_APP
    return Candidate(*leaf.parse(key)[-3:])


async def candidates(
    tx: Tx, workspace: str, lane: Lane, *, skip: int = 0, limit: int, ready_for_ms: int = 0
) -> list[Candidate]:
    """Return at most `limit` entries of a lane in order, after the first `skip`, that vested `ready_for_ms` ago or earlier.

    Unvested work is never read.
    """
    assert ready_for_ms >= 0
    span = ready_span(workspace, lane, 0, tx.now_ms - ready_for_ms + 1)
    rows = await tx.page(span, limit=skip + limit, snapshot=True)
    return [_candidate(lane, key) for key, _ in rows[skip:]]


async def vested_items(
    tx: Tx, workspace: str, lane: Lane, *, skip: int = 0, limit: int, ready_for_ms: int = 0
) -> list[ItemRecord]:
    """Return ready items of a lane that vested `ready_for_ms` ago or earlier; read with conflict: one claimer takes each."""
    found = await candidates(tx, workspace, lane, skip=skip, limit=limit, ready_for_ms=ready_for_ms)
    records = await tx.load_all(ITEM.at(workspace, candidate.item_id) for candidate in found)
    return [item for item in records if item is not None and item.state is ItemState.READY]


async def next_vesting_ms(tx: Tx, workspace: str, lane: Lane, *, from_ms: int, to_ms: int) -> int | None:
    """Return the first vesting time of a lane in [from_ms, to_ms), by snapshot; None when there is none."""
    rows = await tx.page(ready_span(workspace, lane, from_ms, to_ms), limit=1, snapshot=True)
    return _candidate(lane, rows[0][0]).vesting_ms if rows else None
