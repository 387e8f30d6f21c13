"""What an assignment carries: the run's input and every settled step, read in bounded pages by snapshot.

A run has one outstanding item, so between its lease and its settlement no transition changes what is read here.
"""

from __future__ import annotations

from typing import NamedTuple

from keyspace.layout import EVENT_PAYLOAD, STEP, STEP_VALUE
from keyspace.lifecycle import StepState
from keyspace.limits import REPLAY_BYTES_MAX, REPLAY_PAGE_KEYS
from keyspace.records.run import FailureRecord, RunRecord, StepRecord
from keyspace.store.api import KeyRange
from keyspace.tx import Tx

__all__ = ["Assignment", "SettledStep", "load_assignment"]

REPLAY_PAGES_MAX = 2 * REPLAY_BYTES_MAX // REPLAY_PAGE_KEYS


class SettledStep(NamedTuple):
    """A settled step as a pass sees it: a value, or a failure with the number of attempts it took."""

    step_id: str
    value: bytes | None
    failure: FailureRecord | None
    attempts: int


class Assignment(NamedTuple):
    """The input and the settled steps of a run; `target` is the step an effect belongs to."""

    input: bytes
    settled: list[SettledStep]
    target: StepRecord | None


async def load_assignment(tx: Tx, workspace: str, run: RunRecord, step_id: str | None) -> Assignment:
    """Load what the worker needs for a delivery of `run`: at most the run's replay budget and its input."""
    payload = await tx.load_blob(EVENT_PAYLOAD, workspace, run.event_id, size_bytes=run.input_bytes, snapshot=True)
    steps = [STEP.codec.decode(value) for _, value in await _all(tx, STEP.span(workspace, run.run_id))]
    values: dict[str, list[bytes]] = {}
    for key, value in await _all(tx, STEP_VALUE.span(workspace, run.run_id)):
        values.setdefault(STEP_VALUE.parse(key)[2], []).append(value)
    settled = [settled_step(step, values) for step in steps if step.state in (StepState.COMPLETED, StepState.FAILED)]
    target = next((step for step in steps if step.step_id == step_id), None)
    return Assignment(payload, settled, target)


def settled_step(step: StepRecord, values: dict[str, list[bytes]]) -> SettledStep:
    """Return a settled step with its value joined."""
    attempts = step.ordinal - step.first_ordinal + 1
    if step.state is StepState.COMPLETED:
        return SettledStep(step.step_id, b"".join(values.get(step.step_id, ())), None, attempts)
    return SettledStep(step.step_id, None, step.failure, attempts)


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
