"""A run's history in words: one sentence an entry, with the time since the run began.

The sentences are for people who have never read the design: what happened, to which step, and what it means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

__all__ = ["Sentence", "sentence", "tell"]

Data = Mapping[str, Any]
Sentence = Callable[[Data], str]


def _failure(data: Data) -> str:
    failure = data.get("failure") or {}
    return f"{failure.get('category', 'failure')}: {failure.get('message', '')}".rstrip(": ")


def _nth(data: Data) -> str:
    return f"attempt {data['attempt']}"


def _target(data: Data) -> str:
    """Return what an attempt is of: a step, or the undo of one."""
    return f"The undo of step {data['step']}" if data.get("direction") == "compensation" else f"Step {data['step']}"


def _attempt(data: Data) -> str:
    return f"{_target(data)}, {_nth(data)}"


def _after(data: Data) -> str:
    """Return how often a failed step was tried; the service's own steps have no attempts."""
    return f" after {data['attempts']} attempts" if data["attempts"] else ""


_COMMANDS = {
    "supply_success": "it did happen, and this is its result",
    "declare_failure": "it failed",
    "retry": "do it again, although it may have happened",
}
_REASONS = {"cancelled": "it was cancelled", "timed_out": "its time is over"}


_SENTENCES: dict[str, Sentence] = {
    "run-created": lambda data: (
        f"The run begins: step {data['parent_step']} of run {data['parent']} invoked this function."
        if "parent" in data
        else "The run begins: its event was accepted and matched this function."
    ),
    "pass-authorized": lambda data: "A worker reads the function up to what is not known yet.",
    "pass-lost": lambda data: (
        f"The worker or its dispatcher went away in the middle of a pass (loss {data['losses']} in a row); "
        "nothing but reading was lost, so it is delivered again."
    ),
    "step-declared": lambda data: (
        f"It meets step {data['step']}, which is recorded as the next thing to do."
        if data.get("kind", "callback") == "callback"
        else f"It meets step {data['step']}, which the service itself waits for."
    ),
    "declaration-repeated": lambda data: f"It meets step {data['step']} again, which the service already waits for.",
    "emission-replayed": lambda data: f"It meets step {data['step']} again, whose event had been accepted before.",
    "attempt-authorized": lambda data: f"{_attempt(data)}: a worker is told to start, once.",
    "attempt-failed": lambda data: f"{_attempt(data)} failed ({_failure(data)}).",
    "attempt-unknown": lambda data: (
        f"{_attempt(data)}: nobody heard of its worker in time, so the outcome is Unknown; it is not run again on its own."
    ),
    "attempt-redelivered": lambda data: (
        f"{_attempt(data)}: nobody heard of its worker in time; the step is declared idempotent, so it is delivered again."
    ),
    "attempt-not-started": lambda data: (
        f"{_attempt(data)}: its worker came back and proved that it had never started, so nothing happened."
    ),
    "attempt-resolved": lambda data: (
        f"{_attempt(data)}: an operator ({data['by']}) decides: {_COMMANDS[data['command']]}."
    ),
    "retry-scheduled": lambda data: f"{_target(data)} will be tried again, as {_nth(data)}.",
    "retry-authorized": lambda data: (
        f"{_target(data)} may run again now, as {_nth(data)}, under the same operation id."
    ),
    "step-completed": lambda data: f"Step {data['step']} is done; its result is kept for good.",
    "step-failed": lambda data: (
        f"Step {data['step']} has failed for good{_after(data)} ({data['category']}); the function is told."
    ),
    "step-obsolete": lambda data: f"Step {data['step']} is no longer in the code; it is set aside.",
    "step-fenced": lambda data: f"Step {data['step']} had not begun and never will.",
    "stop-committed": lambda data: (
        f"The run must stop ({_REASONS[data['reason']]}, by {data['by']}); nothing new begins, what has begun is waited for."
    ),
    "run-completed": lambda data: f"The function returned: the run is complete after {data['steps']} steps.",
    "run-failed": lambda data: f"The function failed ({_failure(data)}).",
    "compensation-not-required": lambda data: "Nothing had been completed, so there is nothing to undo.",
    "unwind-started": lambda data: f"Undoing begins: {data['upper']} completed steps, the last one first.",
    "compensation-skipped": lambda data: f"Step {data['step']} has no undo; that is recorded.",
    "compensation-succeeded": lambda data: f"Step {data['step']} is undone.",
    "compensation-failed": lambda data: f"The undo of step {data['step']} has failed for good.",
    "compensations-not-attempted": lambda data: (
        f"The undo of completions {data['from']} to {data['to']} is not attempted after that."
    ),
    "unwind-ended": lambda data: f"Undoing has ended: {data['recovery']}.",
    "definition-blocked": lambda data: (
        f"The code uses step id {data['step']} twice, so the run is blocked: nothing new begins until the code is fixed."
    ),
    "definition-still-blocked": lambda data: f"The code still uses step id {data['step']} twice.",
    "definition-unblocked": lambda data: f"Step id {data['step']} is no longer used twice: the run goes on.",
    "definition-retry-requested": lambda data: f"An operator ({data['by']}) asks for another look at the code.",
    "definition-woken": lambda data: f"The code is looked at again, by itself ({data['by']}).",
}


def sentence(kind: str, data: Data) -> str:
    """Return what an entry says; an entry of a kind that is not known here is shown as it is."""
    form = _SENTENCES.get(kind)
    if form is None:
        return f"{kind} {dict(data)}"
    return form(data)


def tell(entries: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the lines of a history, given its entries in order as the API shows them."""
    lines: list[str] = []
    begun_ms: int | None = None
    for entry in entries:
        at_ms = int(entry["at_ms"])
        begun_ms = at_ms if begun_ms is None else begun_ms
        lines.append(f"{(at_ms - begun_ms) / 1_000:7.3f} s  {sentence(entry['kind'], entry['data'])}")
    return lines
