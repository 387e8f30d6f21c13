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

from keyspace import transitions
from keyspace.layout import LEAVES
from keyspace.leaf import ElementType
from keyspace.lifecycle import MACHINES

__all__ = ["SECTIONS", "key_table", "state_pictures", "transition_table"]

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


SECTIONS: dict[str, Callable[[], str]] = {
    "keys": key_table,
    "transitions": transition_table,
    "states": state_pictures,
}
"""What the page's marked sections are made from, by the marker's name."""
