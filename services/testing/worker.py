"""A worker of the SDK without a socket: its core and its user side, driven by the engine's loop and clock.

User code runs on the user side's own thread, as in production. What it is doing is counted here, so that the engine knows
whether it has to wait for user code before it lets time pass.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, replace
from typing import Any

import anyio
from anyio.abc import TaskGroup
from ryusen.app import App
from ryusen.protocol.frames import Proceed, WorkRef
from ryusen.version import SDK
from ryusen.worker.core import WorkerCore
from ryusen.worker.effects import (
    CancelCallback,
    Close,
    ClosePass,
    ContinuePass,
    Effect,
    Exit,
    MovePass,
    ResumePass,
    RunCallback,
    Send,
    StartPass,
    Warn,
)
from ryusen.worker.loops import ForeignLoop
from ryusen.worker.userside import CallbackEnded, PassTurn, UserEffect, UserEvent, UserSide
from ryusen.worker.work import UNDO_CAPACITY_DEFAULT, WorkerIdentity

from keyspace.clock import Clock
from services.dispatcher.peer import Peer, PeerGone
from services.lanes.alarm import Alarm
from services.testing.errors import WorkflowTestError
from services.testing.incidents import IncidentKind, Incidents
from services.testing.link import Link

__all__ = ["LocalWorker", "WorkerPlace"]

log = logging.getLogger(__name__)

RECONNECT_MS = 200.0
"""Virtual time before a worker whose connection ended opens another."""
RECONNECTS_MAX = 1_000


@dataclass(frozen=True)
class WorkerPlace:
    """What surrounds a worker.

    Attributes:
        clock: its time.
        group: where its tasks live.
        serve_peer: the dispatcher's end of a connection.
        incidents: what is to go wrong.
        on_news: called when user code has ended something.
    """

    clock: Clock
    group: TaskGroup
    serve_peer: Callable[[Peer], Coroutine[Any, Any, None]]
    incidents: Incidents
    on_news: Callable[[], None]


@dataclass(frozen=True)
class _Delivery:
    """What a request id stands for at the moment."""

    ref: WorkRef
    function: str
    timeout_ms: int | None = None

    @property
    def label(self) -> str:
        step = "" if self.ref.step is None else f"step {self.ref.step!r} of "
        timeout = "" if self.timeout_ms is None else f" (its timeout of {self.timeout_ms} ms is virtual time)"
        return f"{step}function {self.function}, run {self.ref.run}{timeout}"


class LocalWorker:
    """One worker process.

    Attributes:
        app: the application it serves.
        instance: its id.
        is_alive: whether the process lives.
        is_connected: whether it has a connection, or is about to have one again.
        fault: why it can never have a session again; None when nothing is wrong.
    """

    def __init__(self, app: App, place: WorkerPlace, *, instance: str, capacity: int, release: str) -> None:
        """Prepare a process; `connect` brings it to the dispatcher."""
        self.app = app
        self.instance = instance
        self.is_alive = True
        self.is_connected = False
        self.fault: WorkflowTestError | None = None
        self._place = place
        functions = tuple(app.functions)
        identity = WorkerIdentity(app.name, instance, functions, capacity, release, SDK, UNDO_CAPACITY_DEFAULT)
        self._core = WorkerCore(identity)
        self._home = ForeignLoop()
        self._user = UserSide(app, lambda event: self._home.call(self._heard_from_user, event))
        self._alarm = Alarm(place.clock)
        self._scope = anyio.CancelScope()
        self._link: Link | None = None
        self._deliveries: dict[str, _Delivery] = {}
        self._proceeding: Proceed | None = None
        self._passing: set[str] = set()
        self._running: set[str] = set()
        self._dying: set[str] = set()
        self._overrunning: dict[str, CallbackEnded | None] = {}

    # -- what the engine asks

    @property
    def is_busy(self) -> bool:
        """Whether user code is under way whose end will be heard."""
        return bool(self._passing or self._running)

    @property
    def is_overrunning(self) -> bool:
        """Whether a callback waits for its timeout."""
        return bool(self._overrunning)

    def due_in_ms(self) -> float:
        """In how many milliseconds the worker has something to do: renew a lease, or report a timeout."""
        due_ms = self._core.next_due_ms()
        assert due_ms is not None, "a callback that waits for its timeout"
        return due_ms - self._place.clock.monotonic_ms()

    def serves(self, application: str, function: str) -> bool:
        """Whether work of the function can be taken."""
        return self.is_connected and application == self.app.name and function in self.app.functions

    def watch(self) -> None:
        """Begin to see whether user code blocks its event loop."""
        self._user.beat()

    def doing(self) -> list[str]:
        """Name the user code that is under way, and what has blocked its event loop since `watch`."""
        passes = [f"code outside steps of {self._label(request)}" for request in sorted(self._passing)]
        callbacks = [f"the callback of {self._label(request)}" for request in sorted(self._running)]
        blocker = [] if self._user.beat() else [f"the event loop is blocked by {self._user.blocker()}"]
        return passes + callbacks + blocker

    def _label(self, request: str) -> str:
        delivery = self._deliveries.get(request)
        return "a run that is over" if delivery is None else delivery.label

    # -- life

    def start(self) -> None:
        """Start the user side and connect."""
        self._home.settle()
        self._user.start()
        self._place.group.start_soon(self._keep_time, name="worker time")
        self.connect()

    def connect(self) -> None:
        """Open a connection; needs a process that lives and has none."""
        assert self.is_alive and not self.is_connected
        self.is_connected = True
        self._place.group.start_soon(self._keep_connected, name="worker connection")

    def cut_off(self) -> None:
        """Break the connection and keep it broken until `connect`."""
        self.is_connected = False
        if self._link is not None:
            self._link.drop()
            self._link = None
            self._perform(self._core.disconnected(self._place.clock.monotonic_ms()))

    def kill(self) -> None:
        """End the process as kill -9 would: nothing it knows is left, and nothing it still does is heard."""
        if not self.is_alive:
            return
        self.is_alive = self.is_connected = False
        self._scope.cancel()
        if self._link is not None:
            self._link.drop()
            self._link = None
        self._home.leave()
        self._user.stop()
        for marks in (self._passing, self._running, self._dying):
            marks.clear()
        self._overrunning.clear()

    # -- tasks

    async def _keep_time(self) -> None:
        clock = self._place.clock
        with self._scope:
            while True:
                due_ms = self._core.next_due_ms()
                now_ms = clock.monotonic_ms()
                if due_ms is not None and due_ms <= now_ms:
                    self._perform(self._core.tick(now_ms))
                    continue
                await self._alarm.wait(None if due_ms is None else due_ms - now_ms)

    async def _keep_connected(self) -> None:
        for _ in range(RECONNECTS_MAX):
            link = Link()
            self._link = link
            self._place.group.start_soon(self._place.serve_peer, link, name="worker session")
            self._perform(self._core.connected(self._place.clock.monotonic_ms()))
            await self._read(link)
            if self._link is not link:
                return  # cut off or killed
            self._link = None
            self._perform(self._core.disconnected(self._place.clock.monotonic_ms()))
            if self.fault is not None:
                return
            log.info("the worker's session ended", extra={"reason": link.reason})
            await self._place.clock.sleep_ms(RECONNECT_MS)
            if not self.is_connected:
                return
        self.fault = WorkflowTestError(f"The worker of {self.app.name!r} was parted from its session too often.")

    async def _read(self, link: Link) -> None:
        session = self._core.session
        try:
            while True:
                frame = await link.hear()
                if self._link is link:
                    self._proceeding = frame if isinstance(frame, Proceed) else None
                    self._perform(self._core.received(session, frame, self._place.clock.monotonic_ms()))
        except PeerGone:
            return

    # -- effects

    def _perform(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if not self.is_alive:
                return
            if isinstance(effect, Send):
                if self._link is not None:
                    self._link.say(effect.frame)
            elif isinstance(effect, Close):
                if self._link is not None:
                    self._link.drop()
            elif isinstance(effect, Warn):
                log.warning("%s", effect.message)
            elif isinstance(effect, Exit):
                self.fault = WorkflowTestError(f"The worker of {self.app.name!r} ended: {effect.message}")
            elif isinstance(effect, RunCallback):
                self._run_callback(effect)
            else:
                self._for_user(effect)
        self._alarm.ring()

    def _for_user(self, effect: UserEffect) -> None:
        self._follow(effect)
        self._user.perform(effect)
        if isinstance(effect, CancelCallback):
            self._timed_out(effect.request)

    def _follow(self, effect: UserEffect) -> None:
        """Keep up with what each request id stands for, and with what user code is about to do."""
        request, deliveries = effect.request, self._deliveries
        if isinstance(effect, StartPass):
            deliveries[request] = _Delivery(effect.assign.ref, effect.assign.function, effect.assign.timeout_ms)
            self._passing.add(request)
        elif isinstance(effect, ResumePass):
            self._passing.add(request)
        elif isinstance(effect, ContinuePass):
            deliveries[effect.following] = replace(deliveries.pop(request), timeout_ms=None)
            self._passing.add(effect.following)
        elif isinstance(effect, MovePass):
            assert self._proceeding is not None, "a pass moves on when its step is authorized"
            timeout_ms = self._proceeding.timeout_ms
            deliveries[effect.following] = replace(deliveries.pop(request), ref=effect.ref, timeout_ms=timeout_ms)
        elif isinstance(effect, ClosePass):
            self._passing.discard(request)
            deliveries.pop(request, None)

    def _timed_out(self, request: str) -> None:
        """The timeout is reported; a callback that goes on, in a thread that cannot be ended, is not waited for."""
        self._running.discard(request)
        kept = self._overrunning.pop(request, None)
        if kept is not None:
            self._home.call(self._heard_from_user, kept)

    def _run_callback(self, effect: RunCallback) -> None:
        request = effect.request
        delivery = self._deliveries[request]
        step_id = delivery.ref.step
        assert step_id is not None
        incident = self._place.incidents.take(delivery.function, step_id)
        if incident is IncidentKind.LOSE_BEFORE:
            self.kill()
            return
        if incident is IncidentKind.CUT_OFF:
            self.cut_off()
        elif incident is IncidentKind.LOSE_AFTER:
            self._dying.add(request)
        elif incident is IncidentKind.TIME_OUT:
            if delivery.timeout_ms is None:
                self.fault = WorkflowTestError(f"Step {step_id!r} has no timeout that it could exceed.")
            else:
                self._overrunning[request] = None
        self._running.add(request)
        self._user.perform(effect)

    def _heard_from_user(self, event: UserEvent) -> None:
        now_ms = self._place.clock.monotonic_ms()
        request = event.request
        if isinstance(event, PassTurn):
            self._passing.discard(request)
            self._perform(self._core.pass_turn(request, event.turn, event.failed_met, now_ms))
        elif request in self._dying:
            self.kill()
        elif request in self._overrunning:
            self._overrunning[request] = event
        else:
            self._running.discard(request)
            self._perform(self._core.callback_ended(request, event.outcome, now_ms))
        self._place.on_news()
