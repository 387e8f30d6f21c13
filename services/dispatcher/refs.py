"""Between the wire's names of work and the keyspace's; everything a worker says is checked before it becomes a key."""

from __future__ import annotations

from ryusen.protocol.frames import WorkRef

from keyspace.errors import Refusal
from keyspace.records.work import ItemRecord, WorkKind
from keyspace.transitions.names import check_id, check_name
from keyspace.transitions.open_session import RecordedStart
from keyspace.transitions.work import Work, direction_of

__all__ = ["matches_start", "ref_of", "work_of"]

GENERATION_MAX = 2**31 - 1


def ref_of(item: ItemRecord) -> WorkRef:
    """Return the name under which a leased item is delivered."""
    assert item.token is not None
    return WorkRef(
        kind=item.kind.value,  # type: ignore[arg-type]
        item=item.item_id,
        token=item.token,
        run=item.target,
        attempt=item.ordinal,
        generation=item.generation,
        operation=item.operation_id,
        step=item.step_id,
    )


def work_of(ref: WorkRef) -> Work | None:
    """Return what a worker's reference names, or None when nothing can bear such a name.

    The workspace is never part of it: it comes from the session's credential alone (case 041).
    """
    kind = WorkKind(ref.kind)
    if (ref.step is None) is not (kind is WorkKind.DISCOVERY) or not 0 <= ref.generation <= GENERATION_MAX:
        return None
    try:
        check_id("run", ref.run)
        check_id("item", ref.item)
        check_id("token", ref.token)
        if ref.step is not None:
            check_name("step", ref.step)
    except Refusal:
        return None
    return Work(kind, ref.run, ref.step, ref.item, ref.token, ref.generation)


def matches_start(ref: WorkRef, start: RecordedStart) -> bool:
    """Whether the work that a worker holds is the attempt that is recorded as started on it."""
    direction = direction_of(WorkKind(ref.kind))
    return (ref.run, direction, ref.step, ref.generation, ref.token) == tuple(start)
