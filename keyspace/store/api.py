"""The store port: what the keyspace asks of a store, meaning exactly what FoundationDB means at API version 730.

Strictly serializable optimistic transactions over ordered byte keys. Reads are issued when called and awaited later, so
reads that do not depend on each other travel together. A read adds its range to the transaction's read conflict ranges
unless it is a snapshot read; a write adds its key to the write conflict ranges. A commit fails with NotCommitted when a
transaction that committed after this one's read version wrote into one of its read conflict ranges.

Adapters: `embedded` (one machine, several processes), `foundationdb`, `fault` (wraps either). tests/conformance holds the
meaning for all of them.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import NamedTuple, Protocol

from keyspace.store.errors import RetryableError

__all__ = ["API_VERSION", "KeyRange", "KeyValue", "Store", "Transaction", "Watch"]

API_VERSION = 730


class KeyRange(NamedTuple):
    """Keys from `begin` (included) to `end` (excluded)."""

    begin: bytes
    end: bytes


KeyValue = tuple[bytes, bytes]


class Watch(Protocol):
    """A one-shot notice that a key's value has changed since the transaction that made the watch.

    It becomes live when that transaction commits (a read-only one included). It may fire early or without a change;
    after it fires, read again. It must be cancelled when no longer wanted.
    """

    async def wait(self) -> None:
        """Return when the value has changed.

        Raises:
            StoreError: the watch was lost; read again and set another.
        """
        ...

    def cancel(self) -> None:
        """Give the watch up."""
        ...


class Transaction(Protocol):
    """One attempt. Not safe for use by two tasks at once; ended by `commit` or `cancel`."""

    def get(self, key: bytes, *, snapshot: bool = False) -> Awaitable[bytes | None]:
        """Issue a read of one key; the awaitable yields its value or None. Sees this transaction's own writes."""
        ...

    def get_range(
        self, begin: bytes, end: bytes, *, limit: int, reverse: bool = False, snapshot: bool = False
    ) -> Awaitable[list[KeyValue]]:
        """Issue a read of at most `limit` (at least 1) pairs of [begin, end), in key order or from the end.

        A limited read conflicts up to the last row returned; one that runs out conflicts with the whole range.
        """
        ...

    def set(self, key: bytes, value: bytes) -> None:
        """Write one pair."""
        ...

    def clear(self, key: bytes) -> None:
        """Remove one key, present or not."""
        ...

    def clear_range(self, begin: bytes, end: bytes) -> None:
        """Remove every key of [begin, end)."""
        ...

    def add(self, key: bytes, delta: int) -> None:
        """Add `delta` (-2**63 to 2**63-1) to an 8-byte little-endian integer, atomically and without reading it."""
        ...

    def byte_max(self, key: bytes, value: bytes) -> None:
        """Store the greater of the present value and `value` in byte order, atomically and without reading it."""
        ...

    def set_versionstamped_key(self, key: bytes, offset: int, value: bytes) -> None:
        """Write a pair whose key has its 10 bytes from `offset` replaced by the commit's versionstamp."""
        ...

    def set_versionstamped_value(self, key: bytes, value: bytes, offset: int) -> None:
        """Write a pair whose value has its 10 bytes from `offset` replaced by the commit's versionstamp."""
        ...

    def add_read_conflict_key(self, key: bytes) -> None:
        """Make the commit depend on `key` as if it had been read; skipped where this transaction already wrote it."""
        ...

    def add_read_conflict_range(self, begin: bytes, end: bytes) -> None:
        """Make the commit depend on [begin, end) as if it had been read."""
        ...

    def add_write_conflict_key(self, key: bytes) -> None:
        """Conflict later committers that read `key`, without writing it."""
        ...

    def watch(self, key: bytes) -> Watch:
        """Make a watch on `key` that becomes live when this transaction commits."""
        ...

    def get_read_version(self) -> Awaitable[int]:
        """Return the version this transaction reads at."""
        ...

    def get_versionstamp(self) -> Awaitable[bytes]:
        """Return an awaitable for the commit's 10-byte versionstamp; ask before `commit`, await after it.

        Raises:
            StoreError: on await, when the transaction wrote nothing and so has no stamp.
        """
        ...

    def approximate_size(self) -> Awaitable[int]:
        """Return the transaction's size in bytes as FoundationDB accounts it (ARCHITECTURE 5), for tests and metrics."""
        ...

    def read_conflict_ranges(self) -> Awaitable[list[KeyRange]]:
        """Return the merged read conflict ranges so far, for tests; on FoundationDB from the special key space."""
        ...

    def write_conflict_ranges(self) -> Awaitable[list[KeyRange]]:
        """Return the merged write conflict ranges so far, for tests."""
        ...

    async def commit(self) -> None:
        """Commit; when this returns the writes are durable and visible to every later read version.

        Raises:
            RetryableError: run the body again in a new attempt (`maybe_committed` says whether it may have committed).
            OutcomeUnknownError: cancelled or timed out while committing.
            LimitError: the transaction can never commit as it is.
        """
        ...

    def committed_version(self) -> int:
        """Return the commit version after a successful `commit`; -1 for a read-only transaction."""
        ...

    def cancel(self) -> None:
        """End the attempt without committing; outstanding reads fail with TransactionCancelled."""
        ...


class Store(Protocol):
    """A connection to one store; shared by every task of one process and one event loop."""

    @property
    def name(self) -> str:
        """What the store is, for logs and refusals: `embedded:/path`, `fdb:/path/to/cluster.file`, `memory`."""
        ...

    def begin(self) -> Transaction:
        """Start an attempt. Its read version is taken at its first read."""
        ...

    async def backoff(self, error: RetryableError, attempt_count: int) -> None:
        """Wait before attempt `attempt_count` + 1 as the store advises after `error`, with jitter and a cap."""
        ...

    async def close(self) -> None:
        """Finish outstanding commits, cancel watches and release what the process holds."""
        ...
