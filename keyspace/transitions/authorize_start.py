"""Authorize the start of a callback: from this commit on its effect may exist."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from keyspace import history
from keyspace.history import HistoryKind
from keyspace.layout import INSTANCE, INSTANCE_WORK, STEP
from keyspace.lifecycle import ATTEMPT as ATTEMPT_TABLE
from keyspace.lifecycle import AttemptEvent, AttemptState, ItemState, Phase, StopReason, advance
from keyspace.queue import items
from keyspace.records.run import AttemptRecord, RunRecord, StepRecord
from keyspace.records.work import Direction, InstanceRecord, ItemRecord, WorkKind
from keyspace.transitions.deadline import is_past_deadline, stop_for_deadline
from keyspace.transitions.pass_receipt import stale_by_stop
from keyspace.transitions.target import attempt_entry, move_target
from keyspace.transitions.work import (
    Accepted,
    Loaded,
    Replayed,
    Stale,
    Verdict,
    Work,
    attempt_key,
    direction_of,
    engine_now_ms,
    load_work,
    save_run,
)
from keyspace.tx import Tx

__all__ = ["Start", "authorize_start", "decide"]


class Start(NamedTuple):
    """The records an authorization goes on with."""

    run: RunRecord
    step: StepRecord
    attempt: AttemptRecord
    item: ItemRecord


_STARTING_PHASE = {Direction.FORWARD: Phase.RUNNING, Direction.COMPENSATION: Phase.COMPENSATING}
"""A stop or a blocker lets nothing new start; compensation starts only while the run unwinds."""


def decide(
    loaded: Loaded, instance: InstanceRecord | None, work: Work, session: str, now_ms: int
) -> Start | Replayed | Stale:
    """Decide whether the leased attempt may begin.

    Only the current lease, unexpired, held by the session that its worker instance last opened, may (RFD 2, "Lease expiry
    before start authorization" and "Result acceptance requires"). Another session of the same instance has been told that
    the attempt never started, or is about to be.
    """
    run, step, attempt, item = loaded
    if run is None or step is None or attempt is None or not items.holds_token(item, work.token):
        # The stop that this very call has committed, should it have to look again, is told as it was then.
        is_timed_out = run is not None and run.stop is not None and run.stop.reason is StopReason.TIMED_OUT
        return Stale("deadline_elapsed" if is_timed_out and item is None else "lease_lost")
    assert item is not None
    # The two are each other's: a reference that mixes two works must not start the one under the other's lease.
    if attempt.item_id != item.item_id:
        return Stale("lease_lost")
    if item.state is ItemState.AUTHORIZED:
        return Replayed() if item.session == session else Stale("lease_lost")
    if item.state is not ItemState.LEASED or item.expires_at_ms is None or now_ms >= item.expires_at_ms:
        return Stale("lease_expired")
    if instance is None or instance.session != session:
        return Stale("session_superseded")
    direction = direction_of(work.kind)
    if run.phase is not _STARTING_PHASE[direction] or work.kind is WorkKind.DISCOVERY:
        return Stale("run_not_running")
    if attempt.state is not AttemptState.QUEUED or step.generation_of(direction) != attempt.generation:
        return Stale("attempt_not_queued")
    return Start(run, step, attempt, item)


async def authorize_start(
    tx: Tx, workspace: str, work: Work, *, session: str, instance_id: str, release: str, lease_ms: int
) -> Verdict:
    """Record the start of `work` on `instance_id` (RFD 2, "The accepted start records scoped release and instance").

    Nothing starts at the run's deadline or after it: the TimedOut stop commits instead, and fences the attempt.

    Reads: run, step, attempt, item, instance.  Writes: the same but the instance, lease entry, instance work, history.
    Conflicts: only with this run's other transitions and this instance's hello.  Budget: under 5 kB; 24 kB past the
        deadline.
    Idempotent: the item's authorized state under this token is the receipt.
    """
    assert work.step_id is not None
    loaded = await load_work(tx, workspace, work)
    instance = await tx.load(INSTANCE.at(workspace, instance_id))
    now_ms = tx.now_ms if loaded.run is None else engine_now_ms(tx, loaded.run)
    outcome = decide(loaded, instance, work, session, now_ms)
    if not isinstance(outcome, Start):
        return outcome
    run, step, attempt, item = outcome
    if is_past_deadline(run, now_ms):
        return stale_by_stop(await stop_for_deadline(tx, workspace, run, now_ms))
    direction = direction_of(work.kind)
    timeout_ms = step.timeout_of(direction)
    until_ms = None if timeout_ms is None else now_ms + timeout_ms + lease_ms
    items.authorize(tx, workspace, item, now_ms, tx.now_ms + lease_ms, until_ms)
    tx.put(
        attempt_key(workspace, work),
        msgspec.structs.replace(
            attempt,
            state=advance(ATTEMPT_TABLE, attempt.state, AttemptEvent.AUTHORIZED),
            token=work.token,
            session=session,
            instance=instance_id,
            release=release,
            authorized_at_ms=now_ms,
        ),
    )
    tx.put(STEP.at(workspace, run.run_id, step.step_id), move_target(step, direction, "AUTHORIZED"))
    tx.put(
        INSTANCE_WORK.at(workspace, instance_id, run.run_id, direction, step.step_id, attempt.generation), work.token
    )
    entry = attempt_entry(
        direction,
        step=step.step_id,
        attempt=attempt.ordinal,
        generation=attempt.generation,
        delivery=item.delivery_count,
        instance=instance_id,
        release=release,
    )
    after = history.append(tx, workspace, run, now_ms, (HistoryKind.ATTEMPT_AUTHORIZED, entry))
    save_run(tx, workspace, run, msgspec.structs.replace(after, updated_at_ms=now_ms))
    return Accepted()
