"""The dispatcher: the sessions it holds, the pump of each application they serve, server lanes and recovery beside them."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from functools import partial

import anyio
from anyio import TASK_STATUS_IGNORED
from anyio.abc import TaskGroup, TaskStatus
from ryusen.protocol.closes import KEY_REVOKED, KEY_REVOKED_REASON
from ryusen.protocol.frames import CONTINUATION, PROTOCOL_VERSION, Hello, Refused, ServerFrame, Welcome, encode_frame

from keyspace.errors import KeyspaceError, Refusal
from keyspace.keyspace import Keyspace
from keyspace.store.errors import StoreError
from services.dispatcher.bucket_scans import BucketScans
from services.dispatcher.greeting import Greeting, greet, hello_fault
from services.dispatcher.metrics import DispatcherMetrics
from services.dispatcher.options import HELLO_MS_MAX, LANE_CONCURRENCY, SEND_MS_MAX, DispatcherOptions
from services.dispatcher.peer import Peer, PeerGone
from services.dispatcher.pump import Pump
from services.dispatcher.recovery import Recovery
from services.dispatcher.release_board import Application, ReleaseBoard
from services.dispatcher.releases import Standing
from services.dispatcher.server_handlers import SERVER_LANES, server_handlers
from services.dispatcher.session import GOING_AWAY, WorkerSession, read_frame
from services.dispatcher.session_core import BAD_FRAME, NORMAL, SUPERSEDED, SessionCore
from services.dispatcher.work_effects import WorkEffects
from services.lanes.options import LaneOptions
from services.lanes.pump import LanePump
from services.runtime.key_watch import HeldKey

__all__ = ["Dispatcher"]

log = logging.getLogger(__name__)

SERVICE_RESTART = 1012
REFUSED = 4403
NO_HELLO = 4407
BOARD_LEAVE_MS_MAX = 1_000
"""How long a leaving dispatcher tries to take back what it said of its sessions' releases."""


class Dispatcher:
    """Serves workers of every workspace; any number of dispatchers may.

    `run` must be running before `serve_peer` is called, and outlive it.
    """

    def __init__(
        self,
        keyspace: Keyspace,
        options: DispatcherOptions,
        metrics: DispatcherMetrics,
        *,
        process_id: str,
        peers: Callable[[], Sequence[str]],
        rng: random.Random | None = None,
    ) -> None:
        """Dispatch on `keyspace`.

        Args:
            keyspace: where.
            options: how.
            metrics: what is counted.
            process_id: this process, for affinity.
            peers: returns the live dispatchers' ids, this one included or not.
            rng: where claims start when there are several dispatchers.
        """
        self._keyspace = keyspace
        self._options = options
        self._metrics = metrics
        self._peers = peers
        self._rng = rng or random.Random()
        # Not a capacity limiter, which costs ten times as much and a turn of the loop each time it is taken.
        self._limiter = asyncio.Semaphore(options.concurrency)
        self._bucket_scans = BucketScans(keyspace, self._limiter, lambda: list(self._pumps.values()))
        self._board = ReleaseBoard(keyspace, process_id=process_id, skew_ms=options.skew_ms, on_change=self._reconsider)
        self._recovery = Recovery(keyspace, options, metrics, process_id=process_id, peers=peers)
        self._lanes = LanePump(
            keyspace,
            SERVER_LANES,
            server_handlers(value_bytes_max=options.value_bytes_max),
            LaneOptions(skew_ms=options.skew_ms, rescan_ms=options.rescan_ms, concurrency=LANE_CONCURRENCY),
            metrics.lanes,
            process_id=process_id,
            peers=peers,
        )
        self._pumps: dict[Application, Pump] = {}
        self._sessions: dict[tuple[str, str], WorkerSession] = {}
        self._connection_count = 0
        self._group: TaskGroup | None = None
        self._is_draining = False
        self._has_parted = anyio.Event()
        metrics.held.set_function(lambda: sum(one.core.held_count for one in self._sessions.values()))

    # -- life

    async def run(self, *, task_status: TaskStatus[None] = TASK_STATUS_IGNORED) -> None:
        """Dispatch until cancelled.

        Args:
            task_status: told when peers can be served.
        """
        async with anyio.create_task_group() as group:
            self._group = group
            group.start_soon(self._recovery.run, name="lease recovery")
            group.start_soon(self._bucket_scans.run, name="bucket scans")
            group.start_soon(self._lanes.run, name="server lanes")
            group.start_soon(self._board.run, name="live releases")
            task_status.started()
            await anyio.sleep_forever()

    async def drain(self, within_ms: int) -> None:
        """Take no sessions, lease nothing more, let what is under way settle, and end every session.

        Args:
            within_ms: how long workers may take to leave by themselves.
        """
        self._is_draining = True
        self._lanes.drain()
        for pump in self._pumps.values():
            pump.end()
        for session in list(self._sessions.values()):
            session.leave()
        with anyio.move_on_after(within_ms / 1_000):
            await self._until_parted()
        for session in list(self._sessions.values()):
            session.close(SERVICE_RESTART, "draining")
        await self._until_parted()
        try:
            with anyio.move_on_after(BOARD_LEAVE_MS_MAX / 1_000):
                await self._board.leave()
        except (StoreError, KeyspaceError) as error:
            log.warning("what sessions ran cannot be taken back; it runs out", extra={"error": repr(error)})

    async def _until_parted(self) -> None:
        while self._sessions:
            self._has_parted = anyio.Event()
            await self._has_parted.wait()

    # -- sessions

    async def serve_peer(self, peer: Peer, workspace: str, key: HeldKey | None = None) -> None:
        """Serve one accepted connection to its end.

        Args:
            peer: the connection.
            workspace: of the credential it was opened with.
            key: the credential, held for as long; its revocation ends the session. None for a peer that needs none.
        """
        if self._connection_count >= self._options.sessions_max:
            await self._refuse(peer, Refused(code="too_many_sessions", message="Try again.", definitive=False))
            return
        self._connection_count += 1
        try:
            hello = await self._hear_hello(peer)
            if hello is not None:
                await self._serve(peer, workspace, hello, key)
        except PeerGone:
            await peer.close(GOING_AWAY, "connection_lost")
        finally:
            self._connection_count -= 1

    async def _hear_hello(self, peer: Peer) -> Hello | None:
        try:
            with anyio.fail_after(HELLO_MS_MAX / 1_000):
                frame = read_frame(await peer.receive())
        except TimeoutError:
            await peer.close(NO_HELLO, "no_hello")
            return None
        except ValueError as error:
            self._metrics.hellos_refused.labels("bad_frame").inc()
            await peer.close(BAD_FRAME, f"bad_frame: {error}")
            return None
        if not isinstance(frame, Hello):
            self._metrics.hellos_refused.labels("no_hello").inc()
            await peer.close(BAD_FRAME, "hello_expected")
            return None
        refused = hello_fault(frame)
        if refused is None and (self._is_draining or self._group is None):
            refused = Refused(code="draining", message="This dispatcher is leaving.", definitive=False)
        if refused is not None:
            await self._refuse(peer, refused)
            return None
        return frame

    async def _serve(self, peer: Peer, workspace: str, hello: Hello, key: HeldKey | None) -> None:
        work = WorkEffects(self._keyspace, workspace, self._options, self._metrics)
        application = Application(workspace, hello.application)
        try:
            greeting = await greet(work, hello)
        except (StoreError, KeyspaceError) as error:
            log.warning("a session cannot be opened", extra={"workspace": workspace, "error": repr(error)})
            await self._refuse(peer, _not_now(error))
            return
        former = self._sessions.get((workspace, hello.instance))
        if former is not None:
            # What the worker goes on with is the new session's now, so the old one must not give it back.
            for held in greeting.adopted:
                former.core.hand_over(held.request)
            former.close(SUPERSEDED, "session_superseded")
        await self._send(peer, self._welcome(greeting, workspace, hello))
        await self._stand(peer, work, hello, greeting, application, key)

    async def _stand(
        self,
        peer: Peer,
        work: WorkEffects,
        hello: Hello,
        greeting: Greeting,
        application: Application,
        held_key: HeldKey | None,
    ) -> None:
        try:
            await self._board.learn(application)
        except StoreError as error:
            # The first choice may be blind to other dispatchers' releases, which is allowed at any time.
            log.warning("live releases cannot be read", extra={"workspace": work.workspace, "error": repr(error)})
        if self._is_draining:
            await peer.close(SERVICE_RESTART, "draining")
            return
        key = (work.workspace, hello.instance)
        pump = self._pump(work, hello.application)
        part = partial(self._board.part, application, greeting.session)
        session = self._session(peer, work, hello, greeting, application, pump, on_leaving=part)
        self._sessions[key] = session
        self._board.join(application, greeting.session, greeting.standing)
        pump.join(session)
        self._metrics.sessions.inc()
        log.info(
            "a worker joined",
            extra={"workspace": work.workspace, "application": hello.application, "instance": hello.instance},
        )
        if held_key is not None:
            held_key.when_revoked(partial(session.close, KEY_REVOKED, KEY_REVOKED_REASON))
        try:
            await session.run()
        finally:
            pump.part(session)
            part()
            if self._sessions.get(key) is session:
                del self._sessions[key]
            self._has_parted.set()
            self._metrics.sessions.dec()
            self._metrics.sessions_ended.labels(session.reason.partition(":")[0]).inc()
            log.info("a worker parted", extra={"instance": hello.instance, "reason": session.reason})

    def _session(
        self,
        peer: Peer,
        work: WorkEffects,
        hello: Hello,
        greeting: Greeting,
        application: Application,
        pump: Pump,
        *,
        on_leaving: Callable[[], None],
    ) -> WorkerSession:
        core = SessionCore(
            greeting.session,
            hello,
            greeting.adopted,
            lease_ms=self._options.lease_ms,
            now_ms=self._keyspace.clock.monotonic_ms(),
            continues=self._may_continue(hello),
            goes_on=partial(self._goes_on, application, greeting.standing),
        )
        return WorkerSession(
            core,
            peer,
            work,
            application=hello.application,
            standing=greeting.standing,
            limiter=self._limiter,
            on_room=pump.has_room,
            on_undo_room=pump.has_undo_room,
            on_leaving=on_leaving,
        )

    def _pump(self, work: WorkEffects, application: str) -> Pump:
        key = Application(work.workspace, application)
        pump = self._pumps.get(key)
        if pump is None or pump.is_ended:
            assert self._group is not None
            pump = Pump(
                work,
                application,
                self._limiter,
                board=self._board,
                dispatcher_count=lambda: len(self._peers()),
                rng=self._rng,
            )
            self._pumps[key] = pump
            self._group.start_soon(self._run_pump, key, pump, name="pump")
        return pump

    async def _run_pump(self, key: Application, pump: Pump) -> None:
        try:
            await pump.run()
        finally:
            if self._pumps.get(key) is pump:
                del self._pumps[key]

    # -- releases

    def _reconsider(self, application: Application) -> None:
        pump = self._pumps.get(application)
        if pump is not None:
            pump.reconsider()

    def _goes_on(self, application: Application, standing: Standing, function: str) -> bool:
        pump = self._pumps.get(application)
        is_wanted = pump is not None and pump.has_urgent_for(standing)
        return not is_wanted and self._board.goes_on(application, function, standing)

    # -- answers to hellos

    def _may_continue(self, hello: Hello) -> bool:
        return self._options.continues and CONTINUATION in hello.features

    def _welcome(self, greeting: Greeting, workspace: str, hello: Hello) -> Welcome:
        options = self._options
        return Welcome(
            session=greeting.session,
            protocol=PROTOCOL_VERSION,
            workspace=workspace,
            lease_ms=options.lease_ms,
            renew_every_ms=options.renew_every_ms,
            silence_ms=options.silence_ms,
            value_bytes_max=options.value_bytes_max,
            clock_ms=self._keyspace.clock.now_ms(),
            continues=self._may_continue(hello),
        )

    async def _refuse(self, peer: Peer, refused: Refused) -> None:
        self._metrics.hellos_refused.labels(refused.code).inc()
        await self._send(peer, refused)
        await peer.close(NORMAL if not refused.definitive else REFUSED, refused.code)

    async def _send(self, peer: Peer, frame: ServerFrame) -> None:
        try:
            with anyio.fail_after(SEND_MS_MAX / 1_000):
                await peer.send(encode_frame(frame).decode())
        except TimeoutError:
            raise PeerGone("slow") from None


def _not_now(error: StoreError | KeyspaceError) -> Refused:
    """Return the answer to a hello that may do better later."""
    if isinstance(error, Refusal) and error.code == "too_many_releases":
        return Refused(code=error.code, message=error.message, definitive=False)
    return Refused(code="store_unavailable", message="Try again in a moment.", definitive=False)
