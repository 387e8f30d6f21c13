"""The short waits of announced successes for the answers behind them, in one task for a session.

All waits are of one length, so they end in the order in which they began. Nearly all are over by their answer long before,
and a task with a timer for each would cost as much as settling does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from keyspace.clock import Clock
from services.dispatcher.options import HOLD_MS

__all__ = ["Holds"]


class Holds:
    """Tells of each wait that was not over before its time. No more can wait than a session may hold."""

    def __init__(self, clock: Clock, is_waiting: Callable[[str], bool], on_end: Callable[[str], None]) -> None:
        """Know of no wait yet.

        Args:
            clock: whose time passes.
            is_waiting: says whether a wait, named by the pass that is waited for, still goes on.
            on_end: called with the name of each that does when its time is over.
        """
        self._clock = clock
        self._is_waiting = is_waiting
        self._on_end = on_end
        self._ends: deque[tuple[float, str]] = deque()
        self._has_begun = asyncio.Event()

    def begin(self, following: str) -> None:
        """Begin a wait for the answer of the pass `following`."""
        self._ends.append((self._clock.monotonic_ms() + HOLD_MS, following))
        self._has_begun.set()

    async def run(self) -> None:
        """End waits until cancelled."""
        while True:
            self._forget_answered()
            if not self._ends:
                self._has_begun = asyncio.Event()
                await self._has_begun.wait()
            ends_ms, following = self._ends[0]
            left_ms = ends_ms - self._clock.monotonic_ms()
            if left_ms > 0:
                await self._clock.sleep_ms(left_ms)
                continue
            self._ends.popleft()
            if self._is_waiting(following):
                self._on_end(following)

    def _forget_answered(self) -> None:
        while self._ends and not self._is_waiting(self._ends[0][1]):
            self._ends.popleft()
