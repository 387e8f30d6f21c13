"""An authorized attempt is proven never to have begun: the same physical attempt goes back to its lane.

The proof is a worker instance's hello that does not list the attempt, or a start frame that was never sent. The instance's
session record was moved first, so no older session can authorize behind the proof (`authorize_start.decide`); and the proof
counts only while its session is still the instance's, so it cannot take back what a newer session has started since.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from keyspace import history
from keyspace.history import HistoryKind
from keyspace.layout import ATTEMPT, INSTANCE, INSTANCE_WORK, ITEM, RUN, STEP, UNRESOLVED
from keyspace.lifecycle import ATTEMPT as ATTEMPT_TABLE
from keyspace.lifecycle import STEP as STEP_TABLE
from keyspace.lifecycle import AttemptEvent, AttemptState, ItemEvent, Phase, StepEvent, advance
from keyspace.queue import items
from keyspace.records.run import AttemptRecord, RunRecord, StepRecord
from keyspace.records.work import Direction, InstanceRecord
from keyspace.transitions.deadline import meet_deadline
from keyspace.transitions.enqueue_attempt import attempt_item
from keyspace.transitions.stop_run import settlement_gate
from keyspace.transitions.target import attempt_entry, move_target
from keyspace.transitions.work import engine_now_ms, save_run
from keyspace.tx import Tx

__all__ = ["Begun", "decide", "prove_not_started"]


class Begun(NamedTuple):
    """An attempt whose start was authorized, with its step and run."""

    run: RunRecord
    step: StepRecord
    attempt: AttemptRecord


async def prove_not_started(
    tx: Tx,
    workspace: str,
    instance_id: str,
    run_id: str,
    direction: Direction,
    step_id: str,
    generation: int,
    token: str,
    *,
    session: str,
) -> bool:
    """Requeue an authorized or Unknown attempt that never began; says whether it did (RFD 2, "A transport that proves").

    Reads: run, step, attempt, instance, item.  Writes: run, step, attempt, item, index entries, unresolved entry, instance
        work, history.
    Conflicts: only with this run's other transitions and this instance's hello.  Budget: under 5 kB; 24 kB past the
        deadline.
    Idempotent: an attempt not authorized under `token` on this instance is left alone, as is one whose instance `session`,
        the proof's, no longer serves.
    """
    at = (run_id, direction, step_id, generation)
    loaded = await tx.load(
        RUN.at(workspace, run_id),
        STEP.at(workspace, run_id, step_id),
        ATTEMPT.at(workspace, *at),
        INSTANCE.at(workspace, instance_id),
    )
    begun = decide(*loaded, instance_id=instance_id, session=session, token=token)
    if begun is None:
        return False
    _, step, attempt = begun
    run = await meet_deadline(tx, workspace, begun.run, direction)
    if run.phase is Phase.CANCELLING and attempt.loss_count:
        # An earlier delivery has begun and was lost; a run that stops has to learn what became of that.
        return False
    now_ms = engine_now_ms(tx, run)
    tx.remove(INSTANCE_WORK.at(workspace, instance_id, *at))
    requeued, returned = _taken_back(attempt), move_target(step, direction, "NOT_STARTED")
    after = await _requeue(tx, workspace, run, step, attempt, requeued, direction, now_ms)
    entry = attempt_entry(direction, step=step_id, attempt=attempt.ordinal, generation=generation, instance=instance_id)
    after = history.append(tx, workspace, after, now_ms, (HistoryKind.ATTEMPT_NOT_STARTED, entry))
    if after.phase is Phase.CANCELLING:
        requeued, returned = _fenced(requeued, returned, now_ms)
        fenced = {"step": step_id, "generation": generation}
        after = history.append(tx, workspace, after, now_ms, (HistoryKind.STEP_FENCED, fenced))
        after = await settlement_gate(tx, workspace, after, now_ms)
    elif after.item_id is not None:
        requeued = msgspec.structs.replace(requeued, item_id=after.item_id)
    tx.put(ATTEMPT.at(workspace, *at), requeued)
    tx.put(STEP.at(workspace, run_id, step_id), returned)
    save_run(tx, workspace, run, msgspec.structs.replace(after, updated_at_ms=now_ms))
    return True


def decide(
    run: RunRecord | None,
    step: StepRecord | None,
    attempt: AttemptRecord | None,
    instance: InstanceRecord | None,
    *,
    instance_id: str,
    session: str,
    token: str,
) -> Begun | None:
    """Return the records that a proof goes on with; None when it proves nothing: of another delivery, or by a former session."""
    if run is None or step is None or attempt is None or instance is None or instance.session != session:
        return None
    is_its_own = (attempt.token, attempt.instance) == (token, instance_id)
    is_open = attempt.state in (AttemptState.AUTHORIZED, AttemptState.UNKNOWN)
    return Begun(run, step, attempt) if is_its_own and is_open else None


def _taken_back(attempt: AttemptRecord) -> AttemptRecord:
    """Return the attempt as it was before its start was authorized."""
    state = advance(ATTEMPT_TABLE, attempt.state, AttemptEvent.NOT_STARTED)
    return msgspec.structs.replace(
        attempt,
        state=state,
        token=None,
        session=None,
        instance=None,
        release=None,
        authorized_at_ms=None,
        lost_at_ms=None,
    )


def _fenced(attempt: AttemptRecord, step: StepRecord, now_ms: int) -> tuple[AttemptRecord, StepRecord]:
    """Return the two as a stop fences them: the attempt provably never ran, so it is not part of the unwind."""
    attempt_state = advance(ATTEMPT_TABLE, attempt.state, AttemptEvent.FENCED)
    step_state = advance(STEP_TABLE, step.state, StepEvent.FENCED)
    return (
        msgspec.structs.replace(attempt, state=attempt_state, settled_at_ms=now_ms),
        msgspec.structs.replace(step, state=step_state, settled_at_ms=now_ms),
    )


async def _requeue(
    tx: Tx,
    workspace: str,
    run: RunRecord,
    step: StepRecord,
    attempt: AttemptRecord,
    requeued: AttemptRecord,
    direction: Direction,
    now_ms: int,
) -> RunRecord:
    """Return the run owning the requeued work, or owning none while it stops: nothing could dispatch it then."""
    is_stopping = run.phase is Phase.CANCELLING
    if attempt.state is AttemptState.AUTHORIZED:
        item = await tx.load(ITEM.at(workspace, attempt.item_id))
        assert item is not None, "an authorized attempt without its item"
        if is_stopping:
            items.consume(tx, workspace, item)
            return msgspec.structs.replace(run, item_id=None, step_id=None)
        items.return_to_queue(tx, workspace, item, ItemEvent.NOT_STARTED, tx.now_ms, is_loss=False)
        return run
    tx.remove(UNRESOLVED.at(workspace, run.run_id, direction, attempt.step_id, attempt.generation))
    after = msgspec.structs.replace(run, unknown_count=run.unknown_count - 1)
    if is_stopping:
        return msgspec.structs.replace(after, step_id=None)
    item_id = tx.ids.mint()
    named = msgspec.structs.replace(requeued, item_id=item_id)
    items.enqueue(tx, workspace, attempt_item(run, step, named, direction, now_ms, now_ms))
    return msgspec.structs.replace(after, item_id=item_id)
