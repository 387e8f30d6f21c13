"""Records of durable event waits: the registration under its run, and its entry in the wait index."""

from __future__ import annotations

from keyspace.records.codec import Record, RecordCodec

__all__ = ["WAIT", "WAIT_REF", "WaitRecord", "WaitRef"]


class WaitRecord(Record, frozen=True, kw_only=True, array_like=True):
    """A registration: the exact event name, the pairs an event must carry, and how long it waits (milliseconds).

    `pair` is the digest it lies under in the wait index.
    """

    event: str
    match: dict[str, str]
    timeout_ms: int
    registered_at_ms: int
    pair: str


class WaitRef(Record, frozen=True, kw_only=True, array_like=True):
    """A registration as an event's expansion meets it: whose it is, what it asks for, until when (exclusive).

    `settle_bytes` is the most that settling it weighs, besides the event's payload and name.
    """

    run_id: str
    step_id: str
    match: dict[str, str]
    due_at_ms: int
    settle_bytes: int


WAIT = RecordCodec(WaitRecord)
WAIT_REF = RecordCodec(WaitRef)
