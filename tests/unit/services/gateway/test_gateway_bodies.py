"""Garbage, floods and dawdling: a prompt typed answer, nothing mutated, the process alive (case 077)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest
from gateway_world import GatewayWorld

from services.gateway.endpoints import Endpoint
from services.gateway.events import ENVELOPE_BYTES_MAX
from services.gateway.routes import ENDPOINTS

EVENTS = "/v1/workspaces/acme/events"
WRITERS = [endpoint for endpoint in ENDPOINTS if endpoint.body is not None]


@pytest.mark.case(77)
@pytest.mark.parametrize("endpoint", WRITERS, ids=lambda one: one.name)
@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"{" * 8_000, b"[" * 8_000, b'{"a":' * 1_600, b'"x"', b"{}", b"5"]
)  # fmt: skip
async def test_garbage_gets_a_typed_answer(world: GatewayWorld, endpoint: Endpoint, body: bytes) -> None:
    """Case 077: broken, truncated and deeply nested bodies on every route that takes one."""
    path = endpoint.path.format(
        workspace="acme", application="shop", function="fulfil", run="0" * 32, step="s1", generation="1"
    )
    before = await world.core.dump()
    response = await world.request(endpoint.method, path, content=body, key="the-operator-s-own-key-of-tests")
    assert response.status_code in (400, 422), response.text
    assert response.json()["code"] in ("malformed_body", "invalid_body", "invalid_manifest")
    assert await world.core.dump() == before


@pytest.mark.case(77)
async def test_a_body_is_refused_before_all_of_it_was_read(world: GatewayWorld) -> None:
    """Case 077: a hundred megabytes cost no memory: the answer comes when the bound is passed."""
    sent = 0

    async def flood() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(1_600):
            sent += 65_536
            yield bytes(65_536)

    response = await world.request("POST", EVENTS, content=flood())
    assert response.status_code == 413
    assert response.json()["code"] == "body_too_large"
    assert response.headers["connection"] == "close"
    limit = world.config.payload_bytes_max + ENVELOPE_BYTES_MAX
    assert response.json()["limit"] == limit
    assert sent <= limit + 2 * 65_536


@pytest.mark.case(77)
async def test_an_announced_flood_is_refused_unread(world: GatewayWorld) -> None:
    """Case 077: Content-Length alone suffices for a refusal."""

    async def never() -> AsyncIterator[bytes]:
        raise AssertionError("the body was asked for")
        yield b""

    response = await world.request("POST", EVENTS, content=never(), headers={"Content-Length": str(10**8)})
    assert response.status_code == 413


@pytest.mark.case(77)
async def test_a_slow_sender_is_given_up() -> None:
    """Case 077: a body that never ends is answered 408 within body_ms."""
    world = GatewayWorld(body_ms=100)
    await world.furnish()
    begun = anyio.current_time()

    async def dawdle() -> AsyncIterator[bytes]:
        yield b'{"name":"order.placed",'
        await anyio.sleep_forever()

    response = await world.request("POST", EVENTS, content=dawdle())
    assert response.status_code == 408
    assert response.json()["code"] == "body_timeout"
    assert anyio.current_time() - begun < 3


@pytest.mark.case(77)
async def test_requests_beyond_the_bound_are_told_to_come_again() -> None:
    """Case 077, ARCHITECTURE 7: overload is 429 with Retry-After; the others go on."""
    world = GatewayWorld(requests_max=1)
    await world.furnish()
    holding, release = anyio.Event(), anyio.Event()

    async def slow() -> AsyncIterator[bytes]:
        holding.set()
        await release.wait()
        yield b'{"name":"order.placed","payload":1}'

    answers: list[int] = []

    async def submit() -> None:
        answers.append((await world.request("POST", EVENTS, content=slow())).status_code)

    async with anyio.create_task_group() as group:
        group.start_soon(submit)
        await holding.wait()
        refused = await world.request("GET", EVENTS)
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "1"
        assert (await world.request("GET", "/healthz", key="")).status_code == 200
        release.set()
    assert answers == [202]
    assert (await world.request("GET", EVENTS)).status_code == 200


@pytest.mark.case(77)
@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("GET", "/", "not_found"),
        ("GET", "/v1/workspaces/acme/nothing", "not_found"),
        ("GET", "/v1/workspaces//events", "not_found"),
        ("GET", "/v1/workspaces/%00/events", "not_found"),
        ("GET", "/v1/workspaces/%FF/events", "not_found"),
        ("GET", "/v1/workspaces/" + "a" * 5_000 + "/events", "not_found"),
        ("GET", "/v1/workspaces/acme/applications/" + "a" * 5_000 + "/manifests", "not_found"),
        ("GET", "/v1/workspaces/acme/runs/" + "0" * 31, "not_found"),
        ("GET", "/v1/workspaces/acme/runs?" + "x" * 9_000, "invalid_query"),
        ("PATCH", "/v1/workspaces/acme/runs", "method_not_allowed"),
        ("DELETE", "/v1/workspaces/acme", "method_not_allowed"),
    ],
)
async def test_odd_paths_get_a_typed_answer(world: GatewayWorld, method: str, path: str, code: str) -> None:
    """Case 077: what cannot exist is answered like what does not."""
    await world.refused(code, method, path)
