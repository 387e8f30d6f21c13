"""Wakes tasks of an event loop when the FoundationDB client's futures become ready.

The client runs its callbacks on its one network thread, which must not be held up. Ours only notes which future it was
and, unless the loop has been told already, asks it to look; a burst of answers costs one wake-up. All native futures
share one C callback, made once and kept for the life of the process, because the client may call it at any time.

Only `fdb_adapter` may import this.
"""

from __future__ import annotations

import asyncio
import ctypes
from collections import deque
from dataclasses import dataclass
from typing import Any

__all__ = ["FutureBridge"]


@dataclass(slots=True)
class _Entry:
    bridge: FutureBridge
    future: Any
    """Held until its callback has run: destroying a future with a callback pending would be a race."""
    owner: object
    """The transaction: without it the client cancels the future (1025)."""
    waiter: asyncio.Future[None]


_entries: dict[int, _Entry] = {}
"""By the native future's address, unique while the entry holds the future."""


def _on_ready(pointer: int, _parameter: int | None) -> None:
    entry = _entries.get(pointer)
    if entry is not None:
        entry.bridge.note_ready(entry.future)


_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(_on_ready)


class FutureBridge:
    """Between the client's network thread and one event loop."""

    def __init__(self, capi: Any, loop: asyncio.AbstractEventLoop) -> None:
        """Set callbacks through `capi`, the loaded client library, and wake tasks of `loop`."""
        self._capi = capi
        self._loop = loop
        self._ready: deque[Any] = deque()
        self._is_told = False

    def waiter(self, future: Any, owner: object) -> asyncio.Future[None]:
        """Return an asyncio future that is done when the native `future` is ready; `owner` lives until then.

        Cancelling it stops nothing: what was asked of the cluster goes on. One task at a time may wait for one native
        future; a second call, after the first wait was cancelled, takes its place.
        """
        waiter: asyncio.Future[None] = self._loop.create_future()
        pointer: int = future.fpointer
        entry = _entries.get(pointer)
        if entry is not None:
            entry.waiter = waiter
            return waiter
        _entries[pointer] = _Entry(self, future, owner, waiter)
        self._capi.fdb_future_set_callback(pointer, _CALLBACK, None)
        return waiter

    def note_ready(self, future: Any) -> None:
        """Take note, on whatever thread, and have the loop look once."""
        self._ready.append(future)
        if not self._is_told:
            self._is_told = True
            try:
                self._loop.call_soon_threadsafe(self._wake)
            except RuntimeError:
                # The loop is closed, so no task is left that could be waiting.
                self._wake()

    def _wake(self) -> None:
        # In this order, so that a future noted after the last look always asks for another one.
        self._is_told = False
        while self._ready:
            entry = _entries.pop(self._ready.popleft().fpointer, None)
            if entry is not None and not entry.waiter.done() and not self._loop.is_closed():
                entry.waiter.set_result(None)
