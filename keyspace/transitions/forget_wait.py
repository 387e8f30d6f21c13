"""Remove a wait's registration: with the match that settles it, with its timeout, or with the stop that fences it."""

from __future__ import annotations

from keyspace.errors import CorruptRecord
from keyspace.layout import WAIT, WAIT_INDEX, WAIT_STAMP
from keyspace.tx import Tx

__all__ = ["forget_wait"]


async def forget_wait(tx: Tx, workspace: str, run_id: str, step_id: str, *, stamp: bytes | None = None) -> None:
    """Remove a registration wherever it stands, with whatever settles or fences its step.

    Args:
        tx: the open transaction.
        workspace: whose run it is.
        run_id: the run.
        step_id: the waiting step.
        stamp: its place in the wait index, when the caller found it there.

    Raises:
        CorruptRecord: the registration is not there.
    """
    record, own = await tx.load(
        WAIT.at(workspace, run_id, step_id), WAIT_STAMP.at(workspace, run_id, step_id), snapshot=True
    )
    if record is None or own is None or (stamp is not None and own != stamp):
        raise CorruptRecord(record="WaitRecord", reason="a waiting step without its registration", run=run_id)
    tx.remove(WAIT_INDEX.at(workspace, record.event, record.pair, own))
    tx.remove(WAIT.at(workspace, run_id, step_id))
    tx.remove(WAIT_STAMP.at(workspace, run_id, step_id))
