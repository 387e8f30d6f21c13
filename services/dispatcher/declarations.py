"""A step as a worker's pass declares it becomes a declaration as the transition takes it."""

from __future__ import annotations

import msgspec
from ryusen.errors import InvalidValue
from ryusen.protocol.frames import Child, Emission, RetryPolicy, StepDeclaration, Timer, Wait
from ryusen.protocol.values import check_value, decode_value

from keyspace.records.run import RetryRecord
from keyspace.transitions.declaration import ChildTerms, Declaration, EmissionTerms, ServerTerms, TimerTerms, WaitTerms

__all__ = ["check_terms", "declaration_of"]

_NOBODY = Child(function="", input=msgspec.Raw(b"null"))
_NO_WAIT = Wait(event="", timeout_ms=-1)
_NOTHING = Emission(event="", payload=msgspec.Raw(b'{"$bytes":""}'))


def check_terms(step: StepDeclaration) -> None:
    """Refuse terms whose values nobody could read later.

    An emission's payload travels as one bytes value, and those bytes become the event's payload as they are; whoever is
    started by the event, or waits for it, reads them as a portable value. A child's input is read by its first pass.

    Raises:
        InvalidValue: the payload is not bytes, or they are no portable value; a child's input is none.
    """
    if step.kind == "child" and step.child is not None:
        check_value(bytes(step.child.input))
    if step.kind == "emission" and step.emission is not None:
        check_value(_payload_of(step.emission))


def declaration_of(step: StepDeclaration) -> Declaration:
    """Return a step as the transition takes it; `check_terms` has let it pass."""
    return Declaration(
        step_id=step.id,
        retry=_policy(step.retry),
        name=step.name,
        timeout_ms=step.timeout_ms,
        compensable=step.compensable,
        location=step.location,
        undo_retry=None if step.undo_retry is None else _policy(step.undo_retry),
        undo_timeout_ms=step.undo_timeout_ms,
        repeatable=step.repeatable,
        undo_repeatable=step.undo_repeatable,
        terms=_terms(step),
    )


def _terms(step: StepDeclaration) -> ServerTerms | None:
    """Return what a server-owned step is declared with; a step that leaves its terms out gets empty ones, to be refused."""
    if step.kind == "timer":
        timer = step.timer or Timer()
        return TimerTerms(delay_ms=timer.delay_ms, until_ms=timer.until_ms)
    if step.kind == "emission":
        emission = step.emission or _NOTHING
        return EmissionTerms(
            event_name=emission.event, payload=_payload_of(emission), correlation=dict(emission.correlation)
        )
    if step.kind == "wait":
        wait = step.wait or _NO_WAIT
        return WaitTerms(event=wait.event, match=dict(wait.match), timeout_ms=wait.timeout_ms)
    if step.kind == "child":
        child = step.child or _NOBODY
        return ChildTerms(function=child.function, input=bytes(child.input), timeout_ms=child.timeout_ms)
    return None


def _payload_of(emission: Emission) -> bytes:
    payload = decode_value(bytes(emission.payload))
    if not isinstance(payload, bytes):
        raise InvalidValue(f"an emission's payload is a bytes value, not a {type(payload).__name__}", "$")
    return payload


def _policy(retry: RetryPolicy) -> RetryRecord:
    return RetryRecord(
        attempts=retry.attempts, initial_ms=retry.initial_ms, coefficient=retry.coefficient, cap_ms=retry.cap_ms
    )
