"""Who gets the next work: the session with the most free places first, one place at a time."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Generic, NamedTuple, TypeVar

__all__ = ["Place", "choose_seats"]

S = TypeVar("S")


class Place(NamedTuple, Generic[S]):
    """A session and how many more deliveries it may hold."""

    session: S
    free_count: int


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
