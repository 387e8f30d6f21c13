"""Durable timers: the anchor, the one firing, and everybody who may come first."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from operator_verbs import cancel
from server_steps import ONCE, due_items, fire, fire_due, sleep, sleep_for
from world import RETRY, World, work_of

from keyspace.errors import Refusal
from keyspace.layout import ATTEMPT, ITEM, READY, STEP
from keyspace.lifecycle import Execution, Phase, Recovery, StepKind, StepState
from keyspace.limits import REPLAY_BYTES_MAX, TIMER_MS_MAX, TIMESTAMP_MS_MAX
from keyspace.records.run import RunRecord, StepRecord
from keyspace.records.work import Direction, ItemRecord, LaneKind, WorkKind
from keyspace.transitions.activate_routing import activate_routing
from keyspace.transitions.declaration import Declaration, TimerTerms, check_room
from keyspace.transitions.declare_timer import anchor_ms
from keyspace.transitions.fire_timer import Fired
from keyspace.transitions.publish_manifest import FunctionSpec, ManifestSpec, TriggerSpec, publish_manifest
from keyspace.transitions.work import Accepted, Replayed, Stale, discovery_item, save_run
from keyspace.tx import Tx
from keyspace.waiting import waiting_for

MINUTE_MS = 60_000


async def asleep(world: World, delay_ms: int = MINUTE_MS) -> tuple[RunRecord, ItemRecord]:
    """Start a run that sleeps; return it with its timer's work."""
    run = await world.start_run()
    assert await sleep(world, await world.lease_pass(), delay_ms=delay_ms) == Accepted()
    run = await world.get_run(run.run_id)
    assert run.item_id is not None
    item = await world.item(run.item_id)
    assert item is not None
    return run, item


# -- declared


async def test_the_anchor_and_its_work_are_accepted_with_the_declaration(world: World) -> None:
    """RFD 2, "A declaration may be a durable timer": the instant, with the step, and one Timer item vested at it."""
    run, item = await asleep(world)
    step = await world.step(run.run_id, "nap")
    due_ms = world.clock.now_ms() + MINUTE_MS
    assert (step.kind, step.state) == (StepKind.TIMER, StepState.WAITING)
    assert step.server is not None and (step.server.due_at_ms, step.server.item_id) == (due_ms, item.item_id)
    assert (item.kind, item.vesting_ms, item.target, item.step_id) == (WorkKind.TIMER, due_ms, run.run_id, "nap")
    assert item.where == (LaneKind.TIME, "", "", Direction.FORWARD), "it names no application"
    assert await world.records(ATTEMPT, run.run_id) == []
    assert len(await world.records(ITEM)) == 1
    assert (await world.kinds(run.run_id))[-1] == "step-declared"
    waiting = waiting_for(run, item, world.clock.now_ms())
    assert waiting is not None and (waiting.word, waiting.until_ms) == ("timer", due_ms)
    await world.check()


@pytest.mark.case(26)
@pytest.mark.case(65)
@pytest.mark.parametrize(
    ("terms", "ahead_ms"),
    [
        ({"delay_ms": 0}, 0),
        ({"delay_ms": 1}, 1),
        ({"delay_ms": TIMER_MS_MAX}, TIMER_MS_MAX),
        ({"until_ms": 0}, 0),
        ({"until_ms": 999}, 0),
        ({"until_ms": 1_000}, 0),
        ({"until_ms": 1_001}, 1),
        ({"until_ms": 1_000 + TIMER_MS_MAX}, TIMER_MS_MAX),
    ],
)
def test_the_anchor_is_never_earlier_than_acceptance(terms: dict[str, int], ahead_ms: int) -> None:
    """Cases 026 and 065: "an absolute instant before acceptance is due at acceptance", by the engine's clock."""
    assert anchor_ms(TimerTerms(**terms), 1_000) == 1_000 + ahead_ms


@pytest.mark.case(44)
@pytest.mark.parametrize(
    ("more", "code", "field"),
    [
        ({"compensable": True}, "not_compensable", "compensable"),
        ({"undo_retry": RETRY}, "not_compensable", "compensable"),
        ({"undo_timeout_ms": 5}, "not_compensable", "compensable"),
        ({"retry": RETRY}, "invalid_retry", "retry.attempts"),
        ({"repeatable": True}, "not_repeatable", "repeatable"),
        ({"timeout_ms": 5}, "invalid_timeout", "timeout_ms"),
        ({"terms": TimerTerms()}, "invalid_timer", "timer"),
        ({"terms": TimerTerms(delay_ms=1, until_ms=1)}, "invalid_timer", "timer"),
        ({"terms": TimerTerms(delay_ms=-1)}, "invalid_timer", "delay_ms"),
        ({"terms": TimerTerms(delay_ms=TIMER_MS_MAX + 1)}, "invalid_timer", "delay_ms"),
        ({"terms": TimerTerms(until_ms=-1)}, "invalid_timer", "until_ms"),
        ({"terms": TimerTerms(until_ms=TIMESTAMP_MS_MAX + 1)}, "invalid_timer", "until_ms"),
        ({"terms": TimerTerms(until_ms=TIMESTAMP_MS_MAX)}, "invalid_timer", "until_ms"),
    ],
    ids=lambda value: str(value)[:60],
)
async def test_a_refused_timer_mutates_nothing(world: World, more: dict[str, Any], code: str, field: str) -> None:
    """RFD 2, "the engine refuses a compensable timer declaration"; case 044: named, with the range, and nothing stored."""
    await world.start_run()
    work = await world.lease_pass()
    before = await world.dump()
    given: dict[str, Any] = {"retry": ONCE, "terms": TimerTerms(delay_ms=1)} | more
    with pytest.raises(Refusal) as refused:
        await world.declare(work, "nap", **given)
    assert (refused.value.code, refused.value.details["field"]) == (code, field)
    assert await world.dump() == before
    assert await sleep(world, work, delay_ms=1) == Accepted(), "the pass goes on under its lease"


@pytest.mark.case(49)
def test_the_last_straw_of_the_replay_budget() -> None:
    """Case 049: a timer whose wake the run could not replay is refused before it becomes unfinishable, to the byte."""
    run = msgspec.convert(_RUN, RunRecord)
    needed = len("nap") + 96 + len(b"null")
    check_room(msgspec.structs.replace(run, replay_bytes=REPLAY_BYTES_MAX - needed), None, sleep_for(1))
    with pytest.raises(Refusal) as refused:
        check_room(msgspec.structs.replace(run, replay_bytes=REPLAY_BYTES_MAX - needed + 1), None, sleep_for(1))
    assert refused.value.code == "replay_budget"


_RUN = ["aa" * 16, "shop", "fulfil", "ee" * 16, "order.placed", "b", 1, 1, 1, 1, 1]


# -- fired


@pytest.mark.case(1)
@pytest.mark.case(28)
async def test_a_due_timer_is_fired_once(world: World) -> None:
    """RFD 2, "Firing the item records the accepted wake": result, continuation and consumed work in one transaction."""
    run, item = await asleep(world)
    world.clock.advance(MINUTE_MS)
    assert await fire_due(world) == [Fired.FIRED]
    step = await world.step(run.run_id, "nap")
    assert (step.state, step.settled_at_ms) == (StepState.COMPLETED, world.clock.now_ms())
    assert await world.value(run.run_id, "nap") == b"null"
    assert await world.item(item.item_id) is None
    after = await world.get_run(run.run_id)
    assert (after.settled_count, after.completion_count, after.step_id) == (1, 0, None)
    (waits,) = await world.records(ITEM)
    assert (waits.kind, waits.item_id) == (WorkKind.DISCOVERY, after.item_id)
    await world.check()
    before = await world.dump()
    assert await fire(world, item) is Fired.GONE, "a redelivered timer finds the work consumed"
    assert await world.dump() == before
    work = await world.lease_pass()
    assert await world.complete(work) == Accepted()
    assert (await world.get_run(run.run_id)).recovery is Recovery.EXECUTION_SUCCEEDED
    await world.check()


async def test_a_timer_that_is_not_due_is_deferred(world: World) -> None:
    """RFD 2, "A timer that is not due is deferred rather than consumed"; one delivered early stays for its anchor."""
    run, item = await asleep(world)
    world.clock.advance(MINUTE_MS - 1)
    before = await world.dump()
    assert await fire(world, item) is Fired.NOT_DUE
    assert await world.dump() == before
    assert await due_items(world) == []
    world.clock.advance(1)
    assert await fire_due(world) == [Fired.FIRED]
    assert (await world.step(run.run_id, "nap")).state is StepState.COMPLETED


@pytest.mark.case(26)
async def test_a_clock_that_steps_back_moves_nothing(world: World) -> None:
    """Case 026, "a clock that steps back": engine time is never below the run's last instant, and the anchor stands."""
    run, item = await asleep(world)
    due_ms = item.vesting_ms
    world.clock.step(-10 * MINUTE_MS)
    assert await fire(world, item) is Fired.NOT_DUE
    world.clock.advance(11 * MINUTE_MS)
    assert world.clock.now_ms() == due_ms
    assert await fire_due(world) == [Fired.FIRED]
    step = await world.step(run.run_id, "nap")
    assert step.settled_at_ms == due_ms
    await world.check()


@pytest.mark.case(29)
async def test_a_delay_longer_than_any_lease_is_delivered_once(world: World) -> None:
    """Case 029: unvested work is neither leased nor found; it is delivered once, however far ahead it lay."""
    _, item = await asleep(world, delay_ms=6 * 3_600_000)
    for _ in range(24):
        world.clock.advance(15 * MINUTE_MS - 1)
        assert await due_items(world) == []
    world.clock.advance(24)
    (found,) = await due_items(world)
    assert (found, found.delivery_count) == (item, 0)
    assert [await fire_due(world), await fire_due(world)] == [[Fired.FIRED], []]


# -- repeated


async def test_a_lost_acknowledgement_replays(world: World) -> None:
    """RFD 2: "a replay, or a restart never measures the delay again": the pass's receipt answers."""
    await world.start_run()
    work = await world.lease_pass()
    assert await sleep(world, work, delay_ms=MINUTE_MS) == Accepted()
    world.clock.advance(5_000)
    before = await world.dump()
    assert await sleep(world, work, delay_ms=MINUTE_MS) == Replayed()
    assert await sleep(world, work, delay_ms=1) == Stale("pass_settled"), "another answer of the same pass"
    assert await world.dump() == before


async def give_a_pass(world: World, run_id: str) -> None:
    """Give a run that waits a fresh discovery pass, as a rediscovery does."""
    from_work = await world.get_run(run_id)

    async def body(tx: Any) -> None:
        item = discovery_item(tx, "acme", from_work, tx.now_ms)
        save_run(tx, "acme", from_work, msgspec.structs.replace(from_work, item_id=item.item_id))

    await world.run("rediscover", body)


@pytest.mark.case(26)
async def test_a_repeated_declaration_keeps_the_anchor_and_its_work(world: World) -> None:
    """RFD 2, "a repeated declaration of the same step keeps the recorded anchor and its wake work"; case 026: whatever
    later code says."""
    run, item = await asleep(world)
    for delay_ms in (MINUTE_MS, 10 * MINUTE_MS, 0):
        world.clock.advance(1_000)
        await give_a_pass(world, run.run_id)
        assert await sleep(world, await world.lease_pass(), delay_ms=delay_ms) == Accepted()
        assert (await world.get_run(run.run_id)).item_id == item.item_id
        assert await world.records(ITEM) == [item]
    await world.check()
    world.clock.advance(MINUTE_MS - 3_000)
    assert await fire_due(world) == [Fired.FIRED]


async def test_a_repeat_of_a_settled_timer_leaves_a_pass_to_go_on(world: World) -> None:
    """RFD 2, "it still leaves the run a continuation discovery": a pass that knows less than the store strands nothing."""
    run, _ = await asleep(world, delay_ms=0)
    assert await fire_due(world) == [Fired.FIRED]
    assert await sleep(world, await world.lease_pass(), delay_ms=5) == Accepted()
    assert (await world.kinds(run.run_id))[-1] == "declaration-repeated"
    await world.check()
    assert await world.complete(await world.lease_pass()) == Accepted()
    await world.check()


@pytest.mark.parametrize("first", ["callback", "timer"])
async def test_another_kind_under_the_same_id_is_a_conflict(world: World, first: str) -> None:
    """RFD 2, "a declaration that disagrees with the recorded one is a conflict"; nothing is mutated."""
    run = await world.start_run()
    if first == "callback":
        await world.run_step("nap")
    else:
        await sleep(world, await world.lease_pass(), delay_ms=0)
        await fire_due(world)
    work = await world.lease_pass()
    before = await world.dump()
    with pytest.raises(Refusal) as refused:
        if first == "callback":
            await sleep(world, work, delay_ms=0)
        else:
            await world.declare(work, "nap")
    assert refused.value.code == ("declaration_conflict" if first == "callback" else "step_settled")
    assert await world.dump() == before
    assert (await world.get_run(run.run_id)).phase is Phase.RUNNING


async def test_a_step_that_left_the_code_may_come_back_as_a_timer(world: World) -> None:
    """FILLED-IN 6, "An Obsolete step is met again: declared anew, with the next step generation", as whatever it is now."""
    run = await world.start_run()
    await world.declare(await world.lease_pass(), "nap")
    assert await world.not_found(work_of(await world.lease())) == Accepted()
    assert await sleep(world, await world.lease_pass(), delay_ms=0) == Accepted()
    step = await world.step(run.run_id, "nap")
    assert (step.state, step.generation, step.ordinal) == (StepState.WAITING, 2, 1)
    await world.check()
    assert await fire_due(world) == [Fired.FIRED]
    await world.check()
    assert (await world.get_run(run.run_id)).step_count == 1


# -- stopped


@pytest.mark.parametrize("completed", [0, 1])
async def test_a_stop_fences_the_timer(world: World, completed: int) -> None:
    """RFD 2, "Stop intent fences a pending timer in the transaction that commits the stop"; case 055: never in the plan."""
    run = await world.start_run()
    for _ in range(completed):
        await world.run_step("s0")
    assert await sleep(world, await world.lease_pass(), delay_ms=MINUTE_MS) == Accepted()
    (item,) = await world.records(ITEM)
    await cancel(world, run.run_id)
    step = await world.step(run.run_id, "nap")
    assert (step.state, step.server is not None and step.server.item_id) == (StepState.OBSOLETE, None)
    assert [left.kind for left in await world.records(ITEM)] == [WorkKind.COMPENSATION] * completed
    assert await world.records(READY) == []
    world.clock.advance(MINUTE_MS)
    before = await world.dump()
    assert await fire(world, item) is Fired.GONE
    assert await world.dump() == before
    await world.check()


@pytest.mark.case(55)
async def test_a_settled_timer_is_never_undone(world: World) -> None:
    """RFD 2, "a settled timer is never part of an unwind"; FILLED-IN 5: without a callback step the unwind is empty."""
    run, _ = await asleep(world, delay_ms=0)
    await fire_due(world)
    await world.fail(await world.lease_pass())
    after = await world.get_run(run.run_id)
    assert (after.phase, after.execution, after.recovery) == (Phase.TERMINAL, Execution.FAILED, Recovery.EMPTY_UNWIND)
    await world.check()


# -- the run's own deadline


async def give_a_deadline(world: World, timeout_ms: int) -> None:
    """Let runs of `fulfil` take so long and no longer."""
    spec = ManifestSpec(
        "shop", (FunctionSpec("fulfil", (TriggerSpec("order.placed", "late"),), timeout_ms=timeout_ms),)
    )

    async def route(tx: Tx) -> None:
        record, _ = await publish_manifest(tx, "acme", spec, published_by="test")
        await activate_routing(tx, "acme", {"shop": record.generation}, activated_by="test")

    await world.run("publish_manifest", route)


@pytest.mark.case(28)
@pytest.mark.parametrize(
    ("deadline_ms", "late_ms", "fired"),
    [
        (MINUTE_MS + 1, 0, Fired.FIRED),
        (MINUTE_MS, 0, Fired.STOPPED),
        (MINUTE_MS - 1, 0, Fired.STOPPED),
        (MINUTE_MS + 1, 1, Fired.STOPPED),
        (5 * MINUTE_MS, 86_400_000, Fired.STOPPED),
    ],
)
async def test_the_runs_deadline_wins_over_a_late_timer(
    world: World, deadline_ms: int, late_ms: int, fired: Fired
) -> None:
    """RFD 2, "The run's own deadline is authoritative over dispatch order"; case 028: a passed deadline wins."""
    await give_a_deadline(world, deadline_ms)
    run, item = await asleep(world)
    world.clock.advance(MINUTE_MS + late_ms)
    assert await fire(world, item) is fired
    after = await world.get_run(run.run_id)
    step = await world.step(run.run_id, "nap")
    if fired is Fired.FIRED:
        assert (after.phase, step.state) == (Phase.RUNNING, StepState.COMPLETED)
    else:
        assert (after.execution, after.recovery) == (Execution.TIMED_OUT, Recovery.EMPTY_UNWIND)
        assert step.state is StepState.OBSOLETE
        assert await world.records(ITEM) == [], "no wake and no continuation exist for it"
        assert await fire(world, item) is Fired.GONE
    await world.check()


# -- continued


async def test_a_result_and_the_timer_behind_it_are_one_transaction(world: World) -> None:
    """FILLED-IN 9, S9: the pass that follows a result and declares a timer needs no transaction of its own."""
    run = await world.start_run()
    work = await world.start_step("s1")
    continued = await world.go_on(work, sleep_for(MINUTE_MS))
    assert (continued.result, continued.answer, continued.following) == (Accepted(), Accepted(), None)
    (item,) = await world.records(ITEM)
    assert (item.kind, item.vesting_ms) == (WorkKind.TIMER, world.clock.now_ms() + MINUTE_MS)
    steps: list[StepRecord] = await world.records(STEP, run.run_id)
    assert [(step.step_id, step.state) for step in steps] == [("nap", StepState.WAITING), ("s1", StepState.COMPLETED)]
    await world.check()
    again = await world.go_on(work, sleep_for(MINUTE_MS))
    assert (again.result, again.answer) == (Replayed(), Replayed())
    assert await world.records(ITEM) == [item]


async def test_a_refused_timer_behind_a_result_costs_the_result_nothing(world: World) -> None:
    """ARCHITECTURE 6: whatever becomes of the answer never voids the result; the pass goes on where it is."""
    run = await world.start_run()
    work = await world.start_step("s1")
    refused = await world.go_on(work, Declaration("nap", ONCE, terms=TimerTerms()))
    assert refused.refusal is not None and (refused.refusal.code, refused.is_open) == ("invalid_timer", True)
    assert (await world.step(run.run_id, "s1")).state is StepState.COMPLETED
    await world.check()
