"""The ASGI application of the gateway: routing, permission and problems around the endpoints of the table.

The order is fixed: the bound on requests, the key, the workspace, the role, then the endpoint. A caller learns nothing of
what it does not reach: another workspace, its ids and a workspace that does not exist are answered alike.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from urllib.parse import unquote

import anyio
import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from keyspace.errors import Refusal
from keyspace.transitions.names import check_id, check_name, check_workspace_name
from services.gateway.auth import Identity, bearer_secret
from services.gateway.endpoints import Answer, Call, Endpoint, Gateway, missing
from services.gateway.openapi import openapi_document
from services.gateway.problems import ApiProblem, problem_for, problem_response
from services.gateway.routes import ENDPOINTS
from services.runtime.process import SERVER_VERSION

__all__ = ["gateway_app", "gateway_routes"]

QUERY_CHARS_MAX = 8_192
_IDS = frozenset({"event", "run", "key"})
_ELEMENT = re.compile(r"{(\w+)}")
_encoder = msgspec.json.Encoder()


def gateway_routes(gateway: Gateway) -> list[BaseRoute]:
    """Return the gateway's routes, to be mounted alone or beside others; `gateway_app` wraps them as they need."""
    document = _encoder.encode(openapi_document(ENDPOINTS, version=SERVER_VERSION))

    async def openapi(_request: Request) -> Response:
        return Response(document, media_type="application/json")

    routes: list[BaseRoute] = [Route("/openapi.json", openapi), *gateway.process.probe_routes()]
    # A path is one route with its methods, so that a wrong method is told apart from a wrong path.
    by_path: dict[str, dict[str, Endpoint]] = {}
    for endpoint in ENDPOINTS:
        by_path.setdefault(endpoint.path, {})[endpoint.method] = endpoint
    routes += [Route(path, _answering(gateway, found), methods=list(found)) for path, found in by_path.items()]
    return routes


def gateway_app(gateway: Gateway, *further: BaseRoute) -> ASGIApp:
    """Return the application: the gateway's routes, and `further` ones that share its port."""

    async def unrouted(_request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 405:
            problem = ApiProblem("method_not_allowed", "The path has other methods.", headers=error.headers)
            return problem_response(problem)
        return problem_response(ApiProblem("not_found", "There is no such path."))

    app = Starlette(routes=[*gateway_routes(gateway), *further], exception_handlers={HTTPException: unrouted})

    async def raw_paths(scope: Scope, receive: Receive, send: Send) -> None:
        # Names may hold slashes, quoted in the path: match before unquoting, so that they stay one element.
        if scope["type"] in ("http", "websocket") and scope.get("raw_path"):
            scope = dict(scope) | {"path": scope["raw_path"].split(b"?")[0].decode("latin-1")}
        await app(scope, receive, send)

    return raw_paths


def _answering(gateway: Gateway, by_method: dict[str, Endpoint]) -> Callable[[Request], Awaitable[Response]]:
    clock, metrics = gateway.process.clock, gateway.metrics

    async def answer(request: Request) -> Response:
        endpoint = by_method["GET" if request.method == "HEAD" else request.method]
        begun_ms = clock.monotonic_ms()
        response = await _bounded(gateway, endpoint, request)
        metrics.seconds.labels(endpoint.name).observe((clock.monotonic_ms() - begun_ms) / 1_000)
        metrics.answers.labels(endpoint.name, str(response.status_code)).inc()
        return response

    return answer


async def _bounded(gateway: Gateway, endpoint: Endpoint, request: Request) -> Response:
    """Answer a request if there is room for it; whatever fails becomes an answer too."""
    owner = object()
    try:
        gateway.requests.acquire_on_behalf_of_nowait(owner)
    except anyio.WouldBlock:
        limit = int(gateway.requests.total_tokens)
        return _refuse(
            gateway, ApiProblem("too_many_requests", "As many requests are worked on as may be.", limit=limit)
        )
    try:
        return await _run(gateway, endpoint, request)
    except Exception as error:  # noqa: BLE001 - the one place where any failure becomes an answer, and is logged
        return _refuse(gateway, problem_for(error))
    finally:
        gateway.requests.release_on_behalf_of(owner)


def _refuse(gateway: Gateway, problem: ApiProblem) -> Response:
    gateway.metrics.refusals.labels(problem.code).inc()
    return problem_response(problem)


async def _run(gateway: Gateway, endpoint: Endpoint, request: Request) -> Response:
    identity = await gateway.keys.identify(bearer_secret(request.headers.get("authorization")))
    call = Call(gateway, request, identity, _parts(endpoint, request), _query(endpoint, request))
    _permit(endpoint, identity, call.parts)
    found = await endpoint.handler(call)
    if isinstance(found, Answer):
        return Response(
            _encoder.encode(found.body),
            found.status or endpoint.status,
            {"Cache-Control": "no-store"},
            media_type=endpoint.media_type,
        )
    return found


def _permit(endpoint: Endpoint, identity: Identity, parts: dict[str, str]) -> None:
    workspace = parts.get("workspace")
    if workspace is not None and not identity.reaches(workspace):
        raise missing_workspace(workspace)
    if endpoint.action is not None and not identity.may(endpoint.action):
        raise ApiProblem(
            "forbidden", f"A {identity.role.value} key may not {endpoint.action.value}.", role=identity.role.value
        )


def missing_workspace(name: str) -> Refusal:
    """Return the refusal that the transitions raise too, so that a foreign workspace looks like one that is not."""
    return Refusal("not_found", "There is no such workspace.", workspace=name)


def _parts(endpoint: Endpoint, request: Request) -> dict[str, str]:
    """Return the path's elements, unquoted and sound; what cannot be a name is answered like what does not exist."""
    parts: dict[str, str] = {}
    for name in _ELEMENT.findall(endpoint.path):
        try:
            value = unquote(request.path_params[name], errors="strict")
            if name in _IDS:
                check_id(name, value)
            elif name == "workspace":
                check_workspace_name(value)
            else:
                check_name(name, value)
        except (UnicodeDecodeError, Refusal):
            if name == "workspace":
                raise missing_workspace(request.path_params[name][:80]) from None
            raise missing(name, value=request.path_params[name][:80]) from None
        parts[name] = value
    return parts


def _query(endpoint: Endpoint, request: Request) -> dict[str, str]:
    """Return the query's parameters: each known and once, since a misspelt filter must not list everything."""
    query = request.scope.get("query_string", b"")
    if not query:
        return {}
    if len(query) > QUERY_CHARS_MAX:
        raise ApiProblem("invalid_query", "The query is too long.", limit=QUERY_CHARS_MAX)
    known = {parameter.name for parameter in endpoint.parameters if parameter.place == "query"}
    found: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name not in known:
            raise ApiProblem(
                "invalid_query", "There is no such parameter here.", field=name[:80], known=", ".join(sorted(known))
            )
        if name in found:
            raise ApiProblem("invalid_query", "A parameter stands twice.", field=name)
        found[name] = value
    return found
