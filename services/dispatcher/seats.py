"""Who gets the next work: the newest release's sessions, among them the one with the most free places, one place at a time."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Generic, NamedTuple, TypeVar

__all__ = ["Place", "Seats", "choose_by_release", "choose_seats"]

S = TypeVar("S")


class Place(NamedTuple, Generic[S]):
    """A session, how many more deliveries it may hold, and the position of its release; empty for one without."""

    session: S
    free_count: int
    position: str = ""


class Seats(NamedTuple, Generic[S]):
    """The seats of a claim: those of the preferred release, and those of older ones, which first yield a moment."""

    preferred: list[S]
    older: list[S]


def choose_seats(places: Iterable[Place[S]], limit: int) -> list[S]:
    """Return at most `limit` seats, a session as often as it gets one; the freest first, ties in the order given.

    Args:
        places: sessions that serve the lane and take work.
        limit: seats wanted, at least 0.
    """
    # The order is unique, so that sessions themselves are never compared.
    free = [place for place in places if place.free_count > 0]
    heap = [(-place.free_count, order, place.session) for order, place in enumerate(free)]
    heapq.heapify(heap)
    chosen: list[S] = []
    turn = len(heap)
    while heap and len(chosen) < limit:
        negative_free, _, session = heapq.heappop(heap)
        chosen.append(session)
        if negative_free < -1:
            # Behind those as free as it is now: equal sessions take turns.
            heapq.heappush(heap, (negative_free + 1, turn, session))
            turn += 1
    return chosen


def choose_by_release(places: Iterable[Place[S]], newest: str, limit: int) -> Seats[S]:
    """Return at most `limit` seats, the greatest position first, then the freest session (RFD 2, "Among eligible live groups").

    Args:
        places: sessions that pass the hard filters and take work.
        newest: the greatest position of any live release that does; unversioned sessions come last.
        limit: seats wanted, at least 0.
    """
    by_position: dict[str, list[Place[S]]] = {}
    for place in places:
        by_position.setdefault(place.position, []).append(place)
    preferred: list[S] = []
    older: list[S] = []
    for position in sorted(by_position, reverse=True):
        seats = choose_seats(by_position[position], limit - len(preferred) - len(older))
        (preferred if position >= newest else older).extend(seats)
    return Seats(preferred, older)
