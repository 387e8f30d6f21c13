"""What a workload measured: slices, one stretch of it each, and the figures made of one slice or several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from perf.figures import Summary, TransitionUse, added, summary
from perf.load import Yield
from perf.workloads import Workload

__all__ = ["Measurement", "Pace", "Slice", "combined"]


@dataclass(frozen=True, slots=True)
class Pace:
    """How long each workload is driven: seconds before anything counts, seconds that count, submissions at most."""

    warm_s: float = 2.0
    seconds: float = 8.0
    count_max: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One workload's figures.

    Attributes:
        workload: its row of the table.
        offered: submissions sent, the warm-up included.
        accepted: submissions acknowledged, the warm-up included.
        errors: by kind.
        acknowledged_per_s: acknowledgements a second of the window.
        acknowledgement_ms: their latency.
        runs: runs that ended, the warm-up included.
        completed_per_s: runs completed a second of the window.
        run_ms: from sending the submission to the run's recorded end; only where runs are awaited.
        unfinished: runs that had not completed when the system had come to rest.
        transitions: what each transition cost in all server processes together, the warm-up included.
        cpu_s: processor seconds by process, the warm-up included.
        load_cpu_s: the load process's own.
        others_cores: processors that the rest of the machine kept busy meanwhile, on average: above a few hundredths, rates and
            latencies are those of a machine that others use too.
        units: what costs are divided by: runs where runs are awaited, else acknowledgements.
    """

    workload: Workload
    offered: int
    accepted: int
    errors: Mapping[str, int]
    window_s: float
    acknowledged_per_s: float
    acknowledgement_ms: Summary
    runs: int
    completed_per_s: float
    run_ms: Summary | None
    unfinished: int
    transitions: TransitionUse = field(default_factory=dict)
    cpu_s: Mapping[str, float] = field(default_factory=dict)
    load_cpu_s: float = 0.0
    others_cores: float = 0.0
    units: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """One stretch of a workload as it was measured: raw latencies, and costs as differences of what was read before and after.

    Attributes:
        result: what the load process found.
        run_ms: the latencies that count, one for each run.
        completed_count: runs that completed within the window.
        unfinished: runs that had not completed when the system had come to rest.
        transitions: what each transition cost in all server processes together.
        cpu_s: processor seconds by process.
        others_s: processor seconds that the rest of the machine spent meanwhile.
        elapsed_s: how long all this took.
    """

    result: Yield
    run_ms: list[float]
    completed_count: int
    unfinished: int
    transitions: TransitionUse
    cpu_s: Mapping[str, float]
    others_s: float
    elapsed_s: float


def combined(workload: Workload, slices: Sequence[Slice]) -> Measurement:
    """Return the figures of a workload from its slices: latencies together, rates over all windows, costs added up."""
    results = [one.result for one in slices]
    window_s = max(sum(result.window_s for result in results), 1e-9)
    acknowledged = [latency for result in results for latency in result.acknowledgement_ms]
    runs = sum(len(result.submitted_at_ms) for result in results)
    accepted = sum(result.accepted for result in results)
    errors = Counter[str]()
    for result in results:
        errors.update(result.errors)
    return Measurement(
        workload=workload,
        offered=sum(result.offered for result in results),
        accepted=accepted,
        errors=dict(errors),
        window_s=window_s,
        acknowledged_per_s=len(acknowledged) / window_s,
        acknowledgement_ms=summary(acknowledged),
        runs=runs,
        completed_per_s=sum(one.completed_count for one in slices) / window_s,
        run_ms=summary([latency for one in slices for latency in one.run_ms]) if workload.awaits_run else None,
        unfinished=sum(one.unfinished for one in slices),
        transitions=added(one.transitions for one in slices),
        cpu_s={name: round(sum(one.cpu_s.get(name, 0.0) for one in slices), 3) for name in slices[0].cpu_s},
        others_cores=round(sum(one.others_s for one in slices) / sum(one.elapsed_s for one in slices), 2),
        load_cpu_s=sum(result.cpu_s for result in results),
        units=runs if workload.awaits_run else accepted,
    )
