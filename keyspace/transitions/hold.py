"""A hold: the session that goes on with a run by itself, its next step leased and authorized with the answer.

The separate kinds, items, attempts and history entries exist as they would on the way through the queue; only the round
trips are gone (ARCHITECTURE 6, "Continuation").
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from keyspace import history
from keyspace.history import HistoryKind
from keyspace.layout import ATTEMPT, INSTANCE, INSTANCE_WORK, STEP
from keyspace.lifecycle import ATTEMPT as ATTEMPT_TABLE
from keyspace.lifecycle import STEP as STEP_TABLE
from keyspace.lifecycle import AttemptEvent, AttemptState, StepEvent, advance
from keyspace.queue import items
from keyspace.queue.items import Seat
from keyspace.records.run import AttemptRecord, RunRecord, StepRecord
from keyspace.records.work import Direction, ItemRecord
from keyspace.transitions.enqueue_attempt import attempt_item
from keyspace.transitions.work import new_discovery_item
from keyspace.tx import Tx

__all__ = ["Hold", "current_hold", "start_held_attempt", "start_held_pass"]


class Hold(NamedTuple):
    """A session's seat for the next attempt, its lease token minted before the retry loop, and how long a lease lasts."""

    seat: Seat
    lease_ms: int


async def current_hold(tx: Tx, workspace: str, hold: Hold | None) -> Hold | None:
    """Return `hold` if its session is still the one that may start work on its instance, read with conflict."""
    if hold is None:
        return None
    instance = await tx.load(INSTANCE.at(workspace, hold.seat.instance))
    return hold if instance is not None and instance.session == hold.seat.session else None


def start_held_attempt(
    tx: Tx, workspace: str, run: RunRecord, step: StepRecord, hold: Hold, now_ms: int
) -> tuple[RunRecord, ItemRecord]:
    """Write a step declared now with its first attempt authorized to the hold; return the run and the leased item."""
    seat = hold.seat
    queued = AttemptRecord(
        step_id=step.step_id,
        generation=step.generation,
        ordinal=step.ordinal,
        operation_id=step.operation_id,
        state=AttemptState.QUEUED,
        item_id=tx.ids.mint(),
        queued_at_ms=now_ms,
        vesting_ms=now_ms,
    )
    attempt = msgspec.structs.replace(
        queued,
        state=advance(ATTEMPT_TABLE, queued.state, AttemptEvent.AUTHORIZED),
        token=seat.token,
        session=seat.session,
        instance=seat.instance,
        release=seat.release,
        authorized_at_ms=now_ms,
    )
    at = (run.run_id, Direction.FORWARD, step.step_id, step.generation)
    tx.put(
        STEP.at(workspace, run.run_id, step.step_id),
        msgspec.structs.replace(step, state=advance(STEP_TABLE, step.state, StepEvent.AUTHORIZED)),
    )
    tx.put(ATTEMPT.at(workspace, *at), attempt)
    tx.put(INSTANCE_WORK.at(workspace, seat.instance, *at), seat.token)
    until_ms = None if step.timeout_ms is None else now_ms + step.timeout_ms + hold.lease_ms
    item = items.enqueue_authorized(
        tx,
        workspace,
        attempt_item(run, step, attempt, Direction.FORWARD, now_ms, now_ms),
        seat,
        now_ms,
        tx.now_ms + hold.lease_ms,
        until_ms,
    )
    entry = {
        "step": step.step_id,
        "attempt": attempt.ordinal,
        "generation": attempt.generation,
        "delivery": item.delivery_count,
        "instance": seat.instance,
        "release": seat.release,
    }
    return history.append(tx, workspace, run, now_ms, (HistoryKind.ATTEMPT_AUTHORIZED, entry)), item


def start_held_pass(
    tx: Tx, workspace: str, run: RunRecord, item_id: str, hold: Hold, now_ms: int
) -> tuple[RunRecord, ItemRecord]:
    """Write the run's next discovery work authorized to the hold, whose pass goes on; return the run and the leased item."""
    seat = hold.seat
    item = items.enqueue_authorized(
        tx,
        workspace,
        new_discovery_item(workspace, run, now_ms, item_id),
        seat,
        now_ms,
        tx.now_ms + hold.lease_ms,
        None,
    )
    entry = {
        "delivery": item.delivery_count,
        "instance": seat.instance,
        "release": seat.release,
        "pass": run.generation,
    }
    after = history.append(tx, workspace, run, now_ms, (HistoryKind.PASS_AUTHORIZED, entry))
    return msgspec.structs.replace(after, item_id=item.item_id), item
