"""Timers and emissions over real processes: a sleep that outlives its dispatcher, and how late timers wake."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest
from e2e_world import SHORT_LEASES, Site, World, open_world
from eventually import eventually
from sizes import at_scale

from topology.tables import Role

SLEEP_MS = 2_000
CALLERS = 8
APART_MS = 40
"""Between the instants of two timers: the service is idle when each comes."""
BUSY_LATE_MS_MAX = 250
"""At the median, on a machine with other things to do."""
LATE_MS_MAX = 10
"""At the median, where nothing else is tested."""


@pytest.fixture(scope="module")
async def world(site: Site, tmp_path_factory: pytest.TempPathFactory, anyio_backend: str) -> AsyncIterator[World]:
    folder = tmp_path_factory.mktemp("timers")
    async with open_world("demo", folder, site, settings=SHORT_LEASES) as opened:
        yield opened
    await opened.check()


async def lateness_ms(world: World, run: str) -> int:
    """Return how long after its anchor a run's timer woke it, as its history says."""
    woke = [
        entry
        for entry in await world.history(run)
        if entry["kind"] == "step-completed" and "due_at_ms" in entry["data"]
    ]
    (entry,) = woke
    return int(entry["at_ms"]) - int(entry["data"]["due_at_ms"])


@pytest.mark.case(28)
async def test_a_sleep_outlives_its_dispatcher(world: World) -> None:
    """RFD 2, "a rediscovery, a replay, or a restart never measures the delay again"; case 028: kill -9 in the middle, gone past the anchor, one wake after."""
    run = await world.begin("field.sleepy", {"sleep_ms": SLEEP_MS})
    await world.until_kind(run, "step-declared")
    await world.launcher.kill(Role.DISPATCHER)
    step = (await world.client.steps(run)).items[0]
    assert (step["kind"], step["state"], step["attempts"]) == ("timer", "waiting", [])
    found = await world.client.run(run)
    assert (found["waiting"]["word"], found["waiting"]["until_ms"]) == ("timer", step["due_at_ms"])
    await anyio.sleep((SLEEP_MS + 500) / 1_000)  # the anchor passes while nobody is there to see it
    await world.launcher.restart(Role.DISPATCHER)
    ended = await world.ended(run)
    assert (ended["status"], ended["output"]) == ("completed", 1)
    settled = (await world.client.steps(run)).items
    assert {one["step"]: one["due_at_ms"] for one in settled} == {"nap": step["due_at_ms"], "only": None}
    kinds = await world.kinds(run)
    assert (kinds["step-declared"], kinds["step-completed"]) == (2, 2)
    assert world.begun(run) == {"only": 1}


async def test_a_dispatcher_that_comes_back_in_time_wakes_on_time(world: World) -> None:
    """ARCHITECTURE 4, "a timer is on time": the anchor does not move because the process that will fire it is another."""
    run = await world.begin("field.sleepy", {"sleep_ms": SLEEP_MS})
    await world.until_kind(run, "step-declared")
    await world.launcher.kill(Role.DISPATCHER)
    await world.launcher.restart(Role.DISPATCHER)
    assert (await world.ended(run))["status"] == "completed"
    assert await lateness_ms(world, run) >= 0


@pytest.mark.parametrize(
    ("asleep", "late_ms_max"), [pytest.param(40, BUSY_LATE_MS_MAX, id="40"), at_scale(500, LATE_MS_MAX, name="500")]
)
async def test_how_late_timers_wake(world: World, asleep: int, late_ms_max: int) -> None:
    """Case 029 and "500 asleep wake at most 10 ms late at p50, reported with p99": each wakes once, and none early."""
    runs: list[str] = []
    limiter = anyio.CapacityLimiter(CALLERS)

    async def begin(number: int) -> None:
        async with limiter:
            sleep_ms = SLEEP_MS + (asleep + number) * APART_MS
            runs.append(await world.begin("field.sleepy", {"sleep_ms": sleep_ms}))

    async with anyio.create_task_group() as group:
        for number in range(asleep):
            group.start_soon(begin, number)
    for run in runs:
        assert (await world.ended(run, seconds_max=60 + asleep * APART_MS / 500))["status"] == "completed"
    late = sorted([await lateness_ms(world, run) for run in runs])
    p50, p99 = late[len(late) // 2], late[min(len(late) - 1, len(late) * 99 // 100)]
    print(f"\n{len(late)} timers, {APART_MS} ms apart: late by p50 {p50} ms, p99 {p99} ms, at most {late[-1]} ms")
    assert late[0] >= 0, "none is early"
    assert p50 <= late_ms_max


@pytest.mark.case(1)
async def test_an_emission_survives_whoever_dies(world: World) -> None:
    """RFD 2, "no committed state holds an accepted event without the step that emitted it": worker and dispatcher are killed
    behind it, and one event stands, with its one run."""
    run = await world.begin("field.telling", {"work_ms": 300})
    await world.until_begun(run, "third")
    await world.launcher.kill(Role.DISPATCHER)
    await world.launcher.restart(Role.DISPATCHER)

    async def told() -> dict[str, str] | None:
        steps = {step["step"]: step for step in (await world.client.steps(run)).items}
        return steps.get("tell")

    step = await eventually(told, "the emission is recorded")
    event = await world.client.event(step["event"])
    assert (event["name"], event["correlation"]) == ("field.once", {"from": run})
    (heard,) = await world.runs_of(step["event"])
    assert (await world.ended(heard))["status"] == "completed"
    ended = await world.ended(run)
    assert (ended["status"], ended["output"]) == ("completed", step["event"])
    assert world.begun(run) == {"first": 1, "third": 1}
