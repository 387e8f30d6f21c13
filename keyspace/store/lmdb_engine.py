"""The LMDB engine: one memory-mapped file, snapshot readers without locks, one writer over all processes.

A commit syncs its pages and then writes the small page that makes them the newest state, without syncing that one: any
later sync of the file does. A crash of the machine in between takes the last commit back whole.

LMDB keys end at 511 bytes and FoundationDB's at 10,000. Keys shorter than `SHARED_BYTES` are stored as they are. Longer
ones share the row of their first `SHARED_BYTES` bytes, whose value lists the remainders in order. No stored short key can
equal a shared row's key, and each compares with it as with every key inside, so the order of keys is the order of rows.

LMDB has no empty key and FoundationDB has: its value lies in a system row.

A process may open a file once (a limit of LMDB); `keyspace.store.embedded` sees to that.
"""

from __future__ import annotations

import errno
import os
import struct
from bisect import bisect_left
from pathlib import Path

import lmdb

from keyspace.store.api import KeyValue
from keyspace.store.engine import ReadersExhaustedError
from keyspace.store.errors import CommitUnknownResult, StoreUnavailableError
from keyspace.store.lmdb_room import Room

__all__ = ["MAP_BYTES", "READER_COUNT_MAX", "LmdbEngine"]

MAP_BYTES = 1 << 40
"""Address space reserved for the file, and so the largest it may grow. The file itself is as large as what it holds."""
MAP_BYTES_MIN = 1 << 30
"""Where halving the reservation ends when the host grants no more."""
READER_COUNT_MAX = 4096
"""Open snapshots over all processes."""
SHARED_BYTES = 500
EMPTY_KEY_ROW = b"\xff/empty"

_COUNTS = struct.Struct(">HI")


def _pack_row(pairs: list[KeyValue]) -> bytes:
    """Return the value of a shared row: for each remainder its length, its value's length, and both."""
    return b"".join(_COUNTS.pack(len(rest), len(value)) + rest + value for rest, value in pairs)


def _unpack_row(packed: bytes) -> list[KeyValue]:
    pairs: list[KeyValue] = []
    at = 0
    while at < len(packed):
        rest_bytes, value_bytes = _COUNTS.unpack_from(packed, at)
        at += _COUNTS.size
        pairs.append((packed[at : at + rest_bytes], packed[at + rest_bytes : at + rest_bytes + value_bytes]))
        at += rest_bytes + value_bytes
    return pairs


class _LmdbView:
    """Reads inside one LMDB transaction."""

    def __init__(self, txn: lmdb.Transaction[bytes]) -> None:
        self._txn = txn
        self._cursor: lmdb.Cursor[bytes] | None = None

    def get(self, key: bytes) -> bytes | None:
        try:
            if len(key) < SHARED_BYTES:
                return self._txn.get(key or EMPTY_KEY_ROW)
            rest = key[SHARED_BYTES:]
            return next((value for found, value in self._shared(key) if found == rest), None)
        except lmdb.Error as error:
            raise StoreUnavailableError(f"the store cannot be read: {error}") from error

    def get_range(self, begin: bytes, end: bytes, limit: int, reverse: bool) -> list[KeyValue]:
        try:
            return self._range(begin, end, limit, reverse)
        except lmdb.Error as error:
            raise StoreUnavailableError(f"the store cannot be read: {error}") from error

    def _range(self, begin: bytes, end: bytes, limit: int, reverse: bool) -> list[KeyValue]:
        cursor = self._cursor
        if cursor is None:
            cursor = self._cursor = self._txn.cursor()
        if begin:
            return (self._range_down if reverse else self._range_up)(cursor, begin, end, limit)
        empty_value = self._txn.get(EMPTY_KEY_ROW)
        first = [] if empty_value is None or not end else [(b"", empty_value)]
        if reverse:
            return (self._range_down(cursor, b"", end, limit) + first)[:limit]
        return (first + self._range_up(cursor, b"", end, limit))[:limit]

    def _range_up(self, cursor: lmdb.Cursor[bytes], begin: bytes, end: bytes, limit: int) -> list[KeyValue]:
        found: list[KeyValue] = []
        # A shared row holds keys from its own key on, so the row to start at may sort before `begin`.
        if not (cursor.set_range(begin[:SHARED_BYTES]) if begin else cursor.first()):
            return found
        for key, value in cursor.iternext():
            if key >= end:
                break
            if len(key) < SHARED_BYTES:
                found.append((key, value))
            else:
                found.extend(
                    (key + rest, part) for rest, part in _unpack_row(value) if begin <= key + rest and key + rest < end
                )
            if len(found) >= limit:
                break
        return found[:limit]

    def _range_down(self, cursor: lmdb.Cursor[bytes], begin: bytes, end: bytes, limit: int) -> list[KeyValue]:
        found: list[KeyValue] = []
        first_row = begin[:SHARED_BYTES]
        if cursor.set_range(end[:SHARED_BYTES]):
            # The row at the bound itself matters only when it is shared and `end` lies inside it.
            if not (len(end) > SHARED_BYTES and cursor.key() == end[:SHARED_BYTES]) and not cursor.prev():
                return found
        elif not cursor.last():
            return found
        for key, value in cursor.iterprev():
            if key < first_row:
                break
            if len(key) < SHARED_BYTES:
                found.append((key, value))
            else:
                found.extend(
                    (key + rest, part)
                    for rest, part in reversed(_unpack_row(value))
                    if begin <= key + rest and key + rest < end
                )
            if len(found) >= limit:
                break
        return found[:limit]

    def _shared(self, key: bytes) -> list[KeyValue]:
        packed = self._txn.get(key[:SHARED_BYTES])
        return [] if packed is None else _unpack_row(packed)


class _LmdbSnapshot(_LmdbView):
    def close(self) -> None:
        self._txn.abort()


class _LmdbWrite(_LmdbView):
    def __init__(self, engine: LmdbEngine, txn: lmdb.Transaction[bytes]) -> None:
        super().__init__(txn)
        self._engine = engine

    def put(self, key: bytes, value: bytes) -> None:
        try:
            if len(key) < SHARED_BYTES:
                self._txn.put(key or EMPTY_KEY_ROW, value)
            else:
                self._put_shared(key, value)
        except lmdb.Error as error:
            raise self._engine.refusal(error) from error

    def delete(self, key: bytes) -> None:
        try:
            if len(key) < SHARED_BYTES:
                self._txn.delete(key or EMPTY_KEY_ROW)
            else:
                self._put_shared(key, None)
        except lmdb.Error as error:
            raise self._engine.refusal(error) from error

    def delete_range(self, begin: bytes, end: bytes) -> None:
        try:
            if not begin and end:
                self._txn.delete(EMPTY_KEY_ROW)
            with self._txn.cursor() as cursor:
                is_placed = cursor.set_range(begin[:SHARED_BYTES]) if begin else cursor.first()
                while is_placed and cursor.key() < end:
                    key = cursor.key()
                    if len(key) < SHARED_BYTES:
                        is_placed = cursor.delete()
                        continue
                    kept = [pair for pair in _unpack_row(cursor.value()) if not begin <= key + pair[0] < end]
                    if kept:
                        self._txn.put(key, _pack_row(kept))
                        is_placed = cursor.set_range(key + b"\x00")
                    else:
                        is_placed = cursor.delete()
        except lmdb.Error as error:
            raise self._engine.refusal(error) from error

    def commit(self) -> bool:
        before = self._engine.prepare_commit()
        try:
            self._txn.commit()
        except (lmdb.Error, OSError) as error:
            if self._engine.last_id() != before or self._engine.has_panicked():
                raise CommitUnknownResult(f"the device failed while a commit was being written: {error}") from error
            raise self._engine.refusal(error) from error
        return False

    def abort(self) -> None:
        self._txn.abort()

    def _put_shared(self, key: bytes, value: bytes | None) -> None:
        row, rest = key[:SHARED_BYTES], key[SHARED_BYTES:]
        pairs = self._shared(key)
        at = bisect_left(pairs, rest, key=lambda pair: pair[0])
        is_present = at < len(pairs) and pairs[at][0] == rest
        pairs[at : at + is_present] = [] if value is None else [(rest, value)]
        if pairs:
            self._txn.put(row, _pack_row(pairs))
        else:
            self._txn.delete(row)


class LmdbEngine:
    """One open LMDB environment in a folder of its own."""

    def __init__(self, folder: Path, *, map_bytes: int = MAP_BYTES) -> None:
        """Open or create the environment in `folder`, which must exist.

        Raises:
            StoreUnavailableError: the files are not LMDB's, cannot be opened, or the host grants no address space.
        """
        self._folder = folder
        self._env = self._open(map_bytes)
        self._sync_failure: Exception | None = None
        self._page_bytes = self._env.stat()["psize"]
        self._room = Room(folder / "data.mdb")
        self._is_closed = False
        self.release_dead_readers()

    def _open(self, map_bytes: int) -> lmdb.Environment:
        while True:
            try:
                return lmdb.open(
                    str(self._folder),
                    map_size=map_bytes,
                    max_readers=READER_COUNT_MAX,
                    metasync=False,
                    readahead=False,
                    mode=0o600,
                )
            except lmdb.Error as error:
                # A host with an address-space limit grants less; the store then ends at what it grants.
                if error.code == errno.ENOMEM and map_bytes // 2 >= MAP_BYTES_MIN:
                    map_bytes //= 2
                    continue
                raise StoreUnavailableError(f"{self._folder} cannot be opened as a store: {error}") from error

    @property
    def name(self) -> str:
        """Return the folder."""
        return str(self._folder)

    def last_id(self) -> int:
        """Return LMDB's id of the last committed write."""
        return self._env.info()["last_txnid"]

    def prepare_commit(self) -> int:
        """Make room in the file for the write that is open, and return LMDB's id of the last committed one."""
        info = self._env.info()
        self._room.make((info["last_pgno"] + 1) * self._page_bytes, info["map_size"])
        return info["last_txnid"]

    def has_panicked(self) -> bool:
        """Return whether LMDB gave up on this environment: the page that makes a commit one could not be written."""
        try:
            self._env.begin(write=True).abort()
        except lmdb.PanicError:
            return True
        except lmdb.Error:
            return False
        return False

    def snapshot(self) -> _LmdbSnapshot:
        """Return a snapshot; costs about a microsecond and one reader slot."""
        try:
            return _LmdbSnapshot(self._begin(write=False))
        except lmdb.ReadersFullError:
            if not self.release_dead_readers():
                raise ReadersExhaustedError from None
            return self.snapshot()
        except lmdb.Error as error:
            raise self.refusal(error) from error

    def write(self) -> _LmdbWrite:
        """Begin the write. The lock is a robust mutex: the next writer takes it over from a process that died."""
        if self._sync_failure is not None:
            raise self.refusal(self._sync_failure)
        try:
            return _LmdbWrite(self, self._begin(write=True))
        except (lmdb.Error, OSError) as error:
            raise self.refusal(error) from error

    def sync(self) -> None:
        """Sync the file; one that fails is the last, since the kernel may have dropped what it could not write."""
        try:
            self._env.sync(True)
        except (lmdb.Error, OSError) as error:
            self._sync_failure = error
            raise self.refusal(error) from error

    def release_dead_readers(self) -> int:
        """Free the slots of processes that died with a snapshot open; their pages can be used again."""
        try:
            return self._env.reader_check()
        except lmdb.Error as error:
            raise self.refusal(error) from error

    def close(self) -> None:
        """Close the environment; snapshots must be closed before."""
        if not self._is_closed:
            self._is_closed = True
            self._room.close()
            self._env.close()

    def refusal(self, error: Exception) -> StoreUnavailableError:
        """Return the refusal for a write that failed and left nothing behind."""
        if isinstance(error, lmdb.MapFullError):
            remedy = f"it has reached the {self._env.info()['map_size']} bytes it may grow to; delete old runs"
        elif getattr(error, "code", 0) in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) or _is_out_of_space(error):
            remedy = "the disk is full; free some space, nothing was written"
        elif isinstance(error, lmdb.PanicError):
            remedy = "a commit failed half way on the device; see to the disk, then restart this process"
        elif getattr(error, "code", 0) == errno.EIO or os.strerror(errno.EIO) in str(error):
            # LMDB reports a write that came out short, as the last one on a full disk does, as an input/output error.
            remedy = "the disk is full or failing; free some space, nothing was written"
        else:
            remedy = f"{type(error).__name__}: {error}"
        return StoreUnavailableError(f"the store {self._folder} cannot be written: {remedy}")

    def _begin(self, *, write: bool) -> lmdb.Transaction[bytes]:
        try:
            return self._env.begin(write=write)
        except lmdb.MapResizedError:
            # Another process reserved more than this one; take over its size.
            self._env.set_mapsize(0)
            return self._env.begin(write=write)


def _is_out_of_space(error: Exception) -> bool:
    """Return whether an error that carries no code says that space has run out."""
    return any(os.strerror(code) in str(error) for code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
