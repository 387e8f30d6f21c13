"""The server work that dispatchers do themselves: which lanes they look into, and the handler of each kind of work.

To add a kind of work, add its line. Every handler is one transaction that consumes its item or leaves it for later.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from keyspace.records.work import ItemRecord, LaneKind, WorkKind
from keyspace.transitions.fire_deadline import fire_deadline
from keyspace.transitions.fire_timer import fire_timer
from keyspace.transitions.probe_definition import probe_definition
from keyspace.transitions.propagate_stop import propagate_stop
from keyspace.transitions.settle_child import Settled, settle_child
from keyspace.transitions.wake_blocked import wake_blocked
from keyspace.tx import Tx
from services.lanes.handlers import Handler, Handlers

__all__ = ["SERVER_LANES", "server_handlers"]

SERVER_LANES = (LaneKind.TIME, LaneKind.SETTLE, LaneKind.PROBE)
"""The lanes that hold the kinds below."""


def server_handlers(*, value_bytes_max: int) -> Handlers:
    """Return the table.

    Args:
        value_bytes_max: the largest value a record takes, in bytes.
    """

    async def settle(tx: Tx, workspace: str, item: ItemRecord) -> Settled:
        return await settle_child(tx, workspace, item, value_bytes_max=value_bytes_max)

    return {
        WorkKind.RUN_TIMEOUT: Handler("fire_deadline", _of_target(fire_deadline)),
        WorkKind.TIMER: Handler("fire_timer", fire_timer),
        WorkKind.CHILD_SETTLE: Handler("settle_child", settle),
        WorkKind.STOP_PROPAGATE: Handler("propagate_stop", propagate_stop),
        WorkKind.DEFINITION_PROBE: Handler("probe_definition", _of_target(probe_definition)),
        WorkKind.RELEASE_WAKE: Handler(
            "wake_blocked", _of_target(wake_blocked), goes_on=lambda woken: not woken.is_complete
        ),
    }


def _of_target(
    transition: Callable[[Tx, str, str, str], Awaitable[Any]],
) -> Callable[[Tx, str, ItemRecord], Awaitable[Any]]:
    """Return the handler that calls a transition which takes what the item is for, and the item's id."""

    async def handle(tx: Tx, workspace: str, item: ItemRecord) -> Any:
        return await transition(tx, workspace, item.target, item.item_id)

    return handle
