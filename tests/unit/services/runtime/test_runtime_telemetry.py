"""Metrics: the meter's own numbers, in the form that Prometheus reads."""

from __future__ import annotations

import re

from prometheus_client.parser import text_string_to_metric_families

from keyspace.store.errors import NotCommitted
from keyspace.store.meter import LATENCY_BOUNDS_MS, Meter, TransactionCounts
from services.runtime.health import Health
from services.runtime.telemetry import Telemetry


def test_a_transitions_figures_are_exported_as_they_are() -> None:
    meter = Meter()
    for run_ms in (0.2, 3.0, 20_000.0):
        meter.observe_attempt("accept_event", TransactionCounts(3, 4, 500))
        meter.observe_commit("accept_event", size_bytes=500, commit_ms=1.0, run_ms=run_ms)
    meter.observe_retry("accept_event", NotCommitted(), maybe_committed=False)
    telemetry = Telemetry(meter, Health(500), role="gateway", version="1")
    families = {family.name: family for family in text_string_to_metric_families(telemetry.exposition().decode())}
    values = {
        name: family.samples[0].value
        for name, family in families.items()
        if family.type == "counter" and family.samples
    }
    assert values["ryusen_transition_attempts"] == 3
    assert values["ryusen_transition_commits"] == 3
    assert values["ryusen_transition_conflicts"] == 1
    assert values["ryusen_transition_bytes"] == 1_500
    assert values["ryusen_transition_reads"] == 9
    assert values["ryusen_transition_writes"] == 12
    (retries,) = families["ryusen_transition_retries"].samples
    assert (retries.labels, retries.value) == ({"transition": "accept_event", "code": "1020"}, 1)
    buckets = [s for s in families["ryusen_transition_run_seconds"].samples if s.name.endswith("_bucket")]
    assert len(buckets) == len(LATENCY_BOUNDS_MS) + 1
    assert [s.value for s in buckets] == sorted(s.value for s in buckets)
    assert (buckets[0].value, buckets[-2].value, buckets[-1].value) == (1, 2, 3)
    (total,) = [s for s in families["ryusen_transition_run_seconds"].samples if s.name.endswith("_sum")]
    assert round(total.value, 4) == 20.0032


def test_readiness_is_a_metric() -> None:
    health = Health(500)
    telemetry = Telemetry(Meter(), health, role="gateway", version="1")
    assert b"ryusen_process_ready 1.0" in telemetry.exposition()
    health.is_leaving = True
    assert b"ryusen_process_ready 0.0" in telemetry.exposition()


def test_every_metric_has_a_meaning() -> None:
    text = Telemetry(Meter(), Health(500), role="gateway", version="1").exposition().decode()
    assert not re.search(r"^# HELP \S+ *$", text, re.MULTILINE)
