"""Complete a run: the function returned."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from keyspace import history
from keyspace.history import HistoryKind
from keyspace.layout import OUTPUT
from keyspace.lifecycle import RUN as RUN_TABLE
from keyspace.lifecycle import Execution, Recovery, RunEvent, advance
from keyspace.records.run import FailureRecord
from keyspace.transitions.accept_result import INVALID_RESULT
from keyspace.transitions.blockers import unblock
from keyspace.transitions.child_work import announce_end
from keyspace.transitions.fail_run import settle_function_failure
from keyspace.transitions.failed_steps import obsolete_unmet
from keyspace.transitions.pass_receipt import Pass, answer_digest, open_pass, settle_pass
from keyspace.transitions.run_timer import consume_run_timer
from keyspace.transitions.work import Accepted, Verdict, Work, engine_now_ms
from keyspace.tx import Tx

__all__ = ["complete", "complete_run", "output_digest"]


async def complete_run(
    tx: Tx,
    workspace: str,
    work: Work,
    output: bytes,
    *,
    failed_met: Collection[str] | None = None,
    value_bytes_max: int,
) -> Verdict:
    """Terminalize the run as Completed with NotRequired(ExecutionSucceeded) and its output.

    A return value over the limit fails the function as `sdk.invalid_result` instead (FILLED-IN 11, "Replay budget").

    Args:
        tx: the open transaction.
        workspace: whose run it is.
        work: the pass that answers.
        output: the portable encoding of what the function returned.
        failed_met: the failed steps that the pass met: the others become Obsolete. None when it did not say.
        value_bytes_max: the largest value a record takes.

    Reads: run, item; the failed steps, where there are any.  Writes: output, run, status index, history; the discovery item
        and the run's timer go; the failed steps that were not met.
    Conflicts: only with this run's other transitions.  Budget: the output plus 4 kB, and what the failed
        steps that were not met weigh; 24 kB past the deadline.
    Idempotent: the run's receipt of the pass.
    """
    digest = output_digest(output)
    _, outcome = await open_pass(tx, workspace, work, digest)
    if not isinstance(outcome, Pass):
        return outcome
    outcome = outcome._replace(failed_met=failed_met)
    await complete(tx, workspace, outcome, output, digest, value_bytes_max=value_bytes_max)
    return Accepted()


def output_digest(output: bytes) -> str:
    """Return the digest of the answer that the function returned `output`."""
    return answer_digest("complete", output)


async def complete(tx: Tx, workspace: str, accepted: Pass, output: bytes, digest: str, *, value_bytes_max: int) -> None:
    """Write an accepted completion."""
    if len(output) > value_bytes_max:
        message = f"The function's return value has {len(output)} bytes; the limit is {value_bytes_max}."
        failure = FailureRecord(category=INVALID_RESULT, message=message)
        await settle_function_failure(tx, workspace, accepted, failure, digest)
        return
    now_ms = engine_now_ms(tx, accepted.run)
    run = await unblock(tx, workspace, accepted.run, now_ms)
    run = await obsolete_unmet(tx, workspace, run, accepted.failed_met, now_ms)
    tx.put_blob(OUTPUT, workspace, run.run_id, value=output)
    entry = {"bytes": len(output), "instance": accepted.instance, "steps": run.step_count}
    after = history.append(tx, workspace, run, now_ms, (HistoryKind.RUN_COMPLETED, entry))
    after = await consume_run_timer(tx, workspace, after)
    await announce_end(tx, workspace, run, now_ms)
    after = msgspec.structs.replace(
        after,
        phase=advance(RUN_TABLE, run.phase, RunEvent.COMPLETED),
        execution=Execution.COMPLETED,
        recovery=Recovery.EXECUTION_SUCCEEDED,
        output_bytes=len(output),
        terminal_at_ms=now_ms,
        item_id=None,
        step_id=None,
    )
    settle_pass(tx, workspace, accepted, after, digest, now_ms)
