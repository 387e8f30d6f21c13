"""What one attempt sees of the store: a snapshot taken at its first read, for as long as an attempt may live."""

from __future__ import annotations

from typing import Protocol

from keyspace.clock import Clock
from keyspace.store.embedded_committer import Committer
from keyspace.store.embedded_watch import WatchTable
from keyspace.store.engine import Snapshot
from keyspace.store.errors import TransactionTooOld
from keyspace.store.sizes import LIFETIME_MS_MAX

__all__ = ["ReadView", "TransactionHost"]


class TransactionHost(Protocol):
    """What an attempt needs of its store."""

    @property
    def clock(self) -> Clock:
        """Where the 5 s rule takes its time."""
        ...

    @property
    def committer(self) -> Committer:
        """Who commits."""
        ...

    @property
    def watches(self) -> WatchTable:
        """The store's watches."""
        ...

    def take_snapshot(self, view: ReadView) -> tuple[Snapshot, int]:
        """Return a snapshot and the commit version it shows; the store may close the view when it has grown too old."""
        ...

    def forget_snapshot(self, view: ReadView) -> None:
        """Hear that the view is closed."""
        ...


class ReadView:
    """The snapshot of one attempt; opened by the first read, closed once."""

    __slots__ = ("_first_read_ms", "_host", "_snapshot", "read_version")

    def __init__(self, host: TransactionHost) -> None:
        """See nothing yet."""
        self._host = host
        self._snapshot: Snapshot | None = None
        self._first_read_ms = 0.0
        self.read_version: int | None = None
        """None before the first read."""

    def open(self) -> Snapshot:
        """Return the snapshot.

        Raises:
            TransactionTooOld: it was taken more than `LIFETIME_MS_MAX` ago, or has been closed.
            BatchThrottled: too many transactions are reading.
        """
        if self._snapshot is None:
            if self.read_version is not None:
                raise TransactionTooOld()
            self._first_read_ms = self._host.clock.monotonic_ms()
            self._snapshot, self.read_version = self._host.take_snapshot(self)
        elif self.is_too_old():
            self.close()
            raise TransactionTooOld()
        return self._snapshot

    def is_too_old(self) -> bool:
        """Return whether an attempt that depends on what it has read here may not commit any more."""
        if self.read_version is None:
            return False
        return self._host.clock.monotonic_ms() - self._first_read_ms > LIFETIME_MS_MAX

    def close(self) -> None:
        """Release the snapshot; later reads find it too old."""
        if self._snapshot is not None:
            self._snapshot.close()
            self._snapshot = None
            self._host.forget_snapshot(self)
