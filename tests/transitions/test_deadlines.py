"""A run's deadline: where it comes from, what it ends, and that it never matters whether the timer was dispatched."""

from __future__ import annotations

from typing import Any

import pytest
from blocker_verbs import block, blocked_runs, blocker_of
from deadline_verbs import ACTS, LEASE_LEFT_MS, TIMEOUT_MS, at_deadline, begin_timed, fire, fire_item, prepare
from final_state import final_state
from operator_verbs import assert_nothing_began_after_the_stop, cancel, must_refuse, resolve, start_undo, target_of
from world import LEASE_MS, World, manifest

from keyspace.layout import ITEM, STEP, bucket_of, due_pointer
from keyspace.lifecycle import (
    AttemptState,
    CompensationState,
    DeadlineSource,
    Execution,
    Phase,
    Recovery,
    StepState,
    StopReason,
)
from keyspace.limits import DEADLINE_STOPS_MAX, RUN_TIMEOUT_MS_MAX
from keyspace.queue import claims
from keyspace.records.run import RunRecord
from keyspace.records.work import Direction, ItemRecord, LaneKind, WorkKind, server_lane
from keyspace.transitions.continue_run import Continued
from keyspace.transitions.expand_event import expand_event
from keyspace.transitions.fire_deadline import Fired
from keyspace.transitions.lose_lease import Loss
from keyspace.transitions.publish_manifest import ManifestSpec, publish_manifest
from keyspace.transitions.resolve_attempt import RetryAttempt, SupplySuccess
from keyspace.transitions.stop_run import StopOutcome
from keyspace.transitions.work import Accepted, Replayed, Stale

ENDED = (Phase.TERMINAL, Execution.TIMED_OUT, Recovery.EMPTY_UNWIND)
UNWINDING = (Phase.COMPENSATING, Execution.TIMED_OUT, None)
SETTLING = (Phase.CANCELLING, None, None)


@pytest.fixture
async def timed(empty: World) -> World:
    """A world whose runs have an hour."""
    await begin_timed(empty)
    return empty


def outcome(run: RunRecord) -> tuple[Phase, Execution | None, Recovery | None]:
    return run.phase, run.execution, run.recovery


async def timers(world: World) -> list[ItemRecord]:
    """Return the RunTimeout items there are."""
    return [item for item in await world.records(ITEM) if item.kind is WorkKind.RUN_TIMEOUT]


# -- where a deadline comes from


async def test_a_run_has_no_deadline_by_default(world: World) -> None:
    """RFD 2, "A run has no deadline unless its function declaration or a visible deployment policy supplies one"."""
    run = await world.start_run()
    assert (run.deadline_at_ms, run.deadline_source, run.timeout_item) == (None, None, None)
    assert await timers(world) == []
    assert "deadline_at_ms" not in (await world.history(run.run_id))[0].data
    world.clock.advance(400 * 86_400_000)
    work = await world.lease_pass()
    assert await world.complete(work) == Accepted()
    await world.check()


async def test_the_fan_out_stores_the_deadline_its_source_and_one_timer(timed: World) -> None:
    """RFD 2, "When a deadline exists, the fan-out transaction stores its absolute value and source on the run"."""
    run = await timed.start_run()
    assert run.deadline_at_ms == run.created_at_ms + TIMEOUT_MS
    assert run.deadline_source is DeadlineSource.FUNCTION
    (item,) = await timers(timed)
    assert (item.item_id, item.target, item.vesting_ms) == (run.timeout_item, run.run_id, run.deadline_at_ms)
    assert (item.where, item.generation, item.repeatable) == (server_lane(LaneKind.TIME), run.generation, True)
    pointer = due_pointer("acme", item.where, bucket_of(item.vesting_ms))
    assert pointer.data in await timed.dump(), "delayed-index scanning rediscovers the item after restart"
    created = (await timed.history(run.run_id))[0].data
    assert (created["deadline_at_ms"], created["deadline_source"]) == (run.deadline_at_ms, "function")
    await timed.check()


@pytest.mark.parametrize("declared_ms", [None, 5_000])
async def test_a_deployment_default_is_visible_and_yields_to_a_declaration(
    empty: World, declared_ms: int | None
) -> None:
    """RFD 1, "a deployment may provide a visible inherited default": its use is recorded as the deadline's source."""
    await begin_timed(empty, declared_ms)
    accepted = await empty.submit()
    item_id = (await empty.expansion(accepted.event_id)).item_id
    assert item_id is not None
    await empty.run(
        "expand_event",
        lambda tx: expand_event(tx, "acme", accepted.event_id, item_id, run_timeout_default_ms=60_000),
    )
    (run,) = await empty.runs()
    assert run.deadline_at_ms == run.created_at_ms + (declared_ms or 60_000)
    assert run.deadline_source is (DeadlineSource.FUNCTION if declared_ms else DeadlineSource.DEPLOYMENT)
    await empty.check()


@pytest.mark.parametrize("timeout_ms", [0, -1, RUN_TIMEOUT_MS_MAX + 1])
async def test_a_timeout_outside_its_range_is_refused(world: World, timeout_ms: int) -> None:
    """ARCHITECTURE 7: an input beyond its bound is a typed refusal that names path, value and limit."""
    refusal = await must_refuse(world, "invalid_timeout", publish(world, timeout_ms))
    assert (refusal.details["field"], refusal.details["value"]) == ("functions[0].timeout_ms", timeout_ms)
    assert refusal.details["limit"] == RUN_TIMEOUT_MS_MAX


async def publish(world: World, timeout_ms: int, run_timeout_max_ms: int | None = None) -> bool:
    spec: ManifestSpec = manifest("shop", {"fulfil": ["order.placed"]}, timeout_ms=timeout_ms)
    _, is_new = await world.run(
        "publish_manifest",
        lambda tx: publish_manifest(tx, "acme", spec, published_by="test", run_timeout_max_ms=run_timeout_max_ms),
    )
    return is_new


async def test_a_hosted_maximum_rejects_and_never_clamps(world: World) -> None:
    """RFD 1, "rejects a declaration above that maximum rather than silently clamping it"; at the maximum it is taken."""
    refusal = await must_refuse(world, "run_timeout_above_maximum", publish(world, 60_001, 60_000))
    assert refusal.details == {
        "field": "functions[0].timeout_ms", "function": "fulfil", "value": 60_001, "limit": 60_000,
    }  # fmt: skip
    assert await publish(world, 60_000, 60_000)
    assert await publish(world, RUN_TIMEOUT_MS_MAX), "without a policy there is no ceiling"
    assert not await publish(world, RUN_TIMEOUT_MS_MAX), "the same content is the same generation"


@pytest.mark.case(26)
async def test_the_deadline_stands_whatever_happens_in_between(timed: World) -> None:
    """Case 026: rediscoveries, lost passes, sessions, new manifests and a clock that steps back do not move it."""
    run = await timed.start_run()
    deadline_at_ms = run.deadline_at_ms
    for number in range(10):
        await timed.run_step(f"s{number}")
        lost = await timed.lease_pass()
        await timed.hello(f"session-{number + 2}")
        await timed.lose(lost.item_id, is_session_lost=True)
        timed.clock.advance(90_000)
    await timed.publish({"fulfil": ["order.placed"]}, timeout_ms=600_000)
    timed.clock.step(-30_000)
    assert (await timed.get_run(run.run_id)).deadline_at_ms == deadline_at_ms
    await at_deadline(timed, run.run_id, -1)
    assert await fire(timed, run.run_id) is Fired.NOT_DUE
    timed.clock.advance(1)
    assert await fire(timed, run.run_id) is Fired.STOPPED
    await timed.check()


# -- the timer


async def test_a_timer_that_is_not_due_stays(timed: World) -> None:
    """RFD 2, "A timer that is not due is deferred rather than consumed": an early dispatch changes nothing."""
    run = await timed.start_run()
    before = await timed.dump()
    await at_deadline(timed, run.run_id, -1)
    assert await fire(timed, run.run_id) is Fired.NOT_DUE
    assert await timed.dump() == before
    lane = server_lane(LaneKind.TIME)
    assert await timed.read(lambda tx: claims.vested_items(tx, "acme", lane, limit=9)) == []
    timed.clock.advance(1)
    assert len(await timed.read(lambda tx: claims.vested_items(tx, "acme", lane, limit=9))) == 1


async def test_before_the_first_pass_the_timeout_ends_the_run_at_once(timed: World) -> None:
    """RFD 2, "If discovery has not been authorized, timeout fences it and terminalizes an empty unwind"."""
    run = await timed.start_run()
    await at_deadline(timed, run.run_id)
    assert await fire(timed, run.run_id) is Fired.STOPPED
    after = await timed.get_run(run.run_id)
    assert outcome(after) == ENDED
    assert (after.timeout_item, after.item_id) == (None, None)
    assert await timed.records(ITEM) == []
    stop = (await timed.history(run.run_id))[1]
    assert (stop.kind, stop.at_ms) == ("stop-committed", run.deadline_at_ms)
    assert stop.data == {"reason": "timed_out", "by": "deadline"}
    assert await timed.lease_many(1) == []
    await timed.check()


async def test_a_redelivered_timer_finds_nothing(timed: World) -> None:
    """RFD 2, "so a redelivered timer replays": the second firing reads that the item is gone and writes nothing."""
    run = await timed.start_run()
    await timed.start_step("s1")
    item_id = (await timed.get_run(run.run_id)).timeout_item
    assert item_id is not None
    await at_deadline(timed, run.run_id)
    assert await fire(timed, run.run_id) is Fired.STOPPED
    before = await timed.dump()
    assert await fire_item(timed, run.run_id, item_id) is Fired.GONE
    assert await timed.dump() == before


@pytest.mark.parametrize("ending", ["completion", "function failure", "function failure, unwinding", "cancel"])
async def test_whatever_ends_forward_execution_takes_the_timer(timed: World, ending: str) -> None:
    """FILLED-IN 1 (22), "timeout item removed": in the transaction that ends it, so no timer outlives its run."""
    run = await timed.start_run()
    if ending.endswith("unwinding"):
        await timed.run_step("done")
    work = await timed.lease_pass()
    if ending == "cancel":
        await cancel(timed, run.run_id)
    else:
        await (timed.complete(work) if ending == "completion" else timed.fail(work))
    after = await timed.get_run(run.run_id)
    assert after.phase is (Phase.COMPENSATING if ending.endswith("unwinding") else Phase.TERMINAL)
    assert (after.timeout_item, await timers(timed)) == (None, [])
    assert after.deadline_at_ms == run.deadline_at_ms, "what the deadline was stays visible"
    await timed.check()


async def test_a_timer_that_its_run_does_not_name_decides_nothing(timed: World) -> None:
    """RFD 2, "one generation-fenced, server-owned RunTimeout work item": a stray one goes and its run goes on."""
    run = await timed.start_run()
    other = await timed.start_run()
    await at_deadline(timed, other.run_id)
    assert run.timeout_item is not None
    assert await fire_item(timed, other.run_id, run.timeout_item) is Fired.OBSOLETE
    assert (await timed.get_run(other.run_id)).stop is None


# -- at the deadline, before it and after it

AT_DEADLINE: dict[str, tuple[Any, StepState | None, bool]] = {
    # what is told, the step's state after it, and whether a token is left that must settle
    "success": (Accepted(), StepState.COMPLETED, False),
    "success and declaration": (
        Continued(Accepted(), Stale("deadline_elapsed")),
        StepState.COMPLETED,
        False,
    ),
    "success and completion": (Continued(Accepted(), Stale("deadline_elapsed")), StepState.COMPLETED, False),
    "success, pass under way": (Continued(Accepted(), Stale("deadline_elapsed")), StepState.COMPLETED, False),
    "retryable failure": (Accepted(), StepState.FAILED, False),
    "final failure": (Accepted(), StepState.FAILED, False),
    "proof": (True, StepState.OBSOLETE, False),
    "loss": (Loss.UNKNOWN, StepState.UNKNOWN, True),
    "late success": (Accepted(), StepState.COMPLETED, False),
    "late failure": (Accepted(), StepState.FAILED, False),
    "supplied success": (AttemptState.SUCCEEDED, StepState.COMPLETED, False),
    "declared failure": (AttemptState.FAILED, StepState.FAILED, False),
    "explicit retry": ("deadline_elapsed", StepState.UNKNOWN, True),
    "authorization": (Stale("deadline_elapsed"), StepState.OBSOLETE, False),
    "no target": (Accepted(), StepState.OBSOLETE, False),
    "lease of an effect": ([], StepState.OBSOLETE, False),
    "lease of a pass": ([], None, False),
    "declaration": (Stale("deadline_elapsed"), None, False),
    "completion": (Stale("deadline_elapsed"), None, False),
    "function failure": (Stale("deadline_elapsed"), None, False),
    "step id met twice": (Stale("deadline_elapsed"), None, False),
    "lost pass": (Loss.REDELIVERED, None, False),
}
TIMER_FIRST_TOLD = {"lost pass": Loss.NOT_LOST, "no target": Replayed()}
"""What is told otherwise when the timer came first: the work it names is gone already."""
UNTOUCHED = frozenset({"explicit retry"})
"""Acts that mutate nothing at or after the deadline: the stop is left to the timer."""


def test_every_act_has_its_row() -> None:
    """Would catch a result, answer or command that nobody held against the deadline."""
    assert set(AT_DEADLINE) == set(ACTS)


@pytest.mark.case(17)
@pytest.mark.case(25)
@pytest.mark.parametrize("completed", [0, 1])
@pytest.mark.parametrize("offset_ms", [0, 1, 86_400_000])
@pytest.mark.parametrize("name", list(ACTS))
async def test_at_the_deadline_the_stop_commits_first(timed: World, name: str, offset_ms: int, completed: int) -> None:
    """RFD 2, "At or after the deadline, it first materializes TimedOut stop intent": with the settlement, in one commit."""
    work = await prepare(timed, ACTS[name].stage, completed=completed)
    # A lease that has run out besides would say so.
    await at_deadline(
        timed, work.run_id, min(offset_ms, LEASE_LEFT_MS - 1) if ACTS[name].stage == "leased" else offset_ms
    )
    told = await ACTS[name].perform(timed, work)
    expected, step_state, is_token_left = AT_DEADLINE[name]
    assert told == expected
    run = await timed.get_run(work.run_id)
    if name in UNTOUCHED:
        assert run.stop is None
        return
    assert run.stop is not None and (run.stop.reason, run.stop.by) == (StopReason.TIMED_OUT, "deadline")
    assert (run.timeout_item, await timers(timed)) == (None, [])
    is_undone = completed or step_state is StepState.COMPLETED
    assert outcome(run) == (SETTLING if is_token_left else (UNWINDING if is_undone else ENDED))
    if step_state is not None:
        assert (await timed.step(work.run_id, "s1")).state is step_state
    assert "next" not in [step.step_id for step in await timed.records(STEP, work.run_id)]
    assert (await timed.kinds(work.run_id)).count("stop-committed") == 1
    await assert_nothing_began_after_the_stop(timed, work.run_id)
    await timed.check()


@pytest.mark.parametrize("name", list(ACTS))
async def test_one_millisecond_before_the_deadline_nothing_is_different(empty: World, name: str) -> None:
    """RFD 2, "A transition evaluated before the deadline may commit normally": as in a run that has none."""
    await begin_timed(empty)
    work = await prepare(empty, ACTS[name].stage)
    await at_deadline(empty, work.run_id, -1)
    told = await ACTS[name].perform(empty, work)
    run = await empty.get_run(work.run_id)
    assert run.stop is None
    assert told != AT_DEADLINE[name][0] or name in NO_DIFFERENCE
    is_over = run.phase is Phase.TERMINAL
    assert is_over == (name in {"completion", "function failure", "success and completion"})
    assert len(await timers(empty)) == (0 if is_over else 1)
    await empty.check()


NO_DIFFERENCE = {
    "success", "retryable failure", "final failure", "proof", "loss", "late success", "late failure",
    "supplied success", "declared failure", "no target", "lost pass",
}  # fmt: skip
"""Acts that are told the same on either side of the deadline: only what follows differs."""


@pytest.mark.case(25)
@pytest.mark.parametrize("completed", [0, 1])
@pytest.mark.parametrize("name", list(ACTS))
async def test_it_never_matters_whether_the_timer_came_first(name: str, completed: int) -> None:
    """RFD 2, "settles the attempt under stopping semantics whether the timer or the result commits first"."""
    states, told = [], []
    for is_timer_first in (True, False):
        world = World()
        await begin_timed(world)
        work = await prepare(world, ACTS[name].stage, completed=completed)
        await at_deadline(world, work.run_id)
        if is_timer_first:
            assert await fire(world, work.run_id) is Fired.STOPPED
        timer = (await world.get_run(work.run_id)).timeout_item
        told.append(await ACTS[name].perform(world, work))
        if timer is not None:
            fired = await fire_item(world, work.run_id, timer)
            assert fired is (Fired.STOPPED if name in UNTOUCHED else Fired.GONE)
        states.append((final_state(await world.dump()), (await world.get_run(work.run_id)).stop))
        await world.check()
    assert states[0] == states[1]
    assert told == [TIMER_FIRST_TOLD.get(name, AT_DEADLINE[name][0]), AT_DEADLINE[name][0]]


@pytest.mark.parametrize("completed", [0, 1])
async def test_a_blocked_run_is_stopped_at_its_deadline(timed: World, completed: int) -> None:
    """RFD 2, "Every run in Running or DefinitionBlocked retains that item"; the blocker goes with the stop."""
    work = await prepare(timed, "pass", completed=completed)
    assert await block(timed, work) == Accepted()
    run = await timed.get_run(work.run_id)
    assert (run.phase, len(await timers(timed))) == (Phase.DEFINITION_BLOCKED, 1)
    await at_deadline(timed, work.run_id, -1)
    assert await fire(timed, work.run_id) is Fired.NOT_DUE
    timed.clock.advance(1)
    assert await fire(timed, work.run_id) is Fired.STOPPED
    assert outcome(await timed.get_run(work.run_id)) == (UNWINDING if completed else ENDED)
    assert await blocker_of(timed, work.run_id) is None and await blocked_runs(timed) == []
    await timed.check()


async def test_a_claim_stops_a_bounded_number_of_runs(timed: World) -> None:
    """S5, "every page makes progress": what one claim leaves the next takes, and nothing past its deadline is leased."""
    count = DEADLINE_STOPS_MAX + 3
    runs = [await timed.start_run() for _ in range(count)]
    await at_deadline(timed, runs[-1].run_id)
    assert await timed.lease_many(count) == []
    stopped = [run for run in await timed.runs() if run.stop is not None]
    assert len(stopped) == DEADLINE_STOPS_MAX
    assert await timed.lease_many(count) == []
    assert {outcome(run) for run in await timed.runs()} == {ENDED}
    await timed.check()


# -- who decides


async def test_a_worker_clock_or_an_earlier_sample_never_moves_the_decision(timed: World) -> None:
    """FILLED-IN 11, "Engine clocks": engine time never goes below what the run recorded, so no step back revives it."""
    work = await prepare(timed, "effect")
    await at_deadline(timed, work.run_id, -1)
    assert await timed.fail_attempt(work) == Accepted()
    timed.clock.advance(2_000)
    assert await timed.lease_many(1) == []
    assert outcome(await timed.get_run(work.run_id)) == ENDED
    timed.clock.step(-10_000)
    assert await timed.lease_many(1) == []
    assert outcome(await timed.get_run(work.run_id)) == ENDED
    await timed.check()


@pytest.mark.case(65)
async def test_a_callers_timestamp_steers_nothing(timed: World) -> None:
    """Case 065: the deadline counts from the engine's own instant, whatever a client says of the event's time."""
    accepted = await timed.submit(timestamp_ms=1)
    await timed.expand()
    (run,) = await timed.runs()
    assert run.event_id == accepted.event_id
    assert run.deadline_at_ms == timed.clock.now_ms() + TIMEOUT_MS


@pytest.mark.parametrize("is_cancel_first", [True, False])
async def test_the_first_committed_reason_decides(timed: World, is_cancel_first: bool) -> None:
    """RFD 2, "a run stopped as Cancelled keeps refusing explicit retry as retry_forbidden after the deadline elapses"."""
    work = await prepare(timed, "unknown")
    if is_cancel_first:
        assert (await cancel(timed, work.run_id)).outcome is StopOutcome.ACCEPTED
        await at_deadline(timed, work.run_id)
        await must_refuse(timed, "retry_forbidden", resolve(timed, target_of(work), RetryAttempt()))
    else:
        await at_deadline(timed, work.run_id)
        await must_refuse(timed, "deadline_elapsed", resolve(timed, target_of(work), RetryAttempt()))
        assert await fire(timed, work.run_id) is Fired.STOPPED
        await must_refuse(timed, "stop_conflict", cancel(timed, work.run_id))
        timed.clock.step(-TIMEOUT_MS)
        await must_refuse(timed, "deadline_elapsed", resolve(timed, target_of(work), RetryAttempt()))
    await resolve(timed, target_of(work), SupplySuccess(b'"op"'))
    run = await timed.get_run(work.run_id)
    assert run.execution is (Execution.CANCELLED if is_cancel_first else Execution.TIMED_OUT)
    await timed.check()


async def test_an_elapsed_deadline_does_not_make_a_stale_command_anything_else(timed: World) -> None:
    """RFD 2, "A settled or stale attempt is therefore stale at any clock, and a recorded command replays"."""
    work = await prepare(timed, "unknown")
    first = await resolve(timed, target_of(work), RetryAttempt(), key="before")
    await at_deadline(timed, work.run_id)
    await must_refuse(timed, "stale_attempt", resolve(timed, target_of(work), RetryAttempt(), key="after"))
    again = await resolve(timed, target_of(work), RetryAttempt(), key="before")
    assert (again.record, again.is_replay) == (first.record, True)
    await must_refuse(timed, "idempotency_conflict", resolve(timed, target_of(work), SupplySuccess(b"1"), key="before"))


async def test_a_recorded_resolution_replays_its_own_response(timed: World) -> None:
    """RFD 2, "The operator's recorded resolution owns replay of that combined transaction"."""
    work = await prepare(timed, "unknown", completed=1)
    await at_deadline(timed, work.run_id)
    first = await resolve(timed, target_of(work), SupplySuccess(b'"op"'))
    assert first.record.run_phase is Phase.COMPENSATING
    undo = await start_undo(timed)
    await timed.succeed(undo)
    before = await timed.dump()
    again = await resolve(timed, target_of(work), SupplySuccess(b'"op"'))
    assert (again.record, again.is_replay) == (first.record, True)
    assert await timed.dump() == before


# -- room to undo


@pytest.mark.case(25)
@pytest.mark.parametrize("ending", ["success", "failure", "silence"])
async def test_a_timeout_leaves_room_to_undo(timed: World, ending: str) -> None:
    """Case 025: compensation outlives the run's whole time, retries by its own policy, and ends TimedOut, Compensated."""
    work = await prepare(timed, "effect", completed=2)
    await at_deadline(timed, work.run_id)
    assert await fire(timed, work.run_id) is Fired.STOPPED
    if ending == "success":
        assert await timed.succeed(work) == Accepted()
    elif ending == "failure":
        assert await timed.fail_attempt(work) == Accepted()
    else:
        assert await timed.lose(work.item_id) is Loss.UNKNOWN
        timed.clock.advance(30 * 86_400_000)
        assert outcome(await timed.get_run(work.run_id)) == SETTLING, "its silence waits for an operator"
        await resolve(timed, target_of(work), SupplySuccess(b'"op"'))
    expected = ["done1", "done0"] if ending == "failure" else ["s1", "done1", "done0"]
    undone = []
    for number in range(len(expected)):
        undo = await start_undo(timed)
        if number == 0:
            timed.clock.advance(2 * TIMEOUT_MS)
            assert await timed.fail_attempt(undo) == Accepted()
            timed.clock.advance(1_000)
            undo = await start_undo(timed)
        timed.clock.advance(2 * TIMEOUT_MS)
        undone.append(undo.step_id)
        assert await timed.succeed(undo) == Accepted()
    assert undone == expected
    run = await timed.get_run(work.run_id)
    assert outcome(run) == (Phase.TERMINAL, Execution.TIMED_OUT, Recovery.COMPENSATED)
    await timed.check()


async def test_an_unknown_compensation_ignores_the_deadline(timed: World) -> None:
    """RFD 2, "An unresolved compensation attempt ignores the forward deadline": also an explicit retry is granted."""
    work = await prepare(timed, "effect", completed=1)
    await at_deadline(timed, work.run_id)
    await timed.fail_attempt(work)
    undo = await start_undo(timed)
    timed.clock.advance(LEASE_MS)
    await timed.lose(undo.item_id)
    retried = await resolve(timed, target_of(undo), RetryAttempt())
    assert retried.record.following_generation == 2
    assert await timed.succeed(await start_undo(timed)) == Accepted()
    run = await timed.get_run(work.run_id)
    assert outcome(run) == (Phase.TERMINAL, Execution.TIMED_OUT, Recovery.COMPENSATED)
    assert (await timed.step(work.run_id, "done0")).compensation is CompensationState.DONE
    assert (await timed.attempt(work.run_id, "done0", 1, Direction.COMPENSATION)).state is AttemptState.RETRY_AUTHORIZED
    await timed.check()


@pytest.mark.case(28)
async def test_a_deadline_that_passed_while_everything_slept(timed: World) -> None:
    """Case 028: nobody was there for days; the timer is still found, fires once, and wins over work that is ready."""
    run = await timed.start_run()
    timed.clock.advance(3 * 86_400_000)
    lane = server_lane(LaneKind.TIME)
    (item,) = await timed.read(lambda tx: claims.vested_items(tx, "acme", lane, limit=9))
    assert await fire_item(timed, item.target, item.item_id) is Fired.STOPPED
    assert await timed.lease_many(1) == []
    assert outcome(await timed.get_run(run.run_id)) == ENDED
    await timed.check()
