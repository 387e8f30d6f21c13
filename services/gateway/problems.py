"""How refusals and failures become answers: problem+json (RFC 9457) with a stable code, by one table."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.responses import Response

from keyspace.errors import BudgetExceeded, KeyspaceError, Refusal
from keyspace.store.errors import OutcomeUnknownError, StoreError, StoreUnavailableError
from keyspace.store.runner import RetriesExhausted
from services.runtime.health import NotServing

__all__ = ["MEDIA_TYPE", "STATUSES", "ApiProblem", "problem_for", "problem_response"]

log = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_S = 1
STATUS_DEFAULT = 422
"""Of a refusal with a code that the table does not know: the caller's mistake, of whatever kind."""

STATUSES: dict[str, tuple[int, str]] = {
    "malformed_body": (400, "The body cannot be read"),
    "invalid_query": (400, "A query parameter is wrong"),
    "invalid_cursor": (400, "The cursor belongs to another list"),
    "invalid_idempotency_key": (400, "The idempotency key is wrong"),
    "unauthenticated": (401, "No valid key"),
    "forbidden": (403, "The key may not do this"),
    "not_found": (404, "Not found"),
    "method_not_allowed": (405, "The method is not allowed"),
    "body_timeout": (408, "The body came too slowly"),
    "idempotency_conflict": (409, "The idempotency key is taken"),
    "too_many_keys": (409, "Too many keys"),
    "run_not_blocked": (409, "The run is not blocked"),
    "stop_conflict": (409, "Another stop was first"),
    "stale_attempt": (409, "The attempt is not unresolved"),
    "retry_forbidden": (409, "No forward attempt starts again"),
    "deadline_elapsed": (409, "The deadline has passed"),
    "event_deleted": (410, "The event is gone"),
    "payload_too_large": (413, "The payload is too large"),
    "body_too_large": (413, "The body is too large"),
    "value_too_large": (413, "The value is too large"),
    "manifest_too_large": (413, "The manifest is too large"),
    "invalid_body": (422, "A member of the body is wrong"),
    "invalid_value": (422, "A value is not portable"),
    "invalid_name": (422, "A name is wrong"),
    "invalid_text": (422, "A text is wrong"),
    "reserved_name": (422, "A name is reserved"),
    "replay_budget": (422, "The run has no room for the value"),
    "invalid_correlation": (422, "The correlation is wrong"),
    "invalid_timestamp": (422, "The timestamp is wrong"),
    "invalid_retention": (422, "The retention is wrong"),
    "invalid_manifest": (422, "The manifest is wrong"),
    "invalid_timeout": (422, "A timeout is wrong"),
    "run_timeout_above_maximum": (422, "The run timeout is longer than is allowed"),
    "invalid_routing": (422, "The routing is wrong"),
    "unknown_manifest": (422, "The manifest generation is unknown"),
    "unsupported_filter": (422, "The filters cannot be combined"),
    "too_many_requests": (429, "Too many requests"),
    "internal": (500, "The server failed"),
    "overloaded": (503, "The store is overloaded"),
    "outcome_unknown": (503, "The outcome is unknown"),
    "store_unavailable": (503, "The store does not answer"),
    "not_serving": (503, "This process does not serve"),
}
"""Every code with its HTTP status and title; part of the OpenAPI document."""

_STANDARD_MEMBERS = frozenset({"type", "title", "status", "code", "detail"})
_encoder = msgspec.json.Encoder()


class ApiProblem(Exception):
    """A refusal of the API itself; `members` name the field, its value and the limit."""

    def __init__(self, code: str, detail: str, *, headers: Mapping[str, str] | None = None, **members: Any) -> None:
        """Carry a code of the table, a sentence and details."""
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.headers = dict(headers or {})
        self.members = members


def problem_for(error: Exception) -> ApiProblem:
    """Return the problem that tells a caller of `error`; what is our own fault is logged and told without its innards."""
    if isinstance(error, ApiProblem):
        return error
    if isinstance(error, Refusal | NotServing):
        problem = ApiProblem(error.code, error.message)
        problem.members.update(error.details)
        return problem
    if isinstance(error, RetriesExhausted) and not error.maybe_committed:
        return ApiProblem("overloaded", "Nothing was written; try again.")
    if isinstance(error, OutcomeUnknownError | RetriesExhausted):
        return ApiProblem(
            "outcome_unknown", "It may or may not have been written; repeat it with the same idempotency key, or read."
        )
    if isinstance(error, StoreUnavailableError):
        # An outage meets every request; where each of them stood when it did explains nothing.
        log.warning("the store does not answer", extra={"error": str(error)})
        return ApiProblem("store_unavailable", "The store does not answer; try again.")
    if isinstance(error, StoreError):
        log.error("the store failed", exc_info=error)
        return ApiProblem("store_unavailable", "The store does not answer; try again.")
    if isinstance(error, KeyspaceError):
        log.error(
            "the keyspace failed",
            exc_info=error,
            extra={"code": error.code, "budget": isinstance(error, BudgetExceeded)},
        )
    else:
        log.error("a request failed", exc_info=error)
    return ApiProblem("internal", "The server failed; its log says more.")


def problem_response(problem: ApiProblem) -> Response:
    """Return the answer for a problem."""
    status, title = STATUSES.get(problem.code, (STATUS_DEFAULT, "Refused"))
    headers = dict(problem.headers)
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if status in (429, 503):
        headers.setdefault("Retry-After", str(RETRY_AFTER_S))
    if status in (408, 413):
        # The rest of the body is not read, so the connection cannot be used again.
        headers["Connection"] = "close"
    body: dict[str, Any] = {
        "type": f"urn:ryusen:problem:{problem.code}",
        "title": title,
        "status": status,
        "code": problem.code,
        "detail": problem.detail,
    }
    for name, value in problem.members.items():
        if name not in _STANDARD_MEMBERS:
            body[name] = _printable(value)
    return Response(_encoder.encode(body), status, headers, MEDIA_TYPE)


def _printable(value: Any) -> Any:
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
