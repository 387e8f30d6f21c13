"""The wait page of an expansion: the next registrations that the event may satisfy, inspected in order and settled.

The event's own stamp is the exclusive bound: a wait registered later lies at or beyond it. Candidates are read by snapshot
and settled against their step and run with conflict; the cursor moves in the same transaction, so that nothing is evaluated
twice. What a settlement will weigh is reserved before its step is read (RFD 2, "Matching runs in bounded pages").
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from keyspace.errors import CorruptRecord
from keyspace.layout import EVENT_PAYLOAD, EVENT_STAMP, ITEM, RUN, STEP, WAIT_INDEX
from keyspace.lifecycle import Phase, StepKind, StepState
from keyspace.limits import PAYLOAD_BYTES_MAX, REPLAY_BYTES_MAX, REPLAY_STEP_BYTES, WAIT_PAGE_ITEMS
from keyspace.queue import items
from keyspace.records.event import EventRecord, ExpansionRecord
from keyspace.records.run import RunRecord, StepRecord
from keyspace.records.wait import WaitRef
from keyspace.records.work import ItemRecord
from keyspace.store.api import KeyRange
from keyspace.transitions.correlation import carries, pairs_of_event
from keyspace.transitions.deadline import is_past_deadline
from keyspace.transitions.declaration import WAIT_OUTCOME_BYTES_MAX
from keyspace.transitions.declare_wait import payload_charge_bytes
from keyspace.transitions.forget_wait import remove_registration
from keyspace.transitions.settle_server_step import continue_after, settle_server_step
from keyspace.transitions.work import engine_now_ms, save_run
from keyspace.tuple_layer import COMMIT_STAMP_BYTES, STAMP_BYTES
from keyspace.tx import Tx

__all__ = ["DONE", "WaitPage", "is_eligible", "match_waits", "page_items"]

DONE = -1
"""The range of a cursor that has passed the last one."""


def page_items(attempt_index: int) -> int:
    """Return how many registrations an attempt inspects: half as many after each that did not commit, down to one."""
    return max(1, WAIT_PAGE_ITEMS >> attempt_index)


class WaitPage(NamedTuple):
    """How far a page came, in the terms of the expansion's cursor, and what it did."""

    range_index: int
    cursor: str
    inspected_count: int
    settled_count: int

    @property
    def is_last(self) -> bool:
        """Whether no registration is left."""
        return self.range_index == DONE


class _Candidate(NamedTuple):
    """A registration at its place: the range with its pair's digest, its stamp and what it asks for."""

    range_index: int
    pair: str
    stamp: bytes
    ref: WaitRef


def is_eligible(
    run: RunRecord | None,
    step: StepRecord | None,
    ref: WaitRef,
    *,
    accepted_at_ms: int,
    now_ms: int,
) -> bool:
    """Whether an event may settle a registration by durable facts (RFD 2, "A registration may be settled by a match only").

    The run still runs, before its own deadline; the event was accepted strictly before the wait's anchor, and the match is
    made strictly before it. So a delayed match does not extend a wait, and a wait without time is settled by none.
    """
    return (
        run is not None
        and step is not None
        and step.server is not None
        and (step.kind, step.state) == (StepKind.WAIT, StepState.WAITING)
        and run.phase is Phase.RUNNING
        and not is_past_deadline(run, now_ms)
        and accepted_at_ms < ref.due_at_ms
        and now_ms < ref.due_at_ms
    )


async def match_waits(
    tx: Tx,
    workspace: str,
    event: EventRecord,
    expansion: ExpansionRecord,
    *,
    within_bytes: int,
    borrowable_bytes: int,
) -> WaitPage:
    """Inspect the next registrations in order and settle those that the event satisfies; one is inspected at least.

    Args:
        tx: the open transaction.
        workspace: whose event it is.
        event: the event.
        expansion: its cursor.
        within_bytes: what settlements may charge.
        borrowable_bytes: what the first settlement may charge beyond that, so that one always fits.

    Reads: the event's stamp and a page of the wait index by snapshot; each candidate's run, step and timer with conflict.
    Writes: for each match what `settle_server_step` writes and the discovery; its registration and its timer go.
    """
    if expansion.wait_range == DONE:
        return WaitPage(DONE, "", 0, 0)
    found, is_last = await _inspect(tx, workspace, event, expansion, page_items(tx.attempt_index))
    inspected_count, matching = _admit(tx, workspace, event, found, within_bytes, borrowable_bytes)
    settled_count = await _settle_all(tx, workspace, event, matching)
    if is_last and inspected_count == len(found):
        return WaitPage(DONE, "", inspected_count, settled_count)
    last = found[inspected_count - 1]
    return WaitPage(last.range_index, last.stamp.hex(), inspected_count, settled_count)


async def _inspect(
    tx: Tx, workspace: str, event: EventRecord, expansion: ExpansionRecord, size: int
) -> tuple[list[_Candidate], bool]:
    """Return the next registrations below the event's own stamp, and whether they are the last."""
    stamp = await tx.load(EVENT_STAMP.at(workspace, event.event_id), snapshot=True)
    if stamp is None:
        raise CorruptRecord(record="EventRecord", reason="an accepted event without its stamp", event=event.event_id)
    # Registrations of the event's own transaction are not eligible, whatever their order in it.
    bound = stamp[:COMMIT_STAMP_BYTES] + bytes(STAMP_BYTES - COMMIT_STAMP_BYTES)
    ranges = list(enumerate(pairs_of_event(event.correlation)))[expansion.wait_range :]
    # The range that the page before ended in may well fill this one; the others are read together, and only behind it.
    parts = [ranges[:1], ranges[1:]] if expansion.wait_cursor else [ranges]
    found: list[_Candidate] = []
    for part in parts:
        limit = size + 1 - len(found)
        spans = [_span(workspace, event.name, pair, index, expansion, bound) for index, pair in part]
        pages = await tx.snapshot_pages([span for span in spans if span.begin < span.end], limit=limit)
        filled = iter(pages)
        for (index, pair), span in zip(part, spans, strict=True):
            rows = next(filled) if span.begin < span.end else []
            found += [_Candidate(index, pair, WAIT_INDEX.parse(k)[-1], WAIT_INDEX.codec.decode(v)) for k, v in rows]
        if len(found) > size:
            return found[:size], False
    return found, True


def _span(workspace: str, name: str, pair: str, index: int, expansion: ExpansionRecord, bound: bytes) -> KeyRange:
    """Return the part of a pair's registrations that is still to be inspected; its end may lie before its beginning."""
    begin = WAIT_INDEX.span(workspace, name, pair).begin
    if index == expansion.wait_range and expansion.wait_cursor:
        begin = WAIT_INDEX.at(workspace, name, pair, bytes.fromhex(expansion.wait_cursor)).data + b"\x00"
    return KeyRange(begin, WAIT_INDEX.at(workspace, name, pair, bound).data)


def _may_match(event: EventRecord, ref: WaitRef, tx: Tx) -> bool:
    """Whether what the index says lets the event settle the registration; its step and run are not read otherwise."""
    return carries(event.correlation, ref.match) and max(event.accepted_at_ms, tx.now_ms) < ref.due_at_ms


def _admit(
    tx: Tx,
    workspace: str,
    event: EventRecord,
    found: list[_Candidate],
    within_bytes: int,
    borrowable_bytes: int,
) -> tuple[int, list[_Candidate]]:
    """Return how many candidates this page inspects, and those of them that it is to settle.

    The first settlement may borrow; a registration that the event does not satisfy costs nothing. One that not even all of
    the transaction could carry is passed over and stays for its own timeout, because the event must still complete (RFD 2,
    "A settlement no record can carry at all"); so no page ends where it began.
    """
    needed_bytes = 0
    matching: list[_Candidate] = []
    for count, one in enumerate(found):
        if not _may_match(event, one.ref, tx):
            continue
        charge = one.ref.settle_bytes + payload_charge_bytes(one.ref, workspace, event.payload_bytes, tx.prefix_bytes)
        if not matching and charge > within_bytes + borrowable_bytes:
            continue
        if matching and needed_bytes + charge > within_bytes:
            return count, matching
        needed_bytes += charge
        matching.append(one)
    return len(found), matching


async def _settle_all(tx: Tx, workspace: str, event: EventRecord, matching: list[_Candidate]) -> int:
    if not matching:
        return 0
    payload = await tx.load_blob(
        EVENT_PAYLOAD, workspace, event.event_id, size_bytes=event.payload_bytes, snapshot=True
    )
    runs = await tx.load_all(RUN.at(workspace, one.ref.run_id) for one in matching)
    steps = await tx.load_all(STEP.at(workspace, one.ref.run_id, one.ref.step_id) for one in matching)
    timers = await tx.load_all(
        ITEM.at(workspace, step.server.item_id)
        for step in steps
        if step is not None and step.server is not None and step.server.item_id is not None
    )
    timer_of = {timer.item_id: timer for timer in timers if timer is not None}
    settled_count = 0
    for one, run, step in zip(matching, runs, steps, strict=True):
        now_ms = tx.now_ms if run is None else engine_now_ms(tx, run)
        if run is None or step is None or step.server is None:
            continue
        timer = timer_of.get(step.server.item_id or "")
        is_ours = is_eligible(run, step, one.ref, accepted_at_ms=event.accepted_at_ms, now_ms=now_ms)
        if timer is None or not is_ours or not _can_record(run, step):
            continue
        _settle(tx, workspace, event, payload, one, run, step, timer, now_ms)
        settled_count += 1
    return settled_count


def _can_record(run: RunRecord, step: StepRecord) -> bool:
    """Whether some outcome can be recorded at all: if none can, the wait stays for its own timeout and the event goes on."""
    return (
        run.replay_bytes + len(step.step_id.encode()) + REPLAY_STEP_BYTES + WAIT_OUTCOME_BYTES_MAX <= REPLAY_BYTES_MAX
    )


def _settle(
    tx: Tx,
    workspace: str,
    event: EventRecord,
    payload: bytes,
    one: _Candidate,
    run: RunRecord,
    step: StepRecord,
    timer: ItemRecord,
    now_ms: int,
) -> None:
    """Record the matched payload as the step's result and let the run go on (RFD 2, "A match records the matched event's")."""
    items.consume(tx, workspace, timer)
    remove_registration(tx, workspace, run.run_id, step.step_id, event=event.name, pair=one.pair, stamp=one.stamp)
    assert step.server is not None
    by_event = msgspec.structs.replace(step, server=msgspec.structs.replace(step.server, event_id=event.event_id))
    told = {"event": event.event_id, "name": event.name}
    after = settle_server_step(
        tx, workspace, run, by_event, payload, now_ms, value_bytes_max=PAYLOAD_BYTES_MAX, told=told
    )
    save_run(tx, workspace, run, continue_after(tx, workspace, after, timer.item_id, now_ms))
