"""The OpenAPI document says what the API does: every route is in it, every answer is of the type it names."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from gateway_world import GatewayWorld
from transitions.world import LEASE_MS

from services.gateway.problems import STATUSES
from services.gateway.routes import ENDPOINTS


async def document(world: GatewayWorld) -> dict[str, Any]:
    found: dict[str, Any] = await world.ask("GET", "/openapi.json", key="")
    return found


async def test_every_route_is_in_the_document(empty: GatewayWorld) -> None:
    found = await document(empty)
    assert found["openapi"] == "3.1.0"
    listed = {(method.upper(), path) for path, methods in found["paths"].items() for method in methods}
    assert listed == {(one.method, one.path) for one in ENDPOINTS} | {("GET", "/healthz"), ("GET", "/readyz")}
    names = [
        operation["operationId"]
        for path in found["paths"].values()
        for operation in path.values()
        if "operationId" in operation
    ]
    assert sorted(names) == sorted(one.name for one in ENDPOINTS)


async def test_every_reference_leads_to_a_schema(empty: GatewayWorld) -> None:
    found = await document(empty)
    references: set[str] = set()

    def collect(node: Any) -> None:
        if isinstance(node, dict):
            if "$ref" in node:
                references.add(node["$ref"])
            for value in node.values():
                collect(value)
        elif isinstance(node, list):
            for value in node:
                collect(value)

    collect(found)
    known = {f"#/components/schemas/{name}" for name in found["components"]["schemas"]}
    assert references
    assert references <= known
    assert all("." not in name for name in found["components"]["schemas"]), "two types share a name"


async def test_every_operation_names_its_parameters_refusals_and_answer(empty: GatewayWorld) -> None:
    found = await document(empty)
    for endpoint in ENDPOINTS:
        operation = found["paths"][endpoint.path][endpoint.method.lower()]
        assert operation["summary"] == endpoint.summary
        assert str(endpoint.status) in operation["responses"]
        assert {str(STATUSES[code][0]) for code in endpoint.problems} <= set(operation["responses"])
        placed = {parameter["name"] for parameter in operation["parameters"]}
        assert {parameter.name for parameter in endpoint.parameters} <= placed
        required = {one["name"] for one in operation["parameters"] if one.get("required") and one["in"] != "path"}
        assert required == {parameter.name for parameter in endpoint.parameters if parameter.is_required}
        assert ("requestBody" in operation) is (endpoint.body is not None)


async def test_every_answer_is_of_its_endpoints_type(world: GatewayWorld) -> None:
    """Each endpoint is asked for something that exists; decoding and encoding again gives the same JSON."""
    run = await world.core.start_run()
    await world.core.run_step("s1")
    await world.core.complete(await world.core.lease_pass())
    lost = await world.core.start_run()
    work = await world.core.start_step("s1")
    world.clock.advance(LEASE_MS)
    await world.core.lose(work.item_id)
    blocked = await world.core.start_run()
    await world.core.block(await world.core.lease_pass())
    elements = {
        "workspace": "acme", "event": run.event_id, "run": run.run_id, "step": "s1", "application": "shop",
        "generation": "1", "key": world.key_ids["acme", "reader"], "function": "fulfil",
    }  # fmt: skip
    bodies: dict[str, Any] = {
        "create_workspace": {"name": "third"},
        "create_key": {"role": "reader"},
        "submit_event": {"name": "e", "payload": [1.5]},
        "invoke_function": {"input": [1.5]},
        "publish_manifest": {"application": "shop", "functions": [{"name": "f", "triggers": []}]},
        "activate_routing": {"applications": {"shop": 1}},
        "resolve_attempt": {"success": {"value": [1.5]}},
    }
    others = {"resolve_attempt": lost.run_id, "rediscover_run": blocked.run_id}
    for endpoint in ENDPOINTS:
        path = endpoint.path.format(**elements | {"run": others.get(endpoint.name, run.run_id)})
        response = await world.request(
            endpoint.method,
            path,
            json=bodies.get(endpoint.name),
            key="the-operator-s-own-key-of-tests",
            headers={"Idempotency-Key": "k"},
        )
        assert response.is_success, (endpoint.name, response.text)
        assert response.headers["content-type"].startswith(endpoint.media_type)
        if endpoint.media_type == "application/json":
            decoded = msgspec.json.decode(response.content, type=endpoint.answer)
            again = msgspec.json.decode(msgspec.json.encode(decoded))
            assert msgspec.json.decode(response.content) == again, endpoint.name


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/openapi.json"])
async def test_probes_and_document_need_no_key(empty: GatewayWorld, path: str) -> None:
    assert (await empty.request("GET", path, key="")).status_code == 200
