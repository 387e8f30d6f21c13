"""The OpenAPI 3.1 document, made from the endpoint table and the types; nothing in it is written by hand."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from services.gateway.endpoints import Endpoint
from services.gateway.problems import MEDIA_TYPE, STATUSES
from services.gateway.types import Problem
from services.runtime.probes import Readiness

__all__ = ["openapi_document"]

_REFERENCE = "#/components/schemas/{name}"
_ELEMENT = re.compile(r"{(\w+)}")
_EVERYWHERE = (
    "unauthenticated", "too_many_requests", "internal", "overloaded", "outcome_unknown", "store_unavailable",
    "not_serving", "invalid_query",
)  # fmt: skip


def openapi_document(endpoints: Sequence[Endpoint], *, version: str) -> dict[str, Any]:
    """Return the document of these endpoints and of the probes."""
    types = [Problem, Readiness]
    for endpoint in endpoints:
        types += [kind for kind in (endpoint.answer, endpoint.body) if kind is not None]
    schemas, components = msgspec.json.schema_components(types, ref_template=_REFERENCE)
    by_type = dict(zip(map(str, types), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint, by_type)
    for path, summary in (("/healthz", "Whether the process is alive."), ("/readyz", "Whether the process serves.")):
        paths[path] = {"get": _probe(summary, by_type[str(Readiness)])}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Ryusen", "version": version, "summary": "Durable workflows: the API of a workspace."},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}],
    }


def _operation(endpoint: Endpoint, by_type: dict[str, Any]) -> dict[str, Any]:
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _ELEMENT.findall(endpoint.path)
    ] + [
        {"name": parameter.name, "in": parameter.place, "description": parameter.meaning, "schema": parameter.schema}
        | ({"required": True} if parameter.is_required else {})
        for parameter in endpoint.parameters
    ]
    good = {"description": "Done.", "content": {endpoint.media_type: {"schema": by_type[str(endpoint.answer)]}}}
    responses: dict[str, Any] = {str(endpoint.status): good}
    if endpoint.status == 201 and endpoint.name != "create_key":
        responses["200"] = good
    codes = [*_EVERYWHERE, *endpoint.problems]
    if endpoint.action is not None:
        codes.append("forbidden")
    if "{" in endpoint.path:
        codes.append("not_found")
    responses |= _refusals(codes, by_type[str(Problem)])
    operation: dict[str, Any] = {
        "operationId": endpoint.name,
        "summary": endpoint.summary,
        "parameters": parameters,
        "responses": responses,
    }
    if endpoint.body is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": by_type[str(endpoint.body)]}},
        }
    return operation


def _refusals(codes: list[str], problem: dict[str, Any]) -> dict[str, Any]:
    by_status: dict[int, list[str]] = {}
    for code in sorted(set(codes)):
        by_status.setdefault(STATUSES[code][0], []).append(code)
    return {
        str(status): {"description": f"code: {', '.join(names)}", "content": {MEDIA_TYPE: {"schema": problem}}}
        for status, names in sorted(by_status.items())
    }


def _probe(summary: str, schema: dict[str, Any]) -> dict[str, Any]:
    content = {"application/json": {"schema": schema}}
    return {
        "summary": summary,
        "security": [],
        "responses": {
            "200": {"description": "Yes.", "content": content},
            "503": {"description": "No.", "content": content},
        },
    }
