"""The due book by table: what is scanned, what is looked at, what may be cleared, and when nothing is due."""

from __future__ import annotations

import pytest

from keyspace.limits import BUCKET_MS
from keyspace.records.work import LaneKind, application_lane, server_lane
from services.lanes.duebook import BUCKETS_PER_LANE_MAX, DueBook, LaneOf, Scan

NOW_MS = 1_700_000_000_250
BUCKET = NOW_MS // BUCKET_MS
KEY = LaneOf("acme", server_lane(LaneKind.FANOUT))
OTHER = LaneOf("acme", application_lane("shop", "fulfil"))


def book() -> DueBook:
    return DueBook(skew_ms=500, rescan_ms=30_000)


def scanned(made: DueBook, *buckets: int, now_ms: int = NOW_MS) -> DueBook:
    scan = made.next_scan(now_ms)
    made.scanned(scan, [(bucket, KEY.workspace, KEY.lane) for bucket in buckets], now_ms)
    return made


def test_the_first_scan_is_full_and_later_ones_reach_back_as_far_as_a_commit_may_lag() -> None:
    """A pointer whose transaction sampled its time 5 s before it committed would have been missed for a rescan period."""
    made = book()
    assert made.next_scan(NOW_MS) == Scan(0, BUCKET + 1, is_full=True)
    scanned(made)
    later = made.next_scan(NOW_MS + 1_000)
    assert later == Scan(BUCKET - 6, BUCKET + 2, is_full=False)
    assert (BUCKET - later.from_bucket) * BUCKET_MS >= 5_000 + 500


@pytest.mark.parametrize(
    ("elapsed_ms", "wanted_ms"), [(0, 750), (749, 1), (750, 0), (1_700, 0), (29_999, 0), (30_000, 0)]
)
def test_a_scan_is_due_at_the_turn_of_each_bucket(elapsed_ms: int, wanted_ms: int) -> None:
    """ARCHITECTURE 4: pointers are read once a bucket; between two scans nothing is due."""
    assert scanned(book()).scan_due_in_ms(NOW_MS + elapsed_ms) == wanted_ms


def test_a_full_scan_comes_back_at_the_rescan_period_and_when_wanted() -> None:
    """The slow rescan covers a wake-up that was lost; a hello wants one at once."""
    made = scanned(book())
    assert not made.next_scan(NOW_MS + 29_999).is_full
    assert made.next_scan(NOW_MS + 30_000).is_full
    made.want_full()
    assert made.next_scan(NOW_MS).is_full
    assert made.scan_due_in_ms(NOW_MS) == 0


def test_a_lane_is_looked_at_once_for_each_scan_that_names_it() -> None:
    """Idle lanes cost nothing: after a look that found nothing, only an instant or another scan brings a lane back."""
    made = scanned(book(), BUCKET)
    assert made.due_lanes(NOW_MS) == [KEY]
    made.look(KEY)
    made.looked(KEY, next_ms=NOW_MS + 333, has_more=False)
    assert made.due_lanes(NOW_MS) == []
    assert made.next_instant_ms(NOW_MS) == NOW_MS + 333
    assert made.due_lanes(NOW_MS + 332) == []
    assert made.due_lanes(NOW_MS + 333) == [KEY]
    assert made.next_instant_ms(NOW_MS + 333) is None, "a lane that is due and has no seat must not make a hot loop"


def test_a_scan_during_a_look_is_not_lost() -> None:
    """Work that arrives while a lane is being looked at would otherwise wait for the next bucket."""
    made = scanned(book(), BUCKET)
    made.look(KEY)
    scanned(made, BUCKET)
    made.looked(KEY, next_ms=None, has_more=False)
    assert made.due_lanes(NOW_MS) == [KEY]


def test_lanes_take_turns() -> None:
    """Case 058's spirit: a lane that was looked at stands behind those that were not."""
    made = book()
    made.scanned(made.next_scan(NOW_MS), [(BUCKET, *KEY), (BUCKET, *OTHER)], NOW_MS)
    assert made.due_lanes(NOW_MS) == [KEY, OTHER]
    made.look(KEY)
    made.looked(KEY, next_ms=None, has_more=True)
    assert made.due_lanes(NOW_MS) == [OTHER, KEY]


def test_only_buckets_that_are_over_for_every_clock_may_be_cleared() -> None:
    """ARCHITECTURE 4: a pointer is never lost while work remains."""
    made = scanned(book(), BUCKET - 3, BUCKET - 1, BUCKET, BUCKET + 1)
    made.look(KEY)
    assert made.clearable(KEY, NOW_MS) == [BUCKET - 3], "one that ended less than the skew bound ago is not over"
    made.looked(KEY, next_ms=None, has_more=False)
    assert made.clearable(KEY, NOW_MS + 250) == [BUCKET - 3, BUCKET - 1]
    made.cleared(KEY, BUCKET - 3, is_gone=True)
    made.cleared(KEY, BUCKET - 1, is_gone=False)
    assert made.clearable(KEY, NOW_MS + 250) == [], "its bucket holds work after all"
    assert made.due_lanes(NOW_MS) == [KEY], "so it is looked at again"


def test_a_backlog_keeps_only_the_pointers_from_its_oldest_entry_on() -> None:
    """A lane that is never empty kept one pointer a second for ever, and each full scan read them all."""
    made = scanned(book(), BUCKET - 9, BUCKET - 5, BUCKET - 4)
    made.look(KEY)
    made.looked(KEY, next_ms=None, has_more=True, empty_before_ms=(BUCKET - 4) * BUCKET_MS + 10)
    assert made.clearable(KEY, NOW_MS) == [BUCKET - 9, BUCKET - 5]
    made.looked(KEY, next_ms=None, has_more=True)
    assert made.clearable(KEY, NOW_MS) == []


def test_what_is_done_is_forgotten() -> None:
    """The book's memory follows what is due, not what ever was."""
    made = scanned(book(), BUCKET - 3)
    made.look(KEY)
    made.looked(KEY, next_ms=None, has_more=False)
    made.cleared(KEY, BUCKET - 3, is_gone=True)
    assert made.lanes() == []
    scanned(made, BUCKET)
    made.forget(KEY)
    assert made.lanes() == []
    assert made.next_instant_ms(NOW_MS) is None


def test_the_buckets_of_a_lane_are_bounded() -> None:
    """Pointers beyond the bound are met again by a full scan."""
    made = scanned(book(), *range(BUCKET - 2 * BUCKETS_PER_LANE_MAX, BUCKET))
    made.look(KEY)
    made.looked(KEY, next_ms=None, has_more=False)
    assert len(made.clearable(KEY, NOW_MS)) == BUCKETS_PER_LANE_MAX
