"""The assignment of a leased item: the run's input and its settled steps, as stored, never re-encoded."""

from __future__ import annotations

import msgspec
from ryusen.protocol.frames import Assign, Failure, StepMemo

from keyspace.assignment import Assignment, SettledStep, load_assignment
from keyspace.keyspace import Keyspace
from keyspace.records.work import WorkKind
from keyspace.transitions.lease_items import Delivery
from keyspace.transitions.work import direction_of
from services.dispatcher.refs import ref_of

__all__ = ["build_assign", "load_assign"]


async def load_assign(keyspace: Keyspace, delivery: Delivery, request: str) -> Assign:
    """Read what the worker needs for `delivery`, in a read-only transaction, and return the frame.

    Raises:
        StoreError: the store did not let it be read.
        CorruptRecord: what is stored does not add up.
    """
    item, run = delivery.item, delivery.run
    assignment = await keyspace.transact(
        "load_assignment", lambda tx: load_assignment(tx, delivery.workspace, run, item.step_id)
    )
    return build_assign(delivery, assignment, request)


def build_assign(delivery: Delivery, assignment: Assignment, request: str) -> Assign:
    """Return the frame that assigns `delivery` under the id `request`."""
    item, run, target = delivery.item, delivery.run, assignment.target
    memo = [_memo(step) for step in assignment.settled]
    result = None
    if item.kind is WorkKind.COMPENSATION:
        result = next((step.value for step in memo if step.id == item.step_id), None)
    extra = {} if result is None else {"result": result}
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
