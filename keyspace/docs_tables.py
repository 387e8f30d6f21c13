"""Tables and pictures for keyspace/README.md, made from the code that they describe.

Owns the rendering only; `keyspace.describe` puts it into the page, and a test fails when the page is stale.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from itertools import product

from keyspace import transitions
from keyspace.decisions import (
    ATTEMPTS,
    IMPOSSIBLE,
    IMPOSSIBLE_PASSES,
    MEANINGS,
    PASSES,
    Decision,
    Event,
    Follows,
    PassEvent,
    PassStanding,
    Situation,
    Standing,
)
from keyspace.layout import LEAVES
from keyspace.leaf import ElementType
from keyspace.lifecycle import MACHINES
from keyspace.records.work import Direction

__all__ = ["SECTIONS", "decision_tables", "key_table", "state_pictures", "transition_table"]

_FACTS = ("Reads", "Writes", "Conflicts", "Budget", "Idempotent")
_FACT = re.compile(r"\b(" + "|".join((*_FACTS, "Source")) + r"):\s+")
_SECTION = re.compile(r"^\s*(Args|Returns|Raises):\s*$", re.MULTILINE)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _rows(head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(_cell(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def _keys() -> Iterator[tuple[str, ...]]:
    for leaf in LEAVES:
        parts = [part.label if isinstance(part, ElementType) else f"`{part}`" for part in leaf.shape]
        yield leaf.name, ", ".join(parts), leaf.codec.label, leaf.writers, leaf.readers, leaf.note


def key_table() -> str:
    """Return the table of every kind of key: its tuple, its value, who writes it and who reads it."""
    return _rows(("leaf", "tuple", "value", "written by", "read by", "note"), _keys())


def _public_transitions() -> Iterator[tuple[str, Callable[..., object]]]:
    for module_info in pkgutil.iter_modules(transitions.__path__):
        module = importlib.import_module(f"{transitions.__name__}.{module_info.name}")
        for name in getattr(module, "__all__", ()):
            function = getattr(module, name)
            if inspect.iscoroutinefunction(function) and function.__module__ == module.__name__:
                yield name, function


def facts_of(documentation: str) -> dict[str, str]:
    """Return what a transition's docstring says under Reads, Writes, Conflicts, Budget and Idempotent."""
    body = _SECTION.split(documentation)
    # The facts stand in one paragraph, before or behind the argument list.
    text = next((part for part in body if "Reads:" in part or "Writes:" in part), "")
    paragraph = next((part for part in text.split("\n\n") if "Reads:" in part or "Writes:" in part), "")
    pieces = _FACT.split(paragraph)
    return {name: value.strip().rstrip(".") for name, value in zip(pieces[1::2], pieces[2::2], strict=True)}


def _transitions() -> Iterator[tuple[str, ...]]:
    for name, function in sorted(_public_transitions()):
        documentation = inspect.getdoc(function) or ""
        facts = facts_of(documentation)
        if facts:
            summary = documentation.split("\n\n")[0].split("\n")[0].rstrip(".")
            yield f"`{name}`", summary, *(facts.get(fact, "") for fact in _FACTS)


def transition_table() -> str:
    """Return the table of every transition, from the docstrings of their modules."""
    return _rows(
        ("transition", "what it does", "reads", "writes", "conflicts", "budget", "idempotent by"), _transitions()
    )


def _picture(machine: Mapping[StrEnum, Mapping[StrEnum, StrEnum]]) -> str:
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {next(iter(machine)).value}"]
    for state, edges in machine.items():
        following: dict[str, list[str]] = {}
        for event, target in edges.items():
            following.setdefault(target.value, []).append(event.value)
        lines += [f"    {state.value} --> {target}: {', '.join(events)}" for target, events in following.items()]
        if not edges:
            lines.append(f"    {state.value} --> [*]")
    return "\n".join([*lines, "```"])


def state_pictures() -> str:
    """Return a state diagram of every machine, drawn from its table."""
    return "\n\n".join(f"### {name.capitalize()}\n\n{_picture(machine)}" for name, machine in MACHINES.items())


_UNTOLD = frozenset(("accepted", "nothing", "returned", "redelivered", "unknown", "stopped"))
"""Answers that a cell leaves out, because what follows says as much."""


def _decision(decision: Decision) -> str:
    """Return a cell: what is told when it is more than that it counts, what the attempt becomes, what follows."""
    told = "" if decision.answer in _UNTOLD else f"`{decision.answer}`"
    became = "" if decision.attempt is None else decision.attempt.value
    follows = "" if decision.follows is Follows.SAME else decision.follows.value
    return "; ".join(part for part in (told, became, follows) if part) or Follows.SAME.value


def _decision_rows(
    rows: Iterator[tuple[Situation, StrEnum, list[Decision]]],
) -> Iterator[tuple[str, ...]]:
    """Yield the rows of a table, those of one standing together, situations in which everything is the same as one."""
    merged: dict[tuple[StrEnum, tuple[Decision, ...]], list[str]] = {}
    for situation, standing, decisions in rows:
        merged.setdefault((standing, tuple(decisions)), []).append(situation.value)
    order = {standing: index for index, standing in enumerate(dict.fromkeys(standing for standing, _ in merged))}
    for (standing, found), situations in sorted(merged.items(), key=lambda row: order[row[0][0]]):
        yield standing.value, "; ".join(situations), *(_decision(decision) for decision in found)


def _attempt_decisions(direction: Direction) -> str:
    rows = (
        (situation, standing, [ATTEMPTS[direction, situation, standing, event] for event in Event])
        for situation, standing in product(Situation, Standing)
        if (direction, situation, standing) not in IMPOSSIBLE
    )
    return _rows(("attempt", "run", *(event.value for event in Event)), _decision_rows(rows))


def _pass_decisions() -> str:
    rows = (
        (situation, standing, [PASSES[situation, standing, event] for event in PassEvent])
        for situation, standing in product(Situation, PassStanding)
        if (situation, standing) not in IMPOSSIBLE_PASSES
    )
    return _rows(("pass", "run", *(event.value for event in PassEvent)), _decision_rows(rows))


def _reasons() -> str:
    reasons: dict[str, list[str]] = {}
    for (direction, situation, attempt), reason in IMPOSSIBLE.items():
        of = "undo" if direction is Direction.COMPENSATION else "attempt"
        reasons.setdefault(reason, []).append(f"{of} {attempt} in {situation}")
    for (situation, standing), reason in IMPOSSIBLE_PASSES.items():
        reasons.setdefault(reason, []).append(f"pass {standing} in {situation}")
    return "\n".join(f"- {reason} ({len(pairs)} pairs, such as: {pairs[0]})" for reason, pairs in reasons.items())


def decision_tables() -> str:
    """Return what every event comes to, of forward attempts, of compensations and of passes, and what cannot stand so."""
    return "\n\n".join(
        (
            _rows(("word", "what follows"), ((word.value, meaning) for word, meaning in MEANINGS.items())),
            f"### Forward attempts\n\n{_attempt_decisions(Direction.FORWARD)}",
            f"### Compensations\n\n{_attempt_decisions(Direction.COMPENSATION)}",
            f"### Discovery passes\n\n{_pass_decisions()}",
            f"### What cannot stand so\n\n{_reasons()}",
        )
    )


SECTIONS: dict[str, Callable[[], str]] = {
    "keys": key_table,
    "transitions": transition_table,
    "states": state_pictures,
    "decisions": decision_tables,
}
"""What the page's marked sections are made from, by the marker's name."""
