"""One attempt on the embedded store, with FoundationDB's rules for what it sees, what it conflicts with and what it costs.

Reads are done when they are issued: they take microseconds. Errors of reads are raised when the read is awaited, as a
cluster's would be; errors of writes at once, and again by `commit` if the caller looked away.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Generator
from enum import Enum
from typing import Any, TypeVar

from keyspace.store import sizes
from keyspace.store.api import KeyRange, KeyValue
from keyspace.store.embedded_commit import CommitRequest
from keyspace.store.embedded_footprint import INVALID_OPERATION_CODE, Footprint, check_offset, check_pair, check_range
from keyspace.store.embedded_ranges import key_after
from keyspace.store.embedded_read import Failed, Ready, read_extent, read_range
from keyspace.store.embedded_view import ReadView, TransactionHost
from keyspace.store.embedded_watch import UNKNOWN, EmbeddedWatch
from keyspace.store.embedded_writes import Op, OwnWrites, Pending
from keyspace.store.errors import (
    AccessedUnreadable,
    KeyOutsideLegalRange,
    OutcomeUnknownError,
    RetryableError,
    StoreError,
    TransactionCancelled,
    TransactionTooLarge,
    TransactionTooOld,
    UsageError,
    UsedDuringCommit,
)
from keyspace.store.meter import TransactionCounts

__all__ = ["EmbeddedTransaction"]

NO_VERSION_CODE = 2021
RANGE_LIMITS_CODE = 2012
CANCELLED_CODE = 1101
_INT64 = struct.Struct("<q")

P = TypeVar("P")
Q = TypeVar("Q")


class _State(Enum):
    OPEN = "open"
    COMMITTING = "committing"
    COMMITTED = "committed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class _Stamp:
    """The commit's stamp, awaitable any number of times once the attempt has ended."""

    def __init__(self, transaction: EmbeddedTransaction) -> None:
        self._transaction = transaction

    def __await__(self) -> Generator[object, None, bytes]:
        return self._transaction.wait_for_stamp().__await__()


class EmbeddedTransaction:
    """See `keyspace.store.api.Transaction`."""

    __slots__ = (
        "_ended",
        "_failed_read",
        "_footprint",
        "_is_usable",
        "_refused",
        "_request",
        "_state",
        "_store",
        "_view",
        "_watches",
        "_writes",
    )

    def __init__(self, store: TransactionHost) -> None:
        """Begin an attempt on `store`; its read version is taken at its first read."""
        self._store = store
        self._state = _State.OPEN
        # Open and nothing refused: what nearly every operation finds, in one look.
        self._is_usable = True
        self._refused: StoreError | None = None
        self._failed_read: StoreError | None = None
        self._view = ReadView(store)
        self._writes = OwnWrites()
        self._footprint = Footprint()
        self._watches: list[EmbeddedWatch] = []
        self._request: CommitRequest | None = None
        self._ended: asyncio.Event | None = None

    # -- reads ---------------------------------------------------------------------------------------------------------

    def get(self, key: bytes, *, snapshot: bool = False) -> Awaitable[bytes | None]:
        """Read one key, this transaction's own writes included."""
        try:
            return Ready(self._get(key, snapshot))
        except StoreError as error:
            return self._fail_read(error)

    def get_range(
        self, begin: bytes, end: bytes, *, limit: int, reverse: bool = False, snapshot: bool = False
    ) -> Awaitable[list[KeyValue]]:
        """Read at most `limit` pairs of [begin, end); an inverted range is empty, as on a cluster."""
        try:
            return Ready(self._get_range(begin, end, limit, reverse, snapshot))
        except StoreError as error:
            return self._fail_read(error)

    def get_read_version(self) -> Awaitable[int]:
        """Return the version this transaction reads at."""
        try:
            self._check_open()
            self._view.open()
        except StoreError as error:
            return Failed(error)
        return Ready(self._view.read_version)

    def watch(self, key: bytes) -> EmbeddedWatch:
        """Watch `key` from what this transaction leaves there; reads the key, and so conflicts with it.

        Raises:
            TooManyWatches: the store holds as many as it may.
            StoreError: as for a read of the key.
        """
        self._check_pair(key, b"")
        value = self._get(key, False)
        is_own, state = self._writes.state(key)
        stored = self._view.open().get(key) if is_own and isinstance(state, Pending) else value
        watch = self._store.watches.create(key, stored)
        self._watches.append(watch)
        return watch

    def _get(self, key: bytes, snapshot: bool) -> bytes | None:
        if not self._is_usable:
            self._check_open()
        footprint, writes = self._footprint, self._writes
        footprint.read_count += 1
        if key >= sizes.SYSTEM_KEYS_BEGIN:
            raise KeyOutsideLegalRange()
        if len(key) > sizes.KEY_BYTES_MAX:
            return None
        state = None
        if not writes.is_empty:
            if writes.is_unreadable(key):
                raise AccessedUnreadable()
            is_own, state = writes.state(key)
            if is_own and not isinstance(state, Pending):
                return state
        stored = self._view.open().get(key)
        if not snapshot:
            footprint.read_key(key)
        return state.resolve(stored) if isinstance(state, Pending) else stored

    def _get_range(self, begin: bytes, end: bytes, limit: int, reverse: bool, snapshot: bool) -> list[KeyValue]:
        self._check_open()
        self._footprint.read_count += 1
        if begin > sizes.SYSTEM_KEYS_BEGIN or end > sizes.SYSTEM_KEYS_BEGIN:
            raise KeyOutsideLegalRange()
        if limit < 1:
            raise UsageError(f"a range read needs a limit of at least 1 limit={limit}", code=RANGE_LIMITS_CODE)
        if begin >= end:
            return []
        view = self._view.open()
        if self._writes.is_empty:
            rows = view.get_range(begin, end, limit, reverse)
            if not snapshot:
                self._footprint.read_range(read_extent(begin, end, rows, limit, reverse), self._writes)
            return rows
        rows = read_range(view, self._writes, begin, end, limit, reverse)
        extent = read_extent(begin, end, rows, limit, reverse)
        if self._writes.is_range_unreadable(*extent):
            raise AccessedUnreadable()
        if not snapshot:
            self._footprint.read_range(extent, self._writes)
        return rows

    # -- conflict ranges -----------------------------------------------------------------------------------------------

    def add_read_conflict_key(self, key: bytes) -> None:
        """Conflict with later writers of `key`, unless this transaction has decided its value."""
        self.add_read_conflict_range(key, key_after(key))

    def add_read_conflict_range(self, begin: bytes, end: bytes) -> None:
        """Conflict with later writers of [begin, end), except where this transaction has decided the values."""
        self._checked(check_range, begin, end)
        if begin < end:
            self._footprint.read_range(KeyRange(begin, end), self._writes)

    def add_write_conflict_key(self, key: bytes) -> None:
        """Conflict later committers that read `key`, without writing it."""
        self._checked(check_range, key, key_after(key))
        self._footprint.mark_key(key)

    def read_conflict_ranges(self) -> Awaitable[list[KeyRange]]:
        """Return the merged read conflict ranges so far."""
        return Ready(self._footprint.merged_reads())

    def write_conflict_ranges(self) -> Awaitable[list[KeyRange]]:
        """Return the merged write conflict ranges so far; a stamped key's is everywhere it may come to lie."""
        return Ready(self._footprint.merged_writes())

    # -- writes --------------------------------------------------------------------------------------------------------

    def set(self, key: bytes, value: bytes) -> None:
        """Write one pair.

        Raises:
            LimitError: the key or the value can never be stored.
        """
        if not (
            self._is_usable
            and key < sizes.SYSTEM_KEYS_BEGIN
            and len(key) <= sizes.KEY_BYTES_MAX
            and len(value) <= sizes.VALUE_BYTES_MAX
        ):
            self._check_pair(key, value)
        self._footprint.write_key(key, sizes.set_bytes(len(key), len(value)))
        self._writes.set(key, value)

    def clear(self, key: bytes) -> None:
        """Remove one key; one that is too long to exist is ignored, as on a cluster."""
        if len(key) > sizes.KEY_BYTES_MAX and key < sizes.SYSTEM_KEYS_BEGIN:
            self._check_open()
            return
        self._check_pair(key, b"")
        self._footprint.write_key(key, sizes.clear_key_bytes(len(key)))
        self._writes.clear(key)

    def clear_range(self, begin: bytes, end: bytes) -> None:
        """Remove every key of [begin, end).

        Raises:
            InvertedRange: the range begins after its end.
        """
        self._checked(check_range, begin, end)
        self._footprint.write_range(KeyRange(begin, end))
        if begin < end:
            self._writes.clear_range(begin, end)

    def add(self, key: bytes, delta: int) -> None:
        """Add `delta` (-2**63 to 2**63-1) to an 8-byte little-endian integer.

        Raises:
            UsageError: `delta` does not fit eight bytes.
        """
        try:
            operand = _INT64.pack(delta)
        except struct.error:
            raise UsageError(f"a delta must fit eight bytes delta={delta}", code=INVALID_OPERATION_CODE) from None
        self._atomic(Op.ADD, key, operand)

    def byte_max(self, key: bytes, value: bytes) -> None:
        """Store the greater of the present value and `value` in byte order."""
        self._atomic(Op.BYTE_MAX, key, value)

    def set_versionstamped_key(self, key: bytes, offset: int, value: bytes) -> None:
        """Write a pair whose key receives the commit's stamp at `offset`; where it may come to lie is unreadable."""
        self._check_pair(key, value, key_extra=sizes.OFFSET_BYTES)
        self._checked(check_offset, key, offset)
        self._footprint.stamp_key(
            key, value, self._writes.stamp_key(key, offset, value, self._view.commit_version or 0)
        )

    def set_versionstamped_value(self, key: bytes, value: bytes, offset: int) -> None:
        """Write a pair whose value receives the commit's stamp at `offset`; the key becomes unreadable."""
        self._check_pair(key, value, value_extra=sizes.OFFSET_BYTES)
        self._checked(check_offset, value, offset)
        self._footprint.write_key(key, sizes.atomic_bytes(len(key), len(value) + sizes.OFFSET_BYTES))
        self._writes.stamp_value(key, value, offset)

    def _atomic(self, op: Op, key: bytes, operand: bytes) -> None:
        self._check_pair(key, operand)
        self._footprint.write_key(key, sizes.atomic_bytes(len(key), len(operand)))
        self._writes.atomic(op, key, operand)

    def _check_open(self) -> None:
        if self._state is not _State.OPEN:
            raise TransactionCancelled() if self._state is _State.CANCELLED else UsedDuringCommit()
        if self._refused is not None:
            raise self._refused

    def _check_pair(self, key: bytes, value: bytes, *, key_extra: int = 0, value_extra: int = 0) -> None:
        self._check_open()
        try:
            check_pair(key, value, key_extra=key_extra, value_extra=value_extra)
        except StoreError as error:
            self._refuse(error)
            raise

    def _refuse(self, error: StoreError) -> None:
        self._refused = error
        self._is_usable = False

    def _checked(self, check: Callable[[P, Q], None], first: P, second: Q) -> None:
        """Check an operation, and remember a refusal: an attempt whose write was refused can never commit without it."""
        self._check_open()
        try:
            check(first, second)
        except StoreError as error:
            self._refuse(error)
            raise

    def _fail_read(self, error: StoreError) -> Failed[Any]:
        """Remember a read that began and failed: a cluster's client refuses the commit for it, even when it was swallowed."""
        if isinstance(error, AccessedUnreadable | RetryableError):
            self._failed_read = error
        return Failed(error)

    # -- the end -------------------------------------------------------------------------------------------------------

    async def commit(self) -> None:
        """Commit; when this returns the writes are durable and visible to every later read version.

        Raises:
            StoreError: as `keyspace.store.api.Transaction.commit` says. Cancelled while waiting, it may commit or not.
        """
        self._check_open()
        self._state = _State.COMMITTING
        self._is_usable = False
        try:
            await self._commit()
        except StoreError as error:
            self._end(_State.FAILED, error)
            raise
        except BaseException:
            self._end(
                _State.FAILED, OutcomeUnknownError("the commit was cancelled and may have landed", code=CANCELLED_CODE)
            )
            raise
        self._end(_State.COMMITTED, None)

    async def _commit(self) -> None:
        if self._failed_read is not None:
            raise self._failed_read
        footprint = self._footprint
        if self._writes.is_empty and not footprint.write_keys and not footprint.write_ranges:
            self._expect_watched()
            self._view.close()
            if self._view.commit_version is not None:
                await self._store.committer.make_durable(self._view.commit_version)
            return
        size_bytes, limit = footprint.size_bytes, sizes.TRANSACTION_BYTES_MAX
        if size_bytes > limit:
            raise TransactionTooLarge(f"the transaction exceeds the byte limit bytes={size_bytes} limit={limit}")
        if self._view.is_too_old():
            # Also when all reads were snapshot reads: a cluster's client makes every writer conflict with itself, and so
            # it depends on its read version.
            raise TransactionTooOld()
        self._expect_watched()
        request = CommitRequest(
            writes=self._writes.flattened(),
            read_version=self._view.commit_version,
            read_keys=footprint.read_keys,
            read_ranges=footprint.read_ranges,
            write_keys=footprint.write_keys,
            write_ranges=footprint.write_ranges,
            size_bytes=size_bytes,
        )
        self._view.close()
        await self._store.committer.commit(request)
        self._request = request

    def _expect_watched(self) -> None:
        """Work out what this transaction leaves in each watched key."""
        for watch in self._watches:
            is_own, state = self._writes.state(watch.key)
            if self._writes.is_unreadable(watch.key):
                watch.expected = UNKNOWN
            elif isinstance(state, Pending):
                stored = watch.expected
                assert stored is None or isinstance(stored, bytes)
                watch.expected = state.resolve(stored)
            elif is_own:
                watch.expected = state

    def committed_version(self) -> int:
        """Return the commit version after a successful `commit`; -1 for a read-only transaction."""
        return -1 if self._request is None else self._request.version

    def get_versionstamp(self) -> Awaitable[bytes]:
        """Return an awaitable for the commit's stamp; ask before `commit`, await after it."""
        return _Stamp(self)

    async def wait_for_stamp(self) -> bytes:
        """Return the stamp once the attempt has ended.

        Raises:
            StoreError: it did not commit, or wrote nothing.
        """
        while self._state in (_State.OPEN, _State.COMMITTING):
            if self._ended is None:
                self._ended = asyncio.Event()
            await self._ended.wait()
        if self._request is not None:
            return self._request.stamp
        if self._state is _State.COMMITTED:
            raise UsageError("a transaction that wrote nothing has no stamp", code=NO_VERSION_CODE)
        raise self._refused or TransactionCancelled()

    def cancel(self) -> None:
        """End the attempt without committing; does nothing to one that has ended or is committing."""
        if self._state is _State.OPEN:
            self._end(_State.CANCELLED, TransactionCancelled())

    def approximate_size(self) -> Awaitable[int]:
        """Return the size in bytes as FoundationDB accounts it."""
        return Ready(self._footprint.size_bytes)

    def counts(self) -> TransactionCounts:
        """Return what the attempt has asked of the store so far."""
        return self._footprint.counts()

    def _end(self, state: _State, error: StoreError | None) -> None:
        self._view.close()
        self._state = state
        self._is_usable = False
        if error is None:
            if self._watches:
                self._store.watches.arm(self._watches)
        else:
            self._refused = error
            for watch in self._watches:
                watch.end(error)
        if self._ended is not None:
            self._ended.set()
