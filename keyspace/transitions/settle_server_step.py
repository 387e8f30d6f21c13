"""Settle a step that the server owns, and let its run go on: one way for every kind.

Such a step has no attempt, so nothing is released but the work that waited. It gets its place in the replay and none among
the completions: a settled timer, wait, child or emission is never part of an unwind (RFD 2, "Firing the item records").
"""

from __future__ import annotations

from typing import Any

import msgspec

from keyspace import history
from keyspace.history import HistoryKind
from keyspace.layout import SETTLED, STEP, STEP_VALUE
from keyspace.lifecycle import RUN as RUN_TABLE
from keyspace.lifecycle import STEP as STEP_TABLE
from keyspace.lifecycle import RunEvent, StepEvent, advance
from keyspace.limits import REPLAY_STEP_BYTES
from keyspace.records.run import FailureRecord, RunRecord, StepRecord
from keyspace.transitions.accept_result import bounded_failure
from keyspace.transitions.accept_success import unrecordable
from keyspace.transitions.failed_steps import record_failed
from keyspace.transitions.work import discovery_item
from keyspace.tx import Tx, digest_of

__all__ = ["continuation_id", "continue_after", "settle_server_step"]


def continuation_id(cause: str) -> str:
    """Return the id of the discovery work that follows `cause`: the work that settled a server-owned step, or its pass."""
    return digest_of("ryusen.continuation", cause)


def settle_server_step(
    tx: Tx,
    workspace: str,
    run: RunRecord,
    step: StepRecord,
    outcome: bytes | FailureRecord,
    now_ms: int,
    *,
    value_bytes_max: int,
    told: dict[str, Any] | None = None,
) -> RunRecord:
    """Write the one outcome of a WAITING step and return its run, which has no work yet; the caller gives it some.

    Args:
        tx: the open transaction.
        workspace: whose run it is.
        run: the run as it stands; it is not saved here.
        step: the step, WAITING; it need not have been written.
        outcome: the value in its portable encoding, or the failure. A value that no record can carry settles the step as
            `sdk.invalid_result` instead (FILLED-IN 11, "Replay budget").
        now_ms: engine time.
        value_bytes_max: the largest value a record takes.
        told: what history says besides.

    Writes: step, its value, its place in the replay, a failed one in the list of these, history.
    """
    if isinstance(outcome, bytes):
        outcome = unrecordable(run, step.step_id, len(outcome), value_bytes_max) or outcome
    else:
        outcome = bounded_failure(outcome)
    entry = {"step": step.step_id, "kind": step.kind.value, "generation": step.generation} | (told or {})
    if isinstance(outcome, bytes):
        kind, event, outcome_bytes = HistoryKind.STEP_COMPLETED, StepEvent.SUCCEEDED, len(outcome)
        settled = msgspec.structs.replace(step, value_bytes=outcome_bytes)
        tx.put_blob(STEP_VALUE, workspace, run.run_id, step.step_id, value=outcome)
        entry |= {"bytes": outcome_bytes}
    else:
        kind, event = HistoryKind.STEP_FAILED, StepEvent.EXHAUSTED
        outcome_bytes = len(outcome.message.encode()) + len((outcome.details or "").encode())
        settled = msgspec.structs.replace(step, failure=outcome)
        entry |= {"category": outcome.category, "attempts": 0}
    state = advance(STEP_TABLE, step.state, event)
    server = None if step.server is None else msgspec.structs.replace(step.server, item_id=None)
    settled = msgspec.structs.replace(settled, state=state, settled_at_ms=now_ms, server=server)
    tx.put(STEP.at(workspace, run.run_id, step.step_id), settled)
    tx.put(SETTLED.at(workspace, run.run_id, run.settled_count + 1), step.step_id)
    after = history.append(tx, workspace, run, now_ms, (kind, entry))
    if event is StepEvent.EXHAUSTED:
        after = record_failed(tx, workspace, after, settled)
    return msgspec.structs.replace(
        after,
        phase=advance(RUN_TABLE, run.phase, RunEvent.PROGRESSED),
        item_id=None,
        child_id=None,
        step_id=None,
        settled_count=run.settled_count + 1,
        replay_bytes=run.replay_bytes + outcome_bytes + len(step.step_id.encode()) + REPLAY_STEP_BYTES,
        updated_at_ms=now_ms,
    )


def continue_after(tx: Tx, workspace: str, run: RunRecord, cause: str, now_ms: int) -> RunRecord:
    """Return a Running run with its next discovery work, left to the queue under the id derived from `cause`."""
    item = discovery_item(tx, workspace, run, now_ms, item_id=continuation_id(cause))
    return msgspec.structs.replace(run, item_id=item.item_id)
