"""What a test plans to go wrong, and when."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

__all__ = ["Incident", "IncidentKind", "Incidents"]

INCIDENTS_MAX = 10_000
"""Planned incidents that have not happened yet."""


class IncidentKind(Enum):
    """What happens while a step's callback runs."""

    LOSE_BEFORE = auto()
    """The worker's process is killed when the start has reached it and the callback has done nothing."""
    LOSE_AFTER = auto()
    """The worker's process is killed when the callback has done everything and its result is not sent."""
    CUT_OFF = auto()
    """The worker's connection breaks; the callback goes on, and its result is kept."""
    TIME_OUT = auto()
    """The callback takes longer than its attempt's timeout."""


@dataclass(frozen=True)
class Incident:
    """One incident, at the next start of a step.

    Attributes:
        kind: what happens.
        step_id: during which step.
        function: of which function; of any when None.
    """

    kind: IncidentKind
    step_id: str
    function: str | None = None


class Incidents:
    """The incidents that are planned and have not happened."""

    def __init__(self) -> None:
        """Plan nothing."""
        self._planned: list[Incident] = []

    def plan(self, incident: Incident) -> None:
        """Let `incident` happen, once, after those planned before it for the same step."""
        assert len(self._planned) < INCIDENTS_MAX, "more incidents planned than a test can mean"
        self._planned.append(incident)

    def take(self, function: str, step_id: str) -> IncidentKind | None:
        """Return what happens to a callback that starts now; it will not happen again."""
        for incident in self._planned:
            if incident.step_id == step_id and incident.function in (None, function):
                self._planned.remove(incident)
                return incident.kind
        return None

    @property
    def left(self) -> list[Incident]:
        """Those that have not happened."""
        return list(self._planned)
