"""Case 034 at small scale: events and their runs through kills of every process, dropped sessions and faults of the store."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import anyio
import anyio.abc
import msgspec
import pytest
from dispatch_rig import FakeWorker, MortalKeyspace, Rig, hello, turns
from prometheus_client import CollectorRegistry
from ryusen.protocol.frames import (
    CONTINUATION,
    Answer,
    Assign,
    Complete,
    Declare,
    GiveBack,
    HeldWork,
    Proceed,
    Ready,
    Renew,
    Result,
    ServerFrame,
    Settled,
    Start,
    StepDeclaration,
    Succeeded,
    Void,
    Welcome,
    WorkRef,
)
from transitions.world import World

from keyspace.clock import VirtualClock
from keyspace.lifecycle import Execution, Phase
from keyspace.records.event import ExpansionState
from keyspace.store.embedded import memory_store
from keyspace.store.fault import FaultStore
from keyspace.store.fault_plan import CommitFault, FaultPlan, FaultRates, WatchFault
from services.dispatcher.peer import PeerGone
from services.fanout.expansion import fan_out_pump
from services.lanes.options import LaneOptions

Effects = Counter[tuple[str, str, int]]
"""How often each effect was had: by run, step and generation."""
EVENTS = 60
STEPS = ("reserve", "charge", "ship")
ROUND_MS = 50
ROUNDS_OF_TROUBLE = 400
ROUNDS_MAX = 3_000
RATES = FaultRates(
    commit={
        CommitFault.NOT_COMMITTED: 0.02,
        CommitFault.TRANSACTION_TOO_OLD: 0.01,
        CommitFault.UNKNOWN_COMMITTED: 0.02,
        CommitFault.UNKNOWN_NOT_COMMITTED: 0.02,
    },
    watch={WatchFault.LOST: 0.05, WatchFault.EARLY: 0.05, WatchFault.BROKEN: 0.05},
)


class Robot:
    """A worker that lives through everything: it keeps what it did until it is acknowledged, in whatever session.

    With `features` it goes on behind its own successes, as the SDK's worker does.
    """

    def __init__(self, instance: str, effects: Effects, features: list[str]) -> None:
        self.instance = instance
        self.effects = effects
        self.features = features
        self.continues = False
        self.waiting: dict[str, WorkRef] = {}
        self.kept: dict[str, Answer | Result] = {}
        self.done: dict[str, set[str]] = {}
        self.proceeded = 0
        self.connection: FakeWorker | None = None

    async def serve(self, choose: Callable[[], Rig | None]) -> None:
        while True:
            rig = choose()
            if rig is None:
                await turns(5)
                continue
            self.connection = rig.connect()
            held = [HeldWork(ref=frame.ref, request=request, state="finished") for request, frame in self.kept.items()]
            self.connection.say(
                hello(
                    instance=self.instance,
                    capacity=8,
                    held=held,
                    functions="fulfil audit",
                    features=self.features,
                )
            )
            try:
                while True:
                    self._hear(self.connection, await self.connection.next_frame())
            except PeerGone:
                self._forget_session()
                await turns(5)

    def renew(self) -> None:
        if self.connection is not None:
            self.connection.say(Renew(requests=[*self.waiting, *self.kept][:64]))

    def drop(self) -> None:
        if self.connection is not None:
            self.connection.drop()

    def _forget_session(self) -> None:
        """What has not started is forgotten; a pass cannot outlive its session, its result goes alone."""
        self.waiting.clear()
        for request, frame in list(self.kept.items()):
            if isinstance(frame, Result):
                self.kept[request] = msgspec.structs.replace(frame, following="")
            elif frame.ref.step is not None:
                del self.kept[request]

    def _hear(self, connection: FakeWorker, frame: ServerFrame) -> None:
        if isinstance(frame, Welcome):
            self.continues = frame.continues
            for kept in self.kept.values():
                connection.say(kept)
        elif isinstance(frame, Assign):
            self.done[frame.ref.run] = {memo.id for memo in frame.memo}
            if frame.ref.kind == "callback":
                self.waiting[frame.request] = frame.ref
                connection.say(Ready(request=frame.request))
            else:
                self._answer(connection, frame.request, frame.ref)
        elif isinstance(frame, Start) and frame.request in self.waiting:
            self._run(connection, frame.request, self.waiting.pop(frame.request))
        elif isinstance(frame, Proceed):
            self.kept.pop(frame.joint, None)
            if self.kept.pop(frame.request, None) is None:
                connection.say(GiveBack(request=frame.following, ref=frame.ref))
            else:
                self.proceeded += 1
                self._run(connection, frame.following, frame.ref)
        elif isinstance(frame, Settled):
            result = self.kept.pop(frame.request, None)
            self.kept.pop(frame.joint, None)
            if frame.verdict == "stale" and isinstance(result, Result):
                self.kept.pop(result.following, None)
        elif isinstance(frame, Void):
            self.waiting.pop(frame.request, None)

    def _run(self, connection: FakeWorker, request: str, ref: WorkRef) -> None:
        """Have the effect, report it, and go on with the run where that is allowed."""
        assert ref.step is not None
        self.effects[ref.run, ref.step, ref.generation] += 1
        self.done.setdefault(ref.run, set()).add(ref.step)
        following = f"{request}+" if self.continues else ""
        outcome = Succeeded(value=msgspec.Raw(b"true"))
        self._keep(connection, request, Result(request=request, ref=ref, outcome=outcome, following=following))
        if following:
            self._answer(connection, following, ref)

    def _answer(self, connection: FakeWorker, request: str, ref: WorkRef) -> None:
        left = [step for step in STEPS if step not in self.done[ref.run]]
        ending = Declare(steps=[StepDeclaration(id=left[0])]) if left else Complete(value=msgspec.Raw(b"true"))
        self._keep(connection, request, Answer(request=request, ref=ref, ending=ending))

    def _keep(self, connection: FakeWorker, request: str, frame: Answer | Result) -> None:
        self.kept[request] = frame
        connection.say(frame)


class Fleet:
    """Fan-out processes and dispatchers that are killed and replaced."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.rng = random.Random(seed)
        self.rigs: list[Rig] = []
        self.fanouts: list[tuple[MortalKeyspace, anyio.CancelScope]] = []
        self._scopes: dict[int, anyio.CancelScope] = {}
        self._count = 0
        self.group: anyio.abc.TaskGroup

    def _store(self) -> FaultStore:
        self._count += 1
        plan = FaultPlan(self.rng.randrange(2**31), RATES)
        inner = memory_store(clock=self.world.clock, engine=self.world.engine, rng=random.Random(self._count))
        return FaultStore(inner, plan, clock=self.world.clock)

    def start_dispatcher(self) -> None:
        rig = Rig(self.world, process_id=f"d{self._count}", store=self._store())
        scope = self._scopes[id(rig)] = anyio.CancelScope()

        async def live() -> None:
            with scope:
                async with rig.running():
                    self.rigs.append(rig)
                    await anyio.sleep_forever()

        self.group.start_soon(live)

    def kill_dispatcher(self) -> None:
        rig = self.rigs.pop(self.rng.randrange(len(self.rigs)))
        rig.kill()
        self._scopes.pop(id(rig)).cancel()

    def start_fanout(self) -> None:
        process_id = f"f{self._count}"
        keyspace = MortalKeyspace(
            self._store(), clock=self.world.clock, prefix=self.world.keyspace.prefix, rng=random.Random(process_id)
        )
        registry = CollectorRegistry()
        pump = fan_out_pump(keyspace, LaneOptions(), registry, process_id=process_id, peers=lambda: [process_id])
        scope = anyio.CancelScope()
        self.fanouts.append((keyspace, scope))

        async def live() -> None:
            with scope:
                await pump.run()

        self.group.start_soon(live)

    def kill_fanout(self) -> None:
        keyspace, scope = self.fanouts.pop(self.rng.randrange(len(self.fanouts)))
        keyspace.is_dead = True
        scope.cancel()

    def trouble(self, robots: list[Robot], round_number: int) -> None:
        """Kill, replace and cut at moments drawn from the seed."""
        draw = self.rng.random()
        if draw < 0.02:
            self.kill_dispatcher()
            self.start_dispatcher()
        elif draw < 0.04:
            self.kill_fanout()
            self.start_fanout()
        elif draw < 0.07:
            self.rng.choice(robots).drop()
        if round_number % 40 == 0:
            for robot in robots:
                robot.renew()

    def choose(self) -> Rig | None:
        return self.rng.choice(self.rigs) if self.rigs else None


@pytest.mark.case(34)
@pytest.mark.parametrize("features", [[], [CONTINUATION]], ids=["queue", "continuation"])
@pytest.mark.parametrize("seed", range(2))
async def test_what_was_acknowledged_is_done_once_through_every_failover(seed: int, features: list[str]) -> None:
    """Case 034: accepted, then lost in a failover. Every event is expanded with both its bindings; no effect runs twice."""
    world = World(clock=VirtualClock(), seed=seed)
    await world.begin({"fulfil": ["order.placed"], "audit": ["order.placed"]})
    effects: Effects = Counter()
    robots = [Robot(f"{number + 1:032x}", effects, features) for number in range(3)]
    fleet = Fleet(world, seed)
    accepted: list[str] = []
    async with anyio.create_task_group() as group:
        fleet.group = group
        for _ in range(2):
            fleet.start_dispatcher()
            fleet.start_fanout()
        for robot in robots:
            group.start_soon(robot.serve, fleet.choose)
        for round_number in range(ROUNDS_MAX):
            world.clock.advance(ROUND_MS)
            await turns(8)
            if round_number < ROUNDS_OF_TROUBLE:
                fleet.trouble(robots, round_number)
            elif round_number % 40 == 0:
                for robot in robots:
                    robot.renew()
            if len(accepted) < EVENTS and round_number % 4 == 0:
                accepted.append((await world.submit(payload=str(round_number).encode())).event_id)
            if round_number % 100 == 99 and len(accepted) == EVENTS:
                runs = await world.runs()
                if len(runs) == 2 * EVENTS and all(run.phase is Phase.TERMINAL for run in runs):
                    break
        group.cancel_scope.cancel()
    runs = await world.runs()
    assert len(runs) == 2 * EVENTS
    assert {(run.phase, run.execution) for run in runs} == {(Phase.TERMINAL, Execution.COMPLETED)}
    for event_id in accepted:
        expansion = await world.expansion(event_id)
        assert (expansion.state, expansion.matched_count) == (ExpansionState.COMPLETE, 2)
    assert set(effects.values()) == {1}, "an effect ran twice"
    assert len(effects) == len(STEPS) * len(runs)
    assert bool(features) is any(robot.proceeded for robot in robots)
    await world.check()
