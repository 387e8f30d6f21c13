"""Processes that are told to stop: nothing new begins, what runs is finished or left in doubt, the rest is handed over at once.

Leases are long against everything a hand-over takes, so that no lease can have run out where none was waited for.
"""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator

import pytest
from aftermath import Story, now_ms
from e2e_world import Mark, Site, World, open_world
from eventually import eventually
from relay import Relay, open_relay, start_behind

from topology.process import Process
from topology.tables import Role

LEASE_MS = 4_000
SETTINGS = {"lease_ms": str(LEASE_MS), "skew_ms": "200", "drain_ms": "8000"}
AT_ONCE_MS = LEASE_MS / 2
"""What needs no lease to run out has happened by then, also on a busy machine."""
GRACE_MS = 4_000
SHORT_MS = (2_400, 2_000, 1_600, 1_300, 1_000, 800, 600, 400)
LONG_MS = (30_000, 60_000)
EXIT_UNFINISHED = 1
EXIT_STOPPED = 143
PROMPT_S = 10.0
"""For a process that has nothing to wait for to end, on a busy machine."""
STAYING = 2
STREAM = 8


@pytest.fixture(scope="module")
async def world(site: Site, tmp_path_factory: pytest.TempPathFactory, anyio_backend: str) -> AsyncIterator[World]:
    folder = tmp_path_factory.mktemp("drains")
    async with open_world("pairs", folder, site, settings=SETTINGS, workers=()) as opened:
        yield opened
    await opened.check()


@pytest.fixture
async def relay(world: World) -> AsyncIterator[Relay]:
    """A balancer before both dispatchers."""
    async with open_relay([int(world.launcher.dispatcher_url(index).rpartition(":")[2]) for index in (0, 1)]) as opened:
        yield opened
        # Whatever a failed test has left would fail the next ones.
        for process in world.launcher.processes:
            if process.name.startswith(Role.WORKER.value):
                await process.kill()
        for index in (0, 1):
            if not world.launcher.process(Role.DISPATCHER, index).is_alive:
                await world.launcher.restart(Role.DISPATCHER, index)


@pytest.mark.case(70)
async def test_a_drained_worker_finishes_gives_back_and_leaves_the_rest_in_doubt(world: World, relay: Relay) -> None:
    """Case 070, RFD 2 "Lease expiry before start authorization": ten callbacks, two deliveries not begun, a grace."""
    async with open_relay(relay.backends) as other:
        staying = await start_behind(other, world, 1, capacity=STAYING)
        # Kept busy, so that everything else is the leaving worker's.
        gate = world.gate("busy")
        busy = [await world.begin("field.gated", {"gate": str(gate)}) for _ in range(STAYING)]
        for run in busy:
            await world.until_begun(run, "wait")
        leaving = await start_behind(relay, world, 0, capacity=12, grace=f"{GRACE_MS}ms")
        waiting = [await begin_second_try(world, f"waiting-{number}") for number in range(2)]
        for number, run in enumerate(waiting):
            await until_mark(world, run, "pass", leaving.pid)
            world.gate(f"waiting-{number}-{staying.pid}").touch()
        long = [await world.begin("field.once", {"work_ms": ms}) for ms in LONG_MS]
        short = [await world.begin("field.once", {"work_ms": ms}) for ms in SHORT_MS]
        for run in (*long, *short):
            await world.until_begun(run, "only")
        told_ms = await tell(world, leaving)
        before = len(world.marks())
        gate.touch()
        late = [await world.begin("field.steady", {"id": f"late-{number}"}) for number in range(4)]
        picked_up = [await picked_up_ms(world, run) - told_ms for run in waiting]
        print(f"\ndrained: what had not begun was picked up after {max(picked_up):.0f} ms")
        assert max(picked_up) < AT_ONCE_MS
        for run in waiting:
            assert (await world.ended(run))["status"] == "completed"
        assert await leaving.wait(GRACE_MS / 1_000 + PROMPT_S) == EXIT_UNFINISHED
        assert now_ms() - told_ms >= GRACE_MS
        await judge_left(world, long, told_ms)
        for run in (*busy, *short, *late):
            assert (await world.ended(run))["status"] == "completed"
        assert begun_by(world.marks()[before:], leaving.pid) == [], "new work began in a worker that was leaving"
        for run in (*short, *late, *waiting):
            kinds = await world.kinds(run)
            assert (kinds["attempt-unknown"], kinds["pass-lost"]) == (0, 0)
            assert set(begins(world, run).values()) == {1}
        for run in waiting:
            kinds = await world.kinds(run)
            # It went back with its ordinal: the one failure is the first attempt's own.
            assert (kinds["attempt-failed"], kinds["step-completed"]) == (1, 1)
            assert {mark.pid for mark in world.marks("begin") if mark.run == run and mark.attempt == 2} == {staying.pid}
        staying.signal(signal.SIGTERM)
        assert await staying.wait(PROMPT_S) == 0


async def judge_left(world: World, long: list[str], told_ms: float) -> None:
    """What the grace did not suffice for was kept alive to its end, and is in doubt then, not failed and not repeated."""
    for run in long:
        await world.until_kind(run, "attempt-unknown")
        kinds = await world.kinds(run)
        assert (kinds["attempt-authorized"], kinds["attempt-unknown"], kinds["attempt-failed"]) == (1, 1, 0)
        unknown = next(entry for entry in await world.history(run) if entry["kind"] == "attempt-unknown")
        # Renewed for the last time at most a third of a lease before the end of the grace.
        assert unknown["at_ms"] - told_ms >= GRACE_MS + LEASE_MS / 2
        found = await world.client.run(run)
        assert (found["unknown_count"], found["waiting"]["word"]) == (1, "operator")
        assert world.begun(run) == {"only": 1}


@pytest.mark.case(70)
@pytest.mark.parametrize(("grace", "signals", "code"), [("60s", 2, EXIT_STOPPED), ("0s", 1, EXIT_UNFINISHED)])
async def test_a_second_signal_and_a_grace_of_nothing_end_it_at_once(
    world: World, relay: Relay, grace: str, signals: int, code: int
) -> None:
    """Case 070: told twice, or given no time, a worker ends although its callback goes on; the attempt is in doubt, once."""
    worker = await start_behind(relay, world, 0, capacity=2, grace=grace)
    run = await world.begin("field.gated", {"gate": str(world.gate(f"never-{grace}"))})
    await world.until_begun(run, "wait")
    await tell(world, worker)
    if signals == 2:
        worker.signal(signal.SIGTERM)
    assert await worker.wait(PROMPT_S) == code
    await world.until_kind(run, "attempt-unknown")
    assert (await world.kinds(run))["attempt-failed"] == 0
    assert world.begun(run) == {"wait": 1}


@pytest.mark.case(70)
async def test_a_drained_dispatcher_hands_its_sessions_over_at_once(world: World, relay: Relay) -> None:
    """Case 070, ARCHITECTURE 6 "drain": under load, to the other dispatcher, long before any lease is over."""
    worker = await start_behind(relay, world, 0, capacity=STREAM + 1)
    gate = world.gate("over")
    held = await world.begin("field.gated", {"gate": str(gate)})
    await world.until_begun(held, "wait")
    stream = [await world.begin("field.steady", {"id": f"s-{n}", "work_ms": 300}) for n in range(STREAM)]
    for run in stream:
        await world.until_begun(run, "first")
    index = next(i for i in (0, 1) if str(relay.backend) in world.launcher.dispatcher_url(i))
    dispatcher = world.launcher.process(Role.DISPATCHER, index)
    before, told_ms = relay.connection_count, now_ms()
    dispatcher.signal(signal.SIGTERM)
    await relay.until_connected(after=before)
    moved_ms = now_ms() - told_ms
    for run in stream:
        assert (await world.ended(run))["status"] == "completed"
    gate.touch()
    assert (await world.ended(held))["status"] == "completed"
    assert await dispatcher.wait(PROMPT_S) == 0
    still = [Story(run, await world.history(run)).still_ms(told_ms) for run in stream]
    slowest = max(late for late in still if late is not None)
    print(f"\ndrained: the worker moved after {moved_ms:.0f} ms, every run had gone on after {slowest:.0f} ms")
    assert slowest < AT_ONCE_MS
    for run in (held, *stream):
        kinds = await world.kinds(run)
        # One authorized in the moment of leaving may be proven not to have begun; that waits for no lease either.
        assert (kinds["attempt-unknown"], kinds["pass-lost"]) == (0, 0)
        assert set(world.begun(run).values()) == {1}
    worker.signal(signal.SIGTERM)
    assert await worker.wait(PROMPT_S) == 0


@pytest.mark.case(70)
async def test_worker_and_dispatcher_leave_together_and_nothing_is_lost(world: World, relay: Relay) -> None:
    """Case 070 "dispatcher drained at the same time": the leaving worker delivers through the other one, and ends well."""
    worker = await start_behind(relay, world, 0, capacity=4, grace="20s")
    gate = world.gate("together")
    runs = [await world.begin("field.gated", {"gate": str(gate)}) for _ in range(4)]
    for run in runs:
        await world.until_begun(run, "wait")
    index = next(i for i in (0, 1) if str(relay.backend) in world.launcher.dispatcher_url(i))
    dispatcher = world.launcher.process(Role.DISPATCHER, index)
    before = relay.connection_count
    for process in (worker, dispatcher):
        process.signal(signal.SIGTERM)
    await relay.until_connected(after=before)
    gate.touch()
    assert await worker.wait(PROMPT_S) == 0
    assert await dispatcher.wait(PROMPT_S) == 0
    for run in runs:
        kinds = await world.kinds(run)
        assert (kinds["step-completed"], kinds["attempt-unknown"], kinds["attempt-failed"]) == (1, 0, 0)
    await world.launcher.restart(Role.DISPATCHER, index)
    after = await start_behind(relay, world, 1, capacity=4)
    for run in runs:
        assert (await world.ended(run))["status"] == "completed"
        assert world.begun(run) == {"wait": 1}
    after.signal(signal.SIGTERM)
    assert await after.wait(PROMPT_S) == 0


async def begin_second_try(world: World, name: str) -> str:
    """Begin a run whose second attempt waits inside the worker, not begun, until the worker's own gate opens."""
    tried = world.launcher.folder / f"tried-{name}"
    return await world.begin("field.second-try", {"id": name, "tried": str(tried), "gate": str(world.gate(name))})


async def tell(world: World, worker: Process) -> float:
    """Tell a worker to stop, wait until it says that it leaves, and return when it was told."""
    said = worker.log_tail().count("leaving")
    told_ms = now_ms()
    worker.signal(signal.SIGTERM)

    async def is_leaving() -> bool:
        return worker.log_tail().count("leaving") > said

    await eventually(is_leaving, "the worker says that it leaves")
    return told_ms


async def until_mark(world: World, run: str, kind: str, pid: int) -> None:
    async def look() -> bool:
        return any((mark.run, mark.pid) == (run, pid) for mark in world.marks(kind))

    await eventually(look, f"run {run} has a mark {kind}")


async def picked_up_ms(world: World, run: str) -> float:
    """Return when the second attempt of a run was authorized."""

    async def look() -> list[float]:
        history = await world.history(run)
        return [e["at_ms"] for e in history if e["kind"] == "attempt-authorized" and e["data"]["attempt"] == 2]

    return (await eventually(look, f"the second attempt of run {run} is authorized"))[-1]


def begun_by(marks: list[Mark], pid: int) -> list[Mark]:
    return [mark for mark in marks if mark.mark == "begin" and mark.pid == pid]


def begins(world: World, run: str) -> dict[tuple[str, int], int]:
    """Return how often each attempt of a run began."""
    counts: dict[tuple[str, int], int] = {}
    for mark in world.marks("begin"):
        if mark.run == run:
            counts[mark.step, mark.attempt] = counts.get((mark.step, mark.attempt), 0) + 1
    return counts
