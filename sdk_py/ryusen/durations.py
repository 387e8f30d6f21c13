"""Durations as users write them: 90, timedelta(minutes=1), "1m30s"."""

from __future__ import annotations

import math
import re
from datetime import timedelta

from ryusen.errors import DeclarationRefused

__all__ = ["DURATION_MS_MAX", "Duration", "parse_duration_ms", "shown"]

Duration = float | str | timedelta
"""A number of seconds, a timedelta, or text: whole numbers or decimals with ms, s, m, h, d, such as "1h30m"."""

DURATION_MS_MAX = 365 * 24 * 3_600_000
"""One year; anything longer is taken for a mistake of units."""

_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_TEXT_CHARS_MAX = 64
_PART = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)(ms|[smhd])", re.ASCII)
_TEXT = re.compile(rf"(?:{_PART.pattern})+", re.ASCII)


def parse_duration_ms(value: object, field: str, *, least_ms: int = 1, most_ms: int = DURATION_MS_MAX) -> int:
    """Return a duration in whole milliseconds.

    Args:
        value: seconds, a timedelta or text such as "1h30m".
        field: what the duration is, for the error.
        least_ms: the smallest one allowed.
        most_ms: the largest one allowed.

    Raises:
        DeclarationRefused: not a duration, or outside the bounds; never clamped.
    """
    milliseconds = _milliseconds(value)
    if milliseconds is None:
        raise DeclarationRefused(
            "invalid_argument", field, message=f'{shown(value)} is no duration; write seconds, a timedelta or "1h30m"'
        )
    if not least_ms <= milliseconds <= most_ms:
        limit = least_ms if milliseconds < least_ms else most_ms
        raise DeclarationRefused(
            "invalid_argument", field, limit, f"{shown(value)} is outside {least_ms} ms to {most_ms} ms"
        )
    return round(milliseconds)


def _milliseconds(value: object) -> float | None:
    if isinstance(value, timedelta):
        return value / timedelta(milliseconds=1)
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        # Compared as an integer first: a huge one has no float.
        return value * 1000.0 if abs(value) <= DURATION_MS_MAX else math.inf if value > 0 else -math.inf
    if isinstance(value, float):
        return None if math.isnan(value) else value * 1000.0
    if isinstance(value, str) and len(value) <= _TEXT_CHARS_MAX and _TEXT.fullmatch(value):
        return sum(float(number) * _UNIT_MS[unit] for number, unit in _PART.findall(value))
    return None


def shown(value: object) -> str:
    """Return a value as text for an error, short whatever it is."""
    if isinstance(value, int) and value.bit_length() > 64:
        return f"an integer of {value.bit_length()} bits"
    text = repr(value) if isinstance(value, int | float | str | timedelta) else f"a {type(value).__name__}"
    return text if len(text) <= _TEXT_CHARS_MAX else f"{text[:_TEXT_CHARS_MAX]}..."
