"""Steps and attempts: a step agrees with its present attempt, its work and its value (C1, C3, C4, C5, C6, C7, C11, C12)."""

from __future__ import annotations

from keyspace.checks.children import check_invocation
from keyspace.checks.reading import PAGE_KEYS, has_key, read_rows
from keyspace.checks.report import Case, checks
from keyspace.checks.waits import check_registration
from keyspace.layout import (
    ATTEMPT,
    CLAIM,
    INSTANCE_WORK,
    ITEM,
    RUN,
    STEP,
    STEP_VALUE,
    UNRESOLVED,
)
from keyspace.lifecycle import AttemptState, CompensationState, Phase, StepKind, StepState
from keyspace.records.run import AttemptRecord, RunRecord, StepRecord
from keyspace.records.work import Direction, WorkKind
from keyspace.transitions.emit_event import emission_claim, emitted_event_id

__all__: list[str] = []

_STEP_OF_ATTEMPT: dict[AttemptState, set[StepState]] = {
    AttemptState.QUEUED: {StepState.PENDING, StepState.BACKING_OFF},
    AttemptState.AUTHORIZED: {StepState.RUNNING},
    AttemptState.UNKNOWN: {StepState.UNKNOWN},
    AttemptState.SUCCEEDED: {StepState.COMPLETED},
    AttemptState.FAILED: {StepState.FAILED, StepState.OBSOLETE},
    AttemptState.FENCED: {StepState.OBSOLETE},
    AttemptState.RETRY_AUTHORIZED: set(),
}


@checks(STEP)
async def check_step(case: Case) -> None:
    """A step agrees with the attempt of its generation, and its value with its size."""
    step: StepRecord = case.record
    ws, run_id, step_id = case.elements
    attempt = await case.tx.load(ATTEMPT.at(ws, run_id, Direction.FORWARD, step_id, step.generation), snapshot=True)
    if step.kind.is_server_owned:
        case.expect(attempt is None, "C5", "a step that the server owns has an attempt")
        await _check_server_step(case, step)
    elif case.expect(attempt is not None, "C5", "the step's present attempt is missing") and attempt is not None:
        case.expect(
            step.state in _STEP_OF_ATTEMPT[attempt.state], "C5", f"step {step.state}, present attempt {attempt.state}"
        )
        case.expect(attempt.ordinal == step.ordinal, "C12", "step and attempt differ in ordinal")
    attempts = await read_rows(case, ATTEMPT.span(ws, run_id, Direction.FORWARD, step_id))
    generations = [ATTEMPT.parse(key)[-1] for key, _ in attempts]
    # Each life of a step under the server took a generation and no ordinal.
    case.expect(len(generations) == step.ordinal, "C12", "the attempts are not as many as their ordinal")
    if step.ordinal == step.generation:
        case.expect(generations == list(range(1, step.generation + 1)), "C12", "the attempts' generations have a gap")
    undone = await read_rows(case, ATTEMPT.span(ws, run_id, Direction.COMPENSATION, step_id))
    is_reached = step.compensation is not CompensationState.NONE
    case.expect(bool(undone) == is_reached, "C5", "the compensation and its attempts do not agree")
    rows = await case.tx.page(STEP_VALUE.span(ws, run_id, step_id), limit=PAGE_KEYS, snapshot=True)
    if step.state is StepState.COMPLETED:
        size = sum(len(value) for _, value in rows)
        case.expect(size == step.value_bytes, "C1", "the value's chunks do not add up")
    else:
        case.expect(not rows, "C5", "a step that is not completed has a value")


async def _check_server_step(case: Case, step: StepRecord) -> None:
    """A waiting timer has its anchor and its work, vested at it; a settled or fenced one has neither work nor completion."""
    case.expect(step.completion is None and not step.compensable, "C4", "a step that the server owns is in the unwind")
    if not case.expect(step.server is not None, "C5", "the facts of a step that the server owns are missing"):
        return
    assert step.server is not None
    run_id = case.elements[1]
    run = await case.tx.load(RUN.at(case.workspace, run_id), snapshot=True)
    if step.kind is StepKind.EMISSION and run is not None:
        await _check_emission(case, run, step)
    if step.kind is StepKind.CHILD:
        await check_invocation(case, run, step)
    if step.state is not StepState.WAITING:
        case.expect(step.server.item_id is None, "C4", "a settled step owns work")
        return
    phases = (Phase.RUNNING, Phase.CANCELLING) if step.kind is StepKind.CHILD else (Phase.RUNNING,)
    case.expect(run is not None and run.phase in phases, "C4", "a run that does not go forward has a waiting step")
    if step.kind is StepKind.CHILD:
        return
    if not case.expect(step.server.item_id is not None, "C3", "a waiting step has no work"):
        return
    assert step.server.item_id is not None
    item = await case.tx.load(ITEM.at(case.workspace, step.server.item_id), snapshot=True)
    case.expect(
        item is not None
        and item.kind is WorkKind.TIMER
        and (item.target, item.step_id, item.vesting_ms) == (run_id, step.step_id, step.server.due_at_ms),
        "C3",
        "a waiting step's work is not there, or not at its anchor",
    )
    if step.kind is StepKind.WAIT:
        await check_registration(case, run_id, step)


async def _check_emission(case: Case, run: RunRecord, step: StepRecord) -> None:
    """An emission is settled with its event, and its claim lives as long as its run."""
    event_id = emitted_event_id(case.workspace, run, step.step_id)
    claimed = emission_claim(case.workspace, run, step.step_id)
    claim = await case.tx.load(CLAIM.at(case.workspace, claimed.operation.value, claimed.digest), snapshot=True)
    case.expect(step.state is StepState.COMPLETED, "C1", "an emission that is not settled")
    case.expect(
        step.server is not None and step.server.event_id == event_id, "C11", "an emission of another event than its own"
    )
    case.expect(claim is not None and claim.event_id == event_id, "C11", "an emission without its claim")


@checks(ATTEMPT)
async def check_attempt(case: Case) -> None:
    """An attempt agrees with its work item and with what it holds."""
    attempt: AttemptRecord = case.record
    ws, run_id, direction, step_id, generation = case.elements
    at = (run_id, direction, step_id, generation)
    item = await case.tx.load(ITEM.at(ws, attempt.item_id), snapshot=True)
    wants_item = attempt.state in (AttemptState.QUEUED, AttemptState.AUTHORIZED)
    case.expect(
        (item is not None) == wants_item, "C3", f"attempt {attempt.state}, its item {'there' if item else 'gone'}"
    )
    if item is not None:
        case.expect(
            (item.target, item.step_id, item.generation, item.ordinal, item.operation_id)
            == (run_id, step_id, generation, attempt.ordinal, attempt.operation_id),
            "C5",
            "attempt and item do not name each other",
        )
        step = await case.tx.load(STEP.at(ws, run_id, step_id), snapshot=True)
        case.expect(
            step is not None and item.repeatable == step.is_repeatable(Direction(direction)),
            "C6",
            "the item is not of the class that its step was declared in",
        )
    unresolved = await has_key(case, UNRESOLVED.at(ws, *at))
    case.expect(unresolved == (attempt.state is AttemptState.UNKNOWN), "C7", "the unresolved index does not agree")
    # One whose redelivery was withdrawn is nobody's: no worker can prove any more that it never began.
    is_withdrawn = attempt.state is AttemptState.UNKNOWN and attempt.loss_count > 0
    if attempt.state in (AttemptState.AUTHORIZED, AttemptState.UNKNOWN):
        case.expect(
            is_withdrawn or (attempt.token is not None and attempt.instance is not None),
            "C6",
            "an authorized attempt without holder",
        )
        if attempt.instance is None:
            return
        held = await case.tx.load(INSTANCE_WORK.at(ws, attempt.instance, *at), snapshot=True)
        case.expect(
            held == attempt.token or (is_withdrawn and held is None), "C7", "the instance's work index does not agree"
        )


@checks(UNRESOLVED)
async def check_unresolved(case: Case) -> None:
    """An unresolved entry names an Unknown attempt."""
    ws, *at = case.elements
    attempt = await case.tx.load(ATTEMPT.at(ws, *at), snapshot=True)
    case.expect(attempt is not None and attempt.state is AttemptState.UNKNOWN, "C7", "no Unknown attempt is there")


@checks(INSTANCE_WORK)
async def check_instance_work(case: Case) -> None:
    """An instance's work entry names an attempt that holds its token."""
    ws, instance, *at = case.elements
    attempt = await case.tx.load(ATTEMPT.at(ws, *at), snapshot=True)
    case.expect(
        attempt is not None
        and attempt.state in (AttemptState.AUTHORIZED, AttemptState.UNKNOWN)
        and (attempt.instance, attempt.token) == (instance, case.record),
        "C7",
        "no such attempt holds this token",
    )
