"""The lower layer of the embedded store: an ordered key-value engine, thin.

The upper layer keeps FoundationDB's rules; an engine keeps bytes. It gives consistent snapshots, one writer at a time over
every process that has it open, and durability by `sync`. It knows nothing of versions or conflicts.
Keys are ordered as bytes; those from 0xff belong to the upper layer.
"""

from __future__ import annotations

from typing import Protocol

from keyspace.store.api import KeyValue

__all__ = ["Engine", "ReadersExhaustedError", "Snapshot", "WriteBatch"]


class ReadersExhaustedError(Exception):
    """Every reader slot of the engine is taken by a live reader."""


class Snapshot(Protocol):
    """The engine as it was when the snapshot was taken. Used by one thread at a time."""

    def get(self, key: bytes) -> bytes | None:
        """Return the value of `key`, or None."""
        ...

    def get_range(self, begin: bytes, end: bytes, limit: int, reverse: bool) -> list[KeyValue]:
        """Return at most `limit` (at least 1) pairs of [begin, end), in key order or from the end."""
        ...

    def close(self) -> None:
        """Release it; may be called twice."""
        ...


class WriteBatch(Protocol):
    """The engine's one open write: sees its own writes, invisible to others until `commit`. Stays in one thread."""

    def get(self, key: bytes) -> bytes | None:
        """Return the value of `key` as this batch leaves it, or None."""
        ...

    def get_range(self, begin: bytes, end: bytes, limit: int, reverse: bool) -> list[KeyValue]:
        """Return at most `limit` (at least 1) pairs of [begin, end) as this batch leaves them."""
        ...

    def put(self, key: bytes, value: bytes) -> None:
        """Write one pair."""
        ...

    def delete(self, key: bytes) -> None:
        """Remove one key, present or not."""
        ...

    def delete_range(self, begin: bytes, end: bytes) -> None:
        """Remove every key of [begin, end)."""
        ...

    def commit(self) -> bool:
        """Make the batch visible, and return whether it is durable already; if not, the next `sync` makes it so.

        The next batch's `commit` is such a sync too. Whatever happens, a batch is there after a crash only with every
        batch before it.

        Raises:
            StoreUnavailableError: nothing of the batch was written (file or disk full, engine closed).
            CommitUnknownResult: the device failed while it was being written.
        """
        ...

    def abort(self) -> None:
        """Drop the batch; may be called after a failed `commit`, and twice."""
        ...


class Engine(Protocol):
    """One open engine; shared by every store of a process that is on the same file."""

    @property
    def name(self) -> str:
        """What it is, for logs and refusals."""
        ...

    def snapshot(self) -> Snapshot:
        """Return a snapshot that holds every batch committed before this call, by any process.

        Raises:
            ReadersExhaustedError: too many snapshots are open.
        """
        ...

    def write(self) -> WriteBatch:
        """Begin the write; waits for other threads' and processes' writes, and for no process that has died."""
        ...

    def sync(self) -> None:
        """Make every batch committed so far durable, whichever process committed it.

        Raises:
            StoreUnavailableError: the device failed; nobody knows which of them are, and the engine takes no more.
        """
        ...

    def release_dead_readers(self) -> int:
        """Free what readers of dead processes hold, and return how many there were."""
        ...

    def close(self) -> None:
        """Release it; may be called twice."""
        ...
