"""The service in one event loop: fan-out, dispatcher and workers over a store in memory, and the time they live in.

Time is virtual and moves only when nothing else can happen: it jumps to the next instant at which stored work vests or a
lease runs out, and, where something due has not been taken yet, to the next instant that a process waits for.
"""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable

import anyio
from anyio.lowlevel import checkpoint
from prometheus_client import CollectorRegistry
from ryusen.app import App

from keyspace.clock import Clock, VirtualClock
from keyspace.keyspace import Keyspace
from keyspace.layout import ITEM
from keyspace.lifecycle import ItemState
from keyspace.records.work import ItemRecord, WorkKind
from keyspace.store.embedded import memory_store
from keyspace.transitions.activate_routing import activate_routing
from keyspace.transitions.create_workspace import create_workspace
from keyspace.transitions.publish_manifest import FunctionSpec, ManifestSpec, TriggerSpec, publish_manifest
from services.dispatcher.dispatcher import Dispatcher
from services.dispatcher.metrics import DispatcherMetrics
from services.dispatcher.options import DispatcherOptions
from services.dispatcher.peer import Peer
from services.fanout.expansion import fan_out_pump
from services.lanes.options import LaneOptions
from services.testing.errors import NeverSettles, UserCodeHangs, WorkflowTestError
from services.testing.incidents import Incidents
from services.testing.loop import EngineLoop
from services.testing.worker import LocalWorker, WorkerPlace

__all__ = ["WORKSPACE", "Engine"]

WORKSPACE = "test"
AUTHOR = "workflow-test"
SKIPS_MAX = 20_000
"""Skips of virtual time in one call: above what one step with the most attempts, each lost and recovered, may take."""
PATIENCE_MS = 30_000
"""Virtual time that work which is due may wait before it counts as waiting for somebody outside the test."""
SILENCE_MS = 1_000 * 365 * 86_400_000
"""A jump is no silence: nobody could have said anything meanwhile."""
BLOCKED_S = 0.1
"""Real seconds in which an event loop that nobody blocks turns, when it is asked whether it is blocked."""
ITEMS_MAX = 10_000
"""Work items looked at; more are beyond what a test in memory is for."""


class _StoreClock:
    """The test's time for the store, in which the pause before a transaction is tried again takes none.

    Otherwise two transactions that met would be told apart by time, which a test would then see pass.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def monotonic_ms(self) -> float:
        return self._clock.monotonic_ms()

    async def sleep_ms(self, delay_ms: float) -> None:
        await checkpoint()


class _PatientOptions(DispatcherOptions):
    @property
    def silence_ms(self) -> int:
        return SILENCE_MS


class Engine:
    """Lives on one `EngineLoop`; `live` is its root task and every other coroutine runs on the same loop.

    Attributes:
        clock: the test's time.
        keyspace: what the service stores.
        incidents: what is to go wrong.
        workers: the current worker of each application, by the application's name.
    """

    def __init__(self, loop: EngineLoop, *, seed: int, start_ms: int, user_s: float) -> None:
        """Prepare the service.

        Args:
            loop: where it lives.
            seed: where ids come from.
            start_ms: the first instant, Unix epoch milliseconds.
            user_s: real seconds that one pass or callback may take.
        """
        self.clock = VirtualClock(start_ms)
        self.keyspace = Keyspace(memory_store(clock=_StoreClock(self.clock)), clock=self.clock, rng=random.Random(seed))
        self.incidents = Incidents()
        self.workers: dict[str, LocalWorker] = {}
        self._loop = loop
        self._user_s = user_s
        self._options: dict[str, tuple[int, str]] = {}
        self._place: WorkerPlace | None = None
        self._is_live = threading.Event()
        self._closing = anyio.Event()
        self._news = anyio.Event()
        self._news_count = 0
        self._driving = anyio.Lock()
        registry = CollectorRegistry()
        self._dispatcher = Dispatcher(
            self.keyspace,
            _PatientOptions(),
            DispatcherMetrics(registry),
            process_id="dispatcher",
            peers=lambda: ["dispatcher"],
            rng=random.Random(seed),
        )
        self._fanout = fan_out_pump(
            self.keyspace, LaneOptions(), registry, process_id="fanout", peers=lambda: ["fanout"]
        )

    # -- life

    async def live(self) -> None:
        """Serve until `close`."""
        try:
            async with anyio.create_task_group() as group:
                self._place = WorkerPlace(self.clock, group, self._serve_peer, self.incidents, self._hear_news)
                await group.start(self._dispatcher.run)
                group.start_soon(self._fanout.run, name="fan-out")
                self._is_live.set()
                await self._closing.wait()
                for worker in self.workers.values():
                    worker.kill()
                group.cancel_scope.cancel()
        finally:
            self._is_live.set()
            await self.keyspace.store.close()

    def wait_live(self) -> None:
        """Return, on another thread, when `live` serves or has failed."""
        self._is_live.wait()

    async def close(self) -> None:
        """Let `live` return."""
        self._closing.set()

    async def _serve_peer(self, peer: Peer) -> None:
        await self._dispatcher.serve_peer(peer, WORKSPACE)

    def _hear_news(self) -> None:
        self._news_count += 1
        self._news.set()

    # -- applications and their workers

    async def deploy(self, app: App, *, capacity: int, release: str) -> None:
        """Publish an application, route its events and serve it with one worker; a former worker of it is killed."""
        sent = app.manifest()
        functions = []
        for function in sent.functions:
            triggers = [TriggerSpec(trigger.event, trigger.binding) for trigger in function.triggers]
            functions.append(FunctionSpec(function.name, tuple(triggers), function.contract, function.timeout_ms))
        spec = ManifestSpec(app.name, tuple(functions))
        await self.keyspace.transact("create_workspace", lambda tx: create_workspace(tx, WORKSPACE))
        record, _ = await self.keyspace.transact(
            "publish_manifest", lambda tx: publish_manifest(tx, WORKSPACE, spec, published_by=AUTHOR)
        )
        await self.keyspace.transact(
            "activate_routing",
            lambda tx: activate_routing(
                tx, WORKSPACE, {app.name: record.generation}, activated_by=AUTHOR, is_merge=True
            ),
        )
        self._options[app.name] = (capacity, release)
        await self.start_worker(app)

    async def start_worker(self, app: App) -> None:
        """Start a new worker process for an application; the former one is killed."""
        former = self.workers.get(app.name)
        if former is not None:
            former.kill()
        assert self._place is not None
        capacity, release = self._options[app.name]
        worker = LocalWorker(app, self._place, instance=self.keyspace.mint(), capacity=capacity, release=release)
        self.workers[app.name] = worker
        worker.start()
        await self.idle()

    async def on_worker(self, app: App, do: Callable[[LocalWorker], None]) -> None:
        """Do something to an application's worker and let everything happen that needs no time."""
        do(self.workers[app.name])
        await self.idle()

    # -- time

    async def idle(self) -> None:
        """Return when only time can bring anything new.

        Raises:
            UserCodeHangs: user code took too long in real time.
        """
        while True:
            heard_count = self._news_count
            await self._loop.idle()
            if self._news_count != heard_count:
                # User code ended something just as the loop was found idle; what follows from that has only begun.
                continue
            workers = list(self.workers.values())
            for worker in workers:
                if worker.fault is not None:
                    raise worker.fault
            if not any(worker.is_busy for worker in workers):
                return
            overrunning = [worker for worker in workers if worker.is_overrunning]
            if overrunning:
                # From one renewal to the next, so that the leases of what runs are kept as they would be.
                self.clock.advance(max(0.0, min(worker.due_in_ms() for worker in overrunning)))
            else:
                await self._hear_user(workers)

    async def _hear_user(self, workers: list[LocalWorker]) -> None:
        self._news = anyio.Event()
        with anyio.move_on_after(self._user_s):
            await self._news.wait()
            return
        for worker in workers:
            worker.watch()
        with anyio.move_on_after(BLOCKED_S):
            await self._news.wait()
        doing = "; ".join(what for worker in workers for what in worker.doing())
        raise UserCodeHangs(
            f"User code has not given control back for {self._user_s:g} s of real time: {doing}. Virtual time stands still "
            "while it runs; give `deadline` more if it needs more, or let a step exceed its timeout with time_out_during()."
        )

    async def settle(self, until_ms: int | None = None) -> None:
        """Let everything happen that does by itself, skipping the time between, but not beyond `until_ms`.

        Raises:
            NeverSettles: the bound on skips was reached.
            UserCodeHangs: user code took too long in real time.
        """
        async with self._driving:
            seen: list[ItemRecord] | None = None
            waited_ms = 0
            for _ in range(SKIPS_MAX):
                await self.idle()
                items = await self._items()
                if items != seen:
                    seen, waited_ms = items, 0
                is_due, next_ms = self._due(items)
                if is_due and waited_ms < PATIENCE_MS:
                    skip_ms = self._next_wake_ms()
                    waited_ms += skip_ms
                elif next_ms is not None:
                    skip_ms = next_ms - self.clock.now_ms()
                else:
                    return
                if until_ms is not None:
                    skip_ms = min(skip_ms, until_ms - self.clock.now_ms())
                    if skip_ms <= 0:
                        return
                self.clock.advance(skip_ms)
            raise NeverSettles(f"Virtual time was skipped {SKIPS_MAX} times and work is still under way.")

    async def advance(self, delta_ms: int) -> None:
        """Let `delta_ms` of virtual time pass, with everything in between."""
        until_ms = self.clock.now_ms() + delta_ms
        await self.settle(until_ms)
        async with self._driving:
            self.clock.advance(max(0, until_ms - self.clock.now_ms()))
            await self.idle()

    def _next_wake_ms(self) -> int:
        wake_ms = self.clock.next_wake_ms()
        if wake_ms is None:
            raise WorkflowTestError("Nothing in the service waits for time; it must have stopped.")
        return max(1, math.ceil(wake_ms))

    async def _items(self) -> list[ItemRecord]:
        rows = await self.keyspace.transact(
            "test_items", lambda tx: tx.page(ITEM.span(WORKSPACE), limit=ITEMS_MAX, snapshot=True)
        )
        return [ITEM.codec.decode(value) for _, value in rows]

    def _due(self, items: list[ItemRecord]) -> tuple[bool, int | None]:
        """Return whether something is due that somebody can take, and when the next thing will be."""
        now_ms = self.clock.now_ms()
        instants = [instant for item in items if (instant := self._instant_ms(item)) is not None]
        return any(at <= now_ms for at in instants), min((at for at in instants if at > now_ms), default=None)

    def _instant_ms(self, item: ItemRecord) -> int | None:
        workers = self.workers.values()
        if item.state is not ItemState.READY:
            is_under_way = any(worker.is_connected and worker.instance == item.instance for worker in workers)
            # No user code runs, so whoever holds it waits for something short: a pause, or an answer that is kept back.
            return self.clock.now_ms() if is_under_way else item.expires_at_ms
        if item.kind is WorkKind.DEFINITION_PROBE and item.vesting_ms > self.clock.now_ms():
            return None  # the code does not change by itself, so nobody waits for it to be looked at again
        lane = item.where
        is_served = lane.kind.is_server or any(worker.serves(lane.application, lane.function) for worker in workers)
        return item.vesting_ms if is_served else None
