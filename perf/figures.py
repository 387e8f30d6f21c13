"""Percentiles, processor time and scraped counters: the arithmetic of the harness."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

__all__ = [
    "TransitionUse",
    "Use",
    "added",
    "cpu_seconds",
    "machine_seconds",
    "percentile",
    "read_transitions",
    "subtract",
    "summary",
]

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
_FAMILIES = {
    "ryusen_transition_attempts": "attempts",
    "ryusen_transition_commits": "commits",
    "ryusen_transition_conflicts": "conflicts",
    "ryusen_transition_bytes": "bytes",
    "ryusen_transition_reads": "reads",
    "ryusen_transition_writes": "writes",
}
_LATENCIES = {"ryusen_transition_run_seconds": "run_s", "ryusen_transition_commit_seconds": "commit_s"}

Use = dict[str, float]
TransitionUse = dict[str, Use]
"""By transition name: attempts, commits, conflicts, bytes, reads, writes; and in seconds, added up over all commits, the
time from a transition's begin to its answer (run_s) and of its commits alone (commit_s)."""


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` (0 to 1) of `values` do not exceed; nan without values."""
    if not values:
        return math.nan
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


@dataclass(frozen=True, slots=True)
class Summary:
    """A distribution in five numbers, in the unit of its values."""

    count: int
    p50: float
    p95: float
    p99: float
    max: float


def summary(values: Sequence[float]) -> Summary:
    """Return the distribution of `values`."""
    ordered = sorted(values)
    shares = [round(percentile(ordered, share), 3) for share in (0.5, 0.95, 0.99, 1.0)]
    return Summary(len(ordered), *shares)


def cpu_seconds(pid: int) -> float:
    """Return the processor time a process has used so far, in user and kernel mode, in seconds; Linux."""
    # The name in brackets may hold anything, so count from its closing bracket.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_A_SECOND


def machine_seconds() -> float:
    """Return the processor time that the whole machine has spent on anything since it started, in seconds; Linux."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = (
        int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    )
    return (user + nice + system + irq + softirq + steal) / _TICKS_A_SECOND


def read_transitions(exposition: str) -> TransitionUse:
    """Return the transition counters in a process's metrics."""
    found: TransitionUse = {}
    for family in text_string_to_metric_families(exposition):
        figure = _FAMILIES.get(family.name) or _LATENCIES.get(family.name)
        if figure is None:
            continue
        for sample in family.samples:
            if sample.name.endswith(("_total", "_sum")):
                found.setdefault(sample.labels["transition"], {})[figure] = sample.value
    return found


def added(uses: Iterable[TransitionUse]) -> TransitionUse:
    """Return what several processes, or stretches of time, counted together."""
    total: TransitionUse = {}
    for use in uses:
        for name, figures in use.items():
            into = total.setdefault(name, {})
            for figure, value in figures.items():
                into[figure] = into.get(figure, 0.0) + value
    return total


def subtract(after: TransitionUse, before: Mapping[str, Use]) -> TransitionUse:
    """Return what was counted between two readings, without transitions that did not occur."""
    spent: TransitionUse = {}
    for name, figures in after.items():
        former = before.get(name, {})
        use = {figure: value - former.get(figure, 0.0) for figure, value in figures.items()}
        if use.get("attempts", 0.0) > 0:
            spent[name] = use
    return spent
