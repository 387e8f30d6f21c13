"""Reading what a caller sends: bounded in bytes and in time while it streams, then strictly, naming the path of a fault."""

from __future__ import annotations

import json
import re
from typing import Any, TypeVar

import anyio
import msgspec
from ryusen.errors import InvalidValue
from ryusen.protocol.values import check_value
from starlette.requests import ClientDisconnect, Request

from services.gateway.problems import ApiProblem

__all__ = ["check_duplicates", "check_portable", "decode_body", "read_body"]

S = TypeVar("S")

UNIQUE_BYTES_MIN = 1_024
"""A raw member at least this long stands once in its body unless it is repeated, so it can be cut out by searching."""
_PATH = re.compile(r"^(.*?)(?: - at `(.*)`)?$", re.DOTALL)


async def read_body(request: Request, *, bytes_max: int, within_ms: int) -> bytes:
    """Return a request's body, refusing it as soon as it is known to be too large or too slow.

    Raises:
        ApiProblem: `body_too_large`, `body_timeout`, `malformed_body` (the caller went away).
    """
    announced = request.headers.get("content-length", "")
    if announced.isascii() and announced.isdigit() and int(announced[:18]) > bytes_max:
        raise _too_large(bytes_max)
    parts: list[bytes] = []
    size = 0
    try:
        with anyio.fail_after(within_ms / 1_000):
            async for part in request.stream():
                size += len(part)
                if size > bytes_max:
                    raise _too_large(bytes_max)
                parts.append(part)
    except TimeoutError:
        raise ApiProblem("body_timeout", "The body did not arrive in time.", limit_ms=within_ms) from None
    except ClientDisconnect:
        raise ApiProblem("malformed_body", "The body ended before its time.") from None
    return b"".join(parts)


def decode_body(data: bytes, decoder: msgspec.json.Decoder[S]) -> S:
    """Return the request in `data`.

    Raises:
        ApiProblem: `malformed_body` (not JSON text), `invalid_body` (another shape; `path` says where).
    """
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        found = _PATH.match(str(error))
        assert found is not None
        raise ApiProblem("invalid_body", found[1], path=found[2] or "$") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiProblem("malformed_body", f"The body is not JSON text: {error}") from None


def check_duplicates(body: bytes, checked: bytes) -> None:
    """Refuse a body in which a member stands twice, of which readers take this one or that.

    Args:
        body: JSON text that decodes.
        checked: the raw text of a member of it that was checked already; left out of the second reading when it is large.

    Raises:
        ApiProblem: `malformed_body`.
    """
    if len(checked) >= UNIQUE_BYTES_MIN and body.count(checked) == 1:
        body = body.replace(checked, b"null")
    json.loads(body, object_pairs_hook=_refuse_duplicates)


def check_portable(value: bytes, field: str) -> None:
    """Refuse the raw text of a member that is not a portable value, without changing it.

    Raises:
        ApiProblem: `invalid_value`, naming the member and the path inside it.
    """
    try:
        check_value(value)
    except InvalidValue as error:
        raise ApiProblem(
            "invalid_value", f"The {field} is no portable value: {error.reason}", field=field, path=error.path
        ) from None


def _refuse_duplicates(members: list[tuple[str, Any]]) -> None:
    names = [name for name, _ in members]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ApiProblem("malformed_body", "A member stands twice in one object.", field=twice[:80])


def _too_large(bytes_max: int) -> ApiProblem:
    return ApiProblem("body_too_large", "The body is too large.", limit=bytes_max)
