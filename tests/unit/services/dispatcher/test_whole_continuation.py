"""Continuation on and off come to the same final states and histories, whatever happens on the way.

The SDK's own core and passes, the dispatcher's sessions and the real transitions, over a memory store in virtual time.
"""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import pytest
import ryusen.worker.core as worker_core
from ryusen.worker.replay import ReplayCache
from stories import STORIES, new_app
from transitions.final_state import final_state
from whole_rig import FrameFault, Whole, effects

import keyspace.transitions.declaration as declaration
from keyspace.lifecycle import Execution, Phase
from keyspace.store.fault_plan import CommitFault, FaultPlan, FaultRates
from keyspace.store.runner import RunContext
from services.dispatcher.options import DispatcherOptions

UNKNOWN, NOT_WRITTEN, CONFLICT = (
    CommitFault.UNKNOWN_COMMITTED,
    CommitFault.UNKNOWN_NOT_COMMITTED,
    CommitFault.NOT_COMMITTED,
)
State = dict[str, list[Any]]
TROUBLED_FRAMES = 200
"""Frames that may meet faults; a run that is not over by then goes on undisturbed."""
RATES = FaultRates(commit={UNKNOWN: 0.05, NOT_WRITTEN: 0.05, CONFLICT: 0.05, CommitFault.TRANSACTION_TOO_OLD: 0.05})


@pytest.fixture(autouse=True)
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the step limit be met: three steps."""
    monkeypatch.setattr(declaration, "STEPS_MAX", 3)


class RecordingPlan(FaultPlan):
    """Strikes nothing and remembers which transition each commit was."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def next_commit(self, run: RunContext | None) -> CommitFault | None:
        assert run is not None
        self.names.append(run.name)
        return None


async def told(story: str, *, continues: bool = True, **given: Any) -> tuple[Whole, State]:
    """Take one run of a story to its end, check what is left, and return it."""
    whole = Whole(new_app(story), options=DispatcherOptions(continues=continues), **given)
    await whole.world.begin()
    await whole.world.start_run()
    await whole.to_the_end()
    await whole.world.check()
    assert set(effects.values()) <= {1}, f"an attempt ran twice: {effects}"
    return whole, final_state(await whole.world.dump())


@pytest.mark.parametrize("story", STORIES)
async def test_both_ways_come_to_the_same(story: str) -> None:
    """ARCHITECTURE 6: the kinds, items, attempts and history entries all still exist; only the round trips are gone."""
    _, expected = await told(story, continues=False)
    whole, state = await told(story)
    assert state == expected
    assert ("Resume" in whole.frames) == (story == "telling")
    (run,) = await whole.world.runs()
    assert run.phase is Phase.TERMINAL
    failed = story in ("uncaught", "odd_output")
    assert run.execution is (Execution.FAILED if failed else Execution.COMPLETED)


SWEPT = ("retried", "caught", "refused", "changed", "telling")
"""Stories whose every frame and commit meets every fault; between them they meet every kind of answer."""


async def expected_of(story: str) -> State:
    """Return what an undisturbed run through the queue comes to."""
    _, state = await told(story, continues=False)
    return state


@pytest.mark.case(71)
@pytest.mark.parametrize("fault", FrameFault, ids=lambda fault: fault.name.lower())
@pytest.mark.parametrize(("story", "continues"), [*((story, True) for story in SWEPT), ("retried", False)])
async def test_a_fault_at_every_frame(story: str, fault: FrameFault, continues: bool) -> None:
    """Case 071: the session is lost, or a frame lost, repeated, delayed or overtaken, at each frame in turn."""
    expected = await expected_of(story)
    undisturbed, _ = await told(story, continues=continues)
    for number in range(1, len(undisturbed.frames) + 1):
        whole, state = await told(story, continues=continues, frame_faults={number: fault})
        assert state == expected, f"{fault.value} at frame {number}, {undisturbed.frames[number - 1]}: {whole.frames}"


@pytest.mark.case(1)
@pytest.mark.parametrize(
    "faults",
    [
        (CommitFault.STOP_AFTER,),
        (UNKNOWN,),
        (NOT_WRITTEN,),
        (UNKNOWN, CONFLICT),
        (UNKNOWN, UNKNOWN),
    ],
    ids=lambda faults: "-".join(fault.value for fault in faults),
)
@pytest.mark.parametrize("story", SWEPT)
async def test_a_fault_at_every_commit(story: str, faults: tuple[CommitFault, ...]) -> None:
    """Case 001: a stop, or an unknown result of either face, at each commit of a run that goes on by itself."""
    expected = await expected_of(story)
    plan = RecordingPlan()
    await told(story, plan=plan)
    assert "continue_run" in plan.names
    for number in range(1, len(plan.names) + 1):
        whole, state = await told(story, plan=FaultPlan().at_commit(number, *faults))
        assert whole.stops == (faults[0] is CommitFault.STOP_AFTER)
        assert state == expected, f"{faults} at commit {number}, {plan.names[number - 1]}"
        assert "STALE" not in state, "nobody conflicts with themselves"


@pytest.mark.case(34)
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("story", SWEPT)
async def test_many_faults_at_once(story: str, seed: int) -> None:
    """Case 034 in small: frames and commits meet faults again and again, drawn from the seed."""
    expected = await expected_of(story)
    rng = random.Random(f"{story}:{seed}")
    faults = {number: rng.choice(list(FrameFault)) for number in range(1, TROUBLED_FRAMES) if rng.random() < 0.1}
    whole, state = await told(story, plan=FaultPlan(rng.randrange(2**31), RATES), frame_faults=faults)
    assert state == expected, (faults, whole.frames)


@pytest.mark.parametrize("continues", [True, False], ids=["continuing", "queued"])
@pytest.mark.parametrize("story", STORIES)
async def test_a_worker_that_keeps_no_replays_comes_to_the_same(
    story: str, continues: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replay cache is only a cache: evicted at once, every assignment is asked for again in full."""
    expected = await expected_of(story)
    monkeypatch.setattr(worker_core, "ReplayCache", partial(ReplayCache, runs_max=0))
    whole, state = await told(story, continues=continues)
    assert state == expected
    assert continues or story == "empty" or "NeedReplay" in whole.frames
