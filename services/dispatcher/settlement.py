"""What a worker says of its work becomes one transition, and the transition's verdict its answer."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec
from ryusen.errors import InvalidValue
from ryusen.protocol.frames import (
    Answer,
    CallSite,
    Complete,
    Declare,
    DefinitionBlocked,
    Fail,
    Failed,
    Failure,
    NotFound,
    Proceed,
    Result,
    Resume,
    Settled,
    Succeeded,
)
from ryusen.protocol.values import check_value

from keyspace.errors import Detail, Refusal
from keyspace.keyspace import Keyspace
from keyspace.records.blocker import CallSite as SiteRecord
from keyspace.records.run import FailureRecord
from keyspace.records.work import ItemRecord, WorkKind
from keyspace.transitions.accept_failure import accept_failure
from keyspace.transitions.accept_success import accept_success
from keyspace.transitions.block_run import DefinitionConflict
from keyspace.transitions.continue_run import (
    Completion,
    Ending,
    FunctionFailure,
    answer_pass,
    continue_run,
    following_pass,
)
from keyspace.transitions.declaration import Declaration
from keyspace.transitions.emit_event import receipt_behind
from keyspace.transitions.hold import Hold
from keyspace.transitions.target_not_found import target_not_found
from keyspace.transitions.work import Replayed, Stale, Verdict, Work
from services.dispatcher.declarations import check_terms, declaration_of
from services.dispatcher.refs import ref_of, work_of

__all__ = ["Outcome", "SettlementFrame", "settle"]

SettlementFrame = Result | Answer | NotFound


class Outcome(NamedTuple):
    """How a settlement ended.

    Attributes:
        frame: what its worker is told.
        following: the work that is now this session's: the step that was declared, authorized, or the pass behind one that is
            settled already.
        is_open: whether the pass goes on under its lease: its answer was refused, or its success went alone.
    """

    frame: Settled | Proceed | Resume
    following: ItemRecord | None = None
    is_open: bool = False


async def settle(
    keyspace: Keyspace,
    workspace: str,
    frame: SettlementFrame,
    *,
    value_bytes_max: int,
    joint: Answer | None = None,
    hold: Hold | None = None,
) -> Outcome:
    """Settle what `frame` says and return the answer to its worker.

    Everything the transition needs is in the frame's reference and the store, so a result of a former session, or of one
    that another dispatcher held, is accepted like any other.

    Args:
        keyspace: where.
        workspace: of the session's credential.
        frame: what the worker said.
        value_bytes_max: the largest value a record takes, in bytes.
        joint: the answer of the pass that follows the success `frame`, accepted in the same transaction.
        hold: the session that goes on with the run by itself; None leaves its next work to the queue.

    Raises:
        StoreError: the store kept it from committing; nothing was answered.
        KeyspaceError: a defect, or damage to what is stored.
    """
    work = work_of(frame.ref)
    if work is None or (work.step_id is None and not isinstance(frame, Answer)):
        # Like something that does not exist: an answer must not tell a stranger more.
        return Outcome(Settled(request=frame.request, verdict="stale", code="run_not_found"))
    fault = _fault(frame)
    if fault is not None:
        return Outcome(fault, is_open=isinstance(frame, Answer))
    try:
        if isinstance(frame, NotFound):
            verdict = await keyspace.transact("target_not_found", lambda tx: target_not_found(tx, workspace, work))
            return Outcome(_settled(frame.request, verdict))
        if isinstance(frame, Answer):
            return await _settle_answer(keyspace, workspace, work, frame, hold, value_bytes_max)
        if frame.following and isinstance(frame.outcome, Succeeded):
            return await _settle_continued(keyspace, workspace, work, frame, joint, hold, value_bytes_max)
        return await _settle_result(keyspace, workspace, work, frame, value_bytes_max)
    except Refusal as refusal:
        return Outcome(_refused(frame.request, refusal), is_open=True)


def _fault(frame: SettlementFrame, *, joint: str = "") -> Settled | None:
    """Return the refusal of a frame that no transition can take; `joint` is the result that is settled besides."""
    if isinstance(frame, Answer) and isinstance(frame.ending, Declare) and len(frame.ending.steps) != 1:
        message = "A pass declares one step at a time."
        return Settled(
            request=frame.request,
            verdict="refused",
            code="step_count",
            field="steps",
            limit=1,
            message=message,
            joint=joint,
        )
    try:
        _check_values(frame)
    except InvalidValue as fault:
        return Settled(request=frame.request, verdict="refused", code="invalid_value", message=str(fault), joint=joint)
    return None


async def _settle_result(
    keyspace: Keyspace, workspace: str, work: Work, frame: Result, value_bytes_max: int
) -> Outcome:
    outcome = frame.outcome
    if isinstance(outcome, Succeeded):
        value = bytes(outcome.value)
        verdict = await keyspace.transact(
            "accept_success", lambda tx: accept_success(tx, workspace, work, value, value_bytes_max=value_bytes_max)
        )
        return Outcome(_settled(frame.request, verdict))
    failure = failure_record(outcome.failure)
    verdict = await keyspace.transact(
        "accept_failure",
        lambda tx: accept_failure(
            tx, workspace, work, failure, is_retryable=outcome.retryable, retry_after_ms=outcome.retry_after_ms
        ),
    )
    return Outcome(_settled(frame.request, verdict))


async def _settle_answer(
    keyspace: Keyspace, workspace: str, work: Work, frame: Answer, hold: Hold | None, value_bytes_max: int
) -> Outcome:
    its_pass = work if work.step_id is None else following_pass(work)
    ending = ending_of(frame)
    verdict, following = await keyspace.transact(
        transition_name(ending),
        lambda tx: answer_pass(tx, workspace, its_pass, ending, hold=hold, value_bytes_max=value_bytes_max),
    )
    return _answered(workspace, frame, verdict, following, joint="")


async def _settle_continued(
    keyspace: Keyspace,
    workspace: str,
    work: Work,
    frame: Result,
    joint: Answer | None,
    hold: Hold | None,
    value_bytes_max: int,
) -> Outcome:
    assert isinstance(frame.outcome, Succeeded)
    value = bytes(frame.outcome.value)
    # An answer that no transition can take costs its success nothing: that is accepted, and the pass goes on.
    fault = None if joint is None else _fault(joint, joint=frame.request)
    ending = None if joint is None or fault is not None else ending_of(joint)
    continued = await keyspace.transact(
        "continue_run",
        lambda tx: continue_run(tx, workspace, work, value, ending, hold=hold, value_bytes_max=value_bytes_max),
    )
    if joint is None or isinstance(continued.result, Stale):
        return Outcome(_settled(frame.request, continued.result), is_open=continued.is_open)
    if fault is not None:
        return Outcome(fault, is_open=continued.is_open)
    if continued.refusal is not None:
        return Outcome(_refused(joint.request, continued.refusal, joint=frame.request), is_open=continued.is_open)
    return _answered(workspace, joint, continued.answer, continued.following, joint=frame.request)


def _answered(workspace: str, frame: Answer, verdict: Verdict, following: ItemRecord | None, *, joint: str) -> Outcome:
    if following is None:
        return Outcome(_settled(frame.request, verdict, joint=joint))
    assert isinstance(frame.ending, Declare) and following.token is not None
    if following.kind is WorkKind.DISCOVERY:
        resume = Resume(
            request=frame.request,
            following=following.token,
            ref=ref_of(following),
            value=msgspec.Raw(receipt_behind(workspace, following, frame.ending.steps[0].id)),
            joint=joint,
        )
        return Outcome(resume, following)
    proceed = Proceed(
        request=frame.request,
        following=following.token,
        ref=ref_of(following),
        timeout_ms=frame.ending.steps[0].timeout_ms,
        joint=joint,
    )
    return Outcome(proceed, following)


def _settled(request: str, verdict: Verdict, *, joint: str = "") -> Settled:
    word: Literal["accepted", "replayed", "stale"] = (
        "stale" if isinstance(verdict, Stale) else "replayed" if isinstance(verdict, Replayed) else "accepted"
    )
    return Settled(request=request, verdict=word, code=verdict.code, joint=joint)


def ending_of(frame: Answer) -> Ending:
    """Return how a pass ended, as the transition takes it."""
    ending = frame.ending
    if isinstance(ending, Declare):
        return declaration_of(ending.steps[0])
    if isinstance(ending, Complete):
        return Completion(bytes(ending.value), frozenset(frame.failed_met))
    if isinstance(ending, DefinitionBlocked):
        return DefinitionConflict(ending.step, _site_of(ending.first), _site_of(ending.duplicate))
    return FunctionFailure(failure_record(ending.failure), frozenset(frame.failed_met))


def transition_name(ending: Ending) -> str:
    """Return the name under which an answer's transition is counted."""
    if isinstance(ending, Declaration):
        return "accept_declaration"
    if isinstance(ending, DefinitionConflict):
        return "block_run"
    return "complete_run" if isinstance(ending, Completion) else "fail_run"


def _check_values(frame: SettlementFrame) -> None:
    """Refuse what no later pass could decode, before it is recorded for good.

    Raises:
        InvalidValue: the first such value, with the path inside it.
    """
    said = frame.outcome if isinstance(frame, Result) else frame.ending if isinstance(frame, Answer) else None
    if isinstance(said, Succeeded | Complete):
        check_value(bytes(said.value))
    elif isinstance(said, Declare):
        check_terms(said.steps[0])
    elif isinstance(said, Failed | Fail) and said.failure.details is not None:
        check_value(bytes(said.failure.details))


def _site_of(site: CallSite) -> SiteRecord:
    return SiteRecord(location=site.location, name=site.name)


def failure_record(failure: Failure) -> FailureRecord:
    """Return a worker's failure as it is recorded; its details stay the JSON text they are."""
    details = None if failure.details is None else bytes(failure.details).decode()
    return FailureRecord(category=failure.category, message=failure.message, details=details)


def _refused(request: str, refusal: Refusal, *, joint: str = "") -> Settled:
    field, limit = refusal.details.get("field", ""), refusal.details.get("limit")
    return Settled(
        request=request,
        verdict="refused",
        code=refusal.code,
        field=str(field),
        limit=_whole(limit),
        message=str(refusal),
        joint=joint,
    )


def _whole(limit: Detail) -> int | None:
    return int(limit) if isinstance(limit, int | float) else None
