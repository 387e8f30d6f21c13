"""What an assignment carries: the run's input and its settled steps in the order of settlement, read in bounded pages.

A run has one outstanding item, so between its lease and its settlement no transition changes what is read here; it is read
by snapshot. What settled once never changes, so whoever has the first steps needs only those after them.
"""

from __future__ import annotations

from typing import NamedTuple

from keyspace.errors import CorruptRecord
from keyspace.layout import SETTLED, STEP, STEP_VALUE
from keyspace.lifecycle import StepState
from keyspace.limits import CHUNK_BYTES, REPLAY_BYTES_MAX, REPLAY_PAGE_KEYS
from keyspace.records.run import FailureRecord, RunRecord, StepRecord
from keyspace.run_input import load_input
from keyspace.store.api import KeyRange
from keyspace.tx import Tx

__all__ = ["Assignment", "SettledStep", "load_assignment", "load_progress"]

REPLAY_PAGES_MAX = 2 * REPLAY_BYTES_MAX // REPLAY_PAGE_KEYS


class SettledStep(NamedTuple):
    """A settled step as a pass sees it: a value, or a failure with the number of attempts it took."""

    step_id: str
    value: bytes | None
    failure: FailureRecord | None
    attempts: int


class Assignment(NamedTuple):
    """The input and the settled steps of a run; `target` is the step an effect belongs to, with its value if completed."""

    input: bytes
    settled: list[SettledStep]
    target: StepRecord | None
    target_value: bytes | None = None


async def load_assignment(tx: Tx, workspace: str, run: RunRecord, step_id: str | None) -> Assignment:
    """Load everything the worker needs for a delivery of `run`: at most the run's replay budget and its input.

    Raises:
        CorruptRecord: the settled steps and their order do not agree.
    """
    payload = await load_input(tx, workspace, run)
    steps = {
        step.step_id: step
        for step in (STEP.codec.decode(value) for _, value in await _all(tx, STEP.span(workspace, run.run_id)))
    }
    values: dict[str, list[bytes]] = {}
    for key, value in await _all(tx, STEP_VALUE.span(workspace, run.run_id)):
        values.setdefault(STEP_VALUE.parse(key)[2], []).append(value)
    order = [SETTLED.codec.decode(value) for _, value in await _all(tx, SETTLED.span(workspace, run.run_id))]
    is_settled = {key for key, step in steps.items() if step.is_in_replay}
    if len(order) != len(is_settled) or set(order) != is_settled:
        raise CorruptRecord(record="SETTLED", reason="not the settled steps", run=run.run_id, entries=len(order))
    settled = [settled_step(steps[known], b"".join(values.get(known, ()))) for known in order]
    if step_id is None:
        return Assignment(payload, settled, None)
    found = next((step.value for step in settled if step.step_id == step_id), None)
    return Assignment(payload, settled, steps.get(step_id), found)


async def load_progress(tx: Tx, workspace: str, run: RunRecord, step_id: str | None, base: int) -> Assignment:
    """Load what `load_assignment` does, without the input and without the first `base` settled steps.

    Args:
        tx: the open transaction.
        workspace: whose run it is.
        run: the run as it was leased.
        step_id: the step an effect belongs to.
        base: settled steps that the worker has, at most the run's count.

    Raises:
        CorruptRecord: a settled step is not there.
    """
    ids: list[str] = []
    if base < run.settled_count:
        first, last = (SETTLED.at(workspace, run.run_id, number + 1).data for number in (base, run.settled_count))
        ids = [SETTLED.codec.decode(value) for _, value in await _all(tx, KeyRange(first, last))]
        if len(ids) != run.settled_count - base:
            raise CorruptRecord(record="SETTLED", reason="has a gap", run=run.run_id, entries=len(ids), base=base)
    wanted = [*ids, *([step_id] if step_id is not None else [])]
    found = await tx.load_all((STEP.at(workspace, run.run_id, one) for one in wanted), snapshot=True)
    steps = _present(run, found[: len(ids)])
    values = await _values(tx, workspace, run, steps)
    settled = [settled_step(step, values.get(step.step_id, b"")) for step in steps]
    if step_id is None:
        return Assignment(b"null", settled, None)
    target = found[-1]
    of_target = await _values(tx, workspace, run, [target]) if target is not None else {}
    return Assignment(b"null", settled, target, of_target.get(step_id))


def settled_step(step: StepRecord, value: bytes) -> SettledStep:
    """Return a settled step as a pass sees it."""
    attempts = step.ordinal - step.first_ordinal + 1
    if step.state is StepState.COMPLETED:
        return SettledStep(step.step_id, value, None, attempts)
    return SettledStep(step.step_id, None, step.failure, attempts)


def _present(run: RunRecord, steps: list[StepRecord | None]) -> list[StepRecord]:
    present = [step for step in steps if step is not None]
    if len(present) != len(steps):
        raise CorruptRecord(record="SETTLED", reason="names no step", run=run.run_id)
    return present


async def _values(tx: Tx, workspace: str, run: RunRecord, steps: list[StepRecord]) -> dict[str, bytes]:
    """Return the values of the completed ones among `steps`; those of one chunk are read together."""
    completed = {step.step_id: step.value_bytes for step in steps if step.value_bytes is not None}
    small = [step_id for step_id, size in completed.items() if size <= CHUNK_BYTES]
    chunks = await tx.load_all((STEP_VALUE.at(workspace, run.run_id, one, 0) for one in small), snapshot=True)
    values = {step_id: chunk or b"" for step_id, chunk in zip(small, chunks, strict=True)}
    for step_id, size in completed.items():
        if size > CHUNK_BYTES:
            values[step_id] = await tx.load_blob(
                STEP_VALUE, workspace, run.run_id, step_id, size_bytes=size, snapshot=True
            )
        elif len(values[step_id]) != size:
            raise CorruptRecord(
                record="STEP_VALUE", reason="not its step's size", bytes=len(values[step_id]), expected=size
            )
    return values


async def _all(tx: Tx, span: KeyRange) -> list[tuple[bytes, bytes]]:
    rows: list[tuple[bytes, bytes]] = []
    begin = span.begin
    for _ in range(REPLAY_PAGES_MAX):
        page = await tx.page(KeyRange(begin, span.end), limit=REPLAY_PAGE_KEYS, snapshot=True)
        rows += page
        if len(page) < REPLAY_PAGE_KEYS:
            break
        begin = page[-1][0] + b"\x00"
    return rows
