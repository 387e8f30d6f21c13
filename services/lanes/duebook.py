"""What one claimer knows of due pointers: which lanes to look at now, and the exact instant of the next look.

Pointers are scanned once a bucket, one bucket ahead, and after every ring. A lane whose pointer lies in a scanned bucket is
looked at once; the look says when its next entry vests, and that instant is kept here, so that delayed work is on time and
nothing is asked of the store while nothing is due. Free of input and output; instants are engine time in milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from keyspace.layout import bucket_of
from keyspace.limits import BUCKET_MS
from keyspace.queue.pointers import DuePointer
from keyspace.records.work import Lane

__all__ = ["COMMIT_LAG_MS_MAX", "DueBook", "LaneOf", "Scan"]

COMMIT_LAG_MS_MAX = 5_000
"""A transaction may commit this long after it sampled its time (the store's own limit), so its pointer may appear that far back."""
BUCKETS_PER_LANE_MAX = 256
"""Buckets remembered for a lane; older pointers beyond are met again by a full scan."""


class LaneOf(NamedTuple):
    """A lane and whose it is."""

    workspace: str
    lane: Lane


class Scan(NamedTuple):
    """The buckets to read, both included."""

    from_bucket: int
    to_bucket: int
    is_full: bool


@dataclass
class _Due:
    buckets: set[int] = field(default_factory=set)
    is_hot: bool = True
    next_ms: int | None = None
    empty_before_ms: int | None = None


class DueBook:
    """The due pointers of one source: a shard of a server lane, or one application."""

    def __init__(self, *, skew_ms: int, rescan_ms: int) -> None:
        """Know nothing yet; the first scan is a full one.

        Args:
            skew_ms: how far the clocks of live processes may lie apart.
            rescan_ms: how often all pointers are read, which covers a lost wake-up.
        """
        self._lookback_buckets = 1 + (skew_ms + COMMIT_LAG_MS_MAX - 1) // BUCKET_MS
        self._skew_ms = skew_ms
        self._rescan_ms = rescan_ms
        self._scanned_to: int | None = None
        self._full_due_ms: float = 0
        self._lanes: dict[LaneOf, _Due] = {}

    # -- scanning

    def want_full(self) -> None:
        """Make the next scan a full one."""
        self._full_due_ms = 0

    def next_scan(self, now_ms: int) -> Scan:
        """Return what to read now."""
        ahead = bucket_of(now_ms) + 1
        if self._scanned_to is None or now_ms >= self._full_due_ms:
            return Scan(0, ahead, is_full=True)
        return Scan(min(self._scanned_to, bucket_of(now_ms)) - self._lookback_buckets, ahead, is_full=False)

    def scan_due_in_ms(self, now_ms: int) -> int:
        """Return after how long the next scan is due without any ring: at the turn of the bucket."""
        if self._scanned_to is None or now_ms >= self._full_due_ms or bucket_of(now_ms) > self._scanned_to:
            return 0
        return (bucket_of(now_ms) + 1) * BUCKET_MS - now_ms

    def scanned(self, scan: Scan, pointers: Iterable[DuePointer], now_ms: int) -> None:
        """Take in what a scan read; every lane it names is looked at once."""
        for bucket, workspace, lane in pointers:
            due = self._lanes.setdefault(LaneOf(workspace, lane), _Due())
            due.is_hot = True
            if len(due.buckets) < BUCKETS_PER_LANE_MAX:
                due.buckets.add(bucket)
        self._scanned_to = scan.to_bucket - 1
        if scan.is_full:
            self._full_due_ms = now_ms + self._rescan_ms

    # -- looking at lanes

    def due_lanes(self, now_ms: int) -> list[LaneOf]:
        """Return the lanes to look at now, those that waited longest first."""
        return [key for key, due in self._lanes.items() if self._is_due(due, now_ms)]

    def has_due(self, now_ms: int) -> bool:
        """Return whether there is a lane to look at now."""
        return any(self._is_due(due, now_ms) for due in self._lanes.values())

    def next_instant_ms(self, now_ms: int) -> int | None:
        """Return the first known instant after `now_ms` at which a lane becomes due, or None; lanes due now do not count."""
        instants = (due.next_ms for due in self._lanes.values() if due.next_ms is not None and not due.is_hot)
        return min((instant_ms for instant_ms in instants if instant_ms > now_ms), default=None)

    def look(self, key: LaneOf) -> None:
        """Note that a look at the lane begins: a scan that names it meanwhile makes it due again."""
        due = self._lanes.pop(key, None)
        if due is not None:
            due.is_hot, due.next_ms = False, None
            self._lanes[key] = due  # at the end: lanes take turns

    def looked(self, key: LaneOf, *, next_ms: int | None, has_more: bool, empty_before_ms: int | None = None) -> None:
        """Take in a look.

        Args:
            key: the lane.
            next_ms: when its next entry vests as far as the look saw, engine time in milliseconds.
            has_more: whether vested entries may be left.
            empty_before_ms: entries that vested before this instant are gone, though later ones may be left; None when the
                look does not say. A lane that always has a backlog is rid of its old pointers by it.
        """
        due = self._lanes.setdefault(key, _Due(is_hot=False))
        due.is_hot = due.is_hot or has_more
        due.next_ms = next_ms
        due.empty_before_ms = empty_before_ms
        self._drop_if_done(key, due)

    def clearable(self, key: LaneOf, now_ms: int) -> list[int]:
        """Return the lane's buckets that are over for every live clock; their pointers may go if they are empty."""
        due = self._lanes.get(key)
        if due is None:
            return []
        over_ms = now_ms - self._skew_ms
        if due.is_hot:
            if due.empty_before_ms is None:
                return []
            over_ms = min(over_ms, due.empty_before_ms)
        return sorted(bucket for bucket in due.buckets if (bucket + 1) * BUCKET_MS <= over_ms)

    def cleared(self, key: LaneOf, bucket: int, *, is_gone: bool) -> None:
        """Take in that a pointer went, or that its bucket holds work after all."""
        due = self._lanes.get(key)
        if due is None:
            return
        if is_gone:
            due.buckets.discard(bucket)
            self._drop_if_done(key, due)
        else:
            due.is_hot = True

    def forget(self, key: LaneOf) -> None:
        """Forget a lane that nobody here claims any more; a full scan finds it again."""
        self._lanes.pop(key, None)

    def lanes(self) -> list[LaneOf]:
        """Return every lane known."""
        return list(self._lanes)

    @staticmethod
    def _is_due(due: _Due, now_ms: int) -> bool:
        return due.is_hot or (due.next_ms is not None and due.next_ms <= now_ms)

    def _drop_if_done(self, key: LaneOf, due: _Due) -> None:
        if not due.buckets and not due.is_hot and due.next_ms is None:
            del self._lanes[key]
