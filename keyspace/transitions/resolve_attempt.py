"""Resolve an Unknown attempt: an operator supplies its success, declares its failure, or authorizes a retry.

Refusals are decided in one order, so that a client can act on the difference: the request itself, then a recorded key, then
the exact unresolved attempt and generation, then the stop policy (RFD 2, "Every resolution request names the exact attempt").
An explicit retry is not a claim that the effect failed: it accepts that it may happen twice, under the same operation id.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from keyspace import history
from keyspace.errors import Refusal
from keyspace.history import HistoryKind
from keyspace.layout import ATTEMPT, RESOLUTION, RUN, STEP
from keyspace.lifecycle import ATTEMPT as ATTEMPT_TABLE
from keyspace.lifecycle import AttemptEvent, AttemptState, Phase, StopReason, advance
from keyspace.limits import PRIORITY_OPERATOR
from keyspace.records.run import AttemptRecord, FailureRecord, ResolutionRecord, RunRecord, StepRecord
from keyspace.records.work import Direction, WorkKind
from keyspace.transitions.accept_event import check_idempotency_key
from keyspace.transitions.accept_failure import settle_failure
from keyspace.transitions.accept_result import Settling, bounded_failure, failure_digest, value_digest
from keyspace.transitions.accept_success import next_work, settle_success, unrecordable
from keyspace.transitions.begin_unwind import enqueue_undo
from keyspace.transitions.deadline import is_past_deadline, meet_deadline
from keyspace.transitions.enqueue_attempt import enqueue_attempt
from keyspace.transitions.names import check_id, check_name
from keyspace.transitions.settle_compensation import settle_undo_failure, settle_undo_success
from keyspace.transitions.target import PHASES, attempt_entry, move_target
from keyspace.transitions.work import Work, engine_now_ms, release_settlement_token, save_run
from keyspace.tx import Tx, digest_of

__all__ = ["Command", "DeclareFailure", "Resolution", "RetryAttempt", "SupplySuccess", "Target", "resolve_attempt"]


class Target(NamedTuple):
    """The exact attempt a command is for."""

    run_id: str
    direction: Direction
    step_id: str
    generation: int


class SupplySuccess(NamedTuple):
    """The effect happened and this is its result, in the portable encoding."""

    value: bytes


class DeclareFailure(NamedTuple):
    """The attempt failed; its retry policy decides what follows."""

    failure: FailureRecord


class RetryAttempt(NamedTuple):
    """Do it again, although it may have happened."""


Command = SupplySuccess | DeclareFailure | RetryAttempt


class Resolution(NamedTuple):
    """The response: recorded under the key, and returned again for the same command."""

    record: ResolutionRecord
    is_replay: bool


def fingerprint(target: Target, command: Command) -> str:
    """Return the fingerprint of a command on its target."""
    body = msgspec.json.encode(command) if not isinstance(command, SupplySuccess) else command.value
    at = (target.run_id, target.direction.name, target.step_id, str(target.generation))
    return "1:" + digest_of("ryusen.resolve", type(command).__name__, *at, body)


def check_command(target: Target, command: Command, key: str, value_bytes_max: int) -> None:
    """Refuse a malformed command.

    Raises:
        Refusal: `invalid_idempotency_key`, `not_found`, `invalid_name`, `value_too_large`.
    """
    check_idempotency_key(key)
    check_id("run", target.run_id)
    check_name("step", target.step_id)
    if isinstance(command, SupplySuccess) and len(command.value) > value_bytes_max:
        raise Refusal(
            "value_too_large",
            "The supplied result is too large.",
            field="value",
            bytes=len(command.value),
            limit=value_bytes_max,
        )


async def resolve_attempt(
    tx: Tx, workspace: str, target: Target, command: Command, *, key: str, by: str, value_bytes_max: int
) -> Resolution:
    """Settle an Unknown attempt by an operator's command, in one transaction with its successor work.

    Args:
        tx: the open transaction.
        workspace: whose run it is.
        target: the exact attempt and generation.
        command: exactly one.
        key: the operator's idempotency key; lives as long as the run.
        by: the acting key, for history.
        value_bytes_max: the largest result a record takes.

    Reads: run, step, attempt, the key's record.  Writes: that record, what a worker's outcome would write, history. A supplied success or a
        declared failure at the run's deadline or after it: besides what a stop writes.
    Conflicts: only with this run's other transitions; exactly one of a late result and a command commits.
    Budget: the value plus 24 kB.  Idempotent: by the key.

    Raises:
        Refusal: in this order: malformed; `idempotency_conflict`; `stale_attempt`; `retry_forbidden`, `deadline_elapsed`.
    """
    check_command(target, command, key, value_bytes_max)
    marked = fingerprint(target, command)
    at = tuple(target)
    recorded_at = RESOLUTION.at(workspace, target.run_id, digest_of("ryusen.key", "attempt.resolve", key))
    run, step, attempt, recorded = await tx.load(
        RUN.at(workspace, target.run_id),
        STEP.at(workspace, target.run_id, target.step_id),
        ATTEMPT.at(workspace, *at),
        recorded_at,
    )
    if recorded is not None:
        if recorded.fingerprint != marked:
            raise Refusal(
                "idempotency_conflict", "This key was used for a different command.", command=recorded.command
            )
        return Resolution(recorded, is_replay=True)
    settling = unresolved(run, step, attempt, target)
    check_policy(settling.run, target, command, engine_now_ms(tx, settling.run))
    settling = settling._replace(run=await meet_deadline(tx, workspace, settling.run, target.direction))
    after, following = await _carry_out(tx, workspace, target, command, settling, by, value_bytes_max)
    settled = (
        AttemptState.RETRY_AUTHORIZED
        if isinstance(command, RetryAttempt)
        else (AttemptState.SUCCEEDED if isinstance(command, SupplySuccess) else AttemptState.FAILED)
    )
    record = ResolutionRecord(
        fingerprint=marked,
        command=_WORDS[type(command)],
        at_ms=engine_now_ms(tx, settling.run),
        by=by,
        run_phase=after,
        attempt_state=settled,
        following_generation=following,
    )
    tx.put(recorded_at, record)
    return Resolution(record, is_replay=False)


_WORDS: dict[type, str] = {
    SupplySuccess: "supply_success",
    DeclareFailure: "declare_failure",
    RetryAttempt: "retry",
}


def unresolved(
    run: RunRecord | None, step: StepRecord | None, attempt: AttemptRecord | None, target: Target
) -> Settling:
    """Return the records of the exact unresolved attempt.

    Raises:
        Refusal: `stale_attempt`: it does not exist, has settled, or another generation stands.
    """
    if (
        run is None
        or step is None
        or attempt is None
        or attempt.state is not AttemptState.UNKNOWN
        or step.generation_of(target.direction) != target.generation
        or run.phase not in PHASES[target.direction]
    ):
        raise Refusal(
            "stale_attempt",
            "This attempt is not unresolved in this generation.",
            step=target.step_id,
            generation=target.generation,
        )
    return Settling(run, step, attempt, None)


def check_policy(run: RunRecord, target: Target, command: Command, now_ms: int) -> None:
    """Refuse a forward retry of a run that was told to stop, or whose deadline has passed (FILLED-IN 7).

    A committed stop answers first, so that no later clock changes the answer; before one, the deadline answers what the
    stop would, so that it never matters whether the timer has been dispatched.

    Raises:
        Refusal: `retry_forbidden` (cancelled), `deadline_elapsed` (timed out).
    """
    if not isinstance(command, RetryAttempt) or target.direction is Direction.COMPENSATION:
        return
    if is_past_deadline(run, now_ms) or (run.stop is not None and run.stop.reason is StopReason.TIMED_OUT):
        raise Refusal("deadline_elapsed", "The run's deadline has passed: no forward attempt starts again.")
    if run.stop is not None:
        raise Refusal("retry_forbidden", "The run was cancelled: no forward attempt starts again.")


async def _carry_out(
    tx: Tx,
    workspace: str,
    target: Target,
    command: Command,
    settling: Settling,
    by: str,
    value_bytes_max: int,
) -> tuple[Phase, int | None]:
    """Write the command's consequences; return the run's phase after them and the generation that was authorized."""
    run, attempt = settling.run, settling.attempt
    now_ms = engine_now_ms(tx, run)
    entry = attempt_entry(
        target.direction,
        step=target.step_id,
        attempt=attempt.ordinal,
        generation=target.generation,
        command=_WORDS[type(command)],
        by=by,
    )
    told = history.append(tx, workspace, run, now_ms, (HistoryKind.ATTEMPT_RESOLVED, entry))
    settling = settling._replace(run=told)
    if isinstance(command, RetryAttempt):
        return _authorize_retry(tx, workspace, target, settling, run, now_ms)
    kind = WorkKind.CALLBACK if target.direction is Direction.FORWARD else WorkKind.COMPENSATION
    work = Work(kind, target.run_id, target.step_id, attempt.item_id, attempt.token or "", target.generation)
    if isinstance(command, SupplySuccess):
        phase = await _supply(tx, workspace, work, settling, run, command.value, value_bytes_max)
    else:
        phase = await _declare(tx, workspace, work, settling, command.failure)
    return phase, None


async def _supply(
    tx: Tx, workspace: str, work: Work, settling: Settling, before: RunRecord, value: bytes, value_bytes_max: int
) -> Phase:
    digest = value_digest(value)
    if work.kind is WorkKind.COMPENSATION:
        return (await settle_undo_success(tx, workspace, work, settling, digest)).phase
    failure = unrecordable(settling.run, settling.step.step_id, len(value), value_bytes_max)
    if failure is not None:
        raise Refusal("replay_budget", failure.message, field="value")
    after = await next_work(tx, workspace, work, settle_success(tx, workspace, work, settling, value, digest))
    save_run(tx, workspace, before, after)
    return after.phase


async def _declare(tx: Tx, workspace: str, work: Work, settling: Settling, failure: FailureRecord) -> Phase:
    kept, digest = bounded_failure(failure), failure_digest(failure)
    if work.kind is WorkKind.COMPENSATION:
        after = await settle_undo_failure(
            tx, workspace, work, settling, kept, digest, retry_after_ms=None, is_retryable=True
        )
    else:
        after = await settle_failure(
            tx, workspace, work, settling, kept, digest, retry_after_ms=None, is_retryable=True
        )
    return after.phase


def _authorize_retry(
    tx: Tx, workspace: str, target: Target, settling: Settling, before: RunRecord, now_ms: int
) -> tuple[Phase, int]:
    """Settle generation G as RetryAuthorized and start G+1: the next ordinal, the same operation, not counted as a failure."""
    run, step, attempt, _ = settling
    tx.put(
        ATTEMPT.at(workspace, *target),
        msgspec.structs.replace(
            attempt, state=advance(ATTEMPT_TABLE, attempt.state, AttemptEvent.RETRY_AUTHORIZED), settled_at_ms=now_ms
        ),
    )
    after = release_settlement_token(tx, workspace, run, attempt, target.direction)
    moved = move_target(step, target.direction, "RETRY_AUTHORIZED")
    if target.direction is Direction.FORWARD:
        moved = msgspec.structs.replace(moved, generation=step.generation + 1, ordinal=step.ordinal + 1)
        tx.put(STEP.at(workspace, run.run_id, step.step_id), moved)
        item = enqueue_attempt(tx, workspace, run, moved, now_ms, now_ms, priority=PRIORITY_OPERATOR)
    else:
        moved = msgspec.structs.replace(moved, undo_generation=step.undo_generation + 1)
        item = enqueue_undo(
            tx, workspace, run, moved, ordinal=attempt.ordinal + 1, now_ms=now_ms, vesting_ms=now_ms,
            priority=PRIORITY_OPERATOR,
        )  # fmt: skip
    entry = attempt_entry(
        target.direction,
        step=step.step_id,
        attempt=item.ordinal,
        generation=item.generation,
        eligible_at_ms=now_ms,
    )
    after = history.append(tx, workspace, after, now_ms, (HistoryKind.RETRY_AUTHORIZED, entry))
    after = msgspec.structs.replace(after, item_id=item.item_id, step_id=step.step_id, updated_at_ms=now_ms)
    save_run(tx, workspace, before, after)
    return after.phase, item.generation
