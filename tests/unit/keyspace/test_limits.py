"""The relations between bounds that code relies on and no single bound shows."""

from __future__ import annotations

import pytest

from keyspace import limits
from keyspace.limits import chunk_count_max
from keyspace.queue.items import loss_delay_ms
from keyspace.records.run import HISTORY, RUN, FailureRecord, HistoryRecord
from keyspace.transitions.accept_declaration import FAILURE_RESERVE_BYTES

WORST_CHARACTER = "\x01"
"""Six bytes in JSON for one in UTF-8."""


@pytest.mark.parametrize(
    ("value_bytes", "chunks"), [(0, 1), (1, 1), (89_999, 1), (90_000, 1), (90_001, 2), (180_000, 2), (180_001, 3)]
)
def test_a_value_takes_so_many_keys(value_bytes: int, chunks: int) -> None:
    """Would catch a chunk that is lost or empty at the edge."""
    assert chunk_count_max(value_bytes) == chunks


def test_the_longest_failure_fits_its_records() -> None:
    """Would catch a failure whose JSON, every byte escaped, is larger than a stored value may be."""
    failure = FailureRecord(
        category=WORST_CHARACTER * limits.FAILURE_CATEGORY_CHARS_MAX,
        message=WORST_CHARACTER * limits.FAILURE_MESSAGE_BYTES_MAX,
        details=WORST_CHARACTER * limits.FAILURE_DETAILS_BYTES_MAX,
    )
    entry = HistoryRecord(at_ms=limits.TIMESTAMP_MS_MAX, kind="attempt-failed", data={"failure": failure})
    assert len(HISTORY.encode(entry)) + 2_000 < limits.VALUE_BYTES_MAX
    assert RUN.version == 1


def test_a_failure_always_fits_the_replay_budget() -> None:
    """FILLED-IN 11, "Replay budget": what a declaration keeps free carries any failure the step can come to."""
    longest = limits.FAILURE_MESSAGE_BYTES_MAX + limits.FAILURE_DETAILS_BYTES_MAX
    assert longest + 4 * limits.FAILURE_CATEGORY_CHARS_MAX <= FAILURE_RESERVE_BYTES


def test_a_lost_delivery_waits_longer_each_time_up_to_a_cap() -> None:
    """FILLED-IN 11, "Crashing discovery": at once, then 1 s doubling to 5 min, whatever the count."""
    delays = [loss_delay_ms(count) for count in range(2_000)]
    assert delays[:5] == [0, 0, 1_000, 2_000, 4_000]
    assert delays == sorted(delays)
    assert delays[11] == limits.LOSS_DELAY_MS_MAX == delays[-1]
