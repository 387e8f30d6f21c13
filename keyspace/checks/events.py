"""Events: their claims, list entries, expansions and matches (C2, C7, C11)."""

from __future__ import annotations

from keyspace.checks.report import Case, checks
from keyspace.layout import (
    CLAIM,
    EVENT,
    EVENT_LIST,
    EVENT_PAYLOAD,
    EVENT_STAMP,
    EXPANSION,
    ITEM,
    MANIFEST_BINDING,
    MATCH,
    ROUTING,
    RUN,
)
from keyspace.limits import BINDINGS_MAX
from keyspace.records.event import EventRecord, ExpansionRecord, ExpansionState, Operation
from keyspace.records.work import WorkKind
from keyspace.transitions.find_target import find_target
from keyspace.transitions.materialize_run import RunSource, run_identity
from keyspace.transitions.names import INVOCATION_EVENT, INVOKE_BINDING

__all__: list[str] = []


@checks(EVENT)
async def check_event(case: Case) -> None:
    """An event has its payload, its place in the list and its expansion."""
    event: EventRecord = case.record
    ws = case.workspace
    case.report.event_count += 1
    case.expect(event.event_id == case.elements[1], "C11", "the record names another event")
    expansion, stamp = await case.tx.load(
        EXPANSION.at(ws, event.event_id), EVENT_STAMP.at(ws, event.event_id), snapshot=True
    )
    chunks = await case.tx.page(EVENT_PAYLOAD.span(ws, event.event_id), limit=1_000, snapshot=True)
    size = sum(len(value) for _, value in chunks)
    case.expect(size == event.payload_bytes, "C1", "the payload's chunks do not add up")
    if case.expect(stamp is not None, "C7", "the companion stamp is missing") and stamp is not None:
        listed = await case.tx.load(EVENT_LIST.at(ws, stamp), snapshot=True)
        case.expect(listed == event.event_id, "C7", "the event is not at its place in the list")
    if case.expect(expansion is not None, "C2", "the event has no expansion") and expansion is not None:
        await _check_expansion(case, event, expansion)
    is_invocation = event.name == INVOCATION_EVENT
    case.expect(
        (bool(event.target_application), event.is_addressed) == (is_invocation, is_invocation),
        "C1",
        "the event's name and its target disagree",
    )
    case.expect(not (is_invocation and event.correlation), "C1", "an addressed event carries routing metadata")


async def _check_expansion(case: Case, event: EventRecord, expansion: ExpansionRecord) -> None:
    ws = case.workspace
    matches = await case.tx.page(MATCH.span(ws, event.event_id), limit=BINDINGS_MAX * 2, snapshot=True)
    recorded = len(matches) + (expansion.missing is not None)
    case.expect(
        recorded == expansion.evaluated_count, "C2", "the evaluated candidates and their records differ in number"
    )
    if expansion.missing is not None:
        lacking = await find_target(case.tx, ws, event, None) if event.is_addressed else None
        case.expect(lacking == expansion.missing, "C2", "the recorded no-match is not what the pinned generation lacks")
        case.expect(expansion.state is ExpansionState.COMPLETE, "C2", "a no-match leaves its expansion open")
    if expansion.state is ExpansionState.COMPLETE:
        case.expect(expansion.item_id is None, "C2", "a complete expansion still owns an obligation")
        case.expect(
            await _candidate_count(case, event) == expansion.evaluated_count,
            "C2",
            "a complete expansion has not evaluated every candidate",
        )
        return
    item = None
    if expansion.item_id is not None:
        item = await case.tx.load(ITEM.at(ws, expansion.item_id), snapshot=True)
    case.expect(
        item is not None and item.kind is WorkKind.FANOUT and item.target == event.event_id,
        "C2",
        "an open expansion has no live obligation",
    )


async def _candidate_count(case: Case, event: EventRecord) -> int:
    if event.is_addressed:
        return 1
    if event.routing_generation == 0:
        return 0
    routing = await case.tx.load(ROUTING.at(case.workspace, event.routing_generation), snapshot=True)
    if not case.expect(routing is not None, "C2", "the pinned routing generation is missing") or routing is None:
        return -1
    count = 0
    for application, generation in routing.applications.items():
        span = MANIFEST_BINDING.span(case.workspace, application, generation, event.name)
        count += len(await case.tx.page(span, limit=BINDINGS_MAX, snapshot=True))
    return count


@checks(EVENT_LIST)
async def check_event_list(case: Case) -> None:
    """A list entry names an event whose companion stamp is the entry's."""
    event, stamp = await case.tx.load(
        EVENT.at(case.workspace, case.record), EVENT_STAMP.at(case.workspace, case.record), snapshot=True
    )
    case.expect(event is not None, "C1", "the entry names no event")
    case.expect(stamp == case.elements[1], "C7", "the entry is not where its event's stamp says")


@checks(CLAIM)
async def check_claim(case: Case) -> None:
    """A claim names one event that was accepted under it."""
    event = await case.tx.load(EVENT.at(case.workspace, case.record.event_id), snapshot=True)
    if event is None:
        case.expect(case.tx.now_ms >= case.record.expires_at_ms, "C11", "a live claim names no event")
        return
    is_invocation = case.elements[1] == Operation.FUNCTION_INVOKE
    case.expect(event.is_addressed == is_invocation, "C11", "the claim and its event are of different operations")
    case.expect(event.fingerprint == case.record.fingerprint, "C11", "the claim and its event differ in fingerprint")


@checks(MATCH)
async def check_match(case: Case) -> None:
    """A match names the run that its identity derives."""
    ws, event_id, application, binding = case.elements
    event, run = await case.tx.load(EVENT.at(ws, event_id), RUN.at(ws, case.record.run_id), snapshot=True)
    if not case.expect(event is not None and run is not None, "C2", "a match without its event or run"):
        return
    assert event is not None and run is not None
    source = RunSource(
        event_id=event_id,
        event_name=event.name,
        payload_bytes=event.payload_bytes,
        application=application,
        function=case.record.function,
        binding=binding,
        manifest_generation=run.manifest_generation,
        routing_generation=event.routing_generation,
    )
    case.expect(run_identity(ws, source) == run.run_id, "C11", "the run's identity is not the derived one")
    provenance = (run.event_id, run.application, run.function, run.binding, run.routing_generation)
    case.expect(
        provenance == (event_id, application, case.record.function, binding, event.routing_generation),
        "C11",
        "the run's provenance differs from its match",
    )
    if event.is_addressed or binding == INVOKE_BINDING:
        addressed = (event.target_application, event.target_function, INVOKE_BINDING)
        case.expect(
            addressed == (application, case.record.function, binding),
            "C11",
            "the match is not what the event addresses",
        )
