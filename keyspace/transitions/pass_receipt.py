"""The receipt of a discovery pass: which answer settled it, and what a second one is told."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import msgspec

from keyspace.lifecycle import Phase, StopReason
from keyspace.queue import items
from keyspace.records.run import RunRecord
from keyspace.records.work import ItemRecord, WorkKind
from keyspace.transitions.deadline import is_past_deadline, stop_for_deadline
from keyspace.transitions.work import Replayed, Stale, Work, engine_now_ms, load_pass, save_run
from keyspace.tx import Tx, digest_of

__all__ = [
    "PASSING_PHASES",
    "UNNAMED_GENERATION",
    "Pass",
    "answer_digest",
    "decide_pass",
    "open_pass",
    "settle_pass",
    "stale_by_stop",
]


PASSING_PHASES = frozenset((Phase.RUNNING, Phase.DEFINITION_BLOCKED))
"""Where a pass may be under way: a blocked run is looked at again, and only a pass can clear its blocker."""


UNNAMED_GENERATION = 0
"""What names a pass that follows a success on the same worker: nobody has told the worker its generation."""


class Pass(NamedTuple):
    """The records that an accepted answer goes on with.

    `before` is the run as this transaction loaded it. `item` is None when the pass follows a result of the same transaction:
    its work was never queued, only its history and its receipt exist. `failed_met` are the failed steps that the pass met, None when it did not say.
    """

    before: RunRecord
    run: RunRecord
    item_id: str
    item: ItemRecord | None
    instance: str | None
    failed_met: Collection[str] | None = None


def answer_digest(ending: str, body: bytes) -> str:
    """Return the digest of a pass's answer, by which a repeat is told from a different one."""
    return digest_of("ryusen.answer", ending, body)


def decide_pass(run: RunRecord | None, item: ItemRecord | None, work: Work, digest: str) -> Pass | Replayed | Stale:
    """Decide whether an answer may settle its pass.

    The lease need not be unexpired, only current: its token is still the item's (FILLED-IN 11, "Lease expiry and results").
    The generation must be the pass's own, where the worker was told one (RFD 2, "plus the run and step generation").
    """
    if run is None:
        return Stale("run_not_found")
    if run.settled_item == work.item_id:
        return Replayed() if run.settled_answer == digest else Stale("pass_settled")
    if run.stop is not None:
        return stale_by_stop(run)
    if item is None or item.token != work.token or item.kind is not WorkKind.DISCOVERY or item.target != run.run_id:
        return Stale("lease_lost")
    if work.generation not in (UNNAMED_GENERATION, item.generation):
        return Stale("generation_superseded")
    if run.phase not in PASSING_PHASES or run.item_id != item.item_id:
        return Stale("run_not_running")
    return Pass(run, run, item.item_id, item, item.instance)


def stale_by_stop(run: RunRecord) -> Stale:
    """Return what an answer is told that comes after the stop: the same, whether the timer or the answer committed it."""
    is_timed_out = run.stop is not None and run.stop.reason is StopReason.TIMED_OUT
    return Stale("deadline_elapsed" if is_timed_out else "run_stopping")


async def open_pass(
    tx: Tx, workspace: str, work: Work, digest: str
) -> tuple[RunRecord | None, Pass | Replayed | Stale]:
    """Load a pass and decide whether an answer may settle it; return besides the run as it was loaded.

    An answer at the run's deadline or after it is discarded: what is committed instead is the TimedOut stop, which fences the
    pass (RFD 2, "delayed timer dispatch cannot let completion bypass the deadline").
    """
    run, item = await load_pass(tx, workspace, work)
    outcome = decide_pass(run, item, work, digest)
    if isinstance(outcome, Pass) and is_past_deadline(outcome.run, engine_now_ms(tx, outcome.run)):
        stopped = await stop_for_deadline(tx, workspace, outcome.run, engine_now_ms(tx, outcome.run))
        return run, stale_by_stop(stopped)
    return run, outcome


def settle_pass(tx: Tx, workspace: str, accepted: Pass, after: RunRecord, digest: str, now_ms: int) -> RunRecord:
    """Consume the pass's item and write the run with the receipt; the run generation rises."""
    if accepted.item is not None:
        items.consume(tx, workspace, accepted.item)
    settled = msgspec.structs.replace(
        after,
        generation=accepted.run.generation + 1,
        settled_item=accepted.item_id,
        settled_answer=digest,
        updated_at_ms=now_ms,
    )
    save_run(tx, workspace, accepted.before, settled)
    return settled
