"""What the gateway measures. Endpoints and statuses are few and known; no label holds an id or a workspace."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

__all__ = ["GatewayMetrics"]

BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class GatewayMetrics:
    """One process's API figures."""

    def __init__(self, registry: CollectorRegistry, *, requests: Callable[[], int], streams: Callable[[], int]) -> None:
        """Register on `registry`.

        Args:
            registry: the process's.
            requests: how many requests are worked on now.
            streams: how many streams are open now.
        """
        self.answers = Counter(
            "ryusen_gateway_answers", "Requests answered.", ["endpoint", "status"], registry=registry
        )
        self.refusals = Counter("ryusen_gateway_refusals", "Requests refused, by code.", ["code"], registry=registry)
        self.seconds = Histogram(
            "ryusen_gateway_request_seconds",
            "From a request's head to its answer, its body's arrival included; streams until they begin.",
            ["endpoint"],
            buckets=BOUNDS_S,
            registry=registry,
        )
        open_requests = Gauge("ryusen_gateway_requests_open", "Requests worked on now.", registry=registry)
        open_requests.set_function(lambda: float(requests()))
        open_streams = Gauge("ryusen_gateway_streams_open", "History streams open now.", registry=registry)
        open_streams.set_function(lambda: float(streams()))
