"""Declare a durable timer: its anchor, and the work that vests at it."""

from __future__ import annotations

import msgspec

from keyspace.errors import Refusal
from keyspace.limits import PRIORITY_FIRST, TIMER_MS_MAX
from keyspace.queue import items
from keyspace.records.run import RunRecord, StepRecord
from keyspace.records.work import ItemRecord, LaneKind, WorkKind, server_lane
from keyspace.transitions.declaration import TimerTerms
from keyspace.tx import Tx

__all__ = ["anchor_ms", "declare_timer", "enqueue_timer"]


def anchor_ms(terms: TimerTerms, now_ms: int) -> int:
    """Return the instant a timer accepted at `now_ms` may settle at: never earlier than acceptance.

    Raises:
        Refusal: `invalid_timer`: further ahead than a timer may lie.
    """
    due_at_ms = now_ms + terms.delay_ms if terms.delay_ms is not None else max(now_ms, terms.until_ms or 0)
    if due_at_ms - now_ms > TIMER_MS_MAX:
        raise Refusal(
            "invalid_timer",
            "A timer lies too far ahead.",
            field="until_ms",
            value=due_at_ms,
            limit=now_ms + TIMER_MS_MAX,
        )
    return due_at_ms


def declare_timer(
    tx: Tx, workspace: str, run: RunRecord, step: StepRecord, terms: TimerTerms, now_ms: int
) -> StepRecord:
    """Enqueue a timer's work and return its step with the anchor (RFD 2, "A declaration may be a durable timer").

    Raises:
        Refusal: `invalid_timer`; nothing was written.
    """
    return enqueue_timer(tx, workspace, run, step, anchor_ms(terms, now_ms), now_ms)


def enqueue_timer(tx: Tx, workspace: str, run: RunRecord, step: StepRecord, due_at_ms: int, now_ms: int) -> StepRecord:
    """Enqueue the Timer item of a WAITING step, vested at its anchor, and return the step with both; a wait's timeout too.

    The item belongs to the workspace: it takes its scope from its run and names no application (RFD 2, "one
    workspace-scoped Timer item").
    """
    item = ItemRecord(
        item_id=tx.ids.mint(),
        kind=WorkKind.TIMER,
        lane=server_lane(LaneKind.TIME).stored,
        target=run.run_id,
        step_id=step.step_id,
        priority=PRIORITY_FIRST,
        vesting_ms=due_at_ms,
        ordinal=1,
        generation=step.generation,
        operation_id=step.operation_id,
        repeatable=True,
        enqueued_at_ms=now_ms,
    )
    items.enqueue(tx, workspace, item)
    assert step.server is not None
    server = msgspec.structs.replace(step.server, due_at_ms=due_at_ms, item_id=item.item_id)
    return msgspec.structs.replace(step, server=server)
