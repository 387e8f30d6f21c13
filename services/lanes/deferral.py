"""What to do with one item that fails for no reason of the store's: move it out of the way, later each time (case 008)."""

from __future__ import annotations

from collections import OrderedDict

from keyspace.errors import KeyspaceError
from keyspace.layout import ITEM
from keyspace.lifecycle import ItemState
from keyspace.limits import LOSS_DELAY_MS_INITIAL, LOSS_DELAY_MS_MAX
from keyspace.queue import items
from keyspace.store.errors import LimitError, StoreError
from keyspace.tx import Tx

__all__ = ["Failures", "defer_item", "is_passing"]

FAILURES_MAX = 10_000
"""Failing items remembered; the oldest are forgotten first and then start again at the first delay."""
PASSING_CODES = frozenset({"not_serving"})


class Failures:
    """How often each thing failed in a row, for a delay that grows: 1 s doubling to 5 min. Bounded."""

    def __init__(self) -> None:
        """Remember nothing yet."""
        self._counts: OrderedDict[str, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._counts)

    def failed(self, key: str) -> int:
        """Count a failure of `key` and return the delay until it may be tried again, in milliseconds."""
        count = self._counts.pop(key, 0) + 1
        self._counts[key] = count
        if len(self._counts) > FAILURES_MAX:
            self._counts.popitem(last=False)
        return min(LOSS_DELAY_MS_MAX, LOSS_DELAY_MS_INITIAL << min(count - 1, 30))

    def succeeded(self, key: str) -> None:
        """Forget the failures of `key`."""
        self._counts.pop(key, None)


def is_passing(error: BaseException) -> bool:
    """Whether an error says something about the store or this process at the moment, and nothing about the item."""
    if isinstance(error, StoreError):
        return not isinstance(error, LimitError)
    return isinstance(error, KeyspaceError) and error.code in PASSING_CODES


async def defer_item(tx: Tx, workspace: str, item_id: str, delay_ms: int) -> bool:
    """Move a ready item `delay_ms` into the future so that it hides nothing behind it; says whether it did.

    Reads: the item.  Writes: the item, its index entries.  Conflicts: with its claimers.
    Idempotent: deferring again moves it again.
    """
    item = await tx.load(ITEM.at(workspace, item_id))
    if item is None or item.state is not ItemState.READY:
        return False
    items.defer(tx, workspace, item, tx.now_ms + delay_ms)
    return True
