"""A run's history: one key an entry, appended in the transaction it tells of.

Every accepted transition appends at least one entry, and the entries alone explain the run (RFD 2, "Every accepted
transition appends a history entry"; `keyspace.explain` replays them). Ordinals come from the run record that the same
transaction writes, so appending reads nothing and costs the same at the first entry and the ten-thousandth.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from keyspace.layout import HISTORY
from keyspace.records.run import FailureRecord, HistoryRecord, RunRecord
from keyspace.tx import Tx

__all__ = ["Entry", "HistoryKind", "append", "failure_data"]


class HistoryKind(StrEnum):
    """What an entry tells. The words are part of the product: they are shown, stored and documented."""

    RUN_CREATED = "run-created"
    PASS_AUTHORIZED = "pass-authorized"
    PASS_LOST = "pass-lost"
    STEP_DECLARED = "step-declared"
    DECLARATION_REPEATED = "declaration-repeated"
    EMISSION_REPLAYED = "emission-replayed"
    ATTEMPT_AUTHORIZED = "attempt-authorized"
    ATTEMPT_FAILED = "attempt-failed"
    ATTEMPT_UNKNOWN = "attempt-unknown"
    ATTEMPT_REDELIVERED = "attempt-redelivered"
    ATTEMPT_NOT_STARTED = "attempt-not-started"
    RETRY_SCHEDULED = "retry-scheduled"
    RETRY_AUTHORIZED = "retry-authorized"
    STEP_COMPLETED = "step-completed"
    STEP_FAILED = "step-failed"
    STEP_OBSOLETE = "step-obsolete"
    STEP_FENCED = "step-fenced"
    ATTEMPT_RESOLVED = "attempt-resolved"
    STOP_COMMITTED = "stop-committed"
    RUN_COMPLETED = "run-completed"
    RUN_FAILED = "run-failed"
    COMPENSATION_NOT_REQUIRED = "compensation-not-required"
    UNWIND_STARTED = "unwind-started"
    COMPENSATION_SKIPPED = "compensation-skipped"
    COMPENSATION_SUCCEEDED = "compensation-succeeded"
    COMPENSATION_FAILED = "compensation-failed"
    COMPENSATIONS_NOT_ATTEMPTED = "compensations-not-attempted"
    UNWIND_ENDED = "unwind-ended"
    DEFINITION_BLOCKED = "definition-blocked"
    DEFINITION_STILL_BLOCKED = "definition-still-blocked"
    DEFINITION_UNBLOCKED = "definition-unblocked"
    DEFINITION_RETRY_REQUESTED = "definition-retry-requested"
    DEFINITION_WOKEN = "definition-woken"


Entry = tuple[HistoryKind, dict[str, Any]]


def failure_data(failure: FailureRecord) -> dict[str, Any]:
    """Return what an entry says of a failure."""
    data: dict[str, Any] = {"category": failure.category, "message": failure.message}
    if failure.details is not None:
        data["details"] = failure.details
    return data


def append(tx: Tx, workspace: str, run: RunRecord, at_ms: int, *entries: Entry) -> RunRecord:
    """Append `entries` in order and return the run with its count moved; the caller writes the run."""
    ordinal = run.history_count
    for kind, data in entries:
        ordinal += 1
        tx.put(HISTORY.at(workspace, run.run_id, ordinal), HistoryRecord(at_ms=at_ms, kind=kind.value, data=data))
    return msgspec.structs.replace(run, history_count=ordinal)
