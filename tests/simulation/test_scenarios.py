"""Five hundred scenarios: whatever happens, every rule holds after every commit, and in the end everything comes to rest."""

from __future__ import annotations

from collections import Counter

import pytest

from simulation.expected import OUT_OF_REACH, RARE, everything
from simulation.play import play
from simulation.scenario import make_scenario
from simulation.shrink import shrink, table

pytestmark = pytest.mark.xdist_group("scenarios")
"""In one process, so that no block is played twice."""

SCENARIOS = 500
BLOCK = 50
_seen: dict[int, Counter[str]] = {}


async def play_block(block: int) -> Counter[str]:
    """Play a block of seeds once; a failing one is shown as the shortest scenario that still fails."""
    if block not in _seen:
        seen: Counter[str] = Counter()
        for seed in range(block * BLOCK + 1, (block + 1) * BLOCK + 1):
            played = await play(make_scenario(seed))
            if played.broken is not None:
                pytest.fail(table(await shrink(played)), pytrace=False)
            seen.update(played.seen)
        _seen[block] = seen
    return _seen[block]


@pytest.mark.case(1)
@pytest.mark.case(16)
@pytest.mark.case(62)
@pytest.mark.parametrize("block", range(SCENARIOS // BLOCK))
async def test_every_rule_holds_in_every_scenario(block: int) -> None:
    """Cases 001, 016 and 062: unknown commits, stops, lost sessions, late and forged frames leave nothing lost or doubled.

    RFD 2, "These invariants are tested by injecting a stop after every transaction commit and reopening the store".
    One seed again, step by step: `PYTHONPATH=tests python -m simulation play SEED`.
    """
    await play_block(block)


async def test_the_scenarios_meet_every_rare_path() -> None:
    """A simulation that never loses, retries, fails or refuses anything would prove nothing.

    Every edge of every state machine, every kind of history entry and every listed answer must occur, or stand in
    OUT_OF_REACH with the reason.
    """
    seen: Counter[str] = Counter()
    for block in range(SCENARIOS // BLOCK):
        seen.update(await play_block(block))
    never = everything() - set(seen) - set(OUT_OF_REACH) - RARE
    assert not never, f"never met: {sorted(never)}"
    met = set(OUT_OF_REACH) & set(seen)
    assert not met, f"met although listed as out of reach: {sorted(met)}"
