"""Probe a blocked run: its worker announces no new code, so it is looked at again from time to time."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from keyspace.history import HistoryKind
from keyspace.layout import ITEM, RUN
from keyspace.lifecycle import Phase
from keyspace.limits import PRIORITY_FIRST
from keyspace.queue import items
from keyspace.records.blocker import BlockerRecord
from keyspace.records.run import RunRecord
from keyspace.records.work import ItemRecord
from keyspace.transitions.blockers import blocker_key, look_again
from keyspace.transitions.work import engine_now_ms
from keyspace.tx import Tx

__all__ = ["Probe", "decide", "probe_definition"]


class Probe(StrEnum):
    """What a probe came to."""

    FIRED = "fired"
    GONE = "gone"
    NOT_DUE = "not_due"
    NOT_WANTED = "not_wanted"


def decide(run: RunRecord | None, blocker: BlockerRecord | None, item: ItemRecord | None, now_ms: int) -> Probe:
    """Decide what a probe comes to: redelivered, it finds that the first delivery consumed it."""
    if item is None:
        return Probe.GONE
    if run is None or blocker is None or run.phase is not Phase.DEFINITION_BLOCKED or run.item_id is not None:
        return Probe.NOT_WANTED
    if blocker.probe_item != item.item_id:
        return Probe.NOT_WANTED
    return Probe.NOT_DUE if now_ms < item.vesting_ms else Probe.FIRED


async def probe_definition(tx: Tx, workspace: str, run_id: str, item_id: str) -> Probe:
    """Give a blocked run its next discovery (RFD 2, "a capped low-frequency delayed probe").

    Reads: run, blocker, item.  Writes: the same, the discovery item, history.
    Conflicts: only with this run's other transitions.  Budget: under 10 kB.
    Idempotent: the consumed item is the receipt.
    """
    run, blocker, item = await tx.load(
        RUN.at(workspace, run_id), blocker_key(workspace, run_id), ITEM.at(workspace, item_id)
    )
    outcome = decide(run, blocker, item, tx.now_ms)
    if item is None or outcome is Probe.NOT_DUE:
        return outcome
    if outcome is Probe.NOT_WANTED:
        items.consume(tx, workspace, item)
        return outcome
    assert run is not None and blocker is not None, "decided to probe nothing"
    count = blocker.probe_count + 1
    look_again(
        tx,
        workspace,
        run,
        msgspec.structs.replace(blocker, probe_count=count),
        item,
        (HistoryKind.DEFINITION_WOKEN, {"by": "probe", "probe": count}),
        engine_now_ms(tx, run),
        item_id=tx.ids.mint(),
        priority=PRIORITY_FIRST,
    )
    return outcome
