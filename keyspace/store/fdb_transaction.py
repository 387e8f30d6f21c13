"""One attempt on a FoundationDB cluster. Only `fdb_adapter` imports this.

Keys and values are checked before they are handed over: the client reports a bad one only at the next read or at the
commit, and every adapter answers at the call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from keyspace.store import sizes
from keyspace.store.api import KeyRange, KeyValue
from keyspace.store.errors import (
    InvertedRange,
    KeyOutsideLegalRange,
    KeyTooLarge,
    TransactionCancelled,
    UsageError,
    ValueTooLarge,
)
from keyspace.store.fdb_native import NativeAnswer, NativeClient, NativeRange, as_bytes, as_nothing, as_number, as_value
from keyspace.store.meter import TransactionCounts
from keyspace.store.stamps import STAMP_BYTES

__all__ = ["FdbTransaction", "FdbWatch", "Outstanding"]

T = TypeVar("T")

_SPECIAL_READ_CONFLICTS = b"\xff\xff/transaction/read_conflict_range/"
_SPECIAL_WRITE_CONFLICTS = b"\xff\xff/transaction/write_conflict_range/"
_SPECIAL_END = b"\xff\xff"
_CONFLICT_ROWS_MAX = 100_000
_OFFSET_BYTES = 4
_CLIENT_INVALID_OPERATION = 2000


@dataclass(slots=True)
class Outstanding:
    """What a store's transactions have under way when it is closed."""

    commits: set[asyncio.Future[None]] = field(default_factory=set)
    watches: set[FdbWatch] = field(default_factory=set)


class FdbTransaction:
    """One attempt in one native transaction."""

    def __init__(self, client: NativeClient, native: Any, outstanding: Outstanding) -> None:
        """Use a new `native` transaction; `outstanding` keeps what the store must wait for or cancel at its end."""
        self._client = client
        self._outstanding = outstanding
        self._native = native
        self._read_count = 0
        self._write_count = 0
        self._size_bytes = 0
        self._is_over = False

    def counts(self) -> TransactionCounts:
        """Return what was asked, with the size by our formula; the client's own figure takes a trip to its thread."""
        return TransactionCounts(self._read_count, self._write_count, self._size_bytes)

    def get(self, key: bytes, *, snapshot: bool = False) -> Awaitable[bytes | None]:
        """Issue a read of one key."""
        native = self._reading(0 if snapshot else sizes.conflict_key_bytes(len(key)))
        return self._answer((native.snapshot if snapshot else native).get(key), as_value)

    def get_range(
        self, begin: bytes, end: bytes, *, limit: int, reverse: bool = False, snapshot: bool = False
    ) -> Awaitable[list[KeyValue]]:
        """Issue a range read; the first batch travels at once, further ones, if the cluster splits it, when awaited."""
        if limit < 1:
            raise ValueError(f"a range read takes at least one row: limit={limit}")
        _check_range(begin, end)
        native = self._reading(0 if snapshot else sizes.conflict_range_bytes(len(begin), len(end)))
        return NativeRange(self._client, native, begin, end, limit=limit, reverse=reverse, snapshot=snapshot)

    def set(self, key: bytes, value: bytes) -> None:
        """Write one pair."""
        _check_key(key)
        _check_value(value)
        self._writing(sizes.set_bytes(len(key), len(value))).set(key, value)

    def clear(self, key: bytes) -> None:
        """Remove one key."""
        _check_key(key)
        self._writing(sizes.clear_key_bytes(len(key))).clear(key)

    def clear_range(self, begin: bytes, end: bytes) -> None:
        """Remove a range."""
        _check_range(begin, end)
        self._writing(sizes.clear_range_bytes(len(begin), len(end))).clear_range(begin, end)

    def add(self, key: bytes, delta: int) -> None:
        """Add to a little-endian integer of 8 bytes."""
        operand = delta.to_bytes(8, "little", signed=True)
        _check_key(key)
        self._writing(sizes.atomic_bytes(len(key), len(operand))).add(key, operand)

    def byte_max(self, key: bytes, value: bytes) -> None:
        """Keep the greater value."""
        _check_key(key)
        _check_value(value)
        self._writing(sizes.atomic_bytes(len(key), len(value))).byte_max(key, value)

    def set_versionstamped_key(self, key: bytes, offset: int, value: bytes) -> None:
        """Write under a stamped key; the client takes the offset as the key's last 4 bytes, little-endian."""
        _check_key(key)
        _check_value(value)
        _check_offset(key, offset)
        native = self._writing(sizes.stamped_key_bytes(len(key), len(value)))
        native.set_versionstamped_key(key + offset.to_bytes(_OFFSET_BYTES, "little"), value)

    def set_versionstamped_value(self, key: bytes, value: bytes, offset: int) -> None:
        """Write a stamped value; the client takes the offset as the value's last 4 bytes, little-endian."""
        _check_key(key)
        _check_value(value)
        _check_offset(value, offset)
        operand = value + offset.to_bytes(_OFFSET_BYTES, "little")
        self._writing(sizes.atomic_bytes(len(key), len(operand))).set_versionstamped_value(key, operand)

    def add_read_conflict_key(self, key: bytes) -> None:
        """Depend on one key."""
        self.add_read_conflict_range(key, key + b"\x00")

    def add_read_conflict_range(self, begin: bytes, end: bytes) -> None:
        """Depend on a range."""
        _check_range(begin, end)
        self._size_bytes += sizes.conflict_range_bytes(len(begin), len(end))
        self._directly(self._open().add_read_conflict_range, begin, end)

    def add_write_conflict_key(self, key: bytes) -> None:
        """Conflict later committers that read `key`."""
        _check_key(key)
        self._size_bytes += sizes.conflict_key_bytes(len(key))
        self._directly(self._open().add_write_conflict_key, key)

    def watch(self, key: bytes) -> FdbWatch:
        """Make a watch, live from this transaction's commit on."""
        return FdbWatch(self._client, self._outstanding.watches, self._native, self._open().watch(key))

    def get_read_version(self) -> Awaitable[int]:
        """Ask for the read version."""
        return self._answer(self._open().get_read_version(), as_number)

    def get_versionstamp(self) -> Awaitable[bytes]:
        """Ask, before the commit, for what its stamp will be."""
        return self._answer(self._open().get_versionstamp(), as_bytes)

    def approximate_size(self) -> Awaitable[int]:
        """Ask the client for its own accounting."""
        return self._answer(self._open().get_approximate_size(), as_number)

    def read_conflict_ranges(self) -> Awaitable[list[KeyRange]]:
        """Read the special keys that list them."""
        return self._conflict_ranges(_SPECIAL_READ_CONFLICTS)

    def write_conflict_ranges(self) -> Awaitable[list[KeyRange]]:
        """Read the special keys that list them."""
        return self._conflict_ranges(_SPECIAL_WRITE_CONFLICTS)

    async def commit(self) -> None:
        """Commit; a cancellation here leaves the commit to land."""
        native = self._open()
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

    def cancel(self) -> None:
        """End the attempt; what a failed one still reads is ended by the client's on_error or with the object."""
        self._is_over = True
        if not self._client.is_adviser(self._native):
            self._native.cancel()

    async def _conflict_ranges(self, prefix: bytes) -> list[KeyRange]:
        rows = await NativeRange(
            self._client,
            self._open(),
            prefix,
            prefix + _SPECIAL_END,
            limit=_CONFLICT_ROWS_MAX,
            reverse=False,
            snapshot=True,
        )
        bounds = [key.removeprefix(prefix) for key, _ in rows]
        # The rows alternate between a range's begin, with the value 1, and its end, with the value 0.
        return [KeyRange(begin, end) for begin, end in zip(bounds[::2], bounds[1::2], strict=True)]

    def _open(self) -> Any:
        if self._is_over:
            raise TransactionCancelled
        return self._native

    def _reading(self, size_bytes: int) -> Any:
        self._read_count += 1
        self._size_bytes += size_bytes
        return self._open()

    def _writing(self, size_bytes: int) -> Any:
        self._write_count += 1
        self._size_bytes += size_bytes
        return self._open()

    def _answer(self, future: Any, decode: Callable[[Any], T]) -> Awaitable[T]:
        return NativeAnswer(self._client, self._native, future, decode)

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


def _check_key(key: bytes) -> None:
    if key >= sizes.SYSTEM_KEYS_BEGIN:
        raise KeyOutsideLegalRange
    if len(key) > sizes.KEY_BYTES_MAX:
        raise KeyTooLarge(f"the key is too long bytes={len(key)} limit={sizes.KEY_BYTES_MAX}")


def _check_value(value: bytes) -> None:
    if len(value) > sizes.VALUE_BYTES_MAX:
        raise ValueTooLarge(f"the value is too long bytes={len(value)} limit={sizes.VALUE_BYTES_MAX}")


def _check_range(begin: bytes, end: bytes) -> None:
    if begin > end:
        raise InvertedRange
    if end > sizes.SYSTEM_KEYS_BEGIN:
        raise KeyOutsideLegalRange


def _check_offset(template: bytes, offset: int) -> None:
    if offset < 0 or offset + STAMP_BYTES > len(template):
        raise UsageError(
            f"the stamp does not fit offset={offset} bytes={len(template)}", code=_CLIENT_INVALID_OPERATION
        )
