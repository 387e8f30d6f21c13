"""The SDK's client against the gateway: every call of it means what the gateway answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime

import httpx
import pytest
from gateway_world import GatewayWorld
from ryusen import ApiError, App, AsyncClient, Context
from ryusen.client import AuthorizeRetry, SupplySuccess
from transitions.world import LEASE_MS

app = App("orders")


@dataclass
class Order:
    number: int
    at: datetime
    blob: bytes


@app.function(on="order.bought")
async def buy(ctx: Context, order: Order) -> None: ...


@pytest.fixture
async def client(world: GatewayWorld) -> AsyncIterator[AsyncClient]:
    transport = httpx.ASGITransport(world.app)
    async with AsyncClient("http://gateway", "acme", world.keys["acme", "admin"], transport=transport) as made:
        yield made


async def test_every_call_of_the_client(world: GatewayWorld, client: AsyncClient) -> None:
    assert await client.publish(app) == 1
    routing = await client.activate({"orders": 1}, merge=True)
    assert (await client.routing())["applications"] == {"orders": 1, "shop": 1}
    assert [manifest["generation"] for manifest in (await client.manifests("orders")).items] == [1]
    assert (await client.manifest("orders", 1))["functions"][0]["name"] == "buy"
    order = Order(2**53 + 1, datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC), b"\x00\xff")
    receipt = await client.submit(
        "order.bought", order, idempotency_key="k", correlation={"number": "1"}, timestamp_ms=5
    )
    again = await client.submit("order.bought", order, idempotency_key="k", correlation={"number": "1"}, timestamp_ms=5)
    assert (receipt.routing_generation, receipt.replayed, again.replayed) == (routing, False, True)
    assert again.event == receipt.event
    await world.core.expand()
    event = await client.event(receipt.event)
    assert event["payload"] == {"number": 2**53 + 1, "at": order.at, "blob": b"\x00\xff"}
    assert [listed["event"] for listed in (await client.events(limit=5)).items] == [receipt.event]
    (listed_run,) = (await client.runs(application="orders", function="buy", status=None)).items
    run = await client.run(listed_run["run"])
    assert run["input"] == event["payload"]
    assert run["status"] == "running"
    assert [match["run"] for match in (await client.matches(receipt.event)).items] == [run["run"]]
    assert (await client.steps(run["run"], limit=5)).items == []
    history = await client.history(run["run"], limit=1)
    assert [entry["kind"] for entry in history.items] == ["run-created"]


async def test_a_function_is_invoked_through_the_client(world: GatewayWorld, client: AsyncClient) -> None:
    order = Order(2**53 + 1, datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC), b"\x00\xff")
    receipt = await client.invoke("shop", "fulfil", order, idempotency_key="k", timestamp_ms=5)
    again = await client.invoke("shop", "fulfil", order, idempotency_key="k", timestamp_ms=5)
    assert (again.event, again.run, again.replayed) == (receipt.event, receipt.run, True)
    await world.core.expand()
    assert receipt.run is not None
    run = await client.run(receipt.run)
    assert (run["binding"], run["event"]) == ("invoke", receipt.event)
    assert run["input"] == {"number": 2**53 + 1, "at": order.at, "blob": b"\x00\xff"}
    gone = await client.invoke("shop", "gone", idempotency_key="g")
    await world.core.expand()
    assert gone.run is not None
    assert (await client.invoke("shop", "gone", idempotency_key="g")).run is None
    assert (await client.event(gone.event))["target"] == {"application": "shop", "function": "gone"}


async def test_a_history_is_followed_to_its_end(world: GatewayWorld, client: AsyncClient) -> None:
    run = await world.core.start_run()
    await world.core.run_step()
    await world.core.complete(await world.core.lease_pass())
    assert (await client.step(run.run_id, "s1"))["value"] == "ok"
    followed = [entry["kind"] async for entry in client.follow(run.run_id)]
    assert followed == await world.core.kinds(run.run_id)


async def test_an_operator_acts_through_the_client(world: GatewayWorld, client: AsyncClient) -> None:
    run = await world.core.start_run()
    work = await world.core.start_step("s1")
    world.clock.advance(LEASE_MS)
    await world.core.lose(work.item_id)
    (listed,) = (await client.unresolved(limit=5)).items
    at = (listed["run"], listed["step"], listed["generation"])
    assert at == (run.run_id, "s1", 1)
    value = {"at": datetime(2026, 1, 2, tzinfo=UTC), "blob": b"\xff"}
    made = await client.resolve(*at, SupplySuccess(value), idempotency_key="k")
    again = await client.resolve(*at, SupplySuccess(value), idempotency_key="k")
    assert (made["attempt_state"], made["replayed"], again["replayed"]) == ("succeeded", False, True)
    assert (await client.step(run.run_id, "s1"))["value"] == value
    with pytest.raises(ApiError) as caught:
        await client.resolve(*at, AuthorizeRetry(), idempotency_key="k2")
    assert (caught.value.problem, caught.value.status) == ("stale_attempt", 409)
    assert (await client.cancel(run.run_id))["phase"] == "compensating"
    assert (await client.unresolved()).items == []


async def test_a_refusal_reaches_the_caller_with_its_code_and_members(world: GatewayWorld, client: AsyncClient) -> None:
    await client.submit("order.placed", 1, idempotency_key="k")
    with pytest.raises(ApiError) as caught:
        await client.submit("order.placed", 2, idempotency_key="k")
    assert (caught.value.problem, caught.value.status) == ("idempotency_conflict", 409)
    assert "event" in caught.value.members
    with pytest.raises(ApiError, match="not_found"):
        await client.run("0" * 32)
    with pytest.raises(ApiError, match="unsupported_filter"):
        await client.runs(status="running", application="shop", function="fulfil")
