"""Places of a session by table, and against a plain count."""

from __future__ import annotations

import random

import pytest
from test_session_core import delivery

from keyspace.records.work import WorkKind
from services.dispatcher.deliveries import Deliveries
from services.dispatcher.held import Held, HeldState, held_item

OPERATIONS = 2_000


def held(number: int, kind: WorkKind = WorkKind.CALLBACK) -> Held:
    return held_item(delivery(kind, f"{number:032x}", number).item, HeldState.ASSIGNED, 0.0, "fulfil")


@pytest.mark.case(13)
@pytest.mark.case(56)
@pytest.mark.parametrize(
    ("capacity", "undo_capacity", "forward", "undo", "free", "undo_free"),
    [
        (2, 0, 0, 0, 2, 2),
        (2, 0, 2, 0, 0, 0),
        (2, 0, 1, 1, 0, 0),
        (2, 1, 0, 0, 2, 3),
        (2, 1, 2, 0, 0, 1),
        (2, 1, 2, 1, 0, 0),
        (2, 1, 0, 1, 2, 2),
        (2, 1, 0, 2, 1, 1),
        (2, 1, 0, 3, 0, 0),
        (2, 1, 1, 1, 1, 1),
        (1, 3, 1, 2, 0, 1),
        (2, 1, 5, 0, 0, 0),
        (2, 3, 4, 0, 0, 1),
        (2, 1, 0, 5, 0, 0),
    ],
)
def test_forward_work_never_has_a_place_that_is_reserved(
    capacity: int, undo_capacity: int, forward: int, undo: int, free: int, undo_free: int
) -> None:
    """Cases 013 and 056: at most the capacity goes forward, at most both is held; a hello may list more than both."""
    kinds = [WorkKind.CALLBACK] * forward + [WorkKind.COMPENSATION] * undo
    deliveries = Deliveries(capacity, undo_capacity, [held(number, kind) for number, kind in enumerate(kinds)])
    assert (deliveries.free_count, deliveries.undo_free_count) == (free, undo_free)


def test_the_kept_counts_are_the_plain_ones() -> None:
    """Seats kept, freed again and taken, deliveries added twice and removed twice: nothing is counted that is not there."""
    rng = random.Random(1)
    deliveries = Deliveries(3, 2, [])
    held_kinds: dict[str, WorkKind] = {}
    kept: dict[str, bool] = {}
    full = 0
    for _ in range(OPERATIONS):
        number, kind = rng.randrange(8), rng.choice([WorkKind.CALLBACK, WorkKind.COMPENSATION, WorkKind.DISCOVERY])
        token = f"{number:032x}"
        action = rng.randrange(4)
        if action == 0:
            kept[token] = kind is WorkKind.COMPENSATION
            deliveries.keep_seat(token, is_undo=kept[token])
        elif action == 1:
            kept.pop(token, None)
            deliveries.free_seat(token)
        elif action == 2:
            kept.pop(token, None)
            held_kinds[token] = kind
            deliveries.add(held(number, kind))
        else:
            assert (deliveries.remove(token) is None) == (held_kinds.pop(token, None) is None)
        undos = sum(kept.values()) + sum(kind is WorkKind.COMPENSATION for kind in held_kinds.values())
        total = len(kept) + len(held_kinds)
        assert deliveries.undo_free_count == max(0, 5 - total)
        assert deliveries.free_count == max(0, min(5 - total, 3 - (total - undos)))
        assert (len(deliveries), {one.request for one in deliveries}) == (len(held_kinds), set(held_kinds))
        full += not deliveries.undo_free_count
    assert 100 < full < OPERATIONS - 100
    deliveries.clear()
    for token in kept:
        deliveries.free_seat(token)
    assert (deliveries.free_count, deliveries.undo_free_count) == (3, 5)
