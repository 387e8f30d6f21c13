"""What a set of scenarios has met: edges of the state machines, entries of histories, verdicts and refusals, by name and count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Any

from keyspace.history import HistoryKind
from keyspace.lifecycle import (
    MACHINES,
    ItemEvent,
    ItemState,
    Phase,
    RunEvent,
    StepEvent,
    StepState,
)

__all__ = ["OUT_OF_REACH", "RARE", "edge", "edges_noticed", "everything"]


def edge(machine: str, state: StrEnum, event: StrEnum) -> str:
    """Return the name of an edge."""
    return f"edge: {machine}, {state.value}: {event.value}"


class _Noticing(dict[Any, Any]):
    """The edges out of one state, which notice when one of them is taken."""

    def __init__(self, machine: str, state: StrEnum, edges: Any, seen: Counter[str]) -> None:
        super().__init__(edges)
        self._machine, self._state, self._seen = machine, state, seen

    def __getitem__(self, event: Any) -> Any:
        following = super().__getitem__(event)
        self._seen[edge(self._machine, self._state, event)] += 1
        return following


@contextmanager
def edges_noticed(seen: Counter[str]) -> Iterator[None]:
    """Count in `seen` every edge that is taken meanwhile; the tables are what they were afterwards."""
    kept = {name: dict(table) for name, table in MACHINES.items()}
    for name, table in MACHINES.items():
        for state, edges in kept[name].items():
            table[state] = _Noticing(name, state, edges, seen)  # type: ignore[index]
    try:
        yield
    finally:
        for name, table in MACHINES.items():
            table.update(kept[name])  # type: ignore[attr-defined]


def everything() -> set[str]:
    """Return all that scenarios are to meet: every edge of every machine, every kind of entry, every answer that is listed."""
    edges = {
        edge(name, state, event)
        for name, table in MACHINES.items()
        for state, edges in table.items()
        for event in edges
    }
    return edges | {f"history: {kind.value}" for kind in HistoryKind} | ANSWERS


ANSWERS = frozenset(
    (
        "authorized: Accepted ",
        "authorized: Stale lease_lost",
        "authorized: Stale session_superseded",
        "authorized: nobody knows",
        "cancel: accepted",
        "cancel: already_ending",
        "cancel: already_terminal",
        "cancel: repeated",
        "refused: idempotency_conflict",
        "refused: retry_forbidden",
        "refused: session_superseded",
        "refused: stale_attempt",
        "resolve: declare_failure",
        "resolve: retry",
        "resolve: supply_success",
        "settled: accepted ",
        "settled: proceeds",
        "settled: replayed ",
        "settled: stale attempt_not_authorized",
        "settled: stale attempt_not_found",
        "settled: stale attempt_settled",
        "settled: stale lease_lost",
        "settled: stale run_not_found",
        "settled: stale run_stopping",
    )
)
"""Answers to workers and operators."""

NOT_SCRIPTED = "no scenario has it in its scripts yet"

OUT_OF_REACH: dict[str, str] = {
    edge("step", StepState.OBSOLETE, StepEvent.OWNED): NOT_SCRIPTED,
    edge("run", Phase.DEFINITION_BLOCKED, RunEvent.STOPPED_SETTLING): NOT_SCRIPTED,
    f"history: {HistoryKind.DECLARATION_REPEATED.value}": NOT_SCRIPTED,
    f"history: {HistoryKind.EMISSION_REPLAYED.value}": NOT_SCRIPTED,
}
"""What no scenario meets, and why. A scenario that meets one of these fails the test, so that the list stays true."""

RARE = frozenset((edge("work item", ItemState.READY, ItemEvent.DEFERRED),))
"""What the soak meets, and five hundred scenarios need not."""
