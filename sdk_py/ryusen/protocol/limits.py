"""The bounds that both sides of the wire hold each other to, with their units. What exceeds one is refused, never cut or clamped."""

from __future__ import annotations

__all__ = [
    "ATTEMPTS_MAX",
    "ATTEMPT_TIMEOUT_MS_MAX",
    "BACKOFF_COEFFICIENT_MAX",
    "DETAILS_BYTES_MAX",
    "FUNCTIONS_MAX",
    "INVOKE_TIMEOUT_MS_MAX",
    "LOCATION_CHARS_MAX",
    "MESSAGE_BYTES_MAX",
    "NAME_CHARS_MAX",
    "RETRY_DELAY_MS_MAX",
    "RUN_TIMEOUT_MS_MAX",
    "TIMER_MS_MAX",
    "TIMESTAMP_MS_MAX",
    "TRIGGERS_MAX",
    "VALUE_BYTES_DEFAULT",
    "VALUE_BYTES_MAX",
]

NAME_CHARS_MAX = 200
"""Characters of an application's, function's, event's or step's name."""
FUNCTIONS_MAX = 1_000
"""Functions of one application."""
TRIGGERS_MAX = 50
"""Triggers of one function."""
ATTEMPTS_MAX = 1_000
"""Attempts of one step, the first one included."""
ATTEMPT_TIMEOUT_MS_MAX = 7 * 86_400_000
"""Milliseconds that one attempt may be given."""
BACKOFF_COEFFICIENT_MAX = 1_000.0
"""The largest factor from one delay to the next; the smallest is 1."""
VALUE_BYTES_DEFAULT = 256 * 1024
"""Bytes of one encoded value, unless the server says otherwise in its welcome."""
VALUE_BYTES_MAX = 1024 * 1024
"""The largest value limit that a server may be set to, in bytes."""
LOCATION_CHARS_MAX = 400
"""Characters of a step's source location, a diagnostic; the SDK keeps the end of a longer one."""
MESSAGE_BYTES_MAX = 4_096
"""Bytes of a failure's message; the SDK says so in the message when it had to shorten an exception's text."""
DETAILS_BYTES_MAX = 8_192
"""Bytes of a failure's encoded details."""
RETRY_DELAY_MS_MAX = 30 * 86_400_000
"""Milliseconds between two attempts."""
RUN_TIMEOUT_MS_MAX = 200_000_000_000_000
"""Milliseconds that a run may be given: no policy, but what keeps every deadline below the last instant there is."""
TIMER_MS_MAX = 10 * 365 * 86_400_000
"""Milliseconds that a timer may lie ahead: ten years."""
INVOKE_TIMEOUT_MS_MAX = 10 * 365 * 86_400_000
"""Milliseconds that an invocation may be given: ten years."""
TIMESTAMP_MS_MAX = 253_402_300_799_999
"""The last instant there is, in Unix epoch milliseconds: the end of the year 9999."""
