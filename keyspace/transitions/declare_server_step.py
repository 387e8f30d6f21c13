"""Declare a step that the server settles: the frame that all its kinds share.

Each kind has a module of its own that says what it records and what waits for it. A repeated declaration keeps what was
recorded, and the run goes on as if it had been the first: it waits where it waited, or continues from the outcome.
"""

from __future__ import annotations

from typing import Any

import msgspec

from keyspace import history
from keyspace.errors import Refusal
from keyspace.history import HistoryKind
from keyspace.layout import STEP
from keyspace.lifecycle import RUN as RUN_TABLE
from keyspace.lifecycle import STEP as STEP_TABLE
from keyspace.lifecycle import RunEvent, StepEvent, StepKind, StepState, advance
from keyspace.records.run import RunRecord, ServerStepRecord, StepRecord
from keyspace.records.work import Direction, ItemRecord
from keyspace.transitions.blockers import unblock
from keyspace.transitions.declaration import (
    ChildTerms,
    Declaration,
    EmissionTerms,
    ServerTerms,
    WaitTerms,
    check_room,
    terms_digest,
)
from keyspace.transitions.declare_child import declare_child
from keyspace.transitions.declare_timer import declare_timer
from keyspace.transitions.declare_wait import declare_wait
from keyspace.transitions.emit_event import emit_event, receipt
from keyspace.transitions.failed_steps import check_failed_room
from keyspace.transitions.hold import Hold, current_hold, start_held_pass
from keyspace.transitions.pass_receipt import Pass, settle_pass
from keyspace.transitions.settle_server_step import continuation_id, continue_after, settle_server_step
from keyspace.transitions.work import engine_now_ms, operation_id
from keyspace.tx import Tx

__all__ = ["declare_server_step"]


async def declare_server_step(
    tx: Tx,
    workspace: str,
    accepted: Pass,
    earlier: StepRecord | None,
    declaration: Declaration,
    digest: str,
    hold: Hold | None,
    *,
    value_bytes_max: int,
) -> ItemRecord | None:
    """Write an accepted declaration of a server-owned step and settle its pass. Refuses before it writes anything.

    Returns the discovery work behind an emission, which is settled at once; None when the run waits.

    Args:
        tx: the open transaction.
        workspace: whose run it is.
        accepted: the pass that answers.
        earlier: the step as it is recorded, None when it is not.
        declaration: sound in itself (`check_declaration`).
        digest: of the answer, for the pass's receipt.
        hold: the session whose pass may go on behind an emission.
        value_bytes_max: the largest value a record takes.

    Raises:
        Refusal: `declaration_conflict`, `step_limit`, `failed_step_limit`, `replay_budget`, `invalid_timer`; those of
            `declare_child` and `emit_event`.
    """
    run = accepted.run
    now_ms = engine_now_ms(tx, run)
    terms = terms_digest(declaration)
    if earlier is not None and earlier.state is not StepState.OBSOLETE:
        _check_repeat(earlier, declaration, terms)
        run = await unblock(tx, workspace, run, now_ms)
        after, following = await _keep_recorded(tx, workspace, run, accepted.item_id, earlier, hold, now_ms)
        settle_pass(tx, workspace, accepted, after, digest, now_ms)
        return following
    check_room(run, earlier, declaration)
    check_failed_room(tx, run)
    step = _new_step(workspace, run, earlier, declaration, terms, accepted.item_id, now_ms)
    begun = await _begin(tx, workspace, run, step, declaration.terms, now_ms, value_bytes_max=value_bytes_max)
    run = await unblock(tx, workspace, run, now_ms)
    after = msgspec.structs.replace(run, step_count=run.step_count + (1 if earlier is None else 0))
    after = history.append(tx, workspace, after, now_ms, (HistoryKind.STEP_DECLARED, _entry(begun, declaration.terms)))
    following = None
    if begun.kind is StepKind.EMISSION:
        after = _settle_emission(tx, workspace, after, begun, now_ms, value_bytes_max=value_bytes_max)
        after, following = await _go_on(tx, workspace, after, accepted.item_id, hold, now_ms)
    else:
        after = _wait(tx, workspace, after, begun)
    settle_pass(tx, workspace, accepted, after, digest, now_ms)
    return following


async def _begin(
    tx: Tx,
    workspace: str,
    run: RunRecord,
    step: StepRecord,
    terms: ServerTerms | None,
    now_ms: int,
    *,
    value_bytes_max: int,
) -> StepRecord:
    """Make what a step of its kind waits for, or is; return the step with it."""
    if isinstance(terms, ChildTerms):
        return await declare_child(tx, workspace, run, step, terms, now_ms, value_bytes_max=value_bytes_max)
    if isinstance(terms, EmissionTerms):
        return await emit_event(tx, workspace, run, step, terms)
    if isinstance(terms, WaitTerms):
        return declare_wait(tx, workspace, run, step, terms, now_ms)
    assert terms is not None, "a callback is not the server's"
    return declare_timer(tx, workspace, run, step, terms, now_ms)


def _wait(tx: Tx, workspace: str, run: RunRecord, step: StepRecord) -> RunRecord:
    """Write a step that waits, and return its run as it waits with it."""
    tx.put(STEP.at(workspace, run.run_id, step.step_id), step)
    return msgspec.structs.replace(
        run,
        phase=advance(RUN_TABLE, run.phase, RunEvent.PROGRESSED),
        item_id=step.server.item_id if step.server else None,
        child_id=step.server.child_id if step.server else None,
        step_id=step.step_id,
    )


def _settle_emission(
    tx: Tx, workspace: str, run: RunRecord, step: StepRecord, now_ms: int, *, value_bytes_max: int
) -> RunRecord:
    """Settle an emission with its receipt: acceptance is not delivery."""
    assert step.server is not None and step.server.event_id is not None
    event_id = step.server.event_id
    return settle_server_step(
        tx, workspace, run, step, receipt(event_id), now_ms, value_bytes_max=value_bytes_max, told={"event": event_id}
    )


async def _go_on(
    tx: Tx, workspace: str, run: RunRecord, pass_id: str, hold: Hold | None, now_ms: int
) -> tuple[RunRecord, ItemRecord | None]:
    """Return the run with the pass that follows this one: the hold's, whose worker goes on where it is, or the queue's."""
    # The run generation rises with this answer, and the pass that follows is of the risen one.
    following = msgspec.structs.replace(run, generation=run.generation + 1)
    holder = await current_hold(tx, workspace, hold)
    if holder is None:
        return continue_after(tx, workspace, following, pass_id, now_ms), None
    return start_held_pass(tx, workspace, following, continuation_id(pass_id), holder, now_ms)


def _new_step(
    workspace: str,
    run: RunRecord,
    earlier: StepRecord | None,
    declaration: Declaration,
    terms: str,
    pass_id: str,
    now_ms: int,
) -> StepRecord:
    """Return the step, WAITING. It has no attempt, so the ordinal stays what it was; 0 when it never had one."""
    ordinal = 0 if earlier is None else earlier.ordinal
    return StepRecord(
        step_id=declaration.step_id,
        name=declaration.name,
        kind=declaration.kind,
        state=advance(STEP_TABLE, StepState.PENDING if earlier is None else earlier.state, StepEvent.OWNED),
        generation=1 if earlier is None else earlier.generation + 1,
        ordinal=ordinal,
        first_ordinal=ordinal + 1,
        operation_id=operation_id(workspace, run.run_id, declaration.step_id, Direction.FORWARD),
        retry=declaration.retry,
        timeout_ms=None,
        compensable=False,
        location=declaration.location,
        declared_at_ms=now_ms,
        declared_by=pass_id,
        server=ServerStepRecord(terms=terms),
    )


def _entry(step: StepRecord, terms: ServerTerms | None) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "step": step.step_id,
        "name": step.name,
        "kind": step.kind.value,
        "generation": step.generation,
    }
    if step.server is not None and step.server.due_at_ms is not None:
        entry["due_at_ms"] = step.server.due_at_ms
    if step.server is not None and step.server.child_id is not None:
        entry["child"] = step.server.child_id
    if step.server is not None and step.server.event_id is not None:
        entry["event"] = step.server.event_id
    if isinstance(terms, WaitTerms):
        entry |= {"awaits": terms.event, "match": dict(terms.match), "timeout_ms": terms.timeout_ms}
    return entry | {"location": step.location}


def _check_repeat(earlier: StepRecord, declaration: Declaration, terms: str) -> None:
    if earlier.server is None or earlier.kind is not declaration.kind or earlier.server.terms != terms:
        raise Refusal(
            "declaration_conflict", "The step was declared as something else, which stands.", field="step id",
            value=declaration.step_id, kind=declaration.kind.value, recorded=earlier.kind.value,
        )  # fmt: skip


async def _keep_recorded(
    tx: Tx, workspace: str, run: RunRecord, pass_id: str, step: StepRecord, hold: Hold | None, now_ms: int
) -> tuple[RunRecord, ItemRecord | None]:
    """Return the run as a repeated declaration leaves it: waiting where it waited, or with a pass to go on from the outcome.

    Source: RFD 2, "Replaying an already accepted emission appends emission-replayed".
    """
    kind = HistoryKind.DECLARATION_REPEATED
    entry: dict[str, Any] = {"step": step.step_id, "kind": step.kind.value, "generation": step.generation}
    if step.kind is StepKind.EMISSION and step.server is not None:
        kind = HistoryKind.EMISSION_REPLAYED
        entry |= {"event": step.server.event_id}
    after = history.append(tx, workspace, run, now_ms, (kind, entry))
    after = msgspec.structs.replace(after, phase=advance(RUN_TABLE, after.phase, RunEvent.PROGRESSED))
    if step.state is StepState.WAITING:
        assert step.server is not None
        waiting = msgspec.structs.replace(
            after, item_id=step.server.item_id, child_id=step.server.child_id, step_id=step.step_id
        )
        return waiting, None
    # Only a receipt can be told without reading it; behind any other outcome the pass begins anew.
    return await _go_on(tx, workspace, after, pass_id, hold if step.kind is StepKind.EMISSION else None, now_ms)
