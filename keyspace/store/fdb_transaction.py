"""One attempt on a FoundationDB cluster. Only `fdb_adapter` imports this.

Errors of reads are raised when the read is awaited; errors of writes at once, and again by everything after, so that an
attempt whose write was refused never commits without it. The client itself reports a refused write only at the next
read or at the commit, so keys and values are checked before they are handed over.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

from keyspace.store import sizes
from keyspace.store.api import KeyRange, KeyValue
from keyspace.store.errors import (
    InvertedRange,
    KeyOutsideLegalRange,
    KeyTooLarge,
    StoreError,
    TransactionCancelled,
    UsageError,
    UsedDuringCommit,
    ValueTooLarge,
)
from keyspace.store.fdb_native import (
    NativeAnswer,
    NativeClient,
    NativeRange,
    NativeRefusal,
    as_bytes,
    as_nothing,
    as_number,
    as_value,
)
from keyspace.store.meter import TransactionCounts
from keyspace.store.stamps import STAMP_BYTES

__all__ = ["FdbTransaction", "FdbWatch", "Outstanding"]

T = TypeVar("T")

_SPECIAL_READ_CONFLICTS = b"\xff\xff/transaction/read_conflict_range/"
_SPECIAL_WRITE_CONFLICTS = b"\xff\xff/transaction/write_conflict_range/"
_SPECIAL_END = b"\xff\xff"
_CONFLICT_ROWS_MAX = 100_000
_INVALID_OPERATION = 2000
_RANGE_LIMITS_INVALID = 2012
_OFFSET = struct.Struct("<I")
_INT64 = struct.Struct("<q")


@dataclass(slots=True)
class Outstanding:
    """What a store's transactions have under way when it is closed."""

    commits: set[asyncio.Future[None]] = field(default_factory=set)
    watches: set[FdbWatch] = field(default_factory=set)


class _State(Enum):
    OPEN = "open"
    ENDED = "ended"
    CANCELLED = "cancelled"


class FdbTransaction:
    """One attempt in one native transaction. See `keyspace.store.api.Transaction`."""

    def __init__(self, client: NativeClient, native: Any, outstanding: Outstanding) -> None:
        """Use a new `native` transaction; `outstanding` keeps what the store must wait for or cancel at its end."""
        self._client = client
        self._outstanding = outstanding
        self._native = native
        self._state = _State.OPEN
        self._refused: StoreError | None = None
        self._read_count = 0
        self._write_count = 0
        self._size_bytes = 0

    def counts(self) -> TransactionCounts:
        """Return what was asked, with the size by our formula; the client's own figure takes a trip to its thread."""
        return TransactionCounts(self._read_count, self._write_count, self._size_bytes)

    # -- reads ---------------------------------------------------------------------------------------------------------

    def get(self, key: bytes, *, snapshot: bool = False) -> Awaitable[bytes | None]:
        """Issue a read of one key."""
        self._read_count += 1
        if key >= sizes.SYSTEM_KEYS_BEGIN:
            # The client would answer from its special keys, which are no part of the port.
            return NativeRefusal(KeyOutsideLegalRange())
        if not snapshot:
            self._size_bytes += sizes.conflict_key_bytes(len(key))
        native = self._native.snapshot if snapshot else self._native
        return self._answer(lambda: native.get(key), as_value)

    def get_range(
        self, begin: bytes, end: bytes, *, limit: int, reverse: bool = False, snapshot: bool = False
    ) -> Awaitable[list[KeyValue]]:
        """Issue a range read; the first batch travels at once, further ones, if the cluster splits it, when awaited."""
        self._read_count += 1
        if limit < 1:
            error = UsageError(f"a range read needs a limit of at least 1 limit={limit}", code=_RANGE_LIMITS_INVALID)
            return NativeRefusal(error)
        if begin > sizes.SYSTEM_KEYS_BEGIN or end > sizes.SYSTEM_KEYS_BEGIN:
            return NativeRefusal(KeyOutsideLegalRange())
        if not snapshot:
            self._size_bytes += sizes.conflict_range_bytes(len(begin), len(end))
        return self._range(begin, end, limit=limit, reverse=reverse, snapshot=snapshot)

    def get_read_version(self) -> Awaitable[int]:
        """Ask for the read version."""
        return self._answer(self._native.get_read_version, as_number)

    def watch(self, key: bytes) -> FdbWatch:
        """Make a watch, live from this transaction's commit on; reads the key, and so conflicts with it."""
        self._check_open()
        self._check_key(key)
        self._size_bytes += sizes.conflict_key_bytes(len(key))
        return FdbWatch(self._client, self._outstanding.watches, self._native, self._native.watch(key))

    # -- writes --------------------------------------------------------------------------------------------------------

    def set(self, key: bytes, value: bytes) -> None:
        """Write one pair."""
        self._check_pair(key, value)
        self._count_write(sizes.set_bytes(len(key), len(value)))
        self._native.set(key, value)

    def clear(self, key: bytes) -> None:
        """Remove one key; one that is too long to exist is ignored."""
        self._check_open()
        if key < sizes.SYSTEM_KEYS_BEGIN and len(key) > sizes.KEY_BYTES_MAX:
            return
        self._check_key(key)
        self._count_write(sizes.clear_key_bytes(len(key)))
        self._native.clear(key)

    def clear_range(self, begin: bytes, end: bytes) -> None:
        """Remove a range."""
        self._check_open()
        self._check_range(begin, end)
        self._count_write(sizes.clear_range_bytes(len(begin), len(end)))
        self._native.clear_range(begin, end)

    def add(self, key: bytes, delta: int) -> None:
        """Add to a little-endian integer of 8 bytes."""
        try:
            operand = _INT64.pack(delta)
        except struct.error:
            raise UsageError(f"a delta must fit eight bytes delta={delta}", code=_INVALID_OPERATION) from None
        self._check_pair(key, operand)
        self._count_write(sizes.atomic_bytes(len(key), len(operand)))
        self._native.add(key, operand)

    def byte_max(self, key: bytes, value: bytes) -> None:
        """Keep the greater value."""
        self._check_pair(key, value)
        self._count_write(sizes.atomic_bytes(len(key), len(value)))
        self._native.byte_max(key, value)

    def set_versionstamped_key(self, key: bytes, offset: int, value: bytes) -> None:
        """Write under a stamped key; the client takes the offset as the key's last 4 bytes, little-endian."""
        self._check_pair(key, value, key_extra=sizes.OFFSET_BYTES)
        self._check_offset(key, offset)
        self._count_write(sizes.stamped_key_bytes(len(key), len(value)))
        self._native.set_versionstamped_key(key + _OFFSET.pack(offset), value)

    def set_versionstamped_value(self, key: bytes, value: bytes, offset: int) -> None:
        """Write a stamped value; the client takes the offset as the value's last 4 bytes, little-endian."""
        self._check_pair(key, value, value_extra=sizes.OFFSET_BYTES)
        self._check_offset(value, offset)
        self._count_write(sizes.atomic_bytes(len(key), len(value) + sizes.OFFSET_BYTES))
        self._native.set_versionstamped_value(key, value + _OFFSET.pack(offset))

    # -- conflict ranges -----------------------------------------------------------------------------------------------

    def add_read_conflict_key(self, key: bytes) -> None:
        """Depend on one key."""
        self.add_read_conflict_range(key, key + b"\x00")

    def add_read_conflict_range(self, begin: bytes, end: bytes) -> None:
        """Depend on a range."""
        self._check_open()
        self._check_range(begin, end)
        self._size_bytes += sizes.conflict_range_bytes(len(begin), len(end))
        self._directly(self._native.add_read_conflict_range, begin, end)

    def add_write_conflict_key(self, key: bytes) -> None:
        """Conflict later committers that read `key`."""
        self._check_open()
        self._check_range(key, key + b"\x00")
        self._size_bytes += sizes.conflict_key_bytes(len(key))
        self._directly(self._native.add_write_conflict_key, key)

    def read_conflict_ranges(self) -> Awaitable[list[KeyRange]]:
        """Read the special keys that list them."""
        return self._conflict_ranges(_SPECIAL_READ_CONFLICTS)

    def write_conflict_ranges(self) -> Awaitable[list[KeyRange]]:
        """Read the special keys that list them."""
        return self._conflict_ranges(_SPECIAL_WRITE_CONFLICTS)

    # -- the end -------------------------------------------------------------------------------------------------------

    async def commit(self) -> None:
        """Commit; a cancellation here leaves the commit to land."""
        self._check_open()
        self._state = _State.ENDED
        native = self._native
        future = native.commit()
        if not future.is_ready():
            landed = self._client.bridge.waiter(future, native)
            self._outstanding.commits.add(landed)
            landed.add_done_callback(self._outstanding.commits.discard)
            await asyncio.shield(landed)
        try:
            future.wait()
        except self._client.error_class as error:
            raise self._client.failure(error, native, is_commit=True) from error

    def committed_version(self) -> int:
        """Return the commit version, -1 for a read-only transaction."""
        version: int = self._native.get_committed_version()
        return version

    def get_versionstamp(self) -> Awaitable[bytes]:
        """Ask, before the commit, for what its stamp will be."""
        return self._answer(self._native.get_versionstamp, as_bytes)

    def approximate_size(self) -> Awaitable[int]:
        """Ask the client for its own accounting."""
        return self._answer(self._native.get_approximate_size, as_number)

    def cancel(self) -> None:
        """End the attempt; does nothing to one that has ended or is committing."""
        if self._state is not _State.OPEN:
            return
        self._state = _State.CANCELLED
        # A failed one still has advice to give; its on_error, or its own end, cancels what it has outstanding.
        if not self._client.is_adviser(self._native):
            self._native.cancel()

    async def _conflict_ranges(self, prefix: bytes) -> list[KeyRange]:
        rows = await self._range(prefix, prefix + _SPECIAL_END, limit=_CONFLICT_ROWS_MAX, reverse=False, snapshot=True)
        bounds = [key.removeprefix(prefix) for key, _ in rows]
        # The rows alternate between a range's begin, with the value 1, and its end, with the value 0.
        return [KeyRange(begin, end) for begin, end in zip(bounds[::2], bounds[1::2], strict=True)]

    def _answer(self, issue: Callable[[], Any], decode: Callable[[Any], T]) -> Awaitable[T]:
        error = self._closed_by()
        if error is not None:
            return NativeRefusal(error)
        return NativeAnswer(self._client, self._native, issue(), decode)

    def _range(
        self, begin: bytes, end: bytes, *, limit: int, reverse: bool, snapshot: bool
    ) -> Awaitable[list[KeyValue]]:
        error = self._closed_by()
        if error is not None:
            return NativeRefusal(error)
        return NativeRange(self._client, self._native, begin, end, limit=limit, reverse=reverse, snapshot=snapshot)

    def _count_write(self, size_bytes: int) -> None:
        self._write_count += 1
        self._size_bytes += size_bytes

    def _closed_by(self) -> StoreError | None:
        if self._state is _State.OPEN:
            return self._refused
        return TransactionCancelled() if self._state is _State.CANCELLED else UsedDuringCommit()

    def _check_open(self) -> None:
        error = self._closed_by()
        if error is not None:
            raise error

    def _check_key(self, key: bytes, extra: int = 0) -> None:
        if key >= sizes.SYSTEM_KEYS_BEGIN:
            raise self._refuse(KeyOutsideLegalRange(f"a key lies in the system's own range key={key[:64]!r}"))
        if len(key) + extra > sizes.KEY_BYTES_MAX:
            limit = sizes.KEY_BYTES_MAX - extra
            raise self._refuse(
                KeyTooLarge(f"a key exceeds the limit bytes={len(key)} limit={limit} key={key[:64]!r}...")
            )

    def _check_pair(self, key: bytes, value: bytes, *, key_extra: int = 0, value_extra: int = 0) -> None:
        self._check_open()
        self._check_key(key, key_extra)
        if len(value) + value_extra > sizes.VALUE_BYTES_MAX:
            limit = sizes.VALUE_BYTES_MAX - value_extra
            raise self._refuse(
                ValueTooLarge(f"a value exceeds the limit bytes={len(value)} limit={limit} key={key[:64]!r}")
            )

    def _check_range(self, begin: bytes, end: bytes) -> None:
        if begin > end:
            raise self._refuse(InvertedRange())
        if end > sizes.SYSTEM_KEYS_BEGIN:
            raise self._refuse(KeyOutsideLegalRange(f"a range ends in the system's own range end={end[:64]!r}"))

    def _check_offset(self, template: bytes, offset: int) -> None:
        if offset < 0 or offset + STAMP_BYTES > len(template):
            raise self._refuse(
                UsageError(
                    f"a stamp does not fit its place offset={offset} bytes={len(template)}", code=_INVALID_OPERATION
                )
            )

    def _refuse(self, error: StoreError) -> StoreError:
        """Remember the refusal, so that an attempt whose write was refused can never commit without it."""
        self._refused = error
        return error

    def _directly(self, call: Callable[..., None], *arguments: bytes) -> None:
        try:
            call(*arguments)
        except self._client.error_class as error:
            raise self._client.failure(error, self._native) from error


class FdbWatch:
    """A native watch."""

    def __init__(self, client: NativeClient, live: set[FdbWatch], native: Any, future: Any) -> None:
        """Follow the watch `future` that the transaction `native` made, and stand in `live` until it is over."""
        self._client = client
        self._live = live
        self._native = native
        self._future = future
        live.add(self)

    async def wait(self) -> None:
        """Return when the value has changed; raise when the watch was lost or cancelled."""
        try:
            await NativeAnswer(self._client, self._native, self._future, as_nothing)
        finally:
            if self._future.is_ready():
                self._live.discard(self)

    def cancel(self) -> None:
        """Give the watch up."""
        self._future.cancel()
        self._live.discard(self)
