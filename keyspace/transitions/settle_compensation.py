"""Settle a compensator's attempt: its success advances the unwind, its last failure ends it.

A compensator has its own retry policy, timeout, attempts and operation id (RFD 1, "The initial engine visits completed steps
sequentially"). A permanent failure ends the unwind as CompensationFailed; the targets after it are recorded as not attempted,
in one record that names the range.
"""

from __future__ import annotations

import msgspec

from keyspace import history
from keyspace.history import HistoryKind
from keyspace.layout import STEP
from keyspace.lifecycle import ATTEMPT as ATTEMPT_TABLE
from keyspace.lifecycle import COMPENSATION as COMPENSATION_TABLE
from keyspace.lifecycle import RUN as RUN_TABLE
from keyspace.lifecycle import AttemptEvent, CompensationEvent, Recovery, RunEvent, advance
from keyspace.limits import RETRY_DELAY_MS_MAX
from keyspace.records.run import AttemptRecord, FailureRecord, RetryRecord, RunRecord, StepRecord
from keyspace.records.work import Direction
from keyspace.retry import backoff_ms
from keyspace.transitions.accept_result import Settling, consume_attempt_item
from keyspace.transitions.begin_unwind import advance_unwind, end_unwind, enqueue_undo
from keyspace.transitions.target import attempt_entry, move_target
from keyspace.transitions.work import Work, attempt_key, engine_now_ms, release_settlement_token, save_run
from keyspace.tx import Tx

__all__ = ["UNDO_RETRY_DEFAULT", "settle_undo_failure", "settle_undo_success", "undo_delay_ms"]

UNDO_RETRY_DEFAULT = RetryRecord(attempts=5, initial_ms=1_000, coefficient=2.0, cap_ms=300_000)
"""For a compensator whose declaration recorded no policy, such as one that was added later."""


def undo_delay_ms(step: StepRecord, *, is_retryable: bool, retry_after_ms: int | None) -> int | None:
    """Return how long a failed compensator's successor waits, or None when there is none."""
    retry = step.undo_retry or UNDO_RETRY_DEFAULT
    failure_count = step.undo_failure_count + 1
    if not is_retryable or failure_count >= retry.attempts:
        return None
    if retry_after_ms is not None:
        return min(max(0, retry_after_ms), RETRY_DELAY_MS_MAX)
    return backoff_ms(retry, failure_count)


async def settle_undo_success(tx: Tx, workspace: str, work: Work, settling: Settling, digest: str) -> RunRecord:
    """Write an accepted compensation and go on to the next target, or end the unwind."""
    run, step, attempt, _ = settling
    assert run.unwind is not None
    now_ms = engine_now_ms(tx, run)
    after = _settle_attempt(tx, workspace, work, settling, AttemptEvent.SUCCEEDED, digest, None, now_ms)
    state = advance(COMPENSATION_TABLE, step.compensation, CompensationEvent.SUCCEEDED)
    tx.put(STEP.at(workspace, run.run_id, step.step_id), msgspec.structs.replace(step, compensation=state))
    entry = {"step": step.step_id, "completion": run.unwind.cursor, "attempt": attempt.ordinal}
    entry |= {"instance": attempt.instance, "release": attempt.release}
    after = history.append(tx, workspace, after, now_ms, (HistoryKind.COMPENSATION_SUCCEEDED, entry))
    unwind = msgspec.structs.replace(
        run.unwind, cursor=run.unwind.cursor - 1, executed_count=run.unwind.executed_count + 1
    )
    after = await advance_unwind(tx, workspace, after, unwind, now_ms)
    after = msgspec.structs.replace(after, updated_at_ms=now_ms)
    save_run(tx, workspace, run, after)
    return after


async def settle_undo_failure(
    tx: Tx,
    workspace: str,
    work: Work,
    settling: Settling,
    failure: FailureRecord,
    digest: str,
    *,
    retry_after_ms: int | None,
    is_retryable: bool,
) -> RunRecord:
    """Write an accepted compensation failure: a delayed successor, or the end of the unwind."""
    run, step, attempt, _ = settling
    assert run.unwind is not None
    now_ms = engine_now_ms(tx, run)
    after = _settle_attempt(tx, workspace, work, settling, AttemptEvent.FAILED, digest, failure, now_ms)
    entry = attempt_entry(
        Direction.COMPENSATION,
        step=step.step_id,
        attempt=attempt.ordinal,
        generation=attempt.generation,
        instance=attempt.instance,
        release=attempt.release,
        failure=history.failure_data(failure),
    )
    after = history.append(tx, workspace, after, now_ms, (HistoryKind.ATTEMPT_FAILED, entry))
    delay_ms = undo_delay_ms(step, is_retryable=is_retryable, retry_after_ms=retry_after_ms)
    if delay_ms is None:
        after = await _fail_unwind(tx, workspace, after, step, now_ms)
    else:
        after = _retry_undo(tx, workspace, after, step, attempt, now_ms, delay_ms)
    after = msgspec.structs.replace(after, updated_at_ms=now_ms)
    save_run(tx, workspace, run, after)
    return after


def _settle_attempt(
    tx: Tx,
    workspace: str,
    work: Work,
    settling: Settling,
    event: AttemptEvent,
    digest: str,
    failure: FailureRecord | None,
    now_ms: int,
) -> RunRecord:
    attempt = settling.attempt
    tx.put(
        attempt_key(workspace, work),
        msgspec.structs.replace(
            attempt,
            state=advance(ATTEMPT_TABLE, attempt.state, event),
            settled_at_ms=now_ms,
            result_digest=digest,
            failure=failure,
        ),
    )
    consume_attempt_item(tx, workspace, settling)
    return release_settlement_token(tx, workspace, settling.run, attempt, Direction.COMPENSATION)


def _retry_undo(
    tx: Tx, workspace: str, run: RunRecord, step: StepRecord, attempt: AttemptRecord, now_ms: int, delay_ms: int
) -> RunRecord:
    successor = msgspec.structs.replace(
        move_target(step, Direction.COMPENSATION, "RETRIED"),
        undo_generation=step.undo_generation + 1,
        undo_failure_count=step.undo_failure_count + 1,
    )
    item = enqueue_undo(
        tx, workspace, run, successor, ordinal=attempt.ordinal + 1, now_ms=now_ms, vesting_ms=now_ms + delay_ms
    )
    entry = attempt_entry(
        Direction.COMPENSATION,
        step=step.step_id,
        attempt=item.ordinal,
        generation=item.generation,
        eligible_at_ms=item.vesting_ms,
    )
    after = history.append(tx, workspace, run, now_ms, (HistoryKind.RETRY_SCHEDULED, entry))
    return msgspec.structs.replace(
        after, phase=advance(RUN_TABLE, run.phase, RunEvent.UNWIND_ADVANCED), item_id=item.item_id
    )


async def _fail_unwind(tx: Tx, workspace: str, run: RunRecord, step: StepRecord, now_ms: int) -> RunRecord:
    assert run.unwind is not None
    state = advance(COMPENSATION_TABLE, step.compensation, CompensationEvent.EXHAUSTED)
    tx.put(
        STEP.at(workspace, run.run_id, step.step_id),
        msgspec.structs.replace(step, compensation=state, undo_failure_count=step.undo_failure_count + 1),
    )
    entry = {"step": step.step_id, "completion": run.unwind.cursor}
    after = history.append(tx, workspace, run, now_ms, (HistoryKind.COMPENSATION_FAILED, entry))
    unwind = msgspec.structs.replace(
        run.unwind, cursor=run.unwind.cursor - 1, executed_count=run.unwind.executed_count + 1
    )
    if unwind.cursor > 0:
        left = {"from": unwind.cursor, "to": 1}
        after = history.append(tx, workspace, after, now_ms, (HistoryKind.COMPENSATIONS_NOT_ATTEMPTED, left))
    after = msgspec.structs.replace(after, unwind=unwind)
    return await end_unwind(tx, workspace, after, Recovery.COMPENSATION_FAILED, now_ms)
