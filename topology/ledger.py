"""The example's ledger: a file in which every effect leaves a line, so that anybody can count what really happened."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Effect", "LedgerFault", "compare", "read_ledger"]


@dataclass(frozen=True, slots=True)
class Effect:
    """One line.

    Attributes:
        effect: what was done, such as `charge`.
        order: to which order.
        run_id: in which run.
        attempt: the ordinal of the step's attempt that did it.
    """

    effect: str
    order: str
    run_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class LedgerFault:
    """An effect that happened another number of times than it should have."""

    effect: str
    order: str
    count: int
    expected_count: int

    def __str__(self) -> str:
        return f"{self.effect} of order {self.order} happened {self.count} times instead of {self.expected_count}"


def read_ledger(path: Path) -> list[Effect]:
    """Return every line, in the order written; a file that is not there yet is an empty ledger."""
    if not path.exists():
        return []
    lines: list[dict[str, Any]] = [json.loads(line) for line in path.read_bytes().splitlines()]
    return [Effect(line["effect"], line["order"], line["run_id"], line["attempt"]) for line in lines]


def compare(effects: Iterable[Effect], expected: Iterable[tuple[str, str]]) -> list[LedgerFault]:
    """Return where the ledger differs from `expected`, pairs of effect and order that should each be there once."""
    found = Counter((effect.effect, effect.order) for effect in effects)
    wanted = Counter(expected)
    return [
        LedgerFault(effect, order, found[effect, order], wanted[effect, order])
        for effect, order in sorted(found.keys() | wanted.keys())
        if found[effect, order] != wanted[effect, order]
    ]
