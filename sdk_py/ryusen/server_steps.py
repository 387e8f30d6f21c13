"""What a step that the service settles itself is declared with, checked as far as the SDK can tell."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from ryusen.durations import Duration, parse_duration_ms, shown
from ryusen.errors import DeclarationRefused, InvalidValue
from ryusen.protocol.frames import Emission, RetryPolicy, StepDeclaration, Timer, Wait
from ryusen.protocol.limits import TIMER_MS_MAX, TIMESTAMP_MS_MAX, VALUE_BYTES_MAX
from ryusen.protocol.names import name_fault
from ryusen.protocol.values import encode_value
from ryusen.typed import UNTYPED, encode_typed, is_model

__all__ = ["emission_of", "require_names", "server_step", "timer_of", "timer_until", "wait_of"]

_ONCE = RetryPolicy(attempts=1, initial_ms=0, coefficient=1.0, cap_ms=0)
"""Such a step has no attempts to try again."""
_EPOCH = datetime.fromtimestamp(0, UTC)


def require_names(step_id: object, name: object) -> None:
    """Refuse a step whose id or name is none.

    Raises:
        DeclarationRefused: `invalid_argument`.
    """
    for field, value in (("id", step_id), ("name", name)):
        fault = None if field == "name" and value is None else name_fault(value)
        if fault is not None:
            raise DeclarationRefused("invalid_argument", field, message=f"the step's {field} {fault}")


def server_step(step_id: str, name: str | None, location: str, **terms: Any) -> StepDeclaration:
    """Return the declaration of a step that the service settles, with the kind and the terms given.

    Raises:
        DeclarationRefused: `invalid_argument`.
    """
    require_names(step_id, name)
    return StepDeclaration(id=step_id, name=name or "", retry=_ONCE, location=location, **terms)


def timer_of(duration: Duration) -> Timer:
    """Return the timer of a delay.

    Raises:
        DeclarationRefused: no duration, or not 0 to ten years.
    """
    return Timer(delay_ms=parse_duration_ms(duration, "duration", least_ms=0, most_ms=TIMER_MS_MAX))


def timer_until(when: object) -> Timer:
    """Return the timer of an instant, the first whole millisecond that is not before it.

    Raises:
        DeclarationRefused: no instant, one without a zone, or outside the years 1970 to 9999.
    """
    if isinstance(when, datetime):
        if when.utcoffset() is None:
            message = "a datetime without a zone; nobody could say which instant it means"
            raise DeclarationRefused("invalid_argument", "when", message=message)
        until_ms = -((_EPOCH - when) // timedelta(milliseconds=1))
    elif isinstance(when, int) and not isinstance(when, bool):
        until_ms = when
    else:
        message = f"{shown(when)} is no instant; pass a datetime with a zone, or Unix epoch milliseconds"
        raise DeclarationRefused("invalid_argument", "when", message=message)
    if not 0 <= until_ms <= TIMESTAMP_MS_MAX:
        limit = 0 if until_ms < 0 else TIMESTAMP_MS_MAX
        raise DeclarationRefused("invalid_argument", "when", limit, f"{shown(when)} is outside the years 1970 to 9999")
    return Timer(until_ms=until_ms)


def emission_of(event: object, payload: object, correlation: object) -> Emission:
    """Return an event to emit, its payload encoded once: these bytes are what is recorded.

    Raises:
        DeclarationRefused: the event's name is none, the payload has no exact form or is too large, or the correlation is no
            mapping of text to text.
    """
    fault = name_fault(event)
    if fault is not None:
        raise DeclarationRefused("invalid_argument", "event", message=f"the event's name {fault}")
    try:
        data = encode_typed(payload, type(payload) if is_model(type(payload)) else UNTYPED)
    except InvalidValue as exc:
        raise DeclarationRefused("invalid_argument", "payload", message=f"the event's payload: {exc}") from exc
    if len(data) > VALUE_BYTES_MAX:
        message = f"the event's payload has {len(data)} bytes"
        raise DeclarationRefused("payload_too_large", "payload", VALUE_BYTES_MAX, message)
    return Emission(
        event=str(event), payload=msgspec.Raw(encode_value(data)), correlation=_pairs("correlation", correlation)
    )


def wait_of(event: object, match: object, timeout: Duration) -> Wait:
    """Return a wait for an event.

    Raises:
        DeclarationRefused: the event's name is none, the match is no mapping of text to text, or the timeout is no duration of
            0 to ten years.
    """
    fault = name_fault(event)
    if fault is not None:
        raise DeclarationRefused("invalid_argument", "event", message=f"the event's name {fault}")
    timeout_ms = parse_duration_ms(timeout, "timeout", least_ms=0, most_ms=TIMER_MS_MAX)
    return Wait(event=str(event), match=_pairs("match", match), timeout_ms=timeout_ms)


def _pairs(field: str, pairs: object) -> dict[str, str]:
    if pairs is None:
        return {}
    if not isinstance(pairs, Mapping):
        message = f"{shown(pairs)} is no mapping of text to text"
        raise DeclarationRefused("invalid_argument", field, message=message)
    for key, value in pairs.items():
        if not isinstance(key, str) or not isinstance(value, str):
            message = f"the pair {shown(key)}: {shown(value)} is not of two texts"
            raise DeclarationRefused("invalid_argument", field, message=message)
    return dict(pairs)
