"""Leasing a lane's items for chosen sessions, and finding the one item that keeps a claim from committing."""

from __future__ import annotations

import logging
from typing import NamedTuple

from keyspace.layout import bucket_of
from keyspace.limits import BUCKET_MS, LOSSES_STUCK
from keyspace.queue.claims import candidates, next_vesting_ms
from keyspace.queue.items import Seat
from keyspace.records.work import Direction
from keyspace.store.errors import OutcomeUnknownError
from keyspace.store.runner import RetriesExhausted
from keyspace.transitions.lease_items import Delivery, lease_items
from keyspace.tx import Tx
from services.dispatcher.assigning import with_input
from services.dispatcher.options import ISOLATION_ITEMS_MAX
from services.dispatcher.session import WorkerSession
from services.dispatcher.work_effects import WorkEffects
from services.lanes.deferral import Failures, defer_item, is_passing
from services.lanes.duebook import LaneOf

__all__ = ["Claim", "Claimer"]

log = logging.getLogger(__name__)


class Claim(NamedTuple):
    """What a claim says of its lane.

    How many it leased, whether vested entries may be left, when the next one vests (one that a claim with `ready_for_ms` left
    has vested already), and before which instant nothing is left.
    """

    leased_count: int
    has_more: bool
    next_ms: int | None
    empty_before_ms: int | None = None


class Claimer:
    """Leases work for sessions."""

    def __init__(self, work: WorkEffects) -> None:
        """Claim in one workspace."""
        self._work = work
        self._keyspace = work.keyspace
        self._failures = Failures()
        self._passed_over: dict[LaneOf, int] = {}

    async def claim(self, key: LaneOf, sessions: list[WorkerSession], *, skip: int, ready_for_ms: int = 0) -> Claim:
        """Lease at most one item of a lane for each entry of `sessions` and deliver what was leased.

        Args:
            key: the lane.
            sessions: a session as often as it has a seat in this claim, at most 64.
            skip: where to start, so that several dispatchers start apart; when nothing is there, the claim starts at the head.
            ready_for_ms: lease only what has been ready for so long, in milliseconds.

        Raises:
            StoreError: the store did not let the claim be made.
        """
        head = self._passed_over.get(key, 0)
        try:
            claim = await self._claim(key, sessions, head + skip, ready_for_ms)
            if skip and claim.leased_count:
                claim = claim._replace(has_more=True)  # before where it started
            elif skip:
                claim = await self._claim(key, sessions, head, ready_for_ms)
        except Exception as error:
            if is_passing(error):
                raise
            log.exception("a claim failed; its entries are tried one by one", extra={"workspace": key.workspace})
            return await self._claim_one_by_one(key, sessions, ready_for_ms)
        return claim

    async def _claim(self, key: LaneOf, sessions: list[WorkerSession], skip: int, ready_for_ms: int) -> Claim:
        is_undo = key.lane.direction is Direction.COMPENSATION
        seats: list[Seat] = []
        by_token: dict[str, WorkerSession] = {}
        for session in sessions:
            token = self._keyspace.mint()
            core = session.core
            seats.append(Seat(core.session, core.instance, core.release, token))
            by_token[token] = session
            core.reserve(token, is_undo=is_undo)
        tried: dict[str, Seat] = {}
        try:
            deliveries, next_ms = await self._lease(key, seats, tried, skip, ready_for_ms)
            await self._hand_out(deliveries, by_token)
        finally:
            for token, session in by_token.items():
                session.core.release_seat(token)
        self._work.metrics.claims.labels("leased" if deliveries else "empty").inc()
        # Entries are taken in the order of their instants, so a claim from the head leaves nothing older than its last.
        is_from_head = bool(deliveries) and skip == 0
        empty_before_ms = max(delivery.item.vesting_ms for delivery in deliveries) if is_from_head else None
        return Claim(len(deliveries), len(deliveries) == len(seats), next_ms, empty_before_ms)

    async def _lease(
        self, key: LaneOf, seats: list[Seat], tried: dict[str, Seat], skip: int, ready_for_ms: int
    ) -> tuple[list[Delivery], int | None]:
        async def body(tx: Tx) -> tuple[list[Delivery], int | None]:
            deliveries = await lease_items(
                tx,
                key.workspace,
                key.lane,
                list(seats),
                lease_ms=self._work.options.lease_ms,
                tried=tried,
                skip=skip,
                ready_for_ms=ready_for_ms,
            )
            deliveries = [await with_input(tx, delivery) for delivery in deliveries]
            if len(deliveries) == len(seats):
                return deliveries, None
            horizon_ms = (bucket_of(tx.now_ms) + 2) * BUCKET_MS
            return deliveries, await next_vesting_ms(
                tx, key.workspace, key.lane, from_ms=tx.now_ms - ready_for_ms + 1, to_ms=horizon_ms
            )

        try:
            return await self._keyspace.transact("lease_items", body)
        except (OutcomeUnknownError, RetriesExhausted):
            if not tried:
                raise

        # An attempt may have leased after all: without seats, the transition only says what it holds.
        async def recall(tx: Tx) -> list[Delivery]:
            return await lease_items(tx, key.workspace, key.lane, [], lease_ms=self._work.options.lease_ms, tried=tried)

        return await self._keyspace.transact("lease_items", recall), None

    async def _hand_out(self, deliveries: list[Delivery], by_token: dict[str, WorkerSession]) -> None:
        now_ms = self._keyspace.clock.now_ms()
        metrics = self._work.metrics
        for delivery in deliveries:
            item = delivery.item
            metrics.leased.labels(item.kind.value).inc()
            metrics.ready_to_lease_seconds.observe(max(0, now_ms - max(item.vesting_ms, item.enqueued_at_ms)) / 1_000)
            if item.loss_count >= LOSSES_STUCK:
                metrics.stuck.inc()
            if not by_token[delivery.seat.token].deliver(delivery):
                await self._hand_back(delivery)

    async def _hand_back(self, delivery: Delivery) -> None:
        """Return a lease whose session ended while it was made."""
        await self._work.tried(
            "work cannot be given back",
            lambda: self._work.give_back(delivery.item.item_id, delivery.seat.token),
        )

    async def _claim_one_by_one(self, key: LaneOf, sessions: list[WorkerSession], ready_for_ms: int) -> Claim:
        """Lease past the items that fail: each of those is deferred, later each time, so that it hides nothing (case 008)."""
        position, leased_count, failed_count = 0, 0, 0
        waiting = list(sessions)
        for _ in range(ISOLATION_ITEMS_MAX):
            if not waiting:
                break
            try:
                claim = await self._claim(key, waiting[:1], position, ready_for_ms)
            except Exception as error:
                if is_passing(error):
                    raise
                failed_count += 1
                if not await self._defer(key, position, ready_for_ms, error):
                    position += 1
                continue
            if claim.leased_count == 0:
                break
            leased_count += claim.leased_count
            waiting.pop(0)
        self._passed_over[key] = position
        if not position:
            del self._passed_over[key]
        has_more = not waiting or failed_count >= ISOLATION_ITEMS_MAX or ready_for_ms > 0
        return Claim(leased_count, has_more, None)

    async def _defer(self, key: LaneOf, position: int, ready_for_ms: int, error: Exception) -> bool:
        """Move the entry at `position` out of the way; says whether it went."""
        found = await self._keyspace.transact(
            "find_failing",
            lambda tx: candidates(tx, key.workspace, key.lane, skip=position, limit=1, ready_for_ms=ready_for_ms),
        )
        if not found:
            return False
        item_id = found[0].item_id
        delay_ms = self._failures.failed(item_id)
        self._work.metrics.claim_failures.inc()
        log.error(
            "an item cannot be leased and is deferred",
            extra={"workspace": key.workspace, "item": item_id, "delay_ms": delay_ms},
            exc_info=error,
        )
        try:
            return await self._keyspace.transact(
                "defer_item", lambda tx: defer_item(tx, key.workspace, item_id, delay_ms)
            )
        except Exception as trouble:
            if is_passing(trouble):
                raise
            log.exception("an item can be neither leased nor deferred", extra={"item": item_id})
            return False
