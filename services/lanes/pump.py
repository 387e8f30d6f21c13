"""The loop of server lanes: due pointers of this process's shards lead to lanes, which take turns."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

import anyio
from anyio.abc import TaskGroup

from keyspace.keyspace import Keyspace
from keyspace.layout import BELL
from keyspace.limits import BUCKET_MS, SHARDS
from keyspace.queue.pointers import DuePointer, due_in_shard
from keyspace.records.work import LaneKind
from keyspace.store.api import Watch
from keyspace.tx import Tx
from services.lanes.affinity import owned_shards
from services.lanes.alarm import Alarm, Bell
from services.lanes.clearing import clear_past_pointers
from services.lanes.deferral import is_passing
from services.lanes.duebook import DueBook, LaneOf, Scan
from services.lanes.handlers import Handlers
from services.lanes.metrics import LaneMetrics
from services.lanes.options import DUE_PAGE_ITEMS, RETRY_MS, TURNS_MAX, LaneOptions
from services.lanes.turn import Turns

__all__ = ["LanePump"]

log = logging.getLogger(__name__)


class _Source(NamedTuple):
    """Where pointers are read: one kind of lane in one shard."""

    kind: LaneKind
    shard: int


class LanePump:
    """Does server work of every workspace; any number of processes may do so at once.

    One set of loops serves any number of kinds of lanes. A process watches the bells of the shards that rendezvous hashing
    gives it and reads their pointers once a bucket, all in one transaction. The other shards it reads at the rescan period,
    and at once when their process is gone, so that nothing waits for the dead.
    """

    def __init__(
        self,
        keyspace: Keyspace,
        kinds: Sequence[LaneKind],
        handlers: Handlers,
        options: LaneOptions,
        metrics: LaneMetrics,
        *,
        process_id: str,
        peers: Callable[[], Sequence[str]],
    ) -> None:
        """Work on `keyspace`.

        Args:
            keyspace: where.
            kinds: the lanes to look into.
            handlers: what to do with the work found there, by its kind.
            options: how.
            metrics: what is counted.
            process_id: this process, for affinity.
            peers: returns the ids of the live processes that do the same.
        """
        self._keyspace = keyspace
        self._options = options
        self._metrics = metrics
        self._process_id = process_id
        self._peers = peers
        self._alarm = Alarm(keyspace.clock)
        self._turns = Turns(keyspace, handlers, asyncio.Semaphore(options.concurrency), metrics)
        self._sources = [_Source(kind, shard) for shard in range(SHARDS) for kind in kinds]
        self._books = {
            source: DueBook(skew_ms=options.skew_ms, rescan_ms=options.rescan_ms) for source in self._sources
        }
        self._bells = {source: Bell(self._alarm) for source in self._sources}
        self._full_due_ms = dict.fromkeys(self._sources, 0.0)
        self._owned: frozenset[int] = frozenset()
        self._shared_with: tuple[str, ...] | None = None
        self._under_way: set[LaneOf] = set()
        self._first = 0
        self._is_draining = False

    def drain(self) -> None:
        """Begin no further turn; `run` returns when those under way have ended."""
        self._is_draining = True
        self._alarm.ring()

    async def run(self) -> None:
        """Work until `drain`."""
        try:
            async with anyio.create_task_group() as group:
                while not self._is_draining:
                    self._share_out()
                    delay_ms = await self._scan_what_is_due(group)
                    if self._is_draining:
                        break
                    looked_at_ms = self._keyspace.clock.now_ms()
                    self._start_turns(group, looked_at_ms)
                    await self._alarm.wait(min(delay_ms, self._next_ms(looked_at_ms)))
                self._disarm()
        finally:
            self._disarm()

    def _disarm(self) -> None:
        for bell in self._bells.values():
            bell.disarm()

    def _share_out(self) -> None:
        peers = tuple(self._peers())
        if peers == self._shared_with:
            return  # hashing every peer with every shard at every turn would cost more than many a turn
        self._shared_with = peers
        owned = owned_shards(self._process_id, peers, range(SHARDS))
        for source in self._sources:
            if source.shard in owned - self._owned:
                self._books[source].want_full()
            if source.shard in self._owned - owned:
                self._bells[source].disarm()
                self._bells[source].has_rung = True
        self._owned = owned
        self._metrics.shards.set(len(owned))

    # -- scanning

    def _due_scans(self, now_ms: int) -> dict[_Source, Scan]:
        due: dict[_Source, Scan] = {}
        reasons = set()
        for source, book in self._books.items():
            if source.shard not in self._owned:
                if now_ms >= self._full_due_ms[source]:
                    book.want_full()
                    due[source] = book.next_scan(now_ms)
                continue
            has_rung = self._bells[source].has_rung
            if has_rung or book.scan_due_in_ms(now_ms) == 0:
                due[source] = book.next_scan(now_ms)
                reasons.add("bell" if has_rung else "bucket")
        for reason in reasons:
            self._metrics.scans.labels(reason).inc()
        return due

    async def _scan_what_is_due(self, group: TaskGroup) -> float:
        """Scan the sources that are due and return the longest wait until the next scan, in milliseconds."""
        due = self._due_scans(self._keyspace.clock.now_ms())
        if due:
            try:
                read, watches = await self._keyspace.transact("scan_lanes", lambda tx: self._scan(tx, due))
            except Exception as error:
                log.warning(
                    "due pointers cannot be read",
                    extra={"error": repr(error)},
                    exc_info=None if is_passing(error) else error,
                )
                return RETRY_MS
            self._take_in(group, due, read, watches)
        now_ms = self._keyspace.clock.now_ms()
        waits = (book.scan_due_in_ms(now_ms) for source, book in self._books.items() if source.shard in self._owned)
        # Who looks after nothing must still look who lives: the dead may leave it their shards.
        return min(waits, default=BUCKET_MS)

    async def _scan(
        self, tx: Tx, due: dict[_Source, Scan]
    ) -> tuple[dict[_Source, list[DuePointer]], dict[_Source, Watch]]:
        read = {
            source: await due_in_shard(
                tx,
                source.kind,
                source.shard,
                from_bucket=scan.from_bucket,
                to_bucket=scan.to_bucket,
                limit=DUE_PAGE_ITEMS,
            )
            for source, scan in due.items()
        }
        watches = {
            source: tx.watch(BELL.at(source.kind, source.shard))
            for source in due
            if source.shard in self._owned and not self._bells[source].is_armed
        }
        return read, watches

    def _take_in(
        self,
        group: TaskGroup,
        due: dict[_Source, Scan],
        read: dict[_Source, list[DuePointer]],
        watches: dict[_Source, Watch],
    ) -> None:
        now_ms = self._keyspace.clock.now_ms()
        for source, scan in due.items():
            self._books[source].scanned(scan, read[source], now_ms)
            if len(read[source]) == DUE_PAGE_ITEMS:
                self._books[source].want_full()
            if scan.is_full:
                self._full_due_ms[source] = now_ms + self._options.rescan_ms
        if not any(read.values()):
            self._metrics.empty_scans.inc()
        for source, watch in watches.items():
            self._bells[source].arm(group, watch)

    # -- turns

    def _next_ms(self, looked_at_ms: int) -> float:
        # Asked from the instant of the last look: what came due since then was in no turn, and would wait for the bucket's end.
        found = (book.next_instant_ms(looked_at_ms) for book in self._books.values())
        instants = [instant_ms for instant_ms in found if instant_ms is not None]
        now_ms = self._keyspace.clock.now_ms()
        return min(instants, default=now_ms + self._options.rescan_ms) - now_ms

    def _start_turns(self, group: TaskGroup, now_ms: int) -> None:
        # Sources take turns in being first, as workspaces do within one.
        self._first = (self._first + 1) % len(self._sources)
        for source in self._sources[self._first :] + self._sources[: self._first]:
            book = self._books[source]
            for key in book.due_lanes(now_ms):
                if len(self._under_way) >= TURNS_MAX:
                    return
                if key not in self._under_way:
                    self._under_way.add(key)
                    book.look(key)
                    group.start_soon(self._turn, book, key, name="lane turn")

    async def _turn(self, book: DueBook, key: LaneOf) -> None:
        try:
            look = await self._turns.take(key)
            book.looked(key, next_ms=look.next_ms, has_more=look.has_more, empty_before_ms=look.empty_before_ms)
            self._metrics.pointers_cleared.inc(await clear_past_pointers(self._keyspace, book, key))
        finally:
            self._under_way.discard(key)
            self._alarm.ring()
