"""What an operator does to a world, and the straits in which it is done: stopped runs, unknown steps, unknown undos."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import pytest
from world import LEASE_MS, World, work_of

from keyspace.errors import Refusal
from keyspace.layout import RUN, UNRESOLVED
from keyspace.lifecycle import StopReason
from keyspace.records.run import HistoryRecord
from keyspace.records.work import Direction, WorkKind
from keyspace.transitions.prove_not_started import prove_not_started
from keyspace.transitions.resolve_attempt import Command, Resolution, Target, resolve_attempt
from keyspace.transitions.stop_run import StopReply, cancel_run, commit_stop
from keyspace.transitions.work import Accepted, Work, direction_of, engine_now_ms, save_run
from keyspace.tx import Tx

__all__ = [
    "assert_nothing_began_after_the_stop",
    "begun_after_stop",
    "cancel",
    "let_be_lost",
    "must_refuse",
    "prove",
    "resolve",
    "start_undo",
    "target_of",
    "time_out",
    "unknown_step",
    "unknown_undo",
    "unresolved",
]

FORWARD_KINDS = frozenset(
    ("pass-authorized", "step-declared", "retry-scheduled", "retry-authorized", "attempt-authorized")
)


async def cancel(world: World, run_id: str, *, by: str = "operator-1") -> StopReply:
    return await world.run("cancel_run", lambda tx: cancel_run(tx, "acme", run_id, by=by))


async def time_out(world: World, run_id: str) -> None:
    """Commit what the passing of a deadline commits."""

    async def body(tx: Tx) -> None:
        run = await tx.load(RUN.at("acme", run_id))
        assert run is not None
        after = await commit_stop(tx, "acme", run, StopReason.TIMED_OUT, "deadline", engine_now_ms(tx, run))
        save_run(tx, "acme", run, after)

    await world.run("time_out", body)


async def resolve(
    world: World,
    target: Target,
    command: Command,
    *,
    key: str = "key-1",
    by: str = "operator-1",
    value_bytes_max: int | None = None,
) -> Resolution:
    limit = world.keyspace.payload_bytes_max if value_bytes_max is None else value_bytes_max
    return await world.run(
        "resolve_attempt",
        lambda tx: resolve_attempt(tx, "acme", target, command, key=key, by=by, value_bytes_max=limit),
    )


def target_of(work: Work) -> Target:
    """Return how an operator names the attempt that a worker was delivered."""
    assert work.step_id is not None
    return Target(work.run_id, direction_of(work.kind), work.step_id, work.generation)


async def must_refuse(world: World, code: str, act: Awaitable[Any]) -> Refusal:
    """Expect a refusal that has mutated nothing; return it."""
    before = await world.dump()
    with pytest.raises(Refusal) as refused:
        await act
    assert refused.value.code == code
    assert await world.dump() == before
    return refused.value


async def let_be_lost(world: World, work: Work) -> Work:
    """Let the lease of an authorized effect run out, so that its outcome is unknown."""
    world.clock.advance(LEASE_MS)
    await world.lose(work.item_id)
    return work


async def prove(world: World, work: Work) -> bool:
    """Let the work's instance say hello again without it."""
    await world.hello(f"{world.session}+")
    at = target_of(work)
    return await world.run(
        "prove_not_started",
        lambda tx: prove_not_started(
            tx, "acme", "11" * 16, at.run_id, at.direction, at.step_id, at.generation, work.token, session=world.session
        ),
    )


async def start_undo(world: World) -> Work:
    """Lease and authorize the compensation that is ready."""
    work = work_of(await world.lease(direction=Direction.COMPENSATION))
    assert work.kind is WorkKind.COMPENSATION
    assert await world.authorize(work) == Accepted()
    return work


async def unknown_step(world: World, step_id: str = "s1", **options: Any) -> Work:
    """Start a step of a new run and lose it."""
    await world.start_run()
    return await let_be_lost(world, await world.start_step(step_id, **options))


async def unknown_undo(world: World, completed: int = 1) -> Work:
    """Cancel a new run of `completed` steps and lose the first compensation."""
    run = await world.start_run()
    for number in range(completed):
        await world.run_step(f"s{number + 1}")
    await cancel(world, run.run_id)
    return await let_be_lost(world, await start_undo(world))


async def unresolved(world: World) -> list[tuple[Any, ...]]:
    """Return what the index of unknown outcomes names."""
    span = UNRESOLVED.span("acme")
    return [UNRESOLVED.parse(key)[1:] for key in await world.dump() if span.begin <= key < span.end]


async def assert_nothing_began_after_the_stop(world: World, run_id: str) -> None:
    """No forward work was declared, scheduled or authorized behind the stop."""
    assert begun_after_stop(await world.history(run_id)) == []


def begun_after_stop(history: list[HistoryRecord]) -> list[str]:
    """Return the entries behind the stop by which forward work was declared, scheduled or authorized."""
    kinds = [entry.kind for entry in history]
    after = history[kinds.index("stop-committed") + 1 :]
    return [e.kind for e in after if e.kind in FORWARD_KINDS and e.data.get("direction") != "compensation"]
