"""Invoke a function: accept an addressed event, which starts one function and is broadcast to nothing."""

from __future__ import annotations

from typing import NamedTuple

from keyspace.limits import PAYLOAD_BYTES_DEFAULT
from keyspace.records.event import Operation
from keyspace.transitions.accept_event import (
    Acceptance,
    Offer,
    accept_offer,
    check_idempotency_key,
    check_payload,
    check_timestamp,
    claim_of,
)
from keyspace.transitions.materialize_run import derived_run_id
from keyspace.transitions.names import INVOCATION_EVENT, INVOKE_BINDING, check_name
from keyspace.tx import Tx, digest_of

__all__ = ["Invocation", "check_invocation", "invocation_fingerprint", "invoke_function", "invoked_run_id"]


class Invocation(NamedTuple):
    """What a caller asks for. `payload` is the function's exact input; `key` the idempotency key, None when there is none."""

    application: str
    function: str
    payload: bytes
    timestamp_ms: int | None = None
    key: str | None = None


def check_invocation(invocation: Invocation, payload_bytes_max: int = PAYLOAD_BYTES_DEFAULT) -> None:
    """Refuse an invocation that is not sound, before any transaction.

    Raises:
        Refusal: `invalid_name`, `payload_too_large`, `invalid_timestamp`, `invalid_idempotency_key`; each names the field and
            the limit.
    """
    check_name("application", invocation.application)
    check_name("function", invocation.function)
    check_payload("input", invocation.payload, payload_bytes_max)
    check_timestamp(invocation.timestamp_ms)
    if invocation.key is not None:
        check_idempotency_key(invocation.key)


def invocation_fingerprint(invocation: Invocation) -> str:
    """Return the versioned fingerprint of the target, the payload and the caller's timestamp.

    RFD 2, "Its fingerprint covers the target, the payload, and the caller-supplied timestamp".
    """
    timestamp = "" if invocation.timestamp_ms is None else str(invocation.timestamp_ms)
    return "1:" + digest_of("ryusen.invoke", invocation.application, invocation.function, invocation.payload, timestamp)


def invoked_run_id(workspace: str, event_id: str, application: str) -> str:
    """Return the id of the run that an invocation creates, known before its expansion; without a match no run ever has it."""
    return derived_run_id(workspace, event_id, application, INVOKE_BINDING)


async def invoke_function(
    tx: Tx, workspace: str, invocation: Invocation, *, event_id: str, accepted_by: str
) -> Acceptance:
    """Accept a checked invocation (RFD 2, "An operator or a tool may start one function directly with an input").

    Whether the function exists is settled by the expansion, in the generation that is pinned here, and never asked before.

    Args:
        tx: the open transaction.
        workspace: whose function it is.
        invocation: checked by `check_invocation`.
        event_id: minted before the retry loop; the receipt of an invocation without a key.
        accepted_by: the acting key.

    Reads: workspace, own event, claim, routing head; on a replay the first event and its expansion.
    Writes: event, payload, companion stamp, list entry, claim, expansion, fan-out item with its index entries and bell.
    Conflicts: only with an equal key, or an activation.  Budget: the payload and 10 kB.
    Idempotent: by the claim, or by `event_id`.

    Raises:
        Refusal: as `accept_offer`.
    """
    offer = Offer(
        event_id=event_id,
        name=INVOCATION_EVENT,
        payload=invocation.payload,
        fingerprint=invocation_fingerprint(invocation),
        accepted_by=accepted_by,
        correlation={},
        timestamp_ms=invocation.timestamp_ms,
        claim=None if invocation.key is None else claim_of(Operation.FUNCTION_INVOKE, invocation.key),
        target=(invocation.application, invocation.function),
    )
    return await accept_offer(tx, workspace, offer)
