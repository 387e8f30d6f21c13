"""One worker session as tasks: a reader, a writer with a bounded queue, a watch on silence, and the work they ask for.

A slow, silent or broken peer ends its own session and nothing else. When the connection is gone, transactions under way may
finish for a bounded time; then what the session held goes back by what is known of it.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Iterable

import anyio
import msgspec
from ryusen.protocol.frames import (
    FRAME_BYTES_MAX,
    Assign,
    Proceed,
    ServerFrame,
    Settled,
    Start,
    WorkerFrame,
    decode_worker_frame,
    encode_frame,
)

from keyspace.queue.items import Seat
from keyspace.transitions.hold import Hold
from keyspace.transitions.lease_items import Delivery
from keyspace.transitions.work import Stale
from services.dispatcher.assigning import load_assign
from services.dispatcher.effects import (
    Authorize,
    Close,
    CloseSession,
    Effect,
    Leaving,
    Load,
    Lose,
    Renewal,
    Return,
    Send,
    Settle,
    Unstart,
    Wait,
)
from services.dispatcher.held import Held
from services.dispatcher.holds import Holds
from services.dispatcher.options import (
    CLEANUP_CONCURRENCY,
    CLEANUP_MS_MAX,
    HANDLERS_MAX,
    LOADS_MAX,
    OUTBOX_FRAMES_MAX,
    SEND_MS_MAX,
    SETTLE_MS_MAX,
    SETTLE_PAUSE_MS,
    SETTLE_TRIES_MAX,
)
from services.dispatcher.peer import Peer, PeerGone
from services.dispatcher.releases import Standing
from services.dispatcher.replays import Replays, Sent
from services.dispatcher.session_core import BAD_FRAME, SessionCore
from services.dispatcher.settlement import Outcome, settle
from services.dispatcher.work_effects import WorkEffects
from services.lanes.crew import Crew
from services.lanes.deferral import is_passing

__all__ = ["GOING_AWAY", "WorkerSession", "read_frame"]

log = logging.getLogger(__name__)

GOING_AWAY = 1001
TRY_AGAIN = 1013
TOO_LARGE = 4413
SILENT = 4408
SLOW = 4429


def read_frame(message: str | bytes) -> WorkerFrame:
    """Return the frame in one message.

    Raises:
        ValueError: not UTF-8, not JSON, or no frame of this protocol.
    """
    try:
        return decode_worker_frame(message if isinstance(message, str) else message.decode())
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(str(error)) from None


class WorkerSession:
    """A session that stands.

    Attributes:
        core: its decisions.
        workspace: whose work it does.
        application: which application's.
        standing: what it runs.
    """

    def __init__(
        self,
        core: SessionCore,
        peer: Peer,
        work: WorkEffects,
        *,
        application: str,
        standing: Standing,
        limiter: asyncio.Semaphore,
        on_room: Callable[[], None],
        on_undo_room: Callable[[], None],
        on_leaving: Callable[[], None],
    ) -> None:
        """Serve `peer`.

        Args:
            core: fresh, with what the hello listed.
            peer: the accepted connection; the welcome was sent.
            work: the transactions of the session's workspace.
            application: the application it serves.
            standing: the release it runs.
            limiter: transactions at once, over all sessions.
            on_room: called when the session may take more work.
            on_undo_room: called when it may take more compensation and nothing else.
            on_leaving: called when the worker says that it takes no more.
        """
        self.core = core
        self.workspace = work.workspace
        self.application = application
        self.standing = standing
        self._peer = peer
        self._work = work
        self._clock = work.keyspace.clock
        self._limiter = limiter
        self._on_room = on_room
        self._on_undo_room = on_undo_room
        self._on_leaving = on_leaving
        self._replays = Replays() if core.keeps_replays else None
        self._loads = asyncio.Semaphore(LOADS_MAX)
        self._outbox: deque[tuple[ServerFrame, anyio.Event | None]] = deque()
        self._sendable = anyio.Event()
        self._closing = anyio.Event()
        self._close = Close(GOING_AWAY, "connection_lost")
        self._crew: Crew[Effect] | None = None
        self._holds = Holds(self._clock, self.core.is_waiting, lambda following: self._perform(core.waited(following)))
        self._handler_count = 0
        self._has_ended_one = anyio.Event()
        self._heard_ms = self._clock.monotonic_ms()

    @property
    def is_open(self) -> bool:
        """Whether work can be delivered."""
        return self._crew is not None and not self._closing.is_set()

    @property
    def reason(self) -> str:
        """Why the session ended."""
        return self._close.reason

    def free_count(self, *, is_undo: bool = False) -> int:
        """How many more deliveries may be leased for this session now; `is_undo`: of compensation."""
        return self.core.free_count(self._clock.monotonic_ms(), is_undo=is_undo) if self.is_open else 0

    def deliver(self, delivery: Delivery) -> bool:
        """Take a lease made for this session; says whether it could."""
        if not self.is_open:
            return False
        self._perform(self.core.assigned(delivery, self._clock.monotonic_ms()))
        return True

    def leave(self) -> None:
        """Tell the worker to go elsewhere; what is under way settles."""
        self._perform(self.core.leave())

    def close(self, code: int, reason: str) -> None:
        """End the session; the first reason counts."""
        if not self._closing.is_set():
            self._close = Close(code, reason)
            self._closing.set()

    # -- life

    async def run(self) -> None:
        """Serve until the connection ends, then give back what was held."""
        try:
            async with anyio.create_task_group() as group:
                self._crew = Crew(group, self._do, "session work")
                self._on_room()
                async with anyio.create_task_group() as link:
                    link.start_soon(self._read, name="session reader")
                    link.start_soon(self._write, name="session writer")
                    link.start_soon(self._keep_time, name="session time")
                    link.start_soon(self._holds.run, name="session holds")
                    await self._closing.wait()
                    link.cancel_scope.cancel()
                with anyio.move_on_after(SETTLE_MS_MAX / 1_000):
                    await self._handlers_below(1)
                group.cancel_scope.cancel()
        finally:
            self._closing.set()
            with anyio.move_on_after(CLEANUP_MS_MAX / 1_000, shield=True):
                await self._peer.close(self._close.code, self._close.reason)
                await self._clean_up()

    async def _clean_up(self) -> None:
        limiter = anyio.CapacityLimiter(CLEANUP_CONCURRENCY)

        async def one(effect: Effect) -> None:
            async with limiter:
                await self._put_back(effect)

        async with anyio.create_task_group() as group:
            for effect in self.core.ended():
                group.start_soon(one, effect, name="session clean-up")

    async def _read(self) -> None:
        try:
            while True:
                message = await self._peer.receive()
                self._heard_ms = self._clock.monotonic_ms()
                if len(message) > FRAME_BYTES_MAX:
                    self.close(TOO_LARGE, "frame_too_large")
                    return
                self._perform(self.core.received(read_frame(message), self._heard_ms))
                await self._handlers_below(HANDLERS_MAX)
        except PeerGone as error:
            self.close(GOING_AWAY, f"connection_lost: {error}")
        except ValueError as error:
            self.close(BAD_FRAME, f"bad_frame: {error}")

    async def _write(self) -> None:
        try:
            # One scope, its deadline moved for each frame: a scope for each would cost more than the frame.
            with anyio.CancelScope() as patience:
                while True:
                    self._sendable = anyio.Event()
                    while self._outbox:
                        frame, sent = self._outbox.popleft()
                        if isinstance(frame, Start):
                            self.core.start_leaves(frame.request)
                        elif isinstance(frame, Proceed):
                            self.core.start_leaves(frame.following)
                        patience.deadline = anyio.current_time() + SEND_MS_MAX / 1_000
                        await self._peer.send(encode_frame(frame).decode())
                        if sent is not None:
                            sent.set()
                    patience.deadline = math.inf
                    await self._sendable.wait()
            self.close(SLOW, "slow_peer")
        except PeerGone as error:
            self.close(GOING_AWAY, f"connection_lost: {error}")

    async def _keep_time(self) -> None:
        options = self._work.options
        while True:
            now_ms = self._clock.monotonic_ms()
            left_ms = self._heard_ms + options.silence_ms - now_ms
            if left_ms <= 0:
                self.close(SILENT, "silence")
                return
            self._perform(self.core.tick(now_ms))
            await self._clock.sleep_ms(min(left_ms, options.renew_every_ms))

    # -- effects

    def _perform(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                self._send(effect.frame)
            elif isinstance(effect, Close):
                self.close(effect.code, effect.reason)
            elif isinstance(effect, Leaving):
                self._on_leaving()
            elif isinstance(effect, Wait):
                self._holds.begin(effect.following)
            elif self._crew is not None:
                if not isinstance(effect, Load):
                    self._handler_count += 1
                self._crew.give(effect)
        if self.free_count():
            self._on_room()
        elif self.free_count(is_undo=True):
            self._on_undo_room()

    def _send(self, frame: ServerFrame, sent: anyio.Event | None = None) -> None:
        if len(self._outbox) >= OUTBOX_FRAMES_MAX:
            self.close(SLOW, "slow_peer")
            return
        self._outbox.append((frame, sent))
        self._sendable.set()

    async def _handlers_below(self, count: int) -> None:
        while self._handler_count >= count:
            self._has_ended_one = anyio.Event()
            await self._has_ended_one.wait()

    async def _do(self, effect: Effect) -> None:
        if isinstance(effect, Load):
            await self._load(effect.held, is_full=effect.is_full)
            return
        try:
            if isinstance(effect, Settle):
                await self._settle(effect)
            elif isinstance(effect, Authorize):
                await self._authorize(effect.held)
            elif isinstance(effect, Renewal):
                await self._renew(effect)
            else:
                await self._put_back(effect)
                self._perform(())
        finally:
            self._handler_count -= 1
            self._has_ended_one.set()

    async def _load(self, held: Held, *, is_full: bool) -> None:
        delivery = held.delivery
        assert delivery is not None

        run_id = delivery.run.run_id

        async def body() -> tuple[Assign, Sent]:
            async with self._limiter:
                known = self._replays.of(run_id) if self._replays is not None else None
                return await load_assign(self._work.keyspace, delivery, held.request, known)

        async with self._loads:
            if is_full and self._replays is not None:
                self._replays.forget(run_id)
            loaded = await self._work.tried("an assignment cannot be read", body)
            effects = self.core.loaded(held, None if loaded is None else loaded[0])
            sent = anyio.Event()
            for effect in effects:
                if isinstance(effect, Send):
                    # The next assignment is read when this one is with the transport, so that a slow peer costs little.
                    if self._replays is not None and loaded is not None:
                        self._replays.remember(run_id, loaded[1])
                    self._send(effect.frame, sent)
                    self._work.metrics.assigned.inc()
                    await sent.wait()
                else:
                    self._handler_count += 1
                    await self._do(effect)

    async def _settle(self, effect: Settle) -> None:
        frame = effect.frame
        kind = type(frame).__name__.lower()
        outcome = await self._try_settle(effect)
        if isinstance(outcome, Outcome):
            verdict = outcome.frame.verdict if isinstance(outcome.frame, Settled) else "accepted"
            self._work.metrics.settled.labels(kind, verdict).inc()
            self._perform(self.core.settled(effect, outcome, self._clock.monotonic_ms()))
            return
        self._work.metrics.settle_failures.labels(kind).inc()
        self._perform(self.core.settled(effect, None, self._clock.monotonic_ms()))
        if is_passing(outcome):
            # The worker keeps what it said and says it again in its next session, which may be another dispatcher's.
            self.close(TRY_AGAIN, "store_unavailable")
        else:
            # Closing would only bring the same frame again. It stays with its worker, and the run shows as running.
            log.error(
                "a settlement failed", extra={"workspace": self.workspace, "run": frame.ref.run}, exc_info=outcome
            )

    def _hold(self) -> Hold:
        core = self.core
        seat = Seat(core.session, core.instance, core.release, self._work.keyspace.mint())
        return Hold(seat, self._work.options.lease_ms)

    async def _try_settle(self, effect: Settle) -> Outcome | Exception:
        """Settle, again while only the store is in the way, a bounded number of times; return the outcome or the last error."""
        pause_ms = SETTLE_PAUSE_MS
        hold = self._hold() if effect.may_hold else None
        last: Exception = RuntimeError("a settlement was never tried")
        for _ in range(SETTLE_TRIES_MAX):
            try:
                async with self._limiter:
                    return await settle(
                        self._work.keyspace,
                        self.workspace,
                        effect.frame,
                        value_bytes_max=self._work.options.value_bytes_max,
                        joint=effect.joint,
                        hold=hold,
                    )
            except Exception as error:  # noqa: BLE001 - told apart by the caller; the session must live
                last = error
                if not is_passing(error):
                    break
            await self._clock.sleep_ms(pause_ms)
            pause_ms *= 2
        return last

    async def _authorize(self, held: Held) -> None:
        core = self.core
        verdict = None
        try:
            async with self._limiter:
                verdict = await self._work.authorize(
                    held.work, session=core.session, instance=core.instance, release=core.release
                )
        except Exception as error:  # noqa: BLE001 - whatever it was, the start is not sent and the work goes back
            log.warning("a start cannot be authorized", extra={"workspace": self.workspace, "error": repr(error)})
        word = "unknown" if verdict is None else verdict.code if isinstance(verdict, Stale) else type(verdict).__name__
        self._work.metrics.authorized.labels(word.lower()).inc()
        self._perform(core.authorized(held, verdict))

    async def _renew(self, renewal: Renewal) -> None:
        try:
            kept = await self._work.renew(renewal.held)
        except Exception as error:  # noqa: BLE001 - the next renewal comes soon
            log.warning("leases cannot be renewed", extra={"workspace": self.workspace, "error": repr(error)})
            return
        self._perform(self.core.renewed(renewal, kept, self._clock.monotonic_ms()))

    async def _put_back(self, effect: Effect) -> None:
        work, core = self._work, self.core
        if isinstance(effect, Settle):
            await self._try_settle(effect)
        elif isinstance(effect, Return):
            await work.tried("work cannot be given back", lambda: work.give_back(effect.item_id, effect.token))
        elif isinstance(effect, Lose):
            named = effect.held.work
            await work.tried("a lease cannot be ended", lambda: work.lose(named.item_id, named.token))
        elif isinstance(effect, Unstart):
            await work.tried(
                "a start cannot be taken back", lambda: work.unstart(effect.held, core.instance, core.session)
            )
        elif isinstance(effect, CloseSession):
            await work.tried("a session cannot be closed", lambda: work.close_session(core.instance, core.session))
