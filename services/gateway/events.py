"""Events: submission and reading."""

from __future__ import annotations

import msgspec

from keyspace.layout import EVENT, EVENT_LIST, EVENT_PAYLOAD, EXPANSION, MATCH
from keyspace.records.event import EventRecord, ExpansionRecord, ExpansionState
from keyspace.transitions.accept_event import Acceptance, accept_event, check_submission
from keyspace.transitions.accept_event import Submission as AcceptedSubmission
from keyspace.transitions.create_workspace import require_workspace
from keyspace.transitions.names import check_id
from keyspace.tx import Tx
from services.gateway.bodies import check_duplicates, check_portable, decode_body
from services.gateway.cursors import ListQuery
from services.gateway.endpoints import Answer, Call, missing
from services.gateway.event_types import (
    Event,
    EventSummary,
    Expansion,
    ExpansionSummary,
    Match,
    Submission,
    Submitted,
)
from services.gateway.invocation_types import Target
from services.gateway.invocations import explain_invocation
from services.gateway.pages import PageRequest, read_rows
from services.gateway.types import Page

__all__ = ["get_event", "list_events", "list_matches", "submit_event"]

ENVELOPE_BYTES_MAX = 131_072
"""Room for everything around a payload: 16 correlation pairs and a name, each character written as an escape."""

_decoder = msgspec.json.Decoder(Submission)


async def submit_event(call: Call) -> Answer:
    """Accept an event; the answer comes after its commit, so it is durable."""
    bytes_max = call.gateway.config.payload_bytes_max
    body = await call.body(bytes_max + ENVELOPE_BYTES_MAX)
    wanted = decode_body(body, _decoder)
    payload = bytes(wanted.payload)
    submission = AcceptedSubmission(
        wanted.name, payload, wanted.correlation, wanted.timestamp_ms, call.idempotency_key()
    )
    check_submission(submission, bytes_max)
    check_portable(payload, "payload")
    check_duplicates(body, payload)
    event_id = call.gateway.keyspace.mint()
    acceptance = await call.transact(
        "accept_event",
        lambda tx: accept_event(tx, call.workspace, submission, event_id=event_id, accepted_by=call.identity.key_id),
    )
    return Answer(_submitted(acceptance))


async def list_events(call: Call) -> Answer:
    """List events, the newest first."""
    request = PageRequest.of(ListQuery("events", call.workspace), call.query)

    async def page(tx: Tx) -> Page[EventSummary]:
        await require_workspace(tx, call.workspace)
        found = await read_rows(tx, EVENT_LIST.span(call.workspace), request, reverse=True)
        ids = [EVENT_LIST.codec.decode(value) for _, value in found.rows]
        events = await tx.load_all([EVENT.at(call.workspace, event_id) for event_id in ids], snapshot=True)
        expansions = await tx.load_all([EXPANSION.at(call.workspace, event_id) for event_id in ids], snapshot=True)
        items = [
            _summary(event, expansion) for event, expansion in zip(events, expansions, strict=True) if event is not None
        ]
        return Page(items=items, next_cursor=found.next_cursor)

    return Answer(await call.transact("list_events", page))


async def get_event(call: Call) -> Answer:
    """Answer an event with its payload and the first page of the runs it started."""
    event_id = call.parts["event"]
    request = _matches_request(call, event_id)

    async def read(tx: Tx) -> Event:
        event = await _load(tx, call.workspace, event_id)
        expansion = await tx.load(EXPANSION.at(call.workspace, event_id), snapshot=True)
        payload = await tx.load_blob(
            EVENT_PAYLOAD, call.workspace, event_id, size_bytes=event.payload_bytes, snapshot=True
        )
        return Event(
            event=event.event_id,
            name=event.name,
            correlation=event.correlation,
            timestamp_ms=event.timestamp_ms,
            accepted_at_ms=event.accepted_at_ms,
            accepted_by=event.accepted_by,
            claim_expires_at_ms=event.claim_expires_at_ms,
            routing_generation=event.routing_generation,
            payload_bytes=event.payload_bytes,
            payload=msgspec.Raw(payload),
            target=_target(event),
            expansion=_expansion(event, expansion),
            matches=await _matches(tx, call.workspace, event_id, request),
        )

    return Answer(await call.transact("get_event", read))


async def list_matches(call: Call) -> Answer:
    """List the runs that an event started, by application and binding."""
    event_id = call.parts["event"]
    request = _matches_request(call, event_id)

    async def page(tx: Tx) -> Page[Match]:
        await _load(tx, call.workspace, event_id)
        return await _matches(tx, call.workspace, event_id, request)

    return Answer(await call.transact("list_matches", page))


def _matches_request(call: Call, event_id: str) -> PageRequest:
    check_id("event", event_id)
    return PageRequest.of(ListQuery("matches", call.workspace, event_id), call.query)


async def _load(tx: Tx, workspace: str, event_id: str) -> EventRecord:
    event = await tx.load(EVENT.at(workspace, event_id), snapshot=True)
    if event is None:
        raise missing("event", event=event_id)
    return event


async def _matches(tx: Tx, workspace: str, event_id: str, request: PageRequest) -> Page[Match]:
    found = await read_rows(tx, MATCH.span(workspace, event_id), request, reverse=False)
    items = []
    for key, value in found.rows:
        _, _, application, binding = MATCH.parse(key)
        record = MATCH.codec.decode(value)
        items.append(
            Match(
                application=application,
                binding=binding,
                function=record.function,
                run=record.run_id,
                evaluated_at_ms=record.evaluated_at_ms,
            )
        )
    return Page(items=items, next_cursor=found.next_cursor)


def _submitted(acceptance: Acceptance) -> Submitted:
    return Submitted(
        event=acceptance.event_id,
        routing_generation=acceptance.routing_generation,
        expansion=ExpansionSummary(
            state=acceptance.expansion.value,
            matched_count=acceptance.matched_count,
            explanation=_explain(acceptance.routing_generation, acceptance.expansion, acceptance.matched_count),
        ),
        replayed=acceptance.is_replay,
        accepted_at_ms=acceptance.accepted_at_ms,
        claim_expires_at_ms=acceptance.claim_expires_at_ms,
    )


def _summary(event: EventRecord, expansion: ExpansionRecord | None) -> EventSummary:
    return EventSummary(
        event=event.event_id,
        name=event.name,
        correlation=event.correlation,
        timestamp_ms=event.timestamp_ms,
        accepted_at_ms=event.accepted_at_ms,
        routing_generation=event.routing_generation,
        payload_bytes=event.payload_bytes,
        target=_target(event),
        expansion=_expansion(event, expansion),
    )


def _expansion(event: EventRecord, record: ExpansionRecord | None) -> Expansion:
    if record is None:
        return Expansion(state=ExpansionState.COMPLETE.value, matched_count=0)
    return Expansion(
        state=record.state.value,
        matched_count=record.matched_count,
        evaluated_count=record.evaluated_count,
        inspected_count=record.inspected_count,
        settled_count=record.settled_count,
        completed_at_ms=record.completed_at_ms,
        explanation=_explain_event(event, record),
    )


def _target(event: EventRecord) -> Target | None:
    if not event.is_addressed:
        return None
    return Target(application=event.target_application, function=event.target_function)


def _explain_event(event: EventRecord, record: ExpansionRecord) -> str:
    if event.is_addressed:
        return explain_invocation(
            event.target_application, event.target_function, event.routing_generation, record.state, record.missing
        )
    return _explain(event.routing_generation, record.state, record.matched_count) + _explain_waits(record)


def _explain(routing_generation: int, state: ExpansionState, matched_count: int) -> str:
    """Return in words what became of an event, so that "nothing happened" always has a reason (case 037)."""
    if routing_generation == 0:
        return "No routing generation was active when the event was accepted, so no function is bound to it."
    if state is not ExpansionState.COMPLETE:
        return f"The functions of routing generation {routing_generation} are being evaluated; {_runs(matched_count)} so far."
    if matched_count == 0:
        return f"Routing generation {routing_generation} binds no function to an event of this name."
    return f"Routing generation {routing_generation} started {_runs(matched_count)}."


def _explain_waits(record: ExpansionRecord) -> str:
    if record.settled_count:
        return f" It settled {record.settled_count} of the {record.inspected_count} waits that it met."
    return f" It satisfied none of the {record.inspected_count} waits that it met." if record.inspected_count else ""


def _runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"
