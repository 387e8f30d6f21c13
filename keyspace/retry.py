"""Backoff: how long a failed attempt waits before its successor. Deterministic, bounded, never negative."""

from __future__ import annotations

import math

from keyspace.errors import Refusal
from keyspace.limits import ATTEMPTS_MAX, RETRY_COEFFICIENT_MAX, RETRY_DELAY_MS_MAX
from keyspace.records.run import RetryRecord

__all__ = ["backoff_ms", "check_retry"]


def backoff_ms(retry: RetryRecord, failure_count: int) -> int:
    """Return the delay after the `failure_count`-th failure, in milliseconds.

    initial x coefficient^(failure_count - 1), capped; the exponent is taken in logarithms first, so that no number of
    failures overflows into no delay at all.

    Args:
        retry: a policy that `check_retry` let pass.
        failure_count: 1 or more.
    """
    if retry.initial_ms == 0:
        return 0
    cap_ms = min(retry.cap_ms, RETRY_DELAY_MS_MAX)
    exponent = failure_count - 1
    if math.log(retry.initial_ms) + exponent * math.log(retry.coefficient) >= math.log(max(cap_ms, 1)):
        return cap_ms
    return min(cap_ms, int(retry.initial_ms * retry.coefficient**exponent))


def check_retry(retry: RetryRecord) -> None:
    """Refuse a policy that is not sound, naming the field, the value and the range.

    Raises:
        Refusal: `invalid_retry`.
    """
    ranges: tuple[tuple[str, float, float, float], ...] = (
        ("retry.attempts", retry.attempts, 1, ATTEMPTS_MAX),
        ("retry.initial_ms", retry.initial_ms, 0, RETRY_DELAY_MS_MAX),
        ("retry.cap_ms", retry.cap_ms, 0, RETRY_DELAY_MS_MAX),
        ("retry.coefficient", retry.coefficient, 1.0, RETRY_COEFFICIENT_MAX),
    )
    for field, value, least, most in ranges:
        if not least <= value <= most:
            raise Refusal(
                "invalid_retry",
                "A retry policy lies outside its range.",
                field=field,
                value=value,
                minimum=least,
                limit=most,
            )
