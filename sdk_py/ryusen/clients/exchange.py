"""One call to the service as a conversation: what to send, how long to wait, what the answer means. No input, no output.

`exchange` is a generator. It yields an `Attempt`, and is sent the response or the transport's exception; or it yields a
`Pause`. It returns the body of the answer. The client and its async twin only drive it.
"""

from __future__ import annotations

import json
import random
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import httpx
import msgspec

from ryusen.errors import ApiError, InvalidValue, Unreachable
from ryusen.protocol.values import decode_value

__all__ = ["ATTEMPTS_MAX", "Attempt", "Call", "Pause", "exchange", "path_of", "read_body"]

ATTEMPTS_MAX = 5
"""Attempts of one safe call, the first one included."""
BACKOFF_FIRST_S = 0.1
BACKOFF_CAP_S = 2.0
RETRY_AFTER_MAX_S = 30.0
"""The longest Retry-After that is waited for; a longer one is the caller's to decide about."""

_RETRIED_STATUSES = frozenset((429, 502, 503, 504))


@dataclass(frozen=True)
class Call:
    """A request.

    Attributes:
        method: the HTTP method.
        path: below the service's address, quoted.
        query: parameters; those that are None are left out.
        body: JSON text or None.
        headers: further headers.
        is_safe: whether sending it twice does what sending it once does.
    """

    method: str
    path: str
    query: Mapping[str, object] = field(default_factory=dict)
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    is_safe: bool = False

    def parameters(self) -> dict[str, str]:
        """Return the query as text."""
        return {name: str(value) for name, value in self.query.items() if value is not None}


@dataclass(frozen=True)
class Attempt:
    """Send the call now."""

    call: Call


@dataclass(frozen=True)
class Pause:
    """Wait so many seconds."""

    seconds: float


Conversation = Generator[Attempt | Pause, httpx.Response | httpx.TransportError | None, Any]


def path_of(*parts: str) -> str:
    """Return a path of quoted parts below the API's version."""
    return "/v1/" + "/".join(quote(part, safe="") for part in parts)


def exchange(call: Call, jitter: random.Random) -> Conversation:
    """Talk until there is an answer, trying again only what is safe.

    Raises:
        ApiError: the service answered with a problem.
        Unreachable: there was no answer.
    """
    attempts_max = ATTEMPTS_MAX if call.is_safe else 1
    for attempt in range(1, attempts_max + 1):
        answer = yield Attempt(call)
        assert answer is not None, "an attempt is answered by a response or an error"
        is_last = attempt == attempts_max
        pause_s = jitter.uniform(0.5, 1.0) * min(BACKOFF_CAP_S, BACKOFF_FIRST_S * 2 ** (attempt - 1))
        if isinstance(answer, httpx.TransportError):
            if is_last:
                reason = f"{type(answer).__name__}: {answer}"
                raise Unreachable("the service gave no answer", attempts=attempt, reason=reason) from answer
        elif answer.status_code not in _RETRIED_STATUSES or is_last:
            return read_body(answer)
        else:
            asked_s = _retry_after_s(answer)
            if asked_s is not None and asked_s > RETRY_AFTER_MAX_S:
                return read_body(answer)
            pause_s = max(pause_s, asked_s or 0.0)
        yield Pause(pause_s)
    raise AssertionError("the last attempt returns or raises")


def read_body(response: httpx.Response) -> Any:
    """Return the body of a good answer, or raise the problem of a bad one."""
    if not response.is_success:
        raise _problem(response)
    if not response.content:
        return None
    try:
        return decode_value(response.content)
    except InvalidValue:
        # One value that does not lift must not hide the rest of a page: then tags stay as they stand in the text.
        try:
            return json.loads(response.content)
        except ValueError:
            raise ApiError("unreadable_answer", response.status_code, "the answer is not JSON") from None


def _problem(response: httpx.Response) -> ApiError:
    members: dict[str, object] = {}
    try:
        decoded = msgspec.json.decode(response.content, type=dict[str, Any])
        members = decoded
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass  # a proxy answered, not the service; the status still says something
    known = {name: members.pop(name, "") for name in ("code", "detail", "title", "type", "status")}
    return ApiError(
        problem=str(known["code"] or f"http_{response.status_code}"),
        status=response.status_code,
        detail=str(known["detail"] or known["title"] or f"the service answered HTTP {response.status_code}"),
        members=members,
        retry_after_s=_retry_after_s(response),
    )


def _retry_after_s(response: httpx.Response) -> float | None:
    value = response.headers.get("Retry-After", "")
    # The date form is left aside: it would be read by this machine's clock.
    return float(value) if value.isascii() and value.isdigit() else None
