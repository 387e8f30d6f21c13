"""Fail a run: a failure reached the function's entry (RFD 1, "A failure is handled when user code consumes")."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from keyspace import history
from keyspace.history import HistoryKind
from keyspace.lifecycle import Execution, RunEvent
from keyspace.records.run import FailureRecord
from keyspace.transitions.accept_result import bounded_failure, failure_digest
from keyspace.transitions.begin_unwind import begin_unwind
from keyspace.transitions.blockers import unblock
from keyspace.transitions.failed_steps import obsolete_unmet
from keyspace.transitions.pass_receipt import Pass, answer_digest, open_pass, settle_pass
from keyspace.transitions.run_timer import consume_run_timer
from keyspace.transitions.work import Accepted, Verdict, Work, engine_now_ms
from keyspace.tx import Tx

__all__ = ["fail_run", "function_failure_digest", "settle_function_failure"]


async def fail_run(
    tx: Tx, workspace: str, work: Work, failure: FailureRecord, *, failed_met: Collection[str] | None = None
) -> Verdict:
    """Mark the run Failed and begin its unwind, or terminalize an empty one, in one transaction.

    Args:
        tx: the open transaction.
        workspace: whose run it is.
        work: the pass that answers.
        failure: what reached the function's entry.
        failed_met: the failed steps that the pass met: the others become Obsolete. None when it did not say.

    Reads: run, item; the failed steps, where there are any; for a nonempty unwind the last completion and its step.
    Writes: run, status index, history, and the first compensation attempt with its item; the discovery item and the run's
        timer go; the failed steps that were not met.
    Conflicts: only with this run's other transitions.  Budget: under 32 kB, twice the longest failure, and what
        the failed steps that were not met weigh.
    Idempotent: the run's receipt of the pass.
    """
    digest = function_failure_digest(failure)
    _, outcome = await open_pass(tx, workspace, work, digest)
    if not isinstance(outcome, Pass):
        return outcome
    outcome = outcome._replace(failed_met=failed_met)
    await settle_function_failure(tx, workspace, outcome, bounded_failure(failure), digest)
    return Accepted()


def function_failure_digest(failure: FailureRecord) -> str:
    """Return the digest of the answer that the function failed with `failure`."""
    return answer_digest("fail", failure_digest(failure).encode())


async def settle_function_failure(tx: Tx, workspace: str, accepted: Pass, failure: FailureRecord, digest: str) -> None:
    """Write an accepted function failure; shared with return values that no record can carry."""
    now_ms = engine_now_ms(tx, accepted.run)
    run = await unblock(tx, workspace, accepted.run, now_ms)
    run = await obsolete_unmet(tx, workspace, run, accepted.failed_met, now_ms)
    entry = {"failure": history.failure_data(failure), "instance": accepted.instance, "steps": run.step_count}
    after = history.append(tx, workspace, run, now_ms, (HistoryKind.RUN_FAILED, entry))
    after = await consume_run_timer(tx, workspace, msgspec.structs.replace(after, failure=failure))
    after = await begin_unwind(
        tx,
        workspace,
        after,
        Execution.FAILED,
        now_ms,
        empty=RunEvent.FAILED_EMPTY,
        unwinding=RunEvent.FAILED_UNWINDING,
    )
    settle_pass(tx, workspace, accepted, after, digest, now_ms)
