"""Waits in bulk: written as the transitions write them, but many in one transaction and without a pass for each."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from server_steps import ONCE
from world import World

from keyspace.layout import ITEM, STEP, WAIT, WAIT_INDEX, WAIT_STAMP
from keyspace.lifecycle import StepKind, StepState
from keyspace.queue import items
from keyspace.records.run import RunRecord, ServerStepRecord, StepRecord
from keyspace.records.wait import WaitRecord, WaitRef
from keyspace.transitions.correlation import pair_of_registration
from keyspace.transitions.declare_timer import enqueue_timer
from keyspace.transitions.declare_wait import settle_bytes
from keyspace.transitions.materialize_run import RunSource, materialize_run, run_identity
from keyspace.transitions.work import save_run
from keyspace.tx import Tx, digest_of

__all__ = ["EVENT", "bulk_stamp", "load_entries", "load_waits"]

EVENT = "order.packed"
BATCH = 40


def bulk_stamp(number: int) -> bytes:
    """Return a stamp of the store's first version: before every event that a test submits, in the order of the numbers."""
    return (1).to_bytes(8, "big") + number.to_bytes(4, "big")


def source_of(number: int, application: str, function: str, name: str) -> RunSource:
    return RunSource(digest_of("test.event", str(number)), name, 1, application, function, "b", 1, 1)


async def load_waits(
    world: World,
    count: int,
    *,
    match: Callable[[int], dict[str, str]],
    timeout_ms: int = 3_600_000,
    event: str = EVENT,
    step_id: str = "packed",
    application: str = "shop",
    function: str = "fulfil",
    workspace: str = "acme",
    first: int = 0,
) -> list[str]:
    """Make `count` runs that wait; return their ids in the order of their registrations."""
    ids: list[str] = []
    for begin in range(first, first + count, BATCH):

        async def body(tx: Tx, begin: int = begin) -> list[str]:
            made = []
            for order, number in enumerate(range(begin, min(begin + BATCH, first + count))):
                source = source_of(number, application, function, event)
                run = materialize_run(tx, workspace, run_identity(workspace, source), source, order=order)
                await _wait(tx, workspace, run, step_id, event, match(number), timeout_ms, bulk_stamp(number))
                made.append(run.run_id)
            return made

        ids += await world.run("load_waits", body)
    return ids


async def _wait(
    tx: Tx,
    workspace: str,
    run: RunRecord,
    step_id: str,
    event: str,
    match: dict[str, str],
    timeout_ms: int,
    stamp: bytes,
) -> None:
    """Write what `declare_wait` writes, at a stamp that is given."""
    assert run.item_id is not None
    item = await tx.load(ITEM.at(workspace, run.item_id))
    assert item is not None
    items.consume(tx, workspace, item)
    step = StepRecord(
        step_id=step_id,
        name="",
        kind=StepKind.WAIT,
        state=StepState.WAITING,
        generation=1,
        ordinal=0,
        first_ordinal=1,
        operation_id=digest_of("test.step", run.run_id),
        retry=ONCE,
        timeout_ms=None,
        compensable=False,
        location="shop.py:1",
        declared_at_ms=tx.now_ms,
        declared_by=run.item_id,
        server=ServerStepRecord(terms=digest_of("test.terms")),
    )
    step = enqueue_timer(tx, workspace, run, step, tx.now_ms + timeout_ms, tx.now_ms)
    assert step.server is not None
    tx.put(STEP.at(workspace, run.run_id, step_id), step)
    after = msgspec.structs.replace(run, item_id=step.server.item_id, step_id=step_id, step_count=1)
    save_run(tx, workspace, run, after)
    pair = pair_of_registration(match)
    record = WaitRecord(event=event, match=match, timeout_ms=timeout_ms, registered_at_ms=tx.now_ms, pair=pair)
    tx.put(WAIT.at(workspace, run.run_id, step_id), record)
    tx.put(WAIT_STAMP.at(workspace, run.run_id, step_id), stamp)
    ref = WaitRef(
        run_id=run.run_id,
        step_id=step_id,
        match=match,
        due_at_ms=tx.now_ms + timeout_ms,
        settle_bytes=settle_bytes(workspace, after, step, event, tx.prefix_bytes),
    )
    tx.put(WAIT_INDEX.at(workspace, event, pair, stamp), ref)


async def load_entries(world: World, count: int, match: Callable[[int], dict[str, str]]) -> None:
    """Write `count` entries of the wait index alone: enough for an event that must not meet them."""
    for begin in range(0, count, 1_000):

        async def body(tx: Tx, begin: int = begin) -> None:
            for number in range(begin, min(begin + 1_000, count)):
                ref = WaitRef(
                    run_id=digest_of("test.run", str(number)),
                    step_id="packed",
                    match=match(number),
                    due_at_ms=tx.now_ms + 3_600_000,
                    settle_bytes=8_000,
                )
                tx.put(WAIT_INDEX.at("acme", EVENT, pair_of_registration(ref.match), bulk_stamp(number)), ref)

        await world.run("load_entries", body)
