"""Records of events: the accepted event, its claim, its expansion and what each candidate binding came to."""

from __future__ import annotations

from enum import StrEnum

from keyspace.records.codec import Record, RecordCodec

__all__ = [
    "CLAIM",
    "EVENT",
    "EXPANSION",
    "MATCH",
    "ClaimRecord",
    "EventRecord",
    "ExpansionRecord",
    "ExpansionState",
    "MatchRecord",
    "Operation",
]


class Operation(StrEnum):
    """The API operations that scope idempotency keys (RFD 2, "An optional caller idempotency key is scoped")."""

    EVENT_SUBMIT = "event.submit"


class ExpansionState(StrEnum):
    """How far an event's fan-out has come."""

    PENDING = "pending"
    EXPANDING = "expanding"
    COMPLETE = "complete"


class EventRecord(Record, frozen=True, kw_only=True, array_like=True):
    """An accepted event. Its payload has keys of its own; `routing_generation` 0 means that none was active."""

    event_id: str
    name: str
    correlation: dict[str, str]
    timestamp_ms: int | None
    accepted_at_ms: int
    routing_generation: int
    payload_bytes: int
    fingerprint: str
    claim_expires_at_ms: int | None
    accepted_by: str
    trace: str = ""


class ClaimRecord(Record, frozen=True, kw_only=True, array_like=True):
    """What an idempotency key stands for."""

    fingerprint: str
    event_id: str
    claimed_at_ms: int
    expires_at_ms: int


class ExpansionRecord(Record, frozen=True, kw_only=True, array_like=True):
    """The cursor and the sums of an event's fan-out. The cursor is the last evaluated (application, binding)."""

    state: ExpansionState
    item_id: str | None
    cursor_application: str = ""
    cursor_binding: str = ""
    evaluated_count: int = 0
    matched_count: int = 0
    completed_at_ms: int | None = None


class MatchRecord(Record, frozen=True, kw_only=True, array_like=True):
    """What one candidate binding came to."""

    run_id: str
    function: str
    evaluated_at_ms: int


EVENT = RecordCodec(EventRecord)
CLAIM = RecordCodec(ClaimRecord)
EXPANSION = RecordCodec(ExpansionRecord)
MATCH = RecordCodec(MatchRecord)
