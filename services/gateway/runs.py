"""Runs: lists by newest, status or function, and one run with its input and output."""

from __future__ import annotations

import msgspec

from keyspace.layout import ITEM, OUTPUT, RUN, RUN_BY_FUNCTION, RUN_BY_STATUS, RUN_LIST
from keyspace.lifecycle import Execution, Phase
from keyspace.records.blocker import BlockerRecord
from keyspace.records.run import FailureRecord, ParentRecord, RunRecord, StopRecord, UnwindRecord
from keyspace.records.wait import WaitRecord
from keyspace.records.work import ItemRecord
from keyspace.run_input import load_input
from keyspace.store.api import KeyRange
from keyspace.transitions.create_workspace import require_workspace
from keyspace.transitions.names import check_id
from keyspace.transitions.run_timer import TIMED_PHASES
from keyspace.transitions.stop_run import StopOutcome, StopReply, cancel_run
from keyspace.tx import Tx
from keyspace.waiting import waiting_for
from services.gateway.blockers import blocker_view, load_blockers
from services.gateway.cursors import ListQuery
from services.gateway.endpoints import Answer, Call, missing
from services.gateway.operator_types import Cancellation, Stop
from services.gateway.pages import PageRequest, read_rows
from services.gateway.problems import ApiProblem
from services.gateway.run_types import Deadline, Failure, Parent, Run, RunSummary, Unwind, Waiting
from services.gateway.types import Page
from services.gateway.waits import load_waits

__all__ = ["STATUSES", "cancel", "failure_view", "get_run", "list_runs", "load_run", "raw_details"]

STATUSES = tuple(phase.value for phase in Phase if phase is not Phase.TERMINAL) + tuple(
    execution.value for execution in Execution
)
"""What a run's status can be, and so what a list can be filtered by."""


async def list_runs(call: Call) -> Answer:
    """List runs, the newest first: all of them, those of one status, or those of one function."""
    status, application, function = (call.query.get(name) for name in ("status", "application", "function"))
    span = _span(call.workspace, status, application, function)
    query = ListQuery("runs", call.workspace, status or "", application or "", function or "")
    request = PageRequest.of(query, call.query)

    async def page(tx: Tx) -> Page[RunSummary]:
        await require_workspace(tx, call.workspace)
        found = await read_rows(tx, span, request, reverse=True)
        if status is None:
            ids = [value.decode() for _, value in found.rows]
        else:
            ids = [RUN_BY_STATUS.parse(key)[3] for key, _ in found.rows]
        runs = await tx.load_all([RUN.at(call.workspace, run_id) for run_id in ids], snapshot=True)
        present = [run for run in runs if run is not None]
        outstanding = [run.item_id for run in present if run.item_id is not None]
        items = await tx.load_all([ITEM.at(call.workspace, item_id) for item_id in outstanding], snapshot=True)
        by_id = dict(zip(outstanding, items, strict=True))
        blockers = await load_blockers(tx, call.workspace, present)
        outstanding_of = [(run, by_id.get(run.item_id or "")) for run in present]
        waits = await load_waits(tx, call.workspace, outstanding_of)
        shown = [
            _summary(run, _waiting(run, item, blockers.get(run.run_id), waits.get(run.run_id), tx.now_ms), tx.now_ms)
            for run, item in outstanding_of
        ]
        return Page(items=shown, next_cursor=found.next_cursor)

    return Answer(await call.transact("list_runs", page))


async def get_run(call: Call) -> Answer:
    """Answer a run with its input and output."""

    async def read(tx: Tx) -> Run:
        run = await load_run(tx, call.workspace, call.parts["run"])
        item = None
        if run.item_id is not None:
            item = await tx.load(ITEM.at(call.workspace, run.item_id), snapshot=True)
        payload = await load_input(tx, call.workspace, run)
        output = None
        if run.output_bytes is not None:
            output = await tx.load_blob(OUTPUT, call.workspace, run.run_id, size_bytes=run.output_bytes, snapshot=True)
        blockers = await load_blockers(tx, call.workspace, [run])
        blocker = blockers.get(run.run_id)
        waits = await load_waits(tx, call.workspace, [(run, item)])
        waiting = _waiting(run, item, blocker, waits.get(run.run_id), tx.now_ms)
        return _detail(run, waiting, blocker, tx.now_ms, payload, output)

    return Answer(await call.transact("get_run", read))


async def cancel(call: Call) -> Answer:
    """Commit a cancellation and say what it came to; it never claims that running work has stopped (case 020)."""
    run_id = call.parts["run"]
    reply = await call.transact(
        "cancel_run", lambda tx: cancel_run(tx, call.workspace, run_id, by=call.identity.key_id)
    )
    status = (
        reply.phase.value if reply.execution is None or reply.phase is not Phase.TERMINAL else reply.execution.value
    )
    return Answer(
        Cancellation(
            run=run_id,
            outcome=reply.outcome.value,
            phase=reply.phase.value,
            status=status,
            execution=reply.execution and reply.execution.value,
            recovery=reply.recovery and reply.recovery.value,
            settling=reply.is_settling,
            explanation=_explain(reply, status),
        )
    )


def _explain(reply: StopReply, status: str) -> str:
    if reply.outcome is StopOutcome.ALREADY_TERMINAL:
        return f"The run had already ended as {status}; nothing changed."
    if reply.outcome is StopOutcome.ALREADY_ENDING:
        return "The run's function had already failed and its completed steps are being undone; nothing changed."
    first = "It was cancelled before; nothing changed." if reply.outcome is StopOutcome.REPEATED else ""
    then = {
        Phase.TERMINAL: "The run has ended as cancelled: no completed step had to be undone.",
        Phase.COMPENSATING: "No forward work starts any more; completed steps are being undone.",
    }.get(
        reply.phase,
        "No forward work starts any more; a step that had begun, an invoked run that has not ended, or an outcome that is "
        "unknown, is still waited for.",
    )
    return f"{first} {then}".strip()


async def load_run(tx: Tx, workspace: str, run_id: str) -> RunRecord:
    """Return a run by snapshot.

    Raises:
        Refusal: `not_found`.
    """
    check_id("run", run_id)
    run = await tx.load(RUN.at(workspace, run_id), snapshot=True)
    if run is None:
        raise missing("run", run=run_id)
    return run


def failure_view(record: FailureRecord | None) -> Failure | None:
    """Return a failure as the API shows it."""
    if record is None:
        return None
    return Failure(category=record.category, message=record.message, details=raw_details(record))


def raw_details(record: FailureRecord) -> msgspec.Raw | None:
    """Return a failure's details as the JSON text they were sent as."""
    return None if record.details is None else msgspec.Raw(record.details.encode())


def _span(workspace: str, status: str | None, application: str | None, function: str | None) -> KeyRange:
    if status is not None and (application is not None or function is not None):
        raise ApiProblem("unsupported_filter", "Runs are listed by status or by function, not by both.", field="status")
    if (application is None) != (function is None):
        raise ApiProblem(
            "unsupported_filter", "A function is named by application and function together.", field="function"
        )
    if status is not None:
        if status not in STATUSES:
            raise ApiProblem(
                "invalid_query", f"status is one of {', '.join(STATUSES)}.", field="status", value=status[:80]
            )
        return RUN_BY_STATUS.span(workspace, status)
    if application is not None and function is not None:
        return RUN_BY_FUNCTION.span(workspace, application, function)
    return RUN_LIST.span(workspace)


def _waiting(
    run: RunRecord, item: ItemRecord | None, blocker: BlockerRecord | None, wait: WaitRecord | None, now_ms: int
) -> Waiting | None:
    found = waiting_for(run, item, now_ms, blocker=blocker, wait=wait)
    if found is None:
        return None
    return Waiting(word=found.word, sentence=found.sentence, since_ms=found.since_ms, until_ms=found.until_ms)


def _summary(run: RunRecord, waiting: Waiting | None, now_ms: int) -> RunSummary:
    return RunSummary(
        run=run.run_id,
        application=run.application,
        function=run.function,
        event=run.event_id or None,
        event_name=run.event_name or None,
        parent=_parent(run.parent),
        child=run.child_id,
        status=run.status,
        phase=run.phase.value,
        execution=run.execution and run.execution.value,
        recovery=run.recovery and run.recovery.value,
        created_at_ms=run.created_at_ms,
        updated_at_ms=run.updated_at_ms,
        terminal_at_ms=run.terminal_at_ms,
        step_count=run.step_count,
        unknown_count=run.unknown_count,
        failure=failure_view(run.failure),
        waiting=waiting,
        deadline=_deadline(run, now_ms),
    )


def _detail(
    run: RunRecord,
    waiting: Waiting | None,
    blocker: BlockerRecord | None,
    now_ms: int,
    payload: bytes,
    output: bytes | None,
) -> Run:
    summary = _summary(run, waiting, now_ms)
    return Run(
        **{name: getattr(summary, name) for name in summary.__struct_fields__},
        binding=run.binding or None,
        manifest_generation=run.manifest_generation,
        routing_generation=run.routing_generation,
        generation=run.generation,
        history_count=run.history_count,
        completion_count=run.completion_count,
        stop=_stop(run.stop),
        unwind=_unwind(run.unwind),
        blocker=blocker_view(blocker),
        input_bytes=run.input_bytes,
        input=msgspec.Raw(payload),
        output_bytes=run.output_bytes,
        output=None if output is None else msgspec.Raw(output),
    )


def _deadline(run: RunRecord, now_ms: int) -> Deadline | None:
    if run.deadline_at_ms is None or run.deadline_source is None:
        return None
    left_ms = max(0, run.deadline_at_ms - now_ms) if run.phase in TIMED_PHASES else None
    return Deadline(at_ms=run.deadline_at_ms, source=run.deadline_source.value, left_ms=left_ms)


def _parent(record: ParentRecord | None) -> Parent | None:
    return None if record is None else Parent(run=record.run_id, step=record.step_id, depth=record.depth)


def _stop(record: StopRecord | None) -> Stop | None:
    return None if record is None else Stop(reason=record.reason.value, at_ms=record.at_ms, by=record.by)


def _unwind(record: UnwindRecord | None) -> Unwind | None:
    if record is None:
        return None
    return Unwind(
        upper=record.upper,
        cursor=record.cursor,
        executed_count=record.executed_count,
        skipped_count=record.skipped_count,
    )
