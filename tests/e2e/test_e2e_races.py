"""Cases from the field in which processes die at the worst moment, on topologies of several processes."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

import anyio
import msgspec
import pytest
from e2e_world import SHORT_LEASES, Site, World, invoke_surely, open_world, submit_surely
from eventually import eventually
from ryusen import AsyncClient

from perf.wire import Connection
from topology.launcher import STOP_S
from topology.tables import Role

CALLERS = 50
RECOVERY_S_MAX = 30.0
PATIENT_LEASES = {"lease_ms": "60000"}
"""So long that whoever waits for one to expire is noticed."""
DEADLY_WORKERS = (0, 1, 2)
HEALTHY_WORKERS = (3, 4)


@pytest.mark.case(2)
async def test_fifty_callers_with_one_key_make_one_event(site: Site, tmp_path: Path) -> None:
    """Case 002, RFD 2 "the same key": three gateways, killed after their commit and before their caller reads a reply.

    "repeat for function invocation": at once and under the same key, which is another operation's own.
    """
    async with open_world("gateways", tmp_path, site) as world, world.clients() as clients:
        payload = {"id": "same"}
        submitted: list[str] = []
        invoked: list[str] = []

        async def call(index: int) -> None:
            anywhere = [clients[index % 3], clients[1]]
            submitted.append(await submit_surely(anywhere, "field.two", payload, "same"))
            invoked.append(await invoke_surely(anywhere, "left", payload, "same"))

        async with anyio.create_task_group() as group:
            for index in range(CALLERS):
                group.start_soon(call, index)
        event = await _killed_before_the_reply(world, 0, "events", {"name": "field.two", "payload": payload})
        repeated = await clients[1].submit("field.two", payload, idempotency_key="unread")
        assert (repeated.event, repeated.replayed) == (event, True)
        path = "applications/field/functions/right/invoke"
        invocation = await _killed_before_the_reply(world, 2, path, {"input": payload})
        again = await clients[1].invoke("field", "right", payload, idempotency_key="unread")
        assert (again.event, again.replayed) == (invocation, True)
        assert (len(submitted), len(invoked)) == (CALLERS, CALLERS)
        assert (len(set(submitted)), len(set(invoked))) == (1, 1)
        for each, functions in (
            (submitted[0], {"left": 1, "right": 1}),
            (event, {"left": 1, "right": 1}),
            (invoked[0], {"left": 1}),
            (invocation, {"right": 1}),
        ):
            runs = await _runs_of(clients[1], each)
            assert Counter(match["function"] for match in runs) == functions
        listed = await clients[1].events()
        assert {item["event"] for item in listed.items} == {submitted[0], event, invoked[0], invocation}
    await world.check()


async def _killed_before_the_reply(world: World, gateway: int, below: str, content: object) -> str:
    """Post to a gateway, kill it once the event is durable, never read the reply; return the event."""
    host, _, port = world.launcher.gateway_url(gateway).removeprefix("http://").partition(":")
    connection = await Connection.open(host, int(port))
    headers = {
        "Authorization": f"Bearer {world.access.client_key}",
        "Content-Type": "application/json",
        "Idempotency-Key": "unread",
    }
    body = msgspec.json.encode(content)
    path = f"/v1/workspaces/{world.access.workspace}/{below}"
    async with world.access.client(world.launcher.gateway_url(1)) as witness:
        before = {item["event"] for item in (await witness.events()).items}

        async def look() -> set[str]:
            return {item["event"] for item in (await witness.events()).items} - before

        connection.send("POST", path, headers, body)
        (event,) = await eventually(look, "the event is durable")
        await world.launcher.kill(Role.GATEWAY, gateway)
    await connection.close()
    return event


async def _runs_of(client: AsyncClient, event: str) -> list[dict[str, object]]:
    async def look() -> list[dict[str, object]]:
        found = await client.event(event)
        items: list[dict[str, object]] = found["matches"]["items"]
        return items if found["expansion"]["state"] == "complete" else []

    return await eventually(look, f"event {event} is expanded")


@pytest.mark.case(10)
async def test_what_a_killed_process_had_claimed_is_taken_over(site: Site, tmp_path: Path) -> None:
    """Case 010, RFD 2 "any process": fan-out, dispatcher and worker die in the middle of their claims and stay dead."""
    async with open_world("pairs", tmp_path, site, settings=SHORT_LEASES, capacity=4) as world:
        events = [await world.client.submit("field.steady", {"id": str(n), "work_ms": 50}) for n in range(40)]

        async def has_claimed() -> bool:
            return len(world.marks("begin")) >= 8

        await eventually(has_claimed, "work has been claimed")
        victim = world.launcher.process(Role.WORKER, 0).pid
        async with anyio.create_task_group() as group:
            for role in (Role.FANOUT, Role.DISPATCHER, Role.WORKER):
                group.start_soon(world.launcher.kill, role, 0)
        runs = [(await world.runs_of(receipt.event))[0] for receipt in events]
        unknown = 0
        for run in runs:
            ended = await _ended_or_unknown(world, run)
            assert set(world.begun(run).values()) <= {1}, "an effect ran twice"
            if ended["phase"] != "terminal":
                unknown += 1
                # Killed between its authorization and its first line, an effect is Unknown as well, and left no mark.
                assert {mark.pid for mark in world.marks() if mark.run == run} <= {victim}
        # At most what one worker may hold can be in doubt.
        assert unknown <= 4
    await world.check()


async def _ended_or_unknown(world: World, run: str) -> dict[str, object]:
    async def look() -> dict[str, object] | None:
        found: dict[str, object] = await world.client.run(run)
        return found if found["phase"] == "terminal" or found["unknown_count"] else None

    return await eventually(look, f"run {run} is terminal or in doubt", seconds_max=RECOVERY_S_MAX)


@pytest.mark.case(34)
async def test_what_was_acknowledged_is_expanded_whoever_dies(site: Site, tmp_path: Path) -> None:
    """Case 034 in small: 150 events of two bindings, gateways and fan-out killed one after another while they come in."""
    async with open_world("pairs", tmp_path, site, settings=SHORT_LEASES) as world, world.clients() as clients:
        events: list[str] = []
        limiter = anyio.CapacityLimiter(8)

        async def submit(number: int) -> None:
            async with limiter:
                events.append(await submit_surely(clients, "field.two", {"id": str(number)}, f"034-{number}"))

        async def kill_one_after_another() -> None:
            for role in (Role.GATEWAY, Role.FANOUT, Role.DISPATCHER):
                for index in (0, 1):
                    await world.launcher.kill(role, index)
                    await world.launcher.restart(role, index)

        async with anyio.create_task_group() as group:
            group.start_soon(kill_one_after_another)
            for number in range(150):
                group.start_soon(submit, number)
        assert len(set(events)) == 150
        for event in events:
            functions = Counter(match["function"] for match in await _runs_of(clients[0], event))
            assert functions == {"left": 1, "right": 1}
    await world.check()


@pytest.mark.case(70)
async def test_a_rolling_restart_leaves_nothing_in_limbo(site: Site, tmp_path: Path) -> None:
    """Case 070, ARCHITECTURE 2 "SIGTERM drains": every process is replaced under load; no lease has to expire for that."""
    async with open_world("pairs", tmp_path, site, settings=PATIENT_LEASES) as world, world.clients() as clients:
        events: list[str] = []
        limiter = anyio.CapacityLimiter(8)

        async def submit(number: int) -> None:
            async with limiter:
                request = {"id": str(number), "work_ms": 100}
                events.append(await submit_surely(clients, "field.steady", request, f"070-{number}"))

        async def replace_each() -> None:
            for role in (Role.DISPATCHER, Role.WORKER, Role.FANOUT, Role.GATEWAY):
                for index in (0, 1):
                    process = world.launcher.process(role, index)
                    process.signal(signal.SIGTERM)
                    assert await process.wait(STOP_S) == 0, process.log_tail()
                    await world.launcher.restart(role, index)

        async with anyio.create_task_group() as group:
            group.start_soon(replace_each)
            for number in range(60):
                group.start_soon(submit, number)
        for event in events:
            (run,) = await world.runs_of(event)
            ended = await world.ended(run, seconds_max=RECOVERY_S_MAX)
            assert ended["status"] == "completed"
            assert set(world.begun(run).values()) == {1}
            kinds = await world.kinds(run)
            assert (kinds["attempt-unknown"], kinds["attempt-failed"]) == (0, 0)
    await world.check()


@pytest.mark.case(53)
async def test_work_that_kills_its_worker_is_neither_repeated_nor_unbounded(site: Site, tmp_path: Path) -> None:
    """Case 053, RFD 1 ¶47: exit 137 inside a step is Unknown once; outside steps it comes again ever later, in sight."""
    async with (
        open_world("fleet", tmp_path, site, settings=SHORT_LEASES, capacity=2, workers=DEADLY_WORKERS) as world,
        world.other_workspace("healthy") as other,
        anyio.create_task_group() as group,
    ):
        await other.start_workers(indices=HEALTHY_WORKERS)
        for index in DEADLY_WORKERS:
            group.start_soon(_keep_alive, world, index)
        inside = await world.begin("field.deadly-step", {"id": "inside"})
        await world.until_kind(inside, "attempt-unknown")
        gate = world.gate("deadly")
        outside = await world.begin("field.deadly-code", {"gate": str(gate)})
        healthy = [await other.begin("field.steady", {"id": f"healthy-{n}"}) for n in range(20)]
        for run in healthy:
            assert (await other.ended(run))["status"] == "completed"
        await world.until_kind(outside, "pass-lost", count=3)
        lost = [entry for entry in await world.history(outside) if entry["kind"] == "pass-lost"]
        delays_ms = [entry["data"]["eligible_at_ms"] - entry["at_ms"] for entry in lost]
        assert [entry["data"]["losses"] for entry in lost[:3]] == [1, 2, 3]
        assert delays_ms == sorted(delays_ms)
        assert delays_ms[0] < delays_ms[2]
        gate.touch()
        assert (await world.ended(outside))["output"] == "survived"
        doubted = await world.client.run(inside)
        assert (doubted["unknown_count"], doubted["waiting"]["word"]) == (1, "operator")
        assert world.begun(inside) == {"die": 1}
        assert (await world.kinds(inside))["attempt-authorized"] == 1
        group.cancel_scope.cancel()
    await world.check()


async def _keep_alive(world: World, index: int) -> None:
    """Start a worker again whenever it has died, as any process supervisor does."""
    while True:
        await world.launcher.process(Role.WORKER, index).ended()
        await world.launcher.restart(Role.WORKER, index)
