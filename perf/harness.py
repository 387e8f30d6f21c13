"""Run workloads against a local topology and measure them from outside: the load process's clock, /metrics and /proc.

A site is one topology's processes; a slice is one stretch of one workload on it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import httpx
import msgspec
from ryusen import AsyncClient

from perf.app import BELL_VARIABLE, app
from perf.figures import TransitionUse, added, cpu_seconds, machine_seconds, read_transitions, subtract
from perf.load import Spec, Yield
from perf.measurement import Measurement, Pace, Slice, combined
from perf.workloads import Workload
from topology.bootstrap import Access, open_workspace
from topology.launcher import Launcher, WorkerSpec
from topology.ports import HOST
from topology.process import Process
from topology.tables import Role, topology_named

__all__ = [
    "Beside",
    "Site",
    "Variant",
    "grouped",
    "measure_all",
    "measure_slice",
    "open_site",
]

ROOT = Path(__file__).parent.parent
WORKER_CAPACITY = 128
SETTLE_S = 60.0
"""Seconds for what a load began to come to rest after it."""
QUIET_S = 0.2
LOAD_GRACE_S = 60.0
"""Seconds a load process may take beyond its own time."""
PAGE_RUNS = 500
RUNS_MAX = 200_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """What is run: a checkout of the project and settings of its servers.

    Attributes:
        name: how it is called in reports.
        settings: settings of the servers that are not the defaults, by name.
        checkout: the project's folder.
    """

    name: str = "as it is"
    settings: Mapping[str, str] = field(default_factory=dict)
    checkout: Path = ROOT

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which every process finds its packages."""
        return {"PYTHONPATH": os.pathsep.join(str(self.checkout / part) for part in ("", "sdk_py"))}


DEFAULT = Variant()

Beside = Callable[[Launcher], Coroutine[Any, Any, None]]
"""Something that looks at the processes while a load runs."""


async def _nothing(launcher: Launcher) -> None:
    return


@dataclass(frozen=True, slots=True)
class Site:
    """One topology's processes, a workspace on it, and its workers connected."""

    launcher: Launcher
    access: Access
    http: httpx.AsyncClient
    bell: str


async def measure_all(
    workloads: Iterable[Workload], folder: Path, pace: Pace, *, store: str | None = None, variant: Variant = DEFAULT
) -> list[Measurement]:
    """Run each workload in turn; those of one topology that follow each other share its processes.

    Args:
        workloads: rows of the table.
        folder: private; logs and the embedded store.
        pace: how long each is driven.
        store: another store's address.
        variant: what to run.
    """
    found: list[Measurement] = []
    for number, (name, group) in enumerate(grouped(workloads)):
        async with open_site(name, folder / f"{number}-{name}", store=store, variant=variant) as site:
            found += [combined(workload, [await measure_slice(site, workload, pace)]) for workload in group]
    return found


@asynccontextmanager
async def open_site(
    topology: str, folder: Path, *, store: str | None = None, variant: Variant = DEFAULT
) -> AsyncIterator[Site]:
    """Start a topology and give it a workspace; everything is gone when the block ends.

    Args:
        topology: its name.
        folder: private; logs and the embedded store.
        store: another store's address.
        variant: what to run.
    """
    environment = variant.environment
    async with Launcher(
        topology_named(topology), folder, store=store, settings=variant.settings, environment=environment
    ) as launcher:
        await launcher.start_servers()
        access = await open_workspace(launcher, app, f"bench-{folder.name}")
        bell = str(launcher.folder / "bell")
        if launcher.topology.workers:
            await launcher.start_workers(
                WorkerSpec(
                    app="perf.app:app",
                    folder=variant.checkout,
                    key=access.worker_key,
                    capacity=WORKER_CAPACITY,
                    environment={BELL_VARIABLE: bell},
                )
            )
        async with httpx.AsyncClient(timeout=10.0, trust_env=False) as http:
            yield Site(launcher, access, http, bell)


def grouped(workloads: Iterable[Workload]) -> list[tuple[str, list[Workload]]]:
    """Return topologies by name, each with the workloads that follow each other on it."""
    groups: list[tuple[str, list[Workload]]] = []
    for workload in workloads:
        if not groups or groups[-1][0] != workload.topology:
            groups.append((workload.topology, []))
        groups[-1][1].append(workload)
    return groups


async def measure_slice(site: Site, workload: Workload, pace: Pace, *, beside: Beside = _nothing) -> Slice:
    """Drive a workload for a while, wait until the site has come to rest, and return what was measured.

    Args:
        site: where.
        workload: what is offered.
        pace: for how long.
        beside: runs beside the load, such as a profiler; the figures then include what it costs.
    """
    cpu_before, transitions_before = _cpu(site.launcher), await _transitions(site)
    machine_before_s, begun_s = machine_seconds() - _own_seconds(), time.monotonic()
    spec = Spec(
        host=HOST,
        port=int(site.launcher.gateway_url().rpartition(":")[2]),
        workspace=site.access.workspace,
        key=site.access.client_key,
        event=workload.event,
        concurrency=workload.concurrency,
        warm_s=pace.warm_s,
        seconds=pace.seconds,
        keyed=workload.keyed,
        payload_bytes=workload.payload_bytes,
        steps=workload.steps,
        bell=site.bell if workload.awaits_run else None,
        count_max=pace.count_max,
    )
    async with anyio.create_task_group() as group:
        group.start_soon(beside, site.launcher, name="beside")
        result = await _drive(spec)
    await _come_to_rest(site)
    run_ms, completed_count, unfinished = await _runs(site, workload, result)
    cpu_after, transitions_after = _cpu(site.launcher), await _transitions(site)
    cpu_s = {name: round(cpu_after[name] - cpu_before.get(name, 0.0), 3) for name in cpu_after}
    others_s = machine_seconds() - _own_seconds() - machine_before_s - sum(cpu_s.values()) - result.cpu_s
    return Slice(
        result=result,
        run_ms=run_ms,
        completed_count=completed_count,
        unfinished=unfinished,
        transitions=subtract(transitions_after, transitions_before),
        cpu_s=cpu_s,
        others_s=max(0.0, others_s),
        elapsed_s=time.monotonic() - begun_s,
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


async def _come_to_rest(site: Site) -> None:
    """Wait until the servers commit nothing more but their heartbeats, so that costs are whole and not the next one's."""
    with anyio.move_on_after(SETTLE_S):
        before = await _work_count(site)
        while True:
            await anyio.sleep(QUIET_S)
            after = await _work_count(site)
            if after == before:
                return
            before = after


async def _work_count(site: Site) -> float:
    spent = await _transitions(site)
    return sum(use.get("commits", 0.0) for name, use in spent.items() if name not in _TICKING)


_TICKING = frozenset(
    {
        "announce_process",
        "authenticate",
        "check_ready",
        "clear_due_pointer",
        "find_items",
        "look_around",
        "record_high_water",
        "scan_due",
        "scan_lanes",
        "scan_leases",
    }
)
"""Transitions that happen by the clock or only look, under the names of older checkouts too; the others are caused by load."""


async def _runs(site: Site, workload: Workload, result: Yield) -> tuple[list[float], int, int]:
    """Return how long the runs took, how many completed in the window, and how many did not complete."""
    if not workload.awaits_run:
        return [], 0, 0
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
    return latencies, completed_count, unfinished


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


async def _transitions(site: Site) -> TransitionUse:
    """Return the transition counters of all server processes, added up."""
    read: list[TransitionUse] = []
    for role, index in site.launcher.server_slots:
        assert role is not Role.WORKER
        answer = await site.http.get(site.launcher.metrics_url(role, index))
        read.append(read_transitions(answer.raise_for_status().text))
    return added(read)
