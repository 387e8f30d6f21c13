"""A failing scenario becomes a short one: moves are taken away, then faults, as long as the same rule stays broken.

Moves decide for themselves (`scenario`), so that a move taken away leaves the others as they were.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace

from simulation.play import Played, play
from simulation.scenario import FAULTS_PER_MOVE_MAX, Move, Scenario

__all__ = ["PLAYS_MAX", "shrink", "table"]

PLAYS_MAX = 600
"""Plays of one shrinking; what is left then may still be shortened by hand."""

Player = Callable[[Scenario], Awaitable[Played]]


class _Search:
    """The shortest play so far, and how many more may be tried."""

    def __init__(self, failing: Played, player: Player, plays_max: int) -> None:
        assert failing.broken is not None, "only a failing scenario is shrunk"
        self.best = failing
        self._rule = failing.broken.rule
        self._player = player
        self._left = plays_max

    async def holds(self, moves: tuple[Move, ...]) -> bool:
        """Play with these moves; when the same rule is broken, they are the best from now on."""
        if self._left <= 0:
            return False
        self._left -= 1
        played = await self._player(replace(self.best.scenario, moves=moves))
        if played.broken is None or played.broken.rule != self._rule:
            return False
        self.best = played
        return True


async def shrink(failing: Played, *, player: Player = play, plays_max: int = PLAYS_MAX) -> Played:
    """Return the shortest play found that breaks the same rule as `failing`."""
    search = _Search(failing, player, plays_max)
    count = -1
    while count != _weight(search.best):
        count = _weight(search.best)
        await _take_moves(search)
        await _take_faults(search)
    return search.best


def _weight(played: Played) -> int:
    return sum(1 + len(move.faults) for move in played.scenario.moves)


async def _take_moves(search: _Search) -> None:
    """Take stretches of moves away, long ones first, from the end to the beginning."""
    size = len(search.best.scenario.moves)
    while size > 1:
        size = (size + 1) // 2
        end = len(search.best.scenario.moves)
        while end > 0:
            moves = search.best.scenario.moves
            await search.holds(moves[: max(0, end - size)] + moves[end:])
            end -= size
        if size == 1:
            return


async def _take_faults(search: _Search) -> None:
    for index in range(len(search.best.scenario.moves)):
        for _ in range(FAULTS_PER_MOVE_MAX):
            moves = search.best.scenario.moves
            for without in _without_a_fault(moves[index]):
                if await search.holds((*moves[:index], without, *moves[index + 1 :])):
                    break


def _without_a_fault(move: Move) -> Iterator[Move]:
    for fault in move.faults:
        yield replace(move, faults=tuple(other for other in move.faults if other is not fault))


def table(played: Played) -> str:
    """Return a play as a table of steps for a person."""
    head = f"seed {played.scenario.seed}, {len(played.scenario.moves)} moves"
    if played.broken is not None:
        head += f": {played.broken.rule}"
    rows = [("step", "ms", "move", "what happened")]
    rows += [(str(line.number or ""), str(line.at_ms), line.move, line.happened) for line in played.trace]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [
        f"{step:>{widths[0]}}  {at_ms:>{widths[1]}}  {move:<{widths[2]}}  {happened}"
        for step, at_ms, move, happened in rows
    ]
    return "\n".join([head, *lines])
