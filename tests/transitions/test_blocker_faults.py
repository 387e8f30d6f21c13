"""Blocked runs under faults and deadlines: commits nobody knows of, processes that stop, and time that runs out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from blocker_verbs import (
    be_blocked,
    block,
    blocked_runs,
    blocker_of,
    conflict,
    probe,
    rediscover,
    run_probe_lane,
    wakes,
)
from final_state import final_state
from test_blockers import assert_no_trace
from test_races import prepared, race
from test_releases import prefer, register, release
from world import EagerClock, World

from keyspace.errors import Refusal
from keyspace.keyspace import Keyspace
from keyspace.layout import ITEM
from keyspace.lifecycle import Execution, Phase, Recovery, StopReason
from keyspace.limits import PROBE_DELAY_MS_INITIAL
from keyspace.records.run import RunRecord
from keyspace.records.work import WorkKind
from keyspace.store.embedded import memory_store
from keyspace.store.fault import FaultStore, ProcessStopped
from keyspace.store.fault_plan import CommitFault, FaultPlan
from keyspace.store.memory_engine import MemoryEngine
from keyspace.transitions.activate_routing import activate_routing
from keyspace.transitions.fire_deadline import Fired, fire_deadline
from keyspace.transitions.publish_manifest import FunctionSpec, ManifestSpec, TriggerSpec, publish_manifest
from keyspace.transitions.rediscover_run import RediscoverOutcome
from keyspace.transitions.work import Accepted, Stale

UNKNOWN, NOT_WRITTEN = CommitFault.UNKNOWN_COMMITTED, CommitFault.UNKNOWN_NOT_COMMITTED
BOTH_FACES = pytest.mark.parametrize("fault", [UNKNOWN, NOT_WRITTEN], ids=lambda fault: fault.value)


def faulty_world(plan: FaultPlan, engine: MemoryEngine | None = None, clock: EagerClock | None = None) -> World:
    clock = clock or EagerClock()
    store = memory_store(clock=clock, engine=engine or MemoryEngine())
    return World(clock=clock, store=FaultStore(store, plan, clock=clock))


# -- commits whose outcome nobody knows


@pytest.mark.case(1)
@pytest.mark.case(52)
@BOTH_FACES
@pytest.mark.parametrize("is_continued", [False, True])
async def test_a_block_whose_commit_is_unknown_is_made_once(is_continued: bool, fault: CommitFault) -> None:
    """Case 001: one blocker, seen once, one entry, whether the commit happened or not."""
    plan = FaultPlan()
    for name in ("block_run", "continue_run"):
        plan.at_commit(1, fault, transition=name)
    world = faulty_world(plan)
    await world.begin()
    await world.hello()
    run = await world.start_run()
    if is_continued:
        told = await world.go_on(await world.start_step("s1"), conflict("s1"))
        assert not isinstance(told.result, Stale) and not isinstance(told.answer, Stale)
    else:
        assert not isinstance(await block(world, await world.lease_pass()), Stale)
    blocker = await blocker_of(world, run.run_id)
    assert blocker is not None and blocker.count == 1
    assert (await world.kinds(run.run_id)).count("definition-blocked") == 1
    assert len([item for item in await world.records(ITEM) if item.kind is WorkKind.DEFINITION_PROBE]) == 1
    await world.check()


@pytest.mark.case(1)
@BOTH_FACES
async def test_a_wake_whose_commit_is_unknown_wakes_once(fault: CommitFault) -> None:
    """Case 001: the page is not woken twice, and the one behind it is not passed over."""
    world = faulty_world(FaultPlan().at_commit(1, fault, transition="wake_blocked"))
    await world.begin()
    await world.hello()
    runs = [await be_blocked(world) for _ in range(40)]
    await release(world, "v1")
    await run_probe_lane(world)
    assert len([item for item in await world.records(ITEM) if item.kind is WorkKind.DISCOVERY]) == len(runs)
    for run in runs:
        assert (await world.kinds(run.run_id)).count("definition-woken") == 1
    await world.check()


@pytest.mark.case(1)
@BOTH_FACES
async def test_a_preference_whose_commit_is_unknown_makes_one_wake(fault: CommitFault) -> None:
    """Case 001: the head is the receipt; tried again it names this release already, and its wake is there."""
    world = faulty_world(FaultPlan().at_commit(1, fault, transition="prefer_release"))
    await world.begin()
    await world.hello()
    await be_blocked(world)
    await release(world, "v1")
    assert len(await wakes(world)) == 1
    assert len([item for item in await world.records(ITEM) if item.kind is WorkKind.RELEASE_WAKE]) == 1
    await world.check()


@pytest.mark.case(1)
@BOTH_FACES
async def test_a_probe_whose_commit_is_unknown_fires_once(fault: CommitFault) -> None:
    """Case 001: the consumed item is the receipt."""
    world = faulty_world(FaultPlan().at_commit(1, fault, transition="probe_definition"))
    await world.begin()
    await world.hello()
    run = await be_blocked(world)
    world.clock.advance(PROBE_DELAY_MS_INITIAL)
    await run_probe_lane(world)
    blocker = await blocker_of(world, run.run_id)
    assert blocker is not None and blocker.probe_count == 1
    assert (await world.kinds(run.run_id)).count("definition-woken") == 1
    await world.check()


@pytest.mark.case(1)
@BOTH_FACES
async def test_a_request_whose_commit_is_unknown_is_made_once(fault: CommitFault) -> None:
    """Case 001: the caller gets the answer of the first commit, not a conflict with itself."""
    world = faulty_world(FaultPlan().at_commit(1, fault, transition="rediscover_run"))
    await world.begin()
    await world.hello()
    run = await be_blocked(world)
    assert (await rediscover(world, run.run_id)).outcome is RediscoverOutcome.ACCEPTED
    assert (await world.kinds(run.run_id)).count("definition-retry-requested") == 1
    await world.check()


@pytest.mark.case(1)
@BOTH_FACES
@pytest.mark.parametrize("answer", ["declare", "complete", "fail"])
async def test_an_unblocking_answer_whose_commit_is_unknown_unblocks_once(answer: str, fault: CommitFault) -> None:
    """Case 001: tried again it finds the pass's receipt on the run, not a blocker that is missing."""
    plan = FaultPlan()
    for name in ("accept_declaration", "complete_run", "fail_run"):
        plan.at_commit(1, fault, transition=name)
    world = faulty_world(plan)
    await world.begin()
    await world.hello()
    run = await be_blocked(world)
    await rediscover(world, run.run_id)
    assert not isinstance(await getattr(world, answer)(await world.lease_pass()), Stale)
    assert (await world.kinds(run.run_id)).count("definition-unblocked") == 1
    await assert_no_trace(world, run.run_id)
    await world.check()


# -- a process that stops after any commit

COMMITS_MAX = 60
"""More than the story has."""

Act = Callable[[], Awaitable[Any]]


class Steadfast:
    """Performs a story whose process stops at one commit: every act is tried again in the next process."""

    def __init__(self, stop_at: int) -> None:
        self.engine, self.clock = MemoryEngine(), EagerClock()
        self.plan = FaultPlan()
        if stop_at:
            self.plan.at_commit(stop_at, CommitFault.STOP_AFTER)
        self.world = faulty_world(self.plan, self.engine, self.clock)
        self.stop_count = 0

    async def do(self, act: Act) -> Any:
        try:
            return await act()
        except ProcessStopped:
            self.stop_count += 1
            store = memory_store(clock=self.clock, engine=self.engine)
            self.world.store = FaultStore(store, self.plan, clock=self.clock)
            self.world.keyspace = Keyspace(
                self.world.store, clock=self.clock, prefix=self.world.keyspace.prefix, rng=self.world.rng
            )
            return await act()

    async def tell(self) -> tuple[RunRecord, dict[str, list[Any]]]:
        """Block a run, probe it, ask for it, replace its blocker, wake it and let it complete; return what it came to."""
        world = self.world
        await world.begin()
        await world.hello()
        run = await world.start_run()
        await world.run_step("s1")
        work = await world.lease_pass()
        await self.do(lambda: block(world, work, "s1"))
        blocker = await blocker_of(world, run.run_id)
        assert blocker is not None and blocker.probe_item is not None
        probe_item = blocker.probe_item
        world.clock.advance(PROBE_DELAY_MS_INITIAL)
        await self.do(lambda: probe(world, run.run_id, probe_item))
        second = await world.lease_pass()
        await self.do(lambda: block(world, second, "s1"))
        item_id = "cd" * 16
        await self.do(lambda: rediscover(world, run.run_id, item_id=item_id))
        third = await world.lease_pass()
        await self.do(lambda: block(world, third, "s2"))
        record = await self.do(lambda: register(world.keyspace, "v1"))
        await self.do(lambda: prefer(world.keyspace, record))
        await self.do(lambda: run_probe_lane(world))
        last = await world.lease_pass()
        await self.do(lambda: world.declare(last, "s3"))
        await world.succeed(await world.start_attempt())
        await world.complete(await world.lease_pass())
        await world.check()
        return await world.get_run(run.run_id), final_state(await world.dump())


@pytest.mark.case(1)
async def test_a_stop_after_every_commit_of_a_blocked_runs_life(anyio_backend: str) -> None:
    """RFD 2, "by injecting a stop after every transaction commit and reopening the store": the story ends the same."""
    told = Steadfast(0)
    run, expected = await told.tell()
    assert (run.phase, run.execution) == (Phase.TERMINAL, Execution.COMPLETED)
    stopped = 0
    for number in range(1, COMMITS_MAX):
        one = Steadfast(number)
        try:
            _, state = await one.tell()
        except ProcessStopped:
            continue  # at a commit of the setting, which `tell` does not repeat
        if one.stop_count == 0:
            break
        stopped += 1
        assert state == expected, f"a stop at commit {number}"
    assert stopped >= 8, "each act of the story was stopped once"


# -- time that runs out


async def timed_world(timeout_ms: int = 10_000) -> World:
    world = World()
    await world.begin()
    spec = ManifestSpec("shop", (FunctionSpec("fulfil", (TriggerSpec("order.placed", "b"),), timeout_ms=timeout_ms),))
    record, _ = await world.run("publish_manifest", lambda tx: publish_manifest(tx, "acme", spec, published_by="test"))
    await world.run(
        "activate_routing",
        lambda tx: activate_routing(tx, "acme", {"shop": record.generation}, activated_by="test", is_merge=True),
    )
    await world.hello()
    return world


async def fire(world: World, run: RunRecord) -> Fired:
    timer = run.timeout_item
    assert timer is not None
    return await world.run("fire_deadline", lambda tx: fire_deadline(tx, "acme", run.run_id, timer))


@pytest.mark.case(25)
@pytest.mark.case(52)
@pytest.mark.parametrize("completed", [0, 1])
@pytest.mark.parametrize("stage", ["at rest", "queued", "authorized"])
async def test_the_deadline_passes_while_a_run_is_blocked(stage: str, completed: int) -> None:
    """Case 052, "let the deadline pass while blocked"; RFD 2, "Every run in Running or DefinitionBlocked retains that item"."""
    world = await timed_world()
    run = await world.start_run()
    for _ in range(completed):
        await world.run_step("s1")
    await block(world, await world.lease_pass(), "s1")
    run = await world.get_run(run.run_id)
    assert run.timeout_item is not None
    if stage != "at rest":
        await rediscover(world, run.run_id)
    if stage == "authorized":
        await world.lease_pass()
    world.clock.advance((run.deadline_at_ms or 0) - world.clock.now_ms() - 1)
    assert await fire(world, run) is Fired.NOT_DUE
    assert (await world.get_run(run.run_id)).phase is Phase.DEFINITION_BLOCKED
    world.clock.advance(1)
    assert await fire(world, run) is Fired.STOPPED
    after = await world.get_run(run.run_id)
    assert after.stop is not None and after.stop.reason is StopReason.TIMED_OUT
    assert after.execution is Execution.TIMED_OUT
    assert (after.phase, after.recovery) == (
        (Phase.COMPENSATING, None) if completed else (Phase.TERMINAL, Recovery.EMPTY_UNWIND)
    )
    await assert_no_trace(world, run.run_id)
    await world.check()


@pytest.mark.case(25)
@pytest.mark.parametrize("early_ms", [0, 1])
@pytest.mark.parametrize("answer", ["block", "declare", "complete", "fail"])
async def test_an_answer_of_a_blocked_run_is_held_against_the_deadline(answer: str, early_ms: int) -> None:
    """RFD 2, "The timeout handler and every authoritative forward result or discovery response compare"."""
    world = await timed_world()
    run = await be_blocked(world)
    await rediscover(world, run.run_id)
    work = await world.lease_pass()
    world.clock.advance((run.deadline_at_ms or 0) - world.clock.now_ms() - early_ms)
    verdict = await (block(world, work) if answer == "block" else getattr(world, answer)(work))
    after = await world.get_run(run.run_id)
    if early_ms:
        assert verdict == Accepted() and after.stop is None
    else:
        assert verdict == Stale("deadline_elapsed")
        assert after.execution is Execution.TIMED_OUT
        await assert_no_trace(world, run.run_id)
    await world.check()


@pytest.mark.case(19)
@pytest.mark.case(25)
@pytest.mark.parametrize("is_timer_first", [True, False])
@pytest.mark.parametrize("other", ["probe", "rediscover", "wake", "block"])
async def test_a_deadline_races_what_looks_again(other: str, is_timer_first: bool) -> None:
    """Case 019: the run ends TimedOut in either order, and owns nothing afterwards."""
    world, store = await prepared()
    spec = ManifestSpec(
        "shop", (FunctionSpec("timed", (TriggerSpec("order.timed", "b"),), timeout_ms=PROBE_DELAY_MS_INITIAL),)
    )
    record, _ = await world.run("publish_manifest", lambda tx: publish_manifest(tx, "acme", spec, published_by="test"))
    await world.run(
        "activate_routing",
        lambda tx: activate_routing(tx, "acme", {"shop": record.generation}, activated_by="test", is_merge=True),
    )
    run = await world.start_run("order.timed")
    work = await world.lease_pass(function="timed")
    if other != "block":
        await block(world, work)
    if other == "wake":
        await release(world, "v1", "timed")
    run = await world.get_run(run.run_id)
    blocker = await blocker_of(world, run.run_id)
    probe_item = "" if blocker is None else blocker.probe_item or ""
    world.clock.advance(PROBE_DELAY_MS_INITIAL)

    async def timer(world: World, _: object) -> object:
        return await fire(world, run)

    async def looks(world: World, _: object) -> object:
        if other == "block":
            return await block(world, work)
        if other == "probe":
            return await probe(world, run.run_id, probe_item)
        if other == "rediscover":
            return await rediscover_or_refuse(world, run.run_id)
        await run_probe_lane(world)
        return None

    first, second = (timer, looks) if is_timer_first else (looks, timer)
    await race(world, store, first, second, work)
    await world.check()
    after = await world.get_run(run.run_id)
    assert (after.phase, after.execution) == (Phase.TERMINAL, Execution.TIMED_OUT)
    assert await blocked_runs(world, "timed") == []
    assert {item.target for item in await world.records(ITEM)} & {run.run_id} == set()


async def rediscover_or_refuse(world: World, run_id: str) -> str:
    try:
        return (await rediscover(world, run_id)).outcome.value
    except Refusal as refusal:
        return refusal.code
