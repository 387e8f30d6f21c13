"""What an endpoint is: a route with its role, types and parameters declared beside the function that answers it.

The table in `routes.py` lists them all; routing, permission, decoding and the OpenAPI document are made from it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, NamedTuple, TypeVar

import anyio
import msgspec
from starlette.requests import Request
from starlette.responses import Response

from keyspace.errors import Refusal
from keyspace.tx import Tx
from services.gateway.auth import Action, Identity, KeyRing
from services.gateway.bodies import decode_body, read_body
from services.gateway.metrics import GatewayMetrics
from services.gateway.problems import ApiProblem
from services.runtime.config import Config
from services.runtime.process import Process

__all__ = ["Answer", "Call", "Endpoint", "Gateway", "Parameter"]

T = TypeVar("T")
S = TypeVar("S")

IDEMPOTENCY_HEADER = b"idempotency-key"


class Gateway:
    """What every call needs: the process it runs in, the keys it knows, the bounds it keeps."""

    def __init__(self, process: Process) -> None:
        """Serve within `process`."""
        self.process = process
        self.config: Config = process.config
        self.keyspace = process.keyspace
        self.keys = KeyRing(
            process.keyspace,
            clock=process.clock,
            ttl_ms=process.config.key_cache_ms,
            system_key=process.config.system_key,
        )
        self.requests = anyio.CapacityLimiter(process.config.requests_max)
        self.streams = anyio.CapacityLimiter(process.config.streams_max)
        self.metrics = GatewayMetrics(
            process.telemetry.registry,
            requests=lambda: self.requests.borrowed_tokens,
            streams=lambda: self.streams.borrowed_tokens,
        )


class Answer(NamedTuple):
    """What an endpoint answers; `status` None means the endpoint's own."""

    body: Any
    status: int | None = None


class Parameter(NamedTuple):
    """A query parameter or header, for reading and for the document."""

    name: str
    meaning: str
    schema: dict[str, Any]
    place: str = "query"
    is_required: bool = False


class Call:
    """One authenticated request: who calls, with which path elements and parameters."""

    def __init__(
        self, gateway: Gateway, request: Request, identity: Identity, parts: dict[str, str], query: dict[str, str]
    ) -> None:
        """Hold what was read of the request."""
        self.gateway = gateway
        self.request = request
        self.identity = identity
        self.parts = parts
        self.query = query

    @property
    def workspace(self) -> str:
        """The workspace in the path; the caller reaches it."""
        return self.parts["workspace"]

    async def transact(self, name: str, body: Callable[[Tx], Awaitable[T]]) -> T:
        """Run one transition."""
        return await self.gateway.keyspace.transact(name, body)

    async def body(self, bytes_max: int) -> bytes:
        """Return the request's body of at most `bytes_max` bytes."""
        return await read_body(self.request, bytes_max=bytes_max, within_ms=self.gateway.config.body_ms)

    async def decode(self, decoder: msgspec.json.Decoder[S], bytes_max: int) -> S:
        """Return the request's body as the decoder's type."""
        return decode_body(await self.body(bytes_max), decoder)

    def idempotency_key(self) -> str | None:
        """Return the caller's key as text, None when the header is absent; an empty one stays empty and is refused later.

        Raises:
            ApiProblem: `invalid_idempotency_key`: the header stands twice or is not UTF-8.
        """
        found = [value for name, value in self.request.headers.raw if name.lower() == IDEMPOTENCY_HEADER]
        if not found:
            return None
        if len(found) > 1:
            raise ApiProblem("invalid_idempotency_key", "The header stands twice.", field="idempotency_key")
        try:
            return found[0].decode("utf-8")
        except UnicodeDecodeError:
            raise ApiProblem(
                "invalid_idempotency_key", "The header is not UTF-8 text.", field="idempotency_key"
            ) from None


def missing(what: str, **details: str) -> Refusal:
    """Return the refusal for what does not exist, or what this caller must not know of."""
    return Refusal("not_found", f"There is no such {what} in this workspace.", **details)


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One route.

    Attributes:
        name: the operation's name, unique.
        method: the HTTP method.
        path: with {elements}; one of the name `workspace` binds the call to that workspace.
        action: what a caller's role must grant; None for whoever is authenticated.
        handler: answers the call.
        answer: the type of a good answer.
        status: of a good answer.
        summary: one sentence for the document.
        body: the type of the request's body, if it has one.
        parameters: the query parameters and headers it reads; others are refused.
        problems: the codes it may answer besides those that every route may.
        media_type: of a good answer.
    """

    name: str
    method: str
    path: str
    action: Action | None
    handler: Callable[[Call], Awaitable[Answer | Response]]
    answer: Any
    summary: str
    status: int = HTTPStatus.OK
    body: Any = None
    parameters: tuple[Parameter, ...] = ()
    problems: tuple[str, ...] = ()
    media_type: str = "application/json"
