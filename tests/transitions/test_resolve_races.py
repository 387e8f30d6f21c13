"""An operator's command against a late result, another operator and a stop, each pair in each order: one commits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from operator_verbs import (
    assert_nothing_began_after_the_stop,
    cancel,
    let_be_lost,
    resolve,
    start_undo,
    target_of,
    unknown_step,
    unresolved,
)
from test_races import InterruptingStore, prepared, race
from world import LEASE_MS, EagerClock, World, work_of

from keyspace.errors import Refusal
from keyspace.layout import RESOLUTION
from keyspace.lifecycle import AttemptState, Phase, Recovery, StepState
from keyspace.records.run import FailureRecord
from keyspace.store.embedded import memory_store
from keyspace.store.fault import FaultStore
from keyspace.store.fault_plan import CommitFault, FaultPlan
from keyspace.transitions.resolve_attempt import (
    Command,
    DeclareFailure,
    Resolution,
    RetryAttempt,
    SupplySuccess,
)
from keyspace.transitions.work import Accepted, Replayed, Stale, Work

DECLARED = FailureRecord(category="operator", message="the bank says no", details='{"code":51}')
SUCCESS, FAILURE, RETRY_IT = SupplySuccess(b'"by hand"'), DeclareFailure(DECLARED), RetryAttempt()
COMMANDS: dict[str, Command] = {"success": SUCCESS, "failure": FAILURE, "retry": RETRY_IT}


Act = Callable[[World, Work], Awaitable[Any]]


def by_operator(command: Command, key: str = "key-1") -> Act:
    async def act(world: World, work: Work) -> Any:
        try:
            return await resolve(world, target_of(work), command, key=key)
        except Refusal as refusal:
            return refusal.code

    return act


LATE: dict[str, Act] = {
    "success": lambda world, work: world.succeed(work, b'"by the worker"'),
    "failure": lambda world, work: world.fail_attempt(work),
    "proof": lambda world, work: world.prove(work),
}


async def raced_undo() -> tuple[World, InterruptingStore, Work]:
    world, store = await prepared()
    work = await world.run_step("s1")
    await cancel(world, work.run_id)
    return world, store, await let_be_lost(world, await start_undo(world))


async def raced_step() -> tuple[World, InterruptingStore, Work]:
    world, store = await prepared()
    work = await let_be_lost(world, await world.start_step("s1"))
    await world.hello("session-2")
    return world, store, work


@pytest.mark.case(19)
@pytest.mark.parametrize("is_operator_first", [True, False])
@pytest.mark.parametrize("name", list(COMMANDS))
@pytest.mark.parametrize(
    ("direction", "late"), [("forward", "success"), ("forward", "failure"), ("forward", "proof"), ("undo", "success"), ("undo", "failure")]
)  # fmt: skip
async def test_of_a_late_result_and_a_command_one_commits(
    direction: str, late: str, name: str, is_operator_first: bool
) -> None:
    """RFD 2, "exactly one result or operator command commits, and losing late results remain diagnostic"."""
    world, store, work = await (raced_step() if direction == "forward" else raced_undo())
    operator = by_operator(COMMANDS[name])
    if is_operator_first:
        answer, told = await race(world, store, operator, LATE[late], work)
    else:
        told, answer = await race(world, store, LATE[late], operator, work)
    at = target_of(work)
    attempt = await world.attempt(work.run_id, "s1", 1, at.direction)
    kinds = await world.kinds(work.run_id)
    assert kinds.count("attempt-resolved") == int(is_operator_first)
    assert await unresolved(world) == []
    if is_operator_first:
        assert isinstance(answer, Resolution) and not answer.is_replay
        assert attempt.state is answer.record.attempt_state
        if late == "proof":
            assert told is False
        else:
            assert told == Stale("attempt_not_authorized" if name == "retry" else "attempt_settled")
            assert [one.outcome for one in await world.stale_results(work.run_id)] == [late]
    else:
        assert answer == "stale_attempt"
        assert told in (Accepted(), True)
        expected = {"success": AttemptState.SUCCEEDED, "failure": AttemptState.FAILED, "proof": AttemptState.QUEUED}
        assert attempt.state is expected[late]
        assert await world.records(RESOLUTION, work.run_id) == []
    await world.check()


async def test_a_late_result_that_says_the_same_is_taken_for_a_repeat(world: World) -> None:
    """RFD 2, "Duplicate submission of the same accepted result is idempotent", whoever supplied it first."""
    work = await unknown_step(world)
    await resolve(world, target_of(work), SupplySuccess(b'"same"'))
    assert await world.succeed(work, b'"same"') == Replayed()
    assert await world.stale_results(work.run_id) == []
    assert await world.succeed(work, b'"other"') == Stale("attempt_settled")
    assert len(await world.stale_results(work.run_id)) == 1


@pytest.mark.parametrize("is_same_key", [True, False])
@pytest.mark.parametrize("second", list(COMMANDS))
@pytest.mark.parametrize("first", list(COMMANDS))
async def test_of_two_operators_one_decides(first: str, second: str, is_same_key: bool) -> None:
    """RFD 2, "Any different resolution after the attempt settles also conflicts"."""
    world, store, work = await raced_step()
    acts = by_operator(COMMANDS[first]), by_operator(COMMANDS[second], "key-1" if is_same_key else "key-2")
    told, answer = await race(world, store, *acts, work)
    assert isinstance(told, Resolution)
    if not is_same_key:
        assert answer == "stale_attempt"
    elif first == second:
        assert answer == Resolution(told.record, is_replay=True)
    else:
        assert answer == "idempotency_conflict"
    assert (await world.kinds(work.run_id)).count("attempt-resolved") == 1
    await world.check()


@pytest.mark.case(19)
@pytest.mark.parametrize("is_stop_first", [True, False])
@pytest.mark.parametrize("name", list(COMMANDS))
async def test_a_stop_races_a_command(name: str, is_stop_first: bool) -> None:
    """Case 019: resolution and stop in both orders; a retry that was authorized first is fenced by the stop behind it."""
    world, store, work = await raced_step()
    operator = by_operator(COMMANDS[name])

    async def stop(world: World, work: Work) -> Any:
        return await cancel(world, work.run_id)

    if is_stop_first:
        _, answer = await race(world, store, stop, operator, work)
    else:
        answer, _ = await race(world, store, operator, stop, work)
    run, step = await world.get_run(work.run_id), await world.step(work.run_id, "s1")
    await assert_nothing_began_after_the_stop(world, work.run_id)
    if name == "success":
        assert (run.phase, step.state) == (Phase.COMPENSATING, StepState.COMPLETED)
    elif name == "retry" and is_stop_first:
        assert answer == "retry_forbidden"
        assert (run.phase, run.unknown_count, step.state) == (Phase.CANCELLING, 1, StepState.UNKNOWN)
    else:
        assert (run.phase, run.recovery) == (Phase.TERMINAL, Recovery.EMPTY_UNWIND)
        expected = StepState.FAILED if name == "failure" and is_stop_first else StepState.OBSOLETE
        assert step.state is expected
    assert await world.lease_many(1) == []
    await world.check()


async def test_generations_survive_whoever_held_them(world: World) -> None:
    """RFD 2, "After any restart, durable settlement and generation records reconstruct the same fence"."""
    work = await unknown_step(world)
    await resolve(world, target_of(work), RETRY_IT)
    second = work_of(await world.lease())
    assert second.generation == 2
    await world.hello("after a restart")
    assert await world.succeed(work, b'"first"') == Stale("attempt_not_authorized")
    assert await world.authorize(second, session="session-1") == Stale("session_superseded")
    world.clock.advance(LEASE_MS)
    await world.lose(second.item_id)
    world.clock.advance(LEASE_MS)
    assert await world.succeed(await world.start_attempt(), b'"second"') == Accepted()
    assert await world.value(work.run_id, "s1") == b'"second"'
    await world.check()


@pytest.mark.case(1)
@pytest.mark.parametrize("fault", [CommitFault.UNKNOWN_COMMITTED, CommitFault.UNKNOWN_NOT_COMMITTED])
@pytest.mark.parametrize("name", list(COMMANDS))
async def test_a_command_whose_commit_is_unknown_is_carried_out_once(name: str, fault: CommitFault) -> None:
    """Case 001: tried again it finds its record, and answers what that says; a retry makes one generation, not two."""
    clock = EagerClock()
    plan = FaultPlan().at_commit(1, fault, transition="resolve_attempt")
    world = World(clock=clock, store=FaultStore(memory_store(clock=clock), plan, clock=clock))
    await world.begin()
    await world.hello()
    work = await unknown_step(world)
    made = await resolve(world, target_of(work), COMMANDS[name])
    assert made.is_replay is (fault is CommitFault.UNKNOWN_COMMITTED)
    assert await world.records(RESOLUTION, work.run_id) == [made.record]
    step = await world.step(work.run_id, "s1")
    assert step.generation == (1 if name == "success" else 2)
    assert made.record.following_generation == (2 if name == "retry" else None)
    assert (await world.kinds(work.run_id)).count("attempt-resolved") == 1
    await world.check()
