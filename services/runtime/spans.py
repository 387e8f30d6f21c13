"""Spans of time as people read them."""

from __future__ import annotations

__all__ = ["shown_ms"]


def shown_ms(delay_ms: float) -> str:
    """Return a span of time for people: milliseconds below a second, then seconds, minutes, hours and days."""
    if delay_ms < 1_000:
        return f"{delay_ms:.0f} ms"
    if delay_ms < 60_000:
        return f"{delay_ms / 1_000:.3f}".rstrip("0").rstrip(".") + " s"
    minutes, seconds = divmod(round(delay_ms / 1_000), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (seconds, "s")]
    return " ".join(f"{count} {unit}" for count, unit in parts if count)
