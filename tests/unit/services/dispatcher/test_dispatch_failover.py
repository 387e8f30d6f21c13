"""Case 034 in virtual time: events, waits and runs through kills of every process, dropped sessions and faults of the store."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import partial

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
    RetryPolicy,
    ServerFrame,
    Settled,
    Start,
    StepDeclaration,
    Succeeded,
    Void,
    Wait,
    Welcome,
    WorkRef,
)
from sizes import at_scale
from transitions.world import World

from keyspace.clock import VirtualClock
from keyspace.keyspace import Keyspace
from keyspace.layout import EVENT, RUN, WAIT_STAMP
from keyspace.lifecycle import Execution, Phase
from keyspace.records.event import EventRecord, ExpansionState
from keyspace.records.run import RunRecord
from keyspace.store.embedded import memory_store
from keyspace.store.fault import FaultStore
from keyspace.store.fault_plan import CommitFault, FaultPlan, FaultRates, WatchFault
from keyspace.transitions.accept_event import Submission, accept_event
from services.dispatcher.peer import PeerGone
from services.fanout.expansion import fan_out_pump
from services.lanes.options import LaneOptions

Effects = Counter[tuple[str, str, int]]
"""How often each effect was had: by run, step and generation."""
PLACED, EXPECTED = "order.placed", "order.expected"
FUNCTIONS = {"fulfil": [PLACED], "audit": [PLACED], "expecting": [EXPECTED]}
STEPS = ("reserve", "charge", "ship")
WAIT_MS = 24 * 3_600_000
ROUND_MS = 50
ROUNDS_OF_TROUBLE = 7
ROUNDS_MAX = 50
"""Rounds for each event."""
ASKED_MAX = 50
UNHEARD_SHARE = 0.3
"""Of acceptances, those whose gateway is killed before its caller hears of them."""
IMPATIENT_EACH = 3
"""Of so many callers one never asks again."""
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
        self.orders: dict[str, str] = {}
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
                    functions=" ".join(FUNCTIONS),
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
            if frame.function == "expecting":
                self.orders[frame.ref.run] = msgspec.json.decode(frame.input, type=str)
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
        order = self.orders.get(ref.run)
        steps = STEPS if order is None else ("paid",)
        left = [step for step in steps if step not in self.done[ref.run]]
        if left:
            ending: Declare | Complete = Declare(steps=[_wait_for(order) if order else StepDeclaration(id=left[0])])
        else:
            ending = Complete(value=msgspec.Raw(b"true"))
        self._keep(connection, request, Answer(request=request, ref=ref, ending=ending))

    def _keep(self, connection: FakeWorker, request: str, frame: Answer | Result) -> None:
        self.kept[request] = frame
        connection.say(frame)


def _wait_for(order: str) -> StepDeclaration:
    terms = Wait(event=PLACED, match={"order": order}, timeout_ms=WAIT_MS)
    return StepDeclaration(id="paid", kind="wait", retry=RetryPolicy(attempts=1), wait=terms)


class Fleet:
    """Gateways, fan-out processes and dispatchers that are killed and replaced."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.rng = random.Random(seed)
        self.rigs: list[Rig] = []
        self.fanouts: list[tuple[MortalKeyspace, anyio.CancelScope]] = []
        self._scopes: dict[int, anyio.CancelScope] = {}
        self._count = 0
        self.unheard = 0
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

    async def submit(self, name: str, order: str, *, is_patient: bool = True) -> str | None:
        """Submit as a caller does, under one key: one that is patient asks until somebody answers, at another gateway.

        A gateway is a process that accepts; it may be killed when its commit is done and its answer is not.
        """
        submission = Submission(name, msgspec.json.encode(order), {"order": order}, None, f"{name} {order}")
        for _ in range(ASKED_MAX):
            store, event_id = self._store(), self.world.keyspace.mint()
            gateway = Keyspace(store, clock=self.world.clock, prefix=self.world.keyspace.prefix, rng=self.rng)
            accept = partial(
                accept_event, workspace="acme", submission=submission, event_id=event_id, accepted_by=event_id
            )
            acceptance = await gateway.transact("accept_event", accept)
            if self.rng.random() >= UNHEARD_SHARE:
                return acceptance.event_id
            self.unheard += 1
            if not is_patient:
                return None
        raise AssertionError("no gateway lives long enough")

    def choose(self) -> Rig | None:
        return self.rng.choice(self.rigs) if self.rigs else None


class Orders:
    """Runs that wait for their orders, and the orders as they are placed: what is known of each."""

    def __init__(self, world: World, fleet: Fleet, count: int) -> None:
        self.world = world
        self.fleet = fleet
        self.count = count
        self.placed: dict[int, str | None] = {}

    async def expect_all(self) -> None:
        for number in range(self.count):
            assert await self.fleet.submit(EXPECTED, str(number))

    async def place(self, number: int) -> None:
        """Place an order."""
        self.placed[number] = await self.fleet.submit(PLACED, str(number), is_patient=number % IMPATIENT_EACH != 0)

    @property
    def are_placed(self) -> bool:
        return len(self.placed) == self.count

    async def are_registered(self) -> bool:
        return len(await self.world.records(WAIT_STAMP)) == self.count

    async def are_done(self) -> bool:
        runs: list[RunRecord] = await self.world.records(RUN)
        return len(runs) == 3 * self.count and all(run.phase is Phase.TERMINAL for run in runs)

    async def judge(self) -> None:
        """Each event was expanded whole, and settled the wait of its order; one that nobody heard of, too."""
        events: dict[str, EventRecord] = {
            event.correlation["order"]: event for event in await self.world.records(EVENT) if event.name == PLACED
        }
        assert len(await self.world.records(EVENT)) == 2 * self.count, "one event under each key"
        for number, told in self.placed.items():
            event = events[str(number)]
            assert told in (None, event.event_id)
            expansion = await self.world.expansion(event.event_id)
            assert (expansion.state, expansion.matched_count) == (ExpansionState.COMPLETE, 2)
            assert (expansion.inspected_count, expansion.settled_count) == (1, 1)
        runs: list[RunRecord] = await self.world.records(RUN)
        assert len(runs) == 3 * self.count
        assert {(run.phase, run.execution) for run in runs} == {(Phase.TERMINAL, Execution.COMPLETED)}
        settlers = [
            (await self.world.step(run.run_id, "paid")).server for run in runs if run.binding.startswith("expecting")
        ]
        assert {one.event_id for one in settlers if one} == {event.event_id for event in events.values()}
        assert len(settlers) == self.count


@pytest.mark.case(2)
@pytest.mark.case(34)
@pytest.mark.parametrize("features", [[], [CONTINUATION]], ids=["queue", "continuation"])
@pytest.mark.parametrize(("seed", "count"), [(0, 60), (1, 60), at_scale(2, 2_000)])
async def test_what_was_acknowledged_is_done_once_through_every_failover(
    seed: int, count: int, features: list[str]
) -> None:
    """Case 034: accepted, then lost in a failover. Every event is expanded with both its bindings and settles its wait,
    through kills and unknown commits; no effect runs twice."""
    world = World(clock=VirtualClock(), seed=seed)
    await world.begin(FUNCTIONS)
    effects: Effects = Counter()
    robots = [Robot(f"{number + 1:032x}", effects, features) for number in range(3)]
    fleet = Fleet(world, seed)
    orders = Orders(world, fleet, count)
    sent = 0
    is_registered, trouble_left = False, ROUNDS_OF_TROUBLE * count
    async with anyio.create_task_group() as group:
        fleet.group = group
        group.start_soon(orders.expect_all)
        for _ in range(2):
            fleet.start_dispatcher()
            fleet.start_fanout()
        for robot in robots:
            group.start_soon(robot.serve, fleet.choose)
        for round_number in range(ROUNDS_MAX * count):
            world.clock.advance(ROUND_MS)
            await turns(8)
            if trouble_left:
                fleet.trouble(robots, round_number)
            elif round_number % 40 == 0:
                for robot in robots:
                    robot.renew()
            if is_registered:
                trouble_left = max(0, trouble_left - 1)
                if sent < count and round_number % 4 == 0:
                    group.start_soon(orders.place, sent)
                    sent += 1
            elif round_number % 10 == 0:
                is_registered = await orders.are_registered()
            if round_number % 100 == 99 and orders.are_placed and await orders.are_done():
                break
        group.cancel_scope.cancel()
    await orders.judge()
    assert fleet.unheard > 0 and None in orders.placed.values()
    assert set(effects.values()) == {1}, "an effect ran twice"
    assert len(effects) == len(STEPS) * 2 * count
    assert bool(features) is any(robot.proceeded for robot in robots)
    await world.check()
