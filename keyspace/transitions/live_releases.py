"""Which releases are live: each dispatcher says what its sessions run, in records that run out by themselves.

Liveness steers choice and decides nothing: everybody reads it by snapshot, nobody conflicts with it, and what a dead
dispatcher said counts no longer than `LIVE_MS`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from keyspace.layout import LIVE
from keyspace.limits import LIVE_MS, LIVE_PAGE_ITEMS, LIVE_ROWS_MAX
from keyspace.records.release import LiveRecord, LiveRelease
from keyspace.tx import Tx

__all__ = ["LivePage", "announce_live", "forget_live", "read_live"]


class LivePage(NamedTuple):
    """One page of what a dispatcher said."""

    process_id: str
    page: int
    record: LiveRecord


def announce_live(tx: Tx, process_id: str, releases: Sequence[LiveRelease]) -> int:
    """Say what the sessions of a dispatcher run, in place of what it said before; return until when it counts.

    Args:
        tx: the open transaction.
        process_id: the dispatcher.
        releases: each release once, in a stable order; none takes the record away.

    Writes: the dispatcher's pages.  Conflicts: with nobody.  Budget: about three times the names and 200 bytes a release.
    Idempotent: by content.
    """
    forget_live(tx, process_id)
    expires_at_ms = tx.now_ms + LIVE_MS
    for page, start in enumerate(range(0, len(releases), LIVE_PAGE_ITEMS)):
        part = list(releases[start : start + LIVE_PAGE_ITEMS])
        tx.put(LIVE.at(process_id, page), LiveRecord(expires_at_ms=expires_at_ms, releases=part))
    return expires_at_ms


def forget_live(tx: Tx, process_id: str) -> None:
    """Take away what a dispatcher said."""
    tx.remove_range(LIVE.span(process_id))


async def read_live(tx: Tx) -> list[LivePage]:
    """Return what every dispatcher said, by snapshot; whether it still counts is for the caller to tell."""
    rows = await tx.page(LIVE.span(), limit=LIVE_ROWS_MAX, snapshot=True)
    found = []
    for key, value in rows:
        process_id, page = LIVE.parse(key)
        found.append(LivePage(process_id, page, LIVE.codec.decode(value)))
    return found
