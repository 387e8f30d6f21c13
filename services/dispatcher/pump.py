"""The work of one application of one workspace: due pointers lead to lanes, lanes to free seats of live sessions.

Nothing here grows with what is idle: pointers are read after a ring, and once a bucket for all applications together
(`bucket_scans`); a lane is looked at when a pointer names it, when an instant it told of has come, or when seats became free while it had more.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

import anyio
from anyio.abc import TaskGroup

from keyspace.layout import BELL_APP
from keyspace.limits import CLAIM_ITEMS_MAX
from keyspace.queue.pointers import DuePointer
from keyspace.records.work import Direction
from keyspace.store.api import Watch
from keyspace.tx import Tx
from services.dispatcher.bucket_scans import ScanAsk, read_pointers
from services.dispatcher.claiming import Claim, Claimer
from services.dispatcher.options import CLAIM_STARTS, DUE_PAGE_ITEMS, LINGER_MS, RETRY_MS, YIELD_MS
from services.dispatcher.release_board import Application, ReleaseBoard
from services.dispatcher.releases import Standing
from services.dispatcher.seats import Place, Seats, choose_by_release
from services.dispatcher.session import WorkerSession
from services.dispatcher.urgency import Urgency, peek_lanes
from services.dispatcher.work_effects import WorkEffects
from services.lanes.alarm import Alarm, Bell
from services.lanes.clearing import clear_past_pointers
from services.lanes.deferral import is_passing
from services.lanes.duebook import DueBook, LaneOf

__all__ = ["Pump", "seats_for_turn"]

log = logging.getLogger(__name__)


def seats_for_turn(free_count: int, waited_for_count: int = 0) -> int:
    """Return how many seats one lane may take in its turn: half of those that the other direction waits for too, and the rest.

    Compensation has its turn first, so it is never behind forward work, and leaves forward work its half. Seats that are
    reserved for compensation are waited for by nothing else.

    Args:
        free_count: seats that the lane could take.
        waited_for_count: those of them that the other direction, which waits for some, could take too.
    """
    return min(CLAIM_ITEMS_MAX, free_count - waited_for_count // 2)


class Pump:
    """Leases work of one application for its sessions while it has any.

    Attributes:
        sessions: those that stand, by session id.
    """

    def __init__(
        self,
        work: WorkEffects,
        application: str,
        limiter: asyncio.Semaphore,
        *,
        board: ReleaseBoard,
        dispatcher_count: Callable[[], int],
        rng: random.Random,
    ) -> None:
        """Serve `application`.

        Args:
            work: the transactions of its workspace.
            application: its name.
            limiter: transactions at once, over all pumps and sessions; first come, first served.
            board: which releases are live, and may run what.
            dispatcher_count: how many dispatchers live; with several, claims start apart.
            rng: where claims start.
        """
        self.sessions: dict[str, WorkerSession] = {}
        self._work = work
        self._keyspace = work.keyspace
        self._application = Application(work.workspace, application)
        self._board = board
        self._limiter = limiter
        self._dispatcher_count = dispatcher_count
        self._rng = rng
        self._claimer = Claimer(work)
        self.alarm = Alarm(self._keyspace.clock)
        self._bell = Bell(self.alarm)
        self._book = DueBook(skew_ms=work.options.skew_ms, rescan_ms=work.options.rescan_ms)
        self._wants_scan = True
        self._older_from_ms: dict[LaneOf, int] = {}
        self._urgency = Urgency()
        self._undo_waits = False
        self._is_ended = False

    # -- sessions

    def join(self, session: WorkerSession) -> None:
        """Lease for `session` from now on; everything that waited for a worker like it is looked at."""
        self.sessions[session.core.session] = session
        self.reconsider()

    def part(self, session: WorkerSession) -> None:
        """Lease nothing more for `session`."""
        self.sessions.pop(session.core.session, None)
        self.alarm.ring()

    def has_room(self) -> None:
        """A session may take more: look, unless nothing is known to wait for it."""
        if self._book.has_due(self._keyspace.clock.now_ms()):
            self.alarm.ring()

    def has_undo_room(self) -> None:
        """A session may take more compensation and nothing else: look, if the last turn left some due.

        Sessions whose places are taken by forward work say so at every frame, so this must cost nothing; compensation that has
        become due since then has rung by itself.
        """
        if self._undo_waits:
            self.alarm.ring()

    def reconsider(self) -> None:
        """Look at everything again: who may take what has changed."""
        self._older_from_ms.clear()
        self._book.want_full()
        self._wants_scan = True
        self.alarm.ring()

    def end(self) -> None:
        """Lease nothing more; `run` returns."""
        self._is_ended = True
        self.alarm.ring()

    # -- the loop

    async def run(self) -> None:
        """Lease until the application has had no session for a while."""
        try:
            async with anyio.create_task_group() as group:
                await self._lease_until_alone(group)
                self._bell.disarm()
        finally:
            self._is_ended = True
            self._bell.disarm()

    async def _lease_until_alone(self, group: TaskGroup) -> None:
        clock = self._keyspace.clock
        idle_since_ms: float | None = None
        while not self._is_ended:
            if self.sessions:
                idle_since_ms = None
                await self.alarm.wait(await self._turn(group))
                continue
            idle_since_ms = clock.monotonic_ms() if idle_since_ms is None else idle_since_ms
            left_ms = idle_since_ms + LINGER_MS - clock.monotonic_ms()
            if left_ms <= 0:
                # Before anything is awaited, so that no session can join a pump that has ended.
                self._is_ended = True
                return
            await self.alarm.wait(left_ms)

    @property
    def is_ended(self) -> bool:
        """Whether `run` has returned or is about to."""
        return self._is_ended

    async def _turn(self, group: TaskGroup) -> float | None:
        """Scan after a ring, claim what is due, and return how long nothing is known to be due; None until something rings."""
        try:
            if self._bell.has_rung or self._wants_scan:
                await self._scan(group)
            await self._claim_due_lanes()
            await self._look_for_urgent()
        except Exception as error:
            log.warning(
                "work cannot be looked for",
                extra={"workspace": self._work.workspace, "application": self._application.name, "error": repr(error)},
                exc_info=None if is_passing(error) else error,
            )
            return RETRY_MS
        return self._idle_ms()

    def _idle_ms(self) -> float | None:
        now_ms = self._keyspace.clock.now_ms()
        if self._bell.has_rung or self._wants_scan:
            return 0
        delays: list[float] = []
        due = self._book.due_lanes(now_ms)
        self._undo_waits = any(_is_undo(key) for key in due)
        for key in due:
            room_in_ms = self._room_in_ms(key, now_ms)
            if room_in_ms == 0:
                return 0
            if room_in_ms is not None:
                delays.append(room_in_ms)
        instant_ms = self._book.next_instant_ms(now_ms)
        if instant_ms is not None:
            delays.append(instant_ms - now_ms)
        monotonic_ms = self._keyspace.clock.monotonic_ms()
        peek_in_ms = self._urgency.due_in_ms(monotonic_ms)
        if peek_in_ms is not None:
            delays.append(peek_in_ms)
        pauses = (session.core.paused_for_ms(monotonic_ms) for session in self.sessions.values())
        delays += [pause_ms for pause_ms in pauses if pause_ms is not None]
        return min(delays, default=None)

    def _room_in_ms(self, key: LaneOf, now_ms: int) -> int | None:
        """Return after how long some session has room for the lane: older releases' sessions let newer ones go first."""
        places = [place for place in self._places(key) if place.free_count]
        if not places:
            return None
        newest = self._board.newest(self._application, key.lane.function)
        if any(place.position >= newest for place in places):
            return 0
        return max(0, self._older_from_ms.get(key, 0) - now_ms)

    def _places(self, key: LaneOf) -> list[Place[WorkerSession]]:
        """Return the sessions that may run the lane's function, with their free places."""
        function, is_undo = key.lane.function, _is_undo(key)
        return [
            Place(session, session.free_count(is_undo=is_undo), session.standing.position)
            for session in self.sessions.values()
            if self._board.is_eligible(self._application, function, session.standing)
        ]

    # -- scanning

    def due_scan(self, now_ms: int) -> ScanAsk | None:
        """Return what to read at the turn of a bucket; None without sessions, or when a ring has the pump scan by itself."""
        if not self.sessions or self._bell.has_rung or self._book.scan_due_in_ms(now_ms) > 0:
            return None
        return ScanAsk(self._work.workspace, self._application.name, self._book.next_scan(now_ms))

    def take_in(self, ask: ScanAsk, pointers: list[DuePointer], reason: str) -> None:
        """Take in a scan and wake the pump when it names a lane that its sessions serve."""
        served = self._served()
        named = [pointer for pointer in pointers if pointer[2].function in served]
        self._book.scanned(ask.scan, named, self._keyspace.clock.now_ms())
        self._urgency.stirred(LaneOf(workspace, lane) for _, workspace, lane in named)
        if len(pointers) == DUE_PAGE_ITEMS:
            self._book.want_full()  # with the next bucket's, when what this page named was worked on
        metrics = self._work.metrics
        metrics.scans.labels(reason).inc()
        if named:
            self.alarm.ring()
        else:
            metrics.empty_scans.inc()

    async def _scan(self, group: TaskGroup) -> None:
        """Scan at once, and watch the bell from the same moment on unless it is watched."""
        reason = "bell" if self._bell.has_rung else "hello"
        self._wants_scan = False
        scan = self._book.next_scan(self._keyspace.clock.now_ms())
        ask = ScanAsk(self._work.workspace, self._application.name, scan)

        async def body(tx: Tx) -> tuple[list[DuePointer], Watch | None]:
            pointers = await read_pointers(tx, ask)
            watch = None if self._bell.is_armed else tx.watch(BELL_APP.at(ask.workspace, ask.application))
            return pointers, watch

        async with self._limiter:
            pointers, watch = await self._keyspace.transact("scan_due", body)
        if watch is not None:
            self._bell.arm(group, watch)
        self.take_in(ask, pointers, reason)

    def _served(self) -> set[str]:
        return {name for session in self.sessions.values() for name in session.core.functions}

    # -- claiming

    async def _claim_due_lanes(self) -> None:
        """Give every lane that is due one turn, compensation first; lanes of one direction take turns."""
        due = self._book.due_lanes(self._keyspace.clock.now_ms())
        served = self._served()
        undoing = [key for key in due if _is_undo(key)]
        forward = [key for key in due if not _is_undo(key)]
        for keys, others in ((undoing, forward), (forward, [])):
            for key in keys:
                if key.lane.function not in served:
                    self._book.forget(key)
                else:
                    await self._claim(key, is_contended=bool(others))

    async def _claim(self, key: LaneOf, *, is_contended: bool) -> None:
        now_ms = self._keyspace.clock.now_ms()
        places = self._places(key)
        waited_for_count = sum(place.session.free_count() for place in places) if is_contended else 0
        limit = seats_for_turn(sum(place.free_count for place in places), waited_for_count)
        newest = self._board.newest(self._application, key.lane.function)
        seats = choose_by_release(places, newest, limit)
        if self._older_from_ms.get(key, 0) > now_ms:
            seats = Seats(seats.preferred, [])
        if not seats.preferred and not seats.older:
            return  # it stays due; a session that gets room rings
        self._book.look(key)
        claim = Claim(0, has_more=True, next_ms=None)
        try:
            async with self._limiter:
                claim = await self._claim_in_order(key, seats)
        finally:
            self._book.looked(
                key, next_ms=claim.next_ms, has_more=claim.has_more, empty_before_ms=claim.empty_before_ms
            )
        if claim.leased_count and claim.has_more:
            self._urgency.stirred([key])
        cleared = await clear_past_pointers(self._keyspace, self._book, key)
        self._work.metrics.pointers_cleared.inc(cleared)

    async def _claim_in_order(self, key: LaneOf, seats: Seats[WorkerSession]) -> Claim:
        """Lease for the preferred release; what that leaves, once it has been ready for the yield time, for older ones."""
        claim = Claim(0, has_more=True, next_ms=None)
        if seats.preferred:
            place = self._urgency.place_in(key)
            skip = self._first(len(seats.preferred)) if place is None else place
            claim = await self._claimer.claim(key, seats.preferred, skip=skip)
            self._urgency.taken(key)
        if seats.older or not claim.has_more:
            self._older_from_ms.pop(key, None)
        if not seats.older or not claim.has_more:
            return claim
        late = await self._claimer.claim(key, seats.older, skip=self._first(len(seats.older)), ready_for_ms=YIELD_MS)
        leased_count = claim.leased_count + late.leased_count
        empty_before_ms = late.empty_before_ms or claim.empty_before_ms
        if late.has_more or late.next_ms is None:
            return Claim(leased_count, late.has_more, None, empty_before_ms)
        # What is left is too young for older releases; a preferred session that gets room takes it before they do.
        self._older_from_ms[key] = late.next_ms + YIELD_MS
        return Claim(leased_count, has_more=True, next_ms=None, empty_before_ms=empty_before_ms)

    # -- what sessions yield to

    def has_urgent_for(self, standing: Standing) -> bool:
        """Return whether work of a higher priority than a run under way waits for a seat that such a session could give it."""
        return self._urgency.is_waited_for(
            lambda key: self._board.is_eligible(self._application, key.lane.function, standing)
        )

    async def _look_for_urgent(self) -> None:
        """Look into the lanes that are due and have no free seat, if something came to them or left them."""
        due = self._book.due_lanes(self._keyspace.clock.now_ms())
        full = [key for key in due if not any(place.free_count for place in self._places(key))]
        keys = self._urgency.to_peek(full, self._keyspace.clock.monotonic_ms())
        if not keys:
            return
        async with self._limiter:
            found = await self._keyspace.transact("peek_lanes", lambda tx: peek_lanes(tx, keys))
        self._urgency.peeked(keys, found, self._keyspace.clock.monotonic_ms())

    def _first(self, batch: int) -> int:
        if self._dispatcher_count() < 2:
            return 0
        return self._rng.randrange(CLAIM_STARTS) * batch


def _is_undo(key: LaneOf) -> bool:
    return key.lane.direction is Direction.COMPENSATION
