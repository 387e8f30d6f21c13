"""The assignment of a leased item: the run's input and its settled steps, as stored, never re-encoded."""

from __future__ import annotations

from typing import Any

import msgspec
from ryusen.protocol.frames import Assign, Failure, StepMemo
from ryusen.protocol.replay import extend_digest, first_digest

from keyspace.assignment import Assignment, SettledStep, load_assignment, load_progress
from keyspace.errors import KeyspaceError
from keyspace.keyspace import Keyspace
from keyspace.records.work import WorkKind
from keyspace.run_input import load_input
from keyspace.transitions.lease_items import Delivery
from keyspace.transitions.work import direction_of
from keyspace.tx import Tx
from services.dispatcher.options import INPUT_AT_HAND_BYTES_MAX
from services.dispatcher.refs import ref_of
from services.dispatcher.replays import Sent

__all__ = ["build_assign", "load_assign", "with_input"]


async def load_assign(
    keyspace: Keyspace, delivery: Delivery, request: str, known: Sent | None = None
) -> tuple[Assign, Sent]:
    """Return the frame that assigns `delivery`, and what the worker has with it; what is not at hand is read, in a transaction.

    Args:
        keyspace: where.
        delivery: what was leased.
        request: the id it is assigned under.
        known: what the worker has of the run's replay.

    Raises:
        StoreError: the store did not let it be read.
        CorruptRecord: what is stored does not add up.
    """
    item, run = delivery.item, delivery.run
    if delivery.input is not None:
        frame = build_assign(delivery, Assignment(delivery.input, [], None), request)
        return frame, Sent(0, first_digest(run.run_id, delivery.input))
    if known is None or known.step_count > run.settled_count:
        assignment = await keyspace.transact(
            "load_assignment", lambda tx: load_assignment(tx, delivery.workspace, run, item.step_id)
        )
        frame = build_assign(delivery, assignment, request)
        digest = first_digest(run.run_id, assignment.input)
        return frame, Sent(len(frame.memo), extend_digest(digest, frame.memo))
    progress = await keyspace.transact(
        "load_progress", lambda tx: load_progress(tx, delivery.workspace, run, item.step_id, known.step_count)
    )
    frame = build_assign(delivery, progress, request)
    frame = msgspec.structs.replace(frame, base=known.step_count, base_digest=known.digest)
    return frame, Sent(known.step_count + len(frame.memo), extend_digest(known.digest, frame.memo))


async def with_input(tx: Tx, delivery: Delivery) -> Delivery:
    """Return a delivery with its run's input, if that is all its assignment needs: the first pass of a run with a small one.

    Read with the lease, it saves most runs the transaction that reads an assignment. What cannot be read here is left to that.
    """
    item, run = delivery.item, delivery.run
    is_first = item.kind is WorkKind.DISCOVERY and run.step_count == 0 and run.settled_count == 0
    if not is_first or run.input_bytes > INPUT_AT_HAND_BYTES_MAX:
        return delivery
    try:
        return delivery._replace(input=await load_input(tx, delivery.workspace, run))
    except KeyspaceError:
        return delivery


def build_assign(delivery: Delivery, assignment: Assignment, request: str) -> Assign:
    """Return the frame that assigns `delivery` under the id `request`."""
    item, run, target = delivery.item, delivery.run, assignment.target
    memo = [_memo(step) for step in assignment.settled]
    value = assignment.target_value if item.kind is WorkKind.COMPENSATION else None
    result = None if value is None else msgspec.Raw(value)
    extra: dict[str, Any] = {} if result is None else {"result": result}
    return Assign(
        request=request,
        ref=ref_of(item),
        function=run.function,
        input=msgspec.Raw(assignment.input),
        memo=memo,
        event=run.event_id,
        event_name=run.event_name,
        delivery=item.delivery_count,
        timeout_ms=None if target is None else target.timeout_of(direction_of(item.kind)),
        **extra,
    )


def _memo(step: SettledStep) -> StepMemo:
    if step.failure is None:
        assert step.value is not None
        return StepMemo(id=step.step_id, value=msgspec.Raw(step.value))
    failure = step.failure
    details = {} if failure.details is None else {"details": msgspec.Raw(failure.details.encode())}
    return StepMemo(
        id=step.step_id,
        failure=Failure(category=failure.category, message=failure.message, attempts=step.attempts, **details),
    )
