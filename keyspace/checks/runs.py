"""Runs: a way forward, settled once, indexed both ways (C1, C3, C4, C6, C7, C10, C11)."""

from __future__ import annotations

from keyspace.checks.blockers import check_blocked_run
from keyspace.checks.children import check_family
from keyspace.checks.history import check_told
from keyspace.checks.reading import has_key, read_rows
from keyspace.checks.report import Case, checks
from keyspace.layout import (
    ITEM,
    OUTPUT,
    RUN,
    RUN_BY_FUNCTION,
    RUN_BY_STATUS,
    RUN_LIST,
    RUN_STAMP,
    STEP,
)
from keyspace.lifecycle import Phase
from keyspace.records.run import RunRecord
from keyspace.records.work import LaneKind, WorkKind
from keyspace.transitions.run_timer import TIMED_PHASES

__all__: list[str] = []


@checks(RUN)
async def check_run(case: Case) -> None:
    """Everything that can be said of a run from its own keys and indexes."""
    run: RunRecord = case.record
    case.report.run_count += 1
    case.expect(run.run_id == case.elements[1], "C11", "the record names another run")
    steps = {
        record.step_id: record
        for record in (STEP.codec.decode(v) for _, v in await read_rows(case, STEP.span(case.workspace, run.run_id)))
    }
    await _check_indexes(case, run)
    await _check_way_forward(case, run)
    await _check_timer(case, run)
    await check_family(case, run)
    await check_told(case, run, steps)
    _check_outcomes(case, run)
    if run.output_bytes is not None:
        chunks = await read_rows(case, OUTPUT.span(case.workspace, run.run_id))
        case.expect(sum(len(v) for _, v in chunks) == run.output_bytes, "C1", "the output's chunks do not add up")


async def _check_indexes(case: Case, run: RunRecord) -> None:
    ws = case.workspace
    stamp = await case.tx.load(RUN_STAMP.at(ws, run.run_id), snapshot=True)
    if case.expect(stamp is not None, "C7", "the companion stamp is missing") and stamp is not None:
        listed, by_function = await case.tx.load(
            RUN_LIST.at(ws, stamp), RUN_BY_FUNCTION.at(ws, run.application, run.function, stamp), snapshot=True
        )
        case.expect(listed == run.run_id, "C7", "the run is not at its place in the list")
        case.expect(by_function == run.run_id, "C7", "the run is not listed under its function")
    key = RUN_BY_STATUS.at(ws, run.status, run.created_at_ms, run.run_id)
    case.expect(await has_key(case, key), "C7", "the run is not listed under its status")


async def _check_way_forward(case: Case, run: RunRecord) -> None:
    if run.phase is Phase.TERMINAL:
        case.expect(run.item_id is None, "C4", "a terminal run owns work")
        case.expect(run.unknown_count == 0, "C4", "a terminal run holds a settlement token")
        case.expect(run.child_id is None, "C10", "a terminal run has a child that has not been settled")
        return
    if run.item_id is not None:
        item = await case.tx.load(ITEM.at(case.workspace, run.item_id), snapshot=True)
        case.expect(item is not None and item.target == run.run_id, "C3", "the run's work item does not exist")
        is_pass = item is None or item.kind is WorkKind.DISCOVERY
        case.expect(is_pass or run.phase is not Phase.DEFINITION_BLOCKED, "C6", "a blocked run has forward work")
    if run.phase is Phase.DEFINITION_BLOCKED:
        await check_blocked_run(case, run)
        return
    if run.item_id is not None:
        return
    case.expect(run.unknown_count > 0 or run.child_id is not None, "C3", "the run has no way forward")


async def _check_timer(case: Case, run: RunRecord) -> None:
    """A run that a deadline can still end has its timer, vested at that instant; no other run has one."""
    case.expect((run.deadline_at_ms is None) == (run.deadline_source is None), "C3", "a deadline without its source")
    if run.deadline_at_ms is None or run.phase not in TIMED_PHASES:
        case.expect(run.timeout_item is None, "C4", "a run that no deadline can end owns a timer")
        return
    if not case.expect(run.timeout_item is not None, "C3", "a run with a deadline has no timer"):
        return
    item = await case.tx.load(ITEM.at(case.workspace, run.timeout_item), snapshot=True)
    case.expect(
        item is not None
        and (item.kind, item.target) == (WorkKind.RUN_TIMEOUT, run.run_id)
        # Later than its instant only when its firing failed and was put off.
        and item.vesting_ms >= run.deadline_at_ms
        and item.where.kind is LaneKind.TIME,
        "C3",
        "the run's timer does not vest at its deadline",
    )


def _check_outcomes(case: Case, run: RunRecord) -> None:
    is_terminal = run.phase is Phase.TERMINAL
    if run.stop is not None and run.execution is not None:
        case.expect(run.execution is run.stop.reason.execution, "C4", "the execution outcome is not the stop's")
    case.expect(run.phase is not Phase.CANCELLING or run.stop is not None, "C4", "a stopping run without a stop")
    case.expect(
        (run.recovery is not None) == is_terminal, "C4", "the recovery outcome is set when the run ends, not else"
    )
    case.expect(
        (run.terminal_at_ms is not None) == is_terminal, "C4", "the end's instant is set when the run ends, not else"
    )
    if is_terminal or run.phase is Phase.COMPENSATING:
        case.expect(run.execution is not None, "C4", "the execution outcome is missing")
    if run.phase is Phase.COMPENSATING:
        case.expect(run.unwind is not None and run.unwind.cursor > 0, "C3", "an unwind without a target")


@checks(RUN_LIST)
async def check_run_list(case: Case) -> None:
    """A list entry names a run whose companion stamp is the entry's."""
    stamp = await case.tx.load(RUN_STAMP.at(case.workspace, case.record), snapshot=True)
    case.expect(stamp == case.elements[1], "C7", "the entry is not where its run's stamp says")


@checks(RUN_BY_FUNCTION)
async def check_run_by_function(case: Case) -> None:
    """A function's entry names a run of that function at its stamp."""
    ws, application, function, entry = case.elements
    run, stamp = await case.tx.load(RUN.at(ws, case.record), RUN_STAMP.at(ws, case.record), snapshot=True)
    case.expect(
        run is not None and (run.application, run.function, stamp) == (application, function, entry),
        "C7",
        "the entry is not where its run belongs",
    )


@checks(RUN_BY_STATUS)
async def check_run_by_status(case: Case) -> None:
    """A status entry names a run that has that status."""
    ws, status, created_at_ms, run_id = case.elements
    run = await case.tx.load(RUN.at(ws, run_id), snapshot=True)
    case.expect(
        run is not None and (run.status, run.created_at_ms) == (status, created_at_ms),
        "C7",
        "the run has another status",
    )
