"""Recovery of expired leases, whether or not any worker is connected.

Every dispatcher sweeps every shard: its own by rendezvous often, the others' less often, so that a dead or stuck dispatcher
hides nothing and no duty rests on a lease (case 010). A pass walks the whole index of a shard with a cursor that always
moves; an entry that fails is tried again later and later, and hides none behind it (case 008). What a pass costs follows
what is leased, never the backlog.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence

import anyio

from keyspace.keyspace import Keyspace
from keyspace.layout import bucket_of
from keyspace.limits import SHARDS
from keyspace.queue.leases import LeaseEntry, expired_leases
from keyspace.transitions.lose_lease import Loss, lose_lease
from services.dispatcher.metrics import DispatcherMetrics
from services.dispatcher.options import (
    PEER_SHARDS_FACTOR,
    RECOVERY_CONCURRENCY,
    RECOVERY_PAGE_ITEMS,
    RECOVERY_PAGES_MAX,
    RETRY_MS,
    DispatcherOptions,
)
from services.lanes.affinity import owned_shards
from services.lanes.deferral import Failures, is_passing

__all__ = ["Recovery"]

log = logging.getLogger(__name__)

PUT_OFF_MAX = 10_000
"""Leases remembered as not to be tried yet; the oldest are forgotten first and tried at the next pass."""
NOT_LOST_MS = 1_000
"""How long an entry is left alone that looked expired and was not."""


class Recovery:
    """Sweeps the lease index."""

    def __init__(
        self,
        keyspace: Keyspace,
        options: DispatcherOptions,
        metrics: DispatcherMetrics,
        *,
        process_id: str,
        peers: Callable[[], Sequence[str]],
    ) -> None:
        """Sweep `keyspace`; `peers` returns the live dispatchers' ids."""
        self._keyspace = keyspace
        self._options = options
        self._metrics = metrics
        self._process_id = process_id
        self._peers = peers
        self._failures = Failures()
        self._retry_at_ms: OrderedDict[str, float] = OrderedDict()
        self._sweep_count = 0

    async def run(self) -> None:
        """Sweep until cancelled."""
        while True:
            delay_ms = float(self._options.recovery_ms)
            try:
                await self.sweep()
            except Exception as error:
                log.warning("leases cannot be swept", exc_info=None if is_passing(error) else error)
                delay_ms = max(delay_ms, RETRY_MS)
            await self._keyspace.clock.sleep_ms(delay_ms)

    async def sweep(self) -> int:
        """Make one pass over the shards that are due and return how many leases were recovered."""
        owned = owned_shards(self._process_id, self._peers(), range(SHARDS))
        is_wide = self._sweep_count % PEER_SHARDS_FACTOR == 0
        self._sweep_count += 1
        shards = range(SHARDS) if is_wide else sorted(owned)
        recovered = 0
        for shard in shards:
            recovered += await self._sweep_shard(shard)
        return recovered

    async def _sweep_shard(self, shard: int) -> int:
        # A lease in the current bucket may not have run out yet; one bucket later it has.
        before_bucket = bucket_of(self._keyspace.clock.now_ms()) - 1
        after: bytes | None = None
        recovered = 0
        for _ in range(RECOVERY_PAGES_MAX):
            page = await self._read_page(shard, before_bucket, after)
            recovered += await self._recover(page)
            if len(page) < RECOVERY_PAGE_ITEMS:
                break
            after = page[-1].key
        return recovered

    async def _read_page(self, shard: int, before_bucket: int, after: bytes | None) -> list[LeaseEntry]:
        return await self._keyspace.transact(
            "scan_leases",
            lambda tx: expired_leases(tx, shard, before_bucket=before_bucket, after=after, limit=RECOVERY_PAGE_ITEMS),
        )

    async def _recover(self, page: list[LeaseEntry]) -> int:
        limiter = anyio.CapacityLimiter(RECOVERY_CONCURRENCY)
        outcomes: list[Loss] = []

        async def one(entry: LeaseEntry) -> None:
            async with limiter:
                outcomes.append(await self._recover_one(entry))

        async with anyio.create_task_group() as group:
            for entry in page:
                group.start_soon(one, entry, name="lose_lease")
        return sum(outcome is not Loss.NOT_LOST for outcome in outcomes)

    async def _recover_one(self, entry: LeaseEntry) -> Loss:
        if self._keyspace.clock.monotonic_ms() < self._retry_at_ms.get(entry.item_id, 0):
            return Loss.NOT_LOST
        try:
            loss = await self._keyspace.transact(
                "lose_lease", lambda tx: lose_lease(tx, entry.workspace, entry.item_id)
            )
        except Exception as error:
            if is_passing(error):
                return Loss.NOT_LOST
            self._metrics.recovery_failures.inc()
            log.error(
                "a lease cannot be recovered; it is tried again later",
                extra={"workspace": entry.workspace, "item": entry.item_id},
                exc_info=error,
            )
            self._put_off(entry.item_id, self._failures.failed(entry.item_id))
            return Loss.NOT_LOST
        if loss is Loss.NOT_LOST:
            # Renewed or settled meanwhile, or an entry without its item: looking again at once would tell nothing new.
            self._put_off(entry.item_id, NOT_LOST_MS)
            return loss
        self._failures.succeeded(entry.item_id)
        self._retry_at_ms.pop(entry.item_id, None)
        self._metrics.losses.labels(loss.name.lower()).inc()
        return loss

    def _put_off(self, item_id: str, delay_ms: float) -> None:
        self._retry_at_ms.pop(item_id, None)
        self._retry_at_ms[item_id] = self._keyspace.clock.monotonic_ms() + delay_ms
        if len(self._retry_at_ms) > PUT_OFF_MAX:
            self._retry_at_ms.popitem(last=False)
