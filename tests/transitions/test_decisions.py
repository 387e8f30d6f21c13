"""The decision table against the real transitions: every situation is built on a store, and every event happens to it.

RFD 1 and RFD 2 leave no pair open, so neither does the table: a key that is in neither mapping fails here, and a cell that
says other than what the transition does fails here too.
"""

from __future__ import annotations

from itertools import product

import pytest
from decision_worlds import PHASES, Told, act, act_on_pass, forward, passing, undo
from final_state import final_state
from world import Dump

from keyspace.decisions import (
    ATTEMPTS,
    IMPOSSIBLE,
    IMPOSSIBLE_PASSES,
    MEANINGS,
    PASSES,
    Decision,
    Event,
    Follows,
    PassEvent,
    PassStanding,
    Situation,
    Standing,
)
from keyspace.layout import ATTEMPT, identify
from keyspace.lifecycle import Execution, Phase, Recovery
from keyspace.records.run import RunRecord
from keyspace.records.work import Direction, ItemRecord, WorkKind
from keyspace.store.fault_plan import CommitFault, FaultPlan
from keyspace.transitions.work import Work

ATTEMPT_ROWS = [at for at in product(Direction, Situation, Standing) if at not in IMPOSSIBLE]
PASS_ROWS = [at for at in product(Situation, PassStanding) if at not in IMPOSSIBLE_PASSES]


# -- the table itself


def test_no_pair_is_left_to_chance() -> None:
    """Proof, "for every (phase, attempt state, command or event, before or after the deadline)": a decision, or a reason."""
    for direction, situation, standing, event in product(Direction, Situation, Standing, Event):
        has_decision = (direction, situation, standing, event) in ATTEMPTS
        assert has_decision is not ((direction, situation, standing) in IMPOSSIBLE), (situation, standing, event)
    for situation, pass_standing, pass_event in product(Situation, PassStanding, PassEvent):
        has_decision = (situation, pass_standing, pass_event) in PASSES
        assert has_decision is not ((situation, pass_standing) in IMPOSSIBLE_PASSES), (situation, pass_standing)


def test_every_outcome_is_reached() -> None:
    """Would catch a word of the vocabulary that no event leads to."""
    said = {decision.follows for decision in (*ATTEMPTS.values(), *PASSES.values())}
    assert said == set(Follows) == set(MEANINGS)


# -- what followed


def follows(before: RunRecord, after: RunRecord, item: ItemRecord | None, work: Work, now_ms: int) -> Follows:
    """Read from what is stored what a changed run goes on with."""
    if before.phase is not Phase.COMPENSATING and after.phase in (Phase.COMPENSATING, Phase.TERMINAL):
        if after.execution is Execution.COMPLETED:
            return Follows.COMPLETES
        has_something = after.completion_count > 0
        assert after.phase is (Phase.COMPENSATING if has_something else Phase.TERMINAL)
        return Follows.UNWINDS
    if after.phase is Phase.TERMINAL:
        return Follows.UNDO_FAILS if after.recovery is Recovery.COMPENSATION_FAILED else Follows.TARGET
    if after.phase is Phase.CANCELLING:
        assert item is not None or after.unknown_count
        return Follows.SETTLES
    if item is None:
        assert after.unknown_count or after.phase is Phase.DEFINITION_BLOCKED
        return Follows.OPERATOR if after.unknown_count else Follows.BLOCKS
    if item.kind is WorkKind.DISCOVERY:
        return Follows.AGAIN if item.item_id == work.item_id else Follows.DISCOVERY
    if work.kind is WorkKind.DISCOVERY:
        return Follows.CALLBACK
    if item.step_id != work.step_id:
        return Follows.TARGET
    if item.generation == work.generation:
        return Follows.AGAIN if item.authorized_at_ms is None else Follows.RUNS
    return Follows.SUCCESSOR if item.vesting_ms > now_ms else Follows.NEXT


def comparable(stored: Dump) -> Dump:
    """Return what is stored without a hello, without what is kept of results that lost, and without leases that only wait."""
    kept = {}
    for key, value in stored.items():
        found = identify(key)
        assert found is not None
        if found[0].name == "ATTEMPT":
            record = ATTEMPT.codec.decode(value)
            value = repr((record.state, record.token, record.item_id, record.loss_count)).encode()
        if found[0].name not in ("INSTANCE", "STALE"):
            kept[key] = value
    return kept


async def observed(told: Told, event: Event | PassEvent, answer: str, before: RunRecord, stored: Dump) -> Follows:
    """Return what followed an event, having checked that the keyspace is whole and that nothing means nothing."""
    world = told.world
    assert told.work is not None
    await world.check()
    after = await world.get_run(told.run_id)
    if after == before:
        if answer == "returned":
            return Follows.AGAIN
        assert comparable(await world.dump()) == comparable(stored), "nothing changes"
        return Follows.SAME
    return follows(before, after, await told.item(), told.work, world.clock.now_ms())


async def compare(told: Told, direction: Direction, situation: Situation, standing: Standing) -> list[str]:
    """Let every event happen to a situation, each in a world of its own; return where the table says otherwise."""
    assert told.work is not None
    assert told.work.step_id is not None
    stored = await told.world.dump()
    before = await told.world.get_run(told.run_id)
    assert before.phase is PHASES[situation]
    at = (told.run_id, told.work.step_id, told.work.generation, direction)
    state = (await told.world.attempt(*at)).state
    wrong = []
    for event in Event:
        tried = await told.clone(stored)
        answer = await act(tried, event)
        then = await observed(tried, event, answer, before, stored)
        now = (await tried.world.attempt(*at)).state
        found = Decision(answer, then, None if now is state else now)
        expected = ATTEMPTS[direction, situation, standing, event]
        if found != expected:
            wrong.append(f"{event}: the table says {expected}, the transition {found}")
    return wrong


# -- every cell


@pytest.mark.parametrize(
    ("direction", "situation", "standing"), ATTEMPT_ROWS, ids=lambda value: getattr(value, "name", str(value)).lower()
)
async def test_attempts(anyio_backend: str, direction: Direction, situation: Situation, standing: Standing) -> None:
    """RFD 1 and RFD 2 whole, FILLED-IN 7 among them: the transitions decide as the table says, whatever happens."""
    if direction is Direction.COMPENSATION:
        assert await compare(await undo(situation, standing), direction, situation, standing) == []
        return
    for completed in (0, 1):
        # An unwind of nothing is none: the run is terminal then, which the rows of ENDED are about.
        if completed or PHASES[situation] is not Phase.COMPENSATING:
            told = await forward(situation, standing, completed=completed)
            assert await compare(told, direction, situation, standing) == []


# -- passes


@pytest.mark.parametrize(
    ("situation", "standing"), PASS_ROWS, ids=lambda value: getattr(value, "name", str(value)).lower()
)
async def test_passes(anyio_backend: str, situation: Situation, standing: PassStanding) -> None:
    """RFD 2, "every authoritative forward result or discovery response": a pass's answer counts as the table says."""
    told = await passing(situation, standing)
    stored, before = await told.world.dump(), await told.world.get_run(told.run_id)
    assert before.phase is PHASES[situation]
    wrong = []
    for event in PassEvent:
        tried = await told.clone(stored)
        answer = await act_on_pass(tried, event)
        found = Decision(answer, await observed(tried, event, answer, before, stored))
        if found != PASSES[situation, standing, event]:
            wrong.append(f"{event}: the table says {PASSES[situation, standing, event]}, the transition {found}")
    assert wrong == []


# -- the same, when nobody knows whether it was committed

TRANSITIONS: dict[Event | PassEvent, str] = {
    Event.AUTHORIZE: "authorize_start",
    Event.SUCCESS: "accept_success",
    Event.FAILURE: "accept_failure",
    Event.LAST_FAILURE: "accept_failure",
    Event.TARGET_NOT_FOUND: "target_not_found",
    Event.LEASE_LOST: "lose_lease",
    Event.NOT_STARTED: "prove_not_started",
    Event.SUPPLY_SUCCESS: "resolve_attempt",
    Event.DECLARE_FAILURE: "resolve_attempt",
    Event.AUTHORIZE_RETRY: "resolve_attempt",
    Event.CANCEL: "cancel_run",
    Event.TIMER: "fire",
    PassEvent.DECLARE: "accept_declaration",
    PassEvent.COMPLETE: "complete_run",
    PassEvent.FAIL: "fail_run",
    PassEvent.BLOCK: "block_run",
    PassEvent.LEASE_LOST: "lose_lease",
    PassEvent.CANCEL: "cancel_run",
    PassEvent.TIMER: "fire",
}
REPEATED = {
    "accepted": "replayed",
    "stopped": "gone",
    "returned": "nothing",
    "redelivered": "nothing",
    "unknown": "nothing",
}
"""What is told who finds that the commit nobody knew of was made; otherwise the same as at first."""


def lost_commit(event: Event | PassEvent) -> FaultPlan:
    """Return the plan of case 001: it commits and says it does not know; a second commit, should there be one, conflicts."""
    faults = (CommitFault.UNKNOWN_COMMITTED, CommitFault.NOT_COMMITTED)
    return FaultPlan().at_commit(1, *faults, transition=TRANSITIONS[event])


def is_told_right(event: Event | PassEvent, clean: str, told: str) -> bool:
    """Say whether an answer after a lost commit is the first one's, or says that it was made."""
    if event in (Event.CANCEL, PassEvent.CANCEL):
        return told in (clean, "repeated", "already_terminal")
    if event is Event.NOT_STARTED:
        return told in (clean, "nothing")
    return told in (clean, REPEATED.get(clean))


@pytest.mark.case(1)
@pytest.mark.parametrize(
    ("direction", "situation", "standing"), ATTEMPT_ROWS, ids=lambda value: getattr(value, "name", str(value)).lower()
)
async def test_attempts_whose_commit_is_unknown(
    anyio_backend: str, direction: Direction, situation: Situation, standing: Standing
) -> None:
    """Case 001 for every cell that commits something: one settlement, one history, and the answer of the first commit."""
    built = (
        undo(situation, standing) if direction is Direction.COMPENSATION else forward(situation, standing, completed=1)
    )
    told = await built
    stored = await told.world.dump()
    for event in Event:
        if ATTEMPTS[direction, situation, standing, event].follows is Follows.SAME:
            continue
        clean, faulty = await told.clone(stored), await told.clone(stored, lost_commit(event))
        answers = await act(clean, event), await act(faulty, event)
        assert faulty.fault_count(), "the commit was lost"
        assert is_told_right(event, *answers), (event, answers)
        assert final_state(await faulty.world.dump()) == final_state(await clean.world.dump()), event
        await faulty.world.check()


@pytest.mark.case(1)
@pytest.mark.parametrize(
    ("situation", "standing"), PASS_ROWS, ids=lambda value: getattr(value, "name", str(value)).lower()
)
async def test_passes_whose_commit_is_unknown(anyio_backend: str, situation: Situation, standing: PassStanding) -> None:
    """Case 001 for every answer of a pass that commits something."""
    told = await passing(situation, standing)
    stored = await told.world.dump()
    for event in PassEvent:
        if PASSES[situation, standing, event].follows is Follows.SAME:
            continue
        clean, faulty = await told.clone(stored), await told.clone(stored, lost_commit(event))
        answers = await act_on_pass(clean, event), await act_on_pass(faulty, event)
        assert faulty.fault_count(), "the commit was lost"
        assert is_told_right(event, *answers), (event, answers)
        assert final_state(await faulty.world.dump()) == final_state(await clean.world.dump()), event
        await faulty.world.check()
