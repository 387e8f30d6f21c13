"""Submissions that overlap, over several gateways (case 002), and commits whose outcome nobody tells."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from gateway_world import SYSTEM_KEY, GatewayWorld

from keyspace.layout import CLAIM, EVENT
from services.gateway.app import gateway_app

EVENTS = "/v1/workspaces/acme/events"
SUBMISSIONS = 50


@pytest.mark.case(2)
async def test_fifty_equal_submissions_over_three_gateways_are_one_event(world: GatewayWorld) -> None:
    """Case 002: all replies name one event; one claim, one obligation, one run for each matching binding."""
    apps = [gateway_app(world.start_gateway()) for _ in range(3)]
    answers: list[dict[str, Any]] = []

    async def submit(number: int) -> None:
        answers.append(
            await world.ask(
                "POST",
                EVENTS,
                json={"name": "order.placed", "payload": {"order": 1}},
                headers={"Idempotency-Key": "one"},
                app=apps[number % 3],
                status=202,
            )
        )

    async with anyio.create_task_group() as group:
        for number in range(SUBMISSIONS):
            group.start_soon(submit, number)
    assert len(answers) == SUBMISSIONS
    assert len({answer["event"] for answer in answers}) == 1
    assert sum(not answer["replayed"] for answer in answers) == 1
    assert len(await world.core.records(EVENT)) == 1
    assert len(await world.core.records(CLAIM)) == 1
    await world.core.expand()
    (run,) = await world.core.runs()
    assert run.event_id == answers[0]["event"]
    await world.core.check()


@pytest.mark.case(2)
async def test_a_caller_whose_gateway_died_after_its_commit_gets_the_same_event(world: GatewayWorld) -> None:
    """Case 002: the reply was lost, the retry through another gateway finds the claim and the current expansion."""
    lost = await world.accepted(idempotency_key=b"k")
    await world.core.expand()
    again = await world.ask(
        "POST",
        EVENTS,
        json={"name": "order.placed", "payload": {}},
        headers={"Idempotency-Key": "k"},
        app=gateway_app(world.start_gateway()),
        key=SYSTEM_KEY,
        status=202,
    )
    assert (again["event"], again["replayed"], again["expansion"]["state"]) == (lost["event"], True, "complete")


async def test_submissions_without_a_key_never_meet(world: GatewayWorld) -> None:
    """Fifty of them at once are fifty events, without one conflict among them."""
    before = world.gateway.keyspace.meter.snapshot().get("accept_event")
    async with anyio.create_task_group() as group:
        for number in range(SUBMISSIONS):
            group.start_soon(world.accepted, str(number).encode())
    assert len(await world.core.records(EVENT)) == SUBMISSIONS
    figures = world.gateway.keyspace.meter.snapshot()["accept_event"]
    assert before is None
    assert (figures.commit_count, figures.conflict_count) == (SUBMISSIONS, 0)
