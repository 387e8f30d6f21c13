"""Declare a durable event wait: its registration, its place in the wait index, and the work that vests at its timeout.

The registration commit is the boundary: its stamp orders it among the events, and an event accepted before it can never
settle it (RFD 2, "The registration commit is the registration boundary").
"""

from __future__ import annotations

from keyspace.budget import charge_add, charge_clear, charge_read, charge_set
from keyspace.layout import (
    FAILED,
    HISTORY,
    ITEM,
    RUN,
    SETTLED,
    STEP,
    STEP_VALUE,
    WAIT,
    WAIT_INDEX,
    WAIT_STAMP,
    bell_of,
    bucket_of,
    due_pointer,
    ready_key,
)
from keyspace.leaf import Key
from keyspace.limits import STEPS_MAX, chunk_count_max
from keyspace.records.run import FailureRecord, RunRecord, StepRecord
from keyspace.records.wait import WaitRecord, WaitRef
from keyspace.records.work import LaneKind, server_lane
from keyspace.transitions.correlation import pair_of_registration
from keyspace.transitions.declaration import WaitTerms
from keyspace.transitions.declare_timer import enqueue_timer
from keyspace.transitions.work import new_discovery_item
from keyspace.tuple_layer import STAMP_BYTES
from keyspace.tx import Tx

__all__ = ["WAIT_TIMEOUT", "declare_wait", "payload_charge_bytes", "settle_bytes"]

WAIT_TIMEOUT = FailureRecord(category="sdk.timeout", message="No matching event came before the wait's timeout.")
_GROWTH_BYTES = 512
"""How much longer a record may be once it is settled: instants, counts, sizes and a failure that the server words itself."""
_HISTORY_BYTES = 512
"""A history entry besides the step's id and the event's name."""
_NUMBER_BYTES = 20
_ZERO_ID = "00" * 16
_HISTORY_PER_STEP = 64


def declare_wait(tx: Tx, workspace: str, run: RunRecord, step: StepRecord, terms: WaitTerms, now_ms: int) -> StepRecord:
    """Register a wait and return its step with the anchor (RFD 2, "A declaration may instead be a durable external event").

    Writes: the registration, its entry in the wait index, its companion stamp, the Timer item with its index entries.
    Budget: under 6 kB; 200 kB with the longest pairs of what is written as an escape.
    """
    step = enqueue_timer(tx, workspace, run, step, now_ms + terms.timeout_ms, now_ms)
    pair = pair_of_registration(terms.match)
    record = WaitRecord(
        event=terms.event, match=terms.match, timeout_ms=terms.timeout_ms, registered_at_ms=now_ms, pair=pair
    )
    tx.put(WAIT.at(workspace, run.run_id, step.step_id), record)
    tx.put_own_stamp(WAIT_STAMP.at(workspace, run.run_id, step.step_id))
    ref = WaitRef(
        run_id=run.run_id,
        step_id=step.step_id,
        match=terms.match,
        due_at_ms=now_ms + terms.timeout_ms,
        settle_bytes=settle_bytes(workspace, run, step, terms.event, tx.prefix_bytes),
    )
    tx.put_stamped(WAIT_INDEX, workspace, terms.event, pair, record=ref)
    return step


def settle_bytes(workspace: str, run: RunRecord, step: StepRecord, event: str, prefix_bytes: int) -> int:
    """Return an upper bound of what settling a wait charges, besides the matched payload's bytes and chunks.

    Counted from the records and keys themselves, as they stand when the wait is registered, so that escaping, the physical
    prefix and every repeated identifier are in it; a test compares it with the charge of the worst names there may be.
    """

    def at(key: Key[object]) -> int:
        return prefix_bytes + len(key.data)

    item = new_discovery_item(workspace, run, 0, _ZERO_ID)
    run_key, step_key = at(RUN.at(workspace, run.run_id)), at(STEP.at(workspace, run.run_id, step.step_id))
    item_key, lane = at(ITEM.at(workspace, _ZERO_ID)), item.where
    instant_ms = run.updated_at_ms
    timer_ready = ready_key(workspace, server_lane(LaneKind.TIME), instant_ms, 0, _ZERO_ID)
    ordinal = STEPS_MAX * _HISTORY_PER_STEP
    history_bytes = _HISTORY_BYTES + 2 * len(step.step_id.encode()) + 2 * len(event.encode())
    reads = charge_read(run_key) + charge_read(step_key) + charge_read(item_key)
    records = (
        charge_set(run_key, len(RUN.codec.encode(run)) + _GROWTH_BYTES)
        + charge_set(step_key, len(STEP.codec.encode(step)) + _GROWTH_BYTES)
        + charge_set(at(SETTLED.at(workspace, run.run_id, ordinal)), len(step.step_id.encode()))
        + charge_set(at(HISTORY.at(workspace, run.run_id, ordinal)), history_bytes)
        + charge_set(at(STEP_VALUE.at(workspace, run.run_id, step.step_id, 0)), 0)
        # A match that no record can carry fails the step instead, and a failed one is listed.
        + charge_set(at(FAILED.at(workspace, run.run_id, step.step_id)), _NUMBER_BYTES)
    )
    work = (
        charge_set(item_key, len(ITEM.codec.encode(item)) + _GROWTH_BYTES)
        + charge_set(at(ready_key(workspace, lane, instant_ms, item.priority, _ZERO_ID)), 0)
        + charge_set(at(due_pointer(workspace, lane, bucket_of(instant_ms))), 0)
        + charge_add(at(bell_of(workspace, lane)))
    )
    index_key = at(WAIT_INDEX.at(workspace, event, _ZERO_ID, bytes(STAMP_BYTES)))
    gone = (
        charge_clear(item_key)
        + charge_clear(at(timer_ready))
        # A stamp's bytes are escaped where they are zero or 255.
        + charge_clear(index_key + STAMP_BYTES)
        + charge_clear(at(WAIT.at(workspace, run.run_id, step.step_id)))
        + charge_clear(at(WAIT_STAMP.at(workspace, run.run_id, step.step_id)))
    )
    return reads + records + work + gone


def payload_charge_bytes(ref: WaitRef, workspace: str, payload_bytes: int, prefix_bytes: int) -> int:
    """Return what the matched payload adds to a settlement: its bytes, and the key of each further chunk."""
    key_bytes = prefix_bytes + len(
        STEP_VALUE.at(workspace, ref.run_id, ref.step_id, chunk_count_max(payload_bytes)).data
    )
    further = chunk_count_max(payload_bytes) - 1
    return payload_bytes + further * charge_set(key_bytes, 0)
