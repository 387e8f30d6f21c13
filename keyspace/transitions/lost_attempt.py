"""What becomes of an attempt that had begun and was lost: delivered again while that is safe and allowed, else Unknown.

A repeatable attempt goes back to its lane as the same physical attempt. From then on its effect may exist although nobody
said so; whatever keeps it from being delivered again therefore makes it Unknown, as if it had just been lost, and never
leaves it out as work that did not start. While nobody has leased it again its former holder's report still settles it.
"""

from __future__ import annotations

import msgspec

from keyspace import history
from keyspace.history import HistoryKind
from keyspace.layout import ATTEMPT, INSTANCE_WORK, STEP, UNRESOLVED
from keyspace.lifecycle import ATTEMPT as ATTEMPT_TABLE
from keyspace.lifecycle import AttemptEvent, AttemptState, ItemEvent, advance
from keyspace.limits import REPEATABLE_LOSSES_MAX
from keyspace.queue import items
from keyspace.records.run import AttemptRecord, RunRecord, StepRecord
from keyspace.records.work import Direction, ItemRecord
from keyspace.transitions.target import attempt_entry, move_target
from keyspace.transitions.work import direction_of
from keyspace.tx import Tx

__all__ = ["leave_unknown", "may_redeliver", "redeliver", "withdraw"]


def may_redeliver(run: RunRecord, item: ItemRecord, attempt: AttemptRecord) -> bool:
    """Say whether a begun attempt that is lost now is delivered again.

    Only one declared repeatable is; not forward work of a run that stops, for which no attempt starts again, and not at the
    third loss in a row (FILLED-IN 2).
    """
    is_stopping = run.stop is not None and direction_of(item.kind) is Direction.FORWARD
    return item.repeatable and not is_stopping and attempt.loss_count + 1 < REPEATABLE_LOSSES_MAX


def redeliver(
    tx: Tx, workspace: str, run: RunRecord, step: StepRecord, attempt: AttemptRecord, item: ItemRecord, now_ms: int
) -> RunRecord:
    """Put a lost repeatable attempt back into its lane, later each time, and return the run; the caller saves it.

    Ordinal, generation, operation id and the former holder's token stay.
    """
    direction = direction_of(item.kind)
    at = (run.run_id, direction, step.step_id, attempt.generation)
    delay_ms = items.loss_delay_ms(item.loss_count + 1)
    returned = items.return_to_queue(tx, workspace, item, ItemEvent.REDELIVERED, tx.now_ms + delay_ms, is_loss=True)
    state = advance(ATTEMPT_TABLE, attempt.state, AttemptEvent.REDELIVERED)
    again = msgspec.structs.replace(attempt, state=state, loss_count=attempt.loss_count + 1)
    tx.put(ATTEMPT.at(workspace, *at), again)
    tx.put(STEP.at(workspace, run.run_id, step.step_id), move_target(step, direction, "REDELIVERED"))
    if attempt.instance is not None:
        tx.remove(INSTANCE_WORK.at(workspace, attempt.instance, *at))
    entry = attempt_entry(
        direction,
        step=step.step_id,
        attempt=attempt.ordinal,
        generation=attempt.generation,
        delivery=item.delivery_count,
        losses=again.loss_count,
        instance=attempt.instance,
        release=attempt.release,
        eligible_at_ms=returned.vesting_ms,
    )
    return history.append(tx, workspace, run, now_ms, (HistoryKind.ATTEMPT_REDELIVERED, entry))


def withdraw(step: StepRecord, attempt: AttemptRecord, direction: Direction) -> tuple[StepRecord, AttemptRecord]:
    """Return the two as they were while the lost delivery ran: its holder reports, or it can no longer be repeated."""
    assert attempt.loss_count, "only a lost delivery can be taken for one that runs"
    state = advance(ATTEMPT_TABLE, attempt.state, AttemptEvent.WITHDRAWN)
    return move_target(step, direction, "WITHDRAWN"), msgspec.structs.replace(attempt, state=state)


def leave_unknown(
    tx: Tx, workspace: str, run: RunRecord, step: StepRecord, attempt: AttemptRecord, item: ItemRecord, now_ms: int
) -> RunRecord:
    """Write a begun attempt as Unknown, its item gone, and return the run without work; the caller saves it.

    One whose redelivery is withdrawn gets no entry in its last holder's work again: that a worker does not know it any more
    proves nothing then, for its report may have been refused while the work was leased to another.
    """
    direction = direction_of(item.kind)
    at = (run.run_id, direction, step.step_id, attempt.generation)
    if attempt.state is AttemptState.QUEUED:
        step, attempt = withdraw(step, attempt, direction)
    state = advance(ATTEMPT_TABLE, attempt.state, AttemptEvent.LOST)
    tx.put(ATTEMPT.at(workspace, *at), msgspec.structs.replace(attempt, state=state, lost_at_ms=now_ms))
    tx.put(STEP.at(workspace, run.run_id, step.step_id), move_target(step, direction, "LOST"))
    tx.put(UNRESOLVED.at(workspace, *at), None)
    items.consume(tx, workspace, item)
    entry = attempt_entry(
        direction,
        step=step.step_id,
        attempt=attempt.ordinal,
        generation=attempt.generation,
        instance=attempt.instance,
        release=attempt.release,
    )
    after = history.append(tx, workspace, run, now_ms, (HistoryKind.ATTEMPT_UNKNOWN, entry))
    return msgspec.structs.replace(after, item_id=None, unknown_count=run.unknown_count + 1)
