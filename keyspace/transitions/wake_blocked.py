"""Wake a function's blocked runs: a release is newly preferred, and its code may be the fix.

One wake a function, with its cursor, stands beside its item; a release that is preferred while a wake is under way begins
it anew. A run that blocks behind the cursor sees the new head itself (`block_run`).
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from keyspace.history import HistoryKind
from keyspace.layout import BLOCKED, ITEM, RUN, WAKE
from keyspace.lifecycle import Phase
from keyspace.limits import PRIORITY_DEFAULT, PRIORITY_FIRST, WAKE_PAGE_ITEMS, WAKE_RUN_BYTES
from keyspace.queue import items
from keyspace.records.blocker import WakeRecord
from keyspace.records.work import ItemRecord, LaneKind, WorkKind, server_lane
from keyspace.store.api import KeyRange
from keyspace.transitions.blockers import blocker_key, look_again
from keyspace.transitions.work import engine_now_ms
from keyspace.tx import Tx, digest_of

__all__ = ["Woken", "call_wake", "wake_blocked", "wake_id_of"]


class Woken(NamedTuple):
    """What a page did: how many runs it woke, and whether the wake is over."""

    woken_count: int
    is_complete: bool


def wake_id_of(application: str, function: str) -> str:
    """Return the id of a function's wake."""
    return digest_of("ryusen.wake", application, function)


async def call_wake(tx: Tx, workspace: str, application: str, function: str, release_id: str, position: str) -> None:
    """Begin the wake of a function that prefers a new release, if it has blocked runs: from the first run, however far an
    earlier wake has come.

    The look at the index is part of what the commit depends on, so that a run which blocks at this moment is not missed.
    """
    if await tx.is_empty(BLOCKED.span(workspace, application, function)):
        return
    wake_id = wake_id_of(application, function)
    earlier = await tx.load(WAKE.at(workspace, wake_id))
    item_id = _enqueue(tx, workspace, wake_id) if earlier is None else earlier.item_id
    tx.put(
        WAKE.at(workspace, wake_id),
        WakeRecord(
            application=application, function=function, release_id=release_id, position=position, item_id=item_id
        ),
    )


def _enqueue(tx: Tx, workspace: str, wake_id: str) -> str:
    item = ItemRecord(
        item_id=tx.ids.mint(),
        kind=WorkKind.RELEASE_WAKE,
        lane=server_lane(LaneKind.PROBE).stored,
        target=wake_id,
        step_id=None,
        priority=PRIORITY_DEFAULT,
        vesting_ms=tx.now_ms,
        ordinal=1,
        generation=1,
        operation_id=digest_of("ryusen.waking", workspace, wake_id),
        repeatable=True,
        enqueued_at_ms=tx.now_ms,
    )
    items.enqueue(tx, workspace, item)
    return item.item_id


async def wake_blocked(tx: Tx, workspace: str, wake_id: str, item_id: str) -> Woken:
    """Give a page of a function's blocked runs one discovery each (RFD 2, "newly preferred compatible connected release").

    A run that has its next pass already gets no second one: it reads the head when that pass blocks it again.

    Reads: wake and item; a page of the index by snapshot; each run of it with its blocker and probe, with conflict.
    Writes: for each run woken its discovery item, blocker, history and run; the cursor with the item, or both gone.
    Conflicts: with a release that is preferred meanwhile, and with the runs of the page.  Budget: half the allowance.
    Idempotent: the cursor is the receipt.
    """
    wake, item = await tx.load(WAKE.at(workspace, wake_id), ITEM.at(workspace, item_id))
    if wake is None or item is None or wake.item_id != item_id:
        return Woken(0, is_complete=True)
    span = BLOCKED.span(workspace, wake.application, wake.function)
    if wake.after:
        span = KeyRange(BLOCKED.at(workspace, wake.application, wake.function, wake.after).data + b"\x00", span.end)
    limit = max(1, min(WAKE_PAGE_ITEMS, tx.budget.allowance_bytes // 2 // WAKE_RUN_BYTES))
    rows = await tx.page(span, limit=limit, snapshot=True)
    run_ids = [BLOCKED.parse(key)[-1] for key, _ in rows]
    woken_count = await _wake(tx, workspace, wake, run_ids)
    if len(rows) < limit:
        items.consume(tx, workspace, item)
        tx.remove(WAKE.at(workspace, wake_id))
        return Woken(woken_count, is_complete=True)
    after = msgspec.structs.replace(wake, after=run_ids[-1], woken_count=wake.woken_count + woken_count)
    tx.put(WAKE.at(workspace, wake_id), after)
    items.defer(tx, workspace, item, max(tx.now_ms, item.vesting_ms))
    return Woken(woken_count, is_complete=False)


async def _wake(tx: Tx, workspace: str, wake: WakeRecord, run_ids: list[str]) -> int:
    runs = await tx.load_all(RUN.at(workspace, run_id) for run_id in run_ids)
    blockers = await tx.load_all(blocker_key(workspace, run_id) for run_id in run_ids)
    asleep = [
        (run, blocker)
        for run, blocker in zip(runs, blockers, strict=True)
        if run is not None and blocker is not None and run.phase is Phase.DEFINITION_BLOCKED and run.item_id is None
    ]
    waiting = [blocker.probe_item for _, blocker in asleep if blocker.probe_item is not None]
    found = await tx.load_all(ITEM.at(workspace, probe_id) for probe_id in waiting)
    probes = dict(zip(waiting, found, strict=True))
    for run, blocker in asleep:
        entry = {"by": "release", "release": wake.release_id}
        look_again(
            tx,
            workspace,
            run,
            msgspec.structs.replace(blocker, head_position=max(blocker.head_position, wake.position)),
            probes.get(blocker.probe_item or ""),
            (HistoryKind.DEFINITION_WOKEN, entry),
            engine_now_ms(tx, run),
            item_id=tx.ids.mint(),
            priority=PRIORITY_FIRST,
        )
    return len(asleep)
