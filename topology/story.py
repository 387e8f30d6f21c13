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


_SENTENCES: dict[str, Sentence] = {
    "run-created": lambda data: "The run begins: its event was accepted and matched this function.",
    "pass-authorized": lambda data: "A worker reads the function up to what is not known yet.",
    "pass-lost": lambda data: (
        f"The worker or its dispatcher went away in the middle of a pass (loss {data['losses']} in a row); "
        "nothing but reading was lost, so it is delivered again."
    ),
    "step-declared": lambda data: f"It meets step {data['step']}, which is recorded as the next thing to do.",
    "attempt-authorized": lambda data: f"Step {data['step']}, {_nth(data)}: a worker is told to start, once.",
    "attempt-failed": lambda data: f"Step {data['step']}, {_nth(data)} failed ({_failure(data)}).",
    "attempt-unknown": lambda data: (
        f"Step {data['step']}, {_nth(data)}: nobody heard of its worker in time, so the outcome is Unknown; "
        "it is not run again on its own."
    ),
    "attempt-not-started": lambda data: (
        f"Step {data['step']}, {_nth(data)}: its worker came back and proved that it had never started; "
        "it goes back to the queue."
    ),
    "retry-scheduled": lambda data: f"Step {data['step']} will be tried again, as {_nth(data)}.",
    "step-completed": lambda data: f"Step {data['step']} is done; its result is kept for good.",
    "step-failed": lambda data: (
        f"Step {data['step']} has failed for good after {data['attempts']} attempts ({data['category']}); "
        "the function is told."
    ),
    "step-obsolete": lambda data: f"Step {data['step']} is no longer in the code; it is set aside.",
    "run-completed": lambda data: f"The function returned: the run is complete after {data['steps']} steps.",
    "run-failed": lambda data: f"The function failed ({_failure(data)}).",
    "compensation-not-required": lambda data: "Nothing had been completed, so there is nothing to undo.",
    "unwind-started": lambda data: f"Undoing begins: {data['upper']} completed steps, the last one first.",
    "compensation-skipped": lambda data: f"Step {data['step']} has no undo; that is recorded.",
    "unwind-ended": lambda data: f"Undoing has ended: {data['recovery']}.",
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
