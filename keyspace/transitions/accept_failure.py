"""Accept a worker's failure: a delayed successor while the recorded policy allows one, else the step's terminal failure."""

from __future__ import annotations

import msgspec

from keyspace import history
from keyspace.history import HistoryKind
from keyspace.layout import SETTLED, STEP
from keyspace.lifecycle import ATTEMPT as ATTEMPT_TABLE
from keyspace.lifecycle import RUN as RUN_TABLE
from keyspace.lifecycle import STEP as STEP_TABLE
from keyspace.lifecycle import AttemptEvent, Phase, RunEvent, StepEvent, advance
from keyspace.limits import REPLAY_STEP_BYTES, RETRY_DELAY_MS_MAX
from keyspace.records.run import FailureRecord, RunRecord, StepRecord
from keyspace.records.work import WorkKind
from keyspace.retry import backoff_ms
from keyspace.transitions.accept_result import (
    INVALID_RESULT,
    Settling,
    bounded_failure,
    consume_attempt_item,
    decide_result,
    failure_digest,
    meet_deadline_settling,
)
from keyspace.transitions.enqueue_attempt import enqueue_attempt
from keyspace.transitions.failed_steps import record_failed
from keyspace.transitions.settle_compensation import settle_undo_failure
from keyspace.transitions.stale_result import keep_stale_result
from keyspace.transitions.stop_run import settlement_gate
from keyspace.transitions.work import (
    Accepted,
    Stale,
    Verdict,
    Work,
    attempt_key,
    direction_of,
    discovery_item,
    engine_now_ms,
    load_work,
    release_settlement_token,
    save_run,
)
from keyspace.tx import Tx

__all__ = ["accept_failure", "retry_delay_ms", "settle_failure"]


def retry_delay_ms(step: StepRecord, *, is_retryable: bool, retry_after_ms: int | None) -> int | None:
    """Return how long the successor waits, or None when there is none (RFD 2, "Retryable failures atomically complete").

    The policy recorded with the declaration governs; a RetryAfter replaces the backoff, not the count.
    """
    failure_count = step.failure_count + 1
    if not is_retryable or failure_count >= step.retry.attempts:
        return None
    if retry_after_ms is not None:
        return min(max(0, retry_after_ms), RETRY_DELAY_MS_MAX)
    return backoff_ms(step.retry, failure_count)


async def accept_failure(
    tx: Tx,
    workspace: str,
    work: Work,
    failure: FailureRecord,
    *,
    is_retryable: bool,
    retry_after_ms: int | None = None,
) -> Verdict:
    """Settle an attempt with a failure: retry scheduled, or exhausted.

    Args:
        tx: the open transaction.
        workspace: whose run it is.
        work: the delivery that reports.
        failure: category, message and details; one over its limits settles for good as `sdk.invalid_result`.
        is_retryable: whether the worker allows another attempt.
        retry_after_ms: the delay the callback asked for, in milliseconds.

    Reads: run, step, attempt, item.  Writes: attempt, step, run, history, and either the successor's attempt and item or a
        discovery item; the item and the settlement token go.
    Conflicts: only with this run's other transitions.  Budget: under 48 kB, three times the longest failure.
    Idempotent: the attempt's settlement is its receipt.
    """
    loaded = await load_work(tx, workspace, work)
    digest = failure_digest(failure)
    outcome = decide_result(loaded, work, digest)
    kept = bounded_failure(failure)
    if isinstance(outcome, Stale):
        await keep_stale_result(
            tx, workspace, work, loaded.attempt, outcome="failure", digest=digest, value_bytes=0, failure=kept
        )
        return outcome
    if not isinstance(outcome, Settling):
        return outcome
    may_retry = is_retryable and kept.category != INVALID_RESULT
    if work.kind is WorkKind.COMPENSATION:
        await settle_undo_failure(
            tx, workspace, work, outcome, kept, digest, retry_after_ms=retry_after_ms, is_retryable=may_retry
        )
        return Accepted()
    outcome = await meet_deadline_settling(tx, workspace, work, outcome, digest)
    await settle_failure(
        tx, workspace, work, outcome, kept, digest, retry_after_ms=retry_after_ms, is_retryable=may_retry
    )
    return Accepted()


async def settle_failure(
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
    """Write an accepted failure; shared with successes that no record can carry."""
    run, step, attempt, _ = settling
    now_ms = engine_now_ms(tx, run)
    tx.put(
        attempt_key(workspace, work),
        msgspec.structs.replace(
            attempt,
            state=advance(ATTEMPT_TABLE, attempt.state, AttemptEvent.FAILED),
            settled_at_ms=now_ms,
            result_digest=digest,
            failure=failure,
        ),
    )
    consume_attempt_item(tx, workspace, settling)
    after = release_settlement_token(tx, workspace, run, attempt, direction_of(work.kind))
    entry = {"step": step.step_id, "attempt": attempt.ordinal, "generation": attempt.generation}
    entry |= {"instance": attempt.instance, "release": attempt.release, "failure": history.failure_data(failure)}
    after = history.append(tx, workspace, after, now_ms, (HistoryKind.ATTEMPT_FAILED, entry))
    may_retry = is_retryable and run.phase is Phase.RUNNING
    delay_ms = retry_delay_ms(step, is_retryable=may_retry, retry_after_ms=retry_after_ms)
    if delay_ms is None:
        after = _exhaust(tx, workspace, after, step, failure, now_ms)
        after = await settlement_gate(tx, workspace, after, now_ms)
    else:
        after = _schedule_retry(tx, workspace, after, step, now_ms, delay_ms)
    if after.phase is run.phase:
        after = msgspec.structs.replace(after, phase=advance(RUN_TABLE, run.phase, RunEvent.PROGRESSED))
    after = msgspec.structs.replace(after, updated_at_ms=now_ms)
    save_run(tx, workspace, run, after)
    return after


def _schedule_retry(tx: Tx, workspace: str, run: RunRecord, step: StepRecord, now_ms: int, delay_ms: int) -> RunRecord:
    successor = msgspec.structs.replace(
        step,
        state=advance(STEP_TABLE, step.state, StepEvent.RETRIED),
        generation=step.generation + 1,
        ordinal=step.ordinal + 1,
        failure_count=step.failure_count + 1,
    )
    tx.put(STEP.at(workspace, run.run_id, step.step_id), successor)
    item = enqueue_attempt(tx, workspace, run, successor, now_ms, now_ms + delay_ms)
    entry = {
        "step": step.step_id,
        "attempt": successor.ordinal,
        "generation": successor.generation,
        "eligible_at_ms": item.vesting_ms,
    }
    after = history.append(tx, workspace, run, now_ms, (HistoryKind.RETRY_SCHEDULED, entry))
    return msgspec.structs.replace(after, item_id=item.item_id)


def _exhaust(
    tx: Tx, workspace: str, run: RunRecord, step: StepRecord, failure: FailureRecord, now_ms: int
) -> RunRecord:
    failed = msgspec.structs.replace(
        step,
        state=advance(STEP_TABLE, step.state, StepEvent.EXHAUSTED),
        failure_count=step.failure_count + 1,
        settled_at_ms=now_ms,
        failure=failure,
    )
    tx.put(STEP.at(workspace, run.run_id, step.step_id), failed)
    tx.put(SETTLED.at(workspace, run.run_id, run.settled_count + 1), step.step_id)
    item = discovery_item(tx, workspace, run, now_ms) if run.phase is Phase.RUNNING else None
    attempts = step.ordinal - step.first_ordinal + 1
    entry = {"step": step.step_id, "attempts": attempts, "generation": step.generation, "category": failure.category}
    after = history.append(tx, workspace, run, now_ms, (HistoryKind.STEP_FAILED, entry))
    after = record_failed(tx, workspace, after, failed)
    failure_bytes = len(failure.message.encode()) + len((failure.details or "").encode())
    return msgspec.structs.replace(
        after,
        item_id=None if item is None else item.item_id,
        step_id=None,
        settled_count=run.settled_count + 1,
        replay_bytes=run.replay_bytes + failure_bytes + len(step.step_id.encode()) + REPLAY_STEP_BYTES,
    )
