"""What fan-out measures besides its pump."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter

__all__ = ["PREFIX", "FanOutMetrics"]

PREFIX = "ryusen_fanout"


class FanOutMetrics:
    """One process's fan-out figures; none carries a workspace."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register on `registry`."""
        self.candidates = Counter(f"{PREFIX}_candidates", "Candidate bindings evaluated.", registry=registry)
        self.inspected = Counter(f"{PREFIX}_waits_inspected", "Registrations of waits looked at.", registry=registry)
        self.settled = Counter(f"{PREFIX}_waits_settled", "Waits settled by an event.", registry=registry)
        self.completed = Counter(f"{PREFIX}_completed", "Expansions that became Complete.", registry=registry)
