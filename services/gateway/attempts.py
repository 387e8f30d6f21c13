"""Attempts whose outcome is unknown: the list of them, and the commands by which an operator settles one."""

from __future__ import annotations

import msgspec

from keyspace.layout import ATTEMPT, RUN, UNRESOLVED
from keyspace.lifecycle import Phase
from keyspace.limits import FAILURE_CATEGORY_CHARS_MAX, FAILURE_DETAILS_BYTES_MAX, FAILURE_MESSAGE_BYTES_MAX
from keyspace.records.run import AttemptRecord, FailureRecord, ResolutionRecord, RunRecord
from keyspace.records.work import Direction
from keyspace.transitions.create_workspace import require_workspace
from keyspace.transitions.deadline import is_past_deadline
from keyspace.transitions.names import check_name, check_text
from keyspace.transitions.resolve_attempt import (
    Command,
    DeclareFailure,
    RetryAttempt,
    SupplySuccess,
    Target,
    check_command,
    resolve_attempt,
)
from keyspace.transitions.resolve_attempt import Resolution as Resolved
from keyspace.transitions.work import engine_now_ms
from keyspace.tx import Tx
from services.gateway.bodies import check_duplicates, check_portable, decode_body
from services.gateway.cursors import ListQuery
from services.gateway.endpoints import Answer, Call, missing
from services.gateway.operator_types import FailureDeclared, Resolution, ResolutionRequest, UnresolvedAttempt
from services.gateway.pages import PageRequest, read_rows
from services.gateway.problems import ApiProblem
from services.gateway.types import Page

__all__ = ["list_attempts", "resolve"]

ENVELOPE_BYTES_MAX = 65_536
"""Room for everything around a value: a failure's message with each character written as an escape, and its details."""
GENERATION_CHARS_MAX = 18

_decoder = msgspec.json.Decoder(ResolutionRequest)


async def list_attempts(call: Call) -> Answer:
    """List the attempts whose outcome is unknown, by run, direction and step."""
    wanted = call.query.get("unresolved", "true")
    if wanted not in ("true", "false"):
        raise ApiProblem("invalid_query", "unresolved takes true.", field="unresolved", value=wanted[:80])
    if wanted == "false":
        raise ApiProblem(
            "unsupported_filter", "Settled attempts are listed with their run's steps.", field="unresolved"
        )
    request = PageRequest.of(ListQuery("attempts", call.workspace), call.query)

    async def page(tx: Tx) -> Page[UnresolvedAttempt]:
        await require_workspace(tx, call.workspace)
        found = await read_rows(tx, UNRESOLVED.span(call.workspace), request, reverse=False)
        places = [UNRESOLVED.parse(key)[1:] for key, _ in found.rows]
        runs = await tx.load_all([RUN.at(call.workspace, place[0]) for place in places], snapshot=True)
        attempts = await tx.load_all([ATTEMPT.at(call.workspace, *place) for place in places], snapshot=True)
        items = [
            _unresolved(run, attempt, Direction(place[1]), engine_now_ms(tx, run))
            for place, run, attempt in zip(places, runs, attempts, strict=True)
            if run is not None and attempt is not None
        ]
        return Page(items=items, next_cursor=found.next_cursor)

    return Answer(await call.transact("list_attempts", page))


async def resolve(call: Call) -> Answer:
    """Carry out one operator's command; a repeat with the same key is answered from its record.

    What is malformed is refused before anything is read (RFD 2, "Refusals are decided in one order").
    """
    bytes_max = call.gateway.config.payload_bytes_max
    body = await call.body(bytes_max + ENVELOPE_BYTES_MAX)
    wanted = decode_body(body, _decoder)
    command = _command(wanted)
    key = call.idempotency_key()
    if key is None:
        raise ApiProblem(
            "invalid_idempotency_key", "A resolution needs an Idempotency-Key header.", field="idempotency_key"
        )
    direction = Direction[wanted.direction.upper()]
    target = Target(call.parts["run"], direction, call.parts["step"], _generation(call.parts["generation"]))
    check_command(target, command, key, bytes_max)
    raw = b""
    if isinstance(command, SupplySuccess):
        raw = command.value
        check_portable(raw, "value")
    check_duplicates(body, raw)

    async def carry_out(tx: Tx) -> Resolved:
        await require_workspace(tx, call.workspace)
        return await resolve_attempt(
            tx, call.workspace, target, command, key=key, by=call.identity.key_id, value_bytes_max=bytes_max
        )

    return Answer(_resolution(target, await call.transact("resolve_attempt", carry_out)))


def _generation(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= GENERATION_CHARS_MAX):
        raise missing("attempt", generation=text[:80])
    return int(text)


def _command(wanted: ResolutionRequest) -> Command:
    """Return the one command of a request.

    Raises:
        ApiProblem: `invalid_body`: none or several; `invalid_value`: the details are not portable.
        Refusal: `invalid_name`, `invalid_text`: a part of the failure is wrong or over its limit.
    """
    given = [name for name in ("success", "failure", "retry") if getattr(wanted, name) is not msgspec.UNSET]
    if len(given) != 1:
        raise ApiProblem(
            "invalid_body", "Give exactly one of success, failure and retry.", path="$", given=", ".join(given)
        )
    if wanted.success is not msgspec.UNSET:
        return SupplySuccess(bytes(wanted.success.value))
    if wanted.failure is not msgspec.UNSET:
        return DeclareFailure(_failure(wanted.failure))
    return RetryAttempt()


def _failure(declared: FailureDeclared) -> FailureRecord:
    check_name("failure.category", declared.category)
    check_text("failure.category", declared.category, bytes_max=FAILURE_CATEGORY_CHARS_MAX)
    check_text("failure.message", declared.message, bytes_max=FAILURE_MESSAGE_BYTES_MAX)
    if declared.details is msgspec.UNSET:
        return FailureRecord(category=declared.category, message=declared.message)
    details = bytes(declared.details)
    if len(details) > FAILURE_DETAILS_BYTES_MAX:
        raise ApiProblem(
            "invalid_text",
            "The details are too long.",
            field="failure.details",
            bytes=len(details),
            limit=FAILURE_DETAILS_BYTES_MAX,
        )
    check_portable(details, "failure.details")
    return FailureRecord(category=declared.category, message=declared.message, details=details.decode())


def _unresolved(run: RunRecord, attempt: AttemptRecord, direction: Direction, now_ms: int) -> UnresolvedAttempt:
    is_ending = run.stop is not None or is_past_deadline(run, now_ms)
    return UnresolvedAttempt(
        run=run.run_id,
        application=run.application,
        function=run.function,
        phase=run.phase.value,
        stop=None if run.stop is None else run.stop.reason.value,
        step=attempt.step_id,
        direction=direction.name.lower(),
        generation=attempt.generation,
        ordinal=attempt.ordinal,
        operation=attempt.operation_id,
        instance=attempt.instance,
        release=attempt.release,
        authorized_at_ms=attempt.authorized_at_ms,
        lost_at_ms=attempt.lost_at_ms,
        may_retry=direction is Direction.COMPENSATION or not is_ending,
    )


def _resolution(target: Target, resolved: Resolved) -> Resolution:
    record = resolved.record
    return Resolution(
        run=target.run_id,
        step=target.step_id,
        direction=target.direction.name.lower(),
        generation=target.generation,
        command=record.command,
        attempt_state=record.attempt_state.value,
        phase=record.run_phase.value,
        following_generation=record.following_generation,
        resolved_at_ms=record.at_ms,
        resolved_by=record.by,
        replayed=resolved.is_replay,
        consequence=_consequence(target.direction, record),
    )


_CONSEQUENCES: dict[tuple[Direction, str, Phase], str] = {
    (
        Direction.FORWARD,
        "supply_success",
        Phase.RUNNING,
    ): "The step is completed with this value; the function goes on.",
    (Direction.FORWARD, "supply_success", Phase.COMPENSATING): (
        "The step is completed with this value and is undone with the others, since the run was stopped."
    ),
    (Direction.FORWARD, "declare_failure", Phase.RUNNING): (
        "The attempt has failed; the step's retry policy decides whether another one follows or the function is told."
    ),
    (Direction.FORWARD, "declare_failure", Phase.COMPENSATING): (
        "The attempt has failed; the run was stopped, so its completed steps are undone now."
    ),
    (Direction.FORWARD, "declare_failure", Phase.TERMINAL): (
        "The attempt has failed; the run was stopped and no step had been completed, so it has ended."
    ),
    (Direction.COMPENSATION, "supply_success", Phase.COMPENSATING): "The step counts as undone; the unwind goes on.",
    (Direction.COMPENSATION, "supply_success", Phase.TERMINAL): "The step counts as undone; the unwind has ended.",
    (Direction.COMPENSATION, "declare_failure", Phase.COMPENSATING): (
        "The compensation's attempt has failed; its retry policy grants another one."
    ),
    (Direction.COMPENSATION, "declare_failure", Phase.TERMINAL): (
        "The compensation has failed for good; the unwind has ended without undoing what was left."
    ),
}


def _consequence(direction: Direction, record: ResolutionRecord) -> str:
    """Return in words what a command led to."""
    if record.following_generation is not None:
        return (
            f"Generation {record.following_generation} may run now, under the same operation id; "
            "if the effect had happened, it happens twice."
        )
    return _CONSEQUENCES.get(
        (direction, record.command, record.run_phase),
        f"The attempt is {record.attempt_state.value}; the run is {record.run_phase.value}.",
    )
