"""What the API takes and answers of events: their submission, how far they have become runs, and the runs they started."""

from __future__ import annotations

import msgspec

from services.gateway.invocation_types import Target
from services.gateway.types import Page

__all__ = [
    "Event",
    "EventSummary",
    "Expansion",
    "ExpansionSummary",
    "Invoked",
    "Match",
    "Submission",
    "Submitted",
]


class _Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class _Answer(msgspec.Struct, frozen=True, kw_only=True):
    pass


class Submission(_Request, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Submit an event. `correlation` holds up to 16 pairs of texts that waits may match; `timestamp_ms` is the caller's own."""

    name: str
    payload: msgspec.Raw
    correlation: dict[str, str] = {}
    timestamp_ms: int | None = None


class ExpansionSummary(_Answer, frozen=True, kw_only=True):
    """How far an event has become runs. `explanation` says in words what became of it."""

    state: str
    matched_count: int
    explanation: str = ""


class Expansion(ExpansionSummary, frozen=True, kw_only=True):
    """How far an event has become runs, with how many candidates were looked at and when the last one was.

    `inspected_count` is how many waits were looked at that it might have satisfied, `settled_count` how many it settled.
    """

    evaluated_count: int = 0
    inspected_count: int = 0
    settled_count: int = 0
    completed_at_ms: int | None = None


class Submitted(_Answer, frozen=True, kw_only=True):
    """The acknowledgement: the event is durable. `replayed` says that this idempotency key had made it before."""

    event: str
    routing_generation: int
    expansion: ExpansionSummary
    replayed: bool
    accepted_at_ms: int
    claim_expires_at_ms: int | None = None


class Invoked(Submitted, frozen=True, kw_only=True):
    """The acknowledgement of a direct invocation: it is durable.

    `run` is the id that the run has once the expansion has found the function, known at once and by nobody else's run ever
    borne; null when it was not found.
    """

    run: str | None


class EventSummary(_Answer, frozen=True, kw_only=True):
    """An event in a list; `target` says that it is a direct invocation, and of what."""

    event: str
    name: str
    correlation: dict[str, str]
    timestamp_ms: int | None
    accepted_at_ms: int
    routing_generation: int
    payload_bytes: int
    target: Target | None = None
    expansion: Expansion


class Match(_Answer, frozen=True, kw_only=True):
    """A run that an event started, and by which binding."""

    application: str
    binding: str
    function: str
    run: str
    evaluated_at_ms: int


class Event(_Answer, frozen=True, kw_only=True):
    """An event with its payload and the first of the runs it started."""

    event: str
    name: str
    correlation: dict[str, str]
    timestamp_ms: int | None
    accepted_at_ms: int
    accepted_by: str
    claim_expires_at_ms: int | None
    routing_generation: int
    payload_bytes: int
    payload: msgspec.Raw
    target: Target | None = None
    expansion: Expansion
    matches: Page[Match]
