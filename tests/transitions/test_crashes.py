"""A stop after every commit, and commits whose outcome nobody knows: the story ends the same, and the keyspace is sound.

RFD 2, "These invariants are tested by injecting a stop after every transaction commit and reopening the store."
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from final_state import final_state
from keep_going import STORY, TIMED_STORY, Deployment, Story
from world import EagerClock

from keyspace.store.embedded import memory_store, open_embedded
from keyspace.store.fault_plan import CommitFault, FaultPlan, FaultRates
from keyspace.store.memory_engine import MemoryEngine
from keyspace.store.runner import RunContext

UNKNOWN, NOT_WRITTEN = CommitFault.UNKNOWN_COMMITTED, CommitFault.UNKNOWN_NOT_COMMITTED


class RecordingPlan(FaultPlan):
    """Strikes nothing and remembers which transition each commit was."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def next_commit(self, run: RunContext | None) -> CommitFault | None:
        assert run is not None
        self.names.append(run.name)
        return None


def deployment(plan: FaultPlan, is_continuing: bool, story: Story) -> Deployment:
    """Return a deployment on a memory store; every restart opens the same engine anew."""
    clock, engine = EagerClock(), MemoryEngine()
    return Deployment(story, lambda: memory_store(clock=clock, engine=engine), plan, clock, is_continuing=is_continuing)


async def end_of(
    plan: FaultPlan, is_continuing: bool = False, story: Story = STORY
) -> tuple[Deployment, dict[str, list[Any]]]:
    """Take the story to its end under `plan`, check it, and return what it came to."""
    made = deployment(plan, is_continuing, story)
    await made.run()
    await made.check()
    return made, final_state(await made.stored())


async def test_the_story_reaches_every_transition_without_faults() -> None:
    """The baseline of the tests below: it visits what they claim to break."""
    made, state = await end_of(FaultPlan())
    figures = made.keyspace.meter.snapshot()
    names = {name for name, figure in figures.items() if figure.write_count}
    assert names >= {
        "create_workspace",
        "publish_manifest",
        "activate_routing",
        "accept_event",
        "invoke_function",
        "expand_event",
        "lease_items",
        "authorize_start",
        "accept_declaration",
        "accept_success",
        "accept_failure",
        "lose_lease",
        "open_session",
        "prove_not_started",
        "target_not_found",
        "fail_run",
        "complete_run",
        "fire_timer",
    }
    outcomes = {(run[0], run[2].value, run[3].value) for _, run in state["RUN"]}
    assert outcomes == {
        ("plain", "completed", "not_required:execution_succeeded"),
        ("bare", "completed", "not_required:execution_succeeded"),
        ("odd", "completed", "not_required:execution_succeeded"),
        ("sleepy", "completed", "not_required:execution_succeeded"),
        ("failing", "failed", "partially_compensated"),
    }
    assert made.outside.answers["a2" * 16] == "a1" * 16, "the second submission under one key is the first one's event"


async def commits_of_the_story(is_continuing: bool, story: Story = STORY) -> tuple[list[str], dict[str, list[Any]]]:
    """Return the transition of every commit of the undisturbed story, in order, and what it comes to."""
    plan = RecordingPlan()
    made, expected = await end_of(plan, is_continuing, story)
    assert len(plan.names) == made.commit_count
    return plan.names, expected


def firsts(names: list[str]) -> list[int]:
    """Return the number, from 1, of the first commit of each transition."""
    return sorted({name: number for number, name in reversed(list(enumerate(names, 1)))}.values())


ways = pytest.mark.parametrize("is_continuing", [False, True], ids=["queued", "continuing"])
"""Every step through the queue, or each behind the success before it in one transaction."""


@ways
async def test_both_ways_come_to_the_same(is_continuing: bool) -> None:
    """ARCHITECTURE 6, "Continuation": only the round trips are gone."""
    names, state = await commits_of_the_story(is_continuing)
    _, expected = await end_of(FaultPlan())
    assert state == expected
    assert ("continue_run" in names) == is_continuing


@pytest.mark.case(1)
@ways
@pytest.mark.parametrize("fault", [CommitFault.STOP_AFTER, UNKNOWN], ids=lambda fault: fault.value)
async def test_a_fault_at_every_commit(fault: CommitFault, is_continuing: bool) -> None:
    """RFD 2, "After any process crash", and case 001: a stop, or an unknown result, at each commit in turn."""
    names, expected = await commits_of_the_story(is_continuing)
    for number in range(1, len(names) + 1):
        made, state = await end_of(FaultPlan().at_commit(number, fault), is_continuing)
        assert made.restart_count == (fault is CommitFault.STOP_AFTER)
        assert state == expected, f"{fault.value} at commit {number}, {names[number - 1]}"
        assert "STALE" not in state, "nobody conflicts with themselves"


@pytest.mark.case(1)
@ways
@pytest.mark.parametrize(
    "faults",
    [
        (CommitFault.STOP_BEFORE,),
        (NOT_WRITTEN,),
        (UNKNOWN, CommitFault.NOT_COMMITTED),
        (UNKNOWN, CommitFault.TRANSACTION_TOO_OLD),
        (UNKNOWN, UNKNOWN, UNKNOWN),
        (NOT_WRITTEN, UNKNOWN, CommitFault.NOT_COMMITTED),
        (UNKNOWN, CommitFault.STOP_BEFORE),
    ],
    ids=lambda faults: "-".join(fault.value for fault in faults),
)
async def test_a_sequence_of_faults_at_every_transition(faults: tuple[CommitFault, ...], is_continuing: bool) -> None:
    """Case 001: after an unknown commit comes another error, two more unknowns, or the end of the process."""
    names, expected = await commits_of_the_story(is_continuing)
    for number in firsts(names):
        _, state = await end_of(FaultPlan().at_commit(number, *faults), is_continuing)
        assert state == expected, f"{faults} at commit {number}, {names[number - 1]}"
        assert "STALE" not in state, "nobody conflicts with themselves"


@pytest.mark.case(1)
@pytest.mark.case(10)
@ways
@pytest.mark.parametrize("fault", [CommitFault.STOP_AFTER, UNKNOWN], ids=lambda fault: fault.value)
async def test_a_fault_at_every_commit_of_runs_with_a_deadline(fault: CommitFault, is_continuing: bool) -> None:
    """Case 010 for "deadline and timer firing": whoever stops around a timer, the next one finds it by its pointer."""
    names, expected = await commits_of_the_story(is_continuing, TIMED_STORY)
    assert "fire_deadline" in names
    outcomes = {(run[0], run[2].value, run[3].value) for _, run in expected["RUN"]}
    assert outcomes == {
        ("plain", "completed", "not_required:execution_succeeded"),
        ("odd", "timed_out", "not_required:empty_unwind"),
        ("silent", "timed_out", "partially_compensated"),
        ("backing", "timed_out", "partially_compensated"),
    }
    for number in range(1, len(names) + 1):
        _, state = await end_of(FaultPlan().at_commit(number, fault), is_continuing, TIMED_STORY)
        # A stop may let a lease run out, and with it the time of a run that would else have completed: that is the rule.
        ends = {run[0]: run[2].value for _, run in state["RUN"]}
        told = f"{fault.value} at commit {number}, {names[number - 1]}"
        assert set(ends) == set(TIMED_STORY.functions) and set(ends.values()) <= {"completed", "timed_out"}, told
        assert ends["silent"] == ends["backing"] == "timed_out", told


@pytest.mark.case(62)
@pytest.mark.parametrize("seed", range(8))
async def test_faults_all_the_way(seed: int) -> None:
    """Case 062: every commit draws a fault; at the end no pointer, index or count has drifted from its source."""
    rates = {UNKNOWN: 0.15, NOT_WRITTEN: 0.1, CommitFault.NOT_COMMITTED: 0.1, CommitFault.STOP_AFTER: 0.05}
    _, expected = await end_of(FaultPlan())
    _, state = await end_of(FaultPlan(seed, FaultRates(commit=rates)), is_continuing=seed % 2 == 1)
    assert state == expected


@pytest.mark.case(1)
async def test_a_stop_at_every_commit_on_the_file_store(tmp_path: Path) -> None:
    """The same on the synced file, with a story of one workspace and one function, reopened after each stop."""
    story = Story(("acme",), {"plain": STORY.functions["plain"]}, STORY.events[:2])

    async def end_on_file(plan: FaultPlan, name: str) -> tuple[int, dict[str, list[Any]]]:
        clock = EagerClock()
        made = Deployment(story, lambda: open_embedded(tmp_path / name, clock=clock, map_bytes=1 << 26), plan, clock)
        await made.run()
        await made.check()
        state = final_state(await made.stored())
        await made.store.inner.close()
        return made.commit_count, state

    commit_count, expected = await end_on_file(FaultPlan(), "clean")
    for number in range(1, commit_count + 1, 3):
        _, state = await end_on_file(FaultPlan().at_commit(number, CommitFault.STOP_AFTER), f"stop-{number}")
        assert state == expected, f"stop at commit {number}"
        _, state = await end_on_file(FaultPlan().at_commit(number, UNKNOWN), f"unknown-{number}")
        assert state == expected, f"unknown commit {number}"
