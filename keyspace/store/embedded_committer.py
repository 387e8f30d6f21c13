"""How commits reach the serializer: at once in the caller for the in-memory engine, through one thread for a file.

The thread takes everything that waits, up to a bound, commits it as one group, and wakes each event loop once a group.
A caller that is cancelled while it waits leaves its request behind: it commits or not, and nobody is told.

**One sync a group.** An engine may leave the last step of a commit to the next sync. A group is then acknowledged by the
commit of the group that follows it, when one is waiting, and otherwise by a sync of its own. Between the two it can be
seen, as a cluster's never could, so a read-only transaction that may have seen it waits for `make_durable` before it
commits; one that writes is ordered, and therefore durable, behind it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Protocol

from keyspace.clock import Clock
from keyspace.store.embedded_commit import Changes, CommitRequest, Serializer
from keyspace.store.engine import Engine
from keyspace.store.errors import BatchThrottled, CommitUnknownResult, StoreError, StoreUnavailableError
from keyspace.store.stamps import BATCH_COUNT_MAX

__all__ = ["Committer", "DurableMark", "InlineCommitter", "ThreadCommitter"]

logger = logging.getLogger(__name__)

GROUP_COUNT_MAX = 256
"""Commits in one synced group: enough to share a sync well, few enough to keep the write lock short."""
GROUP_BYTES_MAX = 32_000_000
"""Size after which a group takes no more commits; it may exceed this by one commit."""
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

    async def make_durable(self, version: int) -> None:
        """Return once everything up to commit version `version` is durable."""
        ...

    async def finish(self) -> None:
        """Return once every commit asked for before has ended."""
        ...

    def close(self) -> None:
        """End; later commits are refused."""
        ...


class DurableMark(Protocol):
    """The greatest commit version known to be durable, over all processes; may lag, never leads."""

    durable_version: int


class InlineCommitter:
    """Commits in the caller, without threads, so that tests and simulation repeat exactly.

    Only one turn of the event loop lies between asking and committing. It stands for the time that any real store takes:
    others commit in it, so that the conflicts of a cluster happen in memory too.
    """

    def __init__(self, serializer: Serializer, publish: Publish) -> None:
        """Commit through `serializer` and hand what was written to `publish`."""
        self._serializer = serializer
        self._publish = publish
        self._is_closed = False

    async def commit(self, request: CommitRequest) -> None:
        """Commit `request` at the event loop's next turn, as a group of one."""
        await asyncio.sleep(0)
        if self._is_closed:
            raise StoreUnavailableError("the store is closed")
        self._publish(self._serializer.commit([request]).changes)
        if request.error is not None:
            raise request.error

    async def make_durable(self, version: int) -> None:
        """Do nothing: memory has no later."""

    async def finish(self) -> None:
        """Do nothing: no commit outlives its call."""

    def close(self) -> None:
        """Refuse later commits."""
        self._is_closed = True


@dataclass(slots=True, eq=False)
class _Waiting:
    """A caller: of a commit, or, without a request, of everything up to `version` being durable."""

    request: CommitRequest | None
    version: int
    loop: asyncio.AbstractEventLoop
    done: asyncio.Future[None]
    error: StoreError | None = field(default=None)

    def fail(self, error: StoreError) -> None:
        # Each waiter raises its own copy: one exception raised in many tasks would share a traceback.
        self.error = type(error)(error.args[0], code=error.code)

    def settle(self) -> None:
        if self.done.done():
            return
        if self.error is not None:
            self.done.set_exception(self.error)
        else:
            self.done.set_result(None)


class ThreadCommitter:
    """The one thread of a process that writes to one file; shared by all its stores on that file."""

    def __init__(
        self, engine: Engine, serializer: Serializer, publish: Publish, mark: DurableMark, clock: Clock
    ) -> None:
        """Start the thread."""
        self._engine = engine
        self._serializer = serializer
        self._publish = publish
        self._mark = mark
        self._clock = clock
        self._checked_ms = clock.monotonic_ms()
        self._queue: deque[_Waiting] = deque()
        # A ring may come when the queue has been emptied already, never the other way round.
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._ringing: set[asyncio.AbstractEventLoop] = set()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="store-committer", daemon=True)
        self._thread.start()

    async def commit(self, request: CommitRequest) -> None:
        """Queue `request` for the next group and wait for its sync."""
        await self._wait(request, 0)

    async def make_durable(self, version: int) -> None:
        """Wait for a sync, unless one has covered `version` already."""
        if version > self._mark.durable_version:
            await self._wait(None, version)

    async def finish(self) -> None:
        """Wait for everything queued before: commits are taken in order."""
        await self._wait(None, 0)

    def close(self) -> None:
        """Commit what waits and end the thread."""
        if not self._is_closed:
            self._is_closed = True
            self._bell.put(None)
            self._thread.join()

    async def _wait(self, request: CommitRequest | None, version: int) -> None:
        if self._is_closed:
            raise StoreUnavailableError("the store is closed")
        if len(self._queue) >= PENDING_COUNT_MAX:
            raise BatchThrottled("too many commits of this process are waiting")
        loop = asyncio.get_running_loop()
        waiting = _Waiting(request, version, loop, loop.create_future())
        self._queue.append(waiting)
        if loop not in self._ringing:
            # At the loop's next turn: what this one still asks for goes into the same group, for one waking of the thread.
            self._ringing.add(loop)
            loop.call_soon(self._ring, loop)
        await waiting.done

    def _ring(self, loop: asyncio.AbstractEventLoop) -> None:
        self._ringing.discard(loop)
        self._bell.put(None)

    # -- in the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        unsynced: list[_Waiting] = []
        is_open = True
        while is_open or unsynced:
            group: list[_Waiting] = []
            if is_open:
                group, is_open = self._take(is_waiting=not unsynced)
            if any(waiting.request is not None for waiting in group):
                unsynced = self._commit(group, unsynced)
            else:
                self._sync(unsynced + group)
                unsynced = []
            self._check_readers()

    def _take(self, *, is_waiting: bool) -> tuple[list[_Waiting], bool]:
        """Return what is queued, waiting for a first one if asked to, and whether more may come."""
        while is_waiting and not self._queue and not self._is_closed:
            self._bell.get()
        # Looked at first: what is asked for before the end is in the queue by then.
        is_open = not self._is_closed
        group: list[_Waiting] = []
        size_bytes = 0
        while self._queue and len(group) < GROUP_COUNT_MAX and size_bytes < GROUP_BYTES_MAX:
            taken = self._queue.popleft()
            group.append(taken)
            size_bytes += taken.request.size_bytes if taken.request is not None else 0
        return group, is_open or bool(self._queue)

    def _commit(self, group: list[_Waiting], unsynced: list[_Waiting]) -> list[_Waiting]:
        """Commit a group, acknowledge what its commit has made durable, and return what a sync is still owed."""
        try:
            self._serializer.catch_up()
            outcome = self._serializer.commit([waiting.request for waiting in group if waiting.request is not None])
        except StoreError as error:
            self._fail(group, error)
            self._sync(unsynced)
            return []
        except Exception as error:  # noqa: BLE001 - a defect must fail its commits, not end the thread all others wait for
            self._fail(group, StoreError(f"the commit was refused by a defect, and nothing was written: {error!r}"))
            self._sync(unsynced)
            return []
        refused: list[_Waiting] = []
        accepted: list[_Waiting] = []
        for waiting in group:
            if waiting.request is not None:
                waiting.error, waiting.version = waiting.request.error, waiting.request.version
            (accepted if waiting.error is None else refused).append(waiting)
        if outcome.is_written:
            self._acknowledge(unsynced, refused)
            self._tell(outcome.changes)
        else:
            accepted = unsynced + accepted
            self._wake(refused)
        if not outcome.is_durable:
            return accepted
        self._acknowledge(accepted, [])
        return []

    def _sync(self, unsynced: list[_Waiting]) -> None:
        if not unsynced:
            return
        if all(waiting.request is None and waiting.version <= self._mark.durable_version for waiting in unsynced):
            # They only wanted to know, and another process's sync has come first.
            self._wake(unsynced)
            return
        try:
            self._engine.sync()
        except StoreError as error:
            self._fail(unsynced, CommitUnknownResult(error.args[0]))
        else:
            self._acknowledge(unsynced, [])

    def _tell(self, changes: Changes) -> None:
        try:
            self._publish(changes)
        except Exception:
            # What is committed is committed; a lost wake-up is what every watcher's slow look is for.
            logger.exception("watchers could not be told of a commit")

    def _acknowledge(self, durable: list[_Waiting], refused: list[_Waiting]) -> None:
        if durable:
            version = max(waiting.version for waiting in durable)
            if version > self._mark.durable_version:
                self._mark.durable_version = version
        self._wake(durable + refused)

    def _fail(self, group: list[_Waiting], error: StoreError) -> None:
        for waiting in group:
            waiting.fail(error)
        self._wake(group)

    def _wake(self, group: Sequence[_Waiting]) -> None:
        by_loop: dict[asyncio.AbstractEventLoop, list[_Waiting]] = {}
        for waiting in group:
            by_loop.setdefault(waiting.loop, []).append(waiting)
        for loop, settled in by_loop.items():
            # A loop that has ended has nobody left to tell; what it asked for is committed all the same.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(_settle, settled)

    def _check_readers(self) -> None:
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._checked_ms > READER_CHECK_MS:
            self._checked_ms = now_ms
            with suppress(StoreError):
                # Only housekeeping: an engine that has failed says so to the commits.
                self._engine.release_dead_readers()


def _settle(group: Sequence[_Waiting]) -> None:
    for waiting in group:
        waiting.settle()
