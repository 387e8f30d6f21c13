"""What a process measures, in Prometheus form.

The figures of transitions come from the keyspace's own meter, so an operator and the performance harness read the same
numbers. A service declares its further metrics in one module of its own on `Telemetry.registry`. No label holds an id or a
workspace: their number is not bounded.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from keyspace.store.meter import LATENCY_BOUNDS_MS, Histogram, Meter
from services.runtime.health import Health

__all__ = ["Telemetry", "TransitionCollector", "metrics_route"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_COUNTERS = (
    ("attempts", "attempt_count", "Attempts of transactions begun."),
    ("commits", "commit_count", "Attempts that committed."),
    ("conflicts", "conflict_count", "Attempts that lost against another transaction."),
    ("unknown", "unknown_count", "Attempts whose outcome nobody told."),
    ("failures", "failure_count", "Runs ended by a refusal or an error that is not retried."),
    ("exhausted", "exhausted_count", "Runs given up at the bounds of the retry policy."),
    ("bytes", "size_bytes", "Bytes of committed attempts, as FoundationDB accounts them."),
    ("reads", "read_count", "Reads issued."),
    ("writes", "write_count", "Writes issued."),
)


class TransitionCollector(Collector):
    """Shows a meter's figures by transition name."""

    def __init__(self, meter: Meter) -> None:
        """Read from `meter` whenever somebody asks."""
        self._meter = meter

    def collect(self) -> Iterator[Metric]:
        """Yield one family for each figure."""
        figures = self._meter.snapshot()
        for name, attribute, meaning in _COUNTERS:
            family = CounterMetricFamily(f"ryusen_transition_{name}", meaning, labels=["transition"])
            for transition, figure in figures.items():
                family.add_metric([transition], getattr(figure, attribute))
            yield family
        retries = CounterMetricFamily(
            "ryusen_transition_retries",
            "Attempts to be run again, by the store's error code.",
            labels=["transition", "code"],
        )
        for transition, figure in figures.items():
            for code, count in figure.retries_by_code.items():
                retries.add_metric([transition, str(code)], count)
        yield retries
        for name, attribute, meaning in (
            ("run", "run_latency", "From the first attempt to the answer, retries included."),
            ("commit", "commit_latency", "The commit alone."),
        ):
            latencies = HistogramMetricFamily(f"ryusen_transition_{name}_seconds", meaning, labels=["transition"])
            for transition, figure in figures.items():
                histogram: Histogram = getattr(figure, attribute)
                latencies.add_metric([transition], _buckets(histogram), histogram.sum_ms / 1_000)
            yield latencies


class Telemetry:
    """One process's metrics."""

    def __init__(self, meter: Meter, health: Health, *, role: str, version: str) -> None:
        """Register the figures that every process has.

        Args:
            meter: the keyspace's figures.
            health: readiness and the clock's offset.
            role: what kind of process this is.
            version: its release.
        """
        self.registry = CollectorRegistry()
        self.registry.register(TransitionCollector(meter))
        build = Gauge("ryusen_process_info", "1, with the release.", ["role", "version"], registry=self.registry)
        build.labels(role, version).set(1)
        ready = Gauge("ryusen_process_ready", "Whether the process serves.", registry=self.registry)
        ready.set_function(lambda: float(not health.faults))
        offset = Gauge("ryusen_process_clock_offset_seconds", "The clock against its peers.", registry=self.registry)
        offset.set_function(lambda: health.clock_offset_ms / 1_000)

    def exposition(self) -> bytes:
        """Return the text that Prometheus scrapes."""
        return generate_latest(self.registry)


def metrics_route(telemetry: Telemetry, path: str) -> Route:
    """Return the route that answers `path` with the metrics."""

    async def metrics(_request: Request) -> Response:
        return Response(telemetry.exposition(), media_type=CONTENT_TYPE)

    return Route(path, metrics)


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    bounds = [str(bound / 1_000) for bound in LATENCY_BOUNDS_MS] + ["+Inf"]
    seen = 0
    rows: list[tuple[str, float]] = []
    for bound, count in zip(bounds, histogram.bucket_counts, strict=True):
        seen += count
        rows.append((bound, seen))
    return rows
