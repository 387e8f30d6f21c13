"""Calling into an event loop from other threads, before it runs, while it runs and after it has gone."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

__all__ = ["ForeignLoop"]

EARLY_MAX = 100
"""Calls kept for a loop that does not run yet; more than signals before the start is a defect."""


class ForeignLoop:
    """A loop that other threads call into. Calls made before `settle` wait for it; calls after `leave` are dropped."""

    def __init__(self) -> None:
        """Start without a loop."""
        # Reentrant: a signal handler may interrupt the very thread that holds it.
        self._lock = threading.RLock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._has_left = False
        self._early: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque(maxlen=EARLY_MAX)

    def settle(self) -> None:
        """Take the running loop as the one to call into, and make the calls that waited for it."""
        with self._lock:
            self._loop = asyncio.get_running_loop()
            while self._early:
                call, args = self._early.popleft()
                self._loop.call_soon(call, *args)

    def leave(self) -> None:
        """Drop whatever is called from now on."""
        with self._lock:
            self._has_left = True

    def call(self, call: Callable[..., None], *args: Any) -> None:
        """Call `call(*args)` soon on the loop."""
        with self._lock:
            if self._has_left:
                return
            if self._loop is None:
                self._early.append((call, args))
            else:
                self._loop.call_soon_threadsafe(call, *args)
