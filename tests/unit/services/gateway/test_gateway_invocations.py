"""Invoking functions over HTTP: what is accepted, what a replay answers, what is refused and where it says so."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec
import pytest
from gateway_world import SYSTEM_KEY, GatewayWorld

from keyspace.limits import IDEMPOTENCY_KEY_BYTES_MAX
from keyspace.transitions.create_workspace import create_workspace

WORKSPACE = "/v1/workspaces/acme"
FULFIL = f"{WORKSPACE}/applications/shop/functions/fulfil/invoke"
ABSENT: Any = object()


async def send(
    world: GatewayWorld,
    value: bytes = b"{}",
    *,
    path: str = FULFIL,
    idempotency_key: bytes | None = None,
    timestamp_ms: Any = ABSENT,
    **arguments: Any,
) -> httpx.Response:
    body: dict[str, Any] = {"input": msgspec.Raw(value)}
    if timestamp_ms is not ABSENT:
        body["timestamp_ms"] = timestamp_ms
    headers = {} if idempotency_key is None else {b"Idempotency-Key": idempotency_key}
    return await world.request("POST", path, content=msgspec.json.encode(body), headers=headers, **arguments)


async def accepted(world: GatewayWorld, value: bytes = b"{}", **arguments: Any) -> dict[str, Any]:
    response = await send(world, value, **arguments)
    assert response.status_code == 202, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def test_an_invocation_is_acknowledged_with_its_event_and_the_runs_id(world: GatewayWorld) -> None:
    """RFD 2, "it has the same acknowledgement": and the run bears the id that was answered before it was there."""
    answer = await accepted(world, b'{"order":  1}')
    assert (answer["routing_generation"], answer["replayed"]) == (1, False)
    assert answer["expansion"] == {
        "state": "pending",
        "matched_count": 0,
        "explanation": "Function fulfil of application shop is looked up in routing generation 1.",
    }
    await world.refused("not_found", "GET", f"{WORKSPACE}/runs/{answer['run']}")
    await world.core.expand()
    response = await world.request("GET", f"{WORKSPACE}/runs/{answer['run']}")
    assert b'"input":{"order":  1}' in response.content, "the exact bytes"
    run = response.json()
    assert (run["binding"], run["event"], run["event_name"]) == ("invoke", answer["event"], "ryusen/function.invoked")
    event = await world.ask("GET", f"{WORKSPACE}/events/{answer['event']}")
    assert event["target"] == {"application": "shop", "function": "fulfil"}
    assert event["expansion"]["explanation"] == (
        "Function fulfil of application shop was started by routing generation 1."
    )
    assert [match["run"] for match in event["matches"]["items"]] == [answer["run"]]
    (listed,) = (await world.ask("GET", f"{WORKSPACE}/events"))["items"]
    assert (listed["event"], listed["target"]) == (answer["event"], event["target"])


async def test_a_submitted_event_has_no_target(world: GatewayWorld) -> None:
    event = await world.accepted()
    assert (await world.ask("GET", f"{WORKSPACE}/events/{event['event']}"))["target"] is None


@pytest.mark.case(37)
@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("shop/functions/gone", "Application shop declares no function gone in routing generation 1."),
        ("store/functions/fulfil", "Routing generation 1 does not contain application store."),
    ],
)
async def test_what_is_missing_is_named_for_good(world: GatewayWorld, path: str, words: str) -> None:
    """Case 037, "the invocation records a durable no-match that names what was missing; later activation changes nothing"."""
    path = f"{WORKSPACE}/applications/{path}/invoke"
    answer = await accepted(world, path=path, idempotency_key=b"k")
    assert answer["run"] is not None
    await world.core.expand()
    await world.core.publish({"gone": []})
    await world.core.publish({"fulfil": []}, application="store")
    again = await accepted(world, path=path, idempotency_key=b"k")
    assert (again["event"], again["run"], again["expansion"]["explanation"]) == (answer["event"], None, words)
    shown = await world.ask("GET", f"{WORKSPACE}/events/{answer['event']}")
    assert (shown["expansion"]["state"], shown["expansion"]["explanation"]) == ("complete", words)
    assert shown["matches"]["items"] == []


@pytest.mark.case(37)
async def test_without_any_routing_the_answer_says_so(world: GatewayWorld) -> None:
    """Generation 0 contains no application."""
    await world.core.run("create_workspace", lambda tx: create_workspace(tx, "bare"))
    path = FULFIL.replace("acme", "bare")
    await accepted(world, path=path, idempotency_key=b"k", key=SYSTEM_KEY)
    await world.core.expand(workspace="bare")
    answer = await accepted(world, path=path, idempotency_key=b"k", key=SYSTEM_KEY)
    assert (answer["run"], answer["routing_generation"]) == (None, 0)
    assert "No routing generation was active" in answer["expansion"]["explanation"]


@pytest.mark.case(4)
async def test_keys_are_of_their_operation(world: GatewayWorld) -> None:
    """RFD 2, "it cannot collide with an event.submit key"; another credential replays, another workspace is independent."""
    submitted = await world.accepted(idempotency_key=b"k")
    first = await accepted(world, idempotency_key=b"k")
    other = await accepted(world, idempotency_key=b"k", key=world.keys["acme", "client"])
    foreign = await accepted(
        world, idempotency_key=b"k", path=FULFIL.replace("acme", "rival"), key=world.keys["rival", "client"]
    )
    assert (other["event"], other["replayed"]) == (first["event"], True)
    assert len({submitted["event"], first["event"], foreign["event"]}) == 3
    assert not foreign["replayed"]


@pytest.mark.case(4)
@pytest.mark.parametrize(
    "changed",
    [
        {"value": b'{"a":2}'},
        {"value": b'{"b":1,"a":1}'},
        {"path": FULFIL.replace("fulfil", "other")},
        {"path": FULFIL.replace("shop", "other")},
        {"timestamp_ms": 5},
    ],
)
async def test_another_content_under_a_used_key_is_a_conflict(world: GatewayWorld, changed: dict[str, Any]) -> None:
    """Case 004: any difference in a fingerprinted field conflicts and mutates nothing."""
    same: dict[str, Any] = {"value": b'{"a":1,"b":1}', "timestamp_ms": 4, "idempotency_key": b"k"}
    event = (await accepted(world, **same))["event"]
    before = await world.core.dump()
    response = await send(world, **same | changed)
    assert (response.status_code, response.json()["code"]) == (409, "idempotency_conflict")
    assert response.json()["event"] == event
    assert await world.core.dump() == before


@pytest.mark.case(5)
@pytest.mark.parametrize(
    "key",
    [b"", b" ", b"\t", b"k" * (IDEMPOTENCY_KEY_BYTES_MAX + 1), b"\xff"],
    ids=["empty", "blank", "tab", "long", "bytes"],
)
async def test_a_key_that_is_none_is_refused(world: GatewayWorld, key: bytes) -> None:
    """Case 005, "the same for invoke": refused, never a claim."""
    before = await world.core.dump()
    response = await send(world, idempotency_key=key)
    assert (response.status_code, response.json()["code"]) == (400, "invalid_idempotency_key")
    assert await world.core.dump() == before


@pytest.mark.case(46)
async def test_an_input_over_the_limit_is_refused_by_name(world: GatewayWorld) -> None:
    """Case 046: at the limit it is accepted, one byte over it is refused with field, size and limit."""
    limit = world.gateway.config.payload_bytes_max
    await accepted(world, b'"' + b"x" * (limit - 2) + b'"')
    problem = await world.refused(
        "payload_too_large", "POST", FULFIL, content=b'{"input":"' + b"x" * (limit - 1) + b'"}'
    )
    assert (problem["field"], problem["bytes"], problem["limit"]) == ("input", limit + 1, limit)
    await world.refused("body_too_large", "POST", FULFIL, content=b"x" * (limit + 2_000))


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", "malformed_body"),
        (b'{"input":1,"input":2}', "malformed_body"),
        (b"{}", "invalid_body"),
        (b'{"input":1,"name":"x"}', "invalid_body"),
        (b'{"input":1,"correlation":{}}', "invalid_body"),
        (b'{"input":1,"timestamp_ms":"x"}', "invalid_body"),
        (b'{"input":1,"timestamp_ms":-1}', "invalid_timestamp"),
        (b'{"input":{"$datetime":"x"}}', "invalid_value"),
    ],
)
async def test_an_unsound_body_is_refused(world: GatewayWorld, body: bytes, code: str) -> None:
    """ARCHITECTURE 7; routing metadata is not even a member (RFD 2, "the event carries no routing metadata")."""
    await world.refused(code, "POST", FULFIL, content=body)


@pytest.mark.case(41)
async def test_nobody_invokes_without_the_right(world: GatewayWorld) -> None:
    """Case 041: a foreign workspace is like none, a reading key may not."""
    await world.refused("not_found", "POST", FULFIL, content=b'{"input":1}', key=world.keys["rival", "client"])
    await world.refused("forbidden", "POST", FULFIL, content=b'{"input":1}', key=world.keys["acme", "reader"])
    await world.refused(
        "reserved_name", "POST", f"{WORKSPACE}/events", content=b'{"name":"ryusen/function.invoked","payload":1}'
    )


async def test_names_of_every_kind_travel_in_the_path(world: GatewayWorld) -> None:
    """A function's name is any text: quoted in the path, whole in the target."""
    answer = await accepted(world, path=f"{WORKSPACE}/applications/a%2Fb/functions/%C3%A9%20%3F/invoke")
    shown = await world.ask("GET", f"{WORKSPACE}/events/{answer['event']}")
    assert shown["target"] == {"application": "a/b", "function": "é ?"}
