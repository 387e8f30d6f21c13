"""Who gets the next work, by table."""

from __future__ import annotations

import pytest

from services.dispatcher.pump import seats_for_turn
from services.dispatcher.seats import Place, choose_by_release, choose_seats


@pytest.mark.parametrize(
    ("free", "limit", "chosen"),
    [
        ({}, 5, ""),
        ({"a": 0}, 5, ""),
        ({"a": 2}, 0, ""),
        ({"a": 2}, 5, "aa"),
        ({"a": 1, "b": 3}, 2, "bb"),
        ({"a": 1, "b": 3}, 4, "bbab"),
        ({"a": 2, "b": 2}, 4, "abab"),
        ({"a": 2, "b": 2, "c": 2}, 3, "abc"),
        ({"a": -1, "b": 1}, 3, "b"),
    ],
)
def test_the_freest_session_comes_first(free: dict[str, int], limit: int, chosen: str) -> None:
    """ARCHITECTURE 6, "Release choice": then the freest instance; nobody gets more than it has room for (case 013)."""
    seats = choose_seats([Place(name, count) for name, count in free.items()], limit)
    assert "".join(seats) == chosen


def test_sessions_are_never_compared_with_each_other() -> None:
    """A full session before free ones made two of them stand equal in the order, and the claim failed on comparing them."""
    full, first, second = object(), object(), object()
    places = [Place(full, 0), Place(first, 3), Place(second, 2)]
    assert choose_seats(places, 9) == [first, second, first, second, first]


@pytest.mark.parametrize(
    ("free", "waited_for", "seats"),
    [(0, 0, 0), (1, 1, 1), (5, 5, 3), (5, 0, 5), (1, 0, 1), (3, 2, 2), (6, 4, 4), (500, 0, 64), (500, 500, 64)],
)
def test_compensation_never_takes_every_seat_from_forward_work(free: int, waited_for: int, seats: int) -> None:
    """RFD 2, "Compensation work uses a separate": its turn is reserved, and it leaves forward work half of what that can take."""
    assert seats_for_turn(free, waited_for) == seats


@pytest.mark.parametrize(
    ("places", "newest", "limit", "preferred", "older"),
    [
        ([], "", 5, "", ""),
        ([("a", 2, ""), ("b", 1, "")], "", 5, "aba", ""),
        ([("a", 2, "1"), ("b", 2, "2")], "2", 5, "bb", "aa"),
        ([("a", 9, "1"), ("b", 2, "2")], "2", 2, "bb", ""),
        ([("a", 2, "1"), ("b", 0, "2")], "2", 5, "", "aa"),
        ([("a", 2, "1")], "2", 5, "", "aa"),
        ([("a", 1, ""), ("b", 1, "1"), ("c", 1, "2")], "3", 5, "", "cba"),
        ([("a", 1, ""), ("b", 2, "1"), ("c", 3, "1")], "1", 4, "cbcb", ""),
        ([("a", 3, ""), ("b", 1, "1")], "1", 3, "b", "aa"),
    ],
)
def test_the_greatest_position_comes_first_then_the_freest(
    places: list[tuple[str, int, str]], newest: str, limit: int, preferred: str, older: str
) -> None:
    """RFD 2, "Among eligible live groups": by position; the newest may be elsewhere; those without a release come last."""
    seats = choose_by_release([Place(*place) for place in places], newest, limit)
    assert ("".join(seats.preferred), "".join(seats.older)) == (preferred, older)
