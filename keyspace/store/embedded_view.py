"""What one attempt sees of the store: a snapshot taken at its first read, for as long as an attempt may live."""

from __future__ import annotations

from typing import Protocol

from keyspace.clock import Clock
from keyspace.store.embedded_committer import Committer
from keyspace.store.embedded_format import MICROSECONDS_PER_MS, Meta
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

    def take_snapshot(self, view: ReadView, now_ms: float) -> tuple[Snapshot, Meta]:
        """Return a snapshot and the state it shows; the store may close the view when it has grown too old.

        `now_ms` is the clock's monotonic time, which the view has just looked at.
        """
        ...

    def forget_snapshot(self, view: ReadView) -> None:
        """Hear that the view is closed."""
        ...


class ReadView:
    """The snapshot of one attempt; opened by the first read, closed once."""

    __slots__ = ("_clock", "_first_read_ms", "_host", "_snapshot", "commit_version", "read_version")

    def __init__(self, host: TransactionHost) -> None:
        """See nothing yet."""
        self._host = host
        self._clock = host.clock
        self._snapshot: Snapshot | None = None
        self._first_read_ms = 0.0
        self.commit_version: int | None = None
        """The last commit the snapshot holds; None before the first read."""
        self.read_version = 0
        """What a reader is told: the commit version and the time since. Known when the commit version is."""

    def open(self) -> Snapshot:
        """Return the snapshot.

        Raises:
            TransactionTooOld: it was taken more than `LIFETIME_MS_MAX` ago, or has been closed.
            BatchThrottled: too many transactions are reading.
        """
        snapshot = self._snapshot
        if snapshot is None:
            return self._take()
        if self._clock.monotonic_ms() - self._first_read_ms > LIFETIME_MS_MAX:
            self.close()
            raise TransactionTooOld()
        return snapshot

    def _take(self) -> Snapshot:
        if self.commit_version is not None:
            raise TransactionTooOld()
        self._first_read_ms = self._clock.monotonic_ms()
        self._snapshot, meta = self._host.take_snapshot(self, self._first_read_ms)
        self.commit_version = meta.version
        # The time was taken before the snapshot: a commit between them can only make the elapsed time too short.
        self.read_version = meta.read_version(int(self._first_read_ms * MICROSECONDS_PER_MS))
        return self._snapshot

    def is_too_old(self) -> bool:
        """Return whether an attempt that depends on what it has read here may not commit any more."""
        if self.commit_version is None:
            return False
        return self._clock.monotonic_ms() - self._first_read_ms > LIFETIME_MS_MAX

    def close(self) -> None:
        """Release the snapshot; later reads find it too old."""
        if self._snapshot is not None:
            self._snapshot.close()
            self._snapshot = None
            self._host.forget_snapshot(self)
