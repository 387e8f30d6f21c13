"""How commits reach the serializer: at once in the caller for the in-memory engine, through one thread for a file.

The thread takes everything that waits, up to a bound, commits it as one group, and wakes each event loop once a group.
A caller that is cancelled while it waits leaves its request behind: it commits or not, and nobody is told.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Protocol

from keyspace.clock import Clock
from keyspace.store.embedded_commit import Changes, CommitRequest, Serializer
from keyspace.store.engine import Engine
from keyspace.store.errors import BatchThrottled, StoreError, StoreUnavailableError
from keyspace.store.stamps import BATCH_COUNT_MAX

__all__ = ["Committer", "InlineCommitter", "ThreadCommitter"]

GROUP_COUNT_MAX = 256
"""Commits in one synced group: enough to share a sync well, few enough to keep the write lock short."""
PENDING_COUNT_MAX = 10_000
"""Commits of one process that may wait; more are refused as a cluster throttles."""
READER_CHECK_MS = 5_000.0
"""How often the slots of dead readers are looked for while commits happen."""

assert GROUP_COUNT_MAX <= BATCH_COUNT_MAX

Publish = Callable[[Changes], None]


class Committer(Protocol):
    """Takes one commit to its end."""

    async def commit(self, request: CommitRequest) -> None:
        """Return once `request` is durable, or raise its error."""
        ...

    def close(self) -> None:
        """Finish what waits; later commits are refused."""
        ...


class InlineCommitter:
    """Commits in the caller, without threads or waiting, so that tests and simulation repeat exactly."""

    def __init__(self, serializer: Serializer, publish: Publish) -> None:
        """Commit through `serializer` and hand what was written to `publish`."""
        self._serializer = serializer
        self._publish = publish
        self._is_closed = False

    async def commit(self, request: CommitRequest) -> None:
        """Commit `request` at once, as a group of one."""
        if self._is_closed:
            raise StoreUnavailableError("the store is closed")
        self._publish(self._serializer.commit([request]))
        if request.error is not None:
            raise request.error

    def close(self) -> None:
        """Refuse later commits."""
        self._is_closed = True


@dataclass(slots=True, eq=False)
class _Waiting:
    request: CommitRequest
    loop: asyncio.AbstractEventLoop
    done: asyncio.Future[None]
    error: StoreError | None = field(default=None)

    def settle(self) -> None:
        if self.done.done():
            return
        if self.error is not None:
            self.done.set_exception(self.error)
        else:
            self.done.set_result(None)


class ThreadCommitter:
    """The one thread of a process that writes to one file; shared by all its stores on that file."""

    def __init__(self, engine: Engine, serializer: Serializer, publish: Publish, clock: Clock) -> None:
        """Start the thread."""
        self._engine = engine
        self._serializer = serializer
        self._publish = publish
        self._queue: SimpleQueue[_Waiting | None] = SimpleQueue()
        self._is_closed = False
        self._clock = clock
        self._checked_ms = clock.monotonic_ms()
        self._thread = threading.Thread(target=self._run, name="store-committer", daemon=True)
        self._thread.start()

    async def commit(self, request: CommitRequest) -> None:
        """Queue `request` for the next group and wait for its sync."""
        if self._is_closed:
            raise StoreUnavailableError("the store is closed")
        if self._queue.qsize() >= PENDING_COUNT_MAX:
            raise BatchThrottled("too many commits of this process are waiting")
        loop = asyncio.get_running_loop()
        waiting = _Waiting(request, loop, loop.create_future())
        self._queue.put(waiting)
        await waiting.done

    def close(self) -> None:
        """Commit what waits and end the thread."""
        if not self._is_closed:
            self._is_closed = True
            self._queue.put(None)
            self._thread.join()

    def _run(self) -> None:
        is_open = True
        while is_open:
            first = self._queue.get()
            if first is None:
                return
            group = [first]
            with suppress(Empty):
                while len(group) < GROUP_COUNT_MAX:
                    following = self._queue.get_nowait()
                    if following is None:
                        is_open = False
                        break
                    group.append(following)
            self._commit(group)

    def _commit(self, group: Sequence[_Waiting]) -> None:
        changes: Changes | None = None
        try:
            self._serializer.catch_up()
            changes = self._serializer.commit([waiting.request for waiting in group])
        except StoreError as error:
            for waiting in group:
                # Each waiter raises its own copy: one exception raised in many tasks would share a traceback.
                waiting.error = type(error)(error.args[0], code=error.code)
        except Exception as error:  # noqa: BLE001 - a defect must fail its commits, not end the thread all others wait for
            for waiting in group:
                waiting.error = StoreError(f"the commit was refused by a defect, and nothing was written: {error!r}")
        else:
            for waiting in group:
                waiting.error = waiting.request.error
        self._wake(group)
        if changes is not None:
            self._publish(changes)
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._checked_ms > READER_CHECK_MS:
            self._checked_ms = now_ms
            self._engine.release_dead_readers()

    def _wake(self, group: Sequence[_Waiting]) -> None:
        by_loop: dict[asyncio.AbstractEventLoop, list[_Waiting]] = {}
        for waiting in group:
            by_loop.setdefault(waiting.loop, []).append(waiting)
        for loop, settled in by_loop.items():
            # A loop that has ended has nobody left to tell; what it asked for is committed all the same.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(_settle, settled)


def _settle(group: Sequence[_Waiting]) -> None:
    for waiting in group:
        waiting.settle()
