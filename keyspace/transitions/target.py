"""A target in either direction: a step going forward, or a completed step being undone.

Starting, losing and taking back an attempt mean the same in both directions; only the table differs that the step moves by,
and the word that history carries.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from keyspace.lifecycle import COMPENSATION as COMPENSATION_TABLE
from keyspace.lifecycle import STEP as STEP_TABLE
from keyspace.lifecycle import CompensationEvent, Phase, StepEvent, advance
from keyspace.records.run import StepRecord
from keyspace.records.work import Direction

__all__ = ["PHASES", "attempt_entry", "move_target"]

Move = Literal["AUTHORIZED", "NOT_STARTED", "REDELIVERED", "WITHDRAWN", "LOST", "RETRIED", "RETRY_AUTHORIZED"]

PHASES: dict[Direction, frozenset[Phase]] = {
    Direction.FORWARD: frozenset((Phase.RUNNING, Phase.CANCELLING)),
    Direction.COMPENSATION: frozenset((Phase.COMPENSATING,)),
}
"""The phases in which an attempt of a direction may settle."""


def move_target(step: StepRecord, direction: Direction, move: Move) -> StepRecord:
    """Return the step after `move` in a direction."""
    if direction is Direction.FORWARD:
        return msgspec.structs.replace(step, state=advance(STEP_TABLE, step.state, StepEvent[move]))
    state = advance(COMPENSATION_TABLE, step.compensation, CompensationEvent[move])
    return msgspec.structs.replace(step, compensation=state)


def attempt_entry(direction: Direction, **data: Any) -> dict[str, Any]:
    """Return what history says of an attempt; compensation names its direction."""
    return data if direction is Direction.FORWARD else data | {"direction": "compensation"}
