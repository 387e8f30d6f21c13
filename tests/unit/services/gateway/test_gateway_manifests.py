"""Manifests and routing: refused where they are published, idempotent by content, shown as they were declared."""

from __future__ import annotations

from typing import Any

import pytest
from gateway_world import SYSTEM_KEY, GatewayWorld
from ryusen import App
from ryusen.protocol.manifest import encode_manifest

MANIFESTS = "/v1/workspaces/acme/applications/orders/manifests"
ROUTING = "/v1/workspaces/acme/routing"


def declared(**changes: Any) -> dict[str, Any]:
    function = {"name": "f", "triggers": [{"event": "e", "binding": "b"}], "contract": ""} | changes
    return {"application": "orders", "functions": [function]}


async def test_publishing_is_idempotent_by_content(world: GatewayWorld) -> None:
    first = await world.ask("POST", MANIFESTS, json=declared(), status=201)
    again = await world.ask("POST", MANIFESTS, json=declared(), status=200)
    assert again == first
    assert (first["generation"], first["function_count"], first["binding_count"]) == (1, 1, 1)
    second = await world.ask("POST", MANIFESTS, json=declared(name="g"), status=201)
    assert second["generation"] == 2
    listed = await world.ask("GET", MANIFESTS, params={"limit": 1})
    assert [one["generation"] for one in listed["items"]] == [2]
    rest = await world.ask("GET", MANIFESTS, params={"cursor": listed["next_cursor"]})
    assert [one["generation"] for one in rest["items"]] == [1]


async def test_a_manifest_that_the_sdk_makes_is_accepted_and_shown_as_declared(world: GatewayWorld) -> None:
    app = App("orders")

    @app.function(on=["order.placed", "order.changed"])
    async def fulfil(ctx: object) -> None: ...

    @app.function(name="caf\u00e9 / bill")
    async def bill(ctx: object) -> None: ...

    await world.ask("POST", MANIFESTS, content=encode_manifest(app.manifest()), status=201)
    shown = await world.ask("GET", f"{MANIFESTS}/1")
    assert {function["name"]: sorted(t["event"] for t in function["triggers"]) for function in shown["functions"]} == {
        "fulfil": ["order.changed", "order.placed"],
        "caf\u00e9 / bill": [],
    }
    for missing in ("0", "2", "x", "-1", "9" * 30):
        await world.refused("not_found", "GET", f"{MANIFESTS}/{missing}")


@pytest.mark.case(44)
@pytest.mark.parametrize(
    ("manifest", "path"),
    [
        (declared(name=""), "$.functions[0].name"),
        (declared(name=" x"), "$.functions[0].name"),
        (declared(name="x" * 201), "$.functions[0].name"),
        (declared(name="a\x00b"), "$.functions[0].name"),
        (declared(triggers=[{"event": "", "binding": "b"}]), "$.functions[0].triggers[0].event"),
        (declared(triggers=[{"event": "e", "binding": "invoke"}]), "$.functions[0].triggers[0].binding"),
        (declared(triggers=[{"event": "e", "binding": "x" * 10_000}]), "$.functions[0].triggers[0].binding"),
        (declared(triggers=[{"event": "e", "binding": "b"}] * 2), "$.functions[0].triggers[1].event"),
        (declared(timeout_ms=0), "$.functions[0].timeout_ms"),
        (declared(timeout_ms=-5), "$.functions[0].timeout_ms"),
        (declared(timeout_ms=200_000_000_000_001), "$.functions[0].timeout_ms"),
        (declared(timeout_ms=1.5), "$.functions[0].timeout_ms"),
        (declared(timeout="5s"), "$.functions[0]"),
        (declared(retry={"attempts": 0}), "$.functions[0]"),
        (declared() | {"release": "x"}, "$"),
        (declared() | {"functions": []}, "$.functions"),
        (declared() | {"functions": 5}, "$.functions"),
        (declared() | {"application": "shop"}, "$.application"),
    ],
)
async def test_nonsense_is_refused_where_it_is_published(
    world: GatewayWorld, manifest: dict[str, Any], path: str
) -> None:
    """Case 044: with the path, the bad value and the allowed range; nothing is stored, nothing is skipped."""
    problem = await world.refused("invalid_manifest", "POST", MANIFESTS, json=manifest)
    assert problem["path"] == path


@pytest.mark.case(44)
async def test_an_event_name_of_the_servers_own_is_refused(world: GatewayWorld) -> None:
    """Case 044: reserved names are refused at publication."""
    manifest = declared(triggers=[{"event": "ryusen/step", "binding": "b"}])
    problem = await world.refused("reserved_name", "POST", MANIFESTS, json=manifest)
    assert problem["field"] == "functions[0].triggers[0].event"


async def test_routing_is_activated_merged_and_replaced(world: GatewayWorld) -> None:
    await world.ask("POST", MANIFESTS, json=declared(), status=201)
    assert (await world.ask("GET", ROUTING))["applications"] == {"shop": 1}
    merged = await world.ask("POST", ROUTING, json={"applications": {"orders": 1}, "merge": True}, status=201)
    assert merged["applications"] == {"orders": 1, "shop": 1}
    again = await world.ask("POST", ROUTING, json={"applications": {"orders": 1}, "merge": True}, status=200)
    assert again == merged == await world.ask("GET", ROUTING)
    replaced = await world.ask("POST", ROUTING, json={"applications": {"orders": 1}}, status=201)
    assert replaced["applications"] == {"orders": 1}
    assert replaced["generation"] == merged["generation"] + 1


@pytest.mark.parametrize(
    ("code", "body"),
    [
        ("unknown_manifest", {"applications": {"shop": 2}}),
        ("unknown_manifest", {"applications": {"nobody": 1}}),
        ("invalid_routing", {"applications": {}}),
        ("invalid_routing", {"applications": {"shop": 0}}),
        ("invalid_routing", {"applications": {f"a{n}": 1 for n in range(101)}}),
        ("invalid_name", {"applications": {" ": 1}}),
        ("invalid_body", {"applications": {"shop": 1.5}}),
        ("invalid_body", {"applications": {"shop": "1"}}),
        ("invalid_body", {"application": {"shop": 1}}),
    ],
)
async def test_routing_that_cannot_be_is_refused(world: GatewayWorld, code: str, body: dict[str, Any]) -> None:
    await world.refused(code, "POST", ROUTING, json=body)


async def test_routing_before_any_activation_is_generation_zero(empty: GatewayWorld) -> None:
    await empty.ask("POST", "/v1/workspaces", json={"name": "acme"}, status=201)
    assert await empty.ask("GET", ROUTING) == {
        "generation": 0, "applications": {}, "activated_at_ms": None, "activated_by": None,
    }  # fmt: skip


@pytest.mark.case(64)
async def test_a_manifest_that_no_transaction_carries_is_refused_before_it_is_written(world: GatewayWorld) -> None:
    """Case 064: refused by the budget, naming the limit, not noticed at commit."""
    functions = [
        {
            "name": f"function-{number}-" + "x" * 150,
            "triggers": [{"event": f"event-{t}-" + "y" * 150, "binding": f"b{number}-{t}"} for t in range(50)],
        }
        for number in range(60)
    ]
    manifest = {"application": "orders", "functions": functions}
    problem = await world.refused("manifest_too_large", "POST", MANIFESTS, json=manifest)
    assert (problem["field"], problem["allowance_bytes"]) == ("functions", world.config.allowance_bytes)


@pytest.mark.parametrize("name", ["", "-a", "a-", "A", "a b", "a" * 64, "a/b", "\u00e9"])
async def test_a_workspace_name_that_cannot_be_is_refused(empty: GatewayWorld, name: str) -> None:
    await empty.refused("invalid_name", "POST", "/v1/workspaces", json={"name": name})


async def test_workspaces_are_created_once_and_listed_in_pages(empty: GatewayWorld) -> None:
    for name in ("c", "a", "b"):
        await empty.ask("POST", "/v1/workspaces", json={"name": name}, status=201)
    first = await empty.ask("POST", "/v1/workspaces", json={"name": "a", "retention_ms": 5}, status=200)
    assert first["retention_ms"] != 5
    page = await empty.ask("GET", "/v1/workspaces", params={"limit": 2}, key=SYSTEM_KEY)
    rest = await empty.ask("GET", "/v1/workspaces", params={"cursor": page["next_cursor"]})
    assert [workspace["name"] for workspace in page["items"] + rest["items"]] == ["a", "b", "c"]
    assert await empty.ask("GET", "/v1/workspaces/b") in rest["items"] + page["items"]
    await empty.refused("invalid_retention", "POST", "/v1/workspaces", json={"name": "d", "retention_ms": 0})


async def test_a_run_timeout_is_published_and_shown(world: GatewayWorld) -> None:
    """RFD 1, "A developer may declare a run timeout": as `@app.function(timeout=...)` says, in every later answer."""
    app = App("orders")

    @app.function(on="order.placed", timeout="2d")
    async def fulfil(ctx: object) -> None: ...

    @app.function
    async def bill(ctx: object) -> None: ...

    await world.ask("POST", MANIFESTS, content=encode_manifest(app.manifest()), status=201)
    shown = await world.ask("GET", f"{MANIFESTS}/1")
    assert {one["name"]: one["timeout_ms"] for one in shown["functions"]} == {"fulfil": 172_800_000, "bill": None}


async def test_a_longer_run_timeout_than_the_deployment_allows_is_refused() -> None:
    """RFD 1, "Ryusen rejects a declaration above that maximum rather than silently clamping it": path, value and limit."""
    world = GatewayWorld(run_timeout_max_ms=60_000)
    await world.furnish()
    problem = await world.refused("run_timeout_above_maximum", "POST", MANIFESTS, json=declared(timeout_ms=60_001))
    assert problem["status"] == 422
    assert (problem["field"], problem["value"], problem["limit"]) == ("functions[0].timeout_ms", 60_001, 60_000)
    await world.ask("POST", MANIFESTS, json=declared(timeout_ms=60_000), status=201)
    await world.ask("POST", MANIFESTS, json=declared(), status=201)
