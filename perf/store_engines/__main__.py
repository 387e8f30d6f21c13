"""Compare the engines under the embedded store: `python -m perf.store_engines`. Prints a table and takes about a minute.

The engines take turns in short slices of one run, because a machine's disk and neighbours change from minute to minute:
the ratio in a row means something, a figure from another day does not.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from keyspace.clock import SystemClock
from keyspace.store.embedded import EmbeddedStore
from keyspace.store.embedded_commit import Changes, Serializer
from keyspace.store.embedded_committer import ThreadCommitter
from keyspace.store.embedded_format import monotonic_us, prepare
from keyspace.store.embedded_watch import WatchTable
from keyspace.store.engine import Engine
from keyspace.store.lmdb_engine import LmdbEngine
from perf.store_engines.sqlite_engine import SqliteEngine
from perf.store_engines.workload import TRANSACTIONS_A_RUN, drive

ENGINES = ("lmdb", "sqlite")
CONCURRENCIES = (1, 16, 64)
PROCESS_COUNTS = (1, 3)
WORKER_TIMEOUT_S = 120.0


class _NoMarks:
    """Nothing is watched here."""

    def claim(self) -> None:
        return None

    def mark(self, bucket: int, is_watched: bool) -> None:
        return None


class _Mark:
    """This process's own: no other process reads what this one writes."""

    durable_version = 0


def _publish_nothing(changes: Changes) -> None:
    return None


def _open(engine_name: str, folder: Path) -> EmbeddedStore:
    engine: Engine = LmdbEngine(folder) if engine_name == "lmdb" else SqliteEngine(folder)
    clock = SystemClock()
    serializer = Serializer(engine, clock, prepare(engine, monotonic_us(clock)))
    committer = ThreadCommitter(engine, serializer, _publish_nothing, _Mark(), clock)
    return EmbeddedStore(engine_name, engine, committer, WatchTable(engine, _NoMarks()), clock, random.Random(1))


async def _work(arguments: argparse.Namespace) -> None:
    store = _open(arguments.engine, Path(arguments.folder))
    figures = await drive(
        store, process=arguments.process, concurrency=arguments.concurrency, duration_s=arguments.seconds
    )
    await store.close()
    print(json.dumps(vars(figures)))


def _slice(engine: str, processes: int, concurrency: int, seconds: float) -> dict[str, float]:
    """Run one slice in processes of its own and return its figures."""
    with tempfile.TemporaryDirectory() as folder:
        workers = [
            subprocess.Popen(
                [
                    *(sys.executable, "-m", "perf.store_engines", "--engine", engine, "--folder", folder),
                    *("--process", str(index), "--concurrency", str(concurrency), "--seconds", str(seconds)),
                ],
                stdout=subprocess.PIPE,
            )
            for index in range(processes)
        ]
        outputs = [json.loads(worker.communicate(timeout=WORKER_TIMEOUT_S)[0]) for worker in workers]
        file_bytes = max(path.stat().st_size for path in Path(folder).iterdir())
    commit_ms = sorted(ms for output in outputs for ms in output["commit_ms"])
    runs = sum(output["run_count"] for output in outputs)
    return {
        "runs_per_s": sum(output["run_count"] / output["elapsed_s"] for output in outputs),
        "p50_ms": commit_ms[len(commit_ms) // 2],
        "p95_ms": commit_ms[len(commit_ms) * 95 // 100],
        "cpu_us": sum(output["cpu_s"] for output in outputs) / max(1, runs * TRANSACTIONS_A_RUN) * 1e6,
        "file_kb_per_run": file_bytes / max(1, runs) / 1e3,
    }


def _compare(seconds: float, slices: int) -> None:
    print("processes  each  engine   runs/s  tx/s    p50 ms  p95 ms  CPU us/tx  file kB/run  against sqlite")
    for processes in PROCESS_COUNTS:
        for concurrency in CONCURRENCIES:
            rows: dict[str, list[dict[str, float]]] = {engine: [] for engine in ENGINES}
            for _ in range(slices):
                for engine in ENGINES:
                    rows[engine].append(_slice(engine, processes, concurrency, seconds))
            medians = {
                engine: {name: statistics.median(row[name] for row in rows[engine]) for name in rows[engine][0]}
                for engine in ENGINES
            }
            for engine in ENGINES:
                it = medians[engine]
                ratio = it["runs_per_s"] / medians["sqlite"]["runs_per_s"]
                print(
                    f"{processes:9d} {concurrency:5d}  {engine:7s} {it['runs_per_s']:7.0f} "
                    f"{it['runs_per_s'] * TRANSACTIONS_A_RUN:7.0f} {it['p50_ms']:8.2f} {it['p95_ms']:7.2f} "
                    f"{it['cpu_us']:10.0f} {it['file_kb_per_run']:12.1f} {ratio:8.2f}x",
                    flush=True,
                )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m perf.store_engines", description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a slice")
    parser.add_argument("--slices", type=int, default=3, help="slices of each engine in each row")
    for name in ("--engine", "--folder"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    for name in ("--process", "--concurrency"):
        parser.add_argument(name, type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.engine:
        asyncio.run(_work(arguments))
    else:
        _compare(arguments.seconds, arguments.slices)


if __name__ == "__main__":
    main()
