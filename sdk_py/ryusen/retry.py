"""How a failed attempt of a step is tried again."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ryusen.durations import Duration, parse_duration_ms, shown
from ryusen.errors import DeclarationRefused
from ryusen.protocol.frames import RetryPolicy
from ryusen.protocol.limits import ATTEMPTS_MAX, BACKOFF_COEFFICIENT_MAX, RETRY_DELAY_MS_MAX

__all__ = ["Retry"]


@dataclass(frozen=True)
class Retry:
    """A step's retry policy; the server records it with the step and keeps to it, whatever the code says later.

    Args:
        attempts: how often the callback may fail, the first attempt included: 1 means no retry; at most 1,000.
        initial: the delay before the second attempt; 0 to 30 days.
        coefficient: the factor from one delay to the next; 1 to 1,000.
        cap: the longest delay; at least `initial`, at most 30 days.

    Raises:
        DeclarationRefused: a value outside its bounds; nothing is clamped.
    """

    attempts: int = 3
    initial: Duration = "1s"
    coefficient: float = 2.0
    cap: Duration = "5m"

    _policy: RetryPolicy = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Worked out once: a pass over a thousand steps asks a thousand times.
        object.__setattr__(self, "_policy", self._checked())

    def policy(self) -> RetryPolicy:
        """Return the policy as it travels."""
        return self._policy

    def _checked(self) -> RetryPolicy:
        if type(self.attempts) is not int or not 1 <= self.attempts <= ATTEMPTS_MAX:
            raise DeclarationRefused(
                "invalid_argument",
                "retry.attempts",
                ATTEMPTS_MAX,
                f"{shown(self.attempts)}; allowed are the integers 1 to {ATTEMPTS_MAX}, the first one counted",
            )
        coefficient = self.coefficient
        is_number = isinstance(coefficient, int | float) and not isinstance(coefficient, bool)
        if not is_number or math.isnan(coefficient) or not 1 <= coefficient <= BACKOFF_COEFFICIENT_MAX:
            raise DeclarationRefused(
                "invalid_argument",
                "retry.coefficient",
                BACKOFF_COEFFICIENT_MAX,
                f"{shown(coefficient)}; allowed are 1 to {BACKOFF_COEFFICIENT_MAX:g}",
            )
        initial_ms = parse_duration_ms(self.initial, "retry.initial", least_ms=0, most_ms=RETRY_DELAY_MS_MAX)
        cap_ms = parse_duration_ms(self.cap, "retry.cap", least_ms=0, most_ms=RETRY_DELAY_MS_MAX)
        if cap_ms < initial_ms:
            raise DeclarationRefused(
                "invalid_argument", "retry.cap", initial_ms, f"a cap of {cap_ms} ms is below initial, {initial_ms} ms"
            )
        return RetryPolicy(attempts=self.attempts, initial_ms=initial_ms, coefficient=float(coefficient), cap_ms=cap_ms)
