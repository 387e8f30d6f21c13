"""Open and close a worker session: who may start work on an instance, and what the instance has never started."""

from __future__ import annotations

from typing import NamedTuple

from keyspace.errors import Refusal
from keyspace.layout import INSTANCE, INSTANCE_WORK
from keyspace.limits import INSTANCE_PAGE_ITEMS
from keyspace.records.work import Direction, InstanceRecord
from keyspace.store.api import KeyRange
from keyspace.tx import Tx

__all__ = ["RecordedStart", "close_session", "open_session", "recorded_starts"]


class RecordedStart(NamedTuple):
    """An authorized or Unknown attempt that is recorded to an instance."""

    run_id: str
    direction: Direction
    step_id: str
    generation: int
    token: str


async def open_session(
    tx: Tx,
    workspace: str,
    *,
    instance_id: str,
    application: str,
    session: str,
    release: str,
    connection: int = 0,
    position: str = "",
) -> InstanceRecord:
    """Make `session` the one that may start work on the instance; from this commit older sessions authorize nothing.

    A hello that was delayed while its worker connected elsewhere must not take the instance back: behind it stands no
    worker, and it would prove that what the newer session started had never begun.

    Args:
        tx: the open transaction.
        workspace: whose worker it is.
        instance_id: the worker process.
        application: what it serves.
        session: minted before the retry loop; the receipt.
        release: what it runs.
        connection: the process's own count of its connections, from 1; 0 from one that does not count.
        position: the stamp of the release it runs, in hexadecimal; empty when it names none.

    Reads: the instance.  Writes: the instance.  Conflicts: aborts authorizations and proofs of older sessions in flight.
    Idempotent: by the session's id.

    Raises:
        Refusal: `session_superseded`.
    """
    key = INSTANCE.at(workspace, instance_id)
    earlier = await tx.load(key)
    if earlier is not None and earlier.session == session:
        return earlier
    if earlier is not None and earlier.connection > connection:
        raise Refusal(
            "session_superseded",
            "The worker has connected again since it sent this hello.",
            instance=instance_id,
            connection=connection,
            newest=earlier.connection,
        )
    record = InstanceRecord(
        instance=instance_id,
        application=application,
        session=session,
        release=release,
        connected_at_ms=tx.now_ms,
        connection=connection,
        position=position,
    )
    tx.put(key, record)
    return record


async def recorded_starts(
    tx: Tx, workspace: str, instance_id: str, *, after: RecordedStart | None = None
) -> list[RecordedStart]:
    """Return a page of the starts recorded to an instance, after a cursor; read it after `open_session` committed."""
    span = INSTANCE_WORK.span(workspace, instance_id)
    if after is not None:
        last = INSTANCE_WORK.at(workspace, instance_id, after.run_id, after.direction, after.step_id, after.generation)
        span = KeyRange(last.data + b"\x00", span.end)
    starts = []
    for key, value in await tx.page(span, limit=INSTANCE_PAGE_ITEMS, snapshot=True):
        _, _, run_id, direction, step_id, generation = INSTANCE_WORK.parse(key)
        starts.append(RecordedStart(run_id, Direction(direction), step_id, generation, value.decode()))
    return starts


async def close_session(tx: Tx, workspace: str, instance_id: str, session: str) -> bool:
    """Forget an instance that said bye in `session` and holds nothing; says whether it did.

    Reads: the instance and its recorded starts.  Writes: the instance.
    """
    record = await tx.load(INSTANCE.at(workspace, instance_id))
    if record is None or record.session != session:
        return False
    if not await tx.is_empty(INSTANCE_WORK.span(workspace, instance_id)):
        return False
    tx.remove(INSTANCE.at(workspace, instance_id))
    return True
