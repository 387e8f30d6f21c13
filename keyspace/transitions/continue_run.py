"""Accept a result and the pass that followed it, in one transaction: the steady state of a connected worker.

The result is accepted first, as it would be alone. The answer counts only if the result was accepted as a success with
these bytes; whatever becomes of the answer never voids the result (ARCHITECTURE 6, "Continuation"). The pass between them
is never queued: its id derives from the delivery that was settled, so that the same answer finds the same pass whether the
two are accepted together, one after the other, or again after an unknown commit.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import msgspec

from keyspace import history
from keyspace.errors import Refusal
from keyspace.history import HistoryKind
from keyspace.layout import ITEM
from keyspace.lifecycle import Phase
from keyspace.queue import items
from keyspace.queue.items import Seat
from keyspace.records.run import FailureRecord, RunRecord
from keyspace.records.work import ItemRecord, WorkKind
from keyspace.transitions.accept_declaration import (
    Declaration,
    accept_held_declaration,
    declaration_digest,
    declare,
    held_by,
)
from keyspace.transitions.accept_failure import settle_failure
from keyspace.transitions.accept_result import (
    Settling,
    bounded_failure,
    decide_result,
    meet_deadline_settling,
    value_digest,
)
from keyspace.transitions.accept_success import next_work, settle_success, unrecordable
from keyspace.transitions.block_run import DefinitionConflict, block, block_run, conflict_digest
from keyspace.transitions.complete_run import complete, complete_run, output_digest
from keyspace.transitions.fail_run import fail_run, function_failure_digest, settle_function_failure
from keyspace.transitions.hold import Hold, current_hold
from keyspace.transitions.pass_receipt import UNNAMED_GENERATION, Pass, stale_by_stop
from keyspace.transitions.settle_compensation import settle_undo_success
from keyspace.transitions.stale_result import keep_stale_result
from keyspace.transitions.work import (
    Accepted,
    Replayed,
    Stale,
    Verdict,
    Work,
    discovery_item,
    following_pass_id,
    load_work,
    new_discovery_item,
    save_run,
)
from keyspace.tx import Tx

__all__ = ["Completion", "Continued", "Ending", "FunctionFailure", "answer_pass", "continue_run", "following_pass"]


class Completion(NamedTuple):
    """The function returned. `failed_met` are the failed steps that the pass met; None when it did not say."""

    output: bytes
    failed_met: Collection[str] | None = None


class FunctionFailure(NamedTuple):
    """A failure reached the function's entry. `failed_met` are the failed steps that the pass met; None when it did not say."""

    failure: FailureRecord
    failed_met: Collection[str] | None = None


Ending = Declaration | Completion | FunctionFailure | DefinitionConflict


class Continued(NamedTuple):
    """What became of the result and of the answer.

    `following` is the work now authorized to the hold's session. `refusal` is set when a declaration was refused: the pass
    saw nothing of it yet. `is_open` says that the pass goes on, its work leased to the hold's session.
    """

    result: Verdict
    answer: Verdict
    following: ItemRecord | None = None
    refusal: Refusal | None = None
    is_open: bool = False


def following_pass(work: Work) -> Work:
    """Return the pass that follows the settled delivery `work`, as its worker names it."""
    return Work(WorkKind.DISCOVERY, work.run_id, None, following_pass_id(work), work.token, UNNAMED_GENERATION)


async def answer_pass(
    tx: Tx, workspace: str, work: Work, ending: Ending, *, hold: Hold | None, value_bytes_max: int
) -> tuple[Verdict, ItemRecord | None]:
    """Accept a pass's answer, whichever it is; return besides the work that is now authorized to the hold's session.

    Raises:
        Refusal: of a declaration; nothing was mutated.
    """
    if isinstance(ending, Declaration):
        return await accept_held_declaration(tx, workspace, work, ending, hold, value_bytes_max=value_bytes_max)
    if isinstance(ending, Completion):
        output, met = ending.output, ending.failed_met
        return await complete_run(tx, workspace, work, output, failed_met=met, value_bytes_max=value_bytes_max), None
    if isinstance(ending, DefinitionConflict):
        return await block_run(tx, workspace, work, ending), None
    return await fail_run(tx, workspace, work, ending.failure, failed_met=ending.failed_met), None


async def continue_run(
    tx: Tx,
    workspace: str,
    work: Work,
    value: bytes,
    ending: Ending | None,
    *,
    hold: Hold | None,
    value_bytes_max: int,
) -> Continued:
    """Settle an attempt with a success and accept the answer of the pass that followed it on the same worker.

    Args:
        tx: the open transaction.
        workspace: whose run it is.
        work: the delivery that reports.
        value: the portable encoding of the callback's value.
        ending: the answer of the following pass; None when it has not come in time: the result is then accepted alone, its
            discovery work leased and authorized to the hold's session, whose pass is under way.
        hold: the session that goes on; None leaves the next work to the queue.
        value_bytes_max: the largest value a record takes.

    Reads: run, step, attempt, item, instance; the declared step.  Writes: what the result and the answer write, without any
        discovery item.
    Conflicts: only with this run's other transitions.  Budget: value, and output, child's input or emission, plus 16 kB,
        and what the failed steps weigh that the function ended without; the value plus 32 kB past the deadline.
    Idempotent: the attempt's settlement and the run's receipt of the pass; when the first half is a replay, the second is
        still evaluated.
    """
    loaded = await load_work(tx, workspace, work)
    digest = value_digest(value)
    outcome = decide_result(loaded, work, digest)
    if isinstance(outcome, Stale):
        await keep_stale_result(
            tx, workspace, work, loaded.attempt, outcome="success", digest=digest, value_bytes=len(value), failure=None
        )
        return Continued(outcome, Stale("result_stale"))
    if not isinstance(outcome, Settling):
        return await _after_replay(tx, workspace, work, ending, hold, value_bytes_max)
    if work.kind is WorkKind.COMPENSATION:
        # No pass follows an undo: whatever was announced with it, it is settled as any undo is.
        await settle_undo_success(tx, workspace, work, outcome, digest)
        return Continued(Accepted(), Stale("no_pass_of_undo"))
    outcome = await meet_deadline_settling(tx, workspace, work, outcome, digest)
    failure = unrecordable(outcome.run, outcome.step.step_id, len(value), value_bytes_max)
    if failure is not None:
        await settle_failure(tx, workspace, work, outcome, failure, digest, retry_after_ms=None, is_retryable=False)
        return Continued(Accepted(), Stale("result_unrecordable"))
    after = settle_success(tx, workspace, work, outcome, value, digest)
    if after.phase is not Phase.RUNNING:
        save_run(tx, workspace, outcome.run, await next_work(tx, workspace, work, after))
        return Continued(Accepted(), stale_by_stop(after))
    if ending is None:
        left = await _leave_pass(tx, workspace, work, outcome.run, after, hold)
        return Continued(Accepted(), Stale("no_answer"), is_open=left.token is not None)
    after = _authorize_pass(tx, workspace, after, outcome, hold)
    accepted = Pass(outcome.run, after, following_pass_id(work), None, outcome.attempt.instance)
    try:
        following = await _end_pass(tx, workspace, accepted, ending, hold, value_bytes_max)
    except Refusal as refusal:
        left = await _leave_pass(tx, workspace, work, outcome.run, after, hold, is_recorded=True)
        return Continued(Accepted(), Stale("refused"), refusal=refusal, is_open=left.token is not None)
    return Continued(Accepted(), Accepted(), following)


async def _after_replay(
    tx: Tx, workspace: str, work: Work, ending: Ending | None, hold: Hold | None, value_bytes_max: int
) -> Continued:
    if ending is None:
        left = await tx.load(ITEM.at(workspace, following_pass_id(work)))
        is_open = hold is not None and left is not None and left.token == work.token
        return Continued(Replayed(), Stale("no_answer"), is_open=is_open)
    try:
        answer, following = await answer_pass(
            tx, workspace, following_pass(work), ending, hold=hold, value_bytes_max=value_bytes_max
        )
    except Refusal as refusal:
        return Continued(Replayed(), Stale("refused"), refusal=refusal, is_open=True)
    return Continued(Replayed(), answer, following)


async def _end_pass(
    tx: Tx, workspace: str, accepted: Pass, ending: Ending, hold: Hold | None, value_bytes_max: int
) -> ItemRecord | None:
    if isinstance(ending, Declaration):
        digest = declaration_digest(ending)
        callback = await declare(tx, workspace, accepted, ending, digest, hold, value_bytes_max=value_bytes_max)
        return held_by(hold, callback)
    if isinstance(ending, DefinitionConflict):
        await block(tx, workspace, accepted, ending, conflict_digest(ending))
        return None
    accepted = accepted._replace(failed_met=ending.failed_met)
    if isinstance(ending, Completion):
        digest = output_digest(ending.output)
        await complete(tx, workspace, accepted, ending.output, digest, value_bytes_max=value_bytes_max)
    else:
        digest = function_failure_digest(ending.failure)
        await settle_function_failure(tx, workspace, accepted, bounded_failure(ending.failure), digest)
    return None


def _authorize_pass(tx: Tx, workspace: str, run: RunRecord, settling: Settling, hold: Hold | None) -> RunRecord:
    seat: Seat | None = hold.seat if hold is not None else None
    entry = {
        "delivery": 1,
        "instance": seat.instance if seat else settling.attempt.instance,
        "release": seat.release if seat else settling.attempt.release,
        "pass": run.generation,
    }
    return history.append(tx, workspace, run, run.updated_at_ms, (HistoryKind.PASS_AUTHORIZED, entry))


async def _leave_pass(
    tx: Tx,
    workspace: str,
    work: Work,
    before: RunRecord,
    after: RunRecord,
    hold: Hold | None,
    *,
    is_recorded: bool = False,
) -> ItemRecord:
    """Write the following pass as work: leased to the hold's session, or left to the queue."""
    now_ms, item_id = after.updated_at_ms, following_pass_id(work)
    holder = await current_hold(tx, workspace, hold)
    if holder is None:
        item = discovery_item(tx, workspace, after, now_ms, item_id=item_id)
    else:
        seat = holder.seat._replace(token=work.token)
        item = items.enqueue_authorized(
            tx,
            workspace,
            new_discovery_item(workspace, after, now_ms, item_id),
            seat,
            now_ms,
            tx.now_ms + holder.lease_ms,
            None,
        )
        if not is_recorded:
            entry = {"delivery": 1, "instance": seat.instance, "release": seat.release, "pass": after.generation}
            after = history.append(tx, workspace, after, now_ms, (HistoryKind.PASS_AUTHORIZED, entry))
    save_run(tx, workspace, before, msgspec.structs.replace(after, item_id=item.item_id))
    return item
