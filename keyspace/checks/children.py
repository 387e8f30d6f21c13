"""Parents and children: each names the other, and one ends before the other does (C3, C4, C10, C11)."""

from __future__ import annotations

from keyspace.checks.report import Case, checks
from keyspace.layout import ITEM, RUN, RUN_INPUT, STEP
from keyspace.lifecycle import Execution, Phase, StepKind, StepState
from keyspace.limits import CHILD_DEPTH_MAX, PAYLOAD_BYTES_MAX, chunk_count_max
from keyspace.records.run import RunRecord, StepRecord
from keyspace.records.work import ItemRecord, LaneKind, WorkKind
from keyspace.transitions.child_work import settle_item_id, stop_item_id
from keyspace.transitions.declare_child import child_identity

__all__ = ["check_child_work", "check_family", "check_invocation"]


async def check_family(case: Case, run: RunRecord) -> None:
    """A run's outstanding child is its own, and can settle it; a child has its input, and a parent that records it."""
    if run.child_id is not None:
        await _check_child(case, run, run.child_id)
    chunks = await case.tx.page(
        RUN_INPUT.span(case.workspace, run.run_id), limit=chunk_count_max(PAYLOAD_BYTES_MAX) + 1, snapshot=True
    )
    if run.parent is None:
        case.expect(
            not chunks and bool(run.event_id), "C8", "a run without a parent has an input of its own, or no event"
        )
        return
    case.expect(not run.event_id, "C8", "a child run names an event")
    case.expect(sum(len(value) for _, value in chunks) == run.input_bytes, "C1", "the input's chunks do not add up")
    case.expect(1 <= run.parent.depth <= CHILD_DEPTH_MAX, "C10", "a chain of invocations is too deep")
    identity = child_identity(case.workspace, run.application, run.parent.run_id, run.parent.step_id)
    case.expect(identity == run.run_id, "C11", "the child's identity is not the derived one")
    parent, step = await case.tx.load(
        RUN.at(case.workspace, run.parent.run_id),
        STEP.at(case.workspace, run.parent.run_id, run.parent.step_id),
        snapshot=True,
    )
    is_recorded = step is not None and step.server is not None and step.server.child_id == run.run_id
    case.expect(is_recorded, "C10", "a child that its parent's step does not record")
    depth = 1 if parent is None or parent.parent is None else parent.parent.depth + 1
    case.expect(depth == run.parent.depth, "C10", "a child is not one deeper than its parent")
    if run.phase is not Phase.TERMINAL:
        case.expect(
            parent is not None and parent.phase is not Phase.TERMINAL and parent.child_id == run.run_id,
            "C10",
            "a parent does not wait for its child",
        )


async def _check_child(case: Case, run: RunRecord, child_id: str) -> None:
    child, step = await case.tx.load(
        RUN.at(case.workspace, child_id), STEP.at(case.workspace, run.run_id, run.step_id or ""), snapshot=True
    )
    case.expect(
        step is not None and (step.kind, step.state) == (StepKind.CHILD, StepState.WAITING),
        "C10",
        "a run waits for a child without a step that does",
    )
    if not case.expect(child is not None, "C10", "the child that a run waits for does not exist") or child is None:
        return
    case.expect(
        child.parent is not None and (child.parent.run_id, child.parent.step_id) == (run.run_id, run.step_id),
        "C10",
        "the child that a run waits for is another's",
    )
    settling, stopping = await case.tx.load(
        ITEM.at(case.workspace, settle_item_id(child_id)),
        ITEM.at(case.workspace, stop_item_id(child_id)),
        snapshot=True,
    )
    has_ended = child.phase is Phase.TERMINAL
    case.expect((settling is not None) == has_ended, "C3", "a child's end and the work that settles it do not agree")
    if run.stop is not None and not has_ended:
        case.expect(
            stopping is not None or child.stop is not None or child.execution is not None,
            "C3",
            "a stop did not reach the child",
        )


async def check_invocation(case: Case, run: RunRecord | None, step: StepRecord) -> None:
    """An invocation names the child that exists for it; a settled one says what its child came to."""
    assert step.server is not None
    child_id = step.server.child_id
    if step.state is StepState.WAITING:
        case.expect(
            run is not None and run.child_id is not None and run.child_id == child_id,
            "C10",
            "a waiting invocation and its run name different children",
        )
    child = None if child_id is None else await case.tx.load(RUN.at(case.workspace, child_id), snapshot=True)
    if not case.expect(child is not None, "C10", "an invocation without its child") or child is None or run is None:
        return
    case.expect(
        child.parent is not None and (child.parent.run_id, child.parent.step_id) == (run.run_id, step.step_id),
        "C10",
        "an invocation names a run that it did not create",
    )
    if step.state is StepState.COMPLETED:
        case.expect(child.execution is Execution.COMPLETED, "C1", "a success that the child did not have")
    if step.state is not StepState.WAITING:
        case.expect(child.phase is Phase.TERMINAL, "C10", "an invocation was settled before its child had ended")


@checks(RUN_INPUT)
async def check_run_input(case: Case) -> None:
    """An input belongs to a child run."""
    run = await case.tx.load(RUN.at(case.workspace, case.elements[1]), snapshot=True)
    case.expect(run is not None and run.parent is not None, "C7", "an input of no child run")


async def check_child_work(case: Case, item: ItemRecord) -> None:
    """A settlement belongs to a parent whose child has ended, a stop on its way to a child that has not."""
    case.expect(item.where.kind is LaneKind.SETTLE, "C7", "work between runs is not in its lane")
    run = await case.tx.load(RUN.at(case.workspace, item.target), snapshot=True)
    if not case.expect(run is not None, "C4", "work between runs whose run does not exist") or run is None:
        return
    if item.kind is WorkKind.CHILD_SETTLE:
        is_owned = run.child_id is not None and item.item_id == settle_item_id(run.child_id)
        case.expect(is_owned and item.step_id == run.step_id, "C4", "a settlement of no outstanding child")
        return
    is_owned = run.parent is not None and item.item_id == stop_item_id(run.run_id)
    case.expect(is_owned and run.phase is not Phase.TERMINAL, "C4", "a stop for a run that has ended, or is no child")
    parent = (
        None if run.parent is None else await case.tx.load(RUN.at(case.workspace, run.parent.run_id), snapshot=True)
    )
    case.expect(parent is not None and parent.stop is not None, "C8", "a stop that no parent committed")
