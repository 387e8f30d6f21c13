"""Acceptance: one transaction, one event, whatever is repeated, concurrent or unknown."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from world import EagerClock, World

from keyspace.errors import Refusal
from keyspace.layout import CLAIM, EVENT, EVENT_LIST, EVENT_PAYLOAD
from keyspace.limits import (
    CORRELATION_PAIRS_MAX,
    CORRELATION_TEXT_BYTES_MAX,
    IDEMPOTENCY_KEY_BYTES_MAX,
    PAYLOAD_BYTES_DEFAULT,
    RETENTION_MS_DEFAULT,
    TIMESTAMP_MS_MAX,
)
from keyspace.records.event import ExpansionState
from keyspace.store.embedded import open_embedded
from keyspace.transitions.accept_event import Submission, accept_event, check_submission, fingerprint

SAME: dict[str, Any] = {
    "name": "order.placed",
    "payload": b'{"order":1}',
    "correlation": {"order": "7"},
    "timestamp_ms": 5,
    "key": "k",
}


async def test_an_acceptance_is_an_event_with_one_obligation(world: World) -> None:
    """RFD 2, "Its transaction reads the workspace's active routing-generation head and commits the event plus one"."""
    accepted = await world.submit(**SAME, event_id="ab" * 16)
    assert (accepted.event_id, accepted.routing_generation, accepted.expansion, accepted.is_replay) == (
        "ab" * 16,
        1,
        ExpansionState.PENDING,
        False,
    )
    assert accepted.claim_expires_at_ms == world.clock.now_ms() + RETENTION_MS_DEFAULT
    (event,) = await world.records(EVENT)
    assert (event.name, event.correlation, event.timestamp_ms) == ("order.placed", {"order": "7"}, 5)
    assert await world.records(EVENT_PAYLOAD) == [b'{"order":1}']
    assert await world.records(EVENT_LIST) == ["ab" * 16]
    item = await world.item((await world.expansion("ab" * 16)).item_id or "")
    assert item is not None and (item.target, item.repeatable) == ("ab" * 16, True)
    await world.check()


async def test_submissions_without_a_key_are_new_each_time(world: World) -> None:
    """RFD 2, "Without a caller key, each accepted submission is intentionally a new event"."""
    first, second = await world.submit(), await world.submit()
    assert first.event_id != second.event_id
    assert await world.records(CLAIM) == []
    await world.check()


@pytest.mark.case(4)
async def test_the_same_key_and_content_is_the_same_event(world: World) -> None:
    """RFD 2, "An identical retry returns the original event identity and its current durable expansion state"."""
    first = await world.submit(**SAME)
    before = await world.dump()
    again = await world.submit(**SAME, accepted_by="another credential")
    assert again == first._replace(is_replay=True)
    assert await world.dump() == before, "a replay mutates nothing"
    await world.expand()
    later = await world.submit(**SAME)
    assert (later.event_id, later.expansion, later.matched_count) == (first.event_id, ExpansionState.COMPLETE, 1)
    assert len(await world.runs()) == 1


@pytest.mark.case(4)
@pytest.mark.parametrize(
    "change",
    [
        {"name": "order.changed"},
        {"payload": b'{"order":2}'},
        {"payload": b'{"order": 1}'},
        {"payload": b""},
        {"correlation": {"order": "8"}},
        {"correlation": {"orde": "r7"}},
        {"correlation": {"order": "7", "a": ""}},
        {"correlation": {}},
        {"timestamp_ms": 6},
        {"timestamp_ms": 0},
        {"timestamp_ms": None},
    ],
    ids=str,
)
async def test_any_other_content_under_a_key_is_a_conflict(change: dict[str, Any], world: World) -> None:
    """RFD 2, "Reuse of the scoped key with a different fingerprint returns an idempotency conflict and mutates nothing"."""
    first = await world.submit(**SAME)
    before = await world.dump()
    with pytest.raises(Refusal) as refused:
        await world.submit(**SAME | change)
    assert (refused.value.code, refused.value.details["event"]) == ("idempotency_conflict", first.event_id)
    assert await world.dump() == before
    await world.check()


@pytest.mark.case(4)
async def test_a_key_of_another_workspace_is_another_key(world: World) -> None:
    """RFD 2, "It cannot collide with another workspace's key"."""
    await world.begin(workspace="beta")
    first = await world.submit(**SAME)
    other = await world.submit(**SAME | {"payload": b"2"}, workspace="beta")
    assert first.event_id != other.event_id and not other.is_replay
    await world.check()


def test_the_order_of_correlation_pairs_is_no_content() -> None:
    """Correlation is a map; JSON members in another order are the same map, while a payload counts as bytes."""
    one = Submission("n", b"", {"a": "1", "b": "2"})
    assert fingerprint(one) == fingerprint(one._replace(correlation={"b": "2", "a": "1"}))
    assert fingerprint(one) != fingerprint(one._replace(correlation={"a": "2", "b": "1"}))
    assert fingerprint(one).startswith("1:")


async def test_a_claim_frees_its_key_when_it_expires(world: World) -> None:
    """FILLED-IN 11, "Claims": until its last millisecond a repeat replays, then the key is free again."""
    first = await world.submit(**SAME)
    world.clock.advance(RETENTION_MS_DEFAULT - 1)
    assert (await world.submit(**SAME)).is_replay
    world.clock.advance(1)
    second = await world.submit(**SAME | {"payload": b"other"})
    assert not second.is_replay and second.event_id != first.event_id
    assert (await world.submit(**SAME | {"payload": b"other"})).event_id == second.event_id
    assert len(await world.records(CLAIM)) == 1
    await world.check()


@pytest.mark.case(2)
async def test_concurrent_identical_submissions_converge(world: World) -> None:
    """RFD 2, "Concurrent identical submissions serialize on the claim and converge on the same event"."""
    answers = await asyncio.gather(*(world.submit(**SAME) for _ in range(50)))
    assert len({answer.event_id for answer in answers}) == 1
    assert sum(not answer.is_replay for answer in answers) == 1
    assert world.keyspace.meter.snapshot()["accept_event"].conflict_count > 0, "they did overlap"
    await world.expand()
    assert len(await world.runs()) == 1
    assert len(await world.records(CLAIM)) == 1
    await world.check()


@pytest.mark.case(2)
async def test_concurrent_identical_submissions_over_three_gateways(tmp_path: Path) -> None:
    """Case 002, "released together over three gateways ... on both store adapters": here three on one synced file."""
    clock = EagerClock()
    stores = [open_embedded(tmp_path / "store", clock=clock, map_bytes=1 << 26) for _ in range(3)]
    gateways = [World(seed=number, clock=clock, store=store) for number, store in enumerate(stores)]
    await gateways[0].begin()
    answers = await asyncio.gather(*(gateways[number % 3].submit(**SAME) for number in range(50)))
    assert len({answer.event_id for answer in answers}) == 1
    assert sum(not answer.is_replay for answer in answers) == 1
    await gateways[1].expand()
    assert len(await gateways[2].runs()) == 1
    await gateways[2].check()
    for store in stores:
        await store.close()


async def test_concurrent_different_submissions_under_one_key(world: World) -> None:
    """Exactly one wins; the others are told of the conflict, and leave nothing."""
    outcomes = await asyncio.gather(
        *(world.submit(**SAME | {"payload": b"%d" % number}) for number in range(10)), return_exceptions=True
    )
    won = [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
    lost = [outcome for outcome in outcomes if isinstance(outcome, Refusal)]
    assert (len(won), len(lost)) == (1, 9)
    assert {refusal.code for refusal in lost} == {"idempotency_conflict"}
    assert len(await world.records(EVENT)) == 1
    await world.check()


@pytest.mark.case(1)
async def test_the_event_id_is_the_receipt_of_a_submission_without_key(world: World) -> None:
    """Case 001, "even for a submission without a key": asked again under the same id, the same event."""
    first = await world.submit(event_id="ab" * 16)
    before = await world.dump()
    again = await world.submit(event_id="ab" * 16)
    assert again == first
    assert await world.dump() == before


async def test_no_workspace_no_event(empty: World) -> None:
    """A refusal mutates nothing, not even in a workspace that does not exist."""
    with pytest.raises(Refusal) as refused:
        await empty.submit(workspace="nowhere")
    assert refused.value.code == "not_found"
    assert await empty.dump() == {}


async def test_an_acknowledgement_costs_the_same_whatever_is_behind_it(empty: World) -> None:
    """S1: as many reads and writes with 200 bindings, a backlog and other tenants as without."""
    await empty.begin()

    async def cost() -> tuple[int, int]:
        before = empty.keyspace.meter.snapshot().get("accept_event")
        await empty.submit(**SAME | {"key": empty.keyspace.mint()})
        after = empty.keyspace.meter.snapshot()["accept_event"]
        reads, writes = (before.read_count, before.write_count) if before else (0, 0)
        return after.read_count - reads, after.write_count - writes

    alone = await cost()
    await empty.publish({f"f{number}": ["order.placed"] for number in range(200)})
    await empty.begin(workspace="beta")
    for _ in range(20):
        await empty.submit()
    assert await cost() == alone == (4, 10)


@pytest.mark.case(5)
@pytest.mark.parametrize("key", ["", " ", "\t\n", "a\x00b", "\ud800", "k" * (IDEMPOTENCY_KEY_BYTES_MAX + 1), "é" * 129])
def test_a_key_that_is_none_is_refused(key: str) -> None:
    """Case 005: an empty or blank key is an error, never a claim; over the limit is refused, never cut."""
    with pytest.raises(Refusal) as refused:
        check_submission(Submission("n", b"", {}, key=key))
    assert refused.value.code == "invalid_idempotency_key"
    assert refused.value.details["field"] == "idempotency_key"


@pytest.mark.case(5)
@pytest.mark.parametrize("key", ["k", "k" * IDEMPOTENCY_KEY_BYTES_MAX, "\U0001f600" * 64, " k ", '"\\'])
async def test_keys_at_the_edges(key: str, world: World) -> None:
    """Case 005: one byte, the limit, beyond the basic plane; blanks at its ends are part of a key."""
    first = await world.submit(key=key)
    assert (await world.submit(key=key)).event_id == first.event_id
    assert (await world.submit(key="x" + key[1:] + "y" * (len(key) == 1))).event_id != first.event_id


@pytest.mark.parametrize(
    ("change", "code", "field"),
    [
        ({"name": ""}, "invalid_name", "name"),
        ({"name": "ryusen/x"}, "reserved_name", "name"),
        ({"payload": bytes(PAYLOAD_BYTES_DEFAULT + 1)}, "payload_too_large", "payload"),
        (
            {"correlation": {f"k{n}": "" for n in range(CORRELATION_PAIRS_MAX + 1)}},
            "invalid_correlation",
            "correlation",
        ),
        ({"correlation": {"": "v"}}, "invalid_text", "correlation"),
        ({"correlation": {"k": "v" * (CORRELATION_TEXT_BYTES_MAX + 1)}}, "invalid_text", "correlation.k"),
        ({"correlation": {"k": "\x00"}}, "invalid_text", "correlation.k"),
        ({"timestamp_ms": -1}, "invalid_timestamp", "timestamp_ms"),
        ({"timestamp_ms": TIMESTAMP_MS_MAX + 1}, "invalid_timestamp", "timestamp_ms"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_unsound_submission_is_refused(change: dict[str, Any], code: str, field: str) -> None:
    """ARCHITECTURE 7: a typed refusal that names the field."""
    with pytest.raises(Refusal) as refused:
        check_submission(Submission(**SAME | change))
    assert (refused.value.code, refused.value.details["field"]) == (code, field)


@pytest.mark.case(64)
@pytest.mark.parametrize("size", [0, 1, 89_999, 90_000, 90_001, 99_999, 100_001, PAYLOAD_BYTES_DEFAULT])
async def test_payloads_of_every_size_come_back_whole(size: int, world: World) -> None:
    """Case 064, "values of 99,999 to 100,001 bytes before and after splitting": none is cut, none is refused at commit."""
    payload = bytes(number % 251 for number in range(size))
    accepted = await world.submit(payload=payload)
    stored = await world.read(
        lambda tx: tx.load_blob(EVENT_PAYLOAD, "acme", accepted.event_id, size_bytes=len(payload))
    )
    assert stored == payload
    await world.check()


async def test_the_largest_submission_stays_in_its_budget(world: World) -> None:
    """Budget: the payload, six times the correlation, and 6 kB: every character escaped in JSON, names at their longest."""
    correlation = {f"{n:02}" + "\x01" * 254: "\x01" * 256 for n in range(CORRELATION_PAIRS_MAX)}
    submission = Submission("\U0001f600" * 200, bytes(PAYLOAD_BYTES_DEFAULT), correlation, TIMESTAMP_MS_MAX, "k" * 256)
    check_submission(submission)

    async def body(tx: Any) -> tuple[int, int]:
        await accept_event(tx, "acme", submission, event_id="ab" * 16, accepted_by="t" * 100)
        return tx.budget.spent_bytes, await tx.measured_bytes()

    spent, measured = await world.run("accept_event", body)
    pairs = sum(len(text) for pair in correlation.items() for text in pair)
    assert measured <= spent <= PAYLOAD_BYTES_DEFAULT + 6 * pairs + 6_000
    await world.check()
