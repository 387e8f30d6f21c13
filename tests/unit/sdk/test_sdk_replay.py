"""The worker's replay cache: what a run's worker was sent once is not sent again, and never has to be there."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from ryusen.protocol.frames import (
    REPLAY,
    Assign,
    Declare,
    Failure,
    NeedReplay,
    Settled,
    StepMemo,
    decode_server_frame,
    encode_frame,
)
from ryusen.protocol.replay import extend_digest, first_digest
from ryusen.worker.effects import StartPass
from ryusen.worker.replay import STEP_BYTES, ReplayCache
from sdk_bench import ENDED, Bench, assign, met

GIVEN = b'{"order":1}'


def step(number: int, value: bytes = b"1") -> StepMemo:
    return StepMemo(id=f"s{number}", value=msgspec.Raw(value))


def full(memo: list[StepMemo], *, run: str = "run-1", request: str = "d1", given: bytes = GIVEN) -> Assign:
    whole = msgspec.structs.replace(assign(request, "discovery", run=run), input=msgspec.Raw(given), memo=memo)
    frame = decode_server_frame(encode_frame(whole))
    assert isinstance(frame, Assign)
    return frame


def more(known: list[StepMemo], memo: list[StepMemo], **changes: Any) -> Assign:
    """Return the assignment that takes `known` for known."""
    digest = extend_digest(first_digest("run-1", GIVEN), known)
    return msgspec.structs.replace(full(memo, given=b"null"), **{"base": len(known), "base_digest": digest, **changes})


def told(frame: Assign | None) -> tuple[bytes, list[str]] | None:
    return None if frame is None else (bytes(frame.input), [memo.id for memo in frame.memo])


def test_what_was_sent_once_is_put_before_what_is_new() -> None:
    cache = ReplayCache()
    assert told(cache.complete(full([step(1), step(2)]))) == (GIVEN, ["s1", "s2"])
    assert told(cache.complete(more([step(1), step(2)], [step(3)]))) == (GIVEN, ["s1", "s2", "s3"])
    assert told(cache.complete(more([step(1), step(2), step(3)], []))) == (GIVEN, ["s1", "s2", "s3"])


def test_a_pass_that_reads_what_it_was_given_sees_nothing_of_later_ones() -> None:
    cache = ReplayCache()
    cache.complete(full([step(1)]))
    earlier = cache.complete(more([step(1)], [step(2)]))
    cache.complete(more([step(1), step(2)], [step(3)]))
    assert told(earlier) == (GIVEN, ["s1", "s2"])


@pytest.mark.parametrize(
    "wrong",
    [
        more([step(1), step(2)], []),
        more([], [step(2)]),
        more([step(1, b"2")], []),
        more([step(7)], []),
        more([step(1)], [], base=2),
        more([step(1)], [], base=0),
        more([step(1)], [], base_digest="00"),
        msgspec.structs.replace(more([step(1)], []), ref=assign("d1", "discovery", run="run-2").ref),
    ],
    ids=["longer", "shorter", "other value", "other step", "miscounted up", "miscounted down", "digest", "other run"],
)
def test_a_base_that_is_not_what_is_kept_is_told_from_it(wrong: Assign) -> None:
    """Never correctness: whatever does not agree is asked for again, in full."""
    cache = ReplayCache()
    cache.complete(full([step(1)]))
    assert cache.complete(wrong) is None
    assert told(cache.complete(full([step(1), step(2)]))) == (GIVEN, ["s1", "s2"])


def test_failures_and_inputs_are_part_of_what_must_agree() -> None:
    failed = StepMemo(id="s1", failure=Failure(category="application", message="m", attempts=2))
    other = StepMemo(id="s1", failure=Failure(category="application", message="m", attempts=3))
    digests = {
        extend_digest(first_digest("run-1", GIVEN), [failed]),
        extend_digest(first_digest("run-1", GIVEN), [other]),
        extend_digest(first_digest("run-1", b"2"), [failed]),
        extend_digest(first_digest("run-2", GIVEN), [failed]),
        extend_digest(first_digest("run-1", GIVEN), [failed, failed]),
    }
    assert len(digests) == 5


def test_runs_are_bounded_and_the_one_longest_not_seen_goes_first() -> None:
    cache = ReplayCache(runs_max=2)
    for run in ("a", "b", "a", "c"):
        cache.complete(full([step(1)], run=run))
    assert len(cache) == 2
    assert cache.forget("b") is None
    assert cache.forget("a") is not None


def test_bytes_are_bounded_and_counted_exactly() -> None:
    cache = ReplayCache(bytes_max=10_000)
    cache.complete(full([step(1, b'"' + b"x" * 3_998 + b'"')], run="a"))
    assert cache.size_bytes == len(GIVEN) + 4_000 + 2 + STEP_BYTES
    cache.complete(full([step(1, b'"' + b"x" * 6_998 + b'"')], run="b"))
    assert (len(cache), cache.forget("a")) == (1, None)
    cache.complete(full([step(1, b'"' + b"x" * 20_000 + b'"')], run="c"))
    assert (len(cache), cache.size_bytes) == (0, 0), "what is larger than all is not kept"


# ---- in the core


def test_the_worker_says_that_it_keeps_replays() -> None:
    assert REPLAY in Bench().hello().features


def test_an_assignment_whose_base_is_gone_is_asked_for_again_and_starts_once() -> None:
    bench = Bench().up()
    bench.get(more([step(1)], [step(2)]))
    assert bench.sent() == [NeedReplay(request="d1")]
    assert bench.core._works.requests() == [], "nothing is held before it is whole"
    (effect,) = bench.get(full([step(1), step(2)]))
    assert isinstance(effect, StartPass)
    assert [memo.id for memo in effect.assign.memo] == ["s1", "s2"]
    assert bench.get(full([step(1), step(2)])) == []


def test_a_pass_starts_with_everything_that_was_sent_before() -> None:
    bench = Bench().up()
    bench.get(full([step(1)]))
    bench.turn("d1", met("s2"))
    bench.get(Settled(request="d1", verdict="accepted"))
    (effect,) = bench.get(msgspec.structs.replace(more([step(1)], [step(2)]), request="d2"))
    assert isinstance(effect, StartPass)
    assert told(effect.assign) == (GIVEN, ["s1", "s2"])


def test_a_run_that_has_ended_is_kept_no_longer() -> None:
    bench = Bench().up()
    bench.get(full([step(1)]))
    bench.turn("d1", ENDED)
    assert len(bench.core._replays) == 1
    bench.get(Settled(request="d1", verdict="accepted"))
    assert len(bench.core._replays) == 0


def test_declaring_is_no_end() -> None:
    bench = Bench().up()
    bench.get(full([]))
    bench.turn("d1", met("s1"))
    assert isinstance(bench.sent()[0].ending, Declare)  # type: ignore[union-attr]
    bench.get(Settled(request="d1", verdict="accepted"))
    assert len(bench.core._replays) == 1
