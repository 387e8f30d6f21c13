"""The SDK's own core and passes against the dispatcher over a memory store, all on one event loop and in virtual time.

Frames can be cut off, lost, repeated, delayed and made to overtake each other, and the dispatcher stopped at any commit:
whatever happens, the deployment is taken to its end by whoever is left.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from enum import Enum

import anyio
import anyio.abc
from dispatch_rig import FakeWorker, Rig, turns
from ryusen import App, current_attempt
from ryusen.protocol.frames import ServerFrame, WorkerFrame
from ryusen.worker.core import WorkerCore
from ryusen.worker.effects import Close, Effect, Exit, Send, Warn
from ryusen.worker.userside import CallbackEnded, PassTurn, UserEffect, UserEvent, UserSide
from ryusen.worker.work import WorkerIdentity
from transitions.world import World

from keyspace.clock import VirtualClock
from keyspace.lifecycle import Phase
from keyspace.store.embedded import memory_store
from keyspace.store.fault import FaultStore, ProcessStopped
from keyspace.store.fault_plan import FaultPlan
from services.dispatcher.options import DispatcherOptions
from services.dispatcher.peer import PeerGone

__all__ = ["FrameFault", "Whole", "effect"]

QUIET_TURNS = 15
"""Turns of the event loop without a frame or a commit after which only time brings anything new."""
ROUNDS_MAX = 3_000
DELAY_MS = 40
"""How long a delayed frame takes: longer than a success waits for its answer."""
TICK_MS = 1.0
"""The least time that passes at once."""
RECONNECT_MS = 200
"""How long a worker waits before it connects again."""


class FrameFault(Enum):
    """What happens at one frame."""

    CUT_BEFORE = "cut before it arrives"
    CUT_AFTER = "cut after it has arrived"
    REPEAT = "repeated"
    DELAY = "delayed, with everything behind it"
    OVERTAKEN = "overtaken by what comes behind it"


effects: Counter[tuple[str, str, int]] = Counter()
"""How often each attempt's callback has run: by run, step and attempt."""


def effect() -> tuple[str, str, int]:
    """Have the effect of the running attempt; every callback calls it."""
    attempt = current_attempt()
    key = (attempt.run_id, attempt.step_id, attempt.attempt)
    effects[key] += 1
    return key


class InlineUserSide(UserSide):
    """User code on the test's own event loop."""

    def __init__(self, app: App, sink: Callable[[UserEvent], None]) -> None:
        self._app = app
        self._sink = sink
        self._open = {}

    def perform(self, effect: UserEffect) -> None:
        asyncio.get_running_loop().call_soon(self._perform, effect)


class Lane:
    """One direction of a connection, in which one frame meets a fault."""

    def __init__(self, whole: Whole, deliver: Callable[[object], None], cut: Callable[[], None]) -> None:
        self.whole = whole
        self.deliver = deliver
        self.cut = cut
        self.held_back: deque[object] = deque()
        self.is_delaying = False

    def put(self, frame: object) -> None:
        fault = self.whole.next_frame_fault(frame)
        if fault is FrameFault.CUT_BEFORE:
            self.cut()
            return
        if fault in (FrameFault.DELAY, FrameFault.OVERTAKEN):
            self.held_back.append(frame)
            self.is_delaying = fault is FrameFault.DELAY
            self.whole.late.append((self.whole.world.clock.monotonic_ms() + DELAY_MS, self))
            return
        if self.is_delaying:
            self.held_back.append(frame)
            return
        self.deliver(frame)
        if fault is FrameFault.REPEAT:
            self.deliver(frame)
        if fault is FrameFault.CUT_AFTER:
            self.cut()
        if self.held_back:
            self.release()

    def release(self) -> None:
        self.is_delaying = False
        while self.held_back:
            self.deliver(self.held_back.popleft())


class SdkWorker:
    """A worker process: the SDK's core and its passes, on one connection after another."""

    def __init__(self, whole: Whole, app: App, instance: str, capacity: int) -> None:
        self.whole = whole
        self.clock = whole.world.clock
        functions = tuple(app.functions)
        self.core = WorkerCore(WorkerIdentity(app.name, instance, functions, capacity, "r1", "test", undo_capacity=1))
        self.user = InlineUserSide(app, self._heard_from_user)
        self.connection: FakeWorker | None = None
        self.to_server: Lane | None = None
        self.warnings: list[str] = []
        self.said: list[WorkerFrame] = []

    async def serve(self) -> None:
        while True:
            rig = await self.whole.next_rig()
            connection = self.connection = rig.connect()
            self.to_server = Lane(self.whole, lambda frame, c=connection: c.say(frame), connection.drop)  # type: ignore[misc]
            from_server = Lane(self.whole, lambda frame, c=connection: self._heard(c, frame), connection.drop)  # type: ignore[misc]
            self.perform(self.core.connected(self.clock.monotonic_ms()))
            try:
                while True:
                    frame = await connection.next_frame()
                    self.whole.activity += 1
                    from_server.put(frame)
            except PeerGone:
                if self.connection is connection:
                    self.connection = None
                self.perform(self.core.disconnected(self.clock.monotonic_ms()))
            await self.clock.sleep_ms(RECONNECT_MS)

    def _heard(self, connection: FakeWorker, frame: object) -> None:
        if self.connection is connection:
            server_frame: ServerFrame = frame  # type: ignore[assignment]
            self.perform(self.core.received(self.core.session, server_frame, self.clock.monotonic_ms()))

    def _heard_from_user(self, event: UserEvent) -> None:
        now_ms = self.clock.monotonic_ms()
        self.whole.activity += 1
        if isinstance(event, PassTurn):
            self.perform(self.core.pass_turn(event.request, event.turn, event.failed_met, now_ms))
        else:
            assert isinstance(event, CallbackEnded)
            self.perform(self.core.callback_ended(event.request, event.outcome, now_ms))

    def perform(self, effects: list[Effect]) -> None:
        for one in effects:
            if isinstance(one, Send):
                self.whole.activity += 1
                self.said.append(one.frame)
                if self.connection is not None and self.to_server is not None:
                    self.to_server.put(one.frame)
            elif isinstance(one, Close):
                if self.connection is not None:
                    self.connection.drop()
            elif isinstance(one, Warn):
                self.warnings.append(one.message)
            elif isinstance(one, Exit):
                raise AssertionError(f"the worker left: {one.message}")
            else:
                self.user.perform(one)

    def tick(self) -> None:
        self.perform(self.core.tick(self.clock.monotonic_ms()))


class Whole:
    """One deployment: a world, a dispatcher that is replaced when it stops, and one worker of the SDK."""

    def __init__(
        self,
        app: App,
        *,
        options: DispatcherOptions | None = None,
        plan: FaultPlan | None = None,
        frame_faults: dict[int, FrameFault] | None = None,
        capacity: int = 4,
    ) -> None:
        effects.clear()
        self.world = World(clock=VirtualClock())
        self.app = app
        self.options = options or DispatcherOptions()
        self.plan = plan or FaultPlan()
        self.frame_faults = frame_faults or {}
        self.frames: list[str] = []
        self.late: list[tuple[float, Lane]] = []
        self.activity = 0
        self.stops = 0
        self.dispatcher: tuple[Rig, FaultStore] | None = None
        self._scope = anyio.CancelScope()
        self.worker = SdkWorker(self, app, "11" * 16, capacity)
        self._arrived = anyio.Event()
        self.group: anyio.abc.TaskGroup

    def next_frame_fault(self, frame: object) -> FrameFault | None:
        self.frames.append(type(frame).__name__)
        return self.frame_faults.get(len(self.frames))

    async def next_rig(self) -> Rig:
        """Return a dispatcher that lives; the one that stopped is replaced."""
        while self.dispatcher is None or self.dispatcher[1].is_stopped:
            self._arrived = anyio.Event()
            await self._arrived.wait()
        return self.dispatcher[0]

    def start_dispatcher(self) -> None:
        inner = memory_store(clock=self.world.clock, engine=self.world.engine, rng=random.Random(self.stops))
        store = FaultStore(inner, self.plan, clock=self.world.clock)
        rig = Rig(self.world, process_id=f"d{self.stops}", store=store, options=self.options)
        scope = self._scope = anyio.CancelScope()

        async def live() -> None:
            try:
                with scope:
                    async with rig.running():
                        self.dispatcher = (rig, store)
                        self._arrived.set()
                        await anyio.sleep_forever()
            except BaseExceptionGroup as group:
                if group.split(ProcessStopped)[1] is not None:
                    raise
            except ProcessStopped:
                pass
            if store.is_stopped:
                self.dispatcher = None
                self.stops += 1
                self.start_dispatcher()

        self.group.start_soon(live)

    def bury_stopped(self) -> None:
        """End what is left of a process that has stopped."""
        if self.dispatcher is not None and self.dispatcher[1].is_stopped:
            rig, _ = self.dispatcher
            self.dispatcher = None
            rig.kill()
            self._scope.cancel()
            self.activity += 1

    async def quiet(self) -> None:
        """Let everything happen that needs no time."""
        seen = -1
        while seen != self.activity:
            seen = self.activity
            await turns(QUIET_TURNS)
            self.bury_stopped()

    async def to_the_end(self, until: Callable[[], Awaitable[bool]] | None = None) -> None:
        """Let time pass until every run has ended and the worker keeps nothing."""
        is_over = until or self.is_over
        async with anyio.create_task_group() as group:
            self.group = group
            self.start_dispatcher()
            group.start_soon(self.worker.serve)
            for _ in range(ROUNDS_MAX):
                await self.quiet()
                if await is_over():
                    group.cancel_scope.cancel()
                    return
                self._pass_time()
            raise AssertionError(f"the runs did not end: {await self.world.runs()}, frames {self.frames[-30:]}")

    def _pass_time(self) -> None:
        clock = self.world.clock
        now_ms = clock.monotonic_ms()
        dues = [due_ms for due_ms, _ in self.late]
        core_due_ms = self.worker.core.next_due_ms()
        dues += [core_due_ms] if core_due_ms is not None else []
        wake_ms = clock.next_wake_ms()
        dues += [now_ms + wake_ms] if wake_ms is not None else []
        clock.advance(max(TICK_MS, min(dues) - now_ms))
        for due_ms, lane in list(self.late):
            if due_ms <= clock.monotonic_ms():
                self.late.remove((due_ms, lane))
                lane.release()
        self.worker.tick()

    async def is_over(self) -> bool:
        runs = await self.world.runs()
        has_ended = bool(runs) and all(run.phase is Phase.TERMINAL for run in runs)
        return has_ended and not self.late and not self.worker.core._works.requests()
