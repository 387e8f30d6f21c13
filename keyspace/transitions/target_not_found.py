"""Current code does not have the target: a forward step becomes Obsolete, a compensation is skipped.

The worker found this out by replaying the function, which is repeatable, so no user code of the target ran and nothing was
authorized: the attempt is fenced. A repeatable attempt that was lost before is not: an earlier delivery of it has begun, and
the code that could repeat it is gone, so it is Unknown.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from keyspace import history
from keyspace.history import HistoryKind
from keyspace.layout import STEP
from keyspace.lifecycle import ATTEMPT as ATTEMPT_TABLE
from keyspace.lifecycle import COMPENSATION as COMPENSATION_TABLE
from keyspace.lifecycle import RUN as RUN_TABLE
from keyspace.lifecycle import STEP as STEP_TABLE
from keyspace.lifecycle import (
    AttemptEvent,
    AttemptState,
    CompensationEvent,
    Phase,
    RunEvent,
    StepEvent,
    advance,
)
from keyspace.queue import items
from keyspace.records.run import AttemptRecord, RunRecord, StepRecord
from keyspace.records.work import ItemRecord, WorkKind
from keyspace.transitions.begin_unwind import advance_unwind
from keyspace.transitions.deadline import is_past_deadline, stop_for_deadline
from keyspace.transitions.lost_attempt import leave_unknown
from keyspace.transitions.work import (
    Accepted,
    Loaded,
    Replayed,
    Stale,
    Verdict,
    Work,
    attempt_key,
    discovery_item,
    engine_now_ms,
    load_work,
    save_run,
)
from keyspace.tx import Tx

__all__ = ["Missing", "decide", "target_not_found"]


class Missing(NamedTuple):
    """The records that the absence of a target goes on with."""

    run: RunRecord
    step: StepRecord
    attempt: AttemptRecord
    item: ItemRecord


def decide(loaded: Loaded, work: Work) -> Missing | Replayed | Stale:
    """Decide whether the answer may fence its attempt: only under the item's current token, before any authorization."""
    run, step, attempt, item = loaded
    if run is None or step is None or attempt is None:
        return Stale("attempt_not_found")
    if attempt.state is AttemptState.FENCED or (attempt.state is AttemptState.UNKNOWN and attempt.loss_count):
        return Replayed()
    if item is None or not items.holds_token(item, work.token) or not run.item_id == attempt.item_id == item.item_id:
        return Stale("lease_lost")
    if attempt.state is not AttemptState.QUEUED:
        return Stale("attempt_not_queued")
    expected = Phase.COMPENSATING if work.kind is WorkKind.COMPENSATION else Phase.RUNNING
    return Missing(run, step, attempt, item) if run.phase is expected else Stale("run_not_running")


async def target_not_found(tx: Tx, workspace: str, work: Work) -> Verdict:
    """Fence the attempt: the step Obsolete with a new discovery, or the compensation skipped and the unwind advanced.

    An attempt that has begun once and was lost becomes Unknown instead.

    Reads: run, step, attempt, item; for an unwind the next completion and its step.  Writes: the same, the next work, history.
    Conflicts: only with this run's other transitions.  Budget: under 20 kB, the run's failure; 24 kB past
        the deadline.
    Idempotent: the fenced attempt is the receipt, or the Unknown one; at the run's deadline or after it the stop writes it.
    Source: FILLED-IN 6; RFD 2, "Entering compensation snapshots every completed step".
    """
    outcome = decide(await load_work(tx, workspace, work), work)
    if not isinstance(outcome, Missing):
        return outcome
    run, step, attempt, item = outcome
    now_ms = engine_now_ms(tx, run)
    if is_past_deadline(run, now_ms):
        await stop_for_deadline(tx, workspace, run, now_ms)
        return Accepted()
    if attempt.loss_count:
        after = leave_unknown(tx, workspace, run, step, attempt, item, now_ms)
        save_run(tx, workspace, run, msgspec.structs.replace(after, updated_at_ms=now_ms))
        return Accepted()
    tx.put(
        attempt_key(workspace, work),
        msgspec.structs.replace(
            attempt, state=advance(ATTEMPT_TABLE, attempt.state, AttemptEvent.FENCED), settled_at_ms=now_ms
        ),
    )
    items.consume(tx, workspace, item)
    if work.kind is WorkKind.COMPENSATION:
        after = await _skip(tx, workspace, run, step, now_ms)
    else:
        after = _make_obsolete(tx, workspace, run, step, now_ms)
    save_run(tx, workspace, run, msgspec.structs.replace(after, updated_at_ms=now_ms))
    return Accepted()


def _make_obsolete(tx: Tx, workspace: str, run: RunRecord, step: StepRecord, now_ms: int) -> RunRecord:
    state = advance(STEP_TABLE, step.state, StepEvent.REMOVED)
    tx.put(
        STEP.at(workspace, run.run_id, step.step_id), msgspec.structs.replace(step, state=state, settled_at_ms=now_ms)
    )
    item = discovery_item(tx, workspace, run, now_ms)
    entry = {"step": step.step_id, "generation": step.generation}
    after = history.append(tx, workspace, run, now_ms, (HistoryKind.STEP_OBSOLETE, entry))
    return msgspec.structs.replace(
        after, phase=advance(RUN_TABLE, run.phase, RunEvent.PROGRESSED), item_id=item.item_id, step_id=None
    )


async def _skip(tx: Tx, workspace: str, run: RunRecord, step: StepRecord, now_ms: int) -> RunRecord:
    assert run.unwind is not None
    state = advance(COMPENSATION_TABLE, step.compensation, CompensationEvent.TARGET_NOT_FOUND)
    tx.put(STEP.at(workspace, run.run_id, step.step_id), msgspec.structs.replace(step, compensation=state))
    unwind = msgspec.structs.replace(
        run.unwind, cursor=run.unwind.cursor - 1, skipped_count=run.unwind.skipped_count + 1
    )
    entry = {"step": step.step_id, "completion": run.unwind.cursor}
    after = history.append(tx, workspace, run, now_ms, (HistoryKind.COMPENSATION_SKIPPED, entry))
    return await advance_unwind(tx, workspace, after, unwind, now_ms)
