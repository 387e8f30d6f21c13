"""Releases that roll over runs under way: three rollouts under load, then a quiet fleet of two releases."""

from __future__ import annotations

import signal
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import pytest
from e2e_world import APPS, Site, World, open_world
from eventually import eventually

from topology.launcher import WorkerSpec
from topology.tables import Role

WINDOW = 300
"""Runs in flight at most: many times what all workers have room for, so that something always waits."""
CALLERS = 16
WORK_MS = 100
CAPACITY = 10
STEPS = ("first", "second", "third")
ROLLOUTS = 3
SETTLE_S_MAX = 60.0
QUIET_COUNT = 20
PAIRS = ((0, 1), (2, 3))
END_MARK = b'"mark": "end"'
STARTS = frozenset(("pass-authorized", "attempt-authorized"))


@dataclass
class Fleet:
    """Two places for pairs of workers; a release takes one while the other's still works.

    Attributes:
        events: every event that was submitted; each becomes one run.
        is_over: whether the last rollout is done, so that the load may end.
        in_flight: how many runs had not ended when each release came.
    """

    world: World
    events: list[str] = field(default_factory=list)
    is_over: bool = False
    in_flight: list[int] = field(default_factory=list)

    def unfinished(self) -> int:
        ledger = self.world.ledger
        ends = ledger.read_bytes().count(END_MARK) if ledger.exists() else 0
        return len(self.events) - ends // len(STEPS)

    async def is_full(self) -> bool:
        return self.unfinished() >= WINDOW - CALLERS

    async def start(self, number: int) -> None:
        """Start the workers of a release and wait until both have begun a step."""
        indices = PAIRS[number % len(PAIRS)]
        spec = WorkerSpec(
            app="field:app",
            folder=APPS,
            key=self.world.access.worker_key,
            capacity=CAPACITY,
            environment={"FIELD_LEDGER": str(self.world.ledger), "RYUSEN_RELEASE": release(number)},
        )
        await self.world.launcher.start_workers(spec, indices)
        self.in_flight.append(self.unfinished())
        pids = {self.world.launcher.process(Role.WORKER, index).pid for index in indices}

        async def have_begun() -> bool:
            return pids <= {mark.pid for mark in self.world.marks("begin")}

        await eventually(have_begun, f"the workers of {release(number)} have begun steps", seconds_max=SETTLE_S_MAX)

    async def stop(self, number: int) -> None:
        """Tell the workers of a release to stop; they finish what they have and lose nothing."""
        leaving = [self.world.launcher.process(Role.WORKER, index) for index in PAIRS[number % len(PAIRS)]]
        for process in leaving:
            process.signal(signal.SIGTERM)
        for process in leaving:
            assert await process.wait(SETTLE_S_MAX) == 0


def release(number: int) -> str:
    return f"release-{number}"


@pytest.mark.case(50)
async def test_three_rollouts_under_load_lose_and_double_nothing(site: Site, tmp_path: Path) -> None:
    """RFD 1, "Ryusen never pins a run": 300 runs in flight cross three releases; then the newest alone gets new work."""
    async with open_world("rolling", tmp_path, site, workers=()) as world:
        fleet = Fleet(world)
        async with anyio.create_task_group() as group:
            for caller in range(CALLERS):
                group.start_soon(_submit, fleet, caller)
            await eventually(fleet.is_full, "the window is full", seconds_max=SETTLE_S_MAX)
            await fleet.start(0)
            for number in range(1, ROLLOUTS):
                await fleet.start(number)
                await fleet.stop(number - 1)
            await fleet.start(ROLLOUTS)
            fleet.is_over = True
        await _settle(fleet)
        quiet = await _run_quietly(fleet)
        await _judge(fleet, quiet)
    await world.check()


async def _submit(fleet: Fleet, caller: int) -> None:
    """Keep this caller's share of the window in flight."""
    number = 0

    async def has_room() -> bool:
        return fleet.unfinished() < WINDOW or fleet.is_over

    while not fleet.is_over:
        request = {"id": f"{caller}-{number}", "work_ms": WORK_MS}
        fleet.events.append((await fleet.world.client.submit("field.steady", request)).event)
        number += 1
        await eventually(has_room, "runs end", seconds_max=SETTLE_S_MAX)


async def _settle(fleet: Fleet) -> None:
    async def look() -> bool:
        return not (await fleet.world.client.runs(status="running", limit=1)).items

    await eventually(look, "every run has ended", seconds_max=SETTLE_S_MAX)


async def _run_quietly(fleet: Fleet) -> list[str]:
    """Start runs one after another while two releases stand: there is room in the newest for each."""
    quiet = []
    for number in range(QUIET_COUNT):
        run = await fleet.world.begin("field.steady", {"id": f"quiet-{number}"})
        await fleet.world.ended(run)
        quiet.append(run)
    return quiet


async def _judge(fleet: Fleet, quiet: list[str]) -> None:
    world = fleet.world
    begun = Counter((mark.run, mark.step) for mark in world.marks("begin"))
    starts: dict[str, list[int]] = {}
    releases: dict[str, set[str]] = {}
    loaded = [(await world.runs_of(event))[0] for event in fleet.events]
    for run in (*loaded, *quiet):
        assert (await world.client.run(run))["status"] == "completed"
        history = await world.history(run)
        kinds = Counter((entry["kind"], entry["data"].get("step")) for entry in history)
        assert {step: kinds["step-completed", step] for step in STEPS} == dict.fromkeys(STEPS, 1)
        assert {step: begun[run, step] for step in STEPS} == dict.fromkeys(STEPS, 1), "an effect was lost or ran twice"
        for entry in history:
            if entry["kind"] in STARTS:
                starts.setdefault(entry["data"]["release"], []).append(entry["at_ms"])
                releases.setdefault(run, set()).add(entry["data"]["release"])
    for run in quiet:
        assert releases[run] == {release(ROLLOUTS)}, "an older release took work that the newest had room for"
    assert set(starts) == {release(number) for number in range(ROLLOUTS + 1)}
    crossed = sum(len(found) > 1 for found in releases.values())
    print(
        f"\n{len(loaded)} runs under load, {crossed} over more than one release; in flight at rollouts: {fleet.in_flight}"
    )
    for number in range(1, ROLLOUTS + 1):
        overlap_ms = max(starts[release(number - 1)]) - min(starts[release(number)])
        end = "the backlog ended" if number == ROLLOUTS else "it was told to stop"
        print(f"{release(number)}: the last start of {release(number - 1)} came {overlap_ms} ms after its first; {end}")
    assert crossed > 0, "no run was under way when a release came: nothing was tried"
