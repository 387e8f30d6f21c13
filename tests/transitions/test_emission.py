"""Events that workflows emit: accepted with the step's settlement, once, whatever is repeated."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from operator_verbs import cancel
from server_steps import ONCE, emission, emit, fire_due, sleep_for
from world import LEASE_MS, RETRY, World

from keyspace.errors import Refusal
from keyspace.layout import ATTEMPT, CLAIM, EVENT, EVENT_LIST, EVENT_PAYLOAD, EXPANSION, ITEM, SETTLED, STEP, STEP_VALUE
from keyspace.lifecycle import Execution, ItemState, Phase, Recovery, StepKind, StepState
from keyspace.limits import PAYLOAD_BYTES_MAX, REPLAY_BYTES_MAX, STEPS_MAX, TIMESTAMP_MS_MAX
from keyspace.records.event import ClaimRecord, EventRecord, ExpansionState, Operation
from keyspace.records.run import RunRecord
from keyspace.records.work import ItemRecord, WorkKind
from keyspace.transitions.accept_event import Submission, accept_event, claim_of
from keyspace.transitions.continue_run import answer_pass
from keyspace.transitions.declaration import Declaration, EmissionTerms, check_room
from keyspace.transitions.emit_event import (
    emission_claim,
    emission_fingerprint,
    emitted_event_id,
    receipt,
    receipt_behind,
)
from keyspace.transitions.hold import Hold
from keyspace.transitions.lose_lease import Loss
from keyspace.transitions.work import Accepted, Replayed, Stale, Work, discovery_item, save_run
from keyspace.tx import Tx

TERMS = EmissionTerms(event_name="order.told", payload=b'{"n":1}')


async def emitted(world: World, run_id: str, step_id: str = "tell") -> EventRecord:
    step = await world.step(run_id, step_id)
    assert step.server is not None and step.server.event_id is not None
    event_id = step.server.event_id
    event = await world.read(lambda tx: tx.load(EVENT.at("acme", event_id)))
    assert event is not None
    return event


async def told(world: World, **terms: Any) -> RunRecord:
    """Start a run that emits an event; return it as it goes on."""
    run = await world.start_run()
    assert await emit(world, await world.lease_pass(), **terms) == Accepted()
    return await world.get_run(run.run_id)


# -- accepted and settled


async def test_the_event_and_the_settled_step_are_one_transaction(world: World) -> None:
    """RFD 2, "A declaration may be a durable event emission": record, claim, list entry, obligation and the settled step."""
    before = len(await world.records(EVENT_LIST))
    run = await told(world, payload=b'{"n":2}', correlation={"order": "7"})
    event = await emitted(world, run.run_id)
    assert event.event_id == emitted_event_id("acme", run, "tell")
    assert (event.name, event.correlation, event.routing_generation) == ("order.told", {"order": "7"}, 1)
    assert event.accepted_by == f"run {run.run_id}"
    assert await world.records(EVENT_PAYLOAD, event.event_id) == [b'{"n":2}'], "recorded without interpretation"
    assert len(await world.records(EVENT_LIST)) == before + 2
    assert (await world.expansion(event.event_id)).state is ExpansionState.PENDING
    step = await world.step(run.run_id, "tell")
    assert (step.kind, step.state, step.completion) == (StepKind.EMISSION, StepState.COMPLETED, None)
    assert await world.value(run.run_id, "tell") == receipt(event.event_id) == b'"%s"' % event.event_id.encode()
    assert await world.records(SETTLED, run.run_id) == ["tell"]
    assert await world.records(ATTEMPT, run.run_id) == []
    assert (await world.kinds(run.run_id))[-2:] == ["step-declared", "step-completed"]
    await world.check()


async def test_the_run_goes_on_at_once_and_fan_out_is_its_own_matter(world: World) -> None:
    """RFD 2, "acceptance is not delivery": the continuation is there while nothing has been expanded."""
    await world.publish({"fulfil": ["order.placed"], "listen": ["order.told"]})
    run = await told(world)
    work = await world.lease_pass()
    assert work.run_id == run.run_id
    assert await world.complete(work) == Accepted()
    await world.expand()
    (first, second) = await world.runs()
    assert (first.run_id, second.function, second.event_name) == (run.run_id, "listen", "order.told")
    assert (await world.get_run(run.run_id)).recovery is Recovery.EXECUTION_SUCCEEDED
    await world.check()


async def test_correlation_is_never_inherited(world: World) -> None:
    """RFD 2, "it is empty when the workflow declares none, it is never inherited from the run's own triggering event"."""
    await world.submit(correlation={"order": "7"})
    await world.expand()
    (run,) = await world.runs()
    assert await emit(world, await world.lease_pass()) == Accepted()
    assert (await emitted(world, run.run_id)).correlation == {}


# -- refused


@pytest.mark.case(44)
@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"compensable": True}, "not_compensable"),
        ({"undo_retry": RETRY}, "not_compensable"),
        ({"undo_timeout_ms": 5}, "not_compensable"),
        ({"retry": RETRY}, "invalid_retry"),
        ({"repeatable": True}, "not_repeatable"),
        ({"timeout_ms": 5}, "invalid_timeout"),
        ({"terms": EmissionTerms(event_name="", payload=b"1")}, "invalid_name"),
        ({"terms": EmissionTerms(event_name=" ", payload=b"1")}, "invalid_name"),
        ({"terms": EmissionTerms(event_name="n" * 201, payload=b"1")}, "invalid_name"),
        ({"terms": EmissionTerms(event_name="a\x00b", payload=b"1")}, "invalid_name"),
        ({"terms": EmissionTerms(event_name="ryusen/function.invoked", payload=b"1")}, "reserved_name"),
        ({"terms": EmissionTerms(event_name="n", payload=bytes(PAYLOAD_BYTES_MAX + 1))}, "payload_too_large"),
        ({"terms": EmissionTerms(event_name="n", payload=b"1", correlation={"": "v"})}, "invalid_text"),
        (
            {"terms": EmissionTerms(event_name="n", payload=b"1", correlation={str(n): "" for n in range(17)})},
            "invalid_correlation",
        ),
    ],
    ids=lambda value: str(value)[:70],
)
async def test_a_refused_emission_mutates_nothing(world: World, more: dict[str, Any], code: str) -> None:
    """RFD 2, "The engine refuses a compensable emission declaration, an unnamed event, an over-limit event name"; and more
    than one attempt "is refused rather than ignored"."""
    await world.start_run()
    work = await world.lease_pass()
    before = await world.dump()
    given: dict[str, Any] = {"retry": ONCE, "terms": TERMS} | more
    with pytest.raises(Refusal) as refused:
        await world.declare(work, "tell", **given)
    assert refused.value.code == code
    assert await world.dump() == before
    assert await emit(world, work) == Accepted(), "the pass goes on under its lease"


@pytest.mark.case(49)
@pytest.mark.parametrize("spare", [0, -1])
async def test_the_last_straw_of_the_replay_budget(world: World, spare: int) -> None:
    """RFD 2, "whose step record the run's replay budget cannot carry together with its receipt": refused, to the byte."""
    run = await world.start_run()
    needed = len("tell") + 96 + len(receipt("e" * 32))
    full = msgspec.structs.replace(run, replay_bytes=REPLAY_BYTES_MAX - needed - spare)
    if spare == 0:
        check_room(full, None, emission())
    else:
        with pytest.raises(Refusal) as refused:
            check_room(full, None, emission())
        assert refused.value.code == "replay_budget"
    with pytest.raises(Refusal) as refused:
        check_room(msgspec.structs.replace(run, step_count=STEPS_MAX), None, emission())
    assert refused.value.code == "step_limit"


# -- repeated


@pytest.mark.case(1)
async def test_a_lost_acknowledgement_replays(world: World) -> None:
    """RFD 2, "A lost acknowledgement, a rediscovery, a replay, or a restart therefore re-derives the same logical event"."""
    await world.start_run()
    work = await world.lease_pass()
    assert await emit(world, work) == Accepted()
    before = await world.dump()
    assert await emit(world, work) == Replayed()
    assert await emit(world, work, payload=b"2") == Stale("pass_settled")
    assert await world.dump() == before


async def test_a_repeated_declaration_keeps_the_event_and_leaves_a_pass(world: World) -> None:
    """RFD 2, "it still leaves the run a continuation discovery, so a declaration delivered on fresh discovery work can never
    strand the run on a completed item"; "appends emission-replayed rather than pretending that it accepted the event again"."""
    run = await told(world)
    events = await world.records(EVENT)
    assert await emit(world, await world.lease_pass()) == Accepted()
    assert await world.records(EVENT) == events
    *_, last = await world.history(run.run_id)
    assert (last.kind, last.data["event"]) == ("emission-replayed", events[-1].event_id)
    await world.check()
    assert await world.complete(await world.lease_pass()) == Accepted()
    await world.check()


@pytest.mark.parametrize(
    "other",
    [
        emission(name="order.else"),
        emission(payload=b'{"n": 1}'),
        emission(order="7"),
        sleep_for(1, "tell"),
        Declaration("tell", RETRY),
    ],
    ids=["name", "payload", "correlation", "timer", "callback"],
)
async def test_a_declaration_that_disagrees_is_a_conflict(world: World, other: Declaration) -> None:
    """RFD 2, "a different event name, payload, routing metadata, or step declaration is a conflict rather than a second
    event"."""
    await told(world)
    work = await world.lease_pass()
    before = await world.dump()
    with pytest.raises(Refusal) as refused:
        await world.declare(work, other.step_id, retry=other.retry, terms=other.terms)
    assert refused.value.code == ("step_settled" if other.terms is None else "declaration_conflict")
    assert await world.dump() == before


async def forget_step(world: World, run: RunRecord) -> None:
    """Let a run be as if its step had never been recorded, with a fresh pass."""

    async def body(tx: Tx) -> None:
        tx.remove(STEP.at("acme", run.run_id, "tell"))
        tx.remove_range(STEP_VALUE.span("acme", run.run_id, "tell"))
        tx.remove(SETTLED.at("acme", run.run_id, 1))
        bare = msgspec.structs.replace(run, step_count=0, settled_count=0, replay_bytes=0)
        item = discovery_item(tx, "acme", bare, tx.now_ms)
        save_run(tx, "acme", run, msgspec.structs.replace(bare, item_id=item.item_id))

    await world.run("forget_step", body)


@pytest.mark.parametrize("event_is_there", [True, False], ids=["event", "claim only"])
async def test_the_claim_keeps_the_identity_when_the_step_is_not_there(world: World, event_is_there: bool) -> None:
    """RFD 2, "an identical repeat replays the original acceptance, and a divergent repeat under the same derived claim is
    refused with the ordinary idempotency conflict"."""
    run = await told(world)
    work = await world.lease_pass()
    run = await world.get_run(run.run_id)
    await forget_step(world, run)
    event = (await world.records(EVENT))[-1]
    if not event_is_there:
        await world.run("forget_event", lambda tx: _remove(tx, EVENT.at("acme", event.event_id)))
    work = await world.lease_pass()
    before = await world.dump()
    for other in ({"payload": b"2"}, {"event_name": "order.else"}, {"correlation": {"order": "7"}}):
        with pytest.raises(Refusal) as refused:
            await emit(world, work, **other)
        assert refused.value.code == "idempotency_conflict"
    assert await world.dump() == before
    if event_is_there:
        count = len(await world.records(EVENT))
        assert await emit(world, work) == Accepted()
        assert len(await world.records(EVENT)) == count
        assert await world.value(run.run_id, "tell") == receipt(event.event_id)
    else:
        with pytest.raises(Refusal) as gone:
            await emit(world, work)
        assert gone.value.code == "event_deleted"


async def _remove(tx: Tx, key: Any) -> None:
    tx.remove(key)


@pytest.mark.case(1)
async def test_a_caller_cannot_claim_an_emission_first(world: World) -> None:
    """RFD 2, "a caller who recomputes the derived key cannot pre-claim it and make the emission adopt the caller's event"."""
    run = await world.start_run()
    derived = emission_claim("acme", run, "tell")
    assert derived.operation is Operation.EVENT_EMIT, (
        "no API operation, so that no caller's key is ever looked up in it"
    )
    for key in (derived.digest, f"{derived.operation.value}:{derived.digest}", emitted_event_id("acme", run, "tell")):
        submission = Submission("order.told", b'{"n":1}', {}, None, key)
        minted = world.keyspace.mint()
        await world.run(
            "accept_event",
            lambda tx, s=submission, m=minted: accept_event(tx, "acme", s, event_id=m, accepted_by="eve"),  # type: ignore[misc]
        )
        assert claim_of(Operation.EVENT_SUBMIT, key) != derived
    assert await emit(world, await world.lease_pass()) == Accepted()
    event = await emitted(world, run.run_id)
    assert event.event_id == emitted_event_id("acme", run, "tell")
    assert event.accepted_by == f"run {run.run_id}"
    await world.check()


async def test_another_identity_under_the_derived_claim_is_refused(world: World) -> None:
    """RFD 2, "the acceptance refuses a returned identity that disagrees with the derived one before anything is recorded"."""
    run = await world.start_run()
    other = (await world.submit("order.told")).event_id
    claim = emission_claim("acme", run, "tell")
    forged = ClaimRecord(fingerprint=emission_fingerprint(TERMS), event_id=other, claimed_at_ms=1, expires_at_ms=2**50)

    async def forge(tx: Tx) -> None:
        tx.put(CLAIM.at("acme", claim.operation.value, claim.digest), forged)

    await world.run("forge", forge)
    work = await world.lease_pass()
    before = await world.dump()
    with pytest.raises(Refusal) as refused:
        await emit(world, work)
    assert (refused.value.code, refused.value.details["event"]) == ("idempotency_conflict", other)
    assert await world.dump() == before


def test_identities_of_other_scopes_are_others() -> None:
    """RFD 2, "a domain-separated digest over the full storage scope, the run, and the step"."""
    run = msgspec.convert(["aa" * 16, "shop", "fulfil", "ee" * 16, "order.placed", "b", 1, 1, 1, 1, 1], RunRecord)
    scopes = [
        ("acme", run, "tell"),
        ("beta", run, "tell"),
        ("acme", msgspec.structs.replace(run, application="shop2"), "tell"),
        ("acme", msgspec.structs.replace(run, run_id="ab" * 16), "tell"),
        ("acme", run, "tell2"),
    ]
    digests = [emitted_event_id(*scope) for scope in scopes] + [emission_claim(*scope).digest for scope in scopes]
    assert len(set(digests)) == 2 * len(scopes)


# -- stopped, failed, continued


async def test_a_stop_never_rolls_an_emission_back(world: World) -> None:
    """RFD 2, "a stop that fences a run's unresolved work never rolls back an accepted event or its recorded receipt"."""
    run = await told(world)
    before = await emitted(world, run.run_id)
    await cancel(world, run.run_id)
    after = await world.get_run(run.run_id)
    assert (after.phase, after.recovery) == (Phase.TERMINAL, Recovery.EMPTY_UNWIND)
    assert (await world.step(run.run_id, "tell")).state is StepState.COMPLETED
    assert await emitted(world, run.run_id) == before
    assert [item.kind for item in await world.records(ITEM)] == [WorkKind.FANOUT]
    await world.expand()
    assert (await world.expansion(before.event_id)).state is ExpansionState.COMPLETE
    await world.check()


@pytest.mark.case(55)
async def test_a_settled_emission_is_never_undone(world: World) -> None:
    """RFD 2, "A settled emission is never part of an unwind"."""
    run = await told(world)
    await world.fail(await world.lease_pass())
    after = await world.get_run(run.run_id)
    assert (after.execution, after.recovery) == (Execution.FAILED, Recovery.EMPTY_UNWIND)
    await world.check()


def as_work(item: ItemRecord | None) -> Work:
    assert item is not None and item.token is not None
    return Work(item.kind, item.target, item.step_id, item.item_id, item.token, item.generation)


@pytest.mark.parametrize("held", [True, False], ids=["held", "queued"])
async def test_a_result_and_the_emission_behind_it_are_one_transaction(world: World, held: bool) -> None:
    """FILLED-IN 9, S9, "at most one durable transaction a settled step": the pass goes on where it is, its work leased and
    authorized in the transaction that settles the emission, or is left to the queue."""
    run = await world.start_run()
    work = await world.start_step("s1")
    continued = await world.go_on(work, emission(), held=held)
    assert (continued.result, continued.answer) == (Accepted(), Accepted())
    assert await world.records(SETTLED, run.run_id) == ["s1", "tell"]
    following = continued.following
    assert (following is not None) is held
    again = await world.go_on(work, emission())
    assert (again.result, again.answer, again.following) == (Replayed(), Replayed(), None), "another hold's token"
    assert len(await world.records(EXPANSION)) == 2
    await world.check()
    going_on = as_work(following) if held else await world.lease_pass()
    assert going_on.kind is WorkKind.DISCOVERY
    if following is not None:
        assert following.state is ItemState.AUTHORIZED
        (event,) = [event for event in await world.records(EVENT) if event.name == "order.told"]
        assert receipt_behind("acme", following, "tell") == receipt(event.event_id)
    assert await world.complete(going_on) == Accepted()
    assert (await world.kinds(run.run_id))[-4:] == [
        "step-declared",
        "step-completed",
        "pass-authorized",
        "run-completed",
    ]
    await world.check()


async def test_emissions_in_a_row_behind_one_session(world: World) -> None:
    """Each answer settles its emission and gives the pass on; a repeated one is given what its hold was given."""
    run = await world.start_run()
    work = await world.lease_pass()
    known: list[str] = []

    async def answer(work: Work, ending: Declaration, hold: Hold) -> tuple[Any, ItemRecord | None]:
        return await world.run(
            "answer_pass", lambda tx: answer_pass(tx, "acme", work, ending, hold=hold, value_bytes_max=1_000)
        )

    for number in range(3):
        hold = Hold(world.seat(), LEASE_MS)
        ending = emission(f"tell {number}")
        first = await answer(work, ending, hold)
        assert first[0] == Accepted()
        assert await answer(work, ending, hold) == (Replayed(), first[1])
        work = as_work(first[1])
        known.append(work.item_id)
    assert len(set(known)) == 3
    repeated = await answer(work, emission("tell 0"), Hold(world.seat(), LEASE_MS))
    assert repeated[0] == Accepted()
    await world.check()
    assert await world.complete(as_work(repeated[1])) == Accepted()
    assert len(await world.records(EVENT)) == 4
    assert (await world.get_run(run.run_id)).settled_count == 3
    await world.check()


async def test_a_superseded_session_is_given_no_pass(world: World) -> None:
    """The session fence on this way too: after a newer hello the pass behind the emission goes through the queue."""
    await world.start_run()
    work = await world.start_step("s1")
    old = world.session
    await world.hello("session-2")
    continued = await world.go_on(work, emission(), session=old)
    assert (continued.answer, continued.following) == (Accepted(), None)
    assert (await world.lease_pass()).kind is WorkKind.DISCOVERY
    await world.check()


async def test_a_held_pass_behind_an_emission_may_be_lost(world: World) -> None:
    """A pass is repeatable: lost with its session it is delivered again, and the emission stands."""
    run = await world.start_run()
    continued = await world.go_on(await world.start_step("s1"), emission())
    lost = as_work(continued.following)
    assert await world.lose(lost.item_id, is_session_lost=True) is not Loss.NOT_LOST
    world.clock.advance(1_000)
    work = await world.lease_pass()
    assert work.item_id == lost.item_id
    assert await world.complete(lost) == Stale("lease_lost")
    assert await world.complete(work) == Accepted()
    assert await world.value(run.run_id, "tell") is not None
    await world.check()


async def test_emissions_and_timers_in_a_row(world: World) -> None:
    """A run of server-owned steps alone: each settles once, none is in the plan, and history explains it."""
    run = await told(world)
    assert await world.declare(await world.lease_pass(), "nap", retry=ONCE, terms=sleep_for(0).terms) == Accepted()
    await fire_due(world)
    assert await emit(world, await world.lease_pass(), "tell-again") == Accepted()
    assert await world.records(SETTLED, run.run_id) == ["tell", "nap", "tell-again"]
    assert len(await world.records(EVENT)) == 3
    assert await world.complete(await world.lease_pass()) == Accepted()
    await world.check()


async def test_an_emissions_claim_lives_as_long_as_its_run(world: World) -> None:
    """FILLED-IN 11, "Emission claims live as long as their run": no retention of the workspace ends one."""
    run = await told(world)
    claim = emission_claim("acme", run, "tell")
    record = await world.read(lambda tx: tx.load(CLAIM.at("acme", claim.operation.value, claim.digest)))
    assert record is not None and record.expires_at_ms == TIMESTAMP_MS_MAX
