"""Declare and settle the steps that the server owns, for the tests of their kinds."""

from __future__ import annotations

from typing import Any

from world import World

from keyspace.queue import claims
from keyspace.records.run import RetryRecord
from keyspace.records.work import ItemRecord, LaneKind, server_lane
from keyspace.transitions.declaration import Declaration, EmissionTerms, TimerTerms
from keyspace.transitions.fire_timer import Fired, fire_timer
from keyspace.transitions.work import Verdict, Work

__all__ = ["ONCE", "due_items", "emission", "emit", "fire", "fire_due", "sleep", "sleep_for"]

ONCE = RetryRecord(attempts=1, initial_ms=0, coefficient=1.0, cap_ms=0)
"""The policy of a step that has no attempts."""


def sleep_for(delay_ms: int, step_id: str = "nap") -> Declaration:
    """Return the declaration of a timer."""
    return Declaration(step_id, ONCE, terms=TimerTerms(delay_ms=delay_ms))


async def sleep(world: World, work: Work, step_id: str = "nap", **terms: Any) -> Verdict:
    """Answer a pass with a timer."""
    return await world.declare(work, step_id, retry=ONCE, terms=TimerTerms(**terms))


def emission(
    step_id: str = "tell", name: str = "order.told", payload: bytes = b'{"n":1}', **correlation: str
) -> Declaration:
    """Return the declaration of an emission."""
    terms = EmissionTerms(event_name=name, payload=payload, correlation=correlation)
    return Declaration(step_id, ONCE, terms=terms)


async def emit(world: World, work: Work, step_id: str = "tell", **terms: Any) -> Verdict:
    """Answer a pass with an emission."""
    given: dict[str, Any] = {"event_name": "order.told", "payload": b'{"n":1}'} | terms
    return await world.declare(work, step_id, retry=ONCE, terms=EmissionTerms(**given))


async def due_items(world: World) -> list[ItemRecord]:
    """Return the vested work of the time lane."""
    lane = server_lane(LaneKind.TIME)
    return await world.read(lambda tx: claims.vested_items(tx, "acme", lane, limit=1_000))


async def fire(world: World, item: ItemRecord) -> Fired:
    """Deliver one timer's work, due or not."""
    return await world.run("fire_timer", lambda tx: fire_timer(tx, "acme", item))


async def fire_due(world: World) -> list[Fired]:
    """Deliver all vested work of the time lane."""
    return [await fire(world, item) for item in await due_items(world)]
