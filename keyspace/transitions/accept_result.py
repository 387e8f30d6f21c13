"""What every result of an authorized effect goes through first: is it still wanted, and was it seen before."""

from __future__ import annotations

from typing import NamedTuple

from keyspace.lifecycle import AttemptState
from keyspace.limits import FAILURE_CATEGORY_CHARS_MAX, FAILURE_DETAILS_BYTES_MAX, FAILURE_MESSAGE_BYTES_MAX
from keyspace.queue import items
from keyspace.records.run import AttemptRecord, FailureRecord, RunRecord, StepRecord
from keyspace.records.work import ItemRecord
from keyspace.transitions.deadline import meet_deadline
from keyspace.transitions.lost_attempt import withdraw
from keyspace.transitions.target import PHASES
from keyspace.transitions.work import Loaded, Replayed, Stale, Work, direction_of, load_work
from keyspace.tx import Tx, digest_of

__all__ = [
    "INVALID_RESULT",
    "Settling",
    "bounded_failure",
    "consume_attempt_item",
    "decide_result",
    "failure_digest",
    "meet_deadline_settling",
    "value_digest",
]

INVALID_RESULT = "sdk.invalid_result"


class Settling(NamedTuple):
    """The records an accepted result goes on with; the item is gone when the attempt was Unknown."""

    run: RunRecord
    step: StepRecord
    attempt: AttemptRecord
    item: ItemRecord | None


def value_digest(value: bytes) -> str:
    """Return the digest of a success."""
    return digest_of("ryusen.value", value)


def failure_digest(failure: FailureRecord) -> str:
    """Return the digest of a failure."""
    return digest_of("ryusen.failure", failure.category, failure.message, failure.details or "")


def bounded_failure(failure: FailureRecord) -> FailureRecord:
    """Return the failure, or one that says which of its parts is over its limit; nothing is cut short."""
    parts = (
        ("category", len(failure.category), FAILURE_CATEGORY_CHARS_MAX),
        ("message", len(failure.message.encode()), FAILURE_MESSAGE_BYTES_MAX),
        ("details", len((failure.details or "").encode()), FAILURE_DETAILS_BYTES_MAX),
    )
    for field, size, limit in parts:
        if size > limit:
            return FailureRecord(
                category=INVALID_RESULT, message=f"The failure's {field} has {size} bytes; the limit is {limit}."
            )
    return failure


def decide_result(loaded: Loaded, work: Work, digest: str) -> Settling | Replayed | Stale:
    """Decide whether a result may settle its attempt (RFD 2, "Result acceptance requires").

    The settlement token stands until the attempt settles, also after its lease expired and while it is Unknown; so the
    outcome does not depend on whether a sweeper has run. For a repeatable attempt that was lost it stands until somebody else
    leases it (FILLED-IN 11, "Lease expiry and results").
    """
    run, step, attempt, item = loaded
    if run is None or step is None or attempt is None:
        return Stale("attempt_not_found")
    # The item is the attempt's own: a reference that mixes two works must not consume the item of another.
    if attempt.token != work.token or attempt.item_id != work.item_id:
        return Stale("lease_lost")
    if attempt.state in (AttemptState.SUCCEEDED, AttemptState.FAILED):
        return Replayed() if attempt.result_digest == digest else Stale("attempt_settled")
    direction = direction_of(work.kind)
    if attempt.state is AttemptState.QUEUED and attempt.loss_count and items.holds_token(item, work.token):
        # Lost and to be delivered again, but nobody has leased it since: its former holder's report is the current one.
        step, attempt = withdraw(step, attempt, direction)
    if attempt.state not in (AttemptState.AUTHORIZED, AttemptState.UNKNOWN):
        return Stale("attempt_not_authorized")
    if step.generation_of(direction) != attempt.generation:
        return Stale("generation_superseded")
    if run.phase not in PHASES[direction]:
        return Stale("run_not_running")
    return Settling(run, step, attempt, item if attempt.state is AttemptState.AUTHORIZED else None)


async def meet_deadline_settling(tx: Tx, workspace: str, work: Work, settling: Settling, digest: str) -> Settling:
    """Return what a result goes on with at this instant: past the run's deadline the records as its stop has left them."""
    run = await meet_deadline(tx, workspace, settling.run, direction_of(work.kind))
    if run is settling.run or not settling.attempt.loss_count:
        return settling._replace(run=run)
    # The stop has made an attempt that waited to be delivered again Unknown; this is its late result.
    outcome = decide_result(await load_work(tx, workspace, work), work, digest)
    assert isinstance(outcome, Settling), "a stop that settled the attempt it waits for"
    return outcome


def consume_attempt_item(tx: Tx, workspace: str, settling: Settling) -> None:
    """Remove the work item of an authorized attempt; an Unknown one has none left."""
    if settling.item is not None:
        items.consume(tx, workspace, settling.item)
