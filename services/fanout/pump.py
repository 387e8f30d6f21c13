"""The fan-out loop: due pointers of this process's shards lead to workspaces, which take turns."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import anyio
from anyio.abc import TaskGroup

from keyspace.errors import KeyspaceError
from keyspace.keyspace import Keyspace
from keyspace.layout import BELL
from keyspace.limits import SHARDS
from keyspace.queue.pointers import DuePointer, due_in_shard
from keyspace.records.work import LaneKind
from keyspace.store.api import Watch
from keyspace.store.errors import StoreError
from keyspace.tx import Tx
from services.fanout.metrics import FanOutMetrics
from services.fanout.options import DUE_PAGE_ITEMS, RETRY_MS, TURNS_MAX, FanOutOptions
from services.fanout.turn import Turns
from services.lanes.affinity import owned_shards
from services.lanes.alarm import Alarm, Bell
from services.lanes.clearing import clear_past_pointers
from services.lanes.duebook import DueBook, LaneOf, Scan

__all__ = ["FanOutPump"]

log = logging.getLogger(__name__)


class FanOutPump:
    """Expands events of every workspace; any number of processes may do so at once.

    A process watches the bells of the shards that rendezvous hashing gives it and reads their pointers once a bucket. The
    other shards it reads at the rescan period, and at once when their process is gone, so that nothing waits for the dead.
    """

    def __init__(
        self,
        keyspace: Keyspace,
        options: FanOutOptions,
        metrics: FanOutMetrics,
        *,
        process_id: str,
        peers: Callable[[], Sequence[str]],
    ) -> None:
        """Work on `keyspace`; `peers` returns the live fan-out processes' ids."""
        self._keyspace = keyspace
        self._options = options
        self._metrics = metrics
        self._process_id = process_id
        self._peers = peers
        self._alarm = Alarm(keyspace.clock)
        self._turns = Turns(keyspace, anyio.CapacityLimiter(options.concurrency), metrics)
        self._books = [DueBook(skew_ms=options.skew_ms, rescan_ms=options.rescan_ms) for _ in range(SHARDS)]
        self._bells = [Bell(self._alarm) for _ in range(SHARDS)]
        self._full_due_ms = [0.0] * SHARDS
        self._owned: frozenset[int] = frozenset()
        self._under_way: set[LaneOf] = set()
        self._first = 0
        self._is_draining = False

    def drain(self) -> None:
        """Begin no further turn; `run` returns when those under way have ended."""
        self._is_draining = True
        self._alarm.ring()

    async def run(self) -> None:
        """Expand events until `drain`."""
        try:
            async with anyio.create_task_group() as group:
                while not self._is_draining:
                    self._share_out()
                    delay_ms = await self._scan_due_shards(group)
                    if self._is_draining:
                        break
                    self._start_turns(group)
                    await self._alarm.wait(min(delay_ms, self._next_ms()))
                self._disarm()
        finally:
            self._disarm()

    def _disarm(self) -> None:
        for bell in self._bells:
            bell.disarm()

    def _share_out(self) -> None:
        owned = owned_shards(self._process_id, self._peers(), range(SHARDS))
        for shard in owned - self._owned:
            self._books[shard].want_full()
        for shard in self._owned - owned:
            self._bells[shard].disarm()
            self._bells[shard].has_rung = True
        self._owned = owned
        self._metrics.shards.set(len(owned))

    # -- scanning

    async def _scan_due_shards(self, group: TaskGroup) -> float:
        """Scan the shards that are due and return the longest wait until the next scan, in milliseconds."""
        now_ms = self._keyspace.clock.now_ms()
        due: dict[int, Scan] = {}
        for shard, book in enumerate(self._books):
            if shard not in self._owned:
                if now_ms >= self._full_due_ms[shard]:
                    book.want_full()
                    due[shard] = book.next_scan(now_ms)
                continue
            has_rung = self._bells[shard].has_rung
            if has_rung or book.scan_due_in_ms(now_ms) == 0:
                due[shard] = book.next_scan(now_ms)
                self._metrics.scans.labels("bell" if has_rung else "bucket").inc()
        if due:
            try:
                read, watches = await self._keyspace.transact("scan_due", lambda tx: self._scan(tx, due))
            except (StoreError, KeyspaceError) as error:
                log.warning("due pointers cannot be read", extra={"error": str(error)})
                return RETRY_MS
            self._take_in(group, due, read, watches)
        now_ms = self._keyspace.clock.now_ms()
        return min(
            (self._books[shard].scan_due_in_ms(now_ms) for shard in self._owned), default=self._options.rescan_ms
        )

    async def _scan(self, tx: Tx, due: dict[int, Scan]) -> tuple[dict[int, list[DuePointer]], dict[int, Watch]]:
        read = {
            shard: await due_in_shard(
                tx,
                LaneKind.FANOUT,
                shard,
                from_bucket=scan.from_bucket,
                to_bucket=scan.to_bucket,
                limit=DUE_PAGE_ITEMS,
            )
            for shard, scan in due.items()
        }
        watches = {
            shard: tx.watch(BELL.at(LaneKind.FANOUT, shard))
            for shard in due
            if shard in self._owned and not self._bells[shard].is_armed
        }
        return read, watches

    def _take_in(
        self, group: TaskGroup, due: dict[int, Scan], read: dict[int, list[DuePointer]], watches: dict[int, Watch]
    ) -> None:
        now_ms = self._keyspace.clock.now_ms()
        for shard, scan in due.items():
            self._books[shard].scanned(scan, read[shard], now_ms)
            if len(read[shard]) == DUE_PAGE_ITEMS:
                self._books[shard].want_full()
            if scan.is_full:
                self._full_due_ms[shard] = now_ms + self._options.rescan_ms
            if not read[shard]:
                self._metrics.empty_scans.inc()
        for shard, watch in watches.items():
            self._bells[shard].arm(group, watch)

    # -- turns

    def _next_ms(self) -> float:
        now_ms = self._keyspace.clock.now_ms()
        instants = [instant for book in self._books if (instant := book.next_instant_ms(now_ms)) is not None]
        return min(instants, default=now_ms + self._options.rescan_ms) - now_ms

    def _start_turns(self, group: TaskGroup) -> None:
        now_ms = self._keyspace.clock.now_ms()
        # Shards take turns in being first, as workspaces do within a shard.
        self._first = (self._first + 1) % SHARDS
        for book in self._books[self._first :] + self._books[: self._first]:
            for key in book.due_lanes(now_ms):
                if len(self._under_way) >= TURNS_MAX:
                    return
                if key not in self._under_way:
                    self._under_way.add(key)
                    book.look(key)
                    group.start_soon(self._turn, book, key, name="fan-out turn")

    async def _turn(self, book: DueBook, key: LaneOf) -> None:
        try:
            look = await self._turns.take(key)
            book.looked(key, next_ms=look.next_ms, has_more=look.has_more, empty_before_ms=look.empty_before_ms)
            self._metrics.pointers_cleared.inc(await clear_past_pointers(self._keyspace, book, key))
        finally:
            self._under_way.discard(key)
            self._alarm.ring()
