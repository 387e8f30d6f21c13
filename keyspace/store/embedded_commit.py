"""Deciding and applying commits: the one place where an embedded store's order of transactions is made.

A group of commits becomes one engine batch at one commit version. Inside it each transaction has its order, is judged
against every commit after its read version (earlier ones of its own group included), and is applied or refused. Nobody is
told of its commit before the engine has synced the batch.

Rows of the upper layer, in the engine's system range:
    0xff/log/<8-byte version>   the write conflict ranges of that version (conflict.py)
    0xff/meta                   format, last version, when that was, greatest version dropped from the log
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from keyspace.clock import Clock
from keyspace.store.api import KeyRange
from keyspace.store.conflict import (
    RETAINED_VERSIONS,
    ConflictLog,
    Written,
    decode_written,
    encode_written,
)
from keyspace.store.embedded_format import FORMAT_VERSION, META_KEY, Meta, monotonic_us, read_meta
from keyspace.store.embedded_writes import Flattened, Mutation, Op, apply_atomic
from keyspace.store.engine import Engine, ReadersExhaustedError, Snapshot, WriteBatch
from keyspace.store.errors import NotCommitted, StoreError, TransactionTooOld
from keyspace.store.stamps import pack_stamp, place_stamp

__all__ = ["Changes", "CommitRequest", "Outcome", "Serializer"]

LOG_BEGIN = b"\xff/log/"
LOG_END = b"\xff/log0"
LOG_PAGE_ROWS = 256
"""Log rows read at once while tailing."""
TRIM_COMMITS = 64
"""Groups committed by this process between two trimmings of the log."""
TRIM_ROWS_MAX = 1024
"""Log rows removed at once; above what any process adds between two trimmings, so the log cannot outgrow it."""

_VERSION = struct.Struct(">Q")


@dataclass(slots=True, eq=False)
class CommitRequest:
    """One transaction that asks to commit, and its answer."""

    writes: Flattened
    read_version: int | None
    """None when nothing was read: there is nothing to judge."""
    read_keys: set[bytes]
    read_ranges: list[KeyRange]
    write_keys: set[bytes]
    write_ranges: list[KeyRange]
    size_bytes: int = 0
    error: StoreError | None = field(default=None, init=False)
    version: int = field(default=-1, init=False)
    order: int = field(default=0, init=False)

    @property
    def stamp(self) -> bytes:
        """The commit's versionstamp, once it is committed."""
        return pack_stamp(self.version, self.order)


class Changes(NamedTuple):
    """What a committed group wrote, for those who watch."""

    keys: list[bytes]
    ranges: list[KeyRange]


class Outcome(NamedTuple):
    """What became of a group."""

    changes: Changes
    is_durable: bool
    """False when the engine owes it a sync."""

    @property
    def is_written(self) -> bool:
        """Whether the engine committed anything."""
        return bool(self.changes.keys or self.changes.ranges)


class Serializer:
    """Judges and applies groups for one process; used by one thread at a time."""

    def __init__(self, engine: Engine, clock: Clock, start: Meta) -> None:
        """Begin at the engine's state `start`: no transaction of this process reads at an earlier version."""
        self._engine = engine
        self._clock = clock
        self._log = ConflictLog(start.version)
        self._commit_count = 0
        self._own_version = start.version
        self._has_company = True

    def catch_up(self) -> None:
        """Tail what other processes have committed; done before the write lock is taken, it leaves little to do under it."""
        if not self._has_company:
            # Nobody else committed before the last group, so a look that costs a snapshot would very likely find nothing.
            return
        try:
            snapshot = self._engine.snapshot()
        except ReadersExhaustedError:
            return
        try:
            self._catch_up(snapshot, read_meta(snapshot))
        finally:
            snapshot.close()

    def commit(self, requests: Sequence[CommitRequest]) -> Outcome:
        """Judge and apply `requests` as one group; each then has its version or its error.

        Raises:
            StoreError: the engine failed. No request's `error` or `version` may be looked at; the error is everyone's.
        """
        batch = self._engine.write()
        base_version = self._log.version
        try:
            meta = read_meta(batch)
            self._has_company = meta.version != self._own_version
            base_version = meta.version
            self._catch_up(batch, meta)
            now_us = monotonic_us(self._clock)
            version = meta.next_version(now_us)
            changes = self._apply_group(batch, requests, version)
            is_durable = False
            if changes.keys or changes.ranges:
                batch.put(LOG_BEGIN + _VERSION.pack(version), encode_written(Written(*changes)))
                dropped = self._trim(batch, meta, version)
                batch.put(META_KEY, Meta(FORMAT_VERSION, version, now_us, dropped).encode())
                is_durable = batch.commit()
            else:
                batch.abort()
        except BaseException:
            batch.abort()
            # What this group added may not have been committed: forget it, and tail the engine's own rows from before it.
            self._log = ConflictLog(base_version)
            raise
        self._commit_count += 1
        if changes.keys or changes.ranges:
            self._own_version = version
        self._log.drop_up_to(self._log.version - RETAINED_VERSIONS)
        return Outcome(changes, is_durable)

    def _apply_group(self, batch: WriteBatch, requests: Sequence[CommitRequest], version: int) -> Changes:
        accepted: list[Written] = []
        for request in requests:
            request.error = self._judge(request)
            if request.error is not None:
                continue
            request.version, request.order = version, len(accepted)
            stamped = _apply(batch, request.writes, pack_stamp(version, request.order))
            keys = request.write_keys.union(stamped) if stamped else request.write_keys
            wrote = Written(sorted(keys), request.write_ranges)
            self._log.append(version, wrote)
            accepted.append(wrote)
        if len(accepted) == 1:
            # Already what the log wants: in a quiet process every group is of one.
            return Changes(accepted[0].keys, accepted[0].ranges)
        return Changes(
            sorted(set().union(*(wrote.keys for wrote in accepted))),
            [wrote_range for wrote in accepted for wrote_range in wrote.ranges],
        )

    def _judge(self, request: CommitRequest) -> StoreError | None:
        if request.read_version is None or not (request.read_keys or request.read_ranges):
            return None
        if request.read_version < self._log.floor:
            return TransactionTooOld()
        if self._log.has_conflict(request.read_version, request.read_keys, request.read_ranges):
            return NotCommitted()
        return None

    def _catch_up(self, view: Snapshot | WriteBatch, meta: Meta) -> None:
        while self._log.version < meta.version:
            if self._log.version < meta.dropped_version:
                self._log.drop_up_to(meta.dropped_version)
                continue
            begin = LOG_BEGIN + _VERSION.pack(self._log.version + 1)
            rows = view.get_range(begin, LOG_END, LOG_PAGE_ROWS, False)
            for key, packed in rows:
                self._log.append(_VERSION.unpack(key[len(LOG_BEGIN) :])[0], decode_written(packed))
            if len(rows) < LOG_PAGE_ROWS:
                break

    def _trim(self, batch: WriteBatch, meta: Meta, version: int) -> int:
        """Remove old log rows now and then, and return the greatest version that is gone."""
        if self._commit_count % TRIM_COMMITS:
            return meta.dropped_version
        keep_from = LOG_BEGIN + _VERSION.pack(max(0, version - RETAINED_VERSIONS))
        rows = batch.get_range(LOG_BEGIN, keep_from, TRIM_ROWS_MAX, False)
        for key, _ in rows:
            batch.delete(key)
        return int(_VERSION.unpack(rows[-1][0][len(LOG_BEGIN) :])[0]) if rows else meta.dropped_version


def _apply(batch: WriteBatch, writes: Flattened, stamp: bytes) -> list[bytes]:
    """Apply one transaction's writes, and return the keys that received its stamp."""
    for key, value in writes.outcomes:
        if value is None:
            batch.delete(key)
        else:
            batch.put(key, value)
    return _apply_in_order(batch, writes.mutations, stamp) if writes.mutations else []


def _apply_in_order(batch: WriteBatch, mutations: list[Mutation], stamp: bytes) -> list[bytes]:
    stamped: list[bytes] = []
    for op, key, value, offset in mutations:
        if op is Op.SET:
            batch.put(key, value)
        elif op is Op.CLEAR:
            batch.delete(key)
        elif op is Op.CLEAR_RANGE:
            batch.delete_range(key, value)
        elif op is Op.STAMPED_KEY:
            key = place_stamp(key, offset, stamp)
            stamped.append(key)
            batch.put(key, value)
        elif op is Op.STAMPED_VALUE:
            batch.put(key, place_stamp(value, offset, stamp))
        else:
            batch.put(key, apply_atomic(op, batch.get(key), value))
    return stamped
