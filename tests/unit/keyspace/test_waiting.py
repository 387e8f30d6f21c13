"""What a run waits for, in a word: each situation of its item, and no item at all."""

from __future__ import annotations

import msgspec
import pytest
from sample_records import ITEM, NOW_MS, RUN

from keyspace.lifecycle import ItemState, Phase, StopReason
from keyspace.limits import LOSSES_STUCK
from keyspace.records.run import RunRecord, StopRecord
from keyspace.records.wait import WaitRecord
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


def test_who_waits_for_a_worker_waits_until_the_deadline() -> None:
    """RFD 1, "The effective absolute deadline and its source are observable": the wait cannot outlast it."""
    run = msgspec.structs.replace(RUN, deadline_at_ms=NOW_MS + 7)
    waiting = waiting_for(run, item(state=ItemState.READY, vesting_ms=1), NOW_MS)
    assert waiting is not None and (waiting.word, waiting.until_ms) == ("worker", NOW_MS + 7)
    undone = msgspec.structs.replace(run, phase=Phase.COMPENSATING)
    waiting = waiting_for(undone, item(state=ItemState.READY, vesting_ms=1, kind=WorkKind.COMPENSATION), NOW_MS)
    assert waiting is not None and waiting.until_ms is None, "compensation ignores the deadline"


@pytest.mark.parametrize("kind", list(WorkKind))
def test_the_sentence_names_the_work(kind: WorkKind) -> None:
    """A person reads what is waited for: the step by its id, a pass and a compensation by their kind."""
    waiting = waiting_for(RUN, item(kind=kind), NOW_MS)
    expected = {WorkKind.DISCOVERY: "the next pass", WorkKind.COMPENSATION: "the compensation of step s1"}.get(
        kind, "step s1"
    )
    assert waiting is not None and expected in waiting.sentence


def stopping(reason: StopReason, phase: Phase = Phase.CANCELLING, step_id: str | None = "s1") -> RunRecord:
    stop = StopRecord(reason=reason, at_ms=1, by="k")
    return msgspec.structs.replace(RUN, phase=phase, stop=stop, step_id=step_id)


CANCELLED, LATE = StopReason.CANCELLED, StopReason.TIMED_OUT
RUNNING = {"state": ItemState.AUTHORIZED, "authorized_at_ms": 7}
TOLD: list[tuple[RunRecord, ItemRecord | None, str, str]] = [
    (stopping(CANCELLED), item(**RUNNING), "settling", "The run was cancelled: step s1 had begun; its outcome is waited for."),
    (stopping(LATE), item(**RUNNING), "settling", "The run's time is over: step s1 had begun; its outcome is waited for."),
    (stopping(CANCELLED), None, "operator", "The run was cancelled: step s1 has an unknown outcome;"),
    (stopping(CANCELLED, step_id=None), None, "operator", "The run was cancelled: an effect has an unknown outcome;"),
    (
        stopping(CANCELLED, Phase.COMPENSATING), item(kind=WorkKind.COMPENSATION, **RUNNING), "running",
        "Completed steps are being undone: the compensation of step s1 is running on a worker.",
    ),
    (
        stopping(CANCELLED, Phase.COMPENSATING), item(kind=WorkKind.COMPENSATION, vesting_ms=1), "worker",
        "Completed steps are being undone: the compensation of step s1 waits for a compatible worker.",
    ),
    (
        stopping(CANCELLED, Phase.COMPENSATING), None, "operator",
        "Completed steps are being undone: the compensation of step s1 has an unknown outcome;",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("run", "queued", "word", "sentence"), TOLD)
def test_a_stopping_run_says_so(run: RunRecord, queued: ItemRecord | None, word: str, sentence: str) -> None:
    """RFD 2, "the run remains Cancelling until every token resolves": what runs is waited for, not stopped."""
    waiting = waiting_for(run, queued, NOW_MS)
    assert waiting is not None
    assert (waiting.word, waiting.sentence[: len(sentence)]) == (word, sentence)


def test_a_run_that_has_ended_waits_for_nothing() -> None:
    assert waiting_for(msgspec.structs.replace(RUN, phase=Phase.TERMINAL), None, NOW_MS) is None


@pytest.mark.parametrize(
    ("match", "told"),
    [
        ({}, "an event order.packed, sent after"),
        ({"order": "7"}, "an event order.packed with order=7, sent after"),
        (
            {"d": "4", "c": "3", "b": "2", "a": "1"},
            "an event order.packed with a=1 and b=2 and c=3 and 1 more, sent after",
        ),
    ],
)
def test_a_wait_names_its_event_and_its_pairs(match: dict[str, str], told: str) -> None:
    """RFD 2, "the same stable step identity with the exact event name, the correlation the event must carry": shown."""
    wait = WaitRecord(event="order.packed", match=match, timeout_ms=9, registered_at_ms=3, pair="")
    waiting = waiting_for(RUN, item(kind=WorkKind.TIMER, vesting_ms=NOW_MS + 9), NOW_MS, wait=wait)
    assert waiting is not None and told in waiting.sentence
    assert (waiting.word, waiting.since_ms, waiting.until_ms) == ("event", 3, NOW_MS + 9)
