"""Worlds whose runs have a deadline, and everything that can meet one, told as acts on one piece of work."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from blocker_verbs import block
from operator_verbs import resolve, target_of
from world import LEASE_MS, RETRY, World, work_of

from keyspace.errors import Refusal
from keyspace.records.run import FailureRecord, RunRecord
from keyspace.records.work import WorkKind
from keyspace.transitions.accept_declaration import Declaration
from keyspace.transitions.continue_run import Completion
from keyspace.transitions.fire_deadline import Fired, fire_deadline
from keyspace.transitions.resolve_attempt import DeclareFailure, RetryAttempt, SupplySuccess
from keyspace.transitions.work import Work

__all__ = ["ACTS", "LEASE_LEFT_MS", "TIMEOUT_MS", "Act", "at_deadline", "begin_timed", "fire", "fire_item", "prepare"]

TIMEOUT_MS = 3_600_000
LEASE_LEFT_MS = LEASE_MS // 2
"""How long after the deadline a lease goes on that was granted before it."""
FAILURE = FailureRecord(category="application", message="no stock")
Perform = Callable[[World, Work], Awaitable[Any]]


class Act(NamedTuple):
    """Something that happens to a run: the stage its work must stand at, the transition's name, and the deed itself."""

    stage: str
    transition: str
    perform: Perform


async def _lease(world: World, work: Work) -> list[str]:
    return [delivery.item.item_id for delivery in await world.lease_many(1)]


async def _resolve(world: World, work: Work, command: Any) -> Any:
    try:
        return (await resolve(world, target_of(work), command)).record.attempt_state
    except Refusal as refusal:
        return refusal.code


async def _prove(world: World, work: Work) -> bool:
    await world.hello("session-2")
    return await world.prove(work)


ACTS: dict[str, Act] = {
    "success": Act("effect", "accept_success", lambda world, work: world.succeed(work)),
    "success and declaration": Act(
        "effect", "continue_run", lambda world, work: world.go_on(work, Declaration("next", RETRY))
    ),
    "success and completion": Act("effect", "continue_run", lambda world, work: world.go_on(work, Completion(b"1"))),
    "success, pass under way": Act("effect", "continue_run", lambda world, work: world.go_on(work, None)),
    "retryable failure": Act("effect", "accept_failure", lambda world, work: world.fail_attempt(work)),
    "final failure": Act("effect", "accept_failure", lambda world, work: world.fail_attempt(work, retryable=False)),
    "proof": Act("effect", "prove_not_started", _prove),
    "loss": Act("effect", "lose_lease", lambda world, work: world.lose(work.item_id)),
    "late success": Act("unknown", "accept_success", lambda world, work: world.succeed(work)),
    "late failure": Act("unknown", "accept_failure", lambda world, work: world.fail_attempt(work)),
    "supplied success": Act(
        "unknown", "resolve_attempt", lambda world, work: _resolve(world, work, SupplySuccess(b'"op"'))
    ),
    "declared failure": Act(
        "unknown", "resolve_attempt", lambda world, work: _resolve(world, work, DeclareFailure(FAILURE))
    ),
    "explicit retry": Act("unknown", "resolve_attempt", lambda world, work: _resolve(world, work, RetryAttempt())),
    "authorization": Act("leased", "authorize_start", lambda world, work: world.authorize(work)),
    "no target": Act("leased", "target_not_found", lambda world, work: world.not_found(work)),
    "lease of an effect": Act("queued", "lease_items", _lease),
    "lease of a pass": Act("unpassed", "lease_items", _lease),
    "declaration": Act("pass", "accept_declaration", lambda world, work: world.declare(work, "next")),
    "completion": Act("pass", "complete_run", lambda world, work: world.complete(work)),
    "function failure": Act("pass", "fail_run", lambda world, work: world.fail(work)),
    "step id met twice": Act("pass", "block_run", lambda world, work: block(world, work)),
    "lost pass": Act("pass", "lose_lease", lambda world, work: world.lose(work.item_id, is_session_lost=True)),
}
"""Every forward result, answer, start, loss and command there is."""


async def begin_timed(world: World, timeout_ms: int | None = TIMEOUT_MS) -> None:
    """Create the workspace, its function with a run timeout, and a worker's session."""
    await world.begin(timeout_ms=timeout_ms)
    await world.hello()


async def prepare(world: World, stage: str, *, completed: int = 0) -> Work:
    """Start a run, complete some steps, and bring its next work to a stage; return that work."""
    run = await world.start_run()
    for number in range(completed):
        await world.run_step(f"done{number}")
    if stage == "unpassed":
        return _unleased(run)
    passed = await world.lease_pass()
    if stage == "pass":
        return passed
    await world.declare(passed, "s1")
    if stage == "queued":
        return _unleased(run)
    if stage == "leased":
        # The lease must outlast the deadline, so that it is the deadline and nothing else that decides.
        await at_deadline(world, run.run_id, LEASE_LEFT_MS - LEASE_MS)
        return work_of(await world.lease())
    work = work_of(await world.lease())
    await world.authorize(work)
    if stage == "unknown":
        world.clock.advance(LEASE_MS)
        await world.lose(work.item_id)
    return work


def _unleased(run: RunRecord) -> Work:
    return Work(WorkKind.DISCOVERY, run.run_id, None, "", "", 0)


async def at_deadline(world: World, run_id: str, offset_ms: int = 0) -> None:
    """Let time pass until `offset_ms` after the run's deadline."""
    run = await world.get_run(run_id)
    assert run.deadline_at_ms is not None
    world.clock.advance(run.deadline_at_ms + offset_ms - world.clock.now_ms())


async def fire_item(world: World, run_id: str, item_id: str) -> Fired:
    """Fire a RunTimeout item."""
    return await world.run("fire_deadline", lambda tx: fire_deadline(tx, "acme", run_id, item_id))


async def fire(world: World, run_id: str) -> Fired:
    """Fire the timer that the run names."""
    item_id = (await world.get_run(run_id)).timeout_item
    assert item_id is not None
    return await fire_item(world, run_id, item_id)
