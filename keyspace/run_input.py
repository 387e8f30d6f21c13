"""A run's input: its event's payload, or for a child run the bytes its parent gave it."""

from __future__ import annotations

from keyspace.layout import EVENT_PAYLOAD, RUN_INPUT
from keyspace.records.run import RunRecord
from keyspace.tx import Tx

__all__ = ["load_input"]


async def load_input(tx: Tx, workspace: str, run: RunRecord) -> bytes:
    """Return the exact bytes a run was started with; by snapshot, since they never change."""
    if run.parent is not None:
        return await tx.load_blob(RUN_INPUT, workspace, run.run_id, size_bytes=run.input_bytes, snapshot=True)
    return await tx.load_blob(EVENT_PAYLOAD, workspace, run.event_id, size_bytes=run.input_bytes, snapshot=True)
