"""The failed steps of a run: listed under it, few enough for one transaction, Obsolete when the code is done without them.

A pass says which failed steps it met. One that completes or fails the function has been everywhere it will ever go, so what
it did not meet is no longer in the code; one that stops earlier says nothing of what may lie behind (FILLED-IN 6, "a failed
step is removed").
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from keyspace import history
from keyspace.budget import charge_clear, charge_set
from keyspace.errors import CorruptRecord, Refusal
from keyspace.history import HistoryKind
from keyspace.layout import FAILED, HISTORY, STEP
from keyspace.lifecycle import STEP as STEP_TABLE
from keyspace.lifecycle import StepEvent, advance
from keyspace.limits import FAILED_ENTRY_BYTES, FAILED_RESERVE_BYTES, FAILED_SHARE, FAILED_STEPS_MAX
from keyspace.records.run import RunRecord, StepRecord
from keyspace.tx import Tx

__all__ = ["check_failed_room", "obsolete_unmet", "record_failed"]


def record_failed(tx: Tx, workspace: str, run: RunRecord, step: StepRecord) -> RunRecord:
    """List a step that has failed for good, with what it will weigh to make it Obsolete; return the run, not yet saved."""
    key = FAILED.at(workspace, run.run_id, step.step_id)
    step_key = STEP.at(workspace, run.run_id, step.step_id)
    entry_key = HISTORY.at(workspace, run.run_id, run.history_count)
    key_bytes = tx.prefix_bytes + max(len(key.data), len(step_key.data), len(entry_key.data))
    id_bytes = len(step.step_id.encode())
    weight_bytes = charge_set(key_bytes, len(STEP.codec.encode(step)))
    weight_bytes += charge_set(key_bytes, FAILED_ENTRY_BYTES + 2 * id_bytes) + charge_clear(key_bytes)
    tx.put(key, weight_bytes)
    return msgspec.structs.replace(run, failed_count=run.failed_count + 1, failed_bytes=run.failed_bytes + weight_bytes)


def check_failed_room(tx: Tx, run: RunRecord) -> None:
    """Refuse another step of a run whose failed ones would no longer fit the transaction that ends its function.

    Raises:
        Refusal: `failed_step_limit`, of their number or of their bytes.
    """
    if run.failed_count >= FAILED_STEPS_MAX:
        raise Refusal(
            "failed_step_limit", "As many steps of the run have failed as may.", field="failed_steps",
            value=run.failed_count, limit=FAILED_STEPS_MAX,
        )  # fmt: skip
    limit = int(tx.budget.allowance_bytes * FAILED_SHARE)
    if run.failed_count and run.failed_bytes + FAILED_RESERVE_BYTES > limit:
        raise Refusal(
            "failed_step_limit", "The run's failed steps weigh as much as they may.", field="failed_bytes",
            value=run.failed_bytes, limit=limit,
        )  # fmt: skip


async def obsolete_unmet(tx: Tx, workspace: str, run: RunRecord, met: Collection[str] | None, now_ms: int) -> RunRecord:
    """Make the failed steps Obsolete that the pass which ends the function did not meet; return the run, not yet saved.

    Args:
        tx: the open transaction.
        workspace: whose run it is.
        run: as it stands before its end; loaded with conflict, so its failed steps are read by snapshot.
        met: the failed steps that the pass met; None when it did not say.
        now_ms: engine time.

    Writes: each such step, its entry in the list of failed ones, history. They stay in the replay, for the passes of an unwind.
    """
    if met is None or not run.failed_count:
        return run
    rows = await tx.page(FAILED.span(workspace, run.run_id), limit=FAILED_STEPS_MAX + 1, snapshot=True)
    listed = {FAILED.parse(key)[2]: FAILED.codec.decode(value) for key, value in rows}
    gone = [step_id for step_id in listed if step_id not in met]
    steps = await tx.load_all((STEP.at(workspace, run.run_id, step_id) for step_id in gone), snapshot=True)
    after = run
    for step_id, step in zip(gone, steps, strict=True):
        if step is None:
            raise CorruptRecord(record="FAILED", reason="names no step", run=run.run_id, step=step_id)
        state = advance(STEP_TABLE, step.state, StepEvent.REMOVED)
        tx.put(STEP.at(workspace, run.run_id, step_id), msgspec.structs.replace(step, state=state))
        tx.remove(FAILED.at(workspace, run.run_id, step_id))
        entry = {"step": step_id, "generation": step.generation}
        after = history.append(tx, workspace, after, now_ms, (HistoryKind.STEP_OBSOLETE, entry))
    return msgspec.structs.replace(
        after,
        failed_count=run.failed_count - len(gone),
        failed_bytes=run.failed_bytes - sum(listed[step_id] for step_id in gone),
    )
