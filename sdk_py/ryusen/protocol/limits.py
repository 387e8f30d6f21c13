"""The bounds that both sides of the wire hold each other to, with their units. What exceeds one is refused, never cut or clamped."""

from __future__ import annotations

__all__ = [
    "ATTEMPTS_MAX",
    "BACKOFF_COEFFICIENT_MAX",
    "DETAILS_BYTES_MAX",
    "FUNCTIONS_MAX",
    "MESSAGE_CHARS_MAX",
    "NAME_CHARS_MAX",
    "TRIGGERS_MAX",
    "VALUE_BYTES_DEFAULT",
    "VALUE_BYTES_MAX",
]

NAME_CHARS_MAX = 200
"""Characters of an application's, function's, event's or step's name."""
FUNCTIONS_MAX = 500
"""Functions of one application."""
TRIGGERS_MAX = 50
"""Triggers of one function."""
ATTEMPTS_MAX = 1_000
"""Attempts of one step, the first one included."""
BACKOFF_COEFFICIENT_MAX = 100.0
"""The largest factor from one delay to the next; the smallest is 1."""
VALUE_BYTES_DEFAULT = 256 * 1024
"""Bytes of one encoded value, unless the server says otherwise in its welcome."""
VALUE_BYTES_MAX = 1024 * 1024
"""The largest value limit that a server may be set to, in bytes."""
MESSAGE_CHARS_MAX = 4_000
"""Characters of a failure's message; the SDK says so in the message when it had to shorten an exception's text."""
DETAILS_BYTES_MAX = 16 * 1024
"""Bytes of a failure's encoded details."""
