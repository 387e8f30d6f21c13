"""A worker whose connection breaks in every way at every moment: it comes back, and nothing is lost or repeated."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

import anyio
import pytest
from e2e_world import APPS, SHORT_LEASES, Site, World, open_world
from eventually import eventually
from relay import Break, CloseWith, How, Relay, open_relay
from ryusen.worker.shell import Worker, WorkerOptions

from topology.demo import load_module

CODES = (1000, 1001, 1002, 1003, 1007, 1008, 1009, 1011, 1012, 1013, 1014, 3000, 4400, 4403, 4408, 4409, 4413, 4429)
"""What a dispatcher, a balancer or a proxy may close with; none of them is a definitive refusal."""
WAYS: tuple[How, ...] = (Break.RESET, Break.FIN, *(CloseWith(code) for code in CODES))
END_S_MAX = 20.0


class AtOnce(random.Random):
    """Lets a worker come back without a pause, so that a test of fifty broken connections takes no minutes."""

    def uniform(self, a: float, b: float) -> float:
        return 0.01


@pytest.fixture(scope="module")
async def world(site: Site, tmp_path_factory: pytest.TempPathFactory, anyio_backend: str) -> AsyncIterator[World]:
    folder = tmp_path_factory.mktemp("connections")
    async with open_world("demo", folder, site, settings=SHORT_LEASES, workers=()) as opened:
        yield opened
    await opened.check()


@pytest.fixture
async def relay(world: World) -> AsyncIterator[Relay]:
    async with open_relay([int(world.launcher.dispatcher_url().rpartition(":")[2])]) as opened:
        yield opened


@pytest.fixture
async def worker(world: World, relay: Relay, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Worker]:
    """A worker in this process, whose readiness can be asked."""
    monkeypatch.setenv("FIELD_LEDGER", str(world.ledger))
    app = load_module(APPS / "field.py").app
    running = Worker(app, WorkerOptions(url=relay.url, key=world.access.worker_key, capacity=4), jitter=AtOnce())
    codes: list[int] = []

    async def run() -> None:
        codes.append(await running.run())

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await until_connected(running)
        yield running
        running.stop()
    assert codes == [0], "only its own stop ends a worker"


async def until_connected(worker: Worker) -> None:
    async def look() -> bool:
        return worker.is_connected

    await eventually(look, "the worker is connected")


def named(how: How) -> str:
    return f"code {how.code}" if isinstance(how, CloseWith) else how.value


@pytest.mark.case(71)
@pytest.mark.parametrize("moment", ["at rest", "during a callback", "before the acknowledgement"])
async def test_every_end_of_a_connection_leads_to_another_one(
    world: World, relay: Relay, worker: Worker, moment: str
) -> None:
    """Case 071, RFD 2 "reports after reconnection": reset, end and every close code; each effect once, none in doubt."""
    for how in WAYS:
        name = f"{moment}, {named(how)}"
        before = relay.connection_count
        if moment == "at rest":
            await relay.cut(how)
            await relay.until_connected(after=before)
            run = await world.begin("field.once", {"id": name})
        elif moment == "during a callback":
            gate = world.gate(name)
            run = await world.begin("field.gated", {"gate": str(gate)})
            await world.until_begun(run, "wait")
            await relay.cut(how)
            await relay.until_connected(after=before)
            gate.touch()
        else:
            relay.trap("settled", how)
            run = await world.begin("field.once", {"id": name})
            await relay.until_connected(after=before)
            assert relay.is_sprung, name
        await judge(world, run, name)
        await until_connected(worker)


async def judge(world: World, run: str, name: str) -> None:
    assert (await world.ended(run, seconds_max=END_S_MAX))["status"] == "completed", name
    kinds = await world.kinds(run)
    assert (kinds["step-completed"], kinds["attempt-unknown"], kinds["attempt-failed"]) == (1, 0, 0), name
    assert kinds["attempt-authorized"] - kinds["attempt-not-started"] == 1, name
    assert sum(world.begun(run).values()) == 1, name


@pytest.mark.case(71)
async def test_a_bad_gateway_is_outwaited_and_readiness_shows_the_gap(
    world: World, relay: Relay, worker: Worker
) -> None:
    """Case 071: a proxy that answers 502 on the upgrade, again and again, during a callback whose result is kept."""
    gate = world.gate("bad-gateway")
    run = await world.begin("field.gated", {"gate": str(gate)})
    await world.until_begun(run, "wait")
    relay.is_bad_gateway = True
    before = relay.connection_count
    await relay.cut(Break.RESET)

    async def is_refused_often() -> bool:
        return relay.connection_count >= before + 5

    await eventually(is_refused_often, "the worker has tried five times")
    assert not worker.is_connected
    gate.touch()
    relay.is_bad_gateway = False
    assert (await world.ended(run))["status"] == "completed"
    assert world.begun(run) == {"wait": 1}
    await until_connected(worker)


@pytest.mark.case(71)
async def test_a_connection_that_only_falls_silent_is_left(world: World, relay: Relay, worker: Worker) -> None:
    """Case 071 "idle cut": nothing is closed, nothing comes through; found by the silence, the late result is accepted."""
    gate = world.gate("silence")
    run = await world.begin("field.gated", {"gate": str(gate)})
    await world.until_begun(run, "wait")
    before = relay.connection_count
    await relay.cut(Break.SILENCE)
    await relay.until_connected(after=before)
    gate.touch()
    assert (await world.ended(run))["status"] == "completed"
    kinds = await world.kinds(run)
    assert (kinds["attempt-authorized"], kinds["step-completed"]) == (1, 1)
    assert world.begun(run) == {"wait": 1}
