"""Every call of the API as a `Call`, checked before it is sent, and the answers' types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from ryusen.app import App
from ryusen.clients.commands import Command, body_of
from ryusen.clients.exchange import Call, path_of
from ryusen.errors import ApiError, ConfigurationError
from ryusen.protocol.manifest import Manifest, encode_manifest, validate_manifest
from ryusen.protocol.names import name_fault
from ryusen.typed import UNTYPED, encode_typed, is_model

__all__ = [
    "Calls",
    "EventReceipt",
    "HistoryPage",
    "InvocationReceipt",
    "Page",
    "read_generation",
    "read_history",
    "read_invocation",
    "read_page",
    "read_receipt",
]

S = TypeVar("S")

KEY_CHARS_MAX = 256
"""Characters of an idempotency key."""


class EventReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """What the service answered to a submitted event.

    Attributes:
        event: the event's id.
        routing_generation: the routing generation it was accepted under.
        expansion: how far it has become runs; its `state` is among the members.
        replayed: whether the same submission had been accepted before.
        accepted_at_ms: when it was accepted, Unix epoch milliseconds.
        claim_expires_at_ms: until when the idempotency key is remembered.
    """

    event: str
    routing_generation: int | None = None
    expansion: dict[str, Any] = {}
    replayed: bool = False
    accepted_at_ms: int | None = None
    claim_expires_at_ms: int | None = None


class InvocationReceipt(EventReceipt, frozen=True, kw_only=True):
    """What the service answered to an invocation.

    Attributes:
        run: the id that the run has once the function was found; `expansion` says how far that is. None when the routing
            has no such function: then `expansion` says in words what is missing, and no run will ever begin.
    """

    run: str | None = None


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """One page of a list; pass `next_cursor` to get the next one, until it is None."""

    items: list[dict[str, Any]]
    next_cursor: str | None = None


class HistoryPage(msgspec.Struct, frozen=True, kw_only=True):
    """One page of a run's history; pass `next_after` as `after` to get the next one.

    Attributes:
        items: the entries, by ordinal.
        next_after: None when these are the last entries there are now.
        is_complete: whether nothing will ever follow.
    """

    items: list[dict[str, Any]]
    next_after: int | None = None
    is_complete: bool = False


class Calls:
    """The calls of one workspace."""

    def __init__(self, workspace: str) -> None:
        """Bind the workspace's name."""
        _require(name_fault(workspace), "workspace")
        self._root = ("workspaces", workspace)

    def _get(self, *parts: str, **query: object) -> Call:
        return Call("GET", path_of(*self._root, *parts), query, is_safe=True)

    def submit(
        self,
        name: str,
        payload: object,
        idempotency_key: str | None,
        correlation: Mapping[str, str] | None,
        timestamp_ms: int | None,
    ) -> Call:
        """Return the call that submits an event; its payload is encoded once and travels as these bytes."""
        _require(name_fault(name), "event name")
        body: dict[str, Any] = {"name": name, "payload": msgspec.Raw(encode_typed(payload, _annotation_of(payload)))}
        if correlation:
            body["correlation"] = dict(correlation)
        if timestamp_ms is not None:
            body["timestamp_ms"] = timestamp_ms
        headers: dict[str, str] = {}
        if idempotency_key is not None:
            _require(_key_fault(idempotency_key), "idempotency key")
            headers["Idempotency-Key"] = idempotency_key
        is_safe = idempotency_key is not None
        return Call("POST", path_of(*self._root, "events"), body=_encode(body), headers=headers, is_safe=is_safe)

    def invoke(
        self,
        application: str,
        function: str,
        payload: object,
        idempotency_key: str | None,
        timestamp_ms: int | None,
    ) -> Call:
        """Return the call that starts one function; its input is encoded once and travels as these bytes."""
        _require(name_fault(application), "application name")
        _require(name_fault(function), "function name")
        body: dict[str, Any] = {"input": msgspec.Raw(encode_typed(payload, _annotation_of(payload)))}
        if timestamp_ms is not None:
            body["timestamp_ms"] = timestamp_ms
        headers: dict[str, str] = {}
        if idempotency_key is not None:
            _require(_key_fault(idempotency_key), "idempotency key")
            headers["Idempotency-Key"] = idempotency_key
        path = path_of(*self._root, "applications", application, "functions", function, "invoke")
        return Call("POST", path, body=_encode(body), headers=headers, is_safe=idempotency_key is not None)

    def event(self, event: str) -> Call:
        """Return the call that reads one event."""
        return self._get("events", event)

    def events(self, limit: int | None, cursor: str | None) -> Call:
        """Return the call that lists events."""
        return self._get("events", limit=limit, cursor=cursor)

    def run(self, run: str) -> Call:
        """Return the call that reads one run."""
        return self._get("runs", run)

    def runs(
        self, status: str | None, function: str | None, application: str | None, limit: int | None, cursor: str | None
    ) -> Call:
        """Return the call that lists runs."""
        return self._get("runs", status=status, function=function, application=application, limit=limit, cursor=cursor)

    def matches(self, event: str, limit: int | None, cursor: str | None) -> Call:
        """Return the call that lists the runs an event started."""
        return self._get("events", event, "matches", limit=limit, cursor=cursor)

    def steps(self, run: str, limit: int | None, cursor: str | None) -> Call:
        """Return the call that lists a run's steps."""
        return self._get("runs", run, "steps", limit=limit, cursor=cursor)

    def step(self, run: str, step: str) -> Call:
        """Return the call that reads one step with its value."""
        return self._get("runs", run, "steps", step)

    def cancel(self, run: str) -> Call:
        """Return the call that cancels a run; cancelling twice does what cancelling once does."""
        return Call("POST", path_of(*self._root, "runs", run, "cancel"), is_safe=True)

    def rediscover(self, run: str) -> Call:
        """Return the call that asks for another look at a blocked run's code; asking twice does what asking once does."""
        return Call("POST", path_of(*self._root, "runs", run, "rediscover"), is_safe=True)

    def unresolved(self, limit: int | None, cursor: str | None) -> Call:
        """Return the call that lists the attempts whose outcome is unknown."""
        return self._get("attempts", unresolved="true", limit=limit, cursor=cursor)

    def resolve(
        self, run: str, step: str, generation: int, command: Command, idempotency_key: str, is_compensation: bool
    ) -> Call:
        """Return the call that settles an attempt of unknown outcome."""
        _require(_key_fault(idempotency_key), "idempotency key")
        body = body_of(command)
        if is_compensation:
            body["direction"] = "compensation"
        path = path_of(*self._root, "runs", run, "steps", step, "attempts", str(generation), "resolve")
        headers = {"Idempotency-Key": idempotency_key}
        return Call("POST", path, body=_encode(body), headers=headers, is_safe=True)

    def history(self, run: str, after: int, limit: int | None) -> Call:
        """Return the call that reads a page of a run's history."""
        return self._get("runs", run, "history", after=after, limit=limit)

    def follow(self, run: str, after: int) -> Call:
        """Return the call that streams a run's history."""
        path = path_of(*self._root, "runs", run, "history", "stream")
        return Call("GET", path, {"after": after}, headers={"Accept": "text/event-stream"}, is_safe=True)

    def publish(self, manifest: App | Manifest) -> Call:
        """Return the call that publishes a manifest as a new generation."""
        made = manifest.manifest() if isinstance(manifest, App) else manifest
        validate_manifest(made)
        path = path_of(*self._root, "applications", made.application, "manifests")
        return Call("POST", path, body=encode_manifest(made))

    def manifests(self, application: str, limit: int | None, cursor: str | None) -> Call:
        """Return the call that lists an application's manifest generations."""
        return self._get("applications", application, "manifests", limit=limit, cursor=cursor)

    def manifest(self, application: str, generation: int) -> Call:
        """Return the call that reads one manifest generation."""
        return self._get("applications", application, "manifests", str(generation))

    def activate(self, applications: Mapping[str, int], merge: bool) -> Call:
        """Return the call that makes manifest generations the ones new events are routed by."""
        body: dict[str, Any] = {"applications": dict(applications)}
        if merge:
            body["merge"] = True
        return Call("POST", path_of(*self._root, "routing"), body=_encode(body))

    def routing(self) -> Call:
        """Return the call that reads the active routing generation."""
        return self._get("routing")


def read_receipt(body: Any) -> EventReceipt:
    """Return the receipt in an answer."""
    return _shaped(body, EventReceipt)


def read_invocation(body: Any) -> InvocationReceipt:
    """Return the receipt in the answer to an invocation."""
    return _shaped(body, InvocationReceipt)


def read_page(body: Any) -> Page:
    """Return the page in an answer."""
    return _shaped(body, Page)


def read_history(body: Any) -> HistoryPage:
    """Return the page of history in an answer."""
    return _shaped(body, HistoryPage)


def read_generation(body: Any) -> int:
    """Return the generation in an answer."""
    return _shaped(body, _Generation).generation


class _Generation(msgspec.Struct, frozen=True):
    generation: int


def _shaped(body: Any, kind: type[S]) -> S:
    try:
        return msgspec.convert(body, kind)
    except msgspec.ValidationError as exc:
        raise ApiError("unreadable_answer", 200, f"the answer has another shape than expected: {exc}") from None


def _encode(body: dict[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(body)
    except (TypeError, ValueError, UnicodeEncodeError) as exc:
        raise ConfigurationError("the request cannot be written as JSON", reason=str(exc)) from None


def _annotation_of(payload: object) -> Any:
    # A payload has no annotation: a model's own type says how to spell it; a set or a Decimal would tell its reader nothing.
    return type(payload) if is_model(type(payload)) else UNTYPED


def _key_fault(key: str) -> str | None:
    is_fine = 1 <= len(key) <= KEY_CHARS_MAX and key.isascii() and key.isprintable()
    return None if is_fine else f"must be 1 to {KEY_CHARS_MAX} printable ASCII characters"


def _require(fault: str | None, what: str) -> None:
    if fault is not None:
        raise ConfigurationError(f"the {what} {fault}")
