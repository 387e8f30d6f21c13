"""Families whose server stops, or whose commits are unknown, at every commit in turn, with and without a cancellation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from keep_going import FAMILY_STORY, Story, StoryEvent
from test_crashes import commits_of_the_story, end_of, firsts, ways

from keyspace.store.fault_plan import CommitFault, FaultPlan

UNKNOWN, NOT_WRITTEN = CommitFault.UNKNOWN_COMMITTED, CommitFault.UNKNOWN_NOT_COMMITTED
CANCELLED_STORY = replace(FAMILY_STORY, is_cancelled=True)
WIDE_STORY = Story(
    ("acme",),
    {"root": tuple(f"call lone {number}" for number in range(8)), "lone": ()},
    (StoryEvent("acme", "root", "a1" * 16),),
)
DEEP_STORY = Story(
    ("acme",),
    {
        "root": ("call second",),
        "second": ("call third",),
        "third": ("call fourth",),
        "fourth": ("call last",),
        "last": ("one",),
    },
    (StoryEvent("acme", "root", "a1" * 16),),
)
CHILDREN = ("mid", "leaf", "lone", "broken")
ROOTS = ("root", "hurt")


async def test_the_family_ends_as_it_is_told() -> None:
    """The baseline of the tests below: four children in two trees, one of which fails after its recovery."""
    made, state = await end_of(FaultPlan(), story=FAMILY_STORY)
    ends = sorted((run[0], run[2].value, run[3].value) for _, run in state["RUN"])
    assert ends == [
        ("broken", "failed", "partially_compensated"),
        ("hurt", "failed", "partially_compensated"),
        ("leaf", "completed", "not_required:execution_succeeded"),
        ("lone", "completed", "not_required:execution_succeeded"),
        ("mid", "completed", "not_required:execution_succeeded"),
        ("root", "completed", "not_required:execution_succeeded"),
    ]
    assert "settle_child" in made.keyspace.meter.snapshot()


@pytest.mark.case(1)
@ways
@pytest.mark.parametrize("fault", [CommitFault.STOP_AFTER, UNKNOWN], ids=lambda fault: fault.value)
async def test_a_fault_at_every_commit_of_a_family(fault: CommitFault, is_continuing: bool) -> None:
    """RFD 2, "After any process crash"; case 001, "child settle": a child is created once and settled once."""
    names, expected = await commits_of_the_story(is_continuing, FAMILY_STORY)
    for number in range(1, len(names) + 1):
        made, state = await end_of(FaultPlan().at_commit(number, fault), is_continuing, FAMILY_STORY)
        assert made.restart_count == (fault is CommitFault.STOP_AFTER)
        assert state == expected, f"{fault.value} at commit {number}, {names[number - 1]}"
        assert "STALE" not in state, "nobody conflicts with themselves"


@pytest.mark.case(1)
@ways
@pytest.mark.parametrize(
    "faults",
    [
        (NOT_WRITTEN,),
        (UNKNOWN, CommitFault.NOT_COMMITTED),
        (UNKNOWN, CommitFault.TRANSACTION_TOO_OLD),
        (UNKNOWN, UNKNOWN, UNKNOWN),
        (NOT_WRITTEN, UNKNOWN, CommitFault.NOT_COMMITTED),
        (UNKNOWN, CommitFault.STOP_BEFORE),
    ],
    ids=lambda faults: "-".join(fault.value for fault in faults),
)
async def test_a_sequence_of_faults_at_what_passes_between_runs(
    faults: tuple[CommitFault, ...], is_continuing: bool
) -> None:
    """Case 001: attempt 1 commits but reports unknown, attempt 2 fails otherwise; the answer is the first commit's."""
    names, expected = await commits_of_the_story(is_continuing, FAMILY_STORY)
    struck = firsts(names) + [number for number, name in enumerate(names, 1) if name == "settle_child"]
    for number in sorted(set(struck)):
        _, state = await end_of(FaultPlan().at_commit(number, *faults), is_continuing, FAMILY_STORY)
        assert state == expected, f"{faults} at commit {number}, {names[number - 1]}"
        assert "STALE" not in state


def _ends(state: dict[str, list[Any]]) -> dict[str, set[str]]:
    ends: dict[str, set[str]] = {}
    for _, run in state.get("RUN", []):
        ends.setdefault(run[0], set()).add(run[2].value)
    return ends


@pytest.mark.case(38)
@ways
async def test_the_server_stops_at_any_commit_and_the_roots_are_cancelled(is_continuing: bool) -> None:
    """Case 038, "kill the dispatcher between levels": a stop after each commit, the roots cancelled, and everything ends."""
    names, _ = await commits_of_the_story(is_continuing, FAMILY_STORY)
    stopped_count = 0
    for number in range(1, len(names) + 1):
        _, state = await end_of(FaultPlan().at_commit(number, CommitFault.STOP_AFTER), is_continuing, CANCELLED_STORY)
        told = f"stop at commit {number}, {names[number - 1]}"
        ends = _ends(state)
        for child in CHILDREN:
            assert ends.get(child, set()) <= {"completed", "failed", "cancelled"}, told
        for root in ROOTS:
            assert len(ends[root]) == 1 and ends[root] <= {"completed", "failed", "cancelled"}, told
        stopped_count += ends["root"] == {"cancelled"}
    assert stopped_count > len(names) // 2


@pytest.mark.case(38)
@pytest.mark.parametrize("fault", [CommitFault.STOP_AFTER, UNKNOWN, NOT_WRITTEN], ids=lambda fault: fault.value)
async def test_another_fault_while_the_stop_goes_down(fault: CommitFault) -> None:
    """RFD 2, "a redelivered intent propagates the same one": after the cancellation, each of the commits that follow fails."""
    names, _ = await commits_of_the_story(False, FAMILY_STORY)
    last_lease = max(number for number, name in enumerate(names, 1) if name == "authorize_start")
    for number in (names.index("accept_declaration") + 5, last_lease // 2, last_lease):
        plan = FaultPlan().at_commit(number, CommitFault.STOP_AFTER)
        made, expected = await end_of(plan, story=CANCELLED_STORY)
        assert "propagate_stop" in made.keyspace.meter.snapshot() or number == last_lease
        for after in range(number + 1, made.commit_count + 1):
            plan = FaultPlan().at_commit(number, CommitFault.STOP_AFTER).at_commit(after, fault)
            _, state = await end_of(plan, story=CANCELLED_STORY)
            told = f"{fault.value} at commit {after} after a stop at {number}"
            ends = _ends(state)
            # A stop of the server may let the root's stop reach a run before it has invoked another.
            assert all(ends.get(child, set()) <= _ends(expected).get(child, set()) for child in CHILDREN), told
            assert {name: ends[name] for name in ROOTS} == {name: _ends(expected)[name] for name in ROOTS}, told


@pytest.mark.case(38)
@ways
@pytest.mark.parametrize("story", [WIDE_STORY, DEEP_STORY], ids=["8 in turn", "4 deep"])
async def test_trees_whose_server_stops_at_any_commit(story: Story, is_continuing: bool) -> None:
    """RFD 2, "injecting a stop after every transaction commit": let alone they come to the same, cancelled they all end."""
    names, expected = await commits_of_the_story(is_continuing, story)
    for number in range(1, len(names) + 1):
        told = f"stop at commit {number}, {names[number - 1]}"
        plan = FaultPlan().at_commit(number, CommitFault.STOP_AFTER)
        assert (await end_of(plan, is_continuing, story))[1] == expected, told
        plan = FaultPlan().at_commit(number, CommitFault.STOP_AFTER)
        _, state = await end_of(plan, is_continuing, replace(story, is_cancelled=True))
        ends = _ends(state)
        assert len(ends["root"]) == 1 and ends["root"] <= {"completed", "cancelled"}, told
        assert set().union(*ends.values()) <= {"completed", "cancelled"}, told
