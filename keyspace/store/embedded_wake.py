"""Wake-ups between processes on one store folder: who watches which bucket of keys, and a pipe to tell them.

`watch-1` is a small memory-mapped file of `SLOT_COUNT` slots, one for each store that watches anything:

    0     the greatest commit version known to be durable
    64    active flags, a byte a slot
    128   missed flags, a byte a slot
    192   for each slot a row of BUCKET_COUNT bytes, not 0 where the store watches a key of that bucket

Only a slot's owner writes its row. A slot's owner holds the lock of its pipe `wake-<slot>`; the kernel drops it when the
owner dies, whichever way. A committer looks its written buckets up in every active row, after its commit, and writes one
small notice into the pipe of each process concerned. Nothing here is ever waited for, and nothing of it is durable.
"""

from __future__ import annotations

import asyncio
import fcntl
import mmap
import os
import struct
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from keyspace.store.api import KeyRange
from keyspace.store.embedded_commit import Changes
from keyspace.store.embedded_watch import BUCKET_COUNT, WatchTable, bucket_of
from keyspace.store.errors import StoreUnavailableError

__all__ = ["SLOT_COUNT", "WakeBoard", "WakePipe"]

SLOT_COUNT = 64
"""Stores that may watch one folder at the same time."""
_ACTIVE_AT = 64
_MISSED_AT = _ACTIVE_AT + SLOT_COUNT
_ROWS_AT = _MISSED_AT + SLOT_COUNT
_FILE_BYTES = _ROWS_AT + SLOT_COUNT * BUCKET_COUNT
NOTICE_BYTES_MAX = 4_096
"""What a pipe takes whole or not at all (PIPE_BUF on Linux)."""
BOUND_BYTES_MAX = 1_000
"""A cleared range with a longer bound is told as "look at everything"."""
READ_BYTES = 1 << 16

_BUCKET = struct.Struct(">cH")
_RANGE = struct.Struct(">cHH")
_BUCKET_KIND, _RANGE_KIND, _ALL_KIND = b"b", b"r", b"a"
_ALL_NOTICE = _BUCKET.pack(_ALL_KIND, 0)


def _pipe_path(folder: Path, slot: int) -> Path:
    return folder / f"wake-{slot:02d}"


def _open_locked(path: Path) -> int | None:
    """Return a locked descriptor of the slot's pipe, or None when its owner lives."""
    descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


class WakeBoard:
    """The mapped file as one process sees it; tells other stores of this process's commits."""

    def __init__(self, folder: Path) -> None:
        """Open or create the board in `folder`."""
        self.folder = folder
        descriptor = os.open(folder / "watch-1", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if os.fstat(descriptor).st_size < _FILE_BYTES:
                os.ftruncate(descriptor, _FILE_BYTES)
            self._map = mmap.mmap(descriptor, _FILE_BYTES)
        finally:
            os.close(descriptor)
        self._versions = memoryview(self._map)[:8].cast("Q")
        self._fence = threading.Lock()
        self._writers: dict[int, int] = {}

    @property
    def durable_version(self) -> int:
        """The greatest commit version known to be durable: may lag behind the truth and never leads it."""
        return self._versions[0]

    @durable_version.setter
    def durable_version(self, version: int) -> None:
        # Eight aligned bytes are stored at once. Two processes may store in either order, and then it lags.
        self._versions[0] = version

    def claim(self) -> tuple[int, int]:
        """Take a free slot, dead owners' included, and return it with its pipe's descriptor.

        Raises:
            StoreUnavailableError: every slot has a living owner.
        """
        for slot in range(SLOT_COUNT):
            path = _pipe_path(self.folder, slot)
            with suppress(FileExistsError):
                os.mkfifo(path, 0o600)
            descriptor = _open_locked(path)
            if descriptor is not None:
                row = _ROWS_AT + slot * BUCKET_COUNT
                self._map[row : row + BUCKET_COUNT] = bytes(BUCKET_COUNT)
                self._map[_MISSED_AT + slot] = 0
                self._map[_ACTIVE_AT + slot] = 1
                return slot, descriptor
        raise StoreUnavailableError(f"{self.folder} is watched by {SLOT_COUNT} stores already; end one")

    def release(self, slot: int, descriptor: int) -> None:
        """Give a slot back."""
        self._map[_ACTIVE_AT + slot] = 0
        os.close(descriptor)

    def mark(self, slot: int, bucket: int, is_watched: bool) -> None:
        """Say whether `slot` watches a key of `bucket`; on return every later commit of any process sees it."""
        self._map[_ROWS_AT + slot * BUCKET_COUNT + bucket] = int(is_watched)
        # Taking a lock is a full memory barrier: the caller's next look at the store comes after the mark.
        with self._fence:
            pass

    def take_missed(self, slot: int) -> bool:
        """Return whether a notice to `slot` did not fit its pipe since the last call."""
        is_missed = self._map[_MISSED_AT + slot] != 0
        if is_missed:
            self._map[_MISSED_AT + slot] = 0
            with self._fence:
                pass
        return is_missed

    def publish(self, changes: Changes) -> None:
        """Tell every store that watches what `changes` wrote; called by the committer after its commit."""
        active = self._map[_ACTIVE_AT : _ACTIVE_AT + SLOT_COUNT]
        slot = active.find(1)
        if slot < 0:
            return
        buckets = [bucket_of(key) for key in changes.keys]
        while slot >= 0:
            row = _ROWS_AT + slot * BUCKET_COUNT
            watched = {bucket for bucket in buckets if self._map[row + bucket]}
            if watched or changes.ranges:
                self._tell(slot, _notice(watched, changes.ranges))
            slot = active.find(1, slot + 1)

    def close(self) -> None:
        """Unmap the file and close the pipes."""
        for descriptor in self._writers.values():
            os.close(descriptor)
        self._writers.clear()
        self._versions.release()
        self._map.close()

    def _tell(self, slot: int, notice: bytes) -> None:
        try:
            os.write(self._writer(slot), notice)
        except BlockingIOError:
            # A full pipe wakes its reader by itself. The flag is set before the second try, so that a reader who emptied
            # the pipe in between gets the notice, and one who did not sees the flag when it has.
            self._map[_MISSED_AT + slot] = 1
            with suppress(BlockingIOError, BrokenPipeError):
                os.write(self._writer(slot), _ALL_NOTICE)
        except OSError:
            self._retire(slot)

    def _writer(self, slot: int) -> int:
        descriptor = self._writers.get(slot)
        if descriptor is None:
            descriptor = os.open(_pipe_path(self.folder, slot), os.O_WRONLY | os.O_NONBLOCK)
            self._writers[slot] = descriptor
        return descriptor

    def _retire(self, slot: int) -> None:
        """Take the slot of a dead owner out of use; a living one holds the lock and keeps it."""
        # A pipe that cannot be opened any more has no reader to lose either.
        with suppress(OSError):
            descriptor = _open_locked(_pipe_path(self.folder, slot))
            if descriptor is not None:
                self.release(slot, descriptor)


def _notice(buckets: Iterable[int], ranges: Iterable[KeyRange]) -> bytes:
    parts = [_BUCKET.pack(_BUCKET_KIND, bucket) for bucket in buckets]
    for begin, end in ranges:
        if max(len(begin), len(end)) > BOUND_BYTES_MAX:
            return _ALL_NOTICE
        parts += (_RANGE.pack(_RANGE_KIND, len(begin), len(end)), begin, end)
    notice = b"".join(parts)
    return notice if len(notice) <= NOTICE_BYTES_MAX else _ALL_NOTICE


class WakePipe:
    """One store's slot: marks what it watches and hears of changes on its event loop. Claimed at the first watch."""

    def __init__(self, board: WakeBoard) -> None:
        """Use `board`; `attach` the table before the first mark."""
        self._board = board
        self._slot: int | None = None
        self._descriptor = -1
        self._rest = b""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._table: WatchTable | None = None

    def attach(self, table: WatchTable) -> None:
        """Tell `table` of changes."""
        self._table = table

    def claim(self) -> None:
        """Take a slot, unless the store has one."""
        if self._slot is None:
            self._loop = asyncio.get_running_loop()
            self._slot, self._descriptor = self._board.claim()
            # What a former owner left in the pipe is read as notices to look again, which are harmless.
            self._loop.add_reader(self._descriptor, self._on_readable)

    def mark(self, bucket: int, is_watched: bool) -> None:
        """Say whether the store watches a key of `bucket`."""
        assert self._slot is not None, "a slot is claimed before the first watch"
        self._board.mark(self._slot, bucket, is_watched)

    def close(self) -> None:
        """Give the slot back."""
        if self._slot is None:
            return
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._descriptor)
        self._board.release(self._slot, self._descriptor)
        self._slot = None

    def _read(self) -> bytes:
        try:
            return os.read(self._descriptor, READ_BYTES)
        except BlockingIOError:
            return b""

    def _on_readable(self) -> None:
        assert self._table is not None and self._slot is not None
        received = self._read()
        buckets, ranges, is_all, self._rest = _parse(self._rest + received)
        # A pipe holds at most READ_BYTES; one read empties it unless more has come, which wakes this again.
        if self._board.take_missed(self._slot) or is_all:
            self._table.notify_all()
        else:
            self._table.notify(buckets, ranges)


def _parse(received: bytes) -> tuple[set[int], list[KeyRange], bool, bytes]:
    """Return the notices in `received`, whether one said "everything", and the unfinished end."""
    buckets: set[int] = set()
    ranges: list[KeyRange] = []
    is_all = False
    at = 0
    while at + _BUCKET.size <= len(received):
        kind = received[at : at + 1]
        if kind == _RANGE_KIND:
            if at + _RANGE.size > len(received):
                break
            _, begin_bytes, end_bytes = _RANGE.unpack_from(received, at)
            begin_at = at + _RANGE.size
            if begin_at + begin_bytes + end_bytes > len(received):
                break
            end_at = begin_at + begin_bytes
            ranges.append(KeyRange(received[begin_at:end_at], received[end_at : end_at + end_bytes]))
            at = end_at + end_bytes
            continue
        _, bucket = _BUCKET.unpack_from(received, at)
        is_all = is_all or kind == _ALL_KIND
        buckets.add(bucket)
        at += _BUCKET.size
    return buckets, ranges, is_all, received[at:]
