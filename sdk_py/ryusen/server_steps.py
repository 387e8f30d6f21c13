"""What a step that the service settles itself is declared with, checked as far as the SDK can tell."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from ryusen.durations import Duration, parse_duration_ms, shown
from ryusen.errors import DeclarationRefused
from ryusen.protocol.frames import RetryPolicy, StepDeclaration, Timer
from ryusen.protocol.limits import TIMER_MS_MAX, TIMESTAMP_MS_MAX
from ryusen.protocol.names import name_fault

__all__ = ["require_names", "server_step", "timer_of", "timer_until"]

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
