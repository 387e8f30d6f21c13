"""What a worker says of its work becomes one transition, and the transition's verdict its answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from ryusen.errors import InvalidValue
from ryusen.protocol.frames import (
    Answer,
    Complete,
    Declare,
    Fail,
    Failed,
    Failure,
    NotFound,
    Result,
    Settled,
    StepDeclaration,
    Succeeded,
)
from ryusen.protocol.values import check_value

from keyspace.errors import Detail, Refusal
from keyspace.keyspace import Keyspace
from keyspace.records.run import FailureRecord, RetryRecord
from keyspace.transitions.accept_declaration import Declaration, accept_declaration
from keyspace.transitions.accept_failure import accept_failure
from keyspace.transitions.accept_success import accept_success
from keyspace.transitions.complete_run import complete_run
from keyspace.transitions.fail_run import fail_run
from keyspace.transitions.target_not_found import target_not_found
from keyspace.transitions.work import Replayed, Stale, Verdict, Work
from keyspace.tx import Tx
from services.dispatcher.refs import work_of

__all__ = ["Settlement", "SettlementFrame", "settle", "settlement_of"]

SettlementFrame = Result | Answer | NotFound


class Settlement(NamedTuple):
    """A transition to run: its name in counters and its body."""

    name: str
    body: Callable[[Tx], Awaitable[Verdict]]


async def settle(keyspace: Keyspace, workspace: str, frame: SettlementFrame, *, value_bytes_max: int) -> Settled:
    """Settle what `frame` says and return the answer to its worker.

    Everything the transition needs is in the frame's reference and the store, so a result of a former session, or of one
    that another dispatcher held, is accepted like any other.

    Args:
        keyspace: where.
        workspace: of the session's credential.
        frame: what the worker said.
        value_bytes_max: the largest value a record takes, in bytes.

    Raises:
        StoreError: the store kept it from committing; nothing was answered.
        KeyspaceError: a defect, or damage to what is stored.
    """
    work = work_of(frame.ref)
    if work is None or (work.step_id is None) is not isinstance(frame, Answer):
        # Like something that does not exist: an answer must not tell a stranger more.
        return Settled(request=frame.request, verdict="stale", code="run_not_found")
    if isinstance(frame, Answer) and isinstance(frame.ending, Declare) and len(frame.ending.steps) != 1:
        message = "A pass declares one step at a time."
        return Settled(
            request=frame.request, verdict="refused", code="step_count", field="steps", limit=1, message=message
        )
    settlement = settlement_of(workspace, work, frame, value_bytes_max=value_bytes_max)
    try:
        _check_values(frame)
        verdict = await keyspace.transact(settlement.name, settlement.body)
    except Refusal as refusal:
        return _refused(frame.request, refusal)
    except InvalidValue as fault:
        return Settled(request=frame.request, verdict="refused", code="invalid_value", message=str(fault))
    if isinstance(verdict, Stale):
        return Settled(request=frame.request, verdict="stale", code=verdict.code)
    if isinstance(verdict, Replayed):
        return Settled(request=frame.request, verdict="replayed", code=verdict.code)
    return Settled(request=frame.request, verdict="accepted", code=verdict.code)


def _check_values(frame: SettlementFrame) -> None:
    """Refuse what no later pass could decode, before it is recorded for good.

    Raises:
        InvalidValue: the first such value, with the path inside it.
    """
    said = frame.outcome if isinstance(frame, Result) else frame.ending if isinstance(frame, Answer) else None
    if isinstance(said, Succeeded | Complete):
        check_value(bytes(said.value))
    elif isinstance(said, Failed | Fail) and said.failure.details is not None:
        check_value(bytes(said.failure.details))


def settlement_of(workspace: str, work: Work, frame: SettlementFrame, *, value_bytes_max: int) -> Settlement:
    """Return the transition that settles `frame`."""
    if isinstance(frame, NotFound):
        return Settlement("target_not_found", lambda tx: target_not_found(tx, workspace, work))
    if isinstance(frame, Result):
        return _of_result(workspace, work, frame, value_bytes_max)
    return _of_answer(workspace, work, frame, value_bytes_max)


def _of_result(workspace: str, work: Work, frame: Result, value_bytes_max: int) -> Settlement:
    outcome = frame.outcome
    if isinstance(outcome, Succeeded):
        value = bytes(outcome.value)
        return Settlement(
            "accept_success", lambda tx: accept_success(tx, workspace, work, value, value_bytes_max=value_bytes_max)
        )
    failure = failure_record(outcome.failure)
    return Settlement(
        "accept_failure",
        lambda tx: accept_failure(
            tx, workspace, work, failure, is_retryable=outcome.retryable, retry_after_ms=outcome.retry_after_ms
        ),
    )


def _of_answer(workspace: str, work: Work, frame: Answer, value_bytes_max: int) -> Settlement:
    ending = frame.ending
    if isinstance(ending, Declare):
        declaration = declaration_of(ending.steps[0])
        return Settlement("accept_declaration", lambda tx: accept_declaration(tx, workspace, work, declaration))
    if isinstance(ending, Complete):
        output = bytes(ending.value)
        return Settlement(
            "complete_run", lambda tx: complete_run(tx, workspace, work, output, value_bytes_max=value_bytes_max)
        )
    assert isinstance(ending, Fail)
    failure = failure_record(ending.failure)
    return Settlement("fail_run", lambda tx: fail_run(tx, workspace, work, failure))


def failure_record(failure: Failure) -> FailureRecord:
    """Return a worker's failure as it is recorded; its details stay the JSON text they are."""
    details = None if failure.details is None else bytes(failure.details).decode()
    return FailureRecord(category=failure.category, message=failure.message, details=details)


def declaration_of(step: StepDeclaration) -> Declaration:
    """Return a step as the transition takes it."""
    retry = step.retry
    return Declaration(
        step_id=step.id,
        retry=RetryRecord(
            attempts=retry.attempts, initial_ms=retry.initial_ms, coefficient=retry.coefficient, cap_ms=retry.cap_ms
        ),
        name=step.name,
        timeout_ms=step.timeout_ms,
        compensable=step.compensable,
        location=step.location,
    )


def _refused(request: str, refusal: Refusal) -> Settled:
    field, limit = refusal.details.get("field", ""), refusal.details.get("limit")
    return Settled(
        request=request,
        verdict="refused",
        code=refusal.code,
        field=str(field),
        limit=_whole(limit),
        message=str(refusal),
    )


def _whole(limit: Detail) -> int | None:
    return int(limit) if isinstance(limit, int | float) else None
