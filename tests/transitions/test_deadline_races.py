"""A deadline against everything else that a run can do, each pair in each order; and commits that nobody hears of."""

from __future__ import annotations

from typing import Any

import pytest
from deadline_verbs import ACTS, at_deadline, begin_timed, fire, fire_item, prepare
from final_state import final_state
from operator_verbs import cancel
from recording import RecordingStore
from test_deadlines import AT_DEADLINE, TIMER_FIRST_TOLD, UNTOUCHED
from test_races import InterruptingStore, race
from world import EagerClock, World

from keyspace.errors import Refusal
from keyspace.layout import identify
from keyspace.lifecycle import StopReason
from keyspace.store.embedded import memory_store
from keyspace.store.fault import FaultStore
from keyspace.store.fault_plan import CommitFault, FaultPlan
from keyspace.transitions.continue_run import Continued
from keyspace.transitions.fire_deadline import Fired
from keyspace.transitions.lose_lease import Loss
from keyspace.transitions.stop_run import StopOutcome
from keyspace.transitions.work import Accepted, Replayed, Stale, Work

UNKNOWN, NOT_WRITTEN = CommitFault.UNKNOWN_COMMITTED, CommitFault.UNKNOWN_NOT_COMMITTED
WRITING = [name for name in ACTS if name not in UNTOUCHED]


async def interrupted_world() -> tuple[World, InterruptingStore]:
    clock = EagerClock()
    store = InterruptingStore(memory_store(clock=clock))
    world = World(clock=clock, store=store)
    await begin_timed(world)
    return world, store


def timer_of(item_id: str) -> Any:
    return lambda world, work: fire_item(world, work.run_id, item_id)


@pytest.mark.case(19)
@pytest.mark.parametrize("is_timer_first", [True, False])
@pytest.mark.parametrize("name", [name for name in WRITING if name != "proof"])
async def test_the_timer_races_everything(name: str, is_timer_first: bool) -> None:
    """Case 019, "every pair ... deadline": one commits, the other reads that it did; the end is the same in both orders."""
    world, store = await interrupted_world()
    work = await prepare(world, ACTS[name].stage, completed=1)
    await at_deadline(world, work.run_id)
    timer = (await world.get_run(work.run_id)).timeout_item
    assert timer is not None
    if is_timer_first:
        fired, told = await race(world, store, timer_of(timer), ACTS[name].perform, work)
    else:
        told, fired = await race(world, store, ACTS[name].perform, timer_of(timer), work)
    assert fired is (Fired.STOPPED if is_timer_first else Fired.GONE)
    assert told == (TIMER_FIRST_TOLD.get(name, AT_DEADLINE[name][0]) if is_timer_first else AT_DEADLINE[name][0])
    assert (await world.kinds(work.run_id)).count("stop-committed") == 1
    await world.check()


@pytest.mark.case(19)
@pytest.mark.case(20)
@pytest.mark.parametrize("is_timer_first", [True, False])
@pytest.mark.parametrize("stage", ["unpassed", "queued", "leased", "effect", "unknown", "pass"])
async def test_the_timer_races_a_cancellation(stage: str, is_timer_first: bool) -> None:
    """RFD 2, "Cancellation and timeout still race normally": the first committed reason stands, the other is told so."""
    world, store = await interrupted_world()
    work = await prepare(world, stage, completed=1)
    await at_deadline(world, work.run_id)
    timer = (await world.get_run(work.run_id)).timeout_item
    assert timer is not None

    async def stop(world: World, work: Work) -> Any:
        try:
            return (await cancel(world, work.run_id)).outcome
        except Refusal as refusal:
            return refusal.code

    if is_timer_first:
        fired, told = await race(world, store, timer_of(timer), stop, work)
        assert (fired, told) == (Fired.STOPPED, "stop_conflict")
    else:
        told, fired = await race(world, store, stop, timer_of(timer), work)
        assert (told, fired) == (StopOutcome.ACCEPTED, Fired.GONE)
    run = await world.get_run(work.run_id)
    assert run.stop is not None
    assert run.stop.reason is (StopReason.TIMED_OUT if is_timer_first else StopReason.CANCELLED)
    assert (await world.kinds(work.run_id)).count("stop-committed") == 1
    await world.check()


async def test_two_timers_at_once_are_one() -> None:
    """A timer that two dispatchers fire at once stops the run once: the second reads that its item is gone."""
    world, store = await interrupted_world()
    work = await prepare(world, "effect")
    await at_deadline(world, work.run_id)
    timer = (await world.get_run(work.run_id)).timeout_item
    assert timer is not None
    assert await race(world, store, timer_of(timer), timer_of(timer), work) == (Fired.STOPPED, Fired.GONE)
    await world.check()


# -- commits whose outcome nobody knows

FAULTS = {
    "committed": (UNKNOWN,),
    "not committed": (NOT_WRITTEN,),
    "committed, then a conflict": (UNKNOWN, CommitFault.NOT_COMMITTED),
    "committed, then too old": (UNKNOWN, CommitFault.TRANSACTION_TOO_OLD),
}


async def faulty_end(name: str, stage: str, transition: str, faults: tuple[CommitFault, ...]) -> tuple[Any, Any]:
    """Take a run to its deadline, let `name` happen to it under faults, and return what was told and what it came to."""
    clock = EagerClock()
    plan = FaultPlan()
    store = FaultStore(memory_store(clock=clock), plan, clock=clock)
    world = World(clock=clock, store=store)
    await begin_timed(world)
    work = await prepare(world, stage, completed=1)
    await at_deadline(world, work.run_id)
    if faults:
        plan.at_commit(1, *faults, transition=transition)
    told = await (fire(world, work.run_id) if name == "timer" else ACTS[name].perform(world, work))
    await world.check()
    assert (await world.kinds(work.run_id)).count("stop-committed") == 1
    return told, final_state(await world.dump())


REPEATED: dict[str, Any] = {
    "timer": Fired.GONE,
    "success, pass under way": Continued(Replayed(), Stale("no_answer")),
    "proof": False,
    "loss": Loss.NOT_LOST,
    "lost pass": Loss.NOT_LOST,
}
"""What those are told who find their own commit and need to know no more than that nothing is left to do."""


def as_repeated(told: Any) -> Any:
    """Return what is told when the commit that was made is looked at again."""
    if isinstance(told, Continued):
        return told._replace(result=as_repeated(told.result))
    return Replayed() if isinstance(told, Accepted) else told


@pytest.mark.case(1)
@pytest.mark.parametrize("faults", list(FAULTS))
@pytest.mark.parametrize("name", ["timer", *WRITING])
async def test_an_unknown_commit_at_the_deadline_is_made_once(name: str, faults: str) -> None:
    """Case 001 for every transition that may commit the stop: one stop, one settlement, and the first commit's answer."""
    stage, transition = ("effect", "fire_deadline") if name == "timer" else ACTS[name][:2]
    clean, expected = await faulty_end(name, stage, transition, ())
    told, state = await faulty_end(name, stage, transition, FAULTS[faults])
    assert state == expected
    assert told in (clean, REPEATED.get(name, as_repeated(clean)))


# -- what the timer depends on


async def test_a_timer_reads_and_writes_its_own_run_only() -> None:
    """S2, "Transitions of different runs do not conflict": by the kinds of key, as the store recorded them."""
    clock = EagerClock()
    store = RecordingStore(memory_store(clock=clock))
    world = World(clock=clock, store=store, prefix=b"")
    await begin_timed(world)
    other = await prepare(world, "pass", completed=1)
    work = await prepare(world, "queued", completed=1)
    await at_deadline(world, work.run_id)
    store.commits.clear()
    for one in (work, other):
        assert await fire(world, one.run_id) is Fired.STOPPED
    for commit, run_id in zip(store.commits, (work.run_id, other.run_id), strict=True):
        read = [identify(begin) for begin, end in commit.reads if end == begin + b"\x00"]
        assert len(read) == len(commit.reads), "every read that conflicts is of one key"
        assert {found[0].name for found in read if found} <= {"RUN", "STEP", "ATTEMPT", "ITEM", "COMPLETION"}
        assert {found[1][1] for found in read if found and found[0].name != "ITEM"} == {run_id}
        assert commit.size_bytes < 24_000
