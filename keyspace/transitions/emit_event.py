"""Emit an event from a run: the one acceptance of events, inside the transaction that settles the declaring step.

The event's identity and its claim derive from workspace, application, run and step, each under a domain of its own, so that
whatever is repeated names the same event. The claim is of the emissions' own operation: a caller who computes its digest can
still not lie there first (RFD 2, "The emitted event's identity is derived from durable facts").
"""

from __future__ import annotations

import msgspec

from keyspace.errors import Refusal
from keyspace.records.event import Operation
from keyspace.records.run import RunRecord, StepRecord
from keyspace.records.work import ItemRecord
from keyspace.transitions.accept_event import Claim, Offer, accept_offer
from keyspace.transitions.declaration import EmissionTerms
from keyspace.tx import Tx, digest_of

__all__ = ["emission_claim", "emission_fingerprint", "emit_event", "emitted_event_id", "receipt", "receipt_behind"]


def emitted_event_id(workspace: str, run: RunRecord, step_id: str) -> str:
    """Return the id of the event that a step of a run emits."""
    return _event_id(workspace, run.application, run.run_id, step_id)


def _event_id(workspace: str, application: str, run_id: str, step_id: str) -> str:
    return digest_of("ryusen.emitted", workspace, application, run_id, step_id)


def receipt_behind(workspace: str, item: ItemRecord, step_id: str) -> bytes:
    """Return the receipt of an emission, from the discovery work that follows it."""
    return receipt(_event_id(workspace, item.where.application, item.target, step_id))


def emission_claim(workspace: str, run: RunRecord, step_id: str) -> Claim:
    """Return the claim of a step's emission; it lives as long as its run (FILLED-IN 11, "Retention")."""
    digest = digest_of("ryusen.emitclaim", workspace, run.application, run.run_id, step_id)
    return Claim(Operation.EVENT_EMIT, digest, is_kept=True)


def emission_fingerprint(terms: EmissionTerms) -> str:
    """Return the versioned fingerprint of what the workflow controls: name, payload and routing metadata."""
    pairs = [text for pair in sorted(terms.correlation.items()) for text in pair]
    return "1:" + digest_of("ryusen.emit", terms.event_name, terms.payload, *pairs)


def receipt(event_id: str) -> bytes:
    """Return what an emission's step records: the event's id in the portable encoding, and nothing of how it was accepted."""
    return msgspec.json.encode(event_id)


async def emit_event(tx: Tx, workspace: str, run: RunRecord, step: StepRecord, terms: EmissionTerms) -> StepRecord:
    """Accept a step's event and return the step with its id (RFD 2, "A declaration may be a durable event emission").

    Args:
        tx: the open transaction; the caller settles the step in it.
        workspace: whose run it is.
        run: the run as it stands.
        step: the step, WAITING; not written here.
        terms: checked by `check_declaration`.

    Reads: workspace, own event, claim, routing head; on a replay the first event and its expansion.  Writes: what the
        acceptance of any event does.
    Conflicts: with an activation.  Budget: the payload, the correlation as JSON and 6 kB.
    Idempotent: by the derived event id and the claim.

    Raises:
        Refusal: `idempotency_conflict`, `event_deleted`.
    """
    event_id = emitted_event_id(workspace, run, step.step_id)
    offer = Offer(
        event_id=event_id,
        name=terms.event_name,
        payload=terms.payload,
        fingerprint=emission_fingerprint(terms),
        accepted_by=f"run {run.run_id}",
        correlation=terms.correlation,
        claim=emission_claim(workspace, run, step.step_id),
    )
    accepted = await accept_offer(tx, workspace, offer)
    if accepted.event_id != event_id:
        raise Refusal(
            "idempotency_conflict",
            "The emission's claim names another event.",
            event=accepted.event_id,
            derived=event_id,
        )
    assert step.server is not None
    return msgspec.structs.replace(step, server=msgspec.structs.replace(step.server, event_id=event_id))
