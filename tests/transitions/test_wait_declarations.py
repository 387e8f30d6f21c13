"""What a wait may be declared with, what a repeated declaration keeps, and which events have nothing to do with it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from operator_verbs import cancel, must_refuse
from server_steps import ONCE, fire_due, sleep_for
from test_timers import give_a_pass
from test_waits import MINUTE_MS, send, waiting
from world import RETRY, World

from keyspace.layout import ITEM, WAIT, WAIT_INDEX
from keyspace.lifecycle import Phase, Recovery, StepState
from keyspace.limits import CORRELATION_PAIRS_MAX, NAME_CHARS_MAX, REPLAY_BYTES_MAX, TIMER_MS_MAX
from keyspace.transitions.declaration import WAIT_OUTCOME_BYTES_MAX, WaitTerms
from keyspace.transitions.fire_timer import Fired
from keyspace.transitions.work import Accepted, save_run
from keyspace.tx import Tx

TERMS = WaitTerms(event="order.packed", match={"order": "7"}, timeout_ms=MINUTE_MS)


def with_terms(**changed: Any) -> dict[str, Any]:
    return {"terms": msgspec.structs.replace(TERMS, **changed)}


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"compensable": True}, "not_compensable"),
    ({"undo_retry": RETRY}, "not_compensable"),
    ({"undo_timeout_ms": 5}, "not_compensable"),
    ({"retry": RETRY}, "invalid_retry"),
    ({"repeatable": True}, "not_repeatable"),
    ({"timeout_ms": 5}, "invalid_timeout"),
    (with_terms(event=""), "invalid_name"),
    (with_terms(event="n" * (NAME_CHARS_MAX + 1)), "invalid_name"),
    (with_terms(timeout_ms=-1), "invalid_timeout"),
    (with_terms(timeout_ms=TIMER_MS_MAX + 1), "invalid_timeout"),
    (with_terms(match={"": "7"}), "invalid_text"),
    (with_terms(match={str(n): "" for n in range(CORRELATION_PAIRS_MAX + 1)}), "invalid_correlation"),
]


@pytest.mark.parametrize(("more", "code"), REFUSED, ids=lambda value: str(value)[:70])
async def test_a_refused_wait_mutates_nothing(world: World, more: dict[str, Any], code: str) -> None:
    """RFD 2, "the engine refuses a compensable wait declaration"; "a required relative timeout"; ARCHITECTURE 7."""
    await world.start_run()
    work = await world.lease_pass()
    given: dict[str, Any] = {"retry": ONCE, "terms": TERMS} | more
    await must_refuse(world, code, world.declare(work, "packed", **given))
    assert await world.declare(work, "packed", retry=ONCE, terms=TERMS) == Accepted(), "the pass goes on"
    await world.check()


async def test_a_wait_without_time_is_settled_by_its_timeout_alone(world: World) -> None:
    """RFD 2, "A zero timeout is due at acceptance itself, so no event can settle it and only the timeout can"."""
    run = await waiting(world, timeout_ms=0)
    await send(world)
    assert (await world.step(run.run_id, "packed")).state is StepState.WAITING
    assert await fire_due(world) == [Fired.FIRED]
    step = await world.step(run.run_id, "packed")
    assert step.failure is not None and step.failure.category == "sdk.timeout"
    await world.check()


async def test_a_repeated_declaration_keeps_registration_and_anchor(world: World) -> None:
    """RFD 2, "a repeated declaration of the same step keeps the recorded registration and anchor": another timeout moves
    nothing, another event or pair is a conflict."""
    run = await waiting(world)
    registered = await world.records(WAIT), await world.records(WAIT_INDEX), await world.records(ITEM)
    world.clock.advance(1_000)
    await give_a_pass(world, run.run_id)
    work = await world.lease_pass()
    for other in (with_terms(event="order.else"), with_terms(match={"order": "8"}), {"terms": sleep_for(1).terms}):
        await must_refuse(world, "declaration_conflict", world.declare(work, "packed", retry=ONCE, **other))
    again = with_terms(timeout_ms=5 * MINUTE_MS)
    assert await world.declare(work, "packed", retry=ONCE, **again) == Accepted()
    assert (await world.records(WAIT), await world.records(WAIT_INDEX), await world.records(ITEM)) == registered
    await world.check()
    world.clock.advance(MINUTE_MS - 1_000)
    assert await fire_due(world) == [Fired.FIRED]


async def test_an_event_settles_every_wait_and_is_consumed_by_none(world: World) -> None:
    """RFD 2, "an accepted event settles every eligible registration it satisfies, and an event is never consumed by a wait, so
    ordinary trigger fan-out is unaffected"."""
    await world.publish({"fulfil": ["order.placed"], "after": ["order.packed"]})
    runs = [await waiting(world) for _ in range(3)]
    event_id = await send(world)
    for run in runs:
        assert (await world.step(run.run_id, "packed")).state is StepState.COMPLETED
    expansion = await world.expansion(event_id)
    assert (expansion.settled_count, expansion.matched_count) == (3, 1)
    assert [run.function for run in await world.runs()].count("after") == 1
    await world.check()


async def test_an_addressed_event_meets_no_wait(world: World) -> None:
    """RFD 2, "An addressed event never evaluates trigger bindings and never matches a durable wait": not even one that names it."""
    run = await waiting(world, event="ryusen/function.invoked", match={})
    await world.invoke("fulfil")
    world.clock.advance(1)
    await world.expand()
    assert (await world.step(run.run_id, "packed")).state is StepState.WAITING
    await world.check()


async def test_a_match_that_no_record_can_carry_leaves_the_wait_to_its_timeout(world: World) -> None:
    """RFD 2, "A settlement no record can carry at all leaves the wait outstanding for its own timeout, because the event must
    still complete"."""
    run = await waiting(world)
    left = len("packed") + WAIT_OUTCOME_BYTES_MAX - 1

    async def fill(tx: Tx) -> None:
        save_run(tx, "acme", run, msgspec.structs.replace(run, replay_bytes=REPLAY_BYTES_MAX - left))

    await world.run("fill", fill)
    event_id = await send(world)
    assert (await world.step(run.run_id, "packed")).state is StepState.WAITING
    expansion = await world.expansion(event_id)
    assert (expansion.item_id, expansion.settled_count) == (None, 0)
    assert len(await world.records(WAIT_INDEX)) == 1


@pytest.mark.parametrize("settles", ["a match", "its timeout"])
async def test_a_settled_wait_is_never_undone(world: World, settles: str) -> None:
    """RFD 2, "a settled wait is never part of an unwind": the plan has the callback step alone."""
    run = await world.start_run()
    await world.run_step("first")
    assert await world.declare(await world.lease_pass(), "packed", retry=ONCE, terms=TERMS) == Accepted()
    if settles == "a match":
        await send(world)
    else:
        world.clock.advance(MINUTE_MS)
        await fire_due(world)
    await cancel(world, run.run_id)
    after = await world.get_run(run.run_id)
    assert after.phase is Phase.COMPENSATING
    assert after.unwind is not None and after.unwind.upper == 1
    await world.check()


async def test_a_run_whose_only_outcome_is_a_wait_unwinds_nothing(world: World) -> None:
    """FILLED-IN 5, "no completed callback step (a settled timer, wait, child or emission is never part of an unwind)"."""
    run = await waiting(world)
    await send(world)
    await cancel(world, run.run_id)
    after = await world.get_run(run.run_id)
    assert (after.phase, after.recovery) == (Phase.TERMINAL, Recovery.EMPTY_UNWIND)
    await world.check()
