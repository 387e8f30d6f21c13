"""Watches of one store: which keys are watched, and what their values were.

A watch goes live in two steps that cannot miss a change: first it is registered where committers look, then the key's
value is compared with what the transaction saw. A notice from a committer says only "look again"; the value decides.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterable
from typing import Protocol

from keyspace.store.api import KeyRange
from keyspace.store.engine import Engine, ReadersExhaustedError
from keyspace.store.errors import StoreError, TooManyWatches, TransactionCancelled
from keyspace.store.sizes import WATCH_COUNT_MAX

__all__ = ["BUCKET_COUNT", "UNKNOWN", "EmbeddedWatch", "Marks", "WatchTable", "bucket_of"]

BUCKET_COUNT = 1 << 16
"""How finely watched keys are told apart between processes; two keys that share a bucket cost a needless look."""
UNKNOWN = object()
"""An expected value that equals no value: the watch fires as soon as it is live."""


def bucket_of(key: bytes) -> int:
    """Return the bucket of `key`, the same in every process."""
    return zlib.crc32(key) % BUCKET_COUNT


class Marks(Protocol):
    """Where committers of all processes look to learn what this store watches."""

    def claim(self) -> None:
        """Make sure that there is room for this store's marks; called before a watch is made.

        Raises:
            StoreUnavailableError: there is none.
        """
        ...

    def mark(self, bucket: int, is_watched: bool) -> None:
        """Say whether the store watches a key of `bucket`; on return every later commit sees it."""
        ...


class EmbeddedWatch:
    """A one-shot notice about one key."""

    __slots__ = ("_error", "_event", "_is_done", "_table", "expected", "key")

    def __init__(self, table: WatchTable, key: bytes, stored: bytes | None) -> None:
        """Watch `key`, which was `stored` at the transaction's read version."""
        self._table = table
        self.key = key
        self.expected: object = stored
        self._event = asyncio.Event()
        self._error: StoreError | None = None
        self._is_done = False

    async def wait(self) -> None:
        """Return when the value has changed.

        Raises:
            StoreError: the watch was lost; read again and set another.
        """
        await self._event.wait()
        if self._error is not None:
            raise self._error

    def cancel(self) -> None:
        """Give the watch up; whoever waits is told that it was cancelled."""
        self.end(TransactionCancelled("the watch was cancelled"))

    def end(self, error: StoreError | None = None) -> None:
        """Fire, or fail with `error`; the first call counts."""
        if not self._is_done:
            self._is_done = True
            self._error = error
            self._table.discard(self)
            self._event.set()


class WatchTable:
    """The watches of one store, by bucket. All on the store's event loop."""

    def __init__(self, engine: Engine, marks: Marks) -> None:
        """Look values up in `engine` and say in `marks` what is watched."""
        self._engine = engine
        self._marks = marks
        self._live: dict[int, dict[EmbeddedWatch, None]] = {}
        self._held: set[EmbeddedWatch] = set()

    def create(self, key: bytes, stored: bytes | None) -> EmbeddedWatch:
        """Return a watch that is not live yet.

        Raises:
            TooManyWatches: the store already holds `WATCH_COUNT_MAX`.
            StoreUnavailableError: as many stores as can be told of changes watch already.
        """
        if len(self._held) >= WATCH_COUNT_MAX:
            raise TooManyWatches()
        # Whatever can be refused is refused before the commit: arming a watch afterwards must not fail a transaction.
        self._marks.claim()
        watch = EmbeddedWatch(self, key, stored)
        self._held.add(watch)
        return watch

    def arm(self, watches: Iterable[EmbeddedWatch]) -> None:
        """Make watches live, their transaction having committed."""
        armed = [watch for watch in watches if watch in self._held]
        for watch in armed:
            bucket = bucket_of(watch.key)
            if bucket not in self._live:
                self._live[bucket] = {}
                self._marks.mark(bucket, True)
            self._live[bucket][watch] = None
        self._look_again(armed)

    def discard(self, watch: EmbeddedWatch) -> None:
        """Forget a watch that has ended."""
        self._held.discard(watch)
        bucket = bucket_of(watch.key)
        watches = self._live.get(bucket)
        if watches is None or watch not in watches:
            return
        del watches[watch]
        if not watches:
            del self._live[bucket]
            self._marks.mark(bucket, False)

    def notify(self, buckets: Iterable[int], ranges: Iterable[KeyRange]) -> None:
        """Look again at what is watched in `buckets` and in `ranges`, where something was written."""
        found: dict[EmbeddedWatch, None] = {}
        for bucket in buckets:
            found.update(self._live.get(bucket, {}))
        for begin, end in ranges:
            found.update((watch, None) for watch in self._all_live() if begin <= watch.key < end)
        self._look_again(found)

    def notify_all(self) -> None:
        """Look again at everything: a notice was lost."""
        self._look_again(self._all_live())

    def close(self) -> None:
        """End every watch as cancelled."""
        for watch in list(self._held):
            watch.cancel()

    def _all_live(self) -> list[EmbeddedWatch]:
        return [watch for watches in self._live.values() for watch in watches]

    def _look_again(self, watches: Iterable[EmbeddedWatch]) -> None:
        candidates = list(watches)
        if not candidates:
            return
        try:
            snapshot = self._engine.snapshot()
            try:
                changed = [watch for watch in candidates if snapshot.get(watch.key) != watch.expected]
            finally:
                snapshot.close()
        except (ReadersExhaustedError, StoreError):
            # A watch may fire without a change, and must not stay silent after one.
            changed = candidates
        for watch in changed:
            watch.end()
