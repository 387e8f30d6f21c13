"""Accept an event: the claim, the event, its routing generation and the first fan-out obligation, in one transaction.

`accept_offer` is the one acceptance there is. A submission is made an offer by `accept_event`, a direct invocation by
`invoke_function`; a transition that authors an event of its own calls it inside its own transaction, with an event id that it
derives and a claim of its own operation.
"""

from __future__ import annotations

from typing import NamedTuple

from keyspace.errors import Refusal
from keyspace.layout import CLAIM, EVENT, EVENT_LIST, EVENT_PAYLOAD, EVENT_STAMP, EXPANSION, ROUTING_HEAD, WORKSPACE
from keyspace.limits import (
    IDEMPOTENCY_KEY_BYTES_MAX,
    PAYLOAD_BYTES_DEFAULT,
    PRIORITY_DEFAULT,
    TIMESTAMP_MS_MAX,
)
from keyspace.queue import items
from keyspace.records.event import ClaimRecord, EventRecord, ExpansionRecord, ExpansionState, NoMatch, Operation
from keyspace.records.work import ItemRecord, LaneKind, WorkKind, server_lane
from keyspace.transitions.correlation import check_correlation
from keyspace.transitions.names import RESERVED_EVENT_PREFIX, check_name, check_text
from keyspace.tx import Tx, digest_of

__all__ = [
    "Acceptance",
    "Claim",
    "Offer",
    "Submission",
    "accept_event",
    "accept_offer",
    "check_event_name",
    "check_idempotency_key",
    "check_payload",
    "check_submission",
    "check_timestamp",
    "claim_of",
    "fingerprint",
]


class Submission(NamedTuple):
    """What a caller submits. `payload` is opaque bytes; `key` is the idempotency key, None when there is none."""

    name: str
    payload: bytes
    correlation: dict[str, str]
    timestamp_ms: int | None = None
    key: str | None = None


class Claim(NamedTuple):
    """What an idempotency claim lies under: the operation that scopes it, and a digest (`claim_of`).

    `is_kept` says that it does not expire with the workspace's retention, because it lives as long as what made it.
    """

    operation: Operation
    digest: str
    is_kept: bool = False


class Offer(NamedTuple):
    """An event to be accepted: checked, with its identity, by whomever it was authored.

    Attributes:
        event_id: minted before the retry loop, or derived; the receipt of an offer without a claim.
        name: the event's name.
        payload: opaque bytes.
        fingerprint: the versioned digest of what must be equal for a repetition under the claim to be one.
        accepted_by: the acting key.
        correlation: the pairs that waits may match; an addressed event has none.
        timestamp_ms: the caller's own instant (ms).
        claim: where the idempotency claim lies; None when each offer is an event of its own.
        target: the application and function that an addressed event starts.
    """

    event_id: str
    name: str
    payload: bytes
    fingerprint: str
    accepted_by: str
    correlation: dict[str, str]
    timestamp_ms: int | None = None
    claim: Claim | None = None
    target: tuple[str, str] = ("", "")


class Acceptance(NamedTuple):
    """The acknowledgement: which event the offer became, now or before."""

    event_id: str
    routing_generation: int
    accepted_at_ms: int
    expansion: ExpansionState
    matched_count: int
    claim_expires_at_ms: int | None
    is_replay: bool
    missing: NoMatch | None = None


def check_submission(submission: Submission, payload_bytes_max: int = PAYLOAD_BYTES_DEFAULT) -> None:
    """Refuse a submission that is not sound, before any transaction.

    Raises:
        Refusal: `invalid_name`, `reserved_name`, `payload_too_large`, `invalid_correlation`, `invalid_timestamp`,
            `invalid_idempotency_key`; each names the field and the limit.
    """
    check_event_name("name", submission.name)
    check_payload("payload", submission.payload, payload_bytes_max)
    check_correlation("correlation", submission.correlation)
    check_timestamp(submission.timestamp_ms)
    if submission.key is not None:
        check_idempotency_key(submission.key)


def check_event_name(field: str, name: str) -> None:
    """Refuse a name that no caller and no workflow can give an event.

    Raises:
        Refusal: `invalid_name`, `reserved_name`.
    """
    check_name(field, name)
    if name.startswith(RESERVED_EVENT_PREFIX):
        raise Refusal("reserved_name", "The prefix ryusen/ is reserved for the server.", field=field, value=name)


def check_payload(field: str, payload: bytes, bytes_max: int) -> None:
    """Refuse a payload of more than `bytes_max` bytes, which is called `field` where the caller gave it.

    Raises:
        Refusal: `payload_too_large`.
    """
    if len(payload) > bytes_max:
        raise Refusal(
            "payload_too_large", "The payload is too large.", field=field, bytes=len(payload), limit=bytes_max
        )


def check_timestamp(timestamp_ms: int | None) -> None:
    """Refuse a caller's instant (ms) that not every language's date type can show.

    Raises:
        Refusal: `invalid_timestamp`.
    """
    if timestamp_ms is not None and not 0 <= timestamp_ms <= TIMESTAMP_MS_MAX:
        raise Refusal(
            "invalid_timestamp", "The timestamp lies outside years 1970 to 9999.", field="timestamp_ms",
            value=timestamp_ms, limit=TIMESTAMP_MS_MAX,
        )  # fmt: skip


def check_idempotency_key(key: str) -> None:
    """Refuse a key that is blank, over 256 bytes or not plain text; an absent key is None, never an empty one.

    Raises:
        Refusal: `invalid_idempotency_key`.
    """
    try:
        check_text("idempotency_key", key, bytes_max=IDEMPOTENCY_KEY_BYTES_MAX)
    except Refusal as refusal:
        raise Refusal(
            "invalid_idempotency_key", "An idempotency key is 1 to 256 bytes of text and not blank.", **refusal.details
        ) from None


def fingerprint(submission: Submission) -> str:
    """Return the versioned fingerprint of what the caller controls and what affects the event or its routing.

    Credentials, transport headers, the event's identity and the selected generation stay out (RFD 2, "An optional caller
    idempotency key is scoped"). The payload counts as bytes: members in another order are another payload.
    """
    pairs = [text for pair in sorted(submission.correlation.items()) for text in pair]
    timestamp = "" if submission.timestamp_ms is None else str(submission.timestamp_ms)
    return "1:" + digest_of("ryusen.submit", submission.name, submission.payload, timestamp, *pairs)


def claim_of(operation: Operation, key: str) -> Claim:
    """Return the claim of a key within an operation; no key of another operation ever has it."""
    return Claim(operation, digest_of("ryusen.key", operation.value, key))


async def accept_event(
    tx: Tx, workspace: str, submission: Submission, *, event_id: str, accepted_by: str
) -> Acceptance:
    """Accept a checked submission (RFD 2, "The claim, event, selected workspace routing generation").

    Args:
        tx: the open transaction.
        workspace: whose event it is.
        submission: checked by `check_submission`.
        event_id: minted before the retry loop; the receipt of a submission without a key.
        accepted_by: the acting key.

    Reads: workspace, own event, claim, routing head; on a replay the first event and its expansion.
    Writes: event, payload, companion stamp, list entry, claim, expansion, fan-out item with its index entries and bell.
    Conflicts: only with an equal key, or an activation.  Budget: the payload, the correlation as JSON (at most six
        times its bytes) and 6 kB.
    Idempotent: by the claim, or by `event_id`.

    Raises:
        Refusal: as `accept_offer`.
    """
    offer = Offer(
        event_id=event_id,
        name=submission.name,
        payload=submission.payload,
        fingerprint=fingerprint(submission),
        accepted_by=accepted_by,
        correlation=submission.correlation,
        timestamp_ms=submission.timestamp_ms,
        claim=None if submission.key is None else claim_of(Operation.EVENT_SUBMIT, submission.key),
    )
    return await accept_offer(tx, workspace, offer)


async def accept_offer(tx: Tx, workspace: str, offer: Offer) -> Acceptance:
    """Accept an event, whoever authored it, inside the caller's transaction (FILLED-IN 1, entries 1 and 2).

    Args:
        tx: the open transaction.
        workspace: whose event it is.
        offer: the checked event with its identity, fingerprint and claim.

    Reads: workspace, own event, claim, routing head; on a replay the first event and its expansion.
    Writes: event, payload, companion stamp, list entry, claim, expansion, fan-out item with its index entries and bell.
    Conflicts: only with an equal key, or an activation.  Budget: the payload, the correlation as JSON (at most six
        times its bytes) and 6 kB.
    Idempotent: by the claim, or by the event id.

    Raises:
        Refusal: `not_found` (workspace), `idempotency_conflict`, `event_deleted`.
    """
    claim_key = None if offer.claim is None else CLAIM.at(workspace, offer.claim.operation.value, offer.claim.digest)
    home, own, routing = await tx.load(
        WORKSPACE.at(workspace), EVENT.at(workspace, offer.event_id), ROUTING_HEAD.at(workspace)
    )
    if home is None:
        raise Refusal("not_found", "There is no such workspace.", workspace=workspace)
    if own is not None:
        _require_same(own.event_id, own.fingerprint, offer.fingerprint)
        return await _replay(tx, workspace, own, is_replay=False)
    if claim_key is not None:
        claim = await tx.load(claim_key)
        if claim is not None and tx.now_ms < claim.expires_at_ms:
            return await _replay_claim(tx, workspace, claim, offer.fingerprint)
    expires_at_ms = None
    if offer.claim is not None:
        expires_at_ms = TIMESTAMP_MS_MAX if offer.claim.is_kept else tx.now_ms + home.retention_ms
    event = EventRecord(
        event_id=offer.event_id,
        name=offer.name,
        correlation=offer.correlation,
        timestamp_ms=offer.timestamp_ms,
        accepted_at_ms=tx.now_ms,
        routing_generation=routing or 0,
        payload_bytes=len(offer.payload),
        fingerprint=offer.fingerprint,
        claim_expires_at_ms=expires_at_ms,
        accepted_by=offer.accepted_by,
        target_application=offer.target[0],
        target_function=offer.target[1],
    )
    _write_event(tx, workspace, event, offer.payload)
    if claim_key is not None and expires_at_ms is not None:
        tx.put(
            claim_key,
            ClaimRecord(
                fingerprint=offer.fingerprint,
                event_id=offer.event_id,
                claimed_at_ms=tx.now_ms,
                expires_at_ms=expires_at_ms,
            ),
        )
    return _acceptance(event, ExpansionState.PENDING, 0, is_replay=False)


def _write_event(tx: Tx, workspace: str, event: EventRecord, payload: bytes) -> None:
    item = ItemRecord(
        item_id=tx.ids.mint(),
        kind=WorkKind.FANOUT,
        lane=server_lane(LaneKind.FANOUT).stored,
        target=event.event_id,
        step_id=None,
        priority=PRIORITY_DEFAULT,
        vesting_ms=event.accepted_at_ms,
        ordinal=1,
        generation=event.routing_generation,
        operation_id=event.event_id,
        repeatable=True,
        enqueued_at_ms=event.accepted_at_ms,
    )
    tx.put(EVENT.at(workspace, event.event_id), event)
    tx.put_blob(EVENT_PAYLOAD, workspace, event.event_id, value=payload)
    tx.put_own_stamp(EVENT_STAMP.at(workspace, event.event_id))
    tx.put_stamped(EVENT_LIST, workspace, record=event.event_id)
    tx.put(EXPANSION.at(workspace, event.event_id), ExpansionRecord(state=ExpansionState.PENDING, item_id=item.item_id))
    items.enqueue(tx, workspace, item)


def _require_same(event_id: str, recorded: str, marked: str) -> None:
    if recorded != marked:
        raise Refusal(
            "idempotency_conflict", "This idempotency key was used for a different submission.", event=event_id
        )


async def _replay_claim(tx: Tx, workspace: str, claim: ClaimRecord, marked: str) -> Acceptance:
    _require_same(claim.event_id, claim.fingerprint, marked)
    event = await tx.load(EVENT.at(workspace, claim.event_id))
    if event is None:
        raise Refusal(
            "event_deleted", "The event of this idempotency key was deleted by retention.", event=claim.event_id
        )
    return await _replay(tx, workspace, event, is_replay=True)


async def _replay(tx: Tx, workspace: str, event: EventRecord, *, is_replay: bool) -> Acceptance:
    expansion = await tx.load(EXPANSION.at(workspace, event.event_id))
    if expansion is None:
        return _acceptance(event, ExpansionState.COMPLETE, 0, is_replay=is_replay)
    found = _acceptance(event, expansion.state, expansion.matched_count, is_replay=is_replay)
    return found._replace(missing=expansion.missing)


def _acceptance(event: EventRecord, state: ExpansionState, matched_count: int, *, is_replay: bool) -> Acceptance:
    return Acceptance(
        event_id=event.event_id,
        routing_generation=event.routing_generation,
        accepted_at_ms=event.accepted_at_ms,
        expansion=state,
        matched_count=matched_count,
        claim_expires_at_ms=event.claim_expires_at_ms,
        is_replay=is_replay,
    )
