"""What each transition of a three-step run costs in processor time: `python -m perf.transitions [--against FOLDER]`.

One process, no services: the keyspace over the memory engine, or over LMDB in a folder on a memory file system, so that no
sync is waited for. With `--against`, another checkout's keyspace runs the same in a process of its own and the two take
turns in short slices: on a shared machine only the ratio of neighbouring slices means something.

With `--each` above 1 many runs are under way at once, each in a workspace of its own, and with `--processes` in several
processes on one LMDB folder. Then only whole runs are told apart, and the time between two of them.
"""

# Only the standard library and `keyspace` are imported here: the other checkout's process runs this very file.
from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from keyspace.clock import SystemClock
from keyspace.keyspace import Keyspace
from keyspace.opening import open_keyspace
from keyspace.queue import claims
from keyspace.queue.items import Seat
from keyspace.records.run import RetryRecord
from keyspace.records.work import ItemRecord, LaneKind, application_lane, server_lane
from keyspace.store.embedded import memory_store, open_embedded
from keyspace.transitions.accept_declaration import Declaration
from keyspace.transitions.accept_event import Submission, accept_event
from keyspace.transitions.activate_routing import activate_routing
from keyspace.transitions.continue_run import Completion, answer_pass, continue_run
from keyspace.transitions.create_workspace import create_workspace
from keyspace.transitions.expand_event import expand_event
from keyspace.transitions.hold import Hold
from keyspace.transitions.lease_items import lease_items
from keyspace.transitions.open_session import open_session
from keyspace.transitions.publish_manifest import FunctionSpec, ManifestSpec, TriggerSpec, publish_manifest
from keyspace.transitions.work import Work
from keyspace.tx import Tx

T = TypeVar("T")

STORES = ("memory", "lmdb")
MEMORY_FOLDER = Path("/dev/shm")
APPLICATION, FUNCTION, EVENT = "orders", "fulfil", "order.placed"
STEPS = 3
LEASE_MS = 15_000
VALUE_BYTES_MAX = 262_144
INPUT, VALUE, OUTPUT = b'{"a":1}' * 20, b'"value"' * 10, b'"ok"'
RETRY = RetryRecord(attempts=3, initial_ms=1000, coefficient=2.0, cap_ms=60_000)
WARM_RUNS = 60

Figures = dict[str, float]
"""Microseconds of processor time a run, by transition; `run` is all of it, the event loop's included; `ms` is wall time a run."""


class Bench:
    """A workspace with one application and one session, and what its transitions have cost since the last look."""

    def __init__(self, keyspace: Keyspace, workspace: str, *, is_alone: bool) -> None:
        self.keyspace = keyspace
        self.workspace = workspace
        self.is_alone = is_alone
        self.instance = "ab" * 16
        self.spent_ns: dict[str, int] = {}

    async def timed(self, name: str, body: Callable[[Tx], Awaitable[T]]) -> T:
        if not self.is_alone:
            # Others' work would be counted here, and looking at the clock of a process with threads is a system call.
            return await self.keyspace.transact(name, body)
        # All threads' time: the embedded store commits to a file in one of its own.
        started_ns = time.process_time_ns()
        value = await self.keyspace.transact(name, body)
        self.spent_ns[name] = self.spent_ns.get(name, 0) + time.process_time_ns() - started_ns
        return value

    def seat(self) -> Seat:
        return Seat("s1", self.instance, "r1", self.keyspace.mint())

    async def prepare(self) -> None:
        manifest = ManifestSpec(APPLICATION, (FunctionSpec(FUNCTION, (TriggerSpec(EVENT, "b1"),)),))
        transact = self.keyspace.transact
        await transact("prepare", lambda tx: create_workspace(tx, self.workspace))
        await transact("prepare", lambda tx: publish_manifest(tx, self.workspace, manifest, published_by="k"))
        await transact("prepare", lambda tx: activate_routing(tx, self.workspace, {APPLICATION: 1}, activated_by="k"))
        await transact(
            "prepare",
            lambda tx: open_session(
                tx,
                self.workspace,
                instance_id=self.instance,
                application=APPLICATION,
                session="s1",
                release="r1",
                connection=1,
            ),
        )

    async def run(self) -> None:
        """Take one run from its submission to its completion."""
        await self._submit()
        item = await self._start()
        for number in range(1, STEPS + 1):
            item = await self._go_on(item, number)
        assert item is None, "the run has not completed"

    async def _submit(self) -> None:
        event_id = self.keyspace.mint()
        submission = Submission(EVENT, INPUT, {}, None, None)
        await self.timed(
            "accept_event", lambda tx: accept_event(tx, self.workspace, submission, event_id=event_id, accepted_by="k")
        )
        lane = server_lane(LaneKind.FANOUT)
        vested = await self.timed("find_items", lambda tx: claims.vested_items(tx, self.workspace, lane, limit=1))
        await self.timed("expand_event", lambda tx: expand_event(tx, self.workspace, event_id, vested[0].item_id))

    async def _start(self) -> ItemRecord | None:
        seats, lane = [self.seat()], application_lane(APPLICATION, FUNCTION)
        deliveries = await self.timed(
            "lease_items", lambda tx: lease_items(tx, self.workspace, lane, seats, lease_ms=LEASE_MS, tried={})
        )
        work, hold, declared = _work(deliveries[0].item), Hold(self.seat(), LEASE_MS), Declaration("step-1", RETRY)
        _, item = await self.timed(
            "answer_pass",
            lambda tx: answer_pass(tx, self.workspace, work, declared, hold=hold, value_bytes_max=VALUE_BYTES_MAX),
        )
        return item

    async def _go_on(self, item: ItemRecord | None, number: int) -> ItemRecord | None:
        assert item is not None, "the session's next work was not authorized"
        work, hold = _work(item), Hold(self.seat(), LEASE_MS)
        ending = Declaration(f"step-{number + 1}", RETRY) if number < STEPS else Completion(OUTPUT)
        continued = await self.timed(
            "continue_run",
            lambda tx: continue_run(
                tx, self.workspace, work, VALUE, ending, hold=hold, value_bytes_max=VALUE_BYTES_MAX
            ),
        )
        return continued.following


def _work(item: ItemRecord) -> Work:
    return Work(item.kind, item.target, item.step_id, item.item_id, item.token or "", item.generation)


async def _slice(benches: list[Bench], runs: int) -> Figures:
    """Take `runs` runs through, shared by the benches, and return what one has cost."""

    async def drive(bench: Bench) -> None:
        bench.spent_ns.clear()
        for _ in range(max(1, runs // len(benches))):
            await bench.run()

    started_ns, started_s = time.process_time_ns(), time.perf_counter()
    await asyncio.gather(*map(drive, benches))
    spent_us, elapsed_ms = (time.process_time_ns() - started_ns) / 1e3, (time.perf_counter() - started_s) * 1e3
    done = max(1, runs // len(benches)) * len(benches)
    figures = {"run": spent_us / done, "ms": elapsed_ms / done}
    if len(benches) == 1:
        figures |= {name: spent_ns / done / 1e3 for name, spent_ns in benches[0].spent_ns.items()}
    return figures


async def _serve(options: argparse.Namespace) -> None:
    """Measure a slice for each line that comes in, and answer it with the figures."""
    clock = SystemClock()
    store = memory_store(clock=clock) if options.store == "memory" else open_embedded(options.folder, clock=clock)
    keyspace = Keyspace(store, clock=clock, rng=random.Random(options.index))
    await open_keyspace(keyspace)
    is_alone = options.each == 1
    benches = [Bench(keyspace, f"w-{options.index}-{n}", is_alone=is_alone) for n in range(options.each)]
    for bench in benches:
        await bench.prepare()
    await _slice(benches, WARM_RUNS)
    while sys.stdin.readline():
        sys.stdout.write(json.dumps(await _slice(benches, options.runs)) + "\n")
        sys.stdout.flush()
    await store.close()


class _Side:
    """One checkout's processes, all on one store."""

    def __init__(self, checkout: Path, folder: Path, options: argparse.Namespace) -> None:
        # -P keeps this file's folder off the path, where perf/profile.py would pose as the standard library's.
        self.processes = [
            subprocess.Popen(
                [
                    *(sys.executable, "-P", __file__, "--serve", "--store", options.store, "--folder", str(folder)),
                    *("--runs", str(options.runs), "--each", str(options.each), "--index", str(index)),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONPATH": str(checkout)},
            )
            for index in range(options.processes)
        ]

    def slice(self) -> Figures:
        """Let every process run a slice at the same time; return the means, and the wall time of a run of all."""
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        answers: list[Figures] = []
        for process in self.processes:
            assert process.stdout is not None
            answers.append(json.loads(process.stdout.readline()))
        figures = {name: statistics.mean(answer[name] for answer in answers) for name in answers[0]}
        figures["ms"] /= len(answers)
        return figures

    def end(self) -> None:
        for process in self.processes:
            process.communicate()


def _compare(options: argparse.Namespace) -> None:
    here = Path(__file__).resolve().parent.parent
    checkouts = [here] if options.against is None else [here, options.against.resolve()]
    base = MEMORY_FOLDER if MEMORY_FOLDER.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="ryusen-perf-", dir=base) as folder:
        sides = [_Side(checkout, Path(folder) / str(index), options) for index, checkout in enumerate(checkouts)]
        found: list[list[Figures]] = [[side.slice() for side in sides] for _ in range(options.slices)]
        for side in sides:
            side.end()
    print(
        f"{options.store}, {options.processes} processes with {options.each} runs each: processor microseconds a run of "
        f"{STEPS} steps (ms: wall milliseconds between two runs), medians of {options.slices} slices"
    )
    for name in found[0][0]:
        mine = [turn[0][name] for turn in found]
        line = f"  {name:14s} {statistics.median(mine):8.2f}"
        if len(sides) > 1:
            theirs = [turn[1][name] for turn in found]
            ratio = statistics.median(a / b for a, b in zip(mine, theirs, strict=True))
            line += f"   against {statistics.median(theirs):8.2f}   ratio {ratio:5.2f}"
        print(line)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m perf.transitions", description=__doc__)
    parser.add_argument("--against", type=Path, help="another checkout, whose keyspace takes turns with this one's")
    parser.add_argument("--store", choices=STORES, default="memory", help="the engine (%(default)s)")
    parser.add_argument("--slices", type=int, default=15, help="slices of each side (%(default)s)")
    parser.add_argument("--runs", type=int, default=60, help="runs in a slice (%(default)s)")
    parser.add_argument("--each", type=int, default=1, help="runs under way at once in a process (%(default)s)")
    parser.add_argument("--processes", type=int, default=1, help="processes on one folder; lmdb only (%(default)s)")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--index", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.processes > 1 and options.store == "memory":
        parser.error("a store in memory is one process's own")
    if options.serve:
        asyncio.run(_serve(options))
    else:
        _compare(options)


if __name__ == "__main__":
    main()
