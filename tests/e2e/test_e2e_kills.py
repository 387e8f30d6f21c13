"""Effects outside: steps of every class and their undos append to a file while everything there is gets killed.

The promise (RFD 1 ¶11 to ¶19, ¶47): each effect ran once, or its attempt is Unknown, or running it again was decided by
something durable: its idempotent declaration, an operator's retry, or the policy after a reported failure. Never silently twice.
"""

from __future__ import annotations

import os
import random
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
from e2e_world import Mark, Site, World, open_world, submit_surely
from eventually import eventually
from operator_desk import Desk
from ryusen import ApiError, AsyncClient, Unreachable

from topology.tables import Role

SEED_VARIABLE = "RYUSEN_E2E_SEED"
EVENT_COUNT = 300
CALLERS = 16
WORK_MS = 80
WORKER_CAPACITY = 10
STEPS = ("default", "idempotent", "last")
UNDONE = ("default", "idempotent")
FAILING_SHARE = 0.3
CANCELLED_SHARE = 0.2
CANCELLED_WITHIN = 60
"""Effects of whatever run that begin between a submission and its cancellation, at most."""
SETTINGS = {"lease_ms": "4000", "skew_ms": "200"}
VICTIMS = (
    (Role.GATEWAY, 0),
    (Role.FANOUT, 0),
    (Role.DISPATCHER, 0),
    (Role.DISPATCHER, 1),
    (Role.WORKER, 0),
    (Role.WORKER, 1),
    (Role.WORKER, 0),
    (Role.WORKER, 1),
)
UNKNOWN_MAX = WORKER_CAPACITY * sum(role in (Role.WORKER, Role.DISPATCHER) for role, _ in VICTIMS)
"""A worker that dies leaves what it runs in doubt; so may a dispatcher that is away for longer than a lease."""
WINDOW = 80
"""Runs under way at most, so that submissions go on while processes die."""
EFFECTS = EVENT_COUNT * len(STEPS)
SETTLE_S_MAX = 90.0
OPEN_STATUSES = ("running", "definition_blocked", "cancelling", "compensating")


async def test_no_effect_runs_twice_unless_something_durable_says_so(site: Site, tmp_path: Path) -> None:
    """FILLED-IN 10, C1 to C6, on real processes: gateway, fan-out, dispatchers and workers are killed at drawn moments."""
    seed = int(os.environ.get(SEED_VARIABLE) or random.SystemRandom().randrange(1 << 32))
    print(f"\nkill test: {SEED_VARIABLE}={seed}")
    rng = random.Random(seed)
    async with open_world("pairs", tmp_path, site, settings=SETTINGS, capacity=WORKER_CAPACITY) as world:
        async with world.clients() as clients, world.clients(is_admin=True) as admins:
            desk = Desk(admins, random.Random(seed + 1))
            killed: list[str] = []
            runs = await _load_under_kills(world, clients, desk, rng, killed)
            print(f"killed: {', '.join(killed)}")
            assert len(killed) == len(VICTIMS)
            assert len(set(runs)) == EVENT_COUNT
            await _settle(world, desk)
        stories = {run: await world.history(run) for run in runs}
        _judge(world.marks(), stories)
        await _judge_ends(world, stories, desk)
    await world.check()


async def _load_under_kills(
    world: World, clients: list[AsyncClient], desk: Desk, rng: random.Random, killed: list[str]
) -> list[str]:
    """Submit, cancel some, decide what is Unknown, and kill; return the runs."""
    events: list[str] = []
    submitted = 0
    limiter = anyio.CapacityLimiter(CALLERS)
    failing = frozenset(rng.sample(range(EVENT_COUNT), k=int(EVENT_COUNT * FAILING_SHARE)))
    cancelled = {
        number: rng.randrange(CANCELLED_WITHIN)
        for number in rng.sample(range(EVENT_COUNT - CANCELLED_WITHIN), k=int(EVENT_COUNT * CANCELLED_SHARE))
    }

    async def has_room() -> bool:
        return submitted - len(world.marks("end")) / len(STEPS) < WINDOW + len(killed) * WORKER_CAPACITY

    async def submit(number: int) -> None:
        nonlocal submitted
        async with limiter:
            await eventually(has_room, "runs go on", seconds_max=SETTLE_S_MAX)
            submitted += 1
            request = {"id": str(number), "work_ms": WORK_MS, "fails": number in failing}
            event = await submit_surely(clients, "field.effects", request, f"kill-{number}")
            events.append(event)
        if number in cancelled:
            await _until_begun(world, len(world.marks("begin")) + cancelled[number])
            await _cancel_surely(clients, event)

    async with anyio.create_task_group() as group:
        group.start_soon(desk.run)
        async with anyio.create_task_group() as work:
            work.start_soon(_kill, world, rng, killed)
            for number in range(EVENT_COUNT):
                work.start_soon(submit, number)
        group.cancel_scope.cancel()
    assert len(set(events)) == EVENT_COUNT
    found = [await world.runs_of(event) for event in events]
    assert {len(runs) for runs in found} == {1}
    return [runs[0] for runs in found]


async def _until_begun(world: World, count: int) -> None:
    async def is_due() -> bool:
        return len(world.marks("begin")) >= count

    await eventually(is_due, f"{count} effects have begun", seconds_max=SETTLE_S_MAX)


async def _cancel_surely(clients: list[AsyncClient], event: str) -> None:
    """Cancel an event's run as a careful caller does, anywhere, until it is acknowledged."""

    async def look() -> bool:
        for client in clients:
            try:
                matches = (await client.event(event))["matches"]["items"]
                if matches:
                    await client.cancel(matches[0]["run"])
                    return True
            except Unreachable:
                continue
            except ApiError as error:
                if error.status < 500:
                    raise
        return False

    await eventually(look, f"the cancellation of {event}'s run is acknowledged", seconds_max=SETTLE_S_MAX)


async def _kill(world: World, rng: random.Random, killed: list[str]) -> None:
    """Kill every victim, in a drawn order, each when a drawn number of effects has happened, and start it again."""
    moments = sorted(rng.sample(range(EFFECTS // 20, EFFECTS * 2 // 3), k=len(VICTIMS)))
    for moment, (role, index) in zip(moments, rng.sample(VICTIMS, k=len(VICTIMS)), strict=True):
        await _until_begun(world, moment)
        process = await world.launcher.kill(role, index)
        killed.append(process.name)
        await world.launcher.restart(role, index)


async def _settle(world: World, desk: Desk) -> None:
    """Wait until every run has ended or waits for the operator who left its attempt as it is."""

    async def look() -> bool:
        if not await desk.look():
            return False
        pages = [await world.client.runs(status=status, limit=EVENT_COUNT) for status in OPEN_STATUSES]
        return all(run["unknown_count"] for page in pages for run in page.items)

    await eventually(look, "every run has ended or is in doubt", seconds_max=SETTLE_S_MAX)


@dataclass
class Effect:
    """One logical effect: a step's, or its undo's. What history tells of its attempts, by ordinal."""

    run: str
    direction: str
    step: str
    told: dict[str, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))

    def count(self, kind: str) -> int:
        return sum(self.told[kind].values())


def _judge(marks: list[Mark], stories: dict[str, list[dict[str, Any]]]) -> None:
    """Hold every effect in the file against what history says of it."""
    begun: dict[tuple[str, str, str], list[Mark]] = defaultdict(list)
    for mark in marks:
        if mark.mark in ("begin", "undo-begin"):
            begun[mark.run, "compensation" if mark.mark == "undo-begin" else "forward", mark.step].append(mark)
    effects = _effects(stories)
    assert begun.keys() <= effects.keys(), "an effect that history does not know"
    unknown_count = sum(effect.count("attempt-unknown") for effect in effects.values())
    assert unknown_count <= UNKNOWN_MAX, "more is in doubt than killed processes could hold"
    doubled = 0
    for key, effect in effects.items():
        found = begun[key]
        assert len({mark.operation for mark in found}) <= 1, "the attempts of one effect have one operation id"
        doubled += len(found) > 1
        _judge_effect(effect, found)
    print(f"{sum(map(len, begun.values()))} effects, {doubled} of them more than once, each time by a durable decision")


def _effects(stories: dict[str, list[dict[str, Any]]]) -> dict[tuple[str, str, str], Effect]:
    effects: dict[tuple[str, str, str], Effect] = {}
    for run, entries in stories.items():
        for entry in entries:
            data = entry["data"]
            if "step" in data and "attempt" in data:
                direction = data.get("direction", "forward")
                if entry["kind"].startswith("compensation-"):
                    direction = "compensation"
                key = (run, direction, data["step"])
                effects.setdefault(key, Effect(*key)).told[entry["kind"]][data["attempt"]] += 1
    return effects


def _judge_effect(effect: Effect, found: list[Mark]) -> None:
    ordinals = Counter(mark.attempt for mark in found)
    where = f"{effect.direction} {effect.step} of {effect.run}: {dict(effect.told)}"
    for ordinal, count in ordinals.items():
        redelivered = effect.told["attempt-redelivered"][ordinal]
        assert count <= 1 + redelivered, f"one attempt ran {count} times, and nothing durable says so: {where}"
        starts = effect.told["attempt-authorized"][ordinal] - effect.told["attempt-not-started"][ordinal]
        assert count <= starts, f"an attempt ran that was not authorized: {where}"
        assert redelivered == 0 or effect.step == "idempotent", f"an effect that may not be repeated was: {where}"
    decided = effect.count("retry-scheduled") + effect.count("retry-authorized")
    assert len(ordinals) <= 1 + decided, f"more attempts ran than were decided on: {where}"
    done = effect.count("step-completed") + effect.count("compensation-succeeded")
    assert done <= 1, f"two results of one effect were accepted: {where}"
    # What completed without ever having run was said to have happened by an operator.
    assert found or not done or effect.count("attempt-resolved"), f"a result of an effect that never ran: {where}"


async def _judge_ends(world: World, stories: dict[str, list[dict[str, Any]]], desk: Desk) -> None:
    """Every run that is not left in doubt has ended, and what must be undone is."""
    ends: Counter[str] = Counter()
    in_doubt = {at[0] for at in desk.left}
    for run, entries in stories.items():
        found = await world.client.run(run)
        kinds = [(entry["kind"], entry["data"].get("step")) for entry in entries]
        if found["phase"] != "terminal":
            assert (found["unknown_count"], run in in_doubt) == (1, True), found
            ends["in doubt"] += 1
            continue
        ends[f"{found['execution']}, {found['recovery']}"] += 1
        if found["execution"] == "completed":
            assert all(kinds.count(("step-completed", step)) == 1 for step in STEPS)
        elif found["recovery"] in ("compensated", "partially_compensated"):
            _judge_undo([step for kind, step in kinds if kind == "step-completed"], kinds)
    print(", ".join(f"{count} {end}" for end, count in sorted(ends.items())))
    print(f"operator: {desk.commands}, {len(desk.left)} left")


def _judge_undo(completed: list[str | None], kinds: Iterable[tuple[str, str | None]]) -> None:
    visited = [step for kind, step in kinds if kind in ("compensation-succeeded", "compensation-skipped")]
    assert visited == completed[::-1], "undone one by one, the last completed first"
    skipped = [step for kind, step in kinds if kind == "compensation-skipped"]
    assert set(skipped) <= set(STEPS) - set(UNDONE), "only what has no compensator is skipped"
