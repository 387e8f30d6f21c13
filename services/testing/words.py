"""A run's history as sentences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from keyspace.history import HistoryKind
from keyspace.lifecycle import StepKind
from services.runtime.spans import shown_ms

__all__ = ["sentence"]

Data = dict[str, Any]


def sentence(kind: str, data: Data, at_ms: int) -> str:
    """Return what a history entry tells.

    Args:
        kind: the entry's kind.
        data: what it holds.
        at_ms: its instant, Unix epoch milliseconds.
    """
    tell = _SENTENCES.get(kind)
    return kind if tell is None else tell(data, at_ms)


def _failure(data: Data) -> str:
    failure = data["failure"]
    return f"{failure['category']}: {failure['message']}"


def _attempt(data: Data) -> str:
    what = "the compensator of step" if data.get("direction") == "compensation" else "step"
    return f"attempt {data['attempt']} of {what} {data['step']!r}"


def _created(data: Data, at_ms: int) -> str:
    deadline_at_ms = data.get("deadline_at_ms")
    within = "" if deadline_at_ms is None else f"; it may take {shown_ms(deadline_at_ms - at_ms)}"
    invoked = f", invoked by step {data['parent_step']!r} of run {data['parent']}" if "parent" in data else ""
    return f"the run of {data['function']} was created{invoked}{within}"


def _declared(data: Data, at_ms: int) -> str:
    step = f"step {data['step']!r}"
    if data.get("kind") == StepKind.TIMER:
        return f"{step} sleeps for {shown_ms(max(0, data['due_at_ms'] - at_ms))}"
    if data.get("kind") == StepKind.EMISSION:
        return f"{step} emits event {data['event']}"
    if data.get("kind") == StepKind.CHILD:
        return f"{step} invoked run {data['child']}"
    if data.get("kind") == StepKind.WAIT:
        return f"{step} waits for an event {data['awaits']}, for {shown_ms(max(0, data['due_at_ms'] - at_ms))} at most"
    return f"{step} was declared"


def _completed(data: Data, _: int) -> str:
    step = f"step {data['step']!r}"
    if data.get("kind") == StepKind.TIMER:
        return f"{step} woke"
    if data.get("kind") == StepKind.EMISSION:
        return f"{step} has emitted its event"
    if data.get("kind") == StepKind.CHILD:
        return f"{step} has what run {data['child']} returned"
    if data.get("kind") == StepKind.WAIT:
        return f"{step} has what event {data['event']} brought"
    return f"{step} completed at attempt {data['attempt']}"


def _failed(data: Data, _: int) -> str:
    step = f"step {data['step']!r}"
    if data.get("kind") == StepKind.CHILD:
        return f"{step} failed by what run {data['child']} came to: {data['category']}"
    if data.get("kind") == StepKind.WAIT:
        return f"{step} failed without an event it could take: {data['category']}"
    return f"{step} failed for good after {data['attempts']} attempts"


def _places(data: Data) -> str:
    places = [data["first"]["location"], data["duplicate"]["location"]]
    return f", at {places[0]} and at {places[1]}" if all(places) else ""


_SENTENCES: dict[str, Callable[[Data, int], str]] = {
    HistoryKind.RUN_CREATED: _created,
    HistoryKind.PASS_AUTHORIZED: lambda data, _: f"pass {data['pass']} went to a worker",
    HistoryKind.PASS_LOST: lambda data, at_ms: (
        f"a pass was lost with its worker; it is eligible again in {shown_ms(max(0, data['eligible_at_ms'] - at_ms))}"
    ),
    HistoryKind.STEP_DECLARED: _declared,
    HistoryKind.DECLARATION_REPEATED: lambda data, _: (
        f"step {data['step']!r} was declared again; what was recorded stands"
    ),
    HistoryKind.EMISSION_REPLAYED: lambda data, _: (
        f"step {data['step']!r} was declared again; the event that it had emitted, {data['event']}, stands"
    ),
    HistoryKind.ATTEMPT_AUTHORIZED: lambda data, _: f"{_attempt(data)} started",
    HistoryKind.ATTEMPT_FAILED: lambda data, _: f"{_attempt(data)} failed: {_failure(data)}",
    HistoryKind.ATTEMPT_UNKNOWN: lambda data, _: f"{_attempt(data)} is Unknown: its worker was lost while it ran",
    HistoryKind.ATTEMPT_REDELIVERED: lambda data, at_ms: (
        f"{_attempt(data)} was lost with its worker; it may be repeated, in {shown_ms(max(0, data['eligible_at_ms'] - at_ms))}"
    ),
    HistoryKind.ATTEMPT_NOT_STARTED: lambda data, _: f"{_attempt(data)} had not started; it is queued again",
    HistoryKind.RETRY_SCHEDULED: lambda data, at_ms: (
        f"{_attempt(data)} is due in {shown_ms(max(0, data['eligible_at_ms'] - at_ms))}"
    ),
    HistoryKind.STEP_COMPLETED: _completed,
    HistoryKind.STEP_FAILED: _failed,
    HistoryKind.STEP_OBSOLETE: lambda data, _: f"step {data['step']!r} is no longer in the code",
    HistoryKind.STEP_FENCED: lambda data, _: f"step {data['step']!r} will not start: the run is being stopped",
    HistoryKind.ATTEMPT_RESOLVED: lambda data, _: f"{_attempt(data)} was settled by an operator: {data['command']}",
    HistoryKind.RETRY_AUTHORIZED: lambda data, _: f"{_attempt(data)} was authorized by an operator",
    HistoryKind.STOP_COMMITTED: lambda data, _: (
        "the run's time is over" if data["by"] == "deadline" else f"the run was told to stop: {data['reason']}"
    ),
    HistoryKind.RUN_COMPLETED: lambda data, _: "the run completed",
    HistoryKind.RUN_FAILED: lambda data, _: f"the run failed: {_failure(data)}",
    HistoryKind.COMPENSATION_NOT_REQUIRED: lambda data, _: "nothing had to be undone",
    HistoryKind.UNWIND_STARTED: lambda data, _: "completed steps are being undone",
    HistoryKind.COMPENSATION_SKIPPED: lambda data, _: f"step {data['step']!r} has nothing that undoes it; skipped",
    HistoryKind.COMPENSATION_SUCCEEDED: lambda data, _: f"step {data['step']!r} was undone",
    HistoryKind.COMPENSATION_FAILED: lambda data, _: f"step {data['step']!r} could not be undone",
    HistoryKind.COMPENSATIONS_NOT_ATTEMPTED: lambda data, _: (
        f"the {data['from'] - data['to'] + 1} steps that completed before it were not undone"
    ),
    HistoryKind.DEFINITION_BLOCKED: lambda data, _: f"step id {data['step']!r} was met twice{_places(data)}",
    HistoryKind.DEFINITION_STILL_BLOCKED: lambda data, _: f"step id {data['step']!r} is met twice{_places(data)}",
    HistoryKind.DEFINITION_UNBLOCKED: lambda data, _: f"step id {data['step']!r} is no longer met twice",
    HistoryKind.DEFINITION_RETRY_REQUESTED: lambda data, _: f"{data['by']} asked for another look at the code",
    HistoryKind.DEFINITION_WOKEN: lambda data, _: f"the code is looked at again ({data['by']})",
    HistoryKind.UNWIND_ENDED: lambda data, _: f"the unwind ended: {data['executed']} undone, {data['skipped']} skipped",
}
