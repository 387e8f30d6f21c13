"""Runs: a way forward, settled once, explained by history, indexed both ways (C3, C4, C5, C7, C8, C12)."""

from __future__ import annotations

from typing import Any

from keyspace.checks.blockers import check_blocked_run
from keyspace.checks.children import check_family, check_invocation
from keyspace.checks.report import Case, checks
from keyspace.checks.waits import check_registration
from keyspace.explain import explain
from keyspace.layout import (
    ATTEMPT,
    CLAIM,
    COMPLETION,
    FAILED,
    HISTORY,
    INSTANCE_WORK,
    ITEM,
    OUTPUT,
    RUN,
    RUN_BY_FUNCTION,
    RUN_BY_STATUS,
    RUN_LIST,
    RUN_STAMP,
    SETTLED,
    STEP,
    STEP_VALUE,
    UNRESOLVED,
)
from keyspace.lifecycle import AttemptState, CompensationState, Phase, StepKind, StepState
from keyspace.limits import REPLAY_STEP_BYTES, STEPS_MAX
from keyspace.records.run import AttemptRecord, RunRecord, StepRecord
from keyspace.records.work import Direction, LaneKind, WorkKind
from keyspace.store.api import KeyRange
from keyspace.transitions.blockers import blocker_key
from keyspace.transitions.emit_event import emission_claim, emitted_event_id
from keyspace.transitions.run_timer import TIMED_PHASES

__all__: list[str] = []

PAGE_KEYS = 1_000
PAGES_MAX = 200
_HISTORY_PER_STEP_MAX = 64


async def _rows(case: Case, span: KeyRange) -> list[tuple[bytes, bytes]]:
    rows: list[tuple[bytes, bytes]] = []
    begin = span.begin
    for _ in range(PAGES_MAX):
        page = await case.tx.page(KeyRange(begin, span.end), limit=PAGE_KEYS, snapshot=True)
        rows += page
        if len(page) < PAGE_KEYS:
            return rows
        begin = page[-1][0] + b"\x00"
    case.expect(False, "C8", "the run has more keys than any run may have")
    return rows


@checks(RUN)
async def check_run(case: Case) -> None:
    """Everything that can be said of a run from its own keys and indexes."""
    run: RunRecord = case.record
    case.report.run_count += 1
    case.expect(run.run_id == case.elements[1], "C11", "the record names another run")
    steps = {
        record.step_id: record
        for record in (STEP.codec.decode(v) for _, v in await _rows(case, STEP.span(case.workspace, run.run_id)))
    }
    await _check_indexes(case, run)
    await _check_way_forward(case, run)
    await _check_timer(case, run)
    await check_family(case, run)
    await _check_completions(case, run, steps)
    await _check_replay(case, run, steps)
    await _check_failed(case, run, steps)
    await _check_history(case, run, steps)
    _check_outcomes(case, run)
    if run.output_bytes is not None:
        chunks = await _rows(case, OUTPUT.span(case.workspace, run.run_id))
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
    rows = await case.tx.page(KeyRange(key.data, key.data + b"\x00"), limit=1, snapshot=True)
    case.expect(rows, "C7", "the run is not listed under its status")


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


async def _check_completions(case: Case, run: RunRecord, steps: dict[str, StepRecord]) -> None:
    rows = await _rows(case, COMPLETION.span(case.workspace, run.run_id))
    ordinals = [COMPLETION.parse(key)[2] for key, _ in rows]
    case.expect(ordinals == list(range(1, run.completion_count + 1)), "C12", "completion ordinals have a gap")
    for ordinal, (_, value) in zip(ordinals, rows, strict=True):
        step = steps.get(value.decode())
        case.expect(
            step is not None and step.state is StepState.COMPLETED and step.completion == ordinal,
            "C7",
            f"completion {ordinal} names a step that does not agree",
        )
    completed = sum(1 for s in steps.values() if s.state is StepState.COMPLETED and not s.kind.is_server_owned)
    case.expect(completed == run.completion_count, "C7", "completed steps and completions differ in number")
    case.expect(len(steps) == run.step_count, "C7", "the step count is not the number of steps")
    case.expect(run.replay_bytes == _replay_bytes(steps), "C7", "the replay bytes are not what the steps weigh")


async def _check_replay(case: Case, run: RunRecord, steps: dict[str, StepRecord]) -> None:
    rows = await _rows(case, SETTLED.span(case.workspace, run.run_id))
    ordinals = [SETTLED.parse(key)[2] for key, _ in rows]
    case.expect(ordinals == list(range(1, run.settled_count + 1)), "C12", "the replay's ordinals have a gap")
    told = [SETTLED.codec.decode(value) for _, value in rows]
    settled = [s for s in steps.values() if s.is_in_replay]
    case.expect(sorted(told) == sorted(s.step_id for s in settled), "C7", "the replay and the settled steps differ")
    instants = [steps[step_id].settled_at_ms or 0 for step_id in told if step_id in steps]
    case.expect(instants == sorted(instants), "C12", "the replay is not in the order of settlement")


async def _check_failed(case: Case, run: RunRecord, steps: dict[str, StepRecord]) -> None:
    rows = await _rows(case, FAILED.span(case.workspace, run.run_id))
    listed = {FAILED.parse(key)[2]: FAILED.codec.decode(value) for key, value in rows}
    failed = {step.step_id for step in steps.values() if step.state is StepState.FAILED}
    case.expect(set(listed) == failed, "C7", "the list of failed steps does not agree with them")
    said = (run.failed_count, run.failed_bytes)
    case.expect(
        said == (len(listed), sum(listed.values())), "C7", "the count of failed steps, or of their bytes, is off"
    )


def _replay_bytes(steps: dict[str, StepRecord]) -> int:
    total = 0
    for step in steps.values():
        if step.state is StepState.COMPLETED:
            total += (step.value_bytes or 0) + len(step.step_id.encode()) + REPLAY_STEP_BYTES
        elif step.failure is not None:
            total += len(step.failure.message.encode()) + len((step.failure.details or "").encode())
            total += len(step.step_id.encode()) + REPLAY_STEP_BYTES
    return total


async def _check_history(case: Case, run: RunRecord, steps: dict[str, StepRecord]) -> None:
    rows = await _rows(case, HISTORY.span(case.workspace, run.run_id))
    ordinals = [HISTORY.parse(key)[2] for key, _ in rows]
    if not case.expect(ordinals == list(range(1, run.history_count + 1)), "C12", "history ordinals have a gap"):
        return
    entries = [HISTORY.codec.decode(value) for _, value in rows]
    instants = [entry.at_ms for entry in entries]
    case.expect(instants == sorted(instants), "C12", "history goes back in time")
    case.expect(len(entries) <= (STEPS_MAX + 1) * _HISTORY_PER_STEP_MAX, "C8", "the history is longer than any may be")
    story = explain(entries)
    case.expect(story.phase is run.phase, "C8", f"history says {story.phase}, the run {run.phase}")
    case.expect(story.execution is run.execution, "C8", f"history says {story.execution}, the run {run.execution}")
    case.expect(story.recovery is run.recovery, "C8", f"history says {story.recovery}, the run {run.recovery}")
    case.expect(story.stop == (run.stop.reason if run.stop else None), "C8", "history and run differ in the stop")
    case.expect(
        (story.deadline_at_ms, story.deadline_source) == (run.deadline_at_ms, run.deadline_source),
        "C8",
        "history and run differ in the deadline",
    )
    if run.phase is Phase.DEFINITION_BLOCKED or story.blocked is not None:
        blocker = await case.tx.load(blocker_key(case.workspace, run.run_id), snapshot=True)
        blocked = None if blocker is None else blocker.step_id
        case.expect(
            story.blocked == blocked, "C8", f"history says {story.blocked} is duplicated, the blocker {blocked}"
        )
    case.expect(story.unknown_count == run.unknown_count, "C8", "history and run differ in unknown attempts")
    told = {step_id: state.value for step_id, state in story.steps.items()}
    case.expect(told == {k: s.state.value for k, s in steps.items()}, "C8", "history and steps differ")
    undone = {k: s.compensation.value for k, s in steps.items() if s.compensation is not CompensationState.NONE}
    case.expect(
        undone == {k: s.value for k, s in story.compensations.items()}, "C8", "history and compensations differ"
    )


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
    attempts = await _rows(case, ATTEMPT.span(ws, run_id, Direction.FORWARD, step_id))
    generations = [ATTEMPT.parse(key)[-1] for key, _ in attempts]
    # Each life of a step under the server took a generation and no ordinal.
    case.expect(len(generations) == step.ordinal, "C12", "the attempts are not as many as their ordinal")
    if step.ordinal == step.generation:
        case.expect(generations == list(range(1, step.generation + 1)), "C12", "the attempts' generations have a gap")
    undone = await _rows(case, ATTEMPT.span(ws, run_id, Direction.COMPENSATION, step_id))
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
    unresolved = await _has(case, UNRESOLVED.at(ws, *at))
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


async def _has(case: Case, key: Any) -> bool:
    return bool(await case.tx.page(KeyRange(key.data, key.data + b"\x00"), limit=1, snapshot=True))


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
