"""A run whose code names one step id twice: blocked, looked at again, and free once a pass no longer reports the conflict.

RFD 1, from "A step ID names one logical operation" on; RFD 2, from "The SDK returns definition_blocked" on.
"""

from __future__ import annotations

from typing import Any

import pytest
from blocker_verbs import SITES, be_blocked, block, blocked_runs, blocker_of, conflict, join, rediscover
from operator_verbs import cancel, must_refuse
from test_releases import release
from world import LEASE_MS, RETRY, World, work_of

from keyspace.layout import BLOCKER, ITEM, RUN_BY_STATUS, identify
from keyspace.lifecycle import Execution, Phase, Recovery, StepState
from keyspace.limits import LOCATION_CHARS_MAX, PROBE_DELAY_MS_INITIAL
from keyspace.records.blocker import BlockReason, CallSite
from keyspace.records.run import FailureRecord
from keyspace.records.work import Direction, WorkKind
from keyspace.transitions.accept_declaration import Declaration
from keyspace.transitions.block_run import DefinitionConflict, block_run
from keyspace.transitions.continue_run import Completion
from keyspace.transitions.stop_run import StopOutcome
from keyspace.transitions.work import Accepted, Replayed, Stale, Work


async def statuses(world: World, run_id: str) -> list[str]:
    """Return the statuses under which the index has a run."""
    found = [identify(key) for key in await world.dump()]
    return [at[1] for leaf, at in filter(None, found) if leaf is RUN_BY_STATUS and at[3] == run_id]


async def assert_no_trace(world: World, run_id: str) -> None:
    """Nothing of a blocker is left: neither record nor index entry nor probe."""
    assert await blocker_of(world, run_id) is None
    assert await world.records(BLOCKER) == []
    assert await blocked_runs(world) == []
    assert all(item.kind is not WorkKind.DEFINITION_PROBE for item in await world.records(ITEM))


# -- the first report


@pytest.mark.case(52)
async def test_the_first_report_blocks_the_run(world: World) -> None:
    """RFD 2, "The transaction records one active blocker keyed by run and reason ... and indexes the blocked run"."""
    run = await be_blocked(world)
    blocker = await blocker_of(world, run.run_id)
    assert blocker is not None
    assert (blocker.reason, blocker.step_id) == (BlockReason.DUPLICATE_STEP_ID, "twice")
    assert (blocker.first, blocker.duplicate, blocker.count) == (*SITES, 1)
    assert blocker.first_seen_at_ms == blocker.seen_at_ms == run.updated_at_ms
    assert run.phase is Phase.DEFINITION_BLOCKED and (run.execution, run.recovery) == (None, None)
    assert (run.item_id, run.step_id, run.generation) == (None, None, 2), "the run generation rises with a blocker"
    assert await blocked_runs(world) == [run.run_id]
    assert await statuses(world, run.run_id) == ["definition_blocked"]
    await world.check()


@pytest.mark.case(52)
async def test_history_names_the_id_and_both_places(world: World) -> None:
    """RFD 1, "The blocker identifies the step ID and, where the SDK can provide them, the first and duplicate source"."""
    run = await be_blocked(world)
    entry = (await world.history(run.run_id))[-1]
    assert entry.kind == "definition-blocked"
    assert entry.data["step"] == "twice"
    assert entry.data["first"] == {"location": "shop.py:10", "name": "reserve"}
    assert entry.data["duplicate"] == {"location": "shop.py:20", "name": "reserve again"}


@pytest.mark.case(52)
@pytest.mark.parametrize("is_continued", [False, True])
async def test_an_accepted_result_survives(world: World, is_continued: bool) -> None:
    """RFD 1, "The first occurrence may already have a durable result; blocking never invalidates it"."""
    run = await world.start_run()
    if is_continued:
        told = await world.go_on(await world.start_step("twice"), conflict("twice"), b'"kept"')
        assert (told.result, told.answer, told.following) == (Accepted(), Accepted(), None)
    else:
        await world.run_step("twice", b'"kept"')
        assert await block(world, await world.lease_pass(), "twice") == Accepted()
    assert (await world.get_run(run.run_id)).phase is Phase.DEFINITION_BLOCKED
    assert (await world.step(run.run_id, "twice")).state is StepState.COMPLETED
    assert await world.value(run.run_id, "twice") == b'"kept"'
    assert await world.completions(run.run_id) == ["twice"]
    await world.check()


@pytest.mark.case(52)
async def test_a_blocked_run_has_no_work_for_anybody(world: World) -> None:
    """RFD 2, "While blocked, the engine authorizes no new forward callback work", and the second call creates none."""
    run = await be_blocked(world)
    assert await world.lease_many(8) == []
    assert await world.lease_many(8, direction=Direction.COMPENSATION) == [], "the conflict never triggers compensation"
    kinds = await world.kinds(run.run_id)
    assert not [kind for kind in kinds if kind.startswith(("attempt-", "step-", "unwind-", "run-failed"))]
    await world.check()


async def test_an_answer_is_settled_once(world: World) -> None:
    """C5 for passes: the same report again is a replay, any other answer of that pass comes too late."""
    await world.start_run()
    work = await world.lease_pass()
    assert await block(world, work) == Accepted()
    before = await world.dump()
    assert await block(world, work) == Replayed()
    assert await block(world, work, "other") == Stale("pass_settled")
    assert await world.declare(work, "s1") == Stale("pass_settled")
    assert await world.dump() == before


async def test_a_conflict_that_no_record_can_name_is_refused(world: World) -> None:
    """ARCHITECTURE 7: over a bound is a refusal that mutates nothing; the pass goes on under its lease."""
    await world.start_run()
    work = await world.lease_pass()
    long_place = CallSite(location="x" * (LOCATION_CHARS_MAX + 1))
    for bad in (DefinitionConflict("", *SITES), DefinitionConflict("s", long_place, SITES[1])):
        refusal = await must_refuse(
            world, "invalid_name", world.run("block_run", lambda tx, bad=bad: block_run(tx, "acme", work, bad))
        )
        assert refusal.code == "invalid_name"
    assert await world.complete(work) == Accepted()


# -- the same again, and another


@pytest.mark.case(52)
async def test_the_same_conflict_again_updates_one_blocker(world: World) -> None:
    """RFD 2, "appends definition-still-blocked and updates the blocker's last observation and count"."""
    run = await be_blocked(world)
    first_seen = (await world.get_run(run.run_id)).updated_at_ms
    for count in (2, 3):
        world.clock.advance(1_000)
        await rediscover(world, run.run_id)
        assert await block(world, await world.lease_pass()) == Accepted()
        blocker = await blocker_of(world, run.run_id)
        assert blocker is not None
        assert (blocker.count, blocker.first_seen_at_ms) == (count, first_seen)
        assert blocker.seen_at_ms == first_seen + 1_000 * (count - 1)
    kinds = await world.kinds(run.run_id)
    assert (kinds.count("definition-blocked"), kinds.count("definition-still-blocked")) == (1, 2)
    assert len(kinds) == 3 + 2 * 3, "each look costs a request, a pass and one entry"
    assert len(await world.records(BLOCKER)) == 1 and await blocked_runs(world) == [run.run_id]
    assert (await world.get_run(run.run_id)).phase is Phase.DEFINITION_BLOCKED
    await world.check()


@pytest.mark.case(52)
async def test_another_conflict_replaces_the_blocker(world: World) -> None:
    """RFD 2, "or replaces the blocker when it names a different step"; FILLED-IN 4, row five."""
    run = await be_blocked(world, "one")
    await rediscover(world, run.run_id)
    world.clock.advance(5)
    assert await block(world, await world.lease_pass(), "two") == Accepted()
    blocker = await blocker_of(world, run.run_id)
    assert blocker is not None and (blocker.step_id, blocker.count) == ("two", 1)
    assert blocker.first_seen_at_ms == blocker.seen_at_ms == run.updated_at_ms + 5
    assert len(await world.records(BLOCKER)) == 1
    entry = (await world.history(run.run_id))[-1]
    assert (entry.kind, entry.data["step"], entry.data["replaces"]) == ("definition-still-blocked", "two", "one")
    await world.check()


# -- the way out: FILLED-IN 4, row by row


async def look(world: World, run_id: str) -> Work:
    await rediscover(world, run_id)
    return await world.lease_pass()


@pytest.mark.case(52)
@pytest.mark.case(50)
@pytest.mark.parametrize("is_held", [False, True])
async def test_a_new_unique_id_becomes_work(world: World, is_held: bool) -> None:
    """FILLED-IN 4, row one: accepted results are reused, the new ID becomes callback work, the blocker clears."""
    run = await world.start_run()
    await world.run_step("s1", b'"first"')
    await block(world, await world.lease_pass(), "s1")
    work = await look(world, run.run_id)
    assert await world.declare(work, "s2") == Accepted()
    await assert_no_trace(world, run.run_id)
    kinds = await world.kinds(run.run_id)
    assert kinds[-3:] == ["pass-authorized", "definition-unblocked", "step-declared"], "before the ordinary entries"
    assert await statuses(world, run.run_id) == ["running"]
    await world.check()
    started = await world.start_attempt()
    assert started.step_id == "s2"
    if is_held:
        assert (await world.go_on(started, Completion(b"1"))).answer == Accepted()
    else:
        assert await world.succeed(started) == Accepted()
        assert await world.complete(await world.lease_pass()) == Accepted()
    after = await world.get_run(run.run_id)
    assert (after.phase, after.execution) == (Phase.TERMINAL, Execution.COMPLETED)
    assert await world.value(run.run_id, "s1") == b'"first"'
    await world.check()


@pytest.mark.case(52)
async def test_a_removed_call_lets_the_pass_go_on(world: World) -> None:
    """FILLED-IN 4, row two: the pass goes on with memoized results; the completed step stays what it is."""
    run = await world.start_run()
    await world.run_step("s1")
    await block(world, await world.lease_pass(), "s1")
    assert await world.complete(await look(world, run.run_id)) == Accepted()
    assert (await world.step(run.run_id, "s1")).state is StepState.COMPLETED
    await assert_no_trace(world, run.run_id)
    await world.check()


@pytest.mark.case(52)
async def test_a_completing_pass_completes_the_run(world: World) -> None:
    """FILLED-IN 4, row three: the blocker clears and the run completes, in one transaction."""
    run = await be_blocked(world)
    assert await world.complete(await look(world, run.run_id)) == Accepted()
    after = await world.get_run(run.run_id)
    assert (after.phase, after.recovery) == (Phase.TERMINAL, Recovery.EXECUTION_SUCCEEDED)
    assert (await world.kinds(run.run_id))[-2:] == ["definition-unblocked", "run-completed"]
    await assert_no_trace(world, run.run_id)
    await world.check()


@pytest.mark.case(52)
@pytest.mark.parametrize("completed", [0, 1])
async def test_a_failing_pass_follows_its_ordinary_transition(world: World, completed: int) -> None:
    """RFD 2, "Any non-blocked response atomically clears the blocker and follows its ordinary transition"."""
    run = await world.start_run()
    for _ in range(completed):
        await world.run_step("s1")
    await block(world, await world.lease_pass(), "s1")
    assert await world.fail(await look(world, run.run_id)) == Accepted()
    after = await world.get_run(run.run_id)
    assert after.phase is (Phase.COMPENSATING if completed else Phase.TERMINAL)
    assert after.execution is Execution.FAILED
    kinds = await world.kinds(run.run_id)
    assert kinds.index("definition-unblocked") + 1 == kinds.index("run-failed")
    await assert_no_trace(world, run.run_id)
    await world.check()


async def test_an_oversized_return_value_unblocks_too(world: World) -> None:
    """FILLED-IN 11, "A function's own oversized return value fails the function": no way around the blocker's end."""
    run = await be_blocked(world)
    work = await look(world, run.run_id)
    assert await world.complete(work, b'"' + b"x" * world.keyspace.payload_bytes_max + b'"') == Accepted()
    assert (await world.get_run(run.run_id)).execution is Execution.FAILED
    await assert_no_trace(world, run.run_id)
    await world.check()


@pytest.mark.case(52)
@pytest.mark.case(50)
async def test_an_unstarted_step_that_the_conflict_hides_becomes_obsolete(world: World) -> None:
    """FILLED-IN 4, row four. One step is outstanding at a time, so no pass is under way beside it: its own worker finds
    that current code comes to the conflict first, answers not found, and the pass that follows blocks."""
    run = await world.start_run()
    await world.declare(await world.lease_pass(), "later")
    assert await world.not_found(work_of(await world.lease())) == Accepted()
    assert (await world.step(run.run_id, "later")).state is StepState.OBSOLETE
    await block(world, await world.lease_pass())
    assert await world.lease_many(4) == []
    assert await world.declare(await look(world, run.run_id), "later") == Accepted()
    step = await world.step(run.run_id, "later")
    assert (step.state, step.generation) == (StepState.PENDING, 2), "met again, it is declared anew"
    await world.check()


async def test_a_refused_declaration_clears_nothing(world: World) -> None:
    """FILLED-IN 11, "A refused declaration answers the pass and mutates nothing"; the pass's later answer clears."""
    run = await world.start_run()
    await world.run_step("s1")
    await block(world, await world.lease_pass(), "s1")
    work = await look(world, run.run_id)
    await must_refuse(world, "step_settled", world.declare(work, "s1"))
    assert await blocked_runs(world) == [run.run_id]
    assert await world.declare(work, "s2") == Accepted()
    await assert_no_trace(world, run.run_id)
    await world.check()


async def test_the_pass_of_a_blocked_run_is_repeatable(world: World) -> None:
    """RFD 2, "Discovery loss is retried": a pass that is lost is redelivered, and the run stays blocked meanwhile."""
    run = await be_blocked(world)
    work = await look(world, run.run_id)
    world.clock.advance(LEASE_MS)
    await world.lose(work.item_id)
    assert (await world.get_run(run.run_id)).phase is Phase.DEFINITION_BLOCKED
    await world.check()
    again = await world.lease_pass()
    assert again.item_id == work.item_id and again.token != work.token
    assert await block(world, work) == Stale("lease_lost")
    assert await world.complete(again) == Accepted()
    await world.check()


# -- stops


@pytest.mark.case(52)
@pytest.mark.case(20)
@pytest.mark.parametrize("completed", [0, 1])
@pytest.mark.parametrize("stage", ["at rest", "queued", "authorized"])
async def test_a_cancel_ends_a_blocked_run(world: World, stage: str, completed: int) -> None:
    """RFD 2, "Cancellation or timeout may move the run directly from DefinitionBlocked" and "A stop clears the blocker"."""
    run = await world.start_run()
    for _ in range(completed):
        await world.run_step("s1")
    await block(world, await world.lease_pass(), "s1")
    if stage != "at rest":
        await rediscover(world, run.run_id)
    work = await world.lease_pass() if stage == "authorized" else None
    reply = await cancel(world, run.run_id)
    assert (reply.outcome, reply.is_settling) == (StopOutcome.ACCEPTED, False)
    after = await world.get_run(run.run_id)
    assert after.phase is (Phase.COMPENSATING if completed else Phase.TERMINAL)
    assert after.execution is Execution.CANCELLED
    await assert_no_trace(world, run.run_id)
    kinds = await world.kinds(run.run_id)
    assert "definition-unblocked" not in kinds, "no pass cleared it"
    assert "stop-committed" in kinds[-2:]
    if work is not None:
        before = await world.dump()
        assert await block(world, work) == Stale("run_stopping")
        assert await world.declare(work, "s2") == Stale("run_stopping")
        assert await world.dump() == before
    await world.check()


async def test_a_result_is_accepted_whatever_the_pass_behind_it_says(world: World) -> None:
    """ARCHITECTURE 6, "a stop or blocker never voids the result", and a replay of both finds both."""
    run = await world.start_run()
    work = await world.start_step("s1")
    first = await world.go_on(work, conflict("s1"))
    before = await world.dump()
    again = await world.go_on(work, conflict("s1"))
    assert (first.result, first.answer) == (Accepted(), Accepted())
    assert (again.result, again.answer) == (Replayed(), Replayed())
    assert await world.dump() == before
    assert (await world.kinds(run.run_id))[-3:] == ["step-completed", "pass-authorized", "definition-blocked"]
    await world.check()


async def test_a_conflict_that_is_refused_leaves_the_result_and_an_open_pass(world: World) -> None:
    """The result stands, and the pass behind it goes on under a lease of its session."""
    await world.start_run()
    work = await world.start_step("s1")
    told = await world.go_on(work, DefinitionConflict(" ", *SITES))
    assert told.result == Accepted() and told.refusal is not None and told.is_open
    assert (await world.step(work.run_id, "s1")).state is StepState.COMPLETED
    await world.check()


# -- who saw it


@pytest.mark.parametrize("names_release", [False, True])
async def test_the_blocker_names_its_observer(world: World, names_release: bool) -> None:
    """RFD 2, "records scoped release and instance metadata for explanation", and a probe only where code is not announced."""
    runs = await release(world, "v1") if names_release else None
    await join(world, runs)
    run = await be_blocked(world)
    blocker = await blocker_of(world, run.run_id)
    assert blocker is not None
    assert blocker.instance is not None and blocker.release == ("v1" if names_release else "")
    assert blocker.needs_probe is (blocker.probe_item is not None) is not names_release
    probes = [item for item in await world.records(ITEM) if item.kind is WorkKind.DEFINITION_PROBE]
    assert len(probes) == (0 if names_release else 1)
    for item in probes:
        assert (item.item_id, item.target) == (blocker.probe_item, run.run_id)
        assert item.vesting_ms == run.updated_at_ms + PROBE_DELAY_MS_INITIAL
    await world.check()


async def test_a_step_that_failed_for_good_stands_while_blocked(world: World) -> None:
    """RFD 1, "blocking never invalidates it" holds of a recorded failure too: the pass after the fix sees it again."""
    run = await world.start_run()
    await world.fail_attempt(
        await world.start_step("s1"), FailureRecord(category="application", message="no"), retryable=False
    )
    await block(world, await world.lease_pass(), "s2")
    assert (await world.step(run.run_id, "s1")).state is StepState.FAILED
    assert await world.declare(await look(world, run.run_id), "s2") == Accepted()
    await world.check()


async def test_a_declaration_to_a_held_seat_unblocks_and_starts(world: World) -> None:
    """ARCHITECTURE 6: where a run goes on in its session, the unblocking pass starts its step at once."""
    run = await world.start_run()
    await block(world, await world.lease_pass(), "s1")
    await rediscover(world, run.run_id)
    await world.declare(await world.lease_pass(), "s1")
    told: Any = await world.go_on(await world.start_attempt(), Declaration("s2", RETRY))
    assert told.following is not None
    await world.check()
