"""What a settlement names, what it loads and how it is answered: shared by every transition that settles work."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from keyspace.layout import ATTEMPT, INSTANCE_WORK, ITEM, RUN, RUN_BY_STATUS, STEP, UNRESOLVED
from keyspace.leaf import Key
from keyspace.lifecycle import AttemptState
from keyspace.limits import PRIORITY_FIRST
from keyspace.queue import items
from keyspace.records.run import AttemptRecord, RunRecord, StepRecord
from keyspace.records.work import Direction, ItemRecord, WorkKind, application_lane
from keyspace.tx import Tx, digest_of

__all__ = [
    "Accepted",
    "Loaded",
    "Replayed",
    "Stale",
    "Verdict",
    "Work",
    "attempt_key",
    "direction_of",
    "discovery_item",
    "engine_now_ms",
    "following_pass_id",
    "load_pass",
    "load_work",
    "new_discovery_item",
    "operation_id",
    "release_settlement_token",
    "save_run",
]


class Work(NamedTuple):
    """Names one physical delivery of run work; comes from a worker, so nothing in it is trusted."""

    kind: WorkKind
    run_id: str
    step_id: str | None
    item_id: str
    token: str
    generation: int


class Accepted(NamedTuple):
    """The settlement was accepted now."""

    code: str = ""


class Replayed(NamedTuple):
    """The same settlement had been accepted before; nothing was written."""

    code: str = ""


class Stale(NamedTuple):
    """Somebody else decided first; the run was not touched. `code` says why."""

    code: str


Verdict = Accepted | Replayed | Stale


class Loaded(NamedTuple):
    """The records a settlement decides from."""

    run: RunRecord | None
    step: StepRecord | None
    attempt: AttemptRecord | None
    item: ItemRecord | None


def direction_of(kind: WorkKind) -> Direction:
    """Return which way a kind of run work goes."""
    return Direction.COMPENSATION if kind is WorkKind.COMPENSATION else Direction.FORWARD


def attempt_key(workspace: str, work: Work) -> Key[AttemptRecord]:
    """Return the key of the attempt that `work` delivers."""
    assert work.step_id is not None
    return ATTEMPT.at(workspace, work.run_id, direction_of(work.kind), work.step_id, work.generation)


async def load_work(tx: Tx, workspace: str, work: Work) -> Loaded:
    """Load the run, step, attempt and item of a callback or compensation, the reads issued together."""
    assert work.step_id is not None
    return Loaded(
        *await tx.load(
            RUN.at(workspace, work.run_id),
            STEP.at(workspace, work.run_id, work.step_id),
            attempt_key(workspace, work),
            ITEM.at(workspace, work.item_id),
        )
    )


async def load_pass(tx: Tx, workspace: str, work: Work) -> tuple[RunRecord | None, ItemRecord | None]:
    """Load the run and item of a discovery pass."""
    return await tx.load(RUN.at(workspace, work.run_id), ITEM.at(workspace, work.item_id))


def engine_now_ms(tx: Tx, run: RunRecord) -> int:
    """Return engine time for a decision about `run`: never before its last recorded instant (FILLED-IN 11)."""
    return max(tx.now_ms, run.updated_at_ms)


def operation_id(workspace: str, run_id: str, step_id: str, direction: Direction) -> str:
    """Return the stable identity of a logical operation, the same for all its physical attempts."""
    return digest_of("ryusen.operation", workspace, run_id, step_id, direction.name)


def save_run(tx: Tx, workspace: str, before: RunRecord | None, after: RunRecord) -> None:
    """Write a run and keep the status index in step with it."""
    tx.put(RUN.at(workspace, after.run_id), after)
    if before is None or before.status != after.status:
        if before is not None:
            tx.remove(RUN_BY_STATUS.at(workspace, before.status, before.created_at_ms, before.run_id))
        tx.put(RUN_BY_STATUS.at(workspace, after.status, after.created_at_ms, after.run_id), None)


def following_pass_id(work: Work) -> str:
    """Return the id of the discovery work that follows a settled delivery: derived, so that its worker can name it too.

    The generation is part of it, because an answer names its pass by nothing but the delivery before it.
    """
    return digest_of("ryusen.following", work.item_id, work.token, str(work.generation))


def discovery_item(
    tx: Tx, workspace: str, run: RunRecord, now_ms: int, *, item_id: str | None = None, priority: int = PRIORITY_FIRST
) -> ItemRecord:
    """Enqueue the run's next discovery work, ready now, and return its item; `item_id` is minted when None."""
    item = new_discovery_item(workspace, run, now_ms, item_id or tx.ids.mint(), priority=priority)
    items.enqueue(tx, workspace, item)
    return item


def new_discovery_item(
    workspace: str, run: RunRecord, now_ms: int, item_id: str, *, priority: int = PRIORITY_FIRST
) -> ItemRecord:
    """Return the record of the run's next discovery work, not yet written."""
    return ItemRecord(
        item_id=item_id,
        kind=WorkKind.DISCOVERY,
        lane=application_lane(run.application, run.function).stored,
        target=run.run_id,
        step_id=None,
        priority=priority,
        vesting_ms=now_ms,
        ordinal=1,
        generation=run.generation,
        operation_id=digest_of("ryusen.pass", workspace, run.run_id, str(run.generation)),
        repeatable=True,
        enqueued_at_ms=now_ms,
    )


def release_settlement_token(
    tx: Tx, workspace: str, run: RunRecord, attempt: AttemptRecord, direction: Direction
) -> RunRecord:
    """Remove what an authorized or unknown attempt holds besides its item; return the run with its count of Unknown."""
    at = (run.run_id, direction, attempt.step_id, attempt.generation)
    if attempt.instance is not None:
        tx.remove(INSTANCE_WORK.at(workspace, attempt.instance, *at))
    if attempt.state is AttemptState.UNKNOWN:
        tx.remove(UNRESOLVED.at(workspace, *at))
        return msgspec.structs.replace(run, unknown_count=run.unknown_count - 1)
    return run
