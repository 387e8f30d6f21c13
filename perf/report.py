"""A run of the harness as a record on disk and as a table for people."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
from rich.console import Console
from rich.table import Table

from perf.figures import Summary, percentile
from perf.measurement import Measurement, Pace

__all__ = [
    "PAGE",
    "Before",
    "Report",
    "Scene",
    "look_before",
    "next_path",
    "print_report",
    "scene",
    "summary_lines",
    "write_report",
    "write_summary",
]

RESULTS = Path(__file__).parent / "results"
_NUMBERED = re.compile(r"(\d{3})-.*\.json")
PAGE = Path(__file__).parent / "README.md"
SUMMARY_BEGIN = "<!-- newest result -->"
SUMMARY_END = "<!-- end of newest result -->"
TRANSITIONS_SHOWN = 12
SYNC_PROBES = 40
BLOCK_BYTES = 4_096


class Before(NamedTuple):
    """The machine just before a run: without it no figure can be compared with another day's."""

    load_average: float
    sync_ms: float


def look_before(folder: Path) -> Before:
    """Return the machine's load, and how long a synced write takes in `folder`."""
    latencies_ms = []
    with (folder / "sync-probe").open("wb", buffering=0) as file:
        for _ in range(SYNC_PROBES):
            file.write(os.urandom(BLOCK_BYTES))
            begun_s = time.perf_counter()
            os.fdatasync(file.fileno())
            latencies_ms.append((time.perf_counter() - begun_s) * 1_000)
    return Before(os.getloadavg()[0], percentile(latencies_ms, 0.5))


class Scene(msgspec.Struct, frozen=True, kw_only=True):
    """Where and when something was measured.

    Attributes:
        recorded_at: UTC.
        commit: the project's revision, with a mark when the working tree differed from it.
        cores: processors of the machine.
        machine: kind of processor, kernel.
        python: the interpreter.
        load_average: over the minute before the run, from which other tenants of the machine show.
        sync_ms: how long the disk took to sync one written block just before, the median of many.
        store: the engine under the keyspace.
        pace: how long each workload was driven.
    """

    recorded_at: str
    commit: str
    cores: int
    machine: str
    python: str
    load_average: float
    sync_ms: float
    store: str
    pace: Pace

    def place(self) -> str:
        """Return it in a sentence."""
        return (
            f"Commit {self.commit}, store {self.store}, {self.cores} cores, Python {self.python}, load average "
            f"{self.load_average:.1f} and a disk sync of {self.sync_ms:.2f} ms just before."
        )


class Report(Scene, frozen=True, kw_only=True):
    """Everything one run measured, and where.

    Attributes:
        settings: settings that are not the defaults.
        measurements: one for each workload.
    """

    settings: dict[str, str]
    measurements: list[Measurement]


S = TypeVar("S", bound=Scene)


def scene(kind: type[S], *, store: str, pace: Pace, before: Before, **found: Any) -> S:
    """Return a record of `found` with everything that is known about where it was measured.

    Args:
        kind: of record.
        store: the engine.
        pace: how long each workload was driven.
        before: what `look_before` saw.
        found: the record's own fields.
    """
    return kind(
        recorded_at=datetime.now(UTC).isoformat(timespec="seconds"),
        commit=_commit(),
        cores=os.cpu_count() or 0,
        machine=f"{platform.machine()}, Linux {platform.release()}"
        if platform.system() == "Linux"
        else platform.platform(),
        python=platform.python_version(),
        load_average=before.load_average,
        sync_ms=before.sync_ms,
        store=store,
        pace=pace,
        **found,
    )


def next_path(folder: Path, commit: str) -> Path:
    """Return the next free place for a result: results are numbered in the order in which they were recorded."""
    numbers = [int(match[1]) for path in folder.glob("*.json") if (match := _NUMBERED.fullmatch(path.name))]
    return folder / f"{max(numbers, default=0) + 1:03d}-{commit[:7]}.json"


def write_report(report: Scene, path: Path) -> None:
    """Write the record, readable and stable."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")


def summary_lines(report: Report, name: str) -> list[str]:
    """Return a result as the lines of a table for perf/README.md."""
    lines = [
        f"`results/{name}`. {report.place()} *Others* is how many processors something else kept busy meanwhile.",
        "",
        "| workload | offered | accepted | errors | ack/s | ack p50 / p95 / p99 ms | runs/s | end to end p50 / p95 / p99 ms | others |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for found in report.measurements:
        errors = sum(found.errors.values()) + found.unfinished
        runs = ("", "") if found.run_ms is None else (f"{found.completed_per_s:.1f}", _trio(found.run_ms))
        row = [found.workload.name, str(found.offered), str(found.accepted), str(errors)]
        row += [f"{found.acknowledged_per_s:.0f}", _trio(found.acknowledgement_ms), *runs, f"{found.others_cores:.2f}"]
        lines.append(f"| {' | '.join(row)} |")
    return lines


def write_summary(lines: Sequence[str], page: Path, *, begin: str = SUMMARY_BEGIN, end: str = SUMMARY_END) -> None:
    """Put a result's table between the marks of a page.

    Raises:
        ValueError: the page has no such marks.
    """
    before, begin, rest = page.read_text("utf-8").partition(begin)
    _, end, after = rest.partition(end)
    if not begin or not end:
        raise ValueError(f"{page} has no place for the newest result")
    table = "\n".join(lines)
    page.write_text(f"{before}{begin}\n{table}\n{end}{after}", "utf-8")


def _trio(latency: Summary) -> str:
    return f"{latency.p50:.1f} / {latency.p95:.1f} / {latency.p99:.1f}"


def print_report(report: Report, console: Console) -> None:
    """Show the figures."""
    console.print(
        f"{report.recorded_at}  commit {report.commit}  {report.cores} cores ({report.machine})  Python {report.python}  "
        f"store {report.store}  before: load average {report.load_average:.2f}, disk sync {report.sync_ms:.2f} ms",
        highlight=False,
    )
    console.print(_rates(report.measurements))
    for measurement in report.measurements:
        console.print(_costs(measurement))


def _rates(measurements: Sequence[Measurement]) -> Table:
    table = Table(
        title="Throughput and latency (closed loop; milliseconds; others: processors busy with something else)"
    )
    table.add_column("workload")
    for heading in ("callers", "offered", "accepted", "errors", "a second", "p50", "p95", "p99", "max", "others"):
        table.add_column(heading, justify="right")
    for found in measurements:
        _rate_row(table, f"{found.workload.name}: ack", found, found.acknowledged_per_s, found.acknowledgement_ms)
        if found.run_ms is not None:
            _rate_row(table, f"{found.workload.name}: end to end", found, found.completed_per_s, found.run_ms)
    return table


def _rate_row(table: Table, name: str, found: Measurement, rate: float, latency: Summary) -> None:
    errors = sum(found.errors.values()) + found.unfinished
    figures = (latency.p50, latency.p95, latency.p99, latency.max)
    table.add_row(
        name,
        str(found.workload.concurrency),
        str(found.offered),
        str(found.accepted),
        str(errors),
        f"{rate:.1f}",
        *(f"{figure:.1f}" for figure in figures),
        f"{found.others_cores:.2f}",
    )


def _costs(found: Measurement) -> Table:
    unit = "run" if found.workload.awaits_run else "submission"
    units = max(found.units, 1)
    table = Table(title=f"{found.workload.name}: what one {unit} costs ({found.units} {unit}s)")
    table.add_column("transition or process")
    for heading in ("commits", "conflicts", "bytes", "reads", "writes", "mean ms", "of it commit", "CPU ms"):
        table.add_column(heading, justify="right")
    ranked = sorted(found.transitions.items(), key=lambda item: -item[1].get("attempts", 0.0))
    for name, use in ranked[:TRANSITIONS_SHOWN]:
        shown = [use.get("commits", 0.0) / units, use.get("conflicts", 0.0) / units]
        weights = [use.get(figure, 0.0) / units for figure in ("bytes", "reads", "writes")]
        commits = max(use.get("commits", 0.0), 1.0)
        times_ms = [use.get(figure, 0.0) / commits * 1_000 for figure in ("run_s", "commit_s")]
        weights += times_ms
        table.add_row(name, *(f"{value:.3f}" for value in shown), *(f"{value:.1f}" for value in weights), "")
    totals = [sum(use.get(figure, 0.0) for use in found.transitions.values()) / units for figure in _TOTALS]
    table.add_row("all transitions", *(f"{value:.2f}" for value in totals), "", "", "", style="bold")
    for process, seconds in found.cpu_s.items():
        table.add_row(process, *[""] * 7, f"{seconds / units * 1_000:.2f}")
    table.add_row("(load process)", *[""] * 7, f"{found.load_cpu_s / units * 1_000:.2f}", style="dim")
    return table


_TOTALS = ("commits", "conflicts", "bytes", "reads", "writes")


def _commit() -> str:
    root = Path(__file__).parent.parent

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
        return done.stdout.strip()

    # Results that are about to be recorded are not a change of what was measured.
    is_changed = git("status", "--porcelain", "--untracked-files=no", "--", ":!perf/results")
    return (git("rev-parse", "--short=12", "HEAD") or "unknown") + ("+changes" if is_changed else "")
