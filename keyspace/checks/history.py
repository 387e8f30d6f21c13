"""What a run tells of itself: its completions, its replay, its failed steps and its history (C7, C8, C12)."""

from __future__ import annotations

from keyspace.checks.reading import read_rows
from keyspace.checks.report import Case
from keyspace.explain import explain
from keyspace.layout import (
    COMPLETION,
    FAILED,
    HISTORY,
    SETTLED,
)
from keyspace.lifecycle import CompensationState, Phase, StepState
from keyspace.limits import REPLAY_STEP_BYTES, STEPS_MAX
from keyspace.records.run import RunRecord, StepRecord
from keyspace.transitions.blockers import blocker_key

__all__ = ["check_told"]

_HISTORY_PER_STEP_MAX = 64


async def check_told(case: Case, run: RunRecord, steps: dict[str, StepRecord]) -> None:
    """A run's completions, replay, failed steps and history agree with its steps and with itself."""
    await _check_completions(case, run, steps)
    await _check_replay(case, run, steps)
    await _check_failed(case, run, steps)
    await _check_history(case, run, steps)


async def _check_completions(case: Case, run: RunRecord, steps: dict[str, StepRecord]) -> None:
    rows = await read_rows(case, COMPLETION.span(case.workspace, run.run_id))
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
    rows = await read_rows(case, SETTLED.span(case.workspace, run.run_id))
    ordinals = [SETTLED.parse(key)[2] for key, _ in rows]
    case.expect(ordinals == list(range(1, run.settled_count + 1)), "C12", "the replay's ordinals have a gap")
    told = [SETTLED.codec.decode(value) for _, value in rows]
    settled = [s for s in steps.values() if s.is_in_replay]
    case.expect(sorted(told) == sorted(s.step_id for s in settled), "C7", "the replay and the settled steps differ")
    instants = [steps[step_id].settled_at_ms or 0 for step_id in told if step_id in steps]
    case.expect(instants == sorted(instants), "C12", "the replay is not in the order of settlement")


async def _check_failed(case: Case, run: RunRecord, steps: dict[str, StepRecord]) -> None:
    rows = await read_rows(case, FAILED.span(case.workspace, run.run_id))
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
    rows = await read_rows(case, HISTORY.span(case.workspace, run.run_id))
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
