"""Random worlds under faults: whatever happens, the checks hold, no effect is doubled, and all work comes to an end."""

from __future__ import annotations

import os

import pytest
from simulated_world import Simulation, is_settled

WORLDS = int(os.environ.get("RYUSEN_WORLDS", "40"))
FIRST_SEED = int(os.environ.get("RYUSEN_SEED", "1"))
STEPS = 250
CHECK_EVERY = 50
RARE_WORLDS_MAX = 30


@pytest.mark.case(1)
@pytest.mark.case(16)
@pytest.mark.case(62)
@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + WORLDS))
async def test_a_world_under_faults_keeps_its_promises(seed: int) -> None:
    """Cases 001, 016 and 062: unknown commits, stops, lost sessions and late frames leave nothing lost and nothing doubled.

    Repeat one failing world with RYUSEN_SEED=<seed> RYUSEN_WORLDS=1.
    """
    world = Simulation(seed)
    await world.set_up()
    for number in range(STEPS):
        await world.step()
        if number % CHECK_EVERY == 0:
            await world.check()
    await world.finish()
    await world.check()
    for name, events in world.acknowledged.items():
        keyed = world.submissions[int(name)][1].key is not None
        assert len(events) == 1 or not keyed, f"one key, several events: {name} {events}"
    unsettled = [run for run in await world.runs() if not is_settled(run)]
    assert not unsettled, unsettled[:2]


async def test_the_worlds_reach_the_rare_paths() -> None:
    """A simulation that never loses, retries or fails anything would prove nothing: these must all occur in few worlds."""
    wanted = {
        "completed",
        "failed",
        "pass-lost",
        "attempt-unknown",
        "attempt-not-started",
        "retry-scheduled",
        "step-failed",
        "unwind-ended",
        "compensation-not-required",
        "stop-committed",
        "step-fenced",
        "cancelled",
        "timed_out",
        "compensation-succeeded",
        "compensation-failed",
        "attempt-resolved",
        "retry-authorized",
        "late success of an unknown attempt",
    }
    seen: set[str] = set()
    for seed in range(1_000, 1_000 + RARE_WORLDS_MAX):
        world = Simulation(seed)
        await world.set_up()
        for _ in range(STEPS):
            await world.step()
        await world.finish()
        seen |= await world.paths_taken()
        if wanted <= seen:
            return
    raise AssertionError(f"never reached: {wanted - seen}")
