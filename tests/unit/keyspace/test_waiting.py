"""What a run waits for, in a word: each situation of its item, and no item at all."""

from __future__ import annotations

import msgspec
import pytest
from sample_records import ITEM, NOW_MS, RUN

from keyspace.lifecycle import ItemState, Phase
from keyspace.limits import LOSSES_STUCK
from keyspace.records.work import ItemRecord, WorkKind
from keyspace.waiting import waiting_for


def item(**fields: object) -> ItemRecord:
    return msgspec.structs.replace(ITEM, enqueued_at_ms=5, **fields)


@pytest.mark.parametrize(
    ("queued", "word", "since_ms", "until_ms"),
    [
        (None, "operator", 1, None),
        (item(state=ItemState.READY, vesting_ms=NOW_MS + 9), "backoff", 5, NOW_MS + 9),
        (item(state=ItemState.READY, vesting_ms=NOW_MS), "worker", NOW_MS, None),
        (item(state=ItemState.READY, vesting_ms=1), "worker", 5, None),
        (item(state=ItemState.LEASED), "start", 5, NOW_MS + 1),
        (item(state=ItemState.AUTHORIZED, authorized_at_ms=7), "running", 7, NOW_MS + 1),
        (item(state=ItemState.READY, vesting_ms=9, loss_count=LOSSES_STUCK), "stuck", 5, 9),
        (item(state=ItemState.READY, vesting_ms=9, loss_count=LOSSES_STUCK - 1), "worker", 9, None),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_situation_has_its_word(queued: ItemRecord | None, word: str, since_ms: int, until_ms: int | None) -> None:
    """RFD 2, "Running includes work queued for dispatch or waiting for a compatible worker": statuses, not phases."""
    waiting = waiting_for(RUN, queued, NOW_MS)
    assert waiting is not None
    assert (waiting.word, waiting.since_ms, waiting.until_ms) == (word, since_ms, until_ms)
    assert waiting.sentence.endswith(".")


@pytest.mark.parametrize("kind", list(WorkKind))
def test_the_sentence_names_the_work(kind: WorkKind) -> None:
    """A person reads what is waited for: the step by its id, a pass and a compensation by their kind."""
    waiting = waiting_for(RUN, item(kind=kind), NOW_MS)
    expected = {WorkKind.DISCOVERY: "the next pass", WorkKind.COMPENSATION: "a compensation"}.get(kind, "step s1")
    assert waiting is not None and expected in waiting.sentence


def test_a_run_that_has_ended_waits_for_nothing() -> None:
    assert waiting_for(msgspec.structs.replace(RUN, phase=Phase.TERMINAL), None, NOW_MS) is None
