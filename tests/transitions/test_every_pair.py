"""Every two things that can happen to a run, at once: one serial order explains what came of them.

The second reads, is held up while the first commits, and then commits or decides again. What both were told, and what the
whole keyspace came to, must be what the two come to one after the other in one of the two orders.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from final_state import final_state
from straits import ACTS, PREPARATIONS, TIMEOUT_MS, Scene, Strait, fork, prepare, scene_now, told_by
from world import World

from keyspace.layout import ITEM, RUN, identify
from keyspace.lifecycle import Phase

SEEDS_PER_STRAIT = 46
"""23 straits: 1,058 seeds in all."""
ROUNDS = 2
"""Races in a row: the second one meets what the first has left."""


async def standing(world: World) -> Any:
    """Return what the world amounts to, without what is drawn and without instants."""
    stored = await world.dump()
    found = [(leaf, value) for key, value in stored.items() for leaf, _ in [identify(key) or (None, ())]]
    items = [ITEM.codec.decode(value) for leaf, value in found if leaf is ITEM]
    runs = [RUN.codec.decode(value) for leaf, value in found if leaf is RUN]
    work = [
        (item.kind, item.target, item.step_id or "", item.state, item.ordinal, item.generation, item.loss_count)
        for item in items
    ]
    stops = [(run.run_id, run.stop and run.stop.reason, run.deadline_at_ms) for run in runs]
    return final_state(stored), sorted(work), stops


async def raced(strait: Strait, rounds: list[tuple[str, str]], later_ms: int) -> tuple[list[Any], World]:
    """Race each pair and return what was told and came of it."""
    world, store = fork(strait, 1, later_ms=later_ms)
    scene, ways = strait.scene, []
    for first, second in rounds:
        told: list[Any] = []

        async def interrupt(first: str = first, scene: Scene = scene, told: list[Any] = told) -> None:
            told.append(await told_by(ACTS[first], world, scene))

        store.interruption = interrupt
        answer = await told_by(ACTS[second], world, scene)
        if store.interruption is not None:
            # It was refused before it had anything to commit: it was first.
            store.interruption = None
            await interrupt()
        ways.append((told[0], answer, await standing(world)))
        scene = await scene_now(world, scene)
    return ways, world


async def in_order(strait: Strait, rounds: list[tuple[str, str]], orders: tuple[bool, ...], later_ms: int) -> list[Any]:
    """Let each pair happen one after the other, `orders` saying of each whether the first one is first."""
    world, _ = fork(strait, 2, later_ms=later_ms)
    scene, ways = strait.scene, []
    for (first, second), is_first_first in zip(rounds, orders, strict=True):
        if is_first_first:
            told = await told_by(ACTS[first], world, scene)
            answer = await told_by(ACTS[second], world, scene)
        else:
            answer = await told_by(ACTS[second], world, scene)
            told = await told_by(ACTS[first], world, scene)
        ways.append((told, answer, await standing(world)))
        scene = await scene_now(world, scene)
    return ways


async def explained_by(strait: Strait, rounds: list[tuple[str, str]], ways: list[Any], later_ms: int) -> int:
    """Return how many rounds some serial order explains."""
    orders: tuple[bool, ...] = ()
    for number in range(len(rounds)):
        for is_first_first in (True, False):
            tried = (*orders, is_first_first)
            serial = await in_order(strait, rounds[: number + 1], tried, later_ms)
            if serial[-1] == ways[number]:
                orders = tried
                break
        else:
            return number
    return len(rounds)


@pytest.mark.case(19)
@pytest.mark.parametrize("name", list(PREPARATIONS))
async def test_one_serial_order_explains_every_pair(name: str) -> None:
    """Case 019, RFD 2 ¶3, ¶9, ¶47: every pair in both orders, 1,000 seeds over all straits; Terminal is never left."""
    strait = await prepare(name)
    acts = PREPARATIONS[name][1]
    told: Counter[str] = Counter()
    for seed in range(SEEDS_PER_STRAIT):
        rng = random.Random(f"{name}:{seed}")
        rounds = [(rng.choice(acts), rng.choice(acts)) for _ in range(ROUNDS)]
        later_ms = rng.choice((0, 0, 0, TIMEOUT_MS))
        ways, world = await raced(strait, rounds, later_ms)
        count = await explained_by(strait, rounds, ways, later_ms)
        assert count == ROUNDS, f"seed {seed}, {later_ms} ms later: no order explains {rounds[count]} in {rounds}"
        report_of_first = ways[0][2][0]["RUN"]
        for (place, before), (same_place, after) in zip(report_of_first, ways[-1][2][0]["RUN"], strict=False):
            if place == same_place and before[1] is Phase.TERMINAL:
                assert before == after, f"seed {seed}: an ended run was changed by {rounds}"
        await world.check()
        told.update(repr(way[:2]) for way in ways)
    assert len(told) > 1, "whatever happened, the same was told"
