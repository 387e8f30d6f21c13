"""The embedded store's own record of itself: its format, its last commit version, and how it is opened and upgraded."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import NamedTuple

from keyspace.clock import Clock
from keyspace.store.engine import Engine, Snapshot, WriteBatch
from keyspace.store.errors import StoreUnavailableError

__all__ = ["FORMAT_VERSION", "META_KEY", "MICROSECONDS_PER_MS", "Meta", "monotonic_us", "prepare", "read_meta"]

FORMAT_VERSION = 1
"""The format this release writes; it reads and upgrades every earlier one and refuses later ones."""
META_KEY = b"\xff/meta"

_META = struct.Struct(">HQQQ")

MICROSECONDS_PER_MS = 1_000

Upgrade = Callable[[WriteBatch], None]
UPGRADES: Mapping[int, Upgrade] = {}
"""From each earlier format, how its rows become those of the next one."""


class Meta(NamedTuple):
    """The row that every commit rewrites."""

    format_version: int
    version: int
    """The last commit version; 0 before the first commit."""
    at_us: int
    """When that was, in microseconds of the monotonic clock, which all processes of a machine share until it restarts."""
    dropped_version: int
    """The greatest version that has gone from the conflict log."""

    def encode(self) -> bytes:
        """Return the row's value."""
        return _META.pack(*self)

    def next_version(self, now_us: int) -> int:
        """Return the version of a commit made now: time's pace since the last one, and at least one more."""
        return self.version + max(1, now_us - self.at_us)

    def read_version(self, now_us: int) -> int:
        """Return the version to tell a reader of this state: as on a cluster it rises while nothing is written.

        Any commit after `now_us` gets a greater one. `version` decides conflicts.
        """
        return self.version + max(0, now_us - self.at_us - 1)


def monotonic_us(clock: Clock) -> int:
    """Return the clock's monotonic time in whole microseconds: a commit version for each."""
    return int(clock.monotonic_ms() * MICROSECONDS_PER_MS)


def read_meta(view: Snapshot | WriteBatch) -> Meta:
    """Return the row of a prepared engine."""
    packed = view.get(META_KEY)
    assert packed is not None, "the engine was prepared when it was opened"
    return Meta._make(_META.unpack(packed))


def prepare(engine: Engine, now_us: int, *, format_version: int = FORMAT_VERSION) -> Meta:
    """Make a new engine a store, upgrade an older one, and return its state; `now_us` is monotonic.

    It goes through the write lock, so no commit that began before it can be missed by a conflict log that starts here.

    Raises:
        StoreUnavailableError: the store was written by a later release, or the engine cannot be written.
    """
    batch = engine.write()
    try:
        packed = batch.get(META_KEY)
        if packed is None:
            if batch.get_range(b"", b"\xff\xff", 1, False):
                raise StoreUnavailableError(f"{engine.name} holds data that is not a store's; choose another path")
            meta = Meta(format_version, 0, now_us, 0)
        else:
            meta = _upgraded(engine, batch, packed, format_version)
        if meta.encode() == packed:
            batch.abort()
        else:
            batch.put(META_KEY, meta.encode())
            if not batch.commit():
                engine.sync()
        return meta
    except BaseException:
        batch.abort()
        raise


def _upgraded(engine: Engine, batch: WriteBatch, packed: bytes, format_version: int) -> Meta:
    found = int.from_bytes(packed[:2], "big")
    if found > format_version:
        raise StoreUnavailableError(
            f"{engine.name} has format {found} and this release knows formats up to {format_version}: "
            "use the release that wrote it, or a later one"
        )
    while found < format_version:
        UPGRADES[found](batch)
        found += 1
    current = batch.get(META_KEY)
    assert current is not None, "an upgrade keeps the store's own row"
    return Meta._make(_META.unpack(current))._replace(format_version=format_version)
