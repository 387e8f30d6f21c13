"""What a run that has not ended waits for, and since when: the operational status (RFD 2, "Running includes work queued")."""

from __future__ import annotations

from typing import NamedTuple

from keyspace.lifecycle import ItemState, Phase
from keyspace.limits import LOSSES_STUCK
from keyspace.records.run import RunRecord
from keyspace.records.work import ItemRecord, WorkKind

__all__ = ["Waiting", "waiting_for"]


class Waiting(NamedTuple):
    """A word for what the run waits for, a sentence, and the instants that matter (Unix epoch milliseconds)."""

    word: str
    sentence: str
    since_ms: int
    until_ms: int | None = None


def waiting_for(run: RunRecord, item: ItemRecord | None, now_ms: int) -> Waiting | None:
    """Return what `run` waits for, given its outstanding item; None when it has ended."""
    if run.phase is Phase.TERMINAL:
        return None
    if item is None:
        return Waiting(
            "operator", "An effect's outcome is unknown; its worker or an operator must settle it.", run.updated_at_ms
        )
    if item.loss_count >= LOSSES_STUCK:
        return Waiting(
            "stuck", f"Its worker was lost {item.loss_count} times in a row.", item.enqueued_at_ms, item.vesting_ms
        )
    what = {WorkKind.DISCOVERY: "the next pass", WorkKind.COMPENSATION: "a compensation"}.get(
        item.kind, f"step {item.step_id}"
    )
    if item.state is ItemState.READY and item.vesting_ms > now_ms:
        return Waiting("backoff", f"{what} is eligible later.", item.enqueued_at_ms, item.vesting_ms)
    if item.state is ItemState.READY:
        return Waiting("worker", f"{what} waits for a compatible worker.", max(item.enqueued_at_ms, item.vesting_ms))
    if item.state is ItemState.LEASED:
        return Waiting("start", f"{what} is assigned to a worker.", item.enqueued_at_ms, item.expires_at_ms)
    return Waiting(
        "running", f"{what} is running on a worker.", item.authorized_at_ms or item.enqueued_at_ms, item.expires_at_ms
    )
