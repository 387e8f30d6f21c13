"""Expand an event: one bounded page of the waits it may settle and one of its candidate bindings, in one transaction.

The cursors move in the transaction that settles and creates, so a chunk that is tried again finds its work done. The binding
page is planned first, for at most half of the allowance; the wait page spends what that plan and the finalization leave; and
where its first settlement has to borrow, the binding page stops before the borrowed bytes (RFD 2, "Both pages of the
expansion transaction"). An addressed event has one candidate, its target, and meets no wait.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from keyspace.budget import charge_set
from keyspace.layout import EVENT, EXPANSION, ITEM
from keyspace.limits import NAME_BYTES_MAX
from keyspace.queue import items
from keyspace.records.event import ExpansionRecord, ExpansionState, NoMatch
from keyspace.records.work import ItemRecord
from keyspace.transitions.binding_page import admit, create_runs, next_candidates, reserved_bytes
from keyspace.transitions.find_target import find_target
from keyspace.transitions.materialize_run import RunSource
from keyspace.transitions.wait_page import DONE, WaitPage, match_waits
from keyspace.tx import Tx

__all__ = ["Expanded", "expand_event", "finalization_bytes"]

_CURSOR_BYTES = 256
"""How much longer a cursor, its sums and an instant may make a record or a key."""


class Expanded(NamedTuple):
    """What a chunk did: the bindings it evaluated, the waits it inspected and settled, and whether all is Complete."""

    evaluated_count: int
    is_complete: bool
    inspected_count: int = 0
    settled_count: int = 0


async def expand_event(
    tx: Tx,
    workspace: str,
    event_id: str,
    item_id: str,
    *,
    run_timeout_default_ms: int | None = None,
) -> Expanded:
    """Run one chunk of an event's fan-out (RFD 2, "Fan-out work traverses the selected generation's").

    Args:
        tx: the open transaction.
        workspace: whose event it is.
        event_id: the event.
        item_id: its obligation.
        run_timeout_default_ms: the deployment's run timeout, for functions that declare none; None is for ever.

    Reads: expansion, item and event with conflict; the routing generation, a page of bindings and of the wait index, or the
        target's declaration, by snapshot; each candidate's run with conflict, and a matching wait's step and timer.
    Writes: for each binding its match record and its run, for each matching wait its settlement; the cursors with the item,
        or Complete without it, with what an addressed event's generation lacks.
    Conflicts: with another process on the same obligation, and with the transitions of the runs whose waits it settles.
    Budget: the allowance, by construction.
    Idempotent: the cursors are the receipt.
    """
    expansion, item, event = await tx.load(
        EXPANSION.at(workspace, event_id), ITEM.at(workspace, item_id), EVENT.at(workspace, event_id)
    )
    if item is None or expansion is None or event is None or expansion.state is ExpansionState.COMPLETE:
        return Expanded(0, is_complete=expansion is None or expansion.state is ExpansionState.COMPLETE)
    if event.is_addressed:
        target = await find_target(tx, workspace, event, run_timeout_default_ms)
        if isinstance(target, NoMatch):
            return _record_no_match(tx, workspace, event_id, expansion, item, target)
        await create_runs(tx, workspace, [target])
        return _record_progress(tx, workspace, event_id, expansion, item, [target], WaitPage(DONE, "", 0, 0), True)
    page, is_last = await next_candidates(tx, workspace, event, expansion, run_timeout_default_ms)
    half_bytes = tx.budget.allowance_bytes // 2
    planned = admit(workspace, page, tx.prefix_bytes, half_bytes, at_least=1)
    planned_bytes = reserved_bytes(workspace, page[:planned], tx.prefix_bytes)
    final_bytes = finalization_bytes(tx, workspace, expansion, item)
    waits = await match_waits(
        tx,
        workspace,
        event,
        expansion,
        within_bytes=tx.budget.left_bytes - planned_bytes - final_bytes,
        borrowable_bytes=planned_bytes,
    )
    # Nothing may be left for it where the first settlement borrowed: its cursor then stays where it was.
    within_bytes = min(half_bytes, tx.budget.left_bytes - final_bytes)
    taken = admit(workspace, page[:planned], tx.prefix_bytes, within_bytes, at_least=0 if waits.settled_count else 1)
    await create_runs(tx, workspace, page[:taken])
    done_with_bindings = is_last and taken == len(page)
    return _record_progress(tx, workspace, event_id, expansion, item, page[:taken], waits, done_with_bindings)


def finalization_bytes(tx: Tx, workspace: str, expansion: ExpansionRecord, item: ItemRecord) -> int:
    """Return what recording a chunk's progress charges at most: the cursors, and the obligation deferred or gone."""
    expansion_key = tx.prefix_bytes + len(EXPANSION.at(workspace, item.target).data)
    item_key = tx.prefix_bytes + len(ITEM.at(workspace, item.item_id).data)
    names_bytes = 2 * NAME_BYTES_MAX
    return (
        charge_set(expansion_key, len(EXPANSION.codec.encode(expansion)) + 2 * names_bytes + _CURSOR_BYTES)
        + charge_set(item_key, len(ITEM.codec.encode(item)) + _CURSOR_BYTES)
        + 4 * charge_set(item_key + _CURSOR_BYTES, 0)
    )


def _record_no_match(
    tx: Tx, workspace: str, event_id: str, expansion: ExpansionRecord, item: ItemRecord, missing: NoMatch
) -> Expanded:
    after = msgspec.structs.replace(
        expansion,
        state=ExpansionState.COMPLETE,
        item_id=None,
        evaluated_count=1,
        completed_at_ms=tx.now_ms,
        missing=missing,
    )
    tx.put(EXPANSION.at(workspace, event_id), after)
    items.consume(tx, workspace, item)
    return Expanded(1, is_complete=True)


def _record_progress(
    tx: Tx,
    workspace: str,
    event_id: str,
    expansion: ExpansionRecord,
    item: ItemRecord,
    done: list[RunSource],
    waits: WaitPage,
    done_with_bindings: bool,
) -> Expanded:
    last = done[-1] if done else None
    is_complete = done_with_bindings and waits.is_last
    after = msgspec.structs.replace(
        expansion,
        state=ExpansionState.COMPLETE if is_complete else ExpansionState.EXPANDING,
        item_id=None if is_complete else item.item_id,
        cursor_application=last.application if last else expansion.cursor_application,
        cursor_binding=last.binding if last else expansion.cursor_binding,
        evaluated_count=expansion.evaluated_count + len(done),
        matched_count=expansion.matched_count + len(done),
        completed_at_ms=tx.now_ms if is_complete else None,
        wait_range=waits.range_index,
        wait_cursor=waits.cursor,
        inspected_count=expansion.inspected_count + waits.inspected_count,
        settled_count=expansion.settled_count + waits.settled_count,
    )
    tx.put(EXPANSION.at(workspace, event_id), after)
    if is_complete:
        items.consume(tx, workspace, item)
    else:
        items.defer(tx, workspace, item, max(tx.now_ms, item.vesting_ms))
    return Expanded(len(done), is_complete, waits.inspected_count, waits.settled_count)
