"""The kill test: load, and kill -9 at random moments of everything there is; then every promise is counted."""

from __future__ import annotations

import os
import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import anyio
from e2e_world import Site, World, open_world, submit_surely
from eventually import eventually

from topology.tables import Role

SEED_VARIABLE = "RYUSEN_E2E_SEED"
EVENT_COUNT = 500
CALLERS = 16
WORK_MS = 20
WORKER_CAPACITY = 10
STEPS = ("first", "second", "third")
SETTINGS = {"lease_ms": "3000", "skew_ms": "150"}
VICTIMS = (
    (Role.GATEWAY, 0),
    (Role.FANOUT, 0),
    (Role.DISPATCHER, 0),
    (Role.DISPATCHER, 1),
    (Role.WORKER, 0),
    (Role.WORKER, 1),
)
WINDOW = 100
"""Runs under way at most, so that submissions go on while processes die."""
EFFECTS = EVENT_COUNT * len(STEPS)
SETTLE_S_MAX = 90.0


@dataclass
class Toll:
    """Who was killed."""

    kills: list[str] = field(default_factory=list)
    worker_pids: set[int] = field(default_factory=set)


async def test_nothing_acknowledged_is_lost_and_no_effect_runs_twice(site: Site, tmp_path: Path) -> None:
    """FILLED-IN 10, C1 to C6, on real processes: 500 events while gateway, fan-out, dispatchers and workers are killed."""
    seed = int(os.environ.get(SEED_VARIABLE) or random.SystemRandom().randrange(1 << 32))
    print(f"\nkill test: {SEED_VARIABLE}={seed}")
    rng, toll = random.Random(seed), Toll()
    async with open_world("pairs", tmp_path, site, settings=SETTINGS, capacity=WORKER_CAPACITY) as world:
        events = await _load_under_kills(world, rng, toll)
        print(f"killed: {', '.join(toll.kills)}")
        assert len(set(events)) == EVENT_COUNT
        assert len(toll.kills) >= len(VICTIMS)
        runs = [await world.runs_of(event) for event in events]
        assert {len(found) for found in runs} == {1}
        await _settle(world)
        await _judge(world, [found[0] for found in runs], toll)
    await world.check()


async def _load_under_kills(world: World, rng: random.Random, toll: Toll) -> list[str]:
    events: list[str] = []
    submitted = 0
    limiter = anyio.CapacityLimiter(CALLERS)

    async def has_room() -> bool:
        return submitted - len(world.marks("end")) / len(STEPS) < WINDOW

    async def submit(number: int) -> None:
        nonlocal submitted
        async with limiter:
            await eventually(has_room, "runs go on", seconds_max=SETTLE_S_MAX)
            submitted += 1
            request = {"id": str(number), "work_ms": WORK_MS}
            events.append(await submit_surely(clients, "field.steady", request, f"kill-{number}"))

    async with world.clients() as clients, anyio.create_task_group() as group:
        group.start_soon(_kill, world, rng, toll)
        for number in range(EVENT_COUNT):
            group.start_soon(submit, number)
    return events


async def _kill(world: World, rng: random.Random, toll: Toll) -> None:
    """Kill every victim once, in a drawn order, each when a drawn number of effects has happened, and start it again."""
    moments = sorted(rng.sample(range(EFFECTS // 20, EFFECTS * 3 // 4), k=len(VICTIMS)))
    for moment, (role, index) in zip(moments, rng.sample(VICTIMS, k=len(VICTIMS)), strict=True):

        async def is_due(moment: int = moment) -> bool:
            return len(world.marks("begin")) >= moment

        await eventually(is_due, f"{moment} effects have begun", seconds_max=SETTLE_S_MAX)
        process = await world.launcher.kill(role, index)
        toll.kills.append(process.name)
        if role is Role.WORKER:
            toll.worker_pids.add(process.pid)
        await world.launcher.restart(role, index)


async def _settle(world: World) -> None:
    """Wait until every run has ended or waits for an operator."""

    async def look() -> bool:
        page = await world.client.runs(status="running", limit=EVENT_COUNT)
        return all(run["waiting"]["word"] == "operator" for run in page.items)

    await eventually(look, "every run has ended or is in doubt", seconds_max=SETTLE_S_MAX)


async def _judge(world: World, runs: list[str], toll: Toll) -> None:
    marks = world.marks()
    begun = Counter((mark.run, mark.step) for mark in marks if mark.mark == "begin")
    doubled = {effect: count for effect, count in begun.items() if count > 1}
    assert doubled == {}, "an effect ran twice"
    unknown_count = 0
    for run in runs:
        found = await world.client.run(run)
        kinds = Counter((entry["kind"], entry["data"].get("step")) for entry in await world.history(run))
        accepted = {step: kinds["step-completed", step] for step in STEPS}
        if found["status"] == "completed":
            assert accepted == dict.fromkeys(STEPS, 1), "a step has another number of accepted results than one"
            assert {step: begun[run, step] for step in STEPS} == dict.fromkeys(STEPS, 1)
        else:
            unknown_count += 1
            await _judge_doubt(world, run, toll)
            assert max(accepted.values()) <= 1
    assert unknown_count <= WORKER_CAPACITY * len(toll.worker_pids), "more is in doubt than killed workers could hold"
    print(f"{len(runs) - unknown_count} runs completed, {unknown_count} show an Unknown attempt")


async def _judge_doubt(world: World, run: str, toll: Toll) -> None:
    """A run that did not complete shows exactly one Unknown attempt, and its callback died with a killed worker."""
    steps = (await world.client.steps(run)).items
    unknown = [
        (step["step"], attempt) for step in steps for attempt in step["attempts"] if attempt["state"] == "unknown"
    ]
    assert len(unknown) == 1, steps
    step = unknown[0][0]
    marks = [mark for mark in world.marks() if (mark.run, mark.step) == (run, step)]
    # One authorized while its worker was being killed may never have begun; one that began belongs to a killed worker.
    assert {mark.pid for mark in marks} <= toll.worker_pids
    assert toll.worker_pids, "no worker was killed, so nothing may be in doubt"
