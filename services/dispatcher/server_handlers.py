"""The server work that dispatchers do themselves: which lanes they look into, and the handler of each kind of work.

To add a kind of work, add its line. Every handler is one transaction that consumes its item or leaves it for later.
"""

from __future__ import annotations

from keyspace.records.work import ItemRecord, LaneKind, WorkKind
from keyspace.transitions.fire_deadline import Fired, fire_deadline
from keyspace.transitions.fire_timer import fire_timer
from keyspace.tx import Tx
from services.lanes.handlers import Handler

__all__ = ["SERVER_HANDLERS", "SERVER_LANES"]

SERVER_LANES = (LaneKind.TIME,)
"""The lanes that hold the kinds below."""


async def _fire_deadline(tx: Tx, workspace: str, item: ItemRecord) -> Fired:
    return await fire_deadline(tx, workspace, item.target, item.item_id)


SERVER_HANDLERS: dict[WorkKind, Handler] = {
    WorkKind.RUN_TIMEOUT: Handler("fire_deadline", _fire_deadline),
    WorkKind.TIMER: Handler("fire_timer", fire_timer),
}
