"""How checks read what may be many keys: in bounded pages, by snapshot."""

from __future__ import annotations

from typing import Any

from keyspace.checks.report import Case
from keyspace.leaf import Key
from keyspace.store.api import KeyRange

__all__ = ["PAGE_KEYS", "has_key", "read_rows"]

PAGE_KEYS = 1_000
PAGES_MAX = 200


async def read_rows(case: Case, span: KeyRange) -> list[tuple[bytes, bytes]]:
    """Return the keys and values of a span of one run; more than any run may have are reported."""
    rows: list[tuple[bytes, bytes]] = []
    begin = span.begin
    for _ in range(PAGES_MAX):
        page = await case.tx.page(KeyRange(begin, span.end), limit=PAGE_KEYS, snapshot=True)
        rows += page
        if len(page) < PAGE_KEYS:
            return rows
        begin = page[-1][0] + b"\x00"
    case.expect(False, "C8", "the run has more keys than any run may have")
    return rows


async def has_key(case: Case, key: Key[Any]) -> bool:
    """Return whether the key is there, whatever it holds."""
    return bool(await case.tx.page(KeyRange(key.data, key.data + b"\x00"), limit=1, snapshot=True))
