"""Expand an event: evaluate one bounded page of its candidate bindings and create the runs they match.

The cursor moves in the transaction that creates the runs, so a chunk that is tried again finds its work done. Manifests and
routing generations are immutable, so they are read by snapshot. The binding page spends at most half of the allowance; the
other half is the wait page's (ARCHITECTURE 5). An addressed event has one candidate, its target, and meets no wait.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from keyspace.errors import CorruptRecord
from keyspace.layout import EVENT, EXPANSION, ITEM, MANIFEST_BINDING, MATCH, ROUTING, RUN
from keyspace.lifecycle import DeadlineSource
from keyspace.limits import BINDING_PAGE_ITEMS
from keyspace.queue import items
from keyspace.records.event import EventRecord, ExpansionRecord, ExpansionState, MatchRecord, NoMatch
from keyspace.records.tenancy import BindingRecord
from keyspace.records.work import ItemRecord
from keyspace.store.api import KeyRange
from keyspace.transitions.find_target import find_target
from keyspace.transitions.materialize_run import RunSource, materialize_run, reserve_bytes, run_identity
from keyspace.tx import Tx

__all__ = ["Expanded", "expand_event"]


class Expanded(NamedTuple):
    """What a chunk did: how many candidates it evaluated, and whether the expansion is Complete."""

    evaluated_count: int
    is_complete: bool


async def expand_event(
    tx: Tx, workspace: str, event_id: str, item_id: str, *, run_timeout_default_ms: int | None = None
) -> Expanded:
    """Run one chunk of an event's fan-out (RFD 2, "Fan-out work traverses the selected generation's").

    Args:
        tx: the open transaction.
        workspace: whose event it is.
        event_id: the event.
        item_id: its obligation.
        run_timeout_default_ms: the deployment's run timeout, for functions that declare none; None is for ever.

    Reads: expansion, item and event with conflict; the routing generation and a page of bindings, or the target's
        declaration, by snapshot; each candidate's run with conflict.
    Writes: for each candidate its match record and its run; the cursor with the item, or Complete without it, with what an
        addressed event's generation lacks.
    Conflicts: with another process on the same obligation.  Budget: at most half the allowance and the finalization.
    Idempotent: the cursor is the receipt.
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
        page, is_last = [target], True
    else:
        page, is_last = await _next_candidates(tx, workspace, event, expansion, run_timeout_default_ms)
    taken = await _evaluate(tx, workspace, page)
    _record_progress(tx, workspace, event_id, expansion, item, page[:taken], is_complete=is_last and taken == len(page))
    return Expanded(taken, is_complete=is_last and taken == len(page))


async def _next_candidates(
    tx: Tx, workspace: str, event: EventRecord, expansion: ExpansionRecord, run_timeout_default_ms: int | None
) -> tuple[list[RunSource], bool]:
    if event.routing_generation == 0:
        return [], True
    routing = await tx.load(ROUTING.at(workspace, event.routing_generation), snapshot=True)
    if routing is None:
        raise CorruptRecord(record="RoutingRecord", reason="a pinned routing generation is missing")
    page: list[RunSource] = []
    for application, generation in sorted(routing.applications.items()):
        if application < expansion.cursor_application:
            continue
        after = expansion.cursor_binding if application == expansion.cursor_application else ""
        found = await _bindings(
            tx, workspace, event, application, generation, after, BINDING_PAGE_ITEMS + 1 - len(page)
        )
        for binding, record in found:
            is_declared = record.timeout_ms is not None
            page.append(
                RunSource(
                    event_id=event.event_id,
                    event_name=event.name,
                    payload_bytes=event.payload_bytes,
                    application=application,
                    function=record.function,
                    binding=binding,
                    manifest_generation=generation,
                    routing_generation=event.routing_generation,
                    timeout_ms=record.timeout_ms if is_declared else run_timeout_default_ms,
                    deadline_source=DeadlineSource.FUNCTION if is_declared else DeadlineSource.DEPLOYMENT,
                )
            )
        if len(page) > BINDING_PAGE_ITEMS:
            return page[:BINDING_PAGE_ITEMS], False
    return page, True


async def _bindings(
    tx: Tx, workspace: str, event: EventRecord, application: str, generation: int, after: str, limit: int
) -> list[tuple[str, BindingRecord]]:
    span = MANIFEST_BINDING.span(workspace, application, generation, event.name)
    if after:
        last = MANIFEST_BINDING.at(workspace, application, generation, event.name, after)
        span = KeyRange(last.data + b"\x00", span.end)
    rows = await tx.page(span, limit=limit, snapshot=True)
    return [(MANIFEST_BINDING.parse(key)[-1], MANIFEST_BINDING.codec.decode(value)) for key, value in rows]


async def _evaluate(tx: Tx, workspace: str, page: list[RunSource]) -> int:
    """Create the runs of as many candidates as half the allowance carries, at least one; return how many."""
    half_bytes = tx.budget.allowance_bytes // 2
    admitted: list[RunSource] = []
    reserved_bytes = tx.budget.spent_bytes
    for source in page:
        reserved_bytes += reserve_bytes(workspace, source, tx.prefix_bytes)
        if admitted and reserved_bytes > half_bytes:
            break
        admitted.append(source)
    identities = [run_identity(workspace, source) for source in admitted]
    existing = await tx.load_all(RUN.at(workspace, run_id) for run_id in identities)
    for order, (source, run_id, run) in enumerate(zip(admitted, identities, existing, strict=True)):
        if run is None:
            materialize_run(tx, workspace, run_id, source, order=order)
        elif (run.event_id, run.binding) != (source.event_id, source.binding):
            raise CorruptRecord(record="RunRecord", reason="a run's identity has another provenance", run=run_id)
        tx.put(
            MATCH.at(workspace, source.event_id, source.application, source.binding),
            MatchRecord(run_id=run_id, function=source.function, evaluated_at_ms=tx.now_ms),
        )
    return len(admitted)


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
    *,
    is_complete: bool,
) -> None:
    last = done[-1] if done else None
    after = msgspec.structs.replace(
        expansion,
        state=ExpansionState.COMPLETE if is_complete else ExpansionState.EXPANDING,
        item_id=None if is_complete else item.item_id,
        cursor_application=last.application if last else expansion.cursor_application,
        cursor_binding=last.binding if last else expansion.cursor_binding,
        evaluated_count=expansion.evaluated_count + len(done),
        matched_count=expansion.matched_count + len(done),
        completed_at_ms=tx.now_ms if is_complete else None,
    )
    tx.put(EXPANSION.at(workspace, event_id), after)
    if is_complete:
        items.consume(tx, workspace, item)
    else:
        items.defer(tx, workspace, item, max(tx.now_ms, item.vesting_ms))
