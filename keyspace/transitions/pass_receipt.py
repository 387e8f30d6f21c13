"""The receipt of a discovery pass: which answer settled it, and what a second one is told."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from keyspace.lifecycle import Phase
from keyspace.queue import items
from keyspace.records.run import RunRecord
from keyspace.records.work import ItemRecord, WorkKind
from keyspace.transitions.work import Replayed, Stale, Work, save_run
from keyspace.tx import Tx, digest_of

__all__ = ["Pass", "answer_digest", "decide_pass", "settle_pass"]


class Pass(NamedTuple):
    """The records that an accepted answer goes on with.

    `before` is the run as this transaction loaded it. `item` is None when the pass follows a result of the same transaction:
    its work was never queued, only its history and its receipt exist.
    """

    before: RunRecord
    run: RunRecord
    item_id: str
    item: ItemRecord | None
    instance: str | None


def answer_digest(ending: str, body: bytes) -> str:
    """Return the digest of a pass's answer, by which a repeat is told from a different one."""
    return digest_of("ryusen.answer", ending, body)


def decide_pass(run: RunRecord | None, item: ItemRecord | None, work: Work, digest: str) -> Pass | Replayed | Stale:
    """Decide whether an answer may settle its pass.

    The lease need not be unexpired, only current: its token is still the item's (FILLED-IN 11, "Lease expiry and results").
    """
    if run is None:
        return Stale("run_not_found")
    if run.settled_item == work.item_id:
        return Replayed() if run.settled_answer == digest else Stale("pass_settled")
    if run.stop is not None:
        return Stale("run_stopping")
    if item is None or item.token != work.token or item.kind is not WorkKind.DISCOVERY or item.target != run.run_id:
        return Stale("lease_lost")
    if run.phase is not Phase.RUNNING or run.item_id != item.item_id:
        return Stale("run_not_running")
    return Pass(run, run, item.item_id, item, item.instance)


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
