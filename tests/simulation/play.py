"""Playing a scenario: its moves one after the other, then the end; and what came of it."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from simulation import callers, hostile, machinery
from simulation.coverage import edges_noticed
from simulation.ending import Tell, finish
from simulation.maker import Maker
from simulation.model import Broken
from simulation.scenario import Draws, Kind, Move, Scenario
from simulation.world import World, as_broken

__all__ = ["Played", "TraceLine", "play"]

MAKERS: Mapping[Kind, Maker] = {**callers.MAKERS, **machinery.MAKERS, **hostile.MAKERS}


@dataclass(frozen=True)
class TraceLine:
    """One step as a person reads it."""

    number: int
    at_ms: int
    move: str
    happened: str


@dataclass
class Played:
    """What came of a scenario.

    Attributes:
        scenario: what was played.
        broken: the first rule that was found broken, or None.
        trace: the steps, as far as it was played.
        digest: of the trace and of everything written: equal for equal scenarios.
        seen: rare things, counted.
        commits: how many transactions landed.
    """

    scenario: Scenario
    broken: Broken | None = None
    trace: list[TraceLine] = field(default_factory=list)
    digest: str = ""
    seen: Counter[str] = field(default_factory=Counter)
    commits: int = 0


async def play(scenario: Scenario) -> Played:
    """Play a scenario to its end, or to the first rule that does not hold."""
    world = World(scenario.seed)
    played = Played(scenario, seen=world.seen)
    begun_ms = world.clock.now_ms()

    def tell(number: int, move: str, happened: str) -> None:
        notes = "; ".join(part for part in (happened, *world.notes, *world.faults.struck) if part)
        played.trace.append(TraceLine(number, world.clock.now_ms() - begun_ms, move, notes))
        world.notes.clear()

    with edges_noticed(world.seen):
        try:
            await world.set_up()
            for move in scenario.moves:
                await _step(world, move, tell)
                if world.broken:
                    break
            if not world.broken:
                await finish(world, tell)
        finally:
            world.tear_down()
    if world.broken:
        played.broken = world.broken[0]
        tell(0, "", f"BROKEN {world.broken[0].rule}: {world.broken[0].sentence}")
    text = "\n".join(f"{line.number} {line.at_ms} {line.move} {line.happened}" for line in played.trace)
    played.digest = hashlib.sha256(f"{text}\n{world.engine.digest}".encode()).hexdigest()
    played.commits = world.engine.commit_count
    return played


async def _step(world: World, move: Move, tell: Tell) -> None:
    world.ids.begin(world.seed, move.number)
    world.faults.arm(move.faults)
    draws = Draws(world.seed, str(move.number))
    happened = ""
    try:
        happened = await MAKERS[move.kind](world, draws)
        await _calm(world)
    except Exception as error:  # noqa: BLE001 - whatever it is, nothing expected it, and the trace tells of it
        world.broken.append(as_broken(error))
    tell(move.number, move.text, happened)


async def _calm(world: World) -> None:
    """End the move: its faults are over, and what nobody has an end of is forgotten."""
    world.faults.arm(())
    world.forget_gone()
    await world.check_sometimes()
