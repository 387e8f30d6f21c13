"""Processes that are killed, paused and drained under load; what they held goes on elsewhere, and how soon is measured.

Workers reach their dispatchers through a relay, as through a balancer: a worker whose dispatcher is gone finds another one.
"""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import pytest
from aftermath import Incident, Story, aftermath, instances_of, now_ms, quantile
from e2e_world import SHORT_LEASES, Site, World, open_world
from eventually import eventually
from relay import Relay, open_relay, start_behind

from topology.tables import Role

SEED_VARIABLE = "RYUSEN_E2E_SEED"
LEASE_MS = int(SHORT_LEASES["lease_ms"])
RUNS_MIN = 150
RUNS_MAX = 2_000
"""More than the service takes through in the time of all incidents: load that ends before them hits nothing."""
PAGE_RUNS = 500
BETWEEN_EFFECTS = (20, 100)
"""Effects that begin between two incidents, drawn."""
STEPS = ("first", "second", "third")
CAPACITY = 10
WINDOW = 16
"""Runs under way at most: load goes on while processes are away, and one worker has room for all, so that no run queues."""
BUSY_MIN = 3
"""Callbacks under way where something is to happen: one alone may have ended by then."""
CALLERS = 8
WORK_MS = (50, 250)
SETTLE_S_MAX = 60.0
DEADLY_COUNT = 4
HEALTHY_COUNT = 30
HEALTHY_SHARE = 1 / 3
"""Of their rate alone, what healthy runs keep at least: restarts of a process cost both cores of a small machine."""

Happening = Callable[[Role, int], Awaitable[None]]


@dataclass
class Fleet:
    """Two pairs of worker and dispatcher, each worker behind a relay to both dispatchers.

    Attributes:
        killed: the processes of killed workers.
    """

    world: World
    relays: list[Relay]
    incidents: list[Incident] = field(default_factory=list)
    killed: set[int] = field(default_factory=set)

    def dispatcher_port(self, index: int) -> int:
        return int(self.world.launcher.dispatcher_url(index).rpartition(":")[2])

    def pids_at(self, role: Role, index: int) -> set[int]:
        """Return the workers whose work an incident of this process hits."""
        launcher = self.world.launcher
        if role is Role.WORKER:
            return {launcher.process(role, index).pid}
        port = self.dispatcher_port(index)
        return {
            launcher.process(Role.WORKER, number).pid
            for number, relay in enumerate(self.relays)
            if relay.backend == port
        }

    async def until_begun(self, count: int) -> None:
        """Wait until so many more effects have begun."""
        moment = len(self.world.marks("begin")) + count

        async def is_due() -> bool:
            return len(self.world.marks("begin")) >= moment

        await eventually(is_due, f"{moment} effects have begun", seconds_max=SETTLE_S_MAX)

    async def busy_index(self, role: Role, drawn: int) -> int:
        """Return which process of a role is hit: the drawn one, or the other one while only that has enough under way."""
        found: list[int] = []

        async def look() -> bool:
            marks = self.world.marks()
            ended = {(mark.run, mark.step) for mark in marks if mark.mark == "end"}
            busy = Counter(mark.pid for mark in marks if mark.mark == "begin" and (mark.run, mark.step) not in ended)
            counts = {index: sum(busy[pid] for pid in self.pids_at(role, index)) for index in (drawn, 1 - drawn)}
            found[:] = [index for index, count in counts.items() if count >= BUSY_MIN]
            return bool(found)

        await eventually(look, f"a {role} has work under way")
        return found[0]

    async def kill(self, role: Role, index: int) -> None:
        """Kill a process and start it again."""
        incident = Incident(f"kill -9 of {role}-{index}", self.pids_at(role, index))
        process = await self.world.launcher.kill(role, index)
        if role is Role.WORKER:
            self.killed.add(process.pid)
        await self.world.launcher.restart(role, index)
        self._over(incident)

    async def pause(self, role: Role, index: int) -> None:
        """Stop a process for two leases, then let it go on; the balancer's health check takes a stopped dispatcher out."""
        process = self.world.launcher.process(role, index)
        incident = Incident(f"SIGSTOP of {role}-{index}", self.pids_at(role, index))
        process.signal(signal.SIGSTOP)
        out = {self.dispatcher_port(index)} if role is Role.DISPATCHER else set()
        for relay in self.relays:
            relay.out_of_service |= out

        async def is_long_enough() -> bool:
            return now_ms() - incident.at_ms >= 2 * LEASE_MS

        try:
            await eventually(is_long_enough, "two leases are over")
        finally:
            process.signal(signal.SIGCONT)
        for relay in self.relays:
            relay.out_of_service -= out
        self._over(incident)

    def _over(self, incident: Incident) -> None:
        incident.over_ms = now_ms()
        self.incidents.append(incident)


@asynccontextmanager
async def open_fleet(folder: Path, site: Site, *, capacity: int = CAPACITY) -> AsyncIterator[Fleet]:
    """Start two gateways, fan-outs, dispatchers and workers."""
    async with open_world("pairs", folder, site, settings=SHORT_LEASES, workers=()) as world:
        ports = [int(world.launcher.dispatcher_url(index).rpartition(":")[2]) for index in (0, 1)]
        async with open_relay(ports) as first, open_relay(ports[::-1]) as second:
            fleet = Fleet(world, [first, second])
            for index, relay in enumerate(fleet.relays):
                await start_behind(relay, world, index, capacity=capacity)
            yield fleet
            await world.launcher.stop()


def drawn_seed(name: str) -> random.Random:
    """Return the test's randomness and print how to have it again."""
    seed = int(os.environ.get(SEED_VARIABLE) or random.SystemRandom().randrange(1 << 32))
    print(f"\n{name}: {SEED_VARIABLE}={seed}")
    return random.Random(seed)


async def test_killed_processes_hold_nothing_up_and_double_nothing(site: Site, tmp_path: Path) -> None:
    """FILLED-IN 10, C1, C3, C5, C6: workers and dispatchers are killed at random moments; only a killed worker leaves doubt."""
    rng = drawn_seed("kills")
    async with open_fleet(tmp_path, site) as fleet:
        roles = rng.sample([Role.WORKER, Role.WORKER, Role.DISPATCHER, Role.DISPATCHER], k=4)
        runs = await load(fleet, rng, [(fleet.kill, role) for role in roles])
        stories = await settled(fleet, runs)
        await judge(fleet, stories)
        await tell(fleet, stories)
    await fleet.world.check()


async def test_processes_paused_past_their_leases_commit_nothing_stale(site: Site, tmp_path: Path) -> None:
    """RFD 2 "generation fencing": stopped for two leases, a worker and a dispatcher go on; every run completes, each effect once."""
    rng = drawn_seed("pauses")
    async with open_fleet(tmp_path, site) as fleet:
        roles = rng.sample([Role.WORKER, Role.DISPATCHER], k=2)
        processes = fleet.world.launcher.processes
        runs = await load(fleet, rng, [(fleet.pause, role) for role in roles])
        stories = await settled(fleet, runs)
        await judge(fleet, stories)
        assert {story.entries[-1]["kind"] for story in stories} == {"run-completed"}, "nobody died, so no doubt remains"
        assert all(process.is_alive for process in processes), "a pause ends no process"
        await tell(fleet, stories)
    await fleet.world.check()


@pytest.mark.case(53)
async def test_work_that_kills_its_worker_costs_its_neighbours_little(site: Site, tmp_path: Path) -> None:
    """Case 053 (a), RFD 1 ¶47: exit 137 in a callback, again and again; each is Unknown at once and stays so, others go on."""
    async with (
        open_world("pairs", tmp_path, site, settings=SHORT_LEASES, workers=[0], capacity=1) as world,
        world.other_workspace("healthy") as other,
        anyio.create_task_group() as group,
    ):
        await other.start_workers(indices=[1])
        await other.ended(await other.begin("field.steady", {"id": "warm"}))
        alone = await healthy_rate(other)
        group.start_soon(keep_alive, world, 0)
        deadly = [await world.begin("field.deadly-step", {"id": str(number)}) for number in range(DEADLY_COUNT)]
        beside = await healthy_rate(other)
        print(f"\nhealthy runs/s: {alone:.1f} alone, {beside:.1f} beside a worker that dies again and again")
        assert beside >= alone * HEALTHY_SHARE
        for run in deadly:
            await world.until_kind(run, "attempt-unknown", seconds_max=SETTLE_S_MAX)
        group.cancel_scope.cancel()
        for run in deadly:
            kinds = await world.kinds(run)
            assert (kinds["attempt-authorized"], kinds["attempt-unknown"], kinds["attempt-failed"]) == (1, 1, 0)
            found = await world.client.run(run)
            assert (found["unknown_count"], found["waiting"]["word"]) == (1, "operator")
            assert world.begun(run) == {"die": 1}
    await world.check()


async def healthy_rate(world: World) -> float:
    """Run healthy work and return how many runs a second ended."""
    begun_ms = now_ms()
    runs = [await world.begin("field.steady", {"id": str(number), "work_ms": 50}) for number in range(HEALTHY_COUNT)]
    for run in runs:
        assert (await world.ended(run, seconds_max=SETTLE_S_MAX))["status"] == "completed"
    return HEALTHY_COUNT * 1_000 / (now_ms() - begun_ms)


async def keep_alive(world: World, index: int) -> None:
    """Start a worker again whenever it has died, as any process supervisor does."""
    while True:
        await world.launcher.process(Role.WORKER, index).ended()
        await world.launcher.restart(Role.WORKER, index)


async def load(fleet: Fleet, rng: random.Random, happenings: list[tuple[Happening, Role]]) -> list[str]:
    """Submit runs until everything has happened, each thing when a drawn number of effects has begun; return the runs."""
    world = fleet.world
    events: list[str] = []
    submitted = 0
    is_over = False

    async def has_room() -> bool:
        marks = world.marks()
        ended = {(mark.run, mark.step) for mark in marks if mark.mark == "end"}
        # What a killed worker was at waits for an operator: counted as under way, a few kills would leave no room for load.
        lost = {mark.run for mark in marks if mark.pid in fleet.killed and (mark.run, mark.step) not in ended}
        return submitted - len(lost) - len(ended) / len(STEPS) < WINDOW

    async def call() -> None:
        nonlocal submitted
        while submitted < RUNS_MIN or (not is_over and submitted < RUNS_MAX):
            submitted += 1
            request = {"id": str(submitted), "work_ms": rng.randint(*WORK_MS)}
            events.append((await world.client.submit("field.steady", request)).event)
            await eventually(has_room, "runs go on", seconds_max=SETTLE_S_MAX)

    async with anyio.create_task_group() as group:
        for _ in range(CALLERS):
            group.start_soon(call)
        for happen, role in happenings:
            await fleet.until_begun(rng.randint(*BETWEEN_EFFECTS))
            await happen(role, await fleet.busy_index(role, rng.randrange(2)))
        is_over = True
    assert len(set(events)) == submitted
    found = [await world.runs_of(event) for event in events]
    assert {len(runs) for runs in found} == {1}
    return [runs[0] for runs in found]


async def settled(fleet: Fleet, runs: list[str]) -> list[Story]:
    """Wait until every run has ended or waits visibly for an operator, and return their histories."""
    world = fleet.world

    async def look() -> bool:
        page = await world.client.runs(status="running", limit=PAGE_RUNS)
        return page.next_cursor is None and all(run["waiting"]["word"] == "operator" for run in page.items)

    await eventually(look, "every run has ended or is in doubt", seconds_max=SETTLE_S_MAX)
    return [Story(run, await world.history(run)) for run in runs]


async def judge(fleet: Fleet, stories: list[Story]) -> None:
    """Count every promise."""
    world = fleet.world
    marks = world.marks()
    begun = Counter((mark.run, mark.step, mark.attempt) for mark in marks if mark.mark == "begin")
    assert [effect for effect, count in begun.items() if count > 1] == [], "one attempt ran twice"
    for story in stories:
        kinds = Counter((entry["kind"], entry["data"].get("step")) for entry in story.entries)
        for step in STEPS:
            # Nothing failed, so the only durable decision that lets an attempt start again is the proof that it never began.
            starts = kinds["attempt-authorized", step] - kinds["attempt-not-started", step]
            assert sum(begun[story.run, step, attempt] for attempt in (1, 2, 3)) <= starts <= 1, (story.run, step)
            assert kinds["step-completed", step] <= 1, "a step has two accepted results"
        if story.entries[-1]["kind"] == "run-completed":
            assert {step: kinds["step-completed", step] for step in STEPS} == dict.fromkeys(STEPS, 1)
            assert {step: begun[story.run, step, 1] for step in STEPS} == dict.fromkeys(STEPS, 1)
        else:
            await judge_doubt(fleet, story)


async def judge_doubt(fleet: Fleet, story: Story) -> None:
    """A run that has not completed shows one Unknown attempt, which was a killed worker's."""
    found = await fleet.world.client.run(story.run)
    assert (found["unknown_count"], found["waiting"]["word"]) == (1, "operator")
    last = story.entries[-1]
    assert last["kind"] == "attempt-unknown", story.entries[-3:]
    marks = [mark for mark in fleet.world.marks() if (mark.run, mark.step) == (story.run, last["data"]["step"])]
    # One authorized while its worker was being killed may never have begun.
    assert {mark.pid for mark in marks} <= fleet.killed
    assert fleet.killed, "no worker was killed, so nothing may be in doubt"


async def tell(fleet: Fleet, stories: list[Story]) -> None:
    """Print how long what an incident hit stood still, and hold it against the lease."""
    instances = instances_of(fleet.world.marks(), stories)
    still = sorted(late for incident in fleet.incidents for late in aftermath(incident, stories, instances, LEASE_MS))
    completed = sum(story.entries[-1]["kind"] == "run-completed" for story in stories)
    print(f"{completed} of {len(stories)} runs completed; {len(stories) - completed} show an Unknown attempt")
    p50, p99 = quantile(still, 0.5), quantile(still, 0.99)
    print(f"from incident to progress: p50 {p50:.0f} ms, p99 {p99:.0f} ms; the lease is {LEASE_MS} ms")
