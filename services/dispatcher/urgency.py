"""Work of a higher priority than a run under way, in lanes that no seat is free for: what sessions yield to.

A run that a session goes on with by itself holds its seat from step to step. So that work of a higher priority, such as what an
operator asked for, does not wait for all those runs to end, the pump looks into the lanes it has no seat for, and while such
work waits there, its sessions leave the next step of what they run to the queue. The seat that comes free so takes that work
first, wherever in its lane it stands (ARCHITECTURE 6, "Continuation").

A look is one snapshot read of a bounded page of each lane, at most ten times a second, and only after something came to those
lanes or left them. What is known here is a hint: a wrong one costs a run one transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from keyspace.limits import PRIORITY_FIRST
from keyspace.queue.claims import Candidate, candidates
from keyspace.tx import Tx
from services.lanes.duebook import LaneOf

__all__ = ["PEEKED_ITEMS", "PEEK_LANES_MAX", "PEEK_MS", "Urgency", "first_urgent", "peek_lanes"]

PEEKED_ITEMS = 64
"""Vested entries of a lane that a look reads; what is urgent behind them is seen as they go."""
PEEK_LANES_MAX = 32
"""Lanes of one application that a look reads."""
PEEK_MS = 100
"""The least time between two looks."""


def first_urgent(found: Iterable[Candidate]) -> int | None:
    """Return how many entries stand before the first whose priority is higher than that of a run under way, or None."""
    return next((place for place, entry in enumerate(found) if entry.priority < PRIORITY_FIRST), None)


async def peek_lanes(tx: Tx, keys: Iterable[LaneOf]) -> dict[LaneOf, int]:
    """Return the lanes in which vested work of a higher priority waits, each with how many entries stand before it."""
    places = {key: first_urgent(await candidates(tx, key.workspace, key.lane, limit=PEEKED_ITEMS)) for key in keys}
    return {key: place for key, place in places.items() if place is not None}


class Urgency:
    """What one pump knows of urgent work that waits for a seat. Times are milliseconds of one monotonic clock."""

    def __init__(self) -> None:
        """Know of nothing."""
        self._waiting: dict[LaneOf, int] = {}
        self._stirred: set[LaneOf] = set()
        self._next_peek_ms = 0.0

    def stirred(self, keys: Iterable[LaneOf]) -> None:
        """Note that entries came to some lanes, or left them: another look may find what the last one did not."""
        self._stirred.update(keys)

    def place_in(self, key: LaneOf) -> int | None:
        """Return how many entries stand before the urgent one of a lane, as the last look saw it; None without one."""
        return self._waiting.get(key)

    def taken(self, key: LaneOf) -> None:
        """Note that a claim was made for the lane's urgent work: whether more waits is for another look to say."""
        if self._waiting.pop(key, None) is not None:
            self._stirred.add(key)

    def is_waited_for(self, serves: Callable[[LaneOf], bool]) -> bool:
        """Return whether urgent work waits in a lane that a session `serves`."""
        return any(serves(key) for key in self._waiting)

    def to_peek(self, full: Iterable[LaneOf], now_ms: float) -> list[LaneOf]:
        """Return which lanes to look into now, of those that are due and have no free seat, at most PEEK_LANES_MAX.

        A lane that is not among `full` has a seat, and the claim sees to it.
        """
        lanes = list(full)
        self._waiting = {key: place for key, place in self._waiting.items() if key in lanes}
        self._stirred.intersection_update(lanes)
        if now_ms < self._next_peek_ms:
            return []
        return [key for key in lanes if key in self._stirred or key in self._waiting][:PEEK_LANES_MAX]

    def peeked(self, keys: Iterable[LaneOf], found: Mapping[LaneOf, int], now_ms: float) -> None:
        """Take in a look into `keys`."""
        for key in keys:
            self._stirred.discard(key)
            self._waiting.pop(key, None)
        self._waiting.update(found)
        self._next_peek_ms = now_ms + PEEK_MS

    def due_in_ms(self, now_ms: float) -> float | None:
        """Return after how long another look is due; None when none is."""
        return max(0.0, self._next_peek_ms - now_ms) if self._stirred or self._waiting else None
