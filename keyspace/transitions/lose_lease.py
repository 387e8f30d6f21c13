"""Recover a lease whose holder is gone, by the class recorded on its item.

Not yet authorized: eligible again, later each time it is lost in a row. Authorized and repeatable (Discovery, and steps that
were declared so): redelivered, with a growing delay. Authorized and effectful, or repeatable where it may not be repeated:
Unknown, until a valid late result or an operator settles it; it is never dispatched again on its own.
"""

from __future__ import annotations

from enum import Enum, auto

import msgspec

from keyspace import history
from keyspace.history import HistoryKind
from keyspace.layout import ATTEMPT, ITEM, RUN, STEP
from keyspace.lifecycle import ItemEvent, ItemState
from keyspace.queue import items
from keyspace.records.run import RunRecord
from keyspace.records.work import ItemRecord, WorkKind
from keyspace.transitions.deadline import meet_deadline
from keyspace.transitions.lost_attempt import leave_unknown, may_redeliver, redeliver
from keyspace.transitions.work import direction_of, engine_now_ms, save_run
from keyspace.tx import Tx

__all__ = ["Loss", "decide", "lose_lease"]


class Loss(Enum):
    """What a lost lease comes to."""

    NOT_LOST = auto()
    RETURNED = auto()
    REDELIVERED = auto()
    UNKNOWN = auto()


def decide(item: ItemRecord | None, token: str | None, now_ms: int, *, is_session_lost: bool) -> Loss:
    """Decide what the loss of `item`'s lease comes to (RFD 2, "Lease expiry before start authorization").

    A lost session ends the lease of what was not authorized, and of a pass, at once. A callback that has begun keeps its lease
    until that expires, whatever its class: its worker may come back and go on, and each loss of it counts. Whether a lost
    repeatable callback is delivered again its run and attempt decide besides (`lost_attempt.may_redeliver`).
    """
    if item is None or item.state is ItemState.READY or (token is not None and item.token != token):
        return Loss.NOT_LOST
    is_expired = item.expires_at_ms is not None and now_ms >= item.expires_at_ms
    if item.state is ItemState.LEASED:
        return Loss.RETURNED if is_expired or is_session_lost else Loss.NOT_LOST
    if not is_expired and not (is_session_lost and item.kind is WorkKind.DISCOVERY):
        return Loss.NOT_LOST
    return Loss.REDELIVERED if item.repeatable else Loss.UNKNOWN


async def lose_lease(
    tx: Tx, workspace: str, item_id: str, *, token: str | None = None, is_session_lost: bool = False
) -> Loss:
    """Recover one lease if it is lost.

    Args:
        tx: the open transaction.
        workspace: whose item it is.
        item_id: the leased item.
        token: recover only this lease; any when None.
        is_session_lost: the holder's session is known to be gone.

    Reads: the item; for authorized work its run, step and attempt.
    Writes: the item back in its lane, a step and attempt with it; or these Unknown, the item gone, the unresolved entry; run
        and history.
    Conflicts: only with this run's other transitions.  Budget: under 5 kB; 24 kB past the deadline.
    Idempotent: a lease that is no longer lost is left alone.
    """
    item = await tx.load(ITEM.at(workspace, item_id))
    loss = decide(item, token, tx.now_ms, is_session_lost=is_session_lost)
    if item is None or loss is Loss.NOT_LOST:
        return loss
    if loss is Loss.RETURNED:
        delay_ms = items.loss_delay_ms(item.loss_count + 1)
        items.return_to_queue(tx, workspace, item, ItemEvent.RETURNED, tx.now_ms + delay_ms, is_loss=True)
        return loss
    run = await tx.load(RUN.at(workspace, item.target))
    is_owned = run is not None and run.item_id == item.item_id
    if run is not None and is_owned:
        run = await meet_deadline(tx, workspace, run, direction_of(item.kind))
    if run is None or not is_owned:
        items.consume(tx, workspace, item)
    elif run.item_id != item.item_id:
        return loss  # a lost pass: the deadline's stop has fenced it
    elif item.kind is WorkKind.DISCOVERY:
        _redeliver_pass(tx, workspace, run, item)
    else:
        return await _lose_attempt(tx, workspace, run, item)
    return loss


def _redeliver_pass(tx: Tx, workspace: str, run: RunRecord, item: ItemRecord) -> None:
    now_ms = engine_now_ms(tx, run)
    delay_ms = items.loss_delay_ms(item.loss_count + 1)
    returned = items.return_to_queue(tx, workspace, item, ItemEvent.REDELIVERED, tx.now_ms + delay_ms, is_loss=True)
    entry = {
        "delivery": item.delivery_count,
        "losses": returned.loss_count,
        "instance": item.instance,
        "eligible_at_ms": returned.vesting_ms,
    }
    after = history.append(tx, workspace, run, now_ms, (HistoryKind.PASS_LOST, entry))
    save_run(tx, workspace, run, msgspec.structs.replace(after, updated_at_ms=now_ms))


async def _lose_attempt(tx: Tx, workspace: str, run: RunRecord, item: ItemRecord) -> Loss:
    """End the begun attempt of a callback or compensation: delivered again, or Unknown."""
    assert item.step_id is not None
    direction = direction_of(item.kind)
    step, attempt = await tx.load(
        STEP.at(workspace, run.run_id, item.step_id),
        ATTEMPT.at(workspace, run.run_id, direction, item.step_id, item.generation),
    )
    assert step is not None and attempt is not None, "an authorized item without its attempt"
    now_ms = engine_now_ms(tx, run)
    if may_redeliver(run, item, attempt):
        loss, after = Loss.REDELIVERED, redeliver(tx, workspace, run, step, attempt, item, now_ms)
    else:
        loss, after = Loss.UNKNOWN, leave_unknown(tx, workspace, run, step, attempt, item, now_ms)
    save_run(tx, workspace, run, msgspec.structs.replace(after, updated_at_ms=now_ms))
    return loss
