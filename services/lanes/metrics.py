"""What a pump of server lanes measures."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

__all__ = ["LaneMetrics"]


class LaneMetrics:
    """One pump's figures, by kind of work; none carries a workspace."""

    def __init__(self, registry: CollectorRegistry, prefix: str) -> None:
        """Register on `registry`, every name beginning with `prefix`."""

        def counter(name: str, meaning: str, *labels: str) -> Counter:
            return Counter(f"{prefix}_{name}", meaning, labels, registry=registry)

        self.handled = counter("handled", "Transactions of handlers that committed, by kind of work.", "kind")
        self.failures = counter("failures", "Items whose handler failed and that were deferred, by kind.", "kind")
        self.failing = Gauge(f"{prefix}_failing_items", "Items whose last handling failed.", registry=registry)
        self.scans = counter("scans", "Scans of due pointers, by reason.", "reason")
        self.empty_scans = counter("empty_scans", "Scans that found no pointer.")
        self.pointers_cleared = counter("pointers_cleared", "Due pointers cleared.")
        self.shards = Gauge(f"{prefix}_shards", "Shards this process looks after.", registry=registry)
        self.late_seconds = Histogram(
            f"{prefix}_late_seconds",
            "From when an item was due until its handling began, by kind of work.",
            ["kind"],
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
            registry=registry,
        )
