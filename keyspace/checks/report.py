"""What a check reports, and how checks are declared: one function for each leaf whose keys it judges."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from keyspace.leaf import Leaf
from keyspace.tx import Tx

__all__ = ["CHECKS", "PROBLEMS_MAX", "Case", "Check", "Problem", "Report", "checks"]

PROBLEMS_MAX = 1_000


class Problem(NamedTuple):
    """One violated check: its number (C1 to C12), the key as text and a sentence."""

    check: str
    key: str
    sentence: str


@dataclass(slots=True)
class Report:
    """What a walk found; at most 1,000 problems are kept, all are counted."""

    key_count: int = 0
    run_count: int = 0
    event_count: int = 0
    item_count: int = 0
    problem_count: int = 0
    problems: list[Problem] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        """Whether nothing is wrong."""
        return self.problem_count == 0


class Case:
    """One key under judgement: where it is, what it holds, and where to say what is wrong."""

    __slots__ = ("elements", "leaf", "record", "report", "tx", "workspace")

    def __init__(self, tx: Tx, leaf: Leaf[Any], elements: tuple[Any, ...], record: Any, report: Report) -> None:
        """Present a decoded key to its check."""
        self.tx = tx
        self.leaf = leaf
        self.elements = elements
        self.record = record
        self.report = report
        self.workspace: str = elements[0] if elements and isinstance(elements[0], str) else ""

    def expect(self, condition: object, check: str, sentence: str) -> bool:
        """Report `sentence` under `check` unless `condition` holds; return whether it holds."""
        if condition:
            return True
        self.report.problem_count += 1
        if len(self.report.problems) < PROBLEMS_MAX:
            self.report.problems.append(Problem(check, f"{self.leaf.name}{self.elements!r}", sentence))
        return False


Check = Callable[[Case], Awaitable[None]]
CHECKS: dict[str, Check] = {}


def checks(leaf: Leaf[Any]) -> Callable[[Check], Check]:
    """Declare the function that judges the keys of `leaf`."""

    def declare(function: Check) -> Check:
        assert leaf.name not in CHECKS
        CHECKS[leaf.name] = function
        return function

    return declare
