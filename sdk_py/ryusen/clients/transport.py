"""What both clients ask of HTTP: addresses, headers, time-outs."""

from __future__ import annotations

import random
from typing import Any

import httpx

from ryusen.clients.exchange import BACKOFF_CAP_S, BACKOFF_FIRST_S, Call
from ryusen.clients.streams import FAILURES_MAX, Following
from ryusen.errors import ApiError, ConfigurationError, Unreachable
from ryusen.version import SDK

__all__ = [
    "TIMEOUT_S_DEFAULT",
    "arguments_of",
    "as_object",
    "base_url_of",
    "headers_of",
    "reconnect_s",
    "stream_timeout",
]

TIMEOUT_S_DEFAULT = 10.0
"""Seconds for one attempt of a call, for each of connecting, writing and reading."""
STREAM_SILENCE_S = 60.0
"""Seconds without a byte, keep-alives included, after which a stream is taken for dead."""


def base_url_of(url: str) -> str:
    """Return the service's address without its last slash.

    Raises:
        ConfigurationError: not an HTTP address.
    """
    if not url.startswith(("http://", "https://")):
        raise ConfigurationError("the address must look like http://host:port", url=url)
    return url.rstrip("/")


def headers_of(key: str) -> dict[str, str]:
    """Return the headers of every request.

    Raises:
        ConfigurationError: the key cannot stand in a header.
    """
    if not key or not key.isascii() or not key.isprintable():
        raise ConfigurationError("the key must be printable ASCII text")
    return {"Authorization": f"Bearer {key}", "User-Agent": SDK, "Accept": "application/json"}


def arguments_of(call: Call) -> dict[str, Any]:
    """Return what httpx takes for a call."""
    headers = dict(call.headers)
    if call.body is not None:
        headers["Content-Type"] = "application/json"
    return {
        "method": call.method,
        "url": call.path,
        "params": call.parameters(),
        "content": call.body,
        "headers": headers,
    }


def stream_timeout() -> httpx.Timeout:
    """Return the time-outs of a stream."""
    return httpx.Timeout(TIMEOUT_S_DEFAULT, read=STREAM_SILENCE_S)


def reconnect_s(following: Following, error: Exception | None, jitter: random.Random) -> float:
    """Return how many seconds to wait before following goes on.

    Raises:
        Unreachable: too many connections in a row brought nothing.
    """
    if following.failures >= FAILURES_MAX:
        raise Unreachable("the history stream brings nothing", attempts=following.failures) from error
    return jitter.uniform(0.5, 1.0) * min(BACKOFF_CAP_S, BACKOFF_FIRST_S * 2.0**following.failures)


def as_object(body: Any) -> dict[str, Any]:
    """Return an answer that is an object.

    Raises:
        ApiError: it is something else.
    """
    if not isinstance(body, dict):
        raise ApiError("unreadable_answer", 200, "the answer is not an object; is this the gateway's address?")
    return body
