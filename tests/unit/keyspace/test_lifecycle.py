"""The state machines: every pair of state and event is an edge or refused, and nothing but `advance` moves a state."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path

import pytest

import keyspace
from keyspace.errors import IllegalEdge
from keyspace.lifecycle import MACHINES, RUN, Phase, advance

Machine = Mapping[StrEnum, Mapping[StrEnum, StrEnum]]
KEYSPACE = Path(keyspace.__file__).parent
STATE_FIELDS = {"state", "phase", "compensation"}
FIRST_STATES = {
    "AttemptState.QUEUED",
    "StepState.PENDING",
    "ItemState.READY",
    "CompensationState.NONE",
    "Phase.RUNNING",
}
"""What a record may be created with."""

machines = pytest.mark.parametrize("name", list(MACHINES))


def events_of(machine: Machine) -> list[StrEnum]:
    """Return every event of a machine's vocabulary."""
    some = next(event for edges in machine.values() for event in edges)
    return list(type(some))


@machines
def test_every_pair_of_state_and_event_is_an_edge_or_refused(name: str) -> None:
    """HOUSE 5, "A total test walks state x event": the refusal names both."""
    machine = MACHINES[name]
    states = list(type(next(iter(machine))))
    assert list(machine) == states, "the table has a row for every state, in order"
    for state in states:
        for event in events_of(machine):
            if event in machine[state]:
                assert advance(machine, state, event) is machine[state][event]
                continue
            with pytest.raises(IllegalEdge) as refused:
                advance(machine, state, event)
            assert refused.value.details == {
                "machine": type(state).__name__,
                "state": state.value,
                "event": event.value,
            }


@machines
def test_every_state_has_a_way_to_an_end(name: str) -> None:
    """C3: from every state that is not final some final one can be reached, and every state can be reached at all."""
    machine = MACHINES[name]
    final = {state for state, edges in machine.items() if not edges}
    assert final
    for state in machine:
        assert reachable(machine, state) & final, f"{name}: nothing leads out of {state}"
    first = next(iter(machine))
    unreached = set(machine) - reachable(machine, first) - {first}
    assert unreached <= {"waiting"}, "waiting steps are declared as such, in a later release"


def reachable(machine: Machine, state: StrEnum) -> set[StrEnum]:
    """Return every state that can follow, the state itself included."""
    seen = {state}
    queue = [state]
    while queue:
        for following in machine[queue.pop()].values():
            if following not in seen:
                seen.add(following)
                queue.append(following)
    return seen


@machines
def test_every_event_is_on_some_edge(name: str) -> None:
    """Would catch an event that is in the vocabulary and can never happen."""
    machine = MACHINES[name]
    used = {event for edges in machine.values() for event in edges}
    assert used == set(events_of(machine))


def test_a_terminal_run_stays_terminal() -> None:
    """C4: its outcomes never change, because no event leads out of Terminal or back from an unwind."""
    assert RUN[Phase.TERMINAL] == {}
    assert Phase.RUNNING not in reachable(RUN, Phase.CANCELLING) | reachable(RUN, Phase.COMPENSATING)  # type: ignore[arg-type]


# -- nothing outside `advance` assigns a state


def sources() -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(KEYSPACE.rglob("*.py")):
        if "store" not in path.parts:
            yield path, ast.parse(path.read_text())


def state_keywords(tree: ast.Module) -> Iterator[tuple[ast.Call, ast.keyword, set[str]]]:
    """Yield every state given by keyword, with the names that its function assigned from `advance`."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        advanced = {
            target.id
            for node in ast.walk(function)
            if isinstance(node, ast.Assign) and is_advance(node.value)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and is_of_a_record(node):
                for keyword in node.keywords:
                    if keyword.arg in STATE_FIELDS:
                        yield node, keyword, advanced


def is_of_a_record(call: ast.Call) -> bool:
    """Whether a call makes a record or replaces fields of one."""
    name = ast.unparse(call.func).rpartition(".")[2]
    return name == "replace" or name.endswith("Record")


def is_advance(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "advance"


def is_first_state(node: ast.expr) -> bool:
    return ast.unparse(node) in FIRST_STATES or ast.unparse(node).startswith("ExpansionState.")


def test_nothing_but_advance_moves_a_state() -> None:
    """HOUSE 5, "no other line assigns a state": replaced states come from `advance`, new records begin at the start."""
    found = 0
    for path, tree in sources():
        for call, keyword, advanced in state_keywords(tree):
            value = keyword.value
            parts = [value.body, value.orelse] if isinstance(value, ast.IfExp) else [value]
            for part in parts:
                is_moved = is_advance(part) or (isinstance(part, ast.Name) and part.id in advanced)
                where = f"{path.relative_to(KEYSPACE)}:{call.lineno}: {ast.unparse(part)}"
                assert is_moved or is_first_state(part), where
                found += is_moved
    assert found > 15, "the walk has seen the transitions"
