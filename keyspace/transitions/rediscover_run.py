"""Rediscover a blocked run at an operator's request (RFD 2, "An operator may request immediate rediscovery")."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import msgspec

from keyspace import history
from keyspace.errors import CorruptRecord, Refusal
from keyspace.history import HistoryKind
from keyspace.layout import ITEM, RUN
from keyspace.lifecycle import ItemState, Phase
from keyspace.limits import PRIORITY_OPERATOR
from keyspace.queue import items
from keyspace.records.blocker import BlockerRecord
from keyspace.records.run import RunRecord
from keyspace.records.work import ItemRecord
from keyspace.transitions.blockers import blocker_key, look_again
from keyspace.transitions.names import check_id
from keyspace.transitions.work import engine_now_ms, save_run
from keyspace.tx import Tx

__all__ = ["RediscoverOutcome", "RediscoverReply", "decide", "rediscover_run"]


class RediscoverOutcome(StrEnum):
    """What a request to look again comes to.

    `hastened`: a pass that waited for a later instant is made ready, which its caller is told as `accepted`;
    `already_requested`: one is ready or under way.
    """

    ACCEPTED = "accepted"
    HASTENED = "hastened"
    ALREADY_REQUESTED = "already_requested"


class RediscoverReply(NamedTuple):
    """The reply to a request to look again, with the blocker as it stands; None once a pass has cleared it."""

    outcome: RediscoverOutcome
    blocker: BlockerRecord | None


def decide(run: RunRecord, item: ItemRecord | None, now_ms: int) -> RediscoverOutcome:
    """Decide what a request comes to: it is deduplicated against the discovery that the run has already.

    Raises:
        Refusal: `run_not_blocked`: there is no conflict to look at again.
    """
    if run.phase is not Phase.DEFINITION_BLOCKED:
        raise Refusal(
            "run_not_blocked", "The run is not blocked by its definition.", run=run.run_id, phase=run.phase.value
        )
    if item is None:
        return RediscoverOutcome.ACCEPTED
    is_later = item.state is ItemState.READY and item.vesting_ms > now_ms
    return RediscoverOutcome.HASTENED if is_later else RediscoverOutcome.ALREADY_REQUESTED


async def rediscover_run(tx: Tx, workspace: str, run_id: str, *, by: str, item_id: str) -> RediscoverReply:
    """Give a blocked run its next discovery now.

    Args:
        tx: the open transaction.
        workspace: whose run it is.
        run_id: the run.
        by: the acting key, for history.
        item_id: minted before the retry loop: the discovery's id, and this request's receipt.

    Reads: run, blocker, its outstanding item or its probe.  Writes: run, blocker, discovery item, history; the probe goes.
    Conflicts: only with this run's other transitions.  Budget: under 10 kB.
    Idempotent: the request's id on the run.

    Raises:
        Refusal: `not_found`, `run_not_blocked`.
    """
    check_id("run", run_id)
    run, blocker = await tx.load(RUN.at(workspace, run_id), blocker_key(workspace, run_id))
    if run is None:
        raise Refusal("not_found", "There is no such run in this workspace.", run=run_id)
    if run.rediscovery == item_id:
        return RediscoverReply(RediscoverOutcome.ACCEPTED, blocker)
    item = None if run.item_id is None else await tx.load(ITEM.at(workspace, run.item_id))
    now_ms = engine_now_ms(tx, run)
    outcome = decide(run, item, now_ms)
    if blocker is None:
        raise CorruptRecord(record="BlockerRecord", reason="a blocked run without its blocker", run=run_id)
    entry = (HistoryKind.DEFINITION_RETRY_REQUESTED, {"by": by, "step": blocker.step_id})
    if outcome is RediscoverOutcome.ACCEPTED:
        probe = None if blocker.probe_item is None else await tx.load(ITEM.at(workspace, blocker.probe_item))
        asked = msgspec.structs.replace(run, rediscovery=item_id)
        look_again(
            tx, workspace, asked, blocker, probe, entry, now_ms, item_id=item_id, priority=PRIORITY_OPERATOR
        )  # fmt: skip
    elif outcome is RediscoverOutcome.HASTENED and item is not None:
        items.defer(tx, workspace, item, now_ms)
        after = history.append(tx, workspace, run, now_ms, entry)
        save_run(tx, workspace, run, msgspec.structs.replace(after, rediscovery=item_id, updated_at_ms=now_ms))
    if outcome is RediscoverOutcome.ALREADY_REQUESTED:
        return RediscoverReply(outcome, blocker)
    return RediscoverReply(RediscoverOutcome.ACCEPTED, blocker)
