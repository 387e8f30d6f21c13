"""One waiter, many reasons to wake: rings are remembered until the waiter looks, and a delay bounds every wait."""

from __future__ import annotations

import asyncio

from anyio.abc import TaskGroup

from keyspace.clock import Clock
from keyspace.store.api import Watch
from keyspace.store.errors import StoreError

__all__ = ["Alarm", "Bell"]


class Alarm:
    """Wakes the one task that waits on it; a ring while nobody waits is kept for the next wait."""

    def __init__(self, clock: Clock) -> None:
        """Take delays from `clock`."""
        self._clock = clock
        self._event = asyncio.Event()

    def ring(self) -> None:
        """Wake the waiter, now or at its next wait."""
        self._event.set()

    async def wait(self, delay_ms: float | None) -> None:
        """Return after a ring, or after `delay_ms` milliseconds of the clock; None waits for a ring alone."""
        if not self._event.is_set() and (delay_ms is None or delay_ms > 0):
            # A claimer waits after every turn, mostly not for long: a group with a task in it would cost five times as much
            # as this one task, which ends with the wait.
            timer = None if delay_ms is None else asyncio.ensure_future(self._ring_after(delay_ms))
            try:
                await self._event.wait()
            finally:
                if timer is not None:
                    timer.cancel()
        else:
            await asyncio.sleep(0)  # whoever rings the waiter for ever must not keep everybody else from running
        self._event = asyncio.Event()

    async def _ring_after(self, delay_ms: float) -> None:
        await self._clock.sleep_ms(delay_ms)
        self._event.set()


class Bell:
    """Watches one bell of the store for a claimer and says whether it rang since it was armed.

    The watch is made in the transaction that scans what the bell guards, so nothing falls between scan and watch. A watch
    that the store loses counts as a ring: the claimer looks again and arms anew.
    """

    def __init__(self, alarm: Alarm) -> None:
        """Ring `alarm` when the bell rings; not armed yet."""
        self._alarm = alarm
        self._watch: Watch | None = None
        self.has_rung = True

    @property
    def is_armed(self) -> bool:
        """Whether the store would tell of a change."""
        return self._watch is not None

    def arm(self, group: TaskGroup, watch: Watch) -> None:
        """Hear of `watch` in a task of `group`; a watch that is still armed is given up."""
        self.disarm()
        self._watch, self.has_rung = watch, False
        group.start_soon(self._listen, watch, name="bell")

    def disarm(self) -> None:
        """Give the watch up."""
        if self._watch is not None:
            watch, self._watch = self._watch, None
            watch.cancel()

    async def _listen(self, watch: Watch) -> None:
        try:
            await watch.wait()
        except StoreError:
            if self._watch is not watch:
                return  # given up by ourselves
        if self._watch is watch:
            self._watch, self.has_rung = None, True
            self._alarm.ring()
