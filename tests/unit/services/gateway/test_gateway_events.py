"""Submitting and reading events: what is accepted, what a replay answers, what is refused and where it says so."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from gateway_world import GatewayWorld

EVENTS = "/v1/workspaces/acme/events"


async def test_an_event_is_acknowledged_with_its_identity_generation_and_expansion(world: GatewayWorld) -> None:
    answer = await world.accepted(b'{"order": 1}')
    assert answer["routing_generation"] == 1
    assert answer["expansion"]["state"] == "pending"
    assert answer["replayed"] is False
    assert answer["claim_expires_at_ms"] is None
    shown = await world.ask("GET", f"{EVENTS}/{answer['event']}")
    assert shown["name"] == "order.placed"
    assert shown["accepted_by"] == world.key_ids["acme", "admin"]


async def test_a_replay_answers_the_first_event_and_how_far_it_has_come(world: GatewayWorld) -> None:
    """RFD 2, "An optional caller idempotency key is scoped": the same identity and the current expansion state."""
    first = await world.accepted(idempotency_key=b"k")
    await world.core.expand()
    again = await world.accepted(idempotency_key=b"k")
    assert again["event"] == first["event"]
    assert again["replayed"] is True
    assert again["expansion"]["state"] == "complete"
    assert again["expansion"]["matched_count"] == 1
    assert again["claim_expires_at_ms"] == first["claim_expires_at_ms"]


@pytest.mark.case(4)
@pytest.mark.parametrize(
    "changed",
    [
        {"payload": b'{"a":2}'},
        {"payload": b'{"b":1,"a":1}'},
        {"payload": b'{"a":1,"b":1}'},
        {"name": "order.changed"},
        {"correlation": {"order": "2"}},
        {"correlation": {}},
        {"timestamp_ms": 5},
    ],
)
async def test_another_content_under_a_used_key_is_a_conflict(world: GatewayWorld, changed: dict[str, Any]) -> None:
    """Case 004: any difference in a fingerprinted field conflicts and mutates nothing; reordered members are other bytes."""
    first = {"payload": b'{"a":1, "b":1}', "correlation": {"order": "1"}, "timestamp_ms": 4, "idempotency_key": b"k"}
    event = (await world.accepted(**first))["event"]  # type: ignore[arg-type]
    before = await world.core.dump()
    response = await world.submit(**(first | changed))
    assert response.status_code == 409
    assert response.json()["code"] == "idempotency_conflict"
    assert response.json()["event"] == event
    assert await world.core.dump() == before


@pytest.mark.case(4)
async def test_another_credential_replays_and_another_workspace_is_independent(world: GatewayWorld) -> None:
    """Case 004: the key is scoped by workspace and operation, not by who presents it."""
    first = await world.accepted(idempotency_key=b"k")
    other = await world.accepted(idempotency_key=b"k", key=world.keys["acme", "client"])
    assert (other["event"], other["replayed"]) == (first["event"], True)
    foreign = await world.accepted(idempotency_key=b"k", workspace="rival", key=world.keys["rival", "client"])
    assert foreign["replayed"] is False
    assert foreign["event"] != first["event"]


@pytest.mark.case(5)
async def test_without_a_key_every_submission_is_an_event(world: GatewayWorld) -> None:
    """Case 005: absent means two events."""
    first, second = await world.accepted(), await world.accepted()
    assert first["event"] != second["event"]


@pytest.mark.case(5)
@pytest.mark.parametrize("key", [b"", b" ", b"\t ", b"x" * 257, "\U0001f600".encode() * 65, b"a\x00b", b"\xff\xfe"])
async def test_a_key_that_is_none_is_refused(world: GatewayWorld, key: bytes) -> None:
    """Case 005: empty, blank, over-long, NUL and broken keys are refused, never a claim and never cut."""
    before = await world.core.dump()
    response = await world.submit(idempotency_key=key)
    assert response.status_code == 400
    assert response.json()["code"] == "invalid_idempotency_key"
    assert await world.core.dump() == before


@pytest.mark.case(5)
@pytest.mark.parametrize("key", [b"k", b"x" * 256, "\U0001f600".encode() * 64, b"a b"])
async def test_a_key_within_its_bound_is_a_claim(world: GatewayWorld, key: bytes) -> None:
    """Case 005: one byte, the limit itself and characters outside the basic plane are keys like any other."""
    first, again = await world.accepted(idempotency_key=key), await world.accepted(idempotency_key=key)
    assert (again["event"], again["replayed"]) == (first["event"], True)


async def test_a_key_given_twice_is_refused(world: GatewayWorld) -> None:
    """Two Idempotency-Key headers would let a proxy and the gateway choose different ones."""
    body = b'{"name":"order.placed","payload":1}'
    problem = await world.refused(
        "invalid_idempotency_key",
        "POST",
        EVENTS,
        content=body,
        headers=[("Idempotency-Key", "a"), ("Idempotency-Key", "b")],
    )
    assert problem["field"] == "idempotency_key"


@pytest.mark.case(37)
async def test_an_event_nobody_is_bound_to_says_so(world: GatewayWorld) -> None:
    """Case 037: the expansion completes and explains; a later activation changes nothing of it."""
    event = (await world.accepted(name="order.misspelt"))["event"]
    await world.core.expand()
    shown = await world.ask("GET", f"{EVENTS}/{event}")
    assert shown["expansion"]["state"] == "complete"
    assert shown["matches"] == {"items": [], "next_cursor": None}
    assert "binds no function" in shown["expansion"]["explanation"]
    await world.core.publish({"late": ["order.misspelt"]})
    assert (await world.ask("GET", f"{EVENTS}/{event}"))["routing_generation"] == shown["routing_generation"]
    assert await world.core.expand() == 0


@pytest.mark.case(37)
async def test_an_event_before_any_activation_says_so(empty: GatewayWorld) -> None:
    """Case 037: published is not activated."""
    await empty.ask("POST", "/v1/workspaces", json={"name": "acme"}, status=201)
    manifest = {"application": "shop", "functions": [{"name": "f", "triggers": [{"event": "e", "binding": "b"}]}]}
    await empty.ask("POST", "/v1/workspaces/acme/applications/shop/manifests", json=manifest, status=201)
    answer = await empty.accepted(name="e")
    assert answer["routing_generation"] == 0
    assert "No routing generation was active" in answer["expansion"]["explanation"]
    await empty.core.expand()
    assert (await empty.ask("GET", f"{EVENTS}/{answer['event']}"))["expansion"]["matched_count"] == 0


async def test_an_events_runs_are_listed_with_their_bindings(world: GatewayWorld) -> None:
    await world.core.publish({"fulfil": ["order.placed"], "bill": ["order.placed"], "audit": ["order.placed"]})
    event = (await world.accepted())["event"]
    await world.core.expand()
    shown = await world.ask("GET", f"{EVENTS}/{event}")
    assert [match["function"] for match in shown["matches"]["items"]] == ["audit", "bill", "fulfil"]
    first = await world.ask("GET", f"{EVENTS}/{event}/matches", params={"limit": 2})
    rest = await world.ask("GET", f"{EVENTS}/{event}/matches", params={"limit": 2, "cursor": first["next_cursor"]})
    assert [*first["items"], *rest["items"]] == shown["matches"]["items"]
    assert rest["next_cursor"] is None


@pytest.mark.case(46)
@pytest.mark.case(64)
@pytest.mark.parametrize("excess", [-1, 0, 1])
async def test_the_payload_limit_is_exact(world: GatewayWorld, excess: int) -> None:
    """Cases 046 and 064: limit - 1 and limit are accepted, limit + 1 is refused naming field, size and limit."""
    limit = world.config.payload_bytes_max
    payload = b'"' + b"x" * (limit + excess - 2) + b'"'
    if excess <= 0:
        event = (await world.accepted(payload))["event"]
        shown = await world.request("GET", f"{EVENTS}/{event}")
        assert bytes(msgspec.json.decode(shown.content, type=dict[str, msgspec.Raw])["payload"]) == payload
        return
    before = await world.core.dump()
    response = await world.submit(payload)
    assert response.status_code == 413
    problem = response.json()
    assert (problem["code"], problem["field"], problem["bytes"], problem["limit"]) == (
        "payload_too_large", "payload", limit + 1, limit,
    )  # fmt: skip
    assert await world.core.dump() == before


@pytest.mark.case(67)
@pytest.mark.parametrize(
    "payload",
    [
        b"-0.0",
        b"9007199254740993",
        b"-9223372036854775808",
        b"1.0",
        b"1e2",
        b'{"b":1,"a":{"c":[]}}',
        b'[1,  2,\n3]',
        b'"\\u00e9"',
        '"é\U0001f600"'.encode(),
        b'{"$bytes":"AAE="}',
        b'""',
        b"null",
    ],
)  # fmt: skip
async def test_payload_bytes_are_never_reinterpreted(world: GatewayWorld, payload: bytes) -> None:
    """Case 067: what was submitted is shown, as the event's payload and as the run's input, byte for byte."""
    event = (await world.accepted(payload))["event"]
    await world.core.expand()
    shown = await world.request("GET", f"{EVENTS}/{event}")
    assert b'"payload":' + payload + b"," in shown.content
    run = shown.json()["matches"]["items"][0]["run"]
    assert b'"input":' + payload + b"," in (await world.request("GET", f"/v1/workspaces/acme/runs/{run}")).content


@pytest.mark.case(67)
@pytest.mark.parametrize(
    ("payload", "path"),
    [
        (b'{"a":1e400}', "$.a"),
        (b'{"a":[1,18446744073709551616]}', "$.a[1]"),
        (b'{"a":{"b":1,"b":2}}', "$.a"),
        (b'{"a":{"$bytes":"***"}}', "$.a"),
        (b'{"a":{"$datetime":"2020-01-01T00:00:00"}}', "$.a"),
        (b"[" * 200 + b"]" * 200, None),
    ],
)  # fmt: skip
async def test_what_is_no_portable_value_is_refused_with_its_path(
    world: GatewayWorld, payload: bytes, path: str | None
) -> None:
    """Case 067: refused where the value enters, naming the place."""
    body = b'{"name":"order.placed","payload":' + payload + b"}"
    problem = await world.refused("invalid_value", "POST", EVENTS, content=body)
    assert problem["field"] == "payload"
    if path is not None:
        assert problem["path"].startswith(path)


@pytest.mark.case(67)
@pytest.mark.parametrize(
    "payload", [b"NaN", b"Infinity", b"-Infinity", b"", b"{", b"01", b"'a'", b"\xff", b'"\\ud800"']
)
async def test_what_is_no_json_is_refused(world: GatewayWorld, payload: bytes) -> None:
    """Case 067: NaN and the infinities are no JSON; nor are broken texts."""
    body = b'{"name":"order.placed","payload":' + payload + b"}"
    response = await world.request("POST", EVENTS, content=body)
    assert response.json()["code"] in ("malformed_body", "invalid_value")
    assert response.status_code in (400, 422)


@pytest.mark.parametrize(
    ("code", "body", "member"),
    [
        ("invalid_name", {"name": " ", "payload": 1}, ("field", "name")),
        ("invalid_name", {"name": "x" * 201, "payload": 1}, ("limit", 200)),
        ("reserved_name", {"name": "ryusen/step", "payload": 1}, ("field", "name")),
        ("invalid_correlation", {"name": "e", "payload": 1, "correlation": {str(n): "" for n in range(17)}}, ("limit", 16)),
        ("invalid_text", {"name": "e", "payload": 1, "correlation": {"a": "x" * 257}}, ("limit", 256)),
        ("invalid_text", {"name": "e", "payload": 1, "correlation": {"a": "\x00"}}, ("field", "correlation.a")),
        ("invalid_timestamp", {"name": "e", "payload": 1, "timestamp_ms": -1}, ("field", "timestamp_ms")),
        ("invalid_timestamp", {"name": "e", "payload": 1, "timestamp_ms": 2**60}, ("field", "timestamp_ms")),
        ("invalid_body", {"name": "e"}, ("path", "$")),
        ("invalid_body", {"name": 5, "payload": 1}, ("path", "$.name")),
        ("invalid_body", {"name": "e", "payload": 1, "correlation": {"a": 5}}, ("path", "$.correlation[...]")),
        ("invalid_body", {"name": "e", "payload": 1, "idempotency_key": "k"}, ("path", "$")),
    ],
)  # fmt: skip
async def test_each_member_is_checked_and_named(
    world: GatewayWorld, code: str, body: dict[str, Any], member: tuple[str, Any]
) -> None:
    """ARCHITECTURE 7: every input has a bound; exceeding it is a typed refusal that mutates nothing."""
    problem = await world.refused(code, "POST", EVENTS, json=body)
    assert problem[member[0]] == member[1]


@pytest.mark.parametrize(
    "body",
    [
        b'{"name":"a","name":"order.placed","payload":1}',
        b'{"name":"order.placed","payload":1,"payload":2}',
        b'{"name":"order.placed","correlation":{"a":"1","a":"2"},"payload":1}',
        b'{"payload":"' + b"x" * 2_000 + b'","name":"order.placed","name":"order.placed"}',
    ],
)
async def test_a_member_that_stands_twice_is_refused(world: GatewayWorld, body: bytes) -> None:
    """Readers differ in which of two equal members they take, so neither is taken (case 077)."""
    await world.refused("malformed_body", "POST", EVENTS, content=body)


async def test_an_event_of_no_workspace_and_no_event(world: GatewayWorld) -> None:
    for path in (f"{EVENTS}/{'0' * 32}", f"{EVENTS}/nonsense", f"{EVENTS}/{'A' * 32}", "/v1/workspaces/nobody/events"):
        await world.refused("not_found", "GET", path)
