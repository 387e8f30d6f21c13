"""Durable event waits as the API shows them: what a step is registered for, and since when."""

from __future__ import annotations

from collections.abc import Iterable

from keyspace.layout import WAIT, WAIT_STAMP
from keyspace.records.run import RunRecord
from keyspace.records.wait import WaitRecord
from keyspace.records.work import ItemRecord, WorkKind
from keyspace.tx import Tx
from services.gateway.step_types import AwaitedEvent

__all__ = ["load_awaited", "load_waits"]


async def load_waits(
    tx: Tx, workspace: str, outstanding: Iterable[tuple[RunRecord, ItemRecord | None]]
) -> dict[str, WaitRecord]:
    """Return the registrations of runs by run id, read by snapshot; a run that waits for none has none."""
    at = [(item.target, item.step_id) for _, item in outstanding if item is not None and item.kind is WorkKind.TIMER]
    keys = [(run_id, step_id) for run_id, step_id in at if step_id is not None]
    records = await tx.load_all((WAIT.at(workspace, *key) for key in keys), snapshot=True)
    return {run_id: record for (run_id, _), record in zip(keys, records, strict=True) if record is not None}


async def load_awaited(tx: Tx, workspace: str, run_id: str, step_ids: list[str]) -> dict[str, AwaitedEvent]:
    """Return what the waiting ones of a run's steps are registered for, by step id."""
    records = await tx.load_all((WAIT.at(workspace, run_id, step_id) for step_id in step_ids), snapshot=True)
    stamps = await tx.load_all((WAIT_STAMP.at(workspace, run_id, step_id) for step_id in step_ids), snapshot=True)
    return {
        step_id: AwaitedEvent(
            name=record.event,
            match=record.match,
            timeout_ms=record.timeout_ms,
            registered_at_ms=record.registered_at_ms,
            stamp=stamp.hex(),
        )
        for step_id, record, stamp in zip(step_ids, records, stamps, strict=True)
        if record is not None and stamp is not None
    }
