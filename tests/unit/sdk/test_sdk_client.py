"""The client: what it sends, what it tries again, how it reads answers and follows streams."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import httpx
import pytest
from ryusen import ApiError, App, AsyncClient, Client, ConfigurationError, Context, InvalidValue, Unreachable
from ryusen.client import AuthorizeRetry, DeclareFailure, SupplySuccess
from ryusen.clients.exchange import ATTEMPTS_MAX, RETRY_AFTER_MAX_S
from ryusen.clients.streams import FAILURES_MAX, Following

Answer = httpx.Response | Exception

RECEIPT = {
    "event": "e1",
    "routing_generation": 4,
    "expansion": {"state": "Pending"},
    "replayed": False,
    "accepted_at_ms": 5,
    "claim_expires_at_ms": 6,
}


@dataclass
class Order:
    id: str
    total: Decimal


class Service:
    """Answers in turn and notes the requests and the pauses between them."""

    def __init__(self, *answers: Answer | Callable[[httpx.Request], httpx.Response]) -> None:
        self.answers: Iterator[Any] = iter(answers)
        self.requests: list[httpx.Request] = []
        self.pauses: list[float] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        request.read()
        self.requests.append(request)
        answer = next(self.answers)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, httpx.Response):  # a fresh one each time: a response is read once
            return httpx.Response(answer.status_code, headers=answer.headers, content=answer.content)
        response = answer(request)
        assert isinstance(response, httpx.Response)
        return response

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)


def ok(body: Any = None, status: int = 200) -> httpx.Response:
    return httpx.Response(status, json=body if body is not None else {})


def problem(status: int, code: str, **members: Any) -> httpx.Response:
    body = {"type": "about:blank", "title": "T", "status": status, "code": code, "detail": "D", **members}
    return httpx.Response(status, content=json.dumps(body), headers={"Content-Type": "application/problem+json"})


def plain(service: Service) -> Client:
    return Client("http://h/", "acme", "secret", transport=httpx.MockTransport(service), sleep=service.pauses.append)


def twin(service: Service) -> AsyncClient:
    return AsyncClient("http://h", "acme", "secret", transport=httpx.MockTransport(service), sleep=service.pause)


CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any], str, str, Any]] = [
    ("event", ("e/1",), {}, "GET", "/v1/workspaces/acme/events/e%2F1", {}),
    ("events", (), {"limit": 5, "cursor": "c"}, "GET", "/v1/workspaces/acme/events?limit=5&cursor=c", {"items": []}),
    ("run", ("r1",), {}, "GET", "/v1/workspaces/acme/runs/r1", {}),
    ("runs", (), {"status": "Running", "function": "f"}, "GET", "/v1/workspaces/acme/runs?status=Running&function=f", {"items": []}),
    ("matches", ("e1",), {"limit": 1}, "GET", "/v1/workspaces/acme/events/e1/matches?limit=1", {"items": []}),
    ("steps", ("r1",), {"cursor": "c"}, "GET", "/v1/workspaces/acme/runs/r1/steps?cursor=c", {"items": []}),
    ("step", ("r1", "a/b"), {}, "GET", "/v1/workspaces/acme/runs/r1/steps/a%2Fb", {}),
    ("cancel", ("r1",), {}, "POST", "/v1/workspaces/acme/runs/r1/cancel", {"outcome": "accepted"}),
    ("rediscover", ("r1",), {}, "POST", "/v1/workspaces/acme/runs/r1/rediscover", {"outcome": "accepted"}),
    ("unresolved", (), {"limit": 5, "cursor": "c"}, "GET", "/v1/workspaces/acme/attempts?unresolved=true&limit=5&cursor=c", {"items": []}),
    ("resolve", ("r1", "a/b", 2, AuthorizeRetry()), {"idempotency_key": "k"}, "POST", "/v1/workspaces/acme/runs/r1/steps/a%2Fb/attempts/2/resolve", {"replayed": False}),
    ("history", ("r1",), {"after": 3}, "GET", "/v1/workspaces/acme/runs/r1/history?after=3", {"items": []}),
    ("manifests", ("orders",), {}, "GET", "/v1/workspaces/acme/applications/orders/manifests", {"items": []}),
    ("manifest", ("orders", 3), {}, "GET", "/v1/workspaces/acme/applications/orders/manifests/3", {}),
    ("activate", ({"orders": 3},), {}, "POST", "/v1/workspaces/acme/routing", {"generation": 9}),
    ("routing", (), {}, "GET", "/v1/workspaces/acme/routing", {}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "arguments", "options", "method", "target", "body"), CALLS, ids=lambda value: str(value)[:20]
)
async def test_every_call_has_its_route_in_both_forms(
    name: str, arguments: tuple[Any, ...], options: dict[str, Any], method: str, target: str, body: Any
) -> None:
    service = Service(ok(body), ok(body))
    with plain(service) as client:
        first = getattr(client, name)(*arguments, **options)
    async with twin(service) as other:
        second = await getattr(other, name)(*arguments, **options)
    assert first == second
    for request in service.requests:
        assert (request.method, str(request.url.raw_path, "ascii")) == (method, target)
        assert request.headers["Authorization"] == "Bearer secret"


async def test_submitting_sends_exact_bytes_and_reads_the_receipt() -> None:
    service = Service(ok(RECEIPT, 202), ok({**RECEIPT, "replayed": True}, 202))
    payload = {"n": 2**53 + 1, "z": -0.0, "at": datetime(2026, 1, 1, tzinfo=UTC), "raw": b"\xff"}
    receipt = plain(service).submit(
        "order.placed", payload, idempotency_key="k1", correlation={"order": "7"}, timestamp_ms=123
    )
    assert (receipt.event, receipt.routing_generation, receipt.replayed) == ("e1", 4, False)
    assert (await twin(service).submit("order.placed", payload, idempotency_key="k1")).replayed
    request = service.requests[0]
    assert request.headers["Idempotency-Key"] == "k1"
    assert request.headers["Content-Type"] == "application/json"
    assert request.content == (
        b'{"name":"order.placed","payload":{"n":9007199254740993,"z":-0.0,'
        b'"at":{"$datetime":"2026-01-01T00:00:00+00:00"},"raw":{"$bytes":"/w=="}},'
        b'"correlation":{"order":"7"},"timestamp_ms":123}'
    )


async def test_invoking_sends_exact_bytes_to_the_functions_own_route() -> None:
    """RFD 2, "its input is the payload bytes": encoded once, as a submitted payload is; the run's id is on the receipt."""
    service = Service(
        ok({**RECEIPT, "run": "r1"}, 202), ok({**RECEIPT, "run": None}, 202), ok({**RECEIPT, "run": "r1"})
    )
    receipt = plain(service).invoke(
        "shop/1", "ful fil", Order("a", Decimal("1.10")), idempotency_key="k", timestamp_ms=5
    )
    assert (receipt.event, receipt.run, receipt.routing_generation) == ("e1", "r1", 4)
    assert (await twin(service).invoke("shop", "gone")).run is None
    first, second = service.requests
    assert str(first.url.raw_path, "ascii") == "/v1/workspaces/acme/applications/shop%2F1/functions/ful%20fil/invoke"
    assert (first.method, first.headers["Idempotency-Key"]) == ("POST", "k")
    assert first.content == b'{"input":{"id":"a","total":"1.10"},"timestamp_ms":5}'
    assert second.content == b'{"input":null}'
    assert "Idempotency-Key" not in second.headers


@pytest.mark.parametrize("key", [None, "k"])
def test_an_invocation_is_repeated_only_under_a_key(key: str | None) -> None:
    """Case 002: without a key a second one would be a second run."""
    service = Service(problem(503, "overloaded"), ok({**RECEIPT, "run": "r1"}, 202))
    if key is None:
        with pytest.raises(ApiError, match="overloaded"):
            plain(service).invoke("shop", "fulfil")
    else:
        assert plain(service).invoke("shop", "fulfil", idempotency_key=key).run == "r1"
    assert len(service.requests) == (1 if key is None else 2)


def test_a_dataclass_is_a_payload() -> None:
    service = Service(ok(RECEIPT))
    plain(service).submit("order.placed", Order("a", Decimal("1.10")))
    assert json.loads(service.requests[0].content)["payload"] == {"id": "a", "total": "1.10"}
    assert "Idempotency-Key" not in service.requests[0].headers


@pytest.mark.case(67)
@pytest.mark.parametrize("payload", [float("nan"), {"n": 2**64}, {1, 2}, [datetime(2026, 1, 1)]])
def test_a_payload_that_cannot_travel_is_refused_before_anything_is_sent(payload: Any) -> None:
    """Case 067: a typed refusal where the value enters."""
    service = Service()
    with pytest.raises(InvalidValue):
        plain(service).submit("order.placed", payload)
    assert service.requests == []


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.submit(""),
        lambda client: client.submit("x", idempotency_key=""),
        lambda client: client.submit("x", idempotency_key="é"),
        lambda client: client.submit("x", idempotency_key="k" * 257),
        lambda client: client.submit("x", correlation={"a": object()}),
        lambda client: client.invoke("", "f"),
        lambda client: client.invoke("shop", "f" * 201),
        lambda client: client.invoke("shop", "f", idempotency_key=""),
        lambda client: client.publish(App("empty")),
    ],
)
def test_nonsense_is_refused_before_anything_is_sent(call: Callable[[Client], Any]) -> None:
    service = Service()
    with pytest.raises(ConfigurationError):
        call(plain(service))
    assert service.requests == []


def test_addresses_keys_and_workspaces_are_checked() -> None:
    for url, workspace, key in (
        ("h", "acme", "k"),
        ("ws://h", "acme", "k"),
        ("http://h", " ", "k"),
        ("http://h", "a", ""),
    ):
        with pytest.raises(ConfigurationError):
            Client(url, workspace, key)


def test_publishing_sends_the_applications_manifest() -> None:
    app = App("orders")

    @app.function(on="order.placed")
    async def fulfil(ctx: Context) -> None: ...

    service = Service(ok({"generation": 3}))
    assert plain(service).publish(app) == 3
    request = service.requests[0]
    assert request.url.path == "/v1/workspaces/acme/applications/orders/manifests"
    assert json.loads(request.content)["functions"][0]["triggers"][0]["event"] == "order.placed"


COMMANDS: list[tuple[Any, bool, bytes]] = [
    (SupplySuccess(), False, b'{"success":{"value":null}}'),
    (SupplySuccess({"n": 2**53 + 1, "raw": b"\xff"}), False, b'{"success":{"value":{"n":9007199254740993,"raw":{"$bytes":"/w=="}}}}'),
    (SupplySuccess(Order("o", Decimal("1.50"))), False, b'{"success":{"value":{"id":"o","total":"1.50"}}}'),
    (DeclareFailure("no"), False, b'{"failure":{"message":"no"}}'),
    (DeclareFailure("no", "bank", [1.0]), True, b'{"failure":{"message":"no","category":"bank","details":[1.0]},"direction":"compensation"}'),
    (AuthorizeRetry(), True, b'{"retry":{},"direction":"compensation"}'),
]  # fmt: skip


@pytest.mark.parametrize(("command", "is_compensation", "body"), COMMANDS, ids=lambda value: str(value)[:30])
async def test_a_command_travels_under_its_key_and_is_tried_again(
    command: Any, is_compensation: bool, body: bytes
) -> None:
    """RFD 2, "An identical repeat returns the recorded response": so a lost answer is asked for again, with the same bytes."""
    service = Service(httpx.ReadTimeout("no"), ok({"replayed": True}), ok({}))
    options: dict[str, Any] = {"idempotency_key": "k1", "compensation": is_compensation}
    assert plain(service).resolve("r1", "s1", 1, command, **options) == {"replayed": True}
    await twin(service).resolve("r1", "s1", 1, command, **options)
    assert [request.content for request in service.requests] == [body] * 3
    assert {request.headers["Idempotency-Key"] for request in service.requests} == {"k1"}


def test_a_cancellation_is_tried_again() -> None:
    """RFD 2, "A repeated stop intent with the same outcome is idempotent"."""
    service = Service(httpx.ConnectError("no"), ok({"outcome": "repeated"}))
    assert plain(service).cancel("r1") == {"outcome": "repeated"}
    assert [request.content for request in service.requests] == [b"", b""]


@pytest.mark.parametrize("key", ["", "é", "k" * 257, "a\nb"])
def test_a_command_needs_a_key_that_can_travel(key: str) -> None:
    service = Service()
    with pytest.raises(ConfigurationError, match="idempotency key"):
        plain(service).resolve("r1", "s1", 1, AuthorizeRetry(), idempotency_key=key)
    with pytest.raises(InvalidValue):
        plain(service).resolve("r1", "s1", 1, SupplySuccess(object()), idempotency_key="k")
    assert service.requests == []


@pytest.mark.case(4)
def test_a_problem_is_a_typed_error_and_is_not_tried_again() -> None:
    """Case 004: the conflict of a reused key reaches the caller with its code."""
    service = Service(problem(409, "idempotency_conflict", field="payload"))
    with pytest.raises(ApiError) as refused:
        plain(service).submit("order.placed", 1, idempotency_key="k")
    error = refused.value
    assert (error.problem, error.status, error.detail) == ("idempotency_conflict", 409, "D")
    assert error.members == {"field": "payload"}
    assert len(service.requests) == 1


@pytest.mark.parametrize(
    "failure",
    [httpx.Response(502), httpx.Response(503), httpx.Response(504), httpx.ConnectError("no"), httpx.ReadTimeout("no")],
)
async def test_what_is_safe_is_tried_again(failure: Answer) -> None:
    service = Service(failure, failure, ok({"id": "r1"}), failure, ok(RECEIPT))
    assert plain(service).run("r1") == {"id": "r1"}
    assert (await twin(service).submit("order.placed", idempotency_key="k")).event == "e1"
    assert len(service.pauses) == 3
    assert all(0 < pause <= 2.0 for pause in service.pauses)
    assert {request.content for request in service.requests[3:]} == {b'{"name":"order.placed","payload":null}'}


@pytest.mark.parametrize("failure", [httpx.ReadTimeout("no"), httpx.Response(503)])
def test_what_is_not_safe_is_tried_once(failure: Answer) -> None:
    """A submission without a key may have been accepted; sending it again could make a second event."""
    service = Service(failure, failure, failure)
    for call in (
        lambda: plain(service).submit("order.placed"),
        lambda: plain(service).activate({"orders": 1}),
    ):
        with pytest.raises(Unreachable if isinstance(failure, Exception) else ApiError):
            call()
    assert len(service.requests) == 2
    assert service.pauses == []


def test_trying_again_is_bounded() -> None:
    service = Service(*[httpx.ConnectError("no")] * (ATTEMPTS_MAX + 1))
    with pytest.raises(Unreachable) as failed:
        plain(service).run("r1")
    assert failed.value.fields["attempts"] == ATTEMPTS_MAX == len(service.requests)


def test_being_asked_to_come_back_later_is_heeded_within_reason() -> None:
    service = Service(httpx.Response(429, headers={"Retry-After": "3"}), ok({"id": "r1"}))
    assert plain(service).run("r1") == {"id": "r1"}
    assert service.pauses == [3.0]
    late = str(int(RETRY_AFTER_MAX_S) + 1)
    service = Service(httpx.Response(429, headers={"Retry-After": late}))
    with pytest.raises(ApiError) as refused:
        plain(service).run("r1")
    assert (refused.value.status, refused.value.retry_after_s) == (429, float(late))


@pytest.mark.case(77)
@pytest.mark.parametrize("body", [b"", b"<html>", b"\xff", b"[1]", b"[" * 100_000, b'{"code":7}'])
def test_answers_of_others_are_typed_errors_too(body: bytes) -> None:
    """Case 077: a proxy's page is no crash."""
    with pytest.raises(ApiError) as refused:
        plain(Service(httpx.Response(418, content=body))).run("r1")
    assert refused.value.status == 418


def test_a_good_status_with_another_body_is_an_error() -> None:
    for answer in (httpx.Response(200, content=b"<html>"), ok({"items": 7}), ok([1])):
        with pytest.raises(ApiError):
            plain(Service(answer)).runs()


@pytest.mark.case(67)
def test_values_in_answers_are_exact_and_one_bad_value_does_not_hide_the_rest() -> None:
    """Case 067: digits and tags come back as values; a page with a text that is none is shown as it stands."""
    good = b'{"items":[{"value":9007199254740993},{"value":{"$bytes":"/w=="}}]}'
    page = plain(Service(httpx.Response(200, content=good))).steps("r1")
    assert page.items == [{"value": 2**53 + 1}, {"value": b"\xff"}]
    bad = b'{"items":[{"value":{"$bytes":7}},{"value":1}]}'
    assert plain(Service(httpx.Response(200, content=bad))).steps("r1").items[1] == {"value": 1}


def stream(*parts: str, breaks: bool = False) -> Callable[[httpx.Request], httpx.Response]:
    def chunks() -> Iterator[bytes]:
        for part in parts:
            yield part.encode()
        if breaks:
            raise httpx.ReadError("gone")

    return lambda request: httpx.Response(200, content=chunks(), headers={"Content-Type": "text/event-stream"})


def entry(ordinal: int) -> str:
    return f'id: {ordinal}\ndata: {{"ordinal":{ordinal}}}\n\n'


def test_following_goes_on_after_a_lost_connection_and_ends_with_the_history() -> None:
    service = Service(
        stream(": hello\n\n", entry(1), entry(2), 'id: 3\ndata: {"ord', breaks=True),
        httpx.ConnectError("down"),
        stream(entry(2), entry(3), "event: end\ndata: {}\n\n"),
    )
    assert [found["ordinal"] for found in plain(service).follow("r1")] == [1, 2, 3]
    assert [str(request.url.query, "ascii") for request in service.requests] == ["after=0", "after=2", "after=2"]


def test_restarts_of_the_service_do_not_end_a_long_quiet_stream() -> None:
    """Only `end` says that the history is complete; signs of life in between keep the reader patient."""
    lives = [stream(": still here\n\n")] * (2 * FAILURES_MAX)
    service = Service(stream(entry(1)), *lives, stream(entry(2), "event: end\ndata: {}\n\n"))
    assert [found["ordinal"] for found in plain(service).follow("r1")] == [1, 2]


@pytest.mark.parametrize("fault", [httpx.ConnectError("down"), stream()])
def test_a_stream_that_brings_nothing_is_given_up(fault: Any) -> None:
    service = Service(*[fault] * (FAILURES_MAX + 1))
    with pytest.raises(Unreachable):
        list(plain(service).follow("r1"))
    assert len(service.requests) == FAILURES_MAX


def test_a_refused_stream_is_a_typed_error() -> None:
    with pytest.raises(ApiError, match="D"):
        list(plain(Service(problem(404, "run_not_found"))).follow("r1"))


async def test_following_works_asynchronously() -> None:
    async def chunks() -> Any:
        yield entry(4).encode()
        yield b"event: end\n\n"

    service = Service(lambda request: httpx.Response(200, content=chunks()))
    assert [found["ordinal"] async for found in twin(service).follow("r1", after=3)] == [4]


def test_an_entry_that_cannot_be_read_does_not_end_the_stream() -> None:
    following = Following(0)
    assert following.line("id: 1") is None
    assert following.line("data: NaN") is None
    assert "unreadable" in following.line("")
    assert following.after == 1
