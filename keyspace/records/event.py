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
    "NoMatch",
    "Operation",
]


class Operation(StrEnum):
    """What scopes idempotency claims (RFD 2, "An optional caller idempotency key is scoped").

    The first two are API operations. The last is the emissions' own: no caller's key ever lies there.
    """

    EVENT_SUBMIT = "event.submit"
    FUNCTION_INVOKE = "function.invoke"
    EVENT_EMIT = "event.emit"


class ExpansionState(StrEnum):
    """How far an event's fan-out has come."""

    PENDING = "pending"
    EXPANDING = "expanding"
    COMPLETE = "complete"


class NoMatch(StrEnum):
    """What an addressed event's routing generation lacks (RFD 2, "a durable no-match that names which").

    `APPLICATION`: the generation does not reference the application. `FUNCTION`: the application's manifest in it does not
    declare the function.
    """

    APPLICATION = "application"
    FUNCTION = "function"


class EventRecord(Record, frozen=True, kw_only=True, array_like=True):
    """An accepted event. Its payload has keys of its own; `routing_generation` 0 means that none was active.

    A target makes it an addressed event: one function is started directly and nothing else is looked at.
    """

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
    target_application: str = ""
    target_function: str = ""

    @property
    def is_addressed(self) -> bool:
        """Whether the event is a direct invocation of one function."""
        return bool(self.target_function)


class ClaimRecord(Record, frozen=True, kw_only=True, array_like=True):
    """What an idempotency key stands for."""

    fingerprint: str
    event_id: str
    claimed_at_ms: int
    expires_at_ms: int


class ExpansionRecord(Record, frozen=True, kw_only=True, array_like=True):
    """The cursor and the sums of an event's fan-out. The cursor is the last evaluated (application, binding).

    `missing` is the durable no-match of an addressed event, which has no match record then. The wait page's own cursor is the
    range it has come to and the last registration it inspected there, a stamp in hexadecimal; -1 is behind the last range.
    """

    state: ExpansionState
    item_id: str | None
    cursor_application: str = ""
    cursor_binding: str = ""
    evaluated_count: int = 0
    matched_count: int = 0
    completed_at_ms: int | None = None
    missing: NoMatch | None = None
    wait_range: int = 0
    wait_cursor: str = ""
    inspected_count: int = 0
    settled_count: int = 0


class MatchRecord(Record, frozen=True, kw_only=True, array_like=True):
    """What one candidate binding came to."""

    run_id: str
    function: str
    evaluated_at_ms: int


EVENT = RecordCodec(EventRecord)
CLAIM = RecordCodec(ClaimRecord)
EXPANSION = RecordCodec(ExpansionRecord)
MATCH = RecordCodec(MatchRecord)
