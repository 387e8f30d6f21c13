"""What a pump does with the work it finds: one handler for each kind of work, in a table.

A handler is a transition: its transaction consumes the item, or leaves it for later, so that nothing is leased and a process
that dies on the way leaves nothing behind (ARCHITECTURE 4, "A server item whose handler is one transaction needs no lease").
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from keyspace.records.work import ItemRecord, WorkKind
from keyspace.tx import Tx

__all__ = ["Handler", "Handlers"]


def _nothing_left(outcome: Any) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Handler:
    """How one kind of server work is done.

    Attributes:
        transition: the name its transaction is counted under.
        handle: the transition, given the open transaction, the workspace and the item as it was found by snapshot. It reads
            the item again; an item that is gone, or not due, is benign.
        goes_on: whether an outcome leaves the same item ready, so that it is handled again at once.
        tell: called with each outcome that was committed.
    """

    transition: str
    handle: Callable[[Tx, str, ItemRecord], Awaitable[Any]]
    goes_on: Callable[[Any], bool] = _nothing_left
    tell: Callable[[Any], None] | None = None


Handlers = Mapping[WorkKind, Handler]
