"""What is declared with the last byte of the replay budget can still be settled, whatever it comes to; and failures add up."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
import pytest
from child_verbs import invocation, pass_on, publish_each
from operator_verbs import must_refuse, resolve, target_of
from server_steps import ONCE, emission, fire_due, sleep_for
from test_obsolete import fail_step
from world import LEASE_MS, World

from keyspace.limits import (
    FAILURE_DETAILS_BYTES_MAX,
    FAILURE_MESSAGE_BYTES_MAX,
    PAYLOAD_BYTES_DEFAULT,
    REPLAY_BYTES_MAX,
    REPLAY_STEP_BYTES,
)
from keyspace.records.run import FailureRecord, RunRecord
from keyspace.transitions import failed_steps
from keyspace.transitions.declaration import (
    FAILURE_RESERVE_BYTES,
    RECEIPT_BYTES,
    TIMER_OUTCOME,
    WAIT_OUTCOME_BYTES_MAX,
    Declaration,
    WaitTerms,
)
from keyspace.transitions.resolve_attempt import DeclareFailure
from keyspace.transitions.work import Accepted, save_run
from keyspace.tx import Tx

STEP_ID = "last"
WAIT = Declaration(STEP_ID, ONCE, terms=WaitTerms(event="order.packed", match={}, timeout_ms=60_000))
CALLBACK = Declaration(STEP_ID, ONCE)
LONGEST = FailureRecord(
    category="application",
    message="m" * FAILURE_MESSAGE_BYTES_MAX,
    details='"' + "d" * (FAILURE_DETAILS_BYTES_MAX - 2) + '"',
)


async def lets_it_fail(world: World) -> None:
    assert await world.fail_attempt(await world.start_attempt(), LONGEST) == Accepted()


async def returns_too_much(world: World) -> None:
    assert await world.succeed(await world.start_attempt(), b"0" * PAYLOAD_BYTES_DEFAULT) == Accepted()


async def is_declared_failed(world: World) -> None:
    work = await world.start_attempt()
    world.clock.advance(LEASE_MS)
    await world.lose(work.item_id)
    await resolve(world, target_of(work), DeclareFailure(LONGEST))


async def sees_the_child_fail(world: World) -> None:
    await world.fail(await world.lease_pass(function="pick"), LONGEST)
    await pass_on(world)


async def gets_too_much_from_the_child(world: World) -> None:
    await world.complete(await world.lease_pass(function="pick"), b"0" * PAYLOAD_BYTES_DEFAULT)
    await pass_on(world)


async def waits_in_vain(world: World) -> None:
    world.clock.advance(60_000)
    await fire_due(world)


async def gets_too_much_from_an_event(world: World) -> None:
    await world.submit("order.packed", b"0" * PAYLOAD_BYTES_DEFAULT)
    await world.expand()


async def wakes(world: World) -> None:
    world.clock.advance(1)
    await fire_due(world)


async def is_settled_already(world: World) -> None:
    """An emission is."""


OUTCOMES: list[tuple[Declaration, int, Callable[[World], Awaitable[None]], str]] = [
    (CALLBACK, FAILURE_RESERVE_BYTES, lets_it_fail, "application"),
    (CALLBACK, FAILURE_RESERVE_BYTES, returns_too_much, "sdk.invalid_result"),
    (CALLBACK, FAILURE_RESERVE_BYTES, is_declared_failed, "application"),
    (invocation(step_id=STEP_ID), FAILURE_RESERVE_BYTES, sees_the_child_fail, "child.failed"),
    (invocation(step_id=STEP_ID), FAILURE_RESERVE_BYTES, gets_too_much_from_the_child, "sdk.invalid_result"),
    (WAIT, WAIT_OUTCOME_BYTES_MAX, waits_in_vain, "sdk.timeout"),
    (WAIT, WAIT_OUTCOME_BYTES_MAX, gets_too_much_from_an_event, "sdk.invalid_result"),
    (sleep_for(1, STEP_ID), len(TIMER_OUTCOME), wakes, ""),
    (emission(STEP_ID), RECEIPT_BYTES, is_settled_already, ""),
]


async def fill(world: World, run: RunRecord, left_bytes: int) -> None:
    """Leave so much of a run's replay budget."""

    async def spend(tx: Tx) -> None:
        save_run(tx, "acme", run, msgspec.structs.replace(run, replay_bytes=REPLAY_BYTES_MAX - left_bytes))

    await world.run("spend", spend)


@pytest.mark.parametrize(
    ("declaration", "outcome_bytes", "settle", "category"),
    OUTCOMES,
    ids=[f"{one[0].kind.value} {one[2].__name__}" for one in OUTCOMES],
)
async def test_the_last_straw_can_be_settled(
    world: World,
    declaration: Declaration,
    outcome_bytes: int,
    settle: Callable[[World], Awaitable[None]],
    category: str,
) -> None:
    """RFD 2, "Registration itself is refused when the run's replay budget cannot carry the wait's mandatory timeout outcome";
    "one whose step record the parent's remaining replay budget cannot carry together with the small failure"; FILLED-IN 11."""
    await publish_each(world, {"fulfil": None, "pick": None})
    run = await world.start_run()
    work = await world.lease_pass()
    needed = len(STEP_ID) + REPLAY_STEP_BYTES + outcome_bytes
    leased = await world.get_run(run.run_id)
    await fill(world, leased, needed - 1)
    wanted = {"retry": ONCE, "terms": declaration.terms}
    await must_refuse(world, "replay_budget", world.declare(work, STEP_ID, **wanted))
    await fill(world, leased, needed)
    assert await world.declare(work, STEP_ID, **wanted) == Accepted()
    await settle(world)
    step = await world.step(run.run_id, STEP_ID)
    assert (step.failure.category if step.failure else "") == category
    after = await world.get_run(run.run_id)
    assert after.settled_count == 1
    assert after.replay_bytes <= REPLAY_BYTES_MAX
    assert await world.complete(await world.lease_pass()) == Accepted(), "and the run goes on"


async def test_failures_that_the_server_records_count_with_the_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ARCHITECTURE 7: a wait's timeout is a failed step like any; at the bound a step of any kind is refused."""
    monkeypatch.setattr(failed_steps, "FAILED_STEPS_MAX", 2)
    run = await world.start_run()
    await fail_step(world, "callback")
    assert await world.declare(await world.lease_pass(), STEP_ID, retry=ONCE, terms=WAIT.terms) == Accepted()
    await waits_in_vain(world)
    assert (await world.get_run(run.run_id)).failed_count == 2
    work = await world.lease_pass()
    for one in (CALLBACK, WAIT, sleep_for(1), emission(), invocation()):
        await must_refuse(world, "failed_step_limit", world.declare(work, "more", retry=ONCE, terms=one.terms))
    assert await world.complete(work, failed_met=()) == Accepted()
    assert [(await world.step(run.run_id, at)).state.value for at in ("callback", STEP_ID)] == ["obsolete"] * 2
    await world.check()
