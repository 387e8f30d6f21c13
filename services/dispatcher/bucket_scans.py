"""The scans at the turn of each bucket, for all applications together: what idle applications cost is a range read each.

Work that vests later than the next bucket rings no bell, so pointers are read once a bucket, one bucket ahead (ARCHITECTURE
4). One task does it for every pump; a pump whose application has nothing due is not even woken.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from keyspace.keyspace import Keyspace
from keyspace.layout import bucket_of
from keyspace.limits import BUCKET_MS
from keyspace.queue.pointers import DuePointer, due_in_application
from keyspace.tx import Tx
from services.dispatcher.options import DUE_PAGE_ITEMS, SHARED_SCANS_MAX
from services.lanes.deferral import is_passing
from services.lanes.duebook import Scan

__all__ = ["BucketScans", "ScanAsk", "Scanned", "read_pointers"]

log = logging.getLogger(__name__)


class ScanAsk(NamedTuple):
    """One application's buckets to read."""

    workspace: str
    application: str
    scan: Scan


class Scanned(Protocol):
    """Whoever has its pointers read at the turn of a bucket."""

    def due_scan(self, now_ms: int) -> ScanAsk | None:
        """Return what to read now, or None when nothing is due or the scan is made elsewhere."""
        ...

    def take_in(self, ask: ScanAsk, pointers: list[DuePointer], reason: str) -> None:
        """Take in what was read."""
        ...


async def read_pointers(tx: Tx, ask: ScanAsk) -> list[DuePointer]:
    """Return the pointers that `ask` names, at most a page of them, by snapshot."""
    return await due_in_application(
        tx,
        ask.workspace,
        ask.application,
        from_bucket=ask.scan.from_bucket,
        to_bucket=ask.scan.to_bucket,
        limit=DUE_PAGE_ITEMS,
    )


class BucketScans:
    """Reads the pointers of one process's pumps once a bucket."""

    def __init__(self, keyspace: Keyspace, limiter: asyncio.Semaphore, pumps: Callable[[], Iterable[Scanned]]) -> None:
        """Read from `keyspace` for whatever `pumps` returns at the time, a transaction at a time counting in `limiter`."""
        self._keyspace = keyspace
        self._limiter = limiter
        self._pumps = pumps

    async def run(self) -> None:
        """Scan at the turn of every bucket until cancelled."""
        clock = self._keyspace.clock
        while True:
            now_ms = clock.now_ms()
            await clock.sleep_ms((bucket_of(now_ms) + 1) * BUCKET_MS - now_ms)
            await self.scan()

    async def scan(self) -> None:
        """Read what is due, a bounded number of applications in one transaction.

        A page that cannot be read is read with the next bucket's: a scan begins where the last one of its application ended.
        """
        now_ms = self._keyspace.clock.now_ms()
        due = [(pump, ask) for pump in self._pumps() if (ask := pump.due_scan(now_ms)) is not None]
        for start in range(0, len(due), SHARED_SCANS_MAX):
            page = due[start : start + SHARED_SCANS_MAX]
            try:
                async with self._limiter:
                    read = await self._read([ask for _, ask in page])
            except Exception as error:
                log.warning("due pointers cannot be read", exc_info=None if is_passing(error) else error)
                continue
            for (pump, ask), pointers in zip(page, read, strict=True):
                pump.take_in(ask, pointers, "full" if ask.scan.is_full else "bucket")

    async def _read(self, asks: list[ScanAsk]) -> list[list[DuePointer]]:
        async def body(tx: Tx) -> list[list[DuePointer]]:
            return [await read_pointers(tx, ask) for ask in asks]

        return await self._keyspace.transact("scan_due", body)
