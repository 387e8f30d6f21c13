"""What a set of scenarios has met: edges of the state machines, entries of histories, verdicts and refusals, by name and count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Any

from keyspace.lifecycle import MACHINES, Phase, StepState
from keyspace.records.run import RunRecord, StepRecord

__all__ = ["edge", "edges_noticed", "new_in_run", "new_in_step"]


def edge(machine: str, state: StrEnum, event: StrEnum) -> str:
    """Return the name of an edge."""
    return f"edge: {machine}, {state.value}: {event.value}"


def new_in_run(before: RunRecord | None, after: RunRecord) -> Iterator[str]:
    """Say which rare things a run has just become: what its deadline comes from, how deep it is, a child that undoes steps."""
    if before is None and after.deadline_source is not None:
        yield f"deadline: {after.deadline_source.value}"
    if after.parent is None:
        return
    if before is None:
        yield f"child: at depth {after.parent.depth}"
    elif after.phase is Phase.COMPENSATING and before.phase is not after.phase:
        yield "child: compensating"


def new_in_step(before: StepRecord | None, after: StepRecord) -> Iterator[str]:
    """Say what has just become of a step that the server settles, and of a failed one why."""
    if not after.kind.is_server_owned or (before is not None and before.state is after.state):
        return
    why = f", {after.failure.category}" if after.state is StepState.FAILED and after.failure is not None else ""
    yield f"{after.kind.value}: {after.state.value}{why}"


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
