"""Run workloads against a local topology and measure them from outside: the load process's clock, /metrics and /proc."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import httpx
import msgspec
from ryusen import AsyncClient

from perf.app import BELL_VARIABLE, app
from perf.figures import Summary, TransitionUse, cpu_seconds, machine_seconds, read_transitions, subtract, summary
from perf.load import Spec, Yield
from perf.workloads import Workload
from topology.bootstrap import Access, open_workspace
from topology.launcher import Launcher, WorkerSpec
from topology.ports import HOST
from topology.process import Process
from topology.tables import Role, topology_named

__all__ = ["Beside", "Measurement", "Pace", "measure_all"]

APP_FOLDER = Path(__file__).parent
WORKER_CAPACITY = 128
SETTLE_S = 60.0
"""Seconds for what a load began to come to rest after it."""
QUIET_S = 0.2
LOAD_GRACE_S = 60.0
"""Seconds a load process may take beyond its own time."""
PAGE_RUNS = 500
RUNS_MAX = 200_000


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


@dataclass(frozen=True, slots=True)
class _Site:
    launcher: Launcher
    access: Access
    http: httpx.AsyncClient
    beside: Beside


Beside = Callable[[Launcher], Coroutine[Any, Any, None]]
"""Something that looks at the processes while a load runs."""


async def _nothing(launcher: Launcher) -> None:
    return


async def measure_all(
    workloads: Iterable[Workload],
    folder: Path,
    pace: Pace,
    *,
    store: str | None = None,
    settings: Mapping[str, str],
    beside: Beside = _nothing,
) -> list[Measurement]:
    """Run each workload in turn; those of one topology that follow each other share its processes.

    Args:
        workloads: rows of the table.
        folder: private; logs and the embedded store.
        pace: how long each is driven.
        store: another store's address.
        settings: further settings of the servers, by name.
        beside: runs beside each load, such as a profiler; the figures then include what it costs.
    """
    found: list[Measurement] = []
    for number, (name, group) in enumerate(_grouped(workloads)):
        place = folder / f"{number}-{name}"
        async with Launcher(topology_named(name), place, store=store, settings=settings) as launcher:
            await launcher.start_servers()
            access = await open_workspace(launcher, app, f"bench-{number}")
            bell = str(launcher.folder / "bell")
            if launcher.topology.workers:
                environment = {BELL_VARIABLE: bell}
                await launcher.start_workers(
                    WorkerSpec(
                        app="perf.app:app",
                        folder=APP_FOLDER.parent,
                        key=access.worker_key,
                        capacity=WORKER_CAPACITY,
                        environment=environment,
                    )
                )
            async with httpx.AsyncClient(timeout=10.0, trust_env=False) as http:
                site = _Site(launcher, access, http, beside)
                found += [await _measure(site, workload, pace, bell) for workload in group]
    return found


def _grouped(workloads: Iterable[Workload]) -> list[tuple[str, list[Workload]]]:
    groups: list[tuple[str, list[Workload]]] = []
    for workload in workloads:
        if not groups or groups[-1][0] != workload.topology:
            groups.append((workload.topology, []))
        groups[-1][1].append(workload)
    return groups


async def _measure(site: _Site, workload: Workload, pace: Pace, bell: str) -> Measurement:
    cpu_before, transitions_before = _cpu(site.launcher), await _transitions(site)
    machine_before_s, begun_s = machine_seconds() - _own_seconds(), time.monotonic()
    port = int(site.launcher.gateway_url().rpartition(":")[2])
    spec = Spec(
        host=HOST,
        port=port,
        workspace=site.access.workspace,
        key=site.access.client_key,
        event=workload.event,
        concurrency=workload.concurrency,
        warm_s=pace.warm_s,
        seconds=pace.seconds,
        keyed=workload.keyed,
        payload_bytes=workload.payload_bytes,
        steps=workload.steps,
        bell=bell if workload.awaits_run else None,
        count_max=pace.count_max,
    )
    async with anyio.create_task_group() as group:
        group.start_soon(site.beside, site.launcher, name="beside")
        result = await _drive(spec)
    await _come_to_rest(site)
    run_ms, completed_per_s, unfinished = await _runs(site, workload, result)
    cpu_after, transitions_after = _cpu(site.launcher), await _transitions(site)
    cpu_s = {name: round(cpu_after[name] - cpu_before.get(name, 0.0), 3) for name in cpu_after}
    others_s = machine_seconds() - _own_seconds() - machine_before_s - sum(cpu_s.values()) - result.cpu_s
    window_s = max(result.window_s, 1e-9)
    runs = len(result.submitted_at_ms)
    return Measurement(
        workload=workload,
        offered=result.offered,
        accepted=result.accepted,
        errors=result.errors,
        window_s=result.window_s,
        acknowledged_per_s=len(result.acknowledgement_ms) / window_s,
        acknowledgement_ms=summary(result.acknowledgement_ms),
        runs=runs,
        completed_per_s=completed_per_s,
        run_ms=run_ms,
        unfinished=unfinished,
        transitions=subtract(transitions_after, transitions_before),
        cpu_s=cpu_s,
        others_cores=round(max(0.0, others_s) / (time.monotonic() - begun_s), 2),
        load_cpu_s=result.cpu_s,
        units=runs if workload.awaits_run else result.accepted,
    )


async def _drive(spec: Spec) -> Yield:
    """Run the load in a process of its own and return what it found."""
    with anyio.fail_after(spec.warm_s + spec.seconds + LOAD_GRACE_S):
        done = await anyio.run_process(
            [sys.executable, "-m", "perf.load"], input=msgspec.json.encode(spec), stderr=subprocess.PIPE, check=False
        )
    if done.returncode != 0:
        raise RuntimeError(f"the load process ended with code {done.returncode}:\n{done.stderr.decode()}")
    return msgspec.json.decode(done.stdout, type=Yield)


async def _come_to_rest(site: _Site) -> None:
    """Wait until the servers commit nothing more but their heartbeats, so that costs are whole and not the next one's."""
    with anyio.move_on_after(SETTLE_S):
        before = await _work_count(site)
        while True:
            await anyio.sleep(QUIET_S)
            after = await _work_count(site)
            if after == before:
                return
            before = after


async def _work_count(site: _Site) -> float:
    spent = await _transitions(site)
    return sum(use.get("commits", 0.0) for name, use in spent.items() if name not in _TICKING)


_TICKING = frozenset(
    {
        "announce_process",
        "authenticate",
        "check_ready",
        "clear_due_pointer",
        "find_fanout",
        "look_around",
        "record_high_water",
        "scan_due",
        "scan_leases",
    }
)
"""Transitions that happen by the clock or only look; the others are caused by load."""


async def _runs(site: _Site, workload: Workload, result: Yield) -> tuple[Summary | None, float, int]:
    """Return how long the runs took, how many completed a second of the window, and how many did not complete."""
    if not workload.awaits_run:
        return None, 0.0, 0
    latencies: list[float] = []
    completed_count, unfinished = 0, 0
    async with site.access.client(site.launcher.gateway_url()) as client:
        async for run in _each_run(client, workload, len(result.submitted_at_ms)):
            sent_at_ms = result.submitted_at_ms.get(run["event"])
            if sent_at_ms is None:
                continue
            if run["status"] != "completed":
                unfinished += 1
                continue
            ended_at_ms = run["terminal_at_ms"]
            completed_count += result.window_begin_ms <= ended_at_ms <= result.window_end_ms
            if ended_at_ms >= result.window_begin_ms:
                # Those that end after the window too: leaving the slow ones out would flatter.
                latencies.append(ended_at_ms - sent_at_ms)
    return summary(latencies), completed_count / max(result.window_s, 1e-9), unfinished


async def _each_run(client: AsyncClient, workload: Workload, count: int) -> AsyncIterator[dict[str, Any]]:
    """Yield the newest runs as the API lists them, `count` of them and a page more at most."""
    cursor: str | None = None
    seen = 0
    while seen < min(count, RUNS_MAX):
        page = await client.runs(limit=PAGE_RUNS, cursor=cursor)
        for run in page.items:
            if run["event_name"] == workload.event:
                yield run
        seen += len(page.items)
        cursor = page.next_cursor
        if cursor is None:
            return


def _own_seconds() -> float:
    return cpu_seconds(os.getpid())


def _cpu(launcher: Launcher) -> dict[str, float]:
    processes: list[Process] = [process for process in launcher.processes if process.is_alive]
    return {process.name: cpu_seconds(process.pid) for process in processes}


async def _transitions(site: _Site) -> TransitionUse:
    """Return the transition counters of all server processes, added up."""
    total: TransitionUse = {}
    for role, index in site.launcher.server_slots:
        assert role is not Role.WORKER
        answer = await site.http.get(site.launcher.metrics_url(role, index))
        for name, use in read_transitions(answer.raise_for_status().text).items():
            into = total.setdefault(name, {})
            for figure, value in use.items():
                into[figure] = into.get(figure, 0.0) + value
    return total
