"""Stop a run: commit the intent, fence what has not started, and settle the run at once when nothing is left to settle.

The first committed reason decides and never changes (RFD 2, "The first committed stop reason decides"). An authorized effect
keeps its settlement token: its outcome is still wanted, and the run is Cancelling until it has one.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import msgspec

from keyspace import history
from keyspace.errors import Refusal
from keyspace.history import HistoryKind
from keyspace.layout import ATTEMPT, ITEM, RUN, STEP
from keyspace.lifecycle import ATTEMPT as ATTEMPT_TABLE
from keyspace.lifecycle import RUN as RUN_TABLE
from keyspace.lifecycle import STEP as STEP_TABLE
from keyspace.lifecycle import (
    AttemptEvent,
    Execution,
    ItemState,
    Phase,
    Recovery,
    RunEvent,
    StepEvent,
    StepKind,
    StopReason,
    advance,
)
from keyspace.queue import items
from keyspace.records.run import RunRecord, StopRecord
from keyspace.records.work import Direction, ItemRecord, WorkKind
from keyspace.transitions.begin_unwind import begin_unwind
from keyspace.transitions.blockers import clear_blocker
from keyspace.transitions.child_work import enqueue_stop
from keyspace.transitions.forget_wait import forget_wait
from keyspace.transitions.lost_attempt import leave_unknown
from keyspace.transitions.names import check_id
from keyspace.transitions.run_timer import consume_run_timer
from keyspace.transitions.work import engine_now_ms, save_run
from keyspace.tx import Tx

__all__ = ["StopOutcome", "StopReply", "cancel_run", "commit_stop", "decide", "settlement_gate"]


class StopOutcome(StrEnum):
    """What a stop request came to."""

    ACCEPTED = "accepted"
    REPEATED = "repeated"
    ALREADY_ENDING = "already_ending"
    ALREADY_TERMINAL = "already_terminal"


class StopReply(NamedTuple):
    """The reply to a stop request. It never claims that running work has stopped.

    `is_settling` says that an authorized effect, or one whose outcome is unknown, must settle before recovery begins.
    """

    outcome: StopOutcome
    phase: Phase
    execution: Execution | None
    recovery: Recovery | None
    is_settling: bool


def decide(run: RunRecord, reason: StopReason) -> StopOutcome:
    """Decide what a stop request with `reason` comes to.

    Raises:
        Refusal: `stop_conflict`: another reason was committed first.
    """
    if run.stop is not None and run.stop.reason is not reason:
        raise Refusal(
            "stop_conflict", "The run was stopped for another reason first, which stands.", reason=run.stop.reason.value
        )
    if run.phase is Phase.TERMINAL:
        return StopOutcome.ALREADY_TERMINAL
    if run.stop is not None:
        return StopOutcome.REPEATED
    return StopOutcome.ALREADY_ENDING if run.phase is Phase.COMPENSATING else StopOutcome.ACCEPTED


async def cancel_run(tx: Tx, workspace: str, run_id: str, *, by: str) -> StopReply:
    """Commit a cancellation (RFD 1, "Cancellation and run timeout record a durable stop intent").

    Args:
        tx: the open transaction.
        workspace: whose run it is.
        run_id: the run.
        by: the acting key, for history.

    Reads: run, its outstanding item or its child; a fenced callback's step and attempt; a blocker; the last completion and
        its step.
    Writes: run, status index, history; the outstanding item goes unless it is an authorized effect, as do the run's timer
        and any blocker with its probe; the first compensation; the stop on its way to the child.
    Conflicts: only with this run's other transitions and its child's.  Budget: under 24 kB, whatever the run has done.
    Idempotent: the stop on the run is its receipt.

    Raises:
        Refusal: `not_found`, `stop_conflict`.
    """
    check_id("run", run_id)
    run = await tx.load(RUN.at(workspace, run_id))
    if run is None:
        raise Refusal("not_found", "There is no such run in this workspace.", run=run_id)
    outcome = decide(run, StopReason.CANCELLED)
    if outcome is StopOutcome.ACCEPTED:
        after = await commit_stop(tx, workspace, run, StopReason.CANCELLED, by, engine_now_ms(tx, run))
        save_run(tx, workspace, run, after)
        run = after
    return StopReply(outcome, run.phase, run.execution, run.recovery, run.phase is Phase.CANCELLING)


async def commit_stop(tx: Tx, workspace: str, run: RunRecord, reason: StopReason, by: str, now_ms: int) -> RunRecord:
    """Return `run` with the stop committed: Cancelling, unwinding or Terminal; the caller saves it.

    The run's timer goes: once a stop exists there is nothing left for it to do (RFD 2, "the run timer stays consumed").
    """
    after = history.append(tx, workspace, run, now_ms, (HistoryKind.STOP_COMMITTED, {"reason": reason.value, "by": by}))
    after = msgspec.structs.replace(
        after, stop=StopRecord(reason=reason, at_ms=now_ms, by=by), updated_at_ms=now_ms, generation=run.generation + 1
    )
    after = await consume_run_timer(tx, workspace, after)
    if run.phase is Phase.DEFINITION_BLOCKED:
        await clear_blocker(tx, workspace, run)
    item = None if run.item_id is None else await tx.load(ITEM.at(workspace, run.item_id))
    if item is not None and (item.kind is WorkKind.DISCOVERY or item.state is not ItemState.AUTHORIZED):
        after = await _fence(tx, workspace, after, item, now_ms)
        item = None
    await _pass_down(tx, workspace, after, now_ms)
    if item is not None or after.unknown_count or after.child_id is not None:
        return msgspec.structs.replace(after, phase=advance(RUN_TABLE, run.phase, RunEvent.STOPPED_SETTLING))
    return await begin_unwind(
        tx,
        workspace,
        after,
        reason.execution,
        now_ms,
        empty=RunEvent.STOPPED_EMPTY,
        unwinding=RunEvent.STOPPED_UNWINDING,
    )


async def _pass_down(tx: Tx, workspace: str, run: RunRecord, now_ms: int) -> None:
    """Send the stop on its way to an unsettled child, which the run stays Cancelling for (FILLED-IN 11, "An unsettled child").

    A child that has ended needs none: the work that settles its parent's step exists already.
    """
    if run.child_id is None:
        return
    child = await tx.load(RUN.at(workspace, run.child_id))
    if child is not None and child.phase is not Phase.TERMINAL:
        enqueue_stop(tx, workspace, child, now_ms)


async def _fence(tx: Tx, workspace: str, run: RunRecord, item: ItemRecord, now_ms: int) -> RunRecord:
    """Remove work that was not authorized, or may be discarded; a fenced step never ran and has no outcome.

    A repeatable attempt that waits to be delivered again has begun once, and may not start again: it is Unknown.
    """
    after = msgspec.structs.replace(run, item_id=None, step_id=None)
    if item.step_id is None:
        items.consume(tx, workspace, item)
        return after
    step_key = STEP.at(workspace, run.run_id, item.step_id)
    attempt_at = ATTEMPT.at(workspace, run.run_id, Direction.FORWARD, item.step_id, item.generation)
    step, attempt = await tx.load(step_key, attempt_at)
    assert step is not None and (attempt is not None or step.kind.is_server_owned), "work without its step"
    if attempt is not None and attempt.loss_count:
        return leave_unknown(tx, workspace, run, step, attempt, item, now_ms)
    items.consume(tx, workspace, item)
    fenced = msgspec.structs.replace(
        step, state=advance(STEP_TABLE, step.state, StepEvent.FENCED), settled_at_ms=now_ms
    )
    if step.kind is StepKind.WAIT:
        await forget_wait(tx, workspace, run.run_id, step.step_id)
    if step.server is not None:
        fenced = msgspec.structs.replace(fenced, server=msgspec.structs.replace(step.server, item_id=None))
    tx.put(step_key, fenced)
    if attempt is not None:
        state = advance(ATTEMPT_TABLE, attempt.state, AttemptEvent.FENCED)
        tx.put(attempt_at, msgspec.structs.replace(attempt, state=state, settled_at_ms=now_ms))
    entry = {"step": step.step_id, "generation": step.generation}
    return history.append(tx, workspace, after, now_ms, (HistoryKind.STEP_FENCED, entry))


async def settlement_gate(tx: Tx, workspace: str, run: RunRecord, now_ms: int) -> RunRecord:
    """Return a stopping run whose last token has settled unwinding or Terminal; any other run as it is.

    Source: RFD 2, "Compensation order is snapshotted only after every effectful settlement token resolves".
    """
    is_settling = run.item_id is not None or run.child_id is not None or run.unknown_count > 0
    if run.phase is not Phase.CANCELLING or is_settling or run.stop is None:
        return run
    return await begin_unwind(
        tx,
        workspace,
        run,
        run.stop.reason.execution,
        now_ms,
        empty=RunEvent.SETTLED_EMPTY,
        unwinding=RunEvent.SETTLED_UNWINDING,
    )
