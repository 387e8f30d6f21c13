"""Reading one page of a list: bounded, by snapshot, with one row more than shown so that the end is never in doubt."""

from __future__ import annotations

from typing import NamedTuple

from keyspace.limits import LIST_PAGE_ITEMS_DEFAULT, LIST_PAGE_ITEMS_MAX
from keyspace.store.api import KeyRange
from keyspace.tx import Tx
from services.gateway.cursors import ListQuery
from services.gateway.problems import ApiProblem

__all__ = ["PageRequest", "Rows", "read_integer", "read_rows"]

INTEGER_CHARS_MAX = 18


class PageRequest(NamedTuple):
    """How many rows of which query, and after which."""

    query: ListQuery
    limit: int
    after: bytes | None

    @classmethod
    def of(cls, query: ListQuery, parameters: dict[str, str]) -> PageRequest:
        """Read `limit` and `cursor`.

        Raises:
            ApiProblem: `invalid_query`, `invalid_cursor`.
        """
        limit = read_integer(parameters, "limit", LIST_PAGE_ITEMS_DEFAULT, 1, LIST_PAGE_ITEMS_MAX)
        cursor = parameters.get("cursor")
        return cls(query, limit, None if cursor is None else query.open(cursor))


class Rows(NamedTuple):
    """The rows of a page and the cursor of the next one, None at the end."""

    rows: list[tuple[bytes, bytes]]
    next_cursor: str | None


def read_integer(parameters: dict[str, str], name: str, default: int, low: int, high: int) -> int:
    """Return an integer parameter.

    Raises:
        ApiProblem: `invalid_query`: no integer, or outside [low, high]; never cut to fit.
    """
    text = parameters.get(name)
    if text is None:
        return default
    digits = text.removeprefix("-")
    if digits.isascii() and digits.isdigit() and len(digits) <= INTEGER_CHARS_MAX and low <= int(text) <= high:
        return int(text)
    raise ApiProblem(
        "invalid_query",
        f"{name} takes an integer from {low} to {high}.",
        field=name,
        value=text[:80],
        low=low,
        high=high,
    )


async def read_rows(tx: Tx, span: KeyRange, request: PageRequest, *, reverse: bool) -> Rows:
    """Read the page that `request` asks for from the keys of `span`, in key order or from its end.

    Raises:
        ApiProblem: `invalid_cursor`: the position lies outside the span.
    """
    if request.after is not None:
        if not span.begin <= request.after < span.end:
            raise ApiProblem("invalid_cursor", "The cursor lies outside this list.", field="cursor")
        span = KeyRange(span.begin, request.after) if reverse else KeyRange(request.after + b"\x00", span.end)
    rows = await tx.page(span, limit=request.limit + 1, reverse=reverse, snapshot=True)
    if len(rows) <= request.limit:
        return Rows(rows, None)
    rows = rows[: request.limit]
    return Rows(rows, request.query.seal(rows[-1][0]))
