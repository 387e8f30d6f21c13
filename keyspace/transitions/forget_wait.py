"""Remove a wait's registration: with the match that settles it, with its timeout, or with the stop that fences it."""

from __future__ import annotations

from keyspace.errors import CorruptRecord
from keyspace.layout import WAIT, WAIT_INDEX, WAIT_STAMP
from keyspace.tx import Tx

__all__ = ["forget_wait", "remove_registration"]


async def forget_wait(tx: Tx, workspace: str, run_id: str, step_id: str) -> None:
    """Remove a registration wherever it stands, with whatever settles or fences its step.

    Args:
        tx: the open transaction.
        workspace: whose run it is.
        run_id: the run.
        step_id: the waiting step; loaded with conflict, so its registration is read by snapshot.

    Raises:
        CorruptRecord: the registration is not there.
    """
    record, stamp = await tx.load(
        WAIT.at(workspace, run_id, step_id), WAIT_STAMP.at(workspace, run_id, step_id), snapshot=True
    )
    if record is None or stamp is None:
        raise CorruptRecord(record="WaitRecord", reason="a waiting step without its registration", run=run_id)
    remove_registration(tx, workspace, run_id, step_id, event=record.event, pair=record.pair, stamp=stamp)


def remove_registration(
    tx: Tx, workspace: str, run_id: str, step_id: str, *, event: str, pair: str, stamp: bytes
) -> None:
    """Remove the registration that stands in the wait index at an event's name, a pair's digest and its own stamp."""
    tx.remove(WAIT_INDEX.at(workspace, event, pair, stamp))
    tx.remove(WAIT.at(workspace, run_id, step_id))
    tx.remove(WAIT_STAMP.at(workspace, run_id, step_id))
