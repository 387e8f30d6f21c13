"""What a run that has not ended waits for, and since when: the operational status (RFD 2, "Running includes work queued")."""

from __future__ import annotations

from typing import NamedTuple

from keyspace.lifecycle import ItemState, Phase, StopReason
from keyspace.limits import LOSSES_STUCK
from keyspace.records.blocker import BlockerRecord
from keyspace.records.run import RunRecord
from keyspace.records.wait import WaitRecord
from keyspace.records.work import ItemRecord, WorkKind

__all__ = ["Waiting", "waiting_for"]


PAIRS_SHOWN_MAX = 3
"""Pairs of a registration that the sentence names; the step shows all."""


class Waiting(NamedTuple):
    """A word for what the run waits for, a sentence, and the instants that matter (Unix epoch milliseconds)."""

    word: str
    sentence: str
    since_ms: int
    until_ms: int | None = None


def waiting_for(
    run: RunRecord,
    item: ItemRecord | None,
    now_ms: int,
    *,
    blocker: BlockerRecord | None = None,
    wait: WaitRecord | None = None,
) -> Waiting | None:
    """Return what `run` waits for, given its outstanding item, its blocker and its registration; None when it has ended.

    A run that stops or is being undone says so, because what it waits for means something else then: an effect that is
    running is still wanted, but nothing goes on from it.
    """
    if run.phase is Phase.TERMINAL:
        return None
    why = _conflict(blocker) + " " if run.phase is Phase.DEFINITION_BLOCKED else _stopping(run)
    if run.child_id is not None:
        return Waiting(
            "child",
            f"{why}step {run.step_id} waits for run {run.child_id}, which it invoked, to end.",
            run.updated_at_ms,
            run.deadline_at_ms,
        )
    if item is None and run.phase is Phase.DEFINITION_BLOCKED:
        since_ms = run.updated_at_ms if blocker is None else blocker.first_seen_at_ms
        until_ms = None if blocker is None else blocker.probe_due_ms
        return Waiting(
            "fix", f"{_conflict(blocker)} Give one of the two calls another id and deploy.", since_ms, until_ms
        )
    if item is None:
        return Waiting(
            "operator",
            f"{why}{_lost(run)} has an unknown outcome; its worker or an operator must settle it.",
            run.updated_at_ms,
        )
    return _waiting_on(run, item, now_ms, why, wait)


def _waiting_on(run: RunRecord, item: ItemRecord, now_ms: int, why: str, wait: WaitRecord | None) -> Waiting:
    """Return what a run with an outstanding item waits for; `why` begins most sentences."""
    if item.loss_count >= LOSSES_STUCK:
        return Waiting(
            "stuck", f"{why}Its worker was lost {item.loss_count} times in a row.", item.enqueued_at_ms, item.vesting_ms
        )
    if item.kind is WorkKind.TIMER and wait is not None:
        what = f"step {item.step_id} waits for an event {wait.event}{_pairs(wait)}, sent after the wait was declared."
        return Waiting("event", what, wait.registered_at_ms, item.vesting_ms)
    if item.kind is WorkKind.TIMER:
        return Waiting("timer", f"step {item.step_id} waits for its time.", item.enqueued_at_ms, item.vesting_ms)
    what = f"{why}{_doing(item)}"
    if item.state is ItemState.READY and item.vesting_ms > now_ms:
        return Waiting("backoff", f"{what} is eligible later.", item.enqueued_at_ms, item.vesting_ms)
    if item.state is ItemState.READY:
        since_ms = max(item.enqueued_at_ms, item.vesting_ms)
        until_ms = run.deadline_at_ms if run.stop is None and item.kind is not WorkKind.COMPENSATION else None
        return Waiting("worker", f"{what} waits for a compatible worker.", since_ms, until_ms)
    if item.state is ItemState.LEASED:
        return Waiting("start", f"{what} is assigned to a worker.", item.enqueued_at_ms, item.expires_at_ms)
    since_ms = item.authorized_at_ms or item.enqueued_at_ms
    if run.phase is Phase.CANCELLING:
        return Waiting("settling", f"{what} had begun; its outcome is waited for.", since_ms, item.expires_at_ms)
    return Waiting("running", f"{what} is running on a worker.", since_ms, item.expires_at_ms)


def _pairs(wait: WaitRecord) -> str:
    if not wait.match:
        return ""
    shown = [f"{name}={value}" for name, value in sorted(wait.match.items())[:PAIRS_SHOWN_MAX]]
    more = len(wait.match) - len(shown)
    return " with " + " and ".join([*shown, *([f"{more} more"] if more else [])])


def _stopping(run: RunRecord) -> str:
    if run.phase is Phase.CANCELLING and run.stop is not None:
        return "The run was cancelled: " if run.stop.reason is StopReason.CANCELLED else "The run's time is over: "
    return "Completed steps are being undone: " if run.phase is Phase.COMPENSATING else ""


def _conflict(blocker: BlockerRecord | None) -> str:
    if blocker is None:
        return "A step id is used twice in one pass."
    places = [
        f"{word} at {site.location}" + (f" ({site.name})" if site.name else "")
        for word, site in (("first", blocker.first), ("again", blocker.duplicate))
        if site.location
    ]
    return f"Step id {blocker.step_id!r} is used twice in one pass{''.join(', ' + place for place in places)}."


def _lost(run: RunRecord) -> str:
    if run.step_id is None:
        return "an effect"
    return f"the compensation of step {run.step_id}" if run.phase is Phase.COMPENSATING else f"step {run.step_id}"


def _doing(item: ItemRecord) -> str:
    if item.kind is WorkKind.DISCOVERY:
        return "the next pass"
    return f"the compensation of step {item.step_id}" if item.kind is WorkKind.COMPENSATION else f"step {item.step_id}"
