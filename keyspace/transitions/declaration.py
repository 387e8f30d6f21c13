"""What a pass declares: a callback step, or a step of one of the kinds that the server settles itself.

A server-owned step has a stable id like any other, and the terms of its kind instead of attempts. Its outcome is the
server's own, so what belongs to attempts is refused rather than ignored: a compensator, a retry policy of more than one
attempt, an attempt timeout.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from keyspace.errors import Refusal
from keyspace.lifecycle import StepKind, StepState
from keyspace.limits import (
    ATTEMPT_TIMEOUT_MS_MAX,
    FAILURE_DETAILS_BYTES_MAX,
    FAILURE_MESSAGE_BYTES_MAX,
    INVOKE_TIMEOUT_MS_MAX,
    LOCATION_CHARS_MAX,
    PAYLOAD_BYTES_MAX,
    REPLAY_BYTES_MAX,
    REPLAY_STEP_BYTES,
    STEP_NAME_CHARS_MAX,
    STEPS_MAX,
    TIMER_MS_MAX,
    TIMESTAMP_MS_MAX,
)
from keyspace.records.run import RetryRecord, RunRecord, StepRecord
from keyspace.retry import check_retry
from keyspace.transitions.accept_event import check_event_name, check_payload
from keyspace.transitions.correlation import check_correlation
from keyspace.transitions.names import check_name
from keyspace.transitions.pass_receipt import answer_digest
from keyspace.tx import ID_BYTES, digest_of

__all__ = [
    "FAILURE_RESERVE_BYTES",
    "TIMER_OUTCOME",
    "WAIT_OUTCOME_BYTES_MAX",
    "ChildTerms",
    "Declaration",
    "EmissionTerms",
    "ServerTerms",
    "TimerTerms",
    "WaitTerms",
    "check_declaration",
    "check_room",
    "declaration_digest",
    "terms_digest",
]

FAILURE_RESERVE_BYTES = FAILURE_MESSAGE_BYTES_MAX + FAILURE_DETAILS_BYTES_MAX + 512
"""Kept free in the replay budget for each declared step, so that its failure can always be recorded."""
TIMER_OUTCOME = b"null"
"""What a fired timer's step records, in the portable encoding."""
RECEIPT_BYTES = 2 * ID_BYTES + 2
"""An event's id in the portable encoding: what an emission's step records."""
WAIT_OUTCOME_BYTES_MAX = 256
"""Kept free for what the server itself may have to record of a wait: that its time is over, or that no record takes the match."""


class TimerTerms(msgspec.Struct, frozen=True, kw_only=True, tag="timer"):
    """A durable timer: a delay after acceptance, or an absolute instant (Unix epoch); exactly one of the two."""

    delay_ms: int | None = None
    until_ms: int | None = None


class ChildTerms(msgspec.Struct, frozen=True, kw_only=True, tag="child"):
    """A child invocation: a function of the same application, its exact input, and how long it may take; 0 is due at once."""

    function: str
    input: bytes
    timeout_ms: int | None = None


class EmissionTerms(msgspec.Struct, frozen=True, kw_only=True, tag="emission"):
    """An event to emit: its name, its exact payload, and the pairs that waits may match; none is inherited from the run."""

    event_name: str
    payload: bytes
    correlation: dict[str, str] = {}


class WaitTerms(msgspec.Struct, frozen=True, kw_only=True, tag="wait"):
    """A durable wait for an event of exactly this name that carries every pair; 0 is due at once, so no event settles it."""

    event: str
    match: dict[str, str]
    timeout_ms: int


ServerTerms = TimerTerms | ChildTerms | EmissionTerms | WaitTerms
"""What a server-owned step is declared with, by kind."""

_KINDS: dict[type, StepKind] = {
    TimerTerms: StepKind.TIMER,
    ChildTerms: StepKind.CHILD,
    EmissionTerms: StepKind.EMISSION,
    WaitTerms: StepKind.WAIT,
}
_OUTCOME_BYTES: dict[StepKind, int] = {
    StepKind.CALLBACK: FAILURE_RESERVE_BYTES,
    StepKind.TIMER: len(TIMER_OUTCOME),
    StepKind.CHILD: FAILURE_RESERVE_BYTES,
    StepKind.EMISSION: RECEIPT_BYTES,
    StepKind.WAIT: WAIT_OUTCOME_BYTES_MAX,
}
"""What the replay budget must still carry when a step of a kind is declared, beside its id."""


class Declaration(NamedTuple):
    """A step as the pass declares it; `timeout_ms` is the attempt's, `terms` None is a callback.

    `repeatable` says that the callback may be delivered again under its operation id when a delivery of it was lost, and
    `undo_repeatable` says it of the compensator.
    """

    step_id: str
    retry: RetryRecord
    name: str = ""
    timeout_ms: int | None = None
    compensable: bool = False
    location: str = ""
    undo_retry: RetryRecord | None = None
    undo_timeout_ms: int | None = None
    terms: ServerTerms | None = None
    repeatable: bool = False
    undo_repeatable: bool = False

    @property
    def kind(self) -> StepKind:
        """What kind of step it declares."""
        return StepKind.CALLBACK if self.terms is None else _KINDS[type(self.terms)]


def declaration_digest(declaration: Declaration) -> str:
    """Return the digest of the answer that a pass met `declaration`."""
    return answer_digest("declare", msgspec.json.encode(declaration, order="deterministic"))


def terms_digest(declaration: Declaration) -> str:
    """Return the digest by which a repeated declaration of a server-owned step is told from another one.

    A timer's instant is not part of it, nor is an invocation's or a wait's timeout: the recorded anchor stands, whatever later code says
    (RFD 2, "A declaration may be a durable timer").
    """
    if isinstance(declaration.terms, TimerTerms):
        return digest_of("ryusen.terms", declaration.kind)
    if isinstance(declaration.terms, ChildTerms):
        return digest_of("ryusen.terms", declaration.kind, declaration.terms.function, declaration.terms.input)
    if isinstance(declaration.terms, WaitTerms):
        pairs = [text for pair in sorted(declaration.terms.match.items()) for text in pair]
        return digest_of("ryusen.terms", declaration.kind, declaration.terms.event, *pairs)
    return digest_of("ryusen.terms", declaration.kind, msgspec.json.encode(declaration.terms, order="deterministic"))


def check_declaration(declaration: Declaration, payload_bytes_max: int = PAYLOAD_BYTES_MAX) -> None:
    """Refuse a declaration that is not sound in itself; `payload_bytes_max` is the largest payload that an event takes.

    Raises:
        Refusal: `invalid_name`, `invalid_retry`, `invalid_timeout`, `not_compensable`, `not_repeatable`, `invalid_timer`, or of an emission as a
            submission's; naming field, value and range.
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
    if declaration.terms is not None:
        _check_server_owned(declaration)
        if isinstance(declaration.terms, TimerTerms):
            _check_timer(declaration.terms)
        elif isinstance(declaration.terms, ChildTerms):
            _check_child(declaration.terms)
        elif isinstance(declaration.terms, WaitTerms):
            _check_wait(declaration.terms)
        else:
            _check_emission(declaration.terms, payload_bytes_max)


def _check_emission(terms: EmissionTerms, payload_bytes_max: int) -> None:
    check_event_name("event name", terms.event_name)
    check_payload("payload", terms.payload, payload_bytes_max)
    check_correlation("correlation", terms.correlation)


def _check_server_owned(declaration: Declaration) -> None:
    kind = declaration.kind.value
    has_undo_policy = declaration.undo_retry is not None or declaration.undo_timeout_ms is not None
    if declaration.compensable or has_undo_policy or declaration.undo_repeatable:
        raise Refusal(
            "not_compensable", "A step that the server settles has no compensator.", field="compensable", kind=kind
        )
    if declaration.retry.attempts != 1:
        raise Refusal(
            "invalid_retry", "A step that the server settles has no attempts to retry.", field="retry.attempts",
            value=declaration.retry.attempts, kind=kind, minimum=1, limit=1,
        )  # fmt: skip
    if declaration.repeatable or declaration.undo_repeatable:
        raise Refusal(
            "not_repeatable", "A step that the server settles has no callback to repeat.", field="repeatable", kind=kind
        )
    if declaration.timeout_ms is not None:
        raise Refusal(
            "invalid_timeout", "A step that the server settles has no attempt timeout.", field="timeout_ms",
            value=declaration.timeout_ms, kind=kind,
        )  # fmt: skip


def _check_timer(terms: TimerTerms) -> None:
    if (terms.delay_ms is None) == (terms.until_ms is None):
        raise Refusal("invalid_timer", "A timer has either a delay or an instant.", field="timer")
    for field, value, limit in (
        ("delay_ms", terms.delay_ms, TIMER_MS_MAX),
        ("until_ms", terms.until_ms, TIMESTAMP_MS_MAX),
    ):
        if value is not None and not 0 <= value <= limit:
            raise Refusal(
                "invalid_timer", "A timer lies outside its range.", field=field, value=value, minimum=0, limit=limit
            )


def _check_child(terms: ChildTerms) -> None:
    check_name("function", terms.function)
    if terms.timeout_ms is not None and not 0 <= terms.timeout_ms <= INVOKE_TIMEOUT_MS_MAX:
        raise Refusal(
            "invalid_timeout", "An invocation's timeout lies outside its range.", field="timeout_ms",
            value=terms.timeout_ms, minimum=0, limit=INVOKE_TIMEOUT_MS_MAX,
        )  # fmt: skip


def _check_wait(terms: WaitTerms) -> None:
    check_name("event", terms.event)
    check_correlation("match", terms.match)
    if not 0 <= terms.timeout_ms <= TIMER_MS_MAX:
        raise Refusal(
            "invalid_timeout", "A wait's timeout lies outside its range.", field="timeout_ms",
            value=terms.timeout_ms, minimum=0, limit=TIMER_MS_MAX,
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
    needed_bytes = len(declaration.step_id.encode()) + REPLAY_STEP_BYTES + _OUTCOME_BYTES[declaration.kind]
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
