"""The embedded store: FoundationDB's rules on one machine, over a file that several processes share, or in memory.

`open_embedded` is the default store of a single machine. `memory_store` runs the same rules without threads, for tests and
simulation: several stores on one `MemoryEngine` are several processes on one file.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
from contextlib import suppress
from pathlib import Path

from keyspace.clock import Clock
from keyspace.store import sizes
from keyspace.store.embedded_commit import Changes, Serializer
from keyspace.store.embedded_committer import Committer, InlineCommitter, ThreadCommitter
from keyspace.store.embedded_format import Meta, monotonic_us, prepare, read_meta
from keyspace.store.embedded_transaction import EmbeddedTransaction
from keyspace.store.embedded_view import ReadView
from keyspace.store.embedded_wake import WakeBoard, WakePipe
from keyspace.store.embedded_watch import WatchTable, bucket_of
from keyspace.store.engine import Engine, ReadersExhaustedError, Snapshot
from keyspace.store.errors import BatchThrottled, RetryableError, StoreError, StoreUnavailableError
from keyspace.store.lmdb_engine import MAP_BYTES, LmdbEngine
from keyspace.store.memory_engine import MemoryEngine

__all__ = ["EmbeddedStore", "memory_store", "open_embedded"]

BACKOFF_FIRST_MS = 1.0
BACKOFF_MS_MAX = 1_000.0
BACKOFF_DOUBLINGS_MAX = 10
"""After which the pause has reached its maximum; keeps the power small."""


class EmbeddedStore:
    """See `keyspace.store.api.Store`."""

    def __init__(
        self, name: str, engine: Engine, committer: Committer, watches: WatchTable, clock: Clock, rng: random.Random
    ) -> None:
        """Read from `engine`, commit through `committer`; `rng` spreads the pauses of retries."""
        self.clock = clock
        self.committer = committer
        self.watches = watches
        self._name = name
        self._engine = engine
        self._rng = rng
        # By age: an attempt's first read puts its view at the end.
        self._reading: dict[ReadView, float] = {}
        self._is_closed = False

    @property
    def name(self) -> str:
        """Return `embedded:/path` or `memory`."""
        return self._name

    def begin(self) -> EmbeddedTransaction:
        """Start an attempt."""
        if self._is_closed:
            raise StoreUnavailableError(f"{self._name} is closed")
        return EmbeddedTransaction(self)

    async def backoff(self, error: RetryableError, attempt_count: int) -> None:
        """Wait before the next attempt: from nothing to 1 ms at first, doubling with each attempt to one second."""
        doublings = min(max(attempt_count - 1, 0), BACKOFF_DOUBLINGS_MAX)
        await self.clock.sleep_ms(self._rng.random() * min(BACKOFF_FIRST_MS * 2**doublings, BACKOFF_MS_MAX))

    async def close(self) -> None:
        """Finish outstanding commits, cancel watches, end what open attempts see, release what the store holds."""
        if self._is_closed:
            return
        self._is_closed = True
        for view in list(self._reading):
            view.close()
        self.watches.close()
        with suppress(StoreError):
            await self.committer.finish()
        self._release()

    def take_snapshot(self, view: ReadView, now_ms: float) -> tuple[Snapshot, Meta]:
        """Return a snapshot for `view` and the state it shows, at the clock's monotonic `now_ms`.

        Raises:
            BatchThrottled: more transactions are reading than the engine has room for.
        """
        self.end_old_readers(now_ms)
        try:
            snapshot = self._engine.snapshot()
        except ReadersExhaustedError:
            raise BatchThrottled("too many transactions are reading") from None
        self._reading[view] = now_ms
        return snapshot, read_meta(snapshot)

    def forget_snapshot(self, view: ReadView) -> None:
        """Hear that `view` is closed."""
        self._reading.pop(view, None)

    def end_old_readers(self, now_ms: float) -> None:
        """Close snapshots older than a transaction may live: an engine cannot reuse what they still show."""
        oldest_ms = now_ms - sizes.LIFETIME_MS_MAX
        while self._reading:
            view, since_ms = next(iter(self._reading.items()))
            if since_ms >= oldest_ms:
                return
            view.close()

    def _release(self) -> None:
        self.committer.close()


class _FileStore(EmbeddedStore):
    """A store on a folder; shares the folder's engine and committer with the process's other stores on it."""

    def __init__(self, folder: _Folder, clock: Clock, rng: random.Random) -> None:
        self._pipe = WakePipe(folder.board)
        watches = WatchTable(folder.engine, self._pipe)
        self._pipe.attach(watches)
        super().__init__(f"embedded:{folder.path}", folder.engine, folder.committer, watches, clock, rng)
        self._folder = folder
        self._timer: asyncio.TimerHandle | None = None

    def take_snapshot(self, view: ReadView, now_ms: float) -> tuple[Snapshot, Meta]:
        if self._timer is None:
            # An idle process must not hold an old snapshot either: others could not reuse the file's pages.
            self._timer = asyncio.get_running_loop().call_later(sizes.LIFETIME_MS_MAX / 1000, self._on_timer)
        return super().take_snapshot(view, now_ms)

    def _on_timer(self) -> None:
        self._timer = None
        self.end_old_readers(self.clock.monotonic_ms())
        if self._reading:
            self._timer = asyncio.get_running_loop().call_later(sizes.LIFETIME_MS_MAX / 1000, self._on_timer)

    def _release(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._pipe.close()
        _release_folder(self._folder)


class _Folder:
    """What one process has open of one folder. LMDB allows a file once a process, so its stores share this."""

    def __init__(self, path: Path, clock: Clock, map_bytes: int) -> None:
        self.path = path
        self.holder_count = 0
        try:
            is_new = not path.exists()
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            if is_new:
                _sync_folder(path.parent)
            self.engine = LmdbEngine(path, map_bytes=map_bytes)
        except OSError as error:
            raise StoreUnavailableError(f"{path} cannot be opened as a store: {error.strerror}") from error
        try:
            start = prepare(self.engine, monotonic_us(clock))
            self.board = WakeBoard(path)
            # A mark above what the file holds was left by another file, as when an older copy was put back.
            self.board.durable_version = min(self.board.durable_version, start.version)
            _sync_folder(path)
        except BaseException:
            self.engine.close()
            raise
        serializer = Serializer(self.engine, clock, start)
        self.committer = ThreadCommitter(self.engine, serializer, self.board.publish, self.board, clock)

    def close(self) -> None:
        self.committer.close()
        self.board.close()
        self.engine.close()


_folders: dict[Path, _Folder] = {}
_folders_lock = threading.Lock()


def _hold_folder(path: Path, clock: Clock, map_bytes: int) -> _Folder:
    with _folders_lock:
        folder = _folders.get(path)
        if folder is None:
            folder = _folders[path] = _Folder(path, clock, map_bytes)
        folder.holder_count += 1
        return folder


def _release_folder(folder: _Folder) -> None:
    with _folders_lock:
        folder.holder_count -= 1
        if folder.holder_count == 0:
            del _folders[folder.path]
            folder.close()


def _sync_folder(path: Path) -> None:
    """Make new names in `path` durable: a synced file whose name is lost is lost."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_embedded(
    path: Path, *, clock: Clock, rng: random.Random | None = None, map_bytes: int = MAP_BYTES
) -> EmbeddedStore:
    """Open or create the store in the folder `path`; any number of processes may have it open.

    Args:
        path: a folder that is the store's alone, on a local disk; made when missing, with its parents.
        clock: elapsed time for the 5 s rule and the pace of versions; its monotonic time must be the same in all processes
            that have the folder open, as a machine's is. The first store of a process on a folder sets the pace there.
        rng: spreads the pauses of retries; a generator of its own when None.
        map_bytes: how large the file may grow at most.

    Returns:
        The store; close it from the event loop that used it.

    Raises:
        StoreUnavailableError: not a store, of a later format, or not readable and writable; names the remedy.
    """
    if path.exists() and not path.is_dir():
        raise StoreUnavailableError(f"{path} is a file: an embedded store is a folder; choose another path")
    return _FileStore(_hold_folder(path.resolve(), clock, map_bytes), clock, rng or random.Random())


def memory_store(
    *, clock: Clock, engine: MemoryEngine | None = None, rng: random.Random | None = None
) -> EmbeddedStore:
    """Return a store in memory; one made anew on the same `engine` is a process that restarted.

    Args:
        clock: elapsed time for the 5 s rule and the pace of versions.
        engine: what the store shares with others of the same event loop; a new, empty one when None.
        rng: spreads the pauses of retries; seeded the same in every store when None, so that runs repeat.
    """
    shared = engine if engine is not None else MemoryEngine()
    watches = WatchTable(shared, _NoMarks())
    shared.listen(watches)

    def publish(changes: Changes) -> None:
        shared.tell([bucket_of(key) for key in changes.keys], changes.ranges)

    committer = InlineCommitter(Serializer(shared, clock, prepare(shared, monotonic_us(clock))), publish)
    return EmbeddedStore("memory", shared, committer, watches, clock, rng or random.Random(0))


class _NoMarks:
    """In memory every store hears of every change."""

    def claim(self) -> None:
        """Do nothing: there is room."""

    def mark(self, bucket: int, is_watched: bool) -> None:
        """Do nothing: nobody looks."""
