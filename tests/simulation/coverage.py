"""What a set of scenarios has met: edges of the state machines, entries of histories, verdicts and refusals, by name and count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Any

from keyspace.lifecycle import MACHINES

__all__ = ["edge", "edges_noticed"]


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
