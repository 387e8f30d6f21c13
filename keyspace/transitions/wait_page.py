"""The wait page of an expansion: the next registrations that the event may satisfy, inspected in order and settled.

The event's own stamp is the exclusive bound: a wait registered later lies at or beyond it. Candidates are read by snapshot
and settled against their step and run with conflict; the cursor moves in the same transaction, so that nothing is evaluated
twice. What a settlement will weigh is reserved before its step is read (RFD 2, "Matching runs in bounded pages").
"""

from __future__ import annotations

from typing import NamedTuple

from keyspace.layout import EVENT_PAYLOAD, EVENT_STAMP, ITEM, RUN, STEP, WAIT_INDEX
from keyspace.lifecycle import Phase, StepKind, StepState
from keyspace.limits import PAYLOAD_BYTES_MAX, REPLAY_BYTES_MAX, WAIT_PAGE_ITEMS
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
from keyspace.transitions.forget_wait import forget_wait
from keyspace.transitions.settle_server_step import continue_after, settle_server_step
from keyspace.transitions.work import engine_now_ms, save_run
from keyspace.tuple_layer import COMMIT_STAMP_BYTES, STAMP_BYTES
from keyspace.tx import Tx

__all__ = ["DONE", "PageSize", "WaitPage", "is_eligible", "match_waits"]

DONE = -1
"""The range of a cursor that has passed the last one."""


class PageSize:
    """How many registrations an attempt inspects: half as many after each attempt that did not commit, down to one."""

    def __init__(self, items_max: int = WAIT_PAGE_ITEMS) -> None:
        """Begin with `items_max`."""
        self._next = items_max

    def take(self) -> int:
        """Return the size for the attempt that begins now."""
        size, self._next = self._next, max(1, self._next // 2)
        return size


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
    """A registration at its place: the range, its stamp and what it asks for."""

    range_index: int
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
    size: int,
    within_bytes: int,
    borrowable_bytes: int,
) -> WaitPage:
    """Inspect the next registrations in order and settle those that the event satisfies.

    Args:
        tx: the open transaction.
        workspace: whose event it is.
        event: the event.
        expansion: its cursor.
        size: how many registrations to inspect at most.
        within_bytes: what settlements may charge.
        borrowable_bytes: what the first settlement may charge beyond that, so that one always fits.

    Reads: the event's stamp and a page of the wait index by snapshot; each candidate's run, step and timer with conflict.
    Writes: for each match what `settle_server_step` writes and the discovery; its registration and its timer go.
    """
    if expansion.wait_range == DONE:
        return WaitPage(DONE, "", 0, 0)
    found, is_last = await _inspect(tx, workspace, event, expansion, size)
    admitted, left = _admit(tx, workspace, event, found, within_bytes, borrowable_bytes)
    settled_count = await _settle_all(tx, workspace, event, [one for one in admitted if _may_match(event, one.ref, tx)])
    if left or not is_last:
        last = admitted[-1] if admitted else None
        at = (last.range_index, last.stamp.hex()) if last else (expansion.wait_range, expansion.wait_cursor)
        return WaitPage(*at, len(admitted), settled_count)
    return WaitPage(DONE, "", len(admitted), settled_count)


async def _inspect(
    tx: Tx, workspace: str, event: EventRecord, expansion: ExpansionRecord, size: int
) -> tuple[list[_Candidate], bool]:
    """Return the next registrations below the event's own stamp, and whether they are the last."""
    stamp = await tx.load(EVENT_STAMP.at(workspace, event.event_id), snapshot=True)
    assert stamp is not None, "an accepted event without its stamp"
    # Registrations of the event's own transaction are not eligible, whatever their order in it.
    bound = stamp[:COMMIT_STAMP_BYTES] + bytes(STAMP_BYTES - COMMIT_STAMP_BYTES)
    found: list[_Candidate] = []
    for index, pair in enumerate(pairs_of_event(event.correlation)):
        if index < expansion.wait_range:
            continue
        span = WAIT_INDEX.span(workspace, event.name, pair)
        begin = span.begin
        if index == expansion.wait_range and expansion.wait_cursor:
            begin = WAIT_INDEX.at(workspace, event.name, pair, bytes.fromhex(expansion.wait_cursor)).data + b"\x00"
        end = WAIT_INDEX.at(workspace, event.name, pair, bound).data
        if begin >= end:
            continue
        rows = await tx.page(KeyRange(begin, end), limit=size + 1 - len(found), snapshot=True)
        found += [_Candidate(index, WAIT_INDEX.parse(key)[-1], WAIT_INDEX.codec.decode(value)) for key, value in rows]
        if len(found) > size:
            return found[:size], False
    return found, True


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
) -> tuple[list[_Candidate], bool]:
    """Return the candidates that this page evaluates, and whether it leaves one for the next.

    The first settlement may borrow; a registration that the event does not satisfy costs nothing.
    """
    needed_bytes, is_first = 0, True
    for count, one in enumerate(found):
        if not _may_match(event, one.ref, tx):
            continue
        charge = one.ref.settle_bytes + payload_charge_bytes(one.ref, workspace, event.payload_bytes, tx.prefix_bytes)
        limit = within_bytes + (borrowable_bytes if is_first else 0)
        if needed_bytes + charge > limit:
            return found[:count], True
        needed_bytes, is_first = needed_bytes + charge, False
    return found, False


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
        await _settle(tx, workspace, event, payload, one, run, step, timer, now_ms)
        settled_count += 1
    return settled_count


def _can_record(run: RunRecord, step: StepRecord) -> bool:
    """Whether some outcome can be recorded at all: if none can, the wait stays for its own timeout and the event goes on."""
    return run.replay_bytes + len(step.step_id.encode()) + WAIT_OUTCOME_BYTES_MAX <= REPLAY_BYTES_MAX


async def _settle(
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
    await forget_wait(tx, workspace, run.run_id, step.step_id, stamp=one.stamp)
    told = {"event": event.event_id, "name": event.name}
    after = settle_server_step(tx, workspace, run, step, payload, now_ms, value_bytes_max=PAYLOAD_BYTES_MAX, told=told)
    save_run(tx, workspace, run, continue_after(tx, workspace, after, timer.item_id, now_ms))
