"""Accept a declaration: a pass met a step that is not settled; record it with its first attempt and its work."""

from __future__ import annotations

import msgspec

from keyspace import history
from keyspace.history import HistoryKind
from keyspace.layout import ITEM, STEP
from keyspace.lifecycle import RUN as RUN_TABLE
from keyspace.lifecycle import STEP as STEP_TABLE
from keyspace.lifecycle import RunEvent, StepEvent, StepKind, StepState, advance
from keyspace.limits import PAYLOAD_BYTES_MAX
from keyspace.records.run import RunRecord, StepRecord
from keyspace.records.work import Direction, ItemRecord
from keyspace.transitions.blockers import unblock
from keyspace.transitions.declaration import (
    FAILURE_RESERVE_BYTES,
    Declaration,
    check_declaration,
    check_room,
    declaration_digest,
)
from keyspace.transitions.declare_server_step import declare_server_step
from keyspace.transitions.enqueue_attempt import enqueue_attempt
from keyspace.transitions.failed_steps import check_failed_room
from keyspace.transitions.hold import Hold, current_hold, start_held_attempt
from keyspace.transitions.pass_receipt import Pass, open_pass, settle_pass
from keyspace.transitions.work import Accepted, Replayed, Verdict, Work, engine_now_ms, operation_id
from keyspace.tx import Tx

__all__ = [
    "FAILURE_RESERVE_BYTES",
    "Declaration",
    "accept_declaration",
    "accept_held_declaration",
    "check_declaration",
    "check_room",
    "declaration_digest",
    "declare",
    "held_by",
]


def new_step(
    workspace: str, run: RunRecord, earlier: StepRecord | None, declaration: Declaration, pass_id: str, now_ms: int
) -> StepRecord:
    """Return the record of a step declared now; one that had become Obsolete goes on with the next generation."""
    return StepRecord(
        step_id=declaration.step_id,
        name=declaration.name,
        kind=StepKind.CALLBACK,
        state=StepState.PENDING if earlier is None else advance(STEP_TABLE, earlier.state, StepEvent.DECLARED),
        generation=1 if earlier is None else earlier.generation + 1,
        ordinal=1 if earlier is None else earlier.ordinal + 1,
        first_ordinal=1 if earlier is None else earlier.ordinal + 1,
        operation_id=operation_id(workspace, run.run_id, declaration.step_id, Direction.FORWARD),
        retry=declaration.retry,
        timeout_ms=declaration.timeout_ms,
        compensable=declaration.compensable,
        location=declaration.location,
        undo_retry=declaration.undo_retry,
        undo_timeout_ms=declaration.undo_timeout_ms,
        repeatable=declaration.repeatable,
        undo_repeatable=declaration.undo_repeatable,
        declared_at_ms=now_ms,
        declared_by=pass_id,
    )


def _entry(step: StepRecord) -> dict[str, object]:
    """Return what history keeps of a step declared now."""
    return {
        "step": step.step_id,
        "name": step.name,
        "attempt": step.ordinal,
        "generation": step.generation,
        "operation": step.operation_id,
        "attempts": step.retry.attempts,
        "timeout_ms": step.timeout_ms,
        "compensable": step.compensable,
        "repeatable": step.repeatable,
        "undo_repeatable": step.undo_repeatable,
        "location": step.location,
    }


async def accept_declaration(
    tx: Tx,
    workspace: str,
    work: Work,
    declaration: Declaration,
    *,
    hold: Hold | None = None,
    value_bytes_max: int = PAYLOAD_BYTES_MAX,
) -> Verdict:
    """Record the next unresolved step (RFD 2, "Discovery and callback execution are separate work kinds").

    Args:
        tx: the open transaction.
        workspace: whose run it is.
        work: the pass that answers.
        declaration: the step it met.
        hold: the session that is to run the step at once, leased and authorized in this transaction; None leaves its work
            to the queue. A hold whose session is no longer its instance's is as good as none.
        value_bytes_max: the largest value a record takes, input a declared child and payload an emitted event.

    Reads: run, item, step; with a hold the instance.  Writes: step, attempt, callback item with its index entries and bell,
        run, history; the discovery item goes. For a timer its item instead of attempt and callback item, for
        an invocation the child run, for an emission the event, the settled step and the next discovery item, which a hold
        goes on with.
    Conflicts: only with this run's other transitions; an emission with an activation too.  Budget: under 10 kB; with a
        child its input, with an emission its payload and the correlation as JSON besides; 24 kB past the deadline.
    Idempotent: the run's receipt of the pass; the hold's token tells whether the work is this session's.

    Raises:
        Refusal: `invalid_name`, `invalid_retry`, `invalid_timeout`, `not_compensable`, `not_repeatable`, `invalid_timer`,
            `step_limit`, `failed_step_limit`, `replay_budget`, `step_settled`, `declaration_conflict`, those of
            `declare_child`, of an emission those of a submission: the pass is answered, nothing is mutated, and its lease goes on (FILLED-IN 11, "A refused declaration").
    """
    verdict, _ = await accept_held_declaration(tx, workspace, work, declaration, hold, value_bytes_max=value_bytes_max)
    return verdict


async def accept_held_declaration(
    tx: Tx,
    workspace: str,
    work: Work,
    declaration: Declaration,
    hold: Hold | None,
    *,
    value_bytes_max: int,
) -> tuple[Verdict, ItemRecord | None]:
    """Accept a declaration as `accept_declaration` does, and return besides the work that is authorized to the hold."""
    digest = declaration_digest(declaration)
    run, outcome = await open_pass(tx, workspace, work, digest)
    if isinstance(outcome, Pass):
        callback = await declare(tx, workspace, outcome, declaration, digest, hold, value_bytes_max=value_bytes_max)
        return Accepted(), held_by(hold, callback)
    if isinstance(outcome, Replayed) and hold is not None and run is not None and run.item_id is not None:
        return outcome, held_by(hold, await tx.load(ITEM.at(workspace, run.item_id)))
    return outcome, None


def held_by(hold: Hold | None, item: ItemRecord | None) -> ItemRecord | None:
    """Return `item` if it is leased under the hold's token."""
    return item if hold is not None and item is not None and item.token == hold.seat.token else None


async def declare(
    tx: Tx,
    workspace: str,
    accepted: Pass,
    declaration: Declaration,
    digest: str,
    hold: Hold | None,
    *,
    value_bytes_max: int,
) -> ItemRecord | None:
    """Write an accepted declaration and return the work that follows it, if any is ready. Refuses before it writes anything."""
    run = accepted.run
    check_declaration(declaration, value_bytes_max)
    step_key = STEP.at(workspace, run.run_id, declaration.step_id)
    earlier = await tx.load(step_key)
    if declaration.terms is not None:
        return await declare_server_step(
            tx, workspace, accepted, earlier, declaration, digest, hold, value_bytes_max=value_bytes_max
        )
    check_room(run, earlier, declaration)
    check_failed_room(tx, run)
    holder = await current_hold(tx, workspace, hold)
    now_ms = engine_now_ms(tx, run)
    run = await unblock(tx, workspace, run, now_ms)
    step = new_step(workspace, run, earlier, declaration, accepted.item_id, now_ms)
    after = history.append(tx, workspace, run, now_ms, (HistoryKind.STEP_DECLARED, _entry(step)))
    if holder is None:
        tx.put(step_key, step)
        callback = enqueue_attempt(tx, workspace, run, step, now_ms, now_ms)
    else:
        after, callback = start_held_attempt(tx, workspace, after, step, holder, now_ms)
    after = msgspec.structs.replace(
        after,
        phase=advance(RUN_TABLE, run.phase, RunEvent.PROGRESSED),
        item_id=callback.item_id,
        step_id=step.step_id,
        step_count=run.step_count + (1 if earlier is None else 0),
    )
    settle_pass(tx, workspace, accepted, after, digest, now_ms)
    return callback
