"""What fan-out measures."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

__all__ = ["FanOutMetrics"]


class FanOutMetrics:
    """One process's fan-out figures; none carries a workspace."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register on `registry`."""
        self.chunks = Counter("ryusen_fanout_chunks", "Chunks of expansions committed.", registry=registry)
        self.candidates = Counter("ryusen_fanout_candidates", "Candidate bindings evaluated.", registry=registry)
        self.completed = Counter("ryusen_fanout_completed", "Expansions that became Complete.", registry=registry)
        self.failures = Counter("ryusen_fanout_failures", "Chunks that failed and were deferred.", registry=registry)
        self.failing = Gauge("ryusen_fanout_failing_items", "Items whose last chunk failed.", registry=registry)
        self.scans = Counter("ryusen_fanout_scans", "Scans of due pointers, by reason.", ["reason"], registry=registry)
        self.empty_scans = Counter("ryusen_fanout_empty_scans", "Scans that found no pointer.", registry=registry)
        self.pointers_cleared = Counter("ryusen_fanout_pointers_cleared", "Due pointers cleared.", registry=registry)
        self.shards = Gauge("ryusen_fanout_shards", "Shards this process looks after.", registry=registry)
        self.wait_seconds = Histogram(
            "ryusen_fanout_wait_seconds",
            "From when an item was ready until its first chunk began.",
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
            registry=registry,
        )
