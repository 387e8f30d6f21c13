"""Accept a worker's success: the step's one result, and the discovery work that goes on from it."""

from __future__ import annotations

import msgspec

from keyspace import history
from keyspace.history import HistoryKind
from keyspace.layout import COMPLETION, SETTLED, STEP, STEP_VALUE
from keyspace.lifecycle import ATTEMPT as ATTEMPT_TABLE
from keyspace.lifecycle import RUN as RUN_TABLE
from keyspace.lifecycle import STEP as STEP_TABLE
from keyspace.lifecycle import AttemptEvent, Phase, RunEvent, StepEvent, advance
from keyspace.limits import REPLAY_BYTES_MAX, REPLAY_STEP_BYTES
from keyspace.records.run import FailureRecord, RunRecord
from keyspace.records.work import WorkKind
from keyspace.transitions.accept_failure import settle_failure
from keyspace.transitions.accept_result import (
    INVALID_RESULT,
    Settling,
    consume_attempt_item,
    decide_result,
    meet_deadline_settling,
    value_digest,
)
from keyspace.transitions.settle_compensation import settle_undo_success
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
    following_pass_id,
    load_work,
    release_settlement_token,
    save_run,
)
from keyspace.tx import Tx

__all__ = ["accept_success", "next_work", "settle_success", "unrecordable"]


def unrecordable(run: RunRecord, step_id: str, value_bytes: int, value_bytes_max: int) -> FailureRecord | None:
    """Return the failure that a success settles as when no record can carry its value, or None when one can."""
    if value_bytes > value_bytes_max:
        return FailureRecord(
            category=INVALID_RESULT, message=f"The result has {value_bytes} bytes; the limit is {value_bytes_max}."
        )
    replay_bytes = run.replay_bytes + value_bytes + len(step_id.encode()) + REPLAY_STEP_BYTES
    if replay_bytes > REPLAY_BYTES_MAX:
        return FailureRecord(
            category=INVALID_RESULT,
            message=f"The run's replay would have {replay_bytes} bytes; the limit is {REPLAY_BYTES_MAX}.",
        )
    return None


async def accept_success(tx: Tx, workspace: str, work: Work, value: bytes, *, value_bytes_max: int) -> Verdict:
    """Settle an attempt and its step with a value (RFD 2, "A successful result is immutable for the logical step ID").

    Args:
        tx: the open transaction.
        workspace: whose run it is.
        work: the delivery that reports.
        value: the portable encoding of the callback's value.
        value_bytes_max: the largest value a record takes; a larger one settles as `sdk.invalid_result`.

    Reads: run, step, attempt, item.  Writes: value, step, attempt, completion, place in the replay, discovery item, run,
        history; the item and the settlement token go.
        At the run's deadline or after it: what a stop writes, and no discovery.
    Conflicts: only with this run's other transitions.  Budget: the value plus 8 kB; 32 kB past the deadline.
    Idempotent: the attempt's settlement is its receipt.
    """
    loaded = await load_work(tx, workspace, work)
    digest = value_digest(value)
    outcome = decide_result(loaded, work, digest)
    if isinstance(outcome, Stale):
        await keep_stale_result(
            tx, workspace, work, loaded.attempt, outcome="success", digest=digest, value_bytes=len(value), failure=None
        )
        return outcome
    if not isinstance(outcome, Settling):
        return outcome
    if work.kind is WorkKind.COMPENSATION:
        await settle_undo_success(tx, workspace, work, outcome, digest)
        return Accepted()
    outcome = await meet_deadline_settling(tx, workspace, work, outcome, digest)
    failure = unrecordable(outcome.run, outcome.step.step_id, len(value), value_bytes_max)
    if failure is not None:
        await settle_failure(tx, workspace, work, outcome, failure, digest, retry_after_ms=None, is_retryable=False)
        return Accepted()
    after = settle_success(tx, workspace, work, outcome, value, digest)
    save_run(tx, workspace, outcome.run, await next_work(tx, workspace, work, after))
    return Accepted()


async def next_work(tx: Tx, workspace: str, work: Work, run: RunRecord) -> RunRecord:
    """Return a run whose step has settled with its next work: discovery, or under a stop what the settlement gate says."""
    if run.phase is Phase.CANCELLING:
        return await settlement_gate(tx, workspace, run, run.updated_at_ms)
    item = discovery_item(tx, workspace, run, run.updated_at_ms, item_id=following_pass_id(work))
    return msgspec.structs.replace(run, item_id=item.item_id)


def settle_success(tx: Tx, workspace: str, work: Work, settling: Settling, value: bytes, digest: str) -> RunRecord:
    """Write an accepted success and return the run without its next work; the caller gives it some and saves it."""
    run, step, attempt, _ = settling
    now_ms = engine_now_ms(tx, run)
    completion = run.completion_count + 1
    tx.put_blob(STEP_VALUE, workspace, run.run_id, step.step_id, value=value)
    tx.put(
        STEP.at(workspace, run.run_id, step.step_id),
        msgspec.structs.replace(
            step,
            state=advance(STEP_TABLE, step.state, StepEvent.SUCCEEDED),
            settled_at_ms=now_ms,
            completion=completion,
            value_bytes=len(value),
        ),
    )
    tx.put(
        attempt_key(workspace, work),
        msgspec.structs.replace(
            attempt,
            state=advance(ATTEMPT_TABLE, attempt.state, AttemptEvent.SUCCEEDED),
            settled_at_ms=now_ms,
            result_digest=digest,
        ),
    )
    tx.put(COMPLETION.at(workspace, run.run_id, completion), step.step_id)
    tx.put(SETTLED.at(workspace, run.run_id, run.settled_count + 1), step.step_id)
    consume_attempt_item(tx, workspace, settling)
    after = release_settlement_token(tx, workspace, run, attempt, direction_of(work.kind))
    entry = {
        "step": step.step_id,
        "attempt": attempt.ordinal,
        "generation": attempt.generation,
        "completion": completion,
        "bytes": len(value),
        "instance": attempt.instance,
        "release": attempt.release,
    }
    after = history.append(tx, workspace, after, now_ms, (HistoryKind.STEP_COMPLETED, entry))
    return msgspec.structs.replace(
        after,
        phase=advance(RUN_TABLE, run.phase, RunEvent.PROGRESSED),
        item_id=None,
        step_id=None,
        completion_count=completion,
        settled_count=run.settled_count + 1,
        replay_bytes=run.replay_bytes + len(value) + len(step.step_id.encode()) + REPLAY_STEP_BYTES,
        updated_at_ms=now_ms,
    )
