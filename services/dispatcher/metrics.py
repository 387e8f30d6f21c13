"""What the dispatcher measures."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from services.lanes.metrics import LaneMetrics

__all__ = ["DispatcherMetrics"]


class DispatcherMetrics:
    """One process's dispatch figures; none carries a workspace, an application or an id."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register on `registry`."""

        def counter(name: str, meaning: str, *labels: str) -> Counter:
            return Counter(f"ryusen_dispatch_{name}", meaning, labels, registry=registry)

        self.lanes = LaneMetrics(registry, "ryusen_lanes")
        self.sessions = Gauge("ryusen_dispatch_sessions", "Worker sessions that stand.", registry=registry)
        self.held = Gauge("ryusen_dispatch_held", "Deliveries held by the sessions.", registry=registry)
        self.sessions_ended = counter("sessions_ended", "Sessions that ended, by reason.", "reason")
        self.hellos_refused = counter("hellos_refused", "Hellos refused, by code.", "code")
        self.leased = counter("leased", "Items leased, by kind.", "kind")
        self.stuck = counter("stuck_deliveries", "Items leased after ten losses or more in a row.")
        self.assigned = counter("assigned", "Assignments sent.")
        self.authorized = counter("authorized", "Starts authorized, by verdict.", "verdict")
        self.settled = counter("settled", "Settlements answered, by kind and verdict.", "kind", "verdict")
        self.settle_failures = counter("settle_failures", "Settlements that failed and got no answer, by kind.", "kind")
        self.renewals = counter("renewals", "Leases renewed or found lost, by outcome.", "outcome")
        self.given_back = counter("given_back", "Deliveries that workers gave back.")
        self.not_started = counter("not_started", "Authorized attempts proven never to have begun.")
        self.losses = counter("losses", "Leases lost, by what came of it.", "outcome")
        self.scans = counter("scans", "Scans of due pointers, by reason.", "reason")
        self.empty_scans = counter("empty_scans", "Scans that found nothing due.")
        self.claims = counter("claims", "Claims tried, by whether they leased anything.", "outcome")
        self.claim_failures = counter("claim_failures", "Claims that failed on one item, which was deferred.")
        self.pointers_cleared = counter("pointers_cleared", "Due pointers cleared.")
        self.recovery_failures = counter("recovery_failures", "Expired leases whose recovery failed.")
        self.ready_to_lease_seconds = Histogram(
            "ryusen_dispatch_ready_to_lease_seconds",
            "From when an item could be leased until it was.",
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
            registry=registry,
        )
