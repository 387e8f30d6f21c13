"""One lane's turn: find its vested items and hand each to the handler of its kind."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, NamedTuple

import anyio

from keyspace.errors import KeyspaceError
from keyspace.keyspace import Keyspace
from keyspace.layout import ITEM, bucket_of
from keyspace.limits import BUCKET_MS
from keyspace.queue.claims import candidates, next_vesting_ms
from keyspace.records.work import ItemRecord
from keyspace.tx import Tx
from services.lanes.deferral import Failures, defer_item, is_passing
from services.lanes.duebook import LaneOf
from services.lanes.handlers import Handler, Handlers
from services.lanes.metrics import LaneMetrics
from services.lanes.options import RETRY_MS, SKIPPED_ITEMS_MAX, TURN_ITEMS, UNKNOWN_KIND_MS

__all__ = ["Found", "Look", "Turns", "find_items"]

log = logging.getLogger(__name__)


class Found(NamedTuple):
    """The vested items of a lane, the ids of entries whose record cannot be read, and when the next one vests."""

    items: list[ItemRecord]
    unreadable: list[str]
    next_ms: int | None
    has_more: bool


class Look(NamedTuple):
    """What a turn says of its lane: when it is due next, whether at once, and before which instant nothing is left."""

    next_ms: int | None
    has_more: bool
    empty_before_ms: int | None = None


async def find_items(tx: Tx, key: LaneOf, *, limit: int) -> Found:
    """Return at most `limit` vested items of a server lane, read by snapshot: nothing is claimed by looking."""
    found = await candidates(tx, key.workspace, key.lane, limit=limit)
    keys = [ITEM.at(key.workspace, candidate.item_id) for candidate in found]
    unreadable: list[str] = []
    try:
        records = await tx.load_all(keys, snapshot=True)
    except KeyspaceError:
        records = []
        for candidate, item_key in zip(found, keys, strict=True):
            try:
                records.append(await tx.load(item_key, snapshot=True))
            except KeyspaceError:
                unreadable.append(candidate.item_id)
    next_ms = None
    if len(found) < limit:
        horizon_ms = (bucket_of(tx.now_ms) + 2) * BUCKET_MS
        next_ms = await next_vesting_ms(tx, key.workspace, key.lane, from_ms=tx.now_ms + 1, to_ms=horizon_ms)
    return Found([item for item in records if item is not None], unreadable, next_ms, len(found) == limit)


UNREADABLE = "unreadable"
"""How failures are labelled of items whose record cannot be read, so that their kind is not known."""


class Turns:
    """Takes turns for lanes; remembers what fails."""

    def __init__(
        self, keyspace: Keyspace, handlers: Handlers, limiter: asyncio.Semaphore, metrics: LaneMetrics
    ) -> None:
        """Hand work of `keyspace` to `handlers`, at most as many items at once as `limiter` lets."""
        self._keyspace = keyspace
        self._handlers = handlers
        self._limiter = limiter
        self._metrics = metrics
        self._failures = Failures()
        self._skipped: dict[LaneOf, dict[str, int]] = {}

    async def take(self, key: LaneOf) -> Look:
        """Handle a bounded number of a lane's items once each and say when to come again.

        One that fails is deferred, later each time, and hides none behind it (case 008).
        """
        skipped = self._skipped_now(key)
        limit = TURN_ITEMS + len(skipped)
        try:
            found = await self._keyspace.transact("find_items", lambda tx: find_items(tx, key, limit=limit))
        except Exception as error:  # noqa: BLE001 - told apart below; a turn must not end the process
            return self._look_after_trouble(key, error)
        for item_id in found.unreadable:
            if item_id not in skipped:
                await self._defer(key, item_id, UNREADABLE)
        unfinished: list[ItemRecord] = []
        wanted = [item for item in found.items if item.item_id not in skipped]
        if len(wanted) == 1:
            # A quiet service finds one item at a time, and a group with a task in it costs a tenth of handling it.
            await self._handle(key, wanted[0], unfinished)
        else:
            async with anyio.create_task_group() as group:
                for item in wanted:
                    group.start_soon(self._handle, key, item, unfinished, name=f"handle {item.kind}")
        left = [item.vesting_ms for item in unfinished] or [item.vesting_ms for item in found.items[-1:]]
        return Look(found.next_ms, found.has_more or bool(unfinished), min(left, default=None))

    async def _handle(self, key: LaneOf, item: ItemRecord, unfinished: list[ItemRecord]) -> None:
        handler = self._handlers.get(item.kind)
        if handler is None:
            # Left where it is, for a process of the release that knows the kind.
            log.warning("no handler is known for this kind of work", extra={"kind": item.kind, "item": item.item_id})
            self._pass_over(key, item.item_id, UNKNOWN_KIND_MS)
            return
        async with self._limiter:
            due_ms = max(item.vesting_ms, item.enqueued_at_ms)
            late_ms = max(0, self._keyspace.clock.now_ms() - due_ms)
            self._metrics.late_seconds.labels(item.kind).observe(late_ms / 1_000)
            try:
                goes_on = await self._run_handler(key.workspace, item, handler)
            except Exception as error:  # noqa: BLE001 - whatever one item does, the others go on
                await self._handling_failed(key, item, error, unfinished)
                return
        if len(self._failures):
            self._failures.succeeded(item.item_id)
            self._metrics.failing.set(len(self._failures))
        self._metrics.handled.labels(item.kind).inc()
        if goes_on:
            unfinished.append(item)

    async def _run_handler(self, workspace: str, item: ItemRecord, handler: Handler) -> bool:
        outcome: Any = await self._keyspace.transact(handler.transition, lambda tx: handler.handle(tx, workspace, item))
        if handler.tell is not None:
            handler.tell(outcome)
        return handler.goes_on(outcome)

    async def _handling_failed(
        self, key: LaneOf, item: ItemRecord, error: Exception, unfinished: list[ItemRecord]
    ) -> None:
        if is_passing(error):
            log.warning("an item waits for the store", extra={"item": item.item_id, "error": str(error)})
            unfinished.append(item)
            await self._keyspace.clock.sleep_ms(RETRY_MS)
            return
        log.error(
            "handling an item failed, which is deferred",
            extra={"workspace": key.workspace, "kind": item.kind, "target": item.target, "item": item.item_id},
            exc_info=error,
        )
        await self._defer(key, item.item_id, item.kind)

    async def _defer(self, key: LaneOf, item_id: str, kind: str) -> None:
        delay_ms = self._failures.failed(item_id)
        self._metrics.failures.labels(kind).inc()
        self._metrics.failing.set(len(self._failures))
        try:
            await self._keyspace.transact("defer_item", lambda tx: defer_item(tx, key.workspace, item_id, delay_ms))
        except Exception:
            log.exception(
                "an item can be neither handled nor deferred", extra={"workspace": key.workspace, "item": item_id}
            )
            self._pass_over(key, item_id, delay_ms)

    def _pass_over(self, key: LaneOf, item_id: str, delay_ms: int) -> None:
        passed_over = self._skipped.setdefault(key, {})
        if len(passed_over) < SKIPPED_ITEMS_MAX:
            passed_over[item_id] = self._keyspace.clock.now_ms() + delay_ms

    def _skipped_now(self, key: LaneOf) -> frozenset[str]:
        passed_over = self._skipped.get(key)
        if passed_over is None:
            return frozenset()
        now_ms = self._keyspace.clock.now_ms()
        for item_id in [item_id for item_id, until_ms in passed_over.items() if until_ms <= now_ms]:
            del passed_over[item_id]
        if not passed_over:
            del self._skipped[key]
        return frozenset(passed_over)

    def _look_after_trouble(self, key: LaneOf, error: Exception) -> Look:
        log.warning(
            "a lane cannot be read",
            extra={"workspace": key.workspace, "lane": key.lane.kind.name},
            exc_info=None if is_passing(error) else error,
        )
        return Look(self._keyspace.clock.now_ms() + RETRY_MS, has_more=False)
