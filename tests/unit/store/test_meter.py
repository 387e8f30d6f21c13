"""The figures by transition."""

from __future__ import annotations

import pytest
from scripted_store import ScriptedStore

from keyspace.clock import VirtualClock
from keyspace.store.api import Transaction
from keyspace.store.errors import NotCommitted, error_for_code
from keyspace.store.meter import LATENCY_BOUNDS_MS, NAMES_MAX, OTHER_TRANSITION, Histogram, Meter
from keyspace.store.runner import Runner


async def test_a_run_is_counted_by_attempt_and_by_outcome() -> None:
    """Would catch reads of refused attempts that go uncounted, or bytes of refused attempts counted as committed."""
    clock = VirtualClock()
    store = ScriptedStore(NotCommitted(), error_for_code(1021), None, clock=clock, pause_ms=30.0)
    meter = Meter()

    async def body(_: Transaction, __: int) -> None:
        clock.advance(2.0)

    await Runner(store.as_store(), clock=clock, meter=meter).run("accept_event", body)
    figures = meter.snapshot()["accept_event"]
    assert (figures.attempt_count, figures.commit_count) == (3, 1)
    assert (figures.conflict_count, figures.unknown_count) == (1, 1)
    assert figures.retries_by_code == {1020: 1, 1021: 1}
    assert (figures.read_count, figures.write_count, figures.size_bytes) == (6, 9, 400)
    assert figures.run_latency.sum_ms == 66.0
    assert figures.commit_latency.observation_count == 1


def test_a_snapshot_stands_still() -> None:
    """Would catch an exporter that reads figures while they change."""
    meter = Meter()
    meter.observe_commit("a", size_bytes=10, commit_ms=1.0, run_ms=2.0)
    before = meter.snapshot()
    meter.observe_commit("a", size_bytes=10, commit_ms=1.0, run_ms=2.0)
    meter.observe_retry("a", NotCommitted(), maybe_committed=False)
    assert before["a"].commit_count == 1
    assert before["a"].run_latency.observation_count == 1
    assert before["a"].retries_by_code == {}


def test_names_are_bounded() -> None:
    """Would catch a caller that puts an id into the name and fills the memory with labels."""
    meter = Meter()
    for index in range(NAMES_MAX + 50):
        meter.observe_failure(f"transition-{index}")
    snapshot = meter.snapshot()
    assert len(snapshot) == NAMES_MAX + 1
    assert snapshot[OTHER_TRANSITION].failure_count == 50


@pytest.mark.parametrize(("latency_ms", "bucket"), [(0.0, 0), (0.25, 0), (0.26, 1), (10_000.0, 14), (10_001.0, 15)])
def test_a_latency_falls_into_the_bucket_that_includes_its_bound(latency_ms: float, bucket: int) -> None:
    """Would catch buckets that are off by one against Prometheus's `le`."""
    histogram = Histogram()
    histogram.observe(latency_ms)
    assert histogram.bucket_counts.index(1) == bucket


def test_quantiles_are_bucket_bounds() -> None:
    """Would catch a quantile read from the wrong side of the distribution."""
    histogram = Histogram()
    assert histogram.quantile_ms(0.5) == 0.0
    for latency_ms in [1.0] * 98 + [40.0, 20_000.0]:
        histogram.observe(latency_ms)
    assert histogram.quantile_ms(0.5) == 1
    assert histogram.quantile_ms(0.99) == 50
    assert histogram.quantile_ms(1.0) == float("inf")
    assert list(LATENCY_BOUNDS_MS) == sorted(LATENCY_BOUNDS_MS)
