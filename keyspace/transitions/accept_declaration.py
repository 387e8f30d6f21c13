"""Accept a declaration: a pass met a step that is not settled; record it with its first attempt and its work."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from keyspace import history
from keyspace.errors import Refusal
from keyspace.history import HistoryKind
from keyspace.layout import ITEM, STEP
from keyspace.lifecycle import RUN as RUN_TABLE
from keyspace.lifecycle import STEP as STEP_TABLE
from keyspace.lifecycle import RunEvent, StepEvent, StepState, advance
from keyspace.limits import (
    ATTEMPT_TIMEOUT_MS_MAX,
    FAILURE_DETAILS_BYTES_MAX,
    FAILURE_MESSAGE_BYTES_MAX,
    LOCATION_CHARS_MAX,
    REPLAY_BYTES_MAX,
    REPLAY_STEP_BYTES,
    STEP_NAME_CHARS_MAX,
    STEPS_MAX,
)
from keyspace.records.run import RetryRecord, RunRecord, StepRecord
from keyspace.records.work import Direction, ItemRecord
from keyspace.retry import check_retry
from keyspace.transitions.enqueue_attempt import enqueue_attempt
from keyspace.transitions.hold import Hold, current_hold, start_held_attempt
from keyspace.transitions.names import check_name
from keyspace.transitions.pass_receipt import Pass, answer_digest, open_pass, settle_pass
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

FAILURE_RESERVE_BYTES = FAILURE_MESSAGE_BYTES_MAX + FAILURE_DETAILS_BYTES_MAX + 512
"""Kept free in the replay budget for each declared step, so that its failure can always be recorded."""


class Declaration(NamedTuple):
    """A step as the pass declares it; `timeout_ms` is the attempt's, the last two are its compensator's."""

    step_id: str
    retry: RetryRecord
    name: str = ""
    timeout_ms: int | None = None
    compensable: bool = False
    location: str = ""
    undo_retry: RetryRecord | None = None
    undo_timeout_ms: int | None = None


def check_declaration(declaration: Declaration) -> None:
    """Refuse a declaration that is not sound in itself.

    Raises:
        Refusal: `invalid_name`, `invalid_retry`, `invalid_timeout`, naming field, value and range.
    """
    check_name("step id", declaration.step_id)
    for field, text, limit in (
        ("name", declaration.name, STEP_NAME_CHARS_MAX),
        ("location", declaration.location, LOCATION_CHARS_MAX),
    ):
        if len(text) > limit:
            raise Refusal("invalid_name", "A text is too long.", field=field, characters=len(text), limit=limit)
    for retry in (declaration.retry, declaration.undo_retry):
        if retry is not None:
            check_retry(retry)
    for field, timeout_ms in (
        ("timeout_ms", declaration.timeout_ms),
        ("undo_timeout_ms", declaration.undo_timeout_ms),
    ):
        if timeout_ms is not None and not 1 <= timeout_ms <= ATTEMPT_TIMEOUT_MS_MAX:
            raise Refusal(
                "invalid_timeout", "An attempt timeout lies outside its range.", field=field, value=timeout_ms,
                minimum=1, limit=ATTEMPT_TIMEOUT_MS_MAX,
            )  # fmt: skip


def check_room(run: RunRecord, step: StepRecord | None, declaration: Declaration) -> None:
    """Refuse a declaration that the run has no room for, or that names a settled step.

    Raises:
        Refusal: `step_limit`, `replay_budget`, `step_settled`.
    """
    if step is None and run.step_count >= STEPS_MAX:
        raise Refusal(
            "step_limit", "The run has as many steps as it may.", field="steps", value=run.step_count, limit=STEPS_MAX
        )
    needed_bytes = len(declaration.step_id.encode()) + REPLAY_STEP_BYTES + FAILURE_RESERVE_BYTES
    if run.replay_bytes + needed_bytes > REPLAY_BYTES_MAX:
        raise Refusal(
            "replay_budget", "The run's settled steps fill its replay budget.", field="replay_bytes",
            value=run.replay_bytes, limit=REPLAY_BYTES_MAX,
        )  # fmt: skip
    if step is not None and step.state is not StepState.OBSOLETE:
        raise Refusal(
            "step_settled", "The pass declares a step that is settled or under way.", field="step id",
            value=declaration.step_id, state=step.state.value,
        )  # fmt: skip


def new_step(
    workspace: str, run: RunRecord, earlier: StepRecord | None, declaration: Declaration, pass_id: str, now_ms: int
) -> StepRecord:
    """Return the record of a step declared now; one that had become Obsolete goes on with the next generation."""
    return StepRecord(
        step_id=declaration.step_id,
        name=declaration.name,
        kind="callback",
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
        declared_at_ms=now_ms,
        declared_by=pass_id,
    )


async def accept_declaration(
    tx: Tx, workspace: str, work: Work, declaration: Declaration, *, hold: Hold | None = None
) -> Verdict:
    """Record the next unresolved step (RFD 2, "Discovery and callback execution are separate work kinds").

    Args:
        tx: the open transaction.
        workspace: whose run it is.
        work: the pass that answers.
        declaration: the step it met.
        hold: the session that is to run the step at once, leased and authorized in this transaction; None leaves its work
            to the queue. A hold whose session is no longer its instance's is as good as none.

    Reads: run, item, step; with a hold the instance.  Writes: step, attempt, callback item with its index entries and bell,
        run, history; the discovery item goes.
    Conflicts: only with this run's other transitions.  Budget: under 10 kB.
    Idempotent: the run's receipt of the pass; the hold's token tells whether the work is this session's.

    Raises:
        Refusal: `invalid_name`, `invalid_retry`, `invalid_timeout`, `step_limit`, `replay_budget`, `step_settled`: the pass
            is answered, nothing is mutated, and its lease goes on (FILLED-IN 11, "A refused declaration").
    """
    verdict, _ = await accept_held_declaration(tx, workspace, work, declaration, hold)
    return verdict


async def accept_held_declaration(
    tx: Tx, workspace: str, work: Work, declaration: Declaration, hold: Hold | None
) -> tuple[Verdict, ItemRecord | None]:
    """Accept a declaration as `accept_declaration` does, and return besides the work that is authorized to the hold."""
    digest = declaration_digest(declaration)
    run, outcome = await open_pass(tx, workspace, work, digest)
    if isinstance(outcome, Pass):
        return Accepted(), held_by(hold, await declare(tx, workspace, outcome, declaration, digest, hold))
    if isinstance(outcome, Replayed) and hold is not None and run is not None and run.item_id is not None:
        return outcome, held_by(hold, await tx.load(ITEM.at(workspace, run.item_id)))
    return outcome, None


def held_by(hold: Hold | None, item: ItemRecord | None) -> ItemRecord | None:
    """Return `item` if it is leased under the hold's token."""
    return item if hold is not None and item is not None and item.token == hold.seat.token else None


def declaration_digest(declaration: Declaration) -> str:
    """Return the digest of the answer that a pass met `declaration`."""
    return answer_digest("declare", msgspec.json.encode(declaration))


async def declare(
    tx: Tx, workspace: str, accepted: Pass, declaration: Declaration, digest: str, hold: Hold | None
) -> ItemRecord:
    """Write an accepted declaration and return its work item. Refuses before it writes anything."""
    run = accepted.run
    check_declaration(declaration)
    step_key = STEP.at(workspace, run.run_id, declaration.step_id)
    earlier = await tx.load(step_key)
    check_room(run, earlier, declaration)
    holder = await current_hold(tx, workspace, hold)
    now_ms = engine_now_ms(tx, run)
    step = new_step(workspace, run, earlier, declaration, accepted.item_id, now_ms)
    entry = {
        "step": step.step_id,
        "name": step.name,
        "attempt": step.ordinal,
        "generation": step.generation,
        "operation": step.operation_id,
        "attempts": step.retry.attempts,
        "timeout_ms": step.timeout_ms,
        "compensable": step.compensable,
        "location": step.location,
    }
    after = history.append(tx, workspace, run, now_ms, (HistoryKind.STEP_DECLARED, entry))
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
