"""Materialize a run: its record, list entries, history and first discovery work. The one way any run comes to be."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from keyspace import history
from keyspace.history import HistoryKind
from keyspace.layout import RUN_BY_FUNCTION, RUN_LIST, RUN_STAMP
from keyspace.lifecycle import DeadlineSource
from keyspace.limits import PRIORITY_DEFAULT
from keyspace.records.run import ParentRecord, RunRecord
from keyspace.transitions.run_timer import start_run_timer
from keyspace.transitions.work import discovery_item, save_run
from keyspace.tx import Tx, digest_of

__all__ = ["RunSource", "derived_run_id", "materialize_run", "reserve_bytes", "run_identity"]

_FIXED_BYTES = 5_600
_SCOPE_OCCURRENCES = 24
_BINDING_OCCURRENCES = 6
_EVENT_NAME_OCCURRENCES = 6
_PREFIX_OCCURRENCES = 45
_TIMER_FIXED_BYTES = 1_500
_TIMER_WORKSPACE_OCCURRENCES = 9
_TIMER_PREFIX_OCCURRENCES = 12


class RunSource(NamedTuple):
    """Where a run comes from; everything its identity and provenance are made of.

    `timeout_ms` is how long it may take and `deadline_source` who says so; None is for ever. A child run has a `parent` and
    no event: its event, name and binding are empty.
    """

    event_id: str
    event_name: str
    payload_bytes: int
    application: str
    function: str
    binding: str
    manifest_generation: int
    routing_generation: int
    timeout_ms: int | None = None
    deadline_source: DeadlineSource = DeadlineSource.FUNCTION
    parent: ParentRecord | None = None


def run_identity(workspace: str, source: RunSource) -> str:
    """Return the run's id: a digest of workspace, event, application and binding (RFD 2, "Fan-out work traverses")."""
    return derived_run_id(workspace, source.event_id, source.application, source.binding)


def derived_run_id(workspace: str, event_id: str, application: str, binding: str) -> str:
    """Return the id that the run of these four has, or will have once it comes to be."""
    return digest_of("ryusen.run", workspace, event_id, application, binding)


def reserve_bytes(workspace: str, source: RunSource, prefix_bytes: int) -> int:
    """Return an upper bound of what materializing `source` and its match record charge.

    Every occurrence of every identifier in keys and values is counted at its escaped length; a test compares this with the
    charge of the worst names there may be.
    """
    scope = len(workspace.encode()) + _stored_bytes(source.application) + _stored_bytes(source.function)
    return (
        _FIXED_BYTES
        + (0 if source.timeout_ms is None else _timer_bytes(workspace, prefix_bytes))
        + _SCOPE_OCCURRENCES * scope
        + _BINDING_OCCURRENCES * _stored_bytes(source.binding)
        + _EVENT_NAME_OCCURRENCES * _stored_bytes(source.event_name)
        + _PREFIX_OCCURRENCES * prefix_bytes
    )


def _timer_bytes(workspace: str, prefix_bytes: int) -> int:
    return (
        _TIMER_FIXED_BYTES
        + _TIMER_WORKSPACE_OCCURRENCES * len(workspace.encode())
        + _TIMER_PREFIX_OCCURRENCES * prefix_bytes
    )


def _stored_bytes(text: str) -> int:
    data = text.encode()
    return len(data) + data.count(b'"') + data.count(b"\\")


def materialize_run(
    tx: Tx, workspace: str, run_id: str, source: RunSource, *, order: int, at_ms: int | None = None
) -> RunRecord:
    """Create the run as Running with its first discovery item, and its timer when it has a deadline.

    Source: RFD 2, "A run moves through" and "When a deadline exists".

    Args:
        tx: the open transaction.
        workspace: whose run it is.
        run_id: `run_identity(source)`; the caller has read that no such run exists.
        source: the provenance to record.
        order: the run's place among those this transaction creates.
        at_ms: engine time of what creates it, which may run ahead of the sample; the sample when None.

    Writes: run, status index, list entries, companion stamp, history, discovery item with its index entries and bell; the
    same of the RunTimeout item.
    """
    now_ms = tx.now_ms if at_ms is None else at_ms
    run = RunRecord(
        run_id=run_id,
        application=source.application,
        function=source.function,
        event_id=source.event_id,
        event_name=source.event_name,
        binding=source.binding,
        manifest_generation=source.manifest_generation,
        routing_generation=source.routing_generation,
        created_at_ms=now_ms,
        updated_at_ms=now_ms,
        input_bytes=source.payload_bytes,
        parent=source.parent,
    )
    item = discovery_item(tx, workspace, run, now_ms, priority=PRIORITY_DEFAULT)
    if source.timeout_ms is not None:
        run = start_run_timer(tx, workspace, run, source.timeout_ms, source.deadline_source, now_ms)
    run = history.append(tx, workspace, run, now_ms, (HistoryKind.RUN_CREATED, _created_entry(source, run)))
    run = msgspec.structs.replace(run, item_id=item.item_id)
    save_run(tx, workspace, None, run)
    tx.put_stamped(RUN_LIST, workspace, record=run_id, order=order)
    tx.put_stamped(RUN_BY_FUNCTION, workspace, source.application, source.function, record=run_id, order=order)
    tx.put_own_stamp(RUN_STAMP.at(workspace, run_id), order=order)
    return run


def _created_entry(source: RunSource, run: RunRecord) -> dict[str, str | int]:
    entry: dict[str, str | int] = {
        "event": source.event_id,
        "binding": source.binding,
        "application": source.application,
        "function": source.function,
        "manifest_generation": source.manifest_generation,
        "routing_generation": source.routing_generation,
    }
    if source.parent is not None:
        entry |= {"parent": source.parent.run_id, "parent_step": source.parent.step_id, "depth": source.parent.depth}
    if run.deadline_at_ms is not None:
        entry |= {"deadline_at_ms": run.deadline_at_ms, "deadline_source": source.deadline_source.value}
    return entry
