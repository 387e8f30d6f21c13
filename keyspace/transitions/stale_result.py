"""Keep a result that lost as a diagnostic; it changes nothing that decides."""

from __future__ import annotations

import msgspec

from keyspace.layout import STALE
from keyspace.limits import STALE_RESULTS_MAX
from keyspace.records.run import AttemptRecord, FailureRecord, StaleResultRecord
from keyspace.transitions.work import Work, attempt_key, direction_of
from keyspace.tx import Tx

__all__ = ["keep_stale_result"]


async def keep_stale_result(
    tx: Tx,
    workspace: str,
    work: Work,
    attempt: AttemptRecord | None,
    *,
    outcome: str,
    digest: str,
    value_bytes: int,
    failure: FailureRecord | None,
) -> None:
    """Record a losing result with its attempt, up to eight for each (RFD 2, "A successful result is immutable").

    The newest kept one is read first, so that a repeat of it is not kept twice.
    """
    if attempt is None or work.step_id is None or attempt.stale_count >= STALE_RESULTS_MAX:
        return
    at = (work.run_id, direction_of(work.kind), work.step_id, work.generation)
    if attempt.stale_count:
        newest = await tx.load(STALE.at(workspace, *at, attempt.stale_count))
        if newest is not None and (newest.token, newest.digest) == (work.token, digest):
            return
    number = attempt.stale_count + 1
    tx.put(
        STALE.at(workspace, *at, number),
        StaleResultRecord(
            received_at_ms=tx.now_ms,
            token=work.token,
            outcome=outcome,
            digest=digest,
            value_bytes=value_bytes,
            failure=failure,
        ),
    )
    tx.put(attempt_key(workspace, work), msgspec.structs.replace(attempt, stale_count=number))
