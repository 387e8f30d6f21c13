"""Every situation that the decision table knows, built on a store, and every event that can happen to it."""

from __future__ import annotations

from typing import Any

from blocker_verbs import block, rediscover
from deadline_verbs import TIMEOUT_MS, begin_timed
from operator_verbs import cancel, prove, resolve, start_undo, target_of
from world import LEASE_MS, Dump, EagerClock, World, work_of

from keyspace.decisions import (
    Event,
    PassEvent,
    PassStanding,
    Situation,
    Standing,
)
from keyspace.errors import Refusal
from keyspace.lifecycle import Phase
from keyspace.records.run import FailureRecord
from keyspace.records.work import Direction, ItemRecord
from keyspace.store.embedded import memory_store
from keyspace.store.fault import FaultStore
from keyspace.store.fault_plan import FaultPlan
from keyspace.transitions.fire_deadline import fire_deadline
from keyspace.transitions.lose_lease import Loss
from keyspace.transitions.resolve_attempt import DeclareFailure, RetryAttempt, SupplySuccess
from keyspace.transitions.work import Accepted, Replayed, Stale, Work

__all__ = ["PHASES", "Told", "act", "act_on_pass", "forward", "passing", "undo"]

BEFORE_MS = 1_000
"""How long before the deadline the last lease of an overdue situation was granted, so that it still stands."""
OTHER = FailureRecord(category="application", message="another one")
NOBODYS_TOKEN = "00" * 16
CLASSES = (Standing.REPEATABLE, Standing.REPEATABLE_LAST, Standing.REDELIVERED)
OVERDUE = (
    Situation.OVERDUE,
    Situation.BLOCKED_OVERDUE,
    Situation.CANCELLED_OVERDUE,
    Situation.TIMED_OUT,
    Situation.UNWINDING_OVERDUE,
)
PHASES = {
    Situation.RUNNING: Phase.RUNNING,
    Situation.OVERDUE: Phase.RUNNING,
    Situation.BLOCKED: Phase.DEFINITION_BLOCKED,
    Situation.BLOCKED_OVERDUE: Phase.DEFINITION_BLOCKED,
    Situation.CANCELLED: Phase.CANCELLING,
    Situation.CANCELLED_OVERDUE: Phase.CANCELLING,
    Situation.TIMED_OUT: Phase.CANCELLING,
    Situation.UNWINDING: Phase.COMPENSATING,
    Situation.UNWINDING_OVERDUE: Phase.COMPENSATING,
    Situation.ENDED: Phase.TERMINAL,
}


class Told:
    """A situation: its world, the work that the event is about, and the run's timer."""

    def __init__(self, world: World, run_id: str, timer: str) -> None:
        self.world = world
        self.run_id = run_id
        self.timer = timer
        self.work: Work | None = None
        self.deadline_ms = world.clock.now_ms() + TIMEOUT_MS

    async def clone(self, stored: Dump, plan: FaultPlan | None = None) -> Told:
        """Return the same situation in a world of its own, so that one event does not see what another did."""
        clock = EagerClock(self.world.clock.now_ms())
        world = World(clock=clock, store=FaultStore(memory_store(clock=clock), plan or FaultPlan(), clock=clock))
        raw = world.store.begin()
        for key, value in stored.items():
            raw.set(world.keyspace.prefix + key, value)
        await raw.commit()
        world.session = self.world.session
        told = Told(world, self.run_id, self.timer)
        told.work, told.deadline_ms = self.work, self.deadline_ms
        return told

    def fault_count(self) -> int:
        """How many faults have struck."""
        store = self.world.store
        assert isinstance(store, FaultStore)
        return len(store.trace)

    def go_to(self, instant_ms: int) -> None:
        self.world.clock.advance(max(0, instant_ms - self.world.clock.now_ms()))

    async def fire(self) -> str:
        fired = await self.world.run("fire", lambda tx: fire_deadline(tx, "acme", self.run_id, self.timer))
        return fired.name.lower()

    async def item(self) -> ItemRecord | None:
        run = await self.world.get_run(self.run_id)
        return None if run.item_id is None else await self.world.item(run.item_id)

    async def queued_work(self) -> Work:
        """Name the outstanding work as somebody does who holds no lease."""
        item = await self.item()
        assert item is not None
        return Work(item.kind, item.target, item.step_id, item.item_id, NOBODYS_TOKEN, item.generation)


async def begin(*, completed: int, **declared: Any) -> Told:
    """Start a run with an hour to go, some of whose steps have completed; the last one is declared with `declared`."""
    world = World()
    await begin_timed(world)
    await world.hello()
    run = await world.start_run()
    assert run.timeout_item is not None
    told = Told(world, run.run_id, run.timeout_item)
    for number in range(completed):
        options = declared if number == completed - 1 else {}
        await world.succeed(await world.start_step(f"done{number}", compensable=True, **options))
    return told


async def lose(world: World, work: Work) -> Loss:
    world.clock.advance(LEASE_MS)
    return await world.lose(work.item_id)


async def stand(told: Told, direction: Direction, standing: Standing, *, last_at_ms: int) -> None:
    """Bring the outstanding attempt of a direction from its lane to a standing; its last lease begins at `last_at_ms`."""
    world = told.world

    async def start() -> Work:
        return await (world.start_attempt() if direction is Direction.FORWARD else start_undo(world))

    lost = {Standing.REPEATABLE_LAST: 2, Standing.REDELIVERED: 1, Standing.UNKNOWN: 1, Standing.RETRY_AUTHORIZED: 1}
    for _ in range(lost.get(standing, 0)):
        told.work = await start()
        await lose(world, told.work)
        world.clock.advance(1_000)
    told.go_to(last_at_ms)
    if standing is Standing.QUEUED:
        told.work = await told.queued_work()
    elif standing in (Standing.LEASED, Standing.FENCED):
        told.work = work_of(await world.lease(direction=direction))
        if standing is Standing.FENCED:
            assert await world.not_found(told.work) == Accepted()
    elif standing is Standing.RETRY_AUTHORIZED:
        assert told.work is not None
        await resolve(world, target_of(told.work), RetryAttempt(), key="before")
        if direction is Direction.FORWARD:
            assert await world.succeed(await start()) == Accepted()
    elif standing not in (Standing.REDELIVERED, Standing.UNKNOWN):
        told.work = await start()
        if standing is Standing.SUCCEEDED:
            assert await world.succeed(told.work, b'"first"') == Accepted()
        elif standing is Standing.FAILED:
            assert await world.fail_attempt(told.work, retryable=direction is Direction.COMPENSATION) == Accepted()


async def situate(told: Told, situation: Situation, *, is_open: bool) -> None:
    """Bring the run from Running to a situation; `is_open` says that an attempt is outstanding."""
    world = told.world
    if situation in (Situation.BLOCKED, Situation.BLOCKED_OVERDUE):
        assert await block(world, await world.lease_pass()) == Accepted()
    elif PHASES[situation] is Phase.CANCELLING and not is_open:
        await world.start_step("other")
    if situation in (Situation.UNWINDING, Situation.UNWINDING_OVERDUE):
        assert await world.fail(await world.lease_pass()) == Accepted()
    elif situation is Situation.ENDED:
        assert await world.complete(await world.lease_pass()) == Accepted()
    elif situation in (Situation.CANCELLED, Situation.CANCELLED_OVERDUE):
        await cancel(world, told.run_id)
    if situation in OVERDUE:
        told.go_to(told.deadline_ms)
    if situation is Situation.TIMED_OUT:
        assert await told.fire() == "stopped"


async def forward(situation: Situation, standing: Standing, *, completed: int) -> Told:
    told = await begin(completed=completed)
    is_repeatable = standing in CLASSES
    assert await told.world.declare(await told.world.lease_pass(), "s1", repeatable=is_repeatable) == Accepted()
    last_at_ms = told.deadline_ms - BEFORE_MS if situation in OVERDUE else 0
    await stand(told, Direction.FORWARD, standing, last_at_ms=last_at_ms)
    settled = (Standing.SUCCEEDED, Standing.FAILED, Standing.FENCED, Standing.RETRY_AUTHORIZED)
    await situate(told, situation, is_open=standing not in settled)
    return told


async def undo(situation: Situation, standing: Standing) -> Told:
    told = await begin(completed=2, undo_repeatable=standing in CLASSES)
    assert await told.world.fail(await told.world.lease_pass()) == Accepted()
    last_at_ms = told.deadline_ms - BEFORE_MS if situation in OVERDUE else 0
    await stand(told, Direction.COMPENSATION, standing, last_at_ms=last_at_ms)
    if situation is Situation.ENDED:
        for _ in range(4):
            told.world.clock.advance(10_000)
            if await told.item() is not None:
                assert await told.world.succeed(await start_undo(told.world)) == Accepted()
    if situation in OVERDUE:
        told.go_to(told.deadline_ms)
    return told


async def passing(situation: Situation, standing: PassStanding) -> Told:
    """Build a pass that stands so; one that is answered has declared, blocked or ended as its situation asks."""
    is_ended_by_stop = standing is PassStanding.DISCARDED and situation is Situation.ENDED
    told = await begin(completed=0 if is_ended_by_stop else 1)
    world = told.world
    if situation in (Situation.BLOCKED, Situation.BLOCKED_OVERDUE):
        told.work = await world.lease_pass()
        assert await block(world, told.work) == Accepted()
        if standing is not PassStanding.ANSWERED:
            await rediscover(world, told.run_id)
    if situation in OVERDUE:
        told.go_to(told.deadline_ms - BEFORE_MS)
    if standing is PassStanding.QUEUED:
        told.work = await told.queued_work()
    elif standing is not PassStanding.ANSWERED or situation not in (Situation.BLOCKED, Situation.BLOCKED_OVERDUE):
        told.work = await world.lease_pass()
    assert told.work is not None
    if standing in (PassStanding.REDELIVERED, PassStanding.SUPERSEDED):
        await world.lose(told.work.item_id, is_session_lost=True)
    if standing is PassStanding.SUPERSEDED:
        await world.lease_pass()
    if standing is PassStanding.DISCARDED:
        await cancel(world, told.run_id)
    elif standing is PassStanding.ANSWERED:
        await answered(told, situation)
    if situation in OVERDUE:
        told.go_to(told.deadline_ms)
    if situation is Situation.TIMED_OUT:
        assert await told.fire() == "stopped"
    return told


async def answered(told: Told, situation: Situation) -> None:
    """Let the pass answer what leads to the situation."""
    world, work = told.world, told.work
    assert work is not None
    if situation in (Situation.UNWINDING, Situation.UNWINDING_OVERDUE):
        assert await world.fail(work) == Accepted()
    elif situation is Situation.ENDED:
        assert await world.complete(work) == Accepted()
    elif PHASES[situation] is not Phase.DEFINITION_BLOCKED:
        assert await world.declare(work, "s1") == Accepted()
    if PHASES[situation] is Phase.CANCELLING:
        await world.start_attempt()
        if situation is not Situation.TIMED_OUT:
            await cancel(world, told.run_id)


async def act(told: Told, event: Event) -> str:
    """Let an event happen; return what its author is told."""
    world, work = told.world, told.work
    assert work is not None
    answer: Any
    try:
        match event:
            case Event.AUTHORIZE:
                answer = await world.authorize(work)
            case Event.SUCCESS:
                answer = await world.succeed(work, b'"second"')
            case Event.FAILURE:
                answer = await world.fail_attempt(work, OTHER)
            case Event.LAST_FAILURE:
                answer = await world.fail_attempt(work, OTHER, retryable=False)
            case Event.TARGET_NOT_FOUND:
                answer = await world.not_found(work)
            case Event.LEASE_LOST:
                loss = await lose(world, work)
                answer = "nothing" if loss is Loss.NOT_LOST else loss.name.lower()
            case Event.NOT_STARTED:
                answer = "accepted" if await prove(world, work) else "nothing"
            case Event.SUPPLY_SUCCESS:
                answer = await resolve(world, target_of(work), SupplySuccess(b'"operator"'))
            case Event.DECLARE_FAILURE:
                answer = await resolve(world, target_of(work), DeclareFailure(OTHER))
            case Event.AUTHORIZE_RETRY:
                answer = await resolve(world, target_of(work), RetryAttempt())
            case Event.CANCEL:
                answer = (await cancel(world, told.run_id)).outcome.value
            case Event.TIMER:
                answer = await told.fire()
    except Refusal as refusal:
        return refusal.code
    return word_of(answer)


def word_of(answer: Any) -> str:
    if isinstance(answer, str):
        return answer
    if isinstance(answer, Stale):
        return answer.code
    return "replayed" if isinstance(answer, Replayed) else "accepted"


async def act_on_pass(told: Told, event: PassEvent) -> str:
    """Let a pass answer something new, or something happen to it; return what its author is told."""
    world, work = told.world, told.work
    assert work is not None
    answer: Any
    try:
        match event:
            case PassEvent.DECLARE:
                answer = await world.declare(work, "s2")
            case PassEvent.COMPLETE:
                answer = await world.complete(work, b'"another"')
            case PassEvent.FAIL:
                answer = await world.fail(work, OTHER)
            case PassEvent.BLOCK:
                answer = await block(world, work, "another")
            case PassEvent.LEASE_LOST:
                loss = await world.lose(work.item_id, token=work.token, is_session_lost=True)
                answer = "nothing" if loss is Loss.NOT_LOST else loss.name.lower()
            case PassEvent.CANCEL:
                answer = (await cancel(world, told.run_id)).outcome.value
            case PassEvent.TIMER:
                answer = await told.fire()
    except Refusal as refusal:
        return refusal.code
    return word_of(answer)
