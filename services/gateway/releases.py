"""Connected releases of an application: in the order of their positions, with the sessions that run each now."""

from __future__ import annotations

from collections import Counter

import msgspec

from keyspace.layout import RELEASE, RELEASE_LIST
from keyspace.transitions.create_workspace import require_workspace
from keyspace.transitions.live_releases import read_live
from keyspace.tx import Tx
from services.gateway.cursors import ListQuery
from services.gateway.endpoints import Answer, Call
from services.gateway.pages import PageRequest, read_rows
from services.gateway.types import Page

__all__ = ["ReleaseSummary", "list_releases"]


class ReleaseSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A connected release: a name that workers gave, with exactly these functions and contracts.

    `position` orders releases as text; work goes to the greatest one that has `live_sessions`. Sessions are counted as their
    dispatchers last said, which is at most ten seconds old.
    """

    release: str
    name: str
    position: str
    function_count: int
    registered_at_ms: int
    live_sessions: int


async def list_releases(call: Call) -> Answer:
    """List an application's releases, the greatest position first."""
    application = call.parts["application"]
    request = PageRequest.of(ListQuery("releases", call.workspace, application), call.query)

    async def page(tx: Tx) -> Page[ReleaseSummary]:
        await require_workspace(tx, call.workspace)
        found = await read_rows(tx, RELEASE_LIST.span(call.workspace, application), request, reverse=True)
        identities = [RELEASE_LIST.codec.decode(value) for _, value in found.rows]
        records = await tx.load_all(
            (RELEASE.at(call.workspace, application, identity) for identity in identities), snapshot=True
        )
        live = await _live_sessions(tx, call.workspace, application)
        items = [
            ReleaseSummary(
                release=record.release_id,
                name=record.name,
                position=RELEASE_LIST.parse(key)[-1].hex(),
                function_count=record.function_count,
                registered_at_ms=record.registered_at_ms,
                live_sessions=live[record.release_id],
            )
            for (key, _), record in zip(found.rows, records, strict=True)
            if record is not None
        ]
        return Page(items=items, next_cursor=found.next_cursor)

    return Answer(await call.transact("list_releases", page))


async def _live_sessions(tx: Tx, workspace: str, application: str) -> Counter[str]:
    """Return how many sessions run each release, by what still counts of what dispatchers said."""
    counts: Counter[str] = Counter()
    for page in await read_live(tx):
        if page.record.expires_at_ms > tx.now_ms:
            for one in page.record.releases:
                if (one.workspace, one.application) == (workspace, application):
                    counts[one.release_id] += one.session_count
    return counts
