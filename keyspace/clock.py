"""Time, injected.

Decisions use engine time: milliseconds since the Unix epoch, sampled once an attempt of a transaction from a `Clock`
(FILLED-IN 11, "Engine clocks"). Nothing else in the keyspace asks what time it is. `VirtualClock` lets tests move time by hand.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from typing import Protocol

__all__ = ["Clock", "SystemClock", "VirtualClock"]


class Clock(Protocol):
    """Where engine time, elapsed time and delays come from."""

    def now_ms(self) -> int:
        """Return engine time in milliseconds since the Unix epoch."""
        ...

    def monotonic_ms(self) -> float:
        """Return milliseconds from an arbitrary start that never go backwards; for durations and backoff only."""
        ...

    async def sleep_ms(self, delay_ms: float) -> None:
        """Wait until `delay_ms` milliseconds have passed on this clock."""
        ...


class SystemClock:
    """The host's clock, kept by NTP; what every production process uses."""

    def now_ms(self) -> int:
        """Return the host's wall clock in milliseconds."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> float:
        """Return the host's monotonic clock in milliseconds."""
        return time.monotonic() * 1000.0

    async def sleep_ms(self, delay_ms: float) -> None:
        """Sleep on the event loop."""
        await asyncio.sleep(max(0.0, delay_ms) / 1000.0)


class VirtualClock:
    """A clock that stands still until a test moves it; sleepers wake in the order of their instants."""

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        """Start at `start_ms` (Unix epoch milliseconds)."""
        self._now_ms = float(start_ms)
        self._monotonic_ms = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    def now_ms(self) -> int:
        """Return the instant the test has set."""
        return int(self._now_ms)

    def monotonic_ms(self) -> float:
        """Return how far `advance` has moved the clock; `step` does not change it."""
        return self._monotonic_ms

    async def sleep_ms(self, delay_ms: float) -> None:
        """Wait until `advance` has moved the clock by `delay_ms`."""
        if delay_ms <= 0:
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._monotonic_ms + delay_ms, next(self._order), future))
        await future

    def advance(self, delta_ms: float) -> None:
        """Let `delta_ms` milliseconds pass and wake every sleeper whose instant has come."""
        if delta_ms < 0:
            raise ValueError("time does not run backwards; use step() for a wall clock that was set back")
        self._now_ms += delta_ms
        self._monotonic_ms += delta_ms
        while self._sleepers and self._sleepers[0][0] <= self._monotonic_ms:
            _, _, future = heapq.heappop(self._sleepers)
            if not future.done():
                future.set_result(None)

    def step(self, delta_ms: float) -> None:
        """Set the wall clock forward or back by `delta_ms` without time passing, as a bad NTP correction would."""
        self._now_ms += delta_ms

    def next_wake_ms(self) -> float | None:
        """Return in how many milliseconds the next sleeper wakes, or None when nobody sleeps."""
        while self._sleepers and self._sleepers[0][2].done():
            heapq.heappop(self._sleepers)
        return self._sleepers[0][0] - self._monotonic_ms if self._sleepers else None
