"""Waits by the sentences of RFD 2: what is refused, what stands when it is declared again, and what a match can record."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from server_steps import ONCE, fire_due
from test_timers import give_a_pass
from test_waits import MINUTE_MS, send, waiting
from world import RETRY, World

from keyspace.errors import Refusal
from keyspace.layout import ITEM, RUN, WAIT, WAIT_INDEX, WAIT_STAMP
from keyspace.lifecycle import Execution, Phase, Recovery, StepState
from keyspace.limits import (
    CORRELATION_PAIRS_MAX,
    CORRELATION_TEXT_BYTES_MAX,
    REPLAY_BYTES_MAX,
    REPLAY_STEP_BYTES,
    TIMER_MS_MAX,
)
from keyspace.transitions.declaration import WAIT_OUTCOME_BYTES_MAX, Declaration, WaitTerms, check_room
from keyspace.transitions.declare_wait import WAIT_TIMEOUT
from keyspace.transitions.fire_timer import Fired
from keyspace.transitions.work import Accepted, Replayed
from keyspace.tx import Tx

TERMS = WaitTerms(event="order.packed", match={"order": "7"}, timeout_ms=MINUTE_MS)


def with_(**fields: Any) -> dict[str, Any]:
    return {"terms": msgspec.structs.replace(TERMS, **fields)}


@pytest.mark.case(44)
@pytest.mark.parametrize(
    ("more", "code", "field"),
    [
        ({"compensable": True}, "not_compensable", "compensable"),
        ({"undo_retry": RETRY}, "not_compensable", "compensable"),
        ({"retry": RETRY}, "invalid_retry", "retry.attempts"),
        ({"repeatable": True}, "not_repeatable", "repeatable"),
        ({"timeout_ms": 5}, "invalid_timeout", "timeout_ms"),
        (with_(event=""), "invalid_name", "event"),
        (with_(event="n" * 201), "invalid_name", "event"),
        (with_(timeout_ms=-1), "invalid_timeout", "timeout_ms"),
        (with_(timeout_ms=TIMER_MS_MAX + 1), "invalid_timeout", "timeout_ms"),
        (with_(match={"": "x"}), "invalid_text", "match"),
        (with_(match={"a": "x\x00"}), "invalid_text", "match.a"),
        (with_(match={"a": "x" * (CORRELATION_TEXT_BYTES_MAX + 1)}), "invalid_text", "match.a"),
        (with_(match={str(n): "x" for n in range(CORRELATION_PAIRS_MAX + 1)}), "invalid_correlation", "match"),
    ],
    ids=lambda value: str(value)[:60],
)
async def test_a_refused_wait_mutates_nothing(world: World, more: dict[str, Any], code: str, field: str) -> None:
    """RFD 2, "the engine refuses a compensable wait declaration"; case 044: named, with its limit, and nothing stored."""
    await world.start_run()
    work = await world.lease_pass()
    before = await world.dump()
    given: dict[str, Any] = {"retry": ONCE, "terms": TERMS} | more
    with pytest.raises(Refusal) as refused:
        await world.declare(work, "packed", **given)
    assert (refused.value.code, refused.value.details["field"]) == (code, field)
    assert await world.dump() == before
    assert await world.declare(work, "packed", retry=ONCE, terms=TERMS) == Accepted(), (
        "the pass goes on under its lease"
    )


@pytest.mark.case(49)
async def test_the_last_straw_of_the_replay_budget(world: World) -> None:
    """RFD 2, "Registration itself is refused when the run's replay budget cannot carry": to the byte."""
    run = await world.start_run()
    declared = Declaration("packed", ONCE, terms=TERMS)
    needed = len("packed") + REPLAY_STEP_BYTES + WAIT_OUTCOME_BYTES_MAX
    check_room(msgspec.structs.replace(run, replay_bytes=REPLAY_BYTES_MAX - needed), None, declared)
    with pytest.raises(Refusal) as refused:
        check_room(msgspec.structs.replace(run, replay_bytes=REPLAY_BYTES_MAX - needed + 1), None, declared)
    assert refused.value.code == "replay_budget"
    assert len(WAIT_TIMEOUT.message.encode()) <= WAIT_OUTCOME_BYTES_MAX


async def test_a_wait_without_time_is_settled_by_its_timeout_only(world: World) -> None:
    """RFD 2, "A zero timeout is due at acceptance itself, so no event can settle it and only the timeout can"."""
    run = await waiting(world, timeout_ms=0)
    event_id = await send(world)
    assert (await world.step(run.run_id, "packed")).state is StepState.WAITING
    assert (await world.expansion(event_id)).settled_count == 0
    assert await fire_due(world) == [Fired.FIRED]
    step = await world.step(run.run_id, "packed")
    assert step.failure is not None and step.failure.category == "sdk.timeout"
    await world.check()


@pytest.mark.case(26)
async def test_a_repeated_declaration_keeps_the_registration_and_its_anchor(world: World) -> None:
    """RFD 2, "a repeated declaration of the same step keeps the recorded registration and anchor"; case 026."""
    run = await waiting(world)
    kept = [await world.records(leaf) for leaf in (WAIT, WAIT_STAMP, WAIT_INDEX, ITEM)]
    await world.submit("order.packed", b'"early"', correlation={"order": "7"})
    for timeout_ms in (MINUTE_MS, 10 * MINUTE_MS, 0):
        world.clock.advance(1_000)
        await give_a_pass(world, run.run_id)
        terms = msgspec.structs.replace(TERMS, timeout_ms=timeout_ms)
        assert await world.declare(await world.lease_pass(), "packed", retry=ONCE, terms=terms) == Accepted()
        assert [await world.records(leaf) for leaf in (WAIT, WAIT_STAMP, WAIT_INDEX)] == kept[:3]
    await world.expand()
    assert await world.value(run.run_id, "packed") == b'"early"', "accepted after the first registration, which stands"
    await world.check()


@pytest.mark.parametrize("fields", [{"event": "order.lost"}, {"match": {}}, {"match": {"order": "8"}}])
async def test_another_registration_under_the_same_id_is_a_conflict(world: World, fields: dict[str, Any]) -> None:
    """RFD 2, "the same stable step identity with the exact event name, the correlation the event must carry"."""
    run = await waiting(world)
    await give_a_pass(world, run.run_id)
    work = await world.lease_pass()
    before = await world.dump()
    with pytest.raises(Refusal) as refused:
        await world.declare(work, "packed", retry=ONCE, **with_(**fields))
    assert refused.value.code == "declaration_conflict"
    assert await world.dump() == before


@pytest.mark.case(1)
async def test_a_lost_acknowledgement_replays(world: World) -> None:
    """RFD 2, "a rediscovery, a replay, or a restart never measures the timeout again": the pass's receipt answers."""
    await world.start_run()
    work = await world.lease_pass()
    assert await world.declare(work, "packed", retry=ONCE, terms=TERMS) == Accepted()
    world.clock.advance(5_000)
    before = await world.dump()
    assert await world.declare(work, "packed", retry=ONCE, terms=TERMS) == Replayed()
    assert await world.dump() == before


@pytest.mark.case(49)
@pytest.mark.parametrize("excess", [0, 1])
async def test_a_payload_that_the_replay_cannot_carry_settles_as_invalid(world: World, excess: int) -> None:
    """RFD 2, "settles the wait as an accepted sdk.invalid_result step failure naming the limit": to the byte."""
    run = await waiting(world)
    payload = b'"' + b"p" * 1_000 + b'"'
    needed = len(payload) + len("packed") + REPLAY_STEP_BYTES

    async def fill(tx: Tx) -> None:
        found = await tx.load(RUN.at("acme", run.run_id))
        assert found is not None
        full = msgspec.structs.replace(found, replay_bytes=REPLAY_BYTES_MAX - needed + excess)
        tx.put(RUN.at("acme", run.run_id), full)

    await world.run("fill", fill)
    other = await waiting(world)
    event_id = await send(world, payload=payload)
    step = await world.step(run.run_id, "packed")
    if excess:
        assert step.failure is not None and step.failure.category == "sdk.invalid_result"
        assert str(REPLAY_BYTES_MAX) in step.failure.message
        assert len(step.failure.message.encode()) <= WAIT_OUTCOME_BYTES_MAX
    else:
        assert step.state is StepState.COMPLETED
    assert await world.value(other.run_id, "packed") == payload, "it aborts nobody else's match"
    assert (await world.expansion(event_id)).settled_count == 2
    assert await world.records(WAIT) == await world.records(WAIT_INDEX) == []


@pytest.mark.case(55)
async def test_a_settled_wait_is_never_undone(world: World) -> None:
    """RFD 2, "a settled wait is never part of an unwind"; FILLED-IN 5: without a callback step the unwind is empty."""
    run = await waiting(world)
    await send(world)
    await world.fail(await world.lease_pass())
    after = await world.get_run(run.run_id)
    assert (after.phase, after.execution, after.recovery) == (Phase.TERMINAL, Execution.FAILED, Recovery.EMPTY_UNWIND)
    await world.check()


async def test_an_event_starts_its_own_runs_besides(world: World) -> None:
    """RFD 2, "an event is never consumed by a wait, so ordinary trigger fan-out is unaffected"."""
    await world.publish({"fulfil": ["order.placed"], "pack": ["order.packed"]})
    run = await waiting(world)
    event_id = await send(world)
    assert (await world.step(run.run_id, "packed")).state is StepState.COMPLETED
    assert [one.function for one in await world.runs() if one.event_id == event_id] == ["pack"]
    await world.check()


@pytest.mark.case(35)
async def test_another_workspace_hears_nothing(world: World) -> None:
    """Case 035, "one in another workspace": equal names and pairs, and not its event."""
    await world.begin(workspace="rival")
    await world.hello(workspace="rival")
    theirs = await world.start_run(workspace="rival")
    passed = await world.lease_pass(workspace="rival")
    assert await world.declare(passed, "packed", retry=ONCE, terms=TERMS, workspace="rival") == Accepted()
    ours = [await waiting(world) for _ in range(12)]
    event_id = await send(world)
    assert (await world.expansion(event_id)).settled_count == 12
    assert {(await world.step(run.run_id, "packed")).state for run in ours} == {StepState.COMPLETED}
    step = await world.step(theirs.run_id, "packed", workspace="rival")
    assert step.state is StepState.WAITING
    await world.check()


async def test_a_result_and_the_wait_behind_it_are_one_transaction(world: World) -> None:
    """FILLED-IN 9, S9: the pass that follows a result and declares a wait needs no transaction of its own."""
    run = await world.start_run()
    work = await world.start_step("s1")
    declared = Declaration("packed", ONCE, terms=TERMS)
    continued = await world.go_on(work, declared)
    assert (continued.result, continued.answer, continued.following) == (Accepted(), Accepted(), None)
    await world.check()
    again = await world.go_on(work, declared)
    assert (again.result, again.answer) == (Replayed(), Replayed())
    assert len(await world.records(WAIT)) == len(await world.records(WAIT_INDEX)) == 1
    await send(world)
    assert (await world.step(run.run_id, "packed")).state is StepState.COMPLETED
    await world.check()
