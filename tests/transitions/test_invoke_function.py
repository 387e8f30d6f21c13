"""Direct invocation: an addressed event, accepted as every event is, that starts one function or says why it cannot."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from world import EagerClock, World

from keyspace.errors import CorruptRecord, Refusal
from keyspace.fsck import check_keyspace
from keyspace.layout import CLAIM, EVENT, EVENT_LIST, EVENT_PAYLOAD, EXPANSION, MATCH, ROUTING
from keyspace.leaf import Key
from keyspace.lifecycle import DeadlineSource, Execution, Phase
from keyspace.limits import (
    IDEMPOTENCY_KEY_BYTES_MAX,
    PAYLOAD_BYTES_DEFAULT,
    RETENTION_MS_DEFAULT,
    TIMESTAMP_MS_MAX,
)
from keyspace.records.codec import Record
from keyspace.records.event import ExpansionState, NoMatch
from keyspace.store.embedded import memory_store, open_embedded
from keyspace.store.fault import FaultStore, ProcessStopped
from keyspace.store.fault_plan import CommitFault, FaultPlan
from keyspace.store.memory_engine import MemoryEngine
from keyspace.transitions.activate_routing import activate_routing
from keyspace.transitions.create_workspace import create_workspace
from keyspace.transitions.expand_event import expand_event
from keyspace.transitions.invoke_function import (
    Invocation,
    check_invocation,
    invocation_fingerprint,
    invoke_function,
    invoked_run_id,
)
from keyspace.transitions.publish_manifest import FunctionSpec, ManifestSpec, TriggerSpec, publish_manifest
from keyspace.tx import Tx

SAME: dict[str, Any] = {"function": "fulfil", "payload": b'{"order":1}', "timestamp_ms": 5, "key": "k"}


async def test_an_invocation_is_an_addressed_event_with_one_obligation(world: World) -> None:
    """RFD 2, "A direct invocation is an addressed event: it is accepted through the same transactional event acceptance"."""
    accepted = await world.invoke(**SAME, event_id="ab" * 16)
    assert (accepted.event_id, accepted.routing_generation, accepted.expansion) == (
        "ab" * 16,
        1,
        ExpansionState.PENDING,
    )
    assert accepted.claim_expires_at_ms == world.clock.now_ms() + RETENTION_MS_DEFAULT
    (event,) = await world.records(EVENT)
    assert (event.target_application, event.target_function, event.is_addressed) == ("shop", "fulfil", True)
    assert await world.records(EVENT_PAYLOAD) == [b'{"order":1}']
    assert await world.records(EVENT_LIST) == ["ab" * 16]
    item = await world.item((await world.expansion("ab" * 16)).item_id or "")
    assert item is not None and item.target == "ab" * 16
    await world.check()


async def test_the_event_has_the_reserved_name_and_no_routing_metadata(world: World) -> None:
    """RFD 2, "The accepted event carries a target ... and the reserved name ... and the event carries no routing metadata"."""
    await world.invoke()
    (event,) = await world.records(EVENT)
    assert (event.name, event.correlation) == ("ryusen/function.invoked", {})


async def test_the_run_is_the_targets_under_the_binding_invoke(empty: World) -> None:
    """RFD 2, "the expansion records one match under the reserved binding identifier invoke and creates the run with the"."""
    await empty.begin({"quiet": [], "other": ["order.placed"]})
    accepted = await empty.invoke("quiet", b"[1,2]")
    assert await empty.expand() == 1
    (run,) = await empty.runs()
    assert run.run_id == invoked_run_id("acme", accepted.event_id, "shop")
    assert (run.application, run.function, run.binding) == ("shop", "quiet", "invoke")
    assert (run.event_id, run.event_name) == (accepted.event_id, "ryusen/function.invoked")
    assert (run.manifest_generation, run.routing_generation) == (1, 1)
    assert run.input_bytes == len(b"[1,2]"), "its input is the payload, as a triggered run's is"
    (match,) = await empty.records(MATCH)
    assert (match.run_id, match.function) == (run.run_id, "quiet")
    expansion = await empty.expansion(accepted.event_id)
    assert (expansion.state, expansion.evaluated_count, expansion.matched_count, expansion.missing) == (
        ExpansionState.COMPLETE,
        1,
        1,
        None,
    )
    assert (await empty.history(run.run_id))[0].data["binding"] == "invoke"
    await empty.check()


async def test_an_invoked_run_runs_as_any_other(world: World) -> None:
    """RFD 2, "The created run is an ordinary run": its passes, steps and end."""
    await world.invoke()
    await world.expand()
    await world.run_step("a")
    await world.complete(await world.lease_pass())
    (run,) = await world.runs()
    assert (run.phase, run.execution) == (Phase.TERMINAL, Execution.COMPLETED)
    await world.check()


@pytest.mark.parametrize(
    ("declared_ms", "default_ms", "wanted"),
    [
        (60_000, None, (60_000, DeadlineSource.FUNCTION)),
        (60_000, 5_000, (60_000, DeadlineSource.FUNCTION)),
        (None, 5_000, (5_000, DeadlineSource.DEPLOYMENT)),
        (None, None, None),
    ],
)
async def test_the_deadline_is_the_functions_own(
    declared_ms: int | None, default_ms: int | None, wanted: tuple[int, DeadlineSource] | None, world: World
) -> None:
    """RFD 2, "its deadline comes from the function declaration in the pinned manifest": the default only without one."""
    spec = ManifestSpec("shop", (FunctionSpec("timed", timeout_ms=declared_ms),))
    record, _ = await world.run("publish_manifest", lambda tx: publish_manifest(tx, "acme", spec, published_by="t"))
    await world.run(
        "activate_routing",
        lambda tx: activate_routing(tx, "acme", {"shop": record.generation}, activated_by="t", is_merge=True),
    )
    event_id = (await world.invoke("timed")).event_id
    await world.publish({"timed": []})
    item_id = (await world.expansion(event_id)).item_id or ""
    await world.run(
        "expand_event",
        lambda tx: expand_event(tx, "acme", event_id, item_id, run_timeout_default_ms=default_ms),
    )
    (run,) = await world.runs()
    found = None if run.deadline_at_ms is None else (run.deadline_at_ms - run.created_at_ms, run.deadline_source)
    assert found == wanted
    await world.check()


async def test_no_trigger_binding_is_evaluated(empty: World) -> None:
    """RFD 2, "An addressed event never evaluates trigger bindings": only the named function of the named application."""
    await empty.begin({"fulfil": ["order.placed"], "audit": ["order.placed"]})
    await empty.publish({"fulfil": ["order.placed"]}, application="store")
    await empty.invoke("fulfil", application="store")
    await empty.expand()
    assert [(run.application, run.function) for run in await empty.runs()] == [("store", "fulfil")]


async def test_no_manifest_can_listen_for_invocations_or_bear_their_binding(world: World) -> None:
    """RFD 2, "The ryusen/ prefix is reserved for events the server authors", and the binding identifier is."""
    for trigger in (TriggerSpec("ryusen/function.invoked", "mine"), TriggerSpec("order.placed", "invoke")):
        spec = ManifestSpec("spy", (FunctionSpec("listen", (trigger,)),))
        before = await world.dump()
        with pytest.raises(Refusal) as refused:
            await world.run("publish_manifest", lambda tx, s=spec: publish_manifest(tx, "acme", s, published_by="t"))  # type: ignore[misc]
        assert refused.value.code == "reserved_name"
        assert await world.dump() == before


@pytest.mark.case(41)
@pytest.mark.parametrize("name", ["ryusen/function.invoked", "ryusen/", "ryusen/anything"])
async def test_the_broadcast_path_cannot_make_an_addressed_event(name: str, world: World) -> None:
    """Case 041 and RFD 2, "a public submission naming it is refused, so a caller cannot submit an addressed event"."""
    before = await world.dump()
    with pytest.raises(Refusal) as refused:
        await world.submit(name)
    assert (refused.value.code, refused.value.details["field"]) == ("reserved_name", "name")
    assert await world.dump() == before


# -- what is missing


@pytest.mark.case(37)
@pytest.mark.parametrize(
    ("application", "function", "missing"),
    [
        ("shop", "gone", NoMatch.FUNCTION),
        ("store", "fulfil", NoMatch.APPLICATION),
        ("shop", "order.placed", NoMatch.FUNCTION),
        ("shop", "fulfi", NoMatch.FUNCTION),
        ("shop", "fulfil2", NoMatch.FUNCTION),
    ],
)
async def test_a_no_match_is_durable_and_names_what_is_missing(
    application: str, function: str, missing: NoMatch, world: World
) -> None:
    """Case 037 and RFD 2, "the expansion records a durable no-match that names which, and completes"."""
    accepted = await world.invoke(function, application=application, key="k")
    assert await world.expand() == 1
    expansion = await world.expansion(accepted.event_id)
    assert (expansion.state, expansion.missing, expansion.item_id) == (ExpansionState.COMPLETE, missing, None)
    assert (expansion.evaluated_count, expansion.matched_count) == (1, 0)
    assert await world.runs() == [] and await world.records(MATCH) == []
    again = await world.invoke(function, application=application, key="k")
    assert (again.event_id, again.expansion, again.missing) == (accepted.event_id, ExpansionState.COMPLETE, missing)
    await world.check()


@pytest.mark.case(37)
async def test_without_an_active_generation_the_application_is_missing(empty: World) -> None:
    """Generation 0 references no application, so an invocation under it is explained like any other."""
    await empty.begin()
    await empty.run("create_workspace", lambda tx: create_workspace(tx, "beta"))
    accepted = await empty.invoke(workspace="beta")
    assert accepted.routing_generation == 0
    await empty.expand(workspace="beta")
    assert (await empty.expansion(accepted.event_id, workspace="beta")).missing is NoMatch.APPLICATION
    await empty.check()


@pytest.mark.case(37)
async def test_a_later_activation_changes_nothing(world: World) -> None:
    """Case 037 and RFD 2, "rather than lost or silently retargeted at a newer manifest": before and after the expansion."""
    early = await world.invoke("fresh")
    done = await world.invoke("fresh")
    await world.expand_chunk(done.event_id)
    kept = await world.invoke("fulfil")
    await world.publish({"fresh": []})
    await world.expand()
    assert (await world.expansion(early.event_id)).missing is NoMatch.FUNCTION
    assert (await world.expansion(done.event_id)).missing is NoMatch.FUNCTION
    assert [(run.event_id, run.manifest_generation) for run in await world.runs()] == [(kept.event_id, 1)]
    late = await world.invoke("fresh")
    await world.expand()
    assert {run.event_id for run in await world.runs()} == {kept.event_id, late.event_id}
    await world.check()


async def test_a_missing_routing_generation_is_evidence(world: World) -> None:
    """A pinned generation that is gone is damage, never a no-match."""
    accepted = await world.invoke()

    async def lose(tx: Tx) -> None:
        tx.remove(ROUTING.at("acme", 1))

    await world.run("lose", lose)
    with pytest.raises(CorruptRecord):
        await world.expand_chunk(accepted.event_id)


# -- idempotency


@pytest.mark.case(4)
async def test_the_same_key_and_content_is_the_same_invocation(world: World) -> None:
    """RFD 2, "An identical retry returns the original event and its expansion state"."""
    first = await world.invoke(**SAME)
    before = await world.dump()
    again = await world.invoke(**SAME, accepted_by="another credential")
    assert again == first._replace(is_replay=True)
    assert await world.dump() == before, "a replay mutates nothing"
    await world.expand()
    later = await world.invoke(**SAME)
    assert (later.event_id, later.expansion, later.matched_count) == (first.event_id, ExpansionState.COMPLETE, 1)
    assert len(await world.runs()) == 1


@pytest.mark.case(4)
@pytest.mark.parametrize(
    "change",
    [
        {"function": "fulfi"},
        {"application": "sho"},
        {"application": "shopf", "function": "ulfil"},
        {"payload": b'{"order":2}'},
        {"payload": b'{"order": 1}'},
        {"payload": b""},
        {"timestamp_ms": 6},
        {"timestamp_ms": 0},
        {"timestamp_ms": None},
    ],
    ids=str,
)
async def test_any_other_content_under_a_key_is_a_conflict(change: dict[str, Any], world: World) -> None:
    """RFD 2, "reuse of the key with a different target or payload is the ordinary idempotency conflict and mutates nothing"."""
    first = await world.invoke(**SAME)
    before = await world.dump()
    with pytest.raises(Refusal) as refused:
        await world.invoke(**SAME | change)
    assert (refused.value.code, refused.value.details["event"]) == ("idempotency_conflict", first.event_id)
    assert await world.dump() == before
    await world.check()


@pytest.mark.case(4)
async def test_a_key_of_another_operation_or_workspace_is_another_key(world: World) -> None:
    """RFD 2, "scoped by workspace and its own function.invoke operation, so it cannot collide with an event.submit key"."""
    await world.begin(workspace="beta")
    submitted = await world.submit(key="k")
    invoked = await world.invoke(key="k")
    foreign = await world.invoke("gone", key="k", workspace="beta")
    assert not (invoked.is_replay or foreign.is_replay)
    assert len({submitted.event_id, invoked.event_id, foreign.event_id}) == 3
    assert (await world.submit(key="k")).event_id == submitted.event_id
    assert (await world.invoke(key="k")).event_id == invoked.event_id
    assert len(await world.records(CLAIM)) == 2
    await world.check()


def test_a_fingerprint_is_of_the_target_the_payload_and_the_timestamp_only() -> None:
    """RFD 2, "Its fingerprint covers the target, the payload, and the caller-supplied timestamp": not the key."""
    one = Invocation("a", "b", b"c", 1, "k")
    assert invocation_fingerprint(one) == invocation_fingerprint(one._replace(key="l"))
    others = [
        one._replace(application="b", function="a"),
        one._replace(application="ab", function=""),
        one._replace(function="bc", payload=b""),
        one._replace(payload=b"c1", timestamp_ms=None),
    ]
    assert len({invocation_fingerprint(other) for other in (one, *others)}) == 5
    assert invocation_fingerprint(one).startswith("1:")


async def test_without_a_key_each_invocation_is_an_event(world: World) -> None:
    """RFD 2, "Without a caller key, each accepted submission is intentionally a new event"."""
    first, second = await world.invoke(), await world.invoke()
    assert first.event_id != second.event_id
    await world.expand()
    assert len(await world.runs()) == 2


@pytest.mark.case(2)
async def test_concurrent_identical_invocations_over_three_gateways(tmp_path: Path) -> None:
    """Case 002, "repeat for function invocation": 50 together over three gateways are one event and one run."""
    clock = EagerClock()
    stores = [open_embedded(tmp_path / "store", clock=clock, map_bytes=1 << 26) for _ in range(3)]
    gateways = [World(seed=number, clock=clock, store=store) for number, store in enumerate(stores)]
    await gateways[0].begin()
    answers = await asyncio.gather(*(gateways[number % 3].invoke(**SAME) for number in range(50)))
    assert len({answer.event_id for answer in answers}) == 1
    assert sum(not answer.is_replay for answer in answers) == 1
    await gateways[1].expand()
    assert len(await gateways[2].runs()) == 1
    await gateways[2].check()
    for store in stores:
        await store.close()


@pytest.mark.case(2)
async def test_concurrent_identical_invocations_converge(world: World) -> None:
    """The same on one store of any kind: one claim, one obligation, one run."""
    answers = await asyncio.gather(*(world.invoke(**SAME) for _ in range(20)))
    assert len({answer.event_id for answer in answers}) == 1
    assert sum(not answer.is_replay for answer in answers) == 1
    await world.expand()
    assert len(await world.runs()) == len(await world.records(CLAIM)) == 1
    await world.check()


@pytest.mark.case(1)
async def test_the_event_id_is_the_receipt_of_an_invocation_without_key(world: World) -> None:
    """Case 001: asked again under the same id, the same event, written once."""
    first = await world.invoke(event_id="ab" * 16)
    before = await world.dump()
    assert await world.invoke(event_id="ab" * 16) == first
    assert await world.dump() == before


@pytest.mark.case(1)
@pytest.mark.parametrize("function", ["fulfil", "gone"])
@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("transition", ["invoke_function", "expand_event"])
@pytest.mark.parametrize(
    "faults",
    [
        (CommitFault.UNKNOWN_COMMITTED,) * 3,
        (CommitFault.UNKNOWN_COMMITTED, CommitFault.NOT_COMMITTED),
        (CommitFault.UNKNOWN_COMMITTED, CommitFault.TRANSACTION_TOO_OLD),
        (CommitFault.UNKNOWN_NOT_COMMITTED, CommitFault.UNKNOWN_COMMITTED),
    ],
    ids=lambda faults: "-".join(fault.value for fault in faults),
)
async def test_unknown_commits(
    faults: tuple[CommitFault, ...], transition: str, key: str | None, function: str
) -> None:
    """Case 001 for this transition, "the caller gets the answer of the first commit; one event", and for its expansion."""
    clock = EagerClock()
    plan = FaultPlan().at_commit(1, *faults, transition=transition)
    world = World(clock=clock, store=FaultStore(memory_store(clock=clock), plan, clock=clock))
    await world.begin()
    accepted = await world.invoke(function, key=key)
    assert (accepted.event_id, accepted.expansion) == ((await world.records(EVENT))[0].event_id, ExpansionState.PENDING)
    await world.expand()
    assert len(await world.records(EVENT)) == 1
    assert len(await world.runs()) == (function == "fulfil")
    assert (await world.expansion(accepted.event_id)).evaluated_count == 1
    await world.check()


@pytest.mark.case(2)
@pytest.mark.parametrize("function", ["fulfil", "gone"])
@pytest.mark.parametrize("transition", ["invoke_function", "expand_event"])
@pytest.mark.parametrize("fault", [CommitFault.STOP_AFTER, CommitFault.STOP_BEFORE])
async def test_a_stop_around_each_commit(fault: CommitFault, transition: str, function: str) -> None:
    """Case 002, "the killed caller's retry gets the same event and the current expansion state"."""
    clock, engine = EagerClock(), MemoryEngine()
    plan = FaultPlan().at_commit(1, fault, transition=transition)
    world = World(clock=clock, store=FaultStore(memory_store(clock=clock, engine=engine), plan, clock=clock))
    await world.begin()
    with pytest.raises(ProcessStopped):
        await world.invoke(function, key="k")
        await world.expand()
    successor = World(seed=1, clock=clock, store=memory_store(clock=clock, engine=engine))
    await successor.check()
    was_accepted = (transition, fault) != ("invoke_function", CommitFault.STOP_BEFORE)
    answer = await successor.invoke(function, key="k")
    assert answer.is_replay is was_accepted
    await successor.expand()
    assert len(await successor.records(EVENT)) == 1
    assert len(await successor.runs()) == (function == "fulfil")
    await successor.check()


# -- bounds


@pytest.mark.parametrize(
    ("change", "code", "field"),
    [
        ({"application": ""}, "invalid_name", "application"),
        ({"application": "a" * 201}, "invalid_name", "application"),
        ({"function": " "}, "invalid_name", "function"),
        ({"function": "a\x00b"}, "invalid_name", "function"),
        ({"timestamp_ms": -1}, "invalid_timestamp", "timestamp_ms"),
        ({"timestamp_ms": TIMESTAMP_MS_MAX + 1}, "invalid_timestamp", "timestamp_ms"),
        ({"key": ""}, "invalid_idempotency_key", "idempotency_key"),
        ({"key": " \t"}, "invalid_idempotency_key", "idempotency_key"),
        ({"key": "k" * (IDEMPOTENCY_KEY_BYTES_MAX + 1)}, "invalid_idempotency_key", "idempotency_key"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_unsound_invocation_is_refused(change: dict[str, Any], code: str, field: str) -> None:
    """ARCHITECTURE 7 and case 005: a typed refusal that names the field; an empty key is never a claim."""
    with pytest.raises(Refusal) as refused:
        check_invocation(Invocation(**{"application": "shop"} | SAME | change))
    assert (refused.value.code, refused.value.details["field"]) == (code, field)


@pytest.mark.case(5)
@pytest.mark.parametrize("key", ["k", "k" * IDEMPOTENCY_KEY_BYTES_MAX, "\U0001f600" * 64, '"\\'])
async def test_keys_at_the_edges(key: str, world: World) -> None:
    """Case 005, "the same for invoke": one byte, the limit, beyond the basic plane."""
    first = await world.invoke(key=key)
    assert (await world.invoke(key=key)).event_id == first.event_id


@pytest.mark.case(46)
@pytest.mark.parametrize("size", [PAYLOAD_BYTES_DEFAULT - 1, PAYLOAD_BYTES_DEFAULT])
async def test_an_input_up_to_the_limit_reaches_the_run(size: int, world: World) -> None:
    """Case 046, "at limit - 1, limit": accepted whole."""
    payload = bytes(number % 251 for number in range(size))
    accepted = await world.invoke(payload=payload)
    await world.expand()
    (run,) = await world.runs()
    assert run.input_bytes == size
    stored = await world.read(lambda tx: tx.load_blob(EVENT_PAYLOAD, "acme", accepted.event_id, size_bytes=size))
    assert stored == payload
    await world.check()


@pytest.mark.case(46)
@pytest.mark.parametrize("size", [PAYLOAD_BYTES_DEFAULT + 1, 50 * PAYLOAD_BYTES_DEFAULT])
def test_an_input_over_the_limit_is_refused_at_once(size: int) -> None:
    """Case 046, "limit + 1 and 50 times the limit": a typed refusal that names field, size and limit."""
    with pytest.raises(Refusal) as refused:
        check_invocation(Invocation("shop", "fulfil", bytes(size)))
    assert refused.value.code == "payload_too_large"
    assert refused.value.details == {"field": "input", "bytes": size, "limit": PAYLOAD_BYTES_DEFAULT}


async def test_the_largest_invocation_stays_in_its_budget(world: World) -> None:
    """Budget: the payload and 10 kB, with names at their longest and worst to escape."""
    invocation = Invocation(
        "\U0001f600" * 200, '"\\' * 100, bytes(PAYLOAD_BYTES_DEFAULT), TIMESTAMP_MS_MAX, "k" * IDEMPOTENCY_KEY_BYTES_MAX
    )
    check_invocation(invocation)

    async def body(tx: Any) -> tuple[int, int]:
        await invoke_function(tx, "acme", invocation, event_id="ab" * 16, accepted_by="t" * 100)
        return tx.budget.spent_bytes, await tx.measured_bytes()

    spent, measured = await world.run("invoke_function", body)
    assert measured <= spent <= PAYLOAD_BYTES_DEFAULT + 10_000
    await world.check()


async def test_an_acceptance_costs_what_a_submission_costs(world: World) -> None:
    """S1: the same acceptance, the same fixed number of reads and writes."""
    await world.submit(key="k")
    await world.invoke(key="k")
    figures = world.keyspace.meter.snapshot()
    submitted, invoked = figures["accept_event"], figures["invoke_function"]
    assert (invoked.read_count, invoked.write_count) == (submitted.read_count, submitted.write_count)


# -- what the check of a keyspace sees


async def spoil(world: World, key: Key[Any], **fields: Any) -> set[str]:
    """Change fields of a stored record and return what the check then reports."""

    async def body(tx: Tx) -> None:
        record = await tx.load(key)
        assert isinstance(record, Record)
        tx.put(key, type(record)(**{name: getattr(record, name) for name in record.__struct_fields__} | fields))

    await world.run("spoil", body)
    return {problem.sentence for problem in (await check_keyspace(world.keyspace)).problems}


async def test_the_check_sees_a_target_that_is_lost_or_forged(world: World) -> None:
    """C1, C11: an addressed event without its target, a submitted one with, and a match of something else."""
    submitted = await world.submit(key="s")
    invoked = await world.invoke(key="i")
    await world.expand()
    await world.check()
    lost = await spoil(world, EVENT.at("acme", invoked.event_id), target_application="", target_function="")
    assert "the event's name and its target disagree" in lost
    assert "the claim and its event are of different operations" in lost
    await spoil(world, EVENT.at("acme", invoked.event_id), target_application="shop", target_function="fulfil")
    await world.check()
    forged = await spoil(
        world, EVENT.at("acme", submitted.event_id), target_application="shop", target_function="fulfil"
    )
    assert "the match is not what the event addresses" in forged
    await spoil(world, EVENT.at("acme", submitted.event_id), target_application="", target_function="")
    assert "the match is not what the event addresses" in await spoil(
        world, EVENT.at("acme", invoked.event_id), target_function="other"
    )


async def test_the_check_sees_a_wrong_no_match(world: World) -> None:
    """C2: a no-match that names what is there, or the other kind."""
    gone = await world.invoke("gone")
    await world.expand()
    await world.check()
    wrong = "the recorded no-match is not what the pinned generation lacks"
    key = EXPANSION.at("acme", gone.event_id)
    assert wrong in await spoil(world, key, missing=NoMatch.APPLICATION)
    assert "the evaluated candidates and their records differ in number" in await spoil(world, key, missing=None)
    await spoil(world, key, missing=NoMatch.FUNCTION)
    await world.check()
