"""Waits: a registration is in the wait index if and only if its step is pending (C9)."""

from __future__ import annotations

from keyspace.checks.report import Case, checks
from keyspace.layout import STEP, WAIT, WAIT_INDEX, WAIT_STAMP
from keyspace.lifecycle import StepKind, StepState
from keyspace.records.run import StepRecord
from keyspace.records.wait import WaitRecord, WaitRef
from keyspace.transitions.correlation import pair_of_registration

__all__ = ["check_registration"]


async def check_registration(case: Case, run_id: str, step: StepRecord) -> None:
    """A waiting step has its registration and its place in the index, which agree with its anchor."""
    ws = case.workspace
    record, stamp = await case.tx.load(
        WAIT.at(ws, run_id, step.step_id), WAIT_STAMP.at(ws, run_id, step.step_id), snapshot=True
    )
    if not case.expect(record is not None and stamp is not None, "C9", "a waiting step is not registered"):
        return
    assert record is not None and stamp is not None and step.server is not None
    ref = await case.tx.load(WAIT_INDEX.at(ws, record.event, record.pair, stamp), snapshot=True)
    case.expect(
        ref is not None
        and (ref.run_id, ref.step_id, ref.match, ref.due_at_ms)
        == (run_id, step.step_id, record.match, step.server.due_at_ms),
        "C9",
        "a waiting step is not where its stamp says in the wait index",
    )


async def _is_waiting(case: Case, run_id: str, step_id: str) -> bool:
    step = await case.tx.load(STEP.at(case.workspace, run_id, step_id), snapshot=True)
    return step is not None and (step.kind, step.state) == (StepKind.WAIT, StepState.WAITING)


@checks(WAIT)
async def check_wait(case: Case) -> None:
    """A registration belongs to a step that waits, and lies under its own first pair."""
    record: WaitRecord = case.record
    _, run_id, step_id = case.elements
    case.expect(await _is_waiting(case, run_id, step_id), "C9", "a registration whose step does not wait")
    case.expect(record.pair == pair_of_registration(record.match), "C9", "a registration under another pair")


@checks(WAIT_INDEX)
async def check_wait_index(case: Case) -> None:
    """An entry of the wait index names a registration whose companion stamp is the entry's."""
    ref: WaitRef = case.record
    ws, event, pair, stamp = case.elements
    record, own = await case.tx.load(
        WAIT.at(ws, ref.run_id, ref.step_id), WAIT_STAMP.at(ws, ref.run_id, ref.step_id), snapshot=True
    )
    case.expect(
        record is not None and (record.event, record.pair, own) == (event, pair, stamp),
        "C9",
        "the entry is not where its registration says",
    )
    case.expect(await _is_waiting(case, ref.run_id, ref.step_id), "C9", "an entry whose step does not wait")


@checks(WAIT_STAMP)
async def check_wait_stamp(case: Case) -> None:
    """A companion stamp belongs to a registration."""
    ws, run_id, step_id = case.elements
    record = await case.tx.load(WAIT.at(ws, run_id, step_id), snapshot=True)
    case.expect(record is not None, "C9", "a stamp without its registration")
