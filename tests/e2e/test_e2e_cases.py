"""Cases from the field on real processes with short leases: one topology, one worker, each test its own runs."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import AsyncIterator

import anyio
import pytest
from e2e_world import SHORT_LEASES, Site, World, open_world
from eventually import eventually

from topology.tables import Role

LEASE_S = int(SHORT_LEASES["lease_ms"]) / 1_000
ODDITIES = {
    "demanding": "application",
    "group": "application",
    "cycle": "application",
    "exit": "application",
    "interrupt": "application",
    "generator": "sdk.invalid_result",
    "lock": "sdk.invalid_result",
    "file": "sdk.invalid_result",
    "huge": "sdk.invalid_result",
    "never again": "application",
}
"""How user code may misbehave, and the category of the failure that the function is told of."""


@pytest.fixture(scope="module")
async def world(site: Site, tmp_path_factory: pytest.TempPathFactory, anyio_backend: str) -> AsyncIterator[World]:
    folder = tmp_path_factory.mktemp("cases")
    async with open_world("demo", folder, site, settings=SHORT_LEASES) as opened:
        yield opened
    await opened.check()


async def test_an_event_becomes_a_run_and_its_history_streams_to_the_end(world: World) -> None:
    """RFD 2, "A run moves through": one event, three steps, all parts. Would catch any part that is not wired to the next."""
    run = await world.begin("field.steady", {"id": "first"}, idempotency_key="first")
    with anyio.fail_after(20):
        streamed = [entry async for entry in world.client.follow(run)]
    found = await world.ended(run)
    assert (found["status"], found["output"], found["recovery"]) == ("completed", 7, "not_required:execution_succeeded")
    assert streamed == await world.history(run)
    assert [entry["ordinal"] for entry in streamed] == list(range(1, len(streamed) + 1))
    assert Counter(entry["kind"] for entry in streamed) == {
        "run-created": 1,
        "pass-authorized": 4,
        "step-declared": 3,
        "attempt-authorized": 3,
        "step-completed": 3,
        "run-completed": 1,
    }
    assert world.begun(run) == {"first": 1, "second": 1, "third": 1}


@pytest.mark.case(11)
async def test_a_callback_that_blocks_its_loop_keeps_its_lease(world: World) -> None:
    """Case 011, RFD 2 "leases are renewed": blocks for more than two leases, four neighbours wait beside it; none is lost."""
    runs = [await world.begin("field.steady", {"id": f"neighbour-{index}", "work_ms": 200}) for index in range(4)]
    blocked = await world.begin("field.blocking", {"work_ms": int(LEASE_S * 2_500)})
    for run in (blocked, *runs):
        assert (await world.ended(run))["status"] == "completed"
        kinds = await world.kinds(run)
        assert (kinds["attempt-unknown"], kinds["pass-lost"], kinds["attempt-failed"]) == (0, 0, 0)
        assert set(world.begun(run).values()) == {1}
    # The worker says whose fault the wait was.
    assert "user code blocks the event loop" in world.launcher.log(Role.WORKER).read_text()


@pytest.mark.case(11)
async def test_a_callback_that_holds_the_interpreter_is_unknown_until_its_late_result(world: World) -> None:
    """Case 011, last part: nothing in its process can renew for three leases. Its success settles it; it is not run again."""
    run = await world.begin("field.holding", {"work_ms": int(LEASE_S * 3_000)})
    await world.until_kind(run, "attempt-unknown", seconds_max=LEASE_S * 10)
    assert world.begun(run) == {"hold": 1}
    found = await world.ended(run, seconds_max=LEASE_S * 20)
    assert (found["status"], found["output"], found["unknown_count"]) == ("completed", "held", 0)
    assert world.begun(run) == {"hold": 1}
    kinds = await world.kinds(run)
    assert (kinds["attempt-authorized"], kinds["attempt-unknown"], kinds["step-completed"]) == (1, 1, 1)


@pytest.mark.case(68)
async def test_exceptions_and_results_that_cannot_travel_become_failures(world: World) -> None:
    """Case 068, FILLED-IN 3: each oddity is a structured failure at once, and the worker lives on."""
    pid = world.launcher.process(Role.WORKER).pid
    run = await world.begin("field.odd", {"oddities": list(ODDITIES)})
    found = await world.ended(run)
    assert found["status"] == "completed", found["failure"]
    assert {name: told[0] for name, told in found["output"].items()} == ODDITIES
    steps = (await world.client.steps(run)).items
    assert {step["step"]: step["failure"]["category"] for step in steps} == ODDITIES
    assert world.launcher.process(Role.WORKER).is_alive
    assert world.launcher.process(Role.WORKER).pid == pid


@pytest.mark.case(68)
@pytest.mark.parametrize("oddity", list(ODDITIES))
async def test_the_same_at_the_function_s_end_fails_the_run(world: World, oddity: str) -> None:
    """Case 068: outside steps the run fails with the same category, at once; it is never left hanging."""
    run = await world.begin("field.odd-end", {"oddity": oddity})
    found = await world.ended(run)
    assert (found["status"], found["failure"]["category"]) == ("failed", ODDITIES[oddity])


@pytest.mark.case(71)
async def test_a_worker_reconnects_when_its_dispatcher_is_killed_and_delivers(world: World) -> None:
    """Case 071: killed during a callback; the worker comes back by itself and the result it kept settles the attempt."""
    gate = world.gate("reconnect")
    run = await world.begin("field.gated", {"gate": str(gate)})
    await world.until_begun(run, "wait")
    worker = world.launcher.process(Role.WORKER)
    await world.launcher.kill(Role.DISPATCHER)
    gate.touch()
    await world.launcher.restart(Role.DISPATCHER)
    found = await world.ended(run)
    assert (found["status"], found["output"]) == ("completed", "through")
    assert world.begun(run) == {"wait": 1}
    assert worker.is_alive


@pytest.mark.case(7)
async def test_a_callback_that_outlives_the_service_s_absence_runs_once(world: World) -> None:
    """Case 007, RFD 1 "Unknown": no dispatcher until the lease is over; the late result of the former session settles it."""
    gate = world.gate("absence")
    run = await world.begin("field.gated", {"gate": str(gate)})
    await world.until_begun(run, "wait")
    await world.launcher.kill(Role.DISPATCHER)
    await _pass_lease(world, run)
    await world.launcher.restart(Role.DISPATCHER)
    await world.until_kind(run, "attempt-unknown")
    found = await world.client.run(run)
    assert (found["unknown_count"], found["waiting"]["word"]) == (1, "operator")
    gate.touch()
    found = await world.ended(run)
    assert (found["status"], found["output"], found["unknown_count"]) == ("completed", "through", 0)
    assert world.begun(run) == {"wait": 1}
    kinds = await world.kinds(run)
    assert (kinds["attempt-authorized"], kinds["attempt-unknown"], kinds["step-completed"]) == (1, 1, 1)


@pytest.mark.case(70)
async def test_a_worker_that_is_told_to_stop_finishes_and_gives_back(world: World) -> None:
    """Case 070 in small: SIGTERM during a callback; it ends well, the result is delivered, nothing new is taken, exit 0."""
    gate = world.gate("drain")
    run = await world.begin("field.gated", {"gate": str(gate)})
    await world.until_begun(run, "wait")
    worker = world.launcher.process(Role.WORKER)
    worker.signal(signal.SIGTERM)

    async def is_leaving() -> bool:
        return "leaving" in world.launcher.log(Role.WORKER).read_text()

    await eventually(is_leaving, "the worker says that it leaves")
    late = await world.begin("field.steady", {"id": "late"})
    gate.touch()
    assert await worker.wait(20) == 0
    assert (await world.kinds(run))["step-completed"] == 1
    assert world.begun(late) == {}
    await world.launcher.restart(Role.WORKER)
    for each in (run, late):
        assert (await world.ended(each))["status"] == "completed"
        assert (await world.kinds(each))["attempt-unknown"] == 0
        assert set(world.begun(each).values()) == {1}


async def _pass_lease(world: World, run: str) -> None:
    """Wait until the run's item is past its expiry by the gateway's own account."""

    async def look() -> bool:
        found = await world.client.run(run)
        waiting = found["waiting"]
        return waiting["word"] == "running" and waiting["until_ms"] < await _server_now_ms(world)

    await eventually(look, f"the lease of run {run} is over", seconds_max=LEASE_S * 5)


async def _server_now_ms(world: World) -> int:
    """Return the service's time, as it stamps a new event."""
    receipt = await world.client.submit("field.nobody-listens")
    assert receipt.accepted_at_ms is not None
    return receipt.accepted_at_ms
