"""Direct invocation: one function is started with an input, without an event that other functions hear."""

from __future__ import annotations

import msgspec

from keyspace.records.event import ExpansionState, NoMatch
from keyspace.transitions.accept_event import Acceptance
from keyspace.transitions.invoke_function import Invocation, check_invocation, invoke_function, invoked_run_id
from services.gateway.bodies import check_duplicates, check_portable, decode_body
from services.gateway.endpoints import Answer, Call
from services.gateway.event_types import ExpansionSummary, Invoked
from services.gateway.invocation_types import InvocationRequest

__all__ = ["ENVELOPE_BYTES_MAX", "explain_invocation", "invoke"]

ENVELOPE_BYTES_MAX = 1_024
"""Room for everything around an input."""

_decoder = msgspec.json.Decoder(InvocationRequest)


async def invoke(call: Call) -> Answer:
    """Accept an invocation; the answer comes after its commit, so it is durable."""
    bytes_max = call.gateway.config.payload_bytes_max
    body = await call.body(bytes_max + ENVELOPE_BYTES_MAX)
    wanted = decode_body(body, _decoder)
    payload = bytes(wanted.input)
    invocation = Invocation(
        call.parts["application"], call.parts["function"], payload, wanted.timestamp_ms, call.idempotency_key()
    )
    check_invocation(invocation, bytes_max)
    check_portable(payload, "input")
    check_duplicates(body, payload)
    event_id = call.gateway.keyspace.mint()
    acceptance = await call.transact(
        "invoke_function",
        lambda tx: invoke_function(tx, call.workspace, invocation, event_id=event_id, accepted_by=call.identity.key_id),
    )
    return Answer(_invoked(call.workspace, invocation, acceptance))


def _invoked(workspace: str, invocation: Invocation, acceptance: Acceptance) -> Invoked:
    run_id = invoked_run_id(workspace, acceptance.event_id, invocation.application)
    return Invoked(
        event=acceptance.event_id,
        run=run_id if acceptance.missing is None else None,
        routing_generation=acceptance.routing_generation,
        expansion=ExpansionSummary(
            state=acceptance.expansion.value,
            matched_count=acceptance.matched_count,
            explanation=explain_invocation(
                invocation.application,
                invocation.function,
                acceptance.routing_generation,
                acceptance.expansion,
                acceptance.missing,
            ),
        ),
        replayed=acceptance.is_replay,
        accepted_at_ms=acceptance.accepted_at_ms,
        claim_expires_at_ms=acceptance.claim_expires_at_ms,
    )


def explain_invocation(
    application: str, function: str, routing_generation: int, state: ExpansionState, missing: NoMatch | None
) -> str:
    """Return in words what became of an invocation, so that one without a run says what it has not found (case 037)."""
    if state is not ExpansionState.COMPLETE:
        return (
            f"Function {function} of application {application} is looked up in routing generation {routing_generation}."
        )
    if missing is None:
        return (
            f"Function {function} of application {application} was started by routing generation {routing_generation}."
        )
    if routing_generation == 0:
        return (
            f"No routing generation was active when {function} was invoked, so application {application} was not there."
        )
    if missing is NoMatch.APPLICATION:
        return f"Routing generation {routing_generation} does not contain application {application}."
    return f"Application {application} declares no function {function} in routing generation {routing_generation}."
