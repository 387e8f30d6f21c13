"""The customers' code as data: functions of a few steps in versions, each a small change of the one before.

A pass over it is a walk along the steps; that is all a workflow function is to the worker's core, which gets here the same
turns that real user code would give it.
"""

from __future__ import annotations

import contextvars
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import msgspec
from ryusen.context import StepCall
from ryusen.protocol.frames import (
    Assign,
    Complete,
    Fail,
    Failed,
    Failure,
    Outcome,
    RetryPolicy,
    StepDeclaration,
    StepMemo,
    Succeeded,
)
from ryusen.worker.passes import Ended, Met, Turn

from simulation.scenario import Draws

__all__ = [
    "APPLICATION",
    "FUNCTIONS",
    "Code",
    "ScriptedPass",
    "StepCode",
    "callback_outcome",
    "first_code",
    "next_code",
]

APPLICATION = "shop"
FUNCTIONS = ("fulfil", "refund")
STEPS_MAX = 4
TIMEOUTS_MS = (None, None, 4_000, 20_000)
_CONTEXT = contextvars.copy_context()


@dataclass(frozen=True)
class StepCode:
    """One `step.run` in a function.

    Attributes:
        id: its id.
        is_handled: whether the function goes on when the step has failed.
        has_compensator: whether it can be undone.
        attempts: tries before it has failed for good; the compensator's too.
        timeout_ms: of each attempt.
    """

    id: str
    is_handled: bool
    has_compensator: bool
    attempts: int
    timeout_ms: int | None


@dataclass(frozen=True)
class Code:
    """One deployed version.

    Attributes:
        release: its name; empty for a version that names none.
        functions: the steps of each function.
        failing: functions that fail when all their steps are through.
    """

    release: str
    functions: Mapping[str, tuple[StepCode, ...]]
    failing: frozenset[str] = frozenset()


def _new_step(draws: Draws, step_id: str) -> StepCode:
    return StepCode(
        id=step_id,
        is_handled=draws.chance(0.4),
        has_compensator=draws.chance(0.7),
        attempts=draws.one_of((1, 1, 2, 3)),
        timeout_ms=draws.one_of(TIMEOUTS_MS),
    )


def first_code(draws: Draws) -> Code:
    """Return the version that is deployed first."""
    functions = {
        name: tuple(_new_step(draws, f"s{index}") for index in range(1, draws.number(0, STEPS_MAX) + 1))
        for name in FUNCTIONS
    }
    failing = frozenset(name for name in FUNCTIONS if draws.chance(0.5))
    return Code("r1" if draws.chance(0.8) else "", functions, failing)


def next_code(code: Code, draws: Draws, version: int) -> Code:
    """Return the version after `code`: one function changes by one step."""
    name = draws.one_of(FUNCTIONS)
    steps = list(code.functions[name])
    place = draws.number(0, max(0, len(steps) - 1))
    change = draws.one_of(("add", "remove", "rename", "compensator", "ending"))
    if change == "add" or not steps:
        steps.insert(place, _new_step(draws, f"n{version}"))
    elif change == "remove":
        del steps[place]
    elif change == "rename":
        steps[place] = replace(steps[place], id=f"n{version}")
    elif change == "compensator":
        steps[place] = replace(steps[place], has_compensator=not steps[place].has_compensator)
    failing = code.failing ^ {name} if change == "ending" else code.failing
    release = f"r{version}" if draws.chance(0.8) else ""
    return Code(release, {**code.functions, name: tuple(steps)}, failing)


@dataclass
class ScriptedPass:
    """One pass over a function, as `ryusen.worker.passes.Pass` would make it."""

    assign: Assign
    code: Code
    is_refused: bool = False
    failed_met: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Take the memo of the assignment."""
        self.memo = {memo.id: memo for memo in self.assign.memo}
        self.parked_at = ""

    def turn(self) -> Turn:
        """Walk to the next unresolved step, or to the end."""
        self.failed_met.clear()
        target = self.assign.ref.step if self.assign.ref.kind == "compensation" else None
        for step in self.code.functions[self.assign.function]:
            memo = self.memo.get(step.id)
            if step.id == target or memo is None:
                if self.is_refused:
                    return Ended(Fail(failure=Failure(category="refused", message="the declaration was refused")))
                self.parked_at = step.id
                return Met(_call(step))
            if memo.failure is not None:
                self.failed_met.append(step.id)
                if not step.is_handled:
                    return Ended(Fail(failure=Failure(category=memo.failure.category, message=memo.failure.message)))
        if self.assign.function in self.code.failing:
            return Ended(Fail(failure=Failure(category="application", message="the function failed")))
        return Ended(Complete(value=msgspec.Raw(b'"done"')))

    def go_on(self, value: bytes) -> None:
        """The step it is parked at has this value."""
        self.memo[self.parked_at] = StepMemo(id=self.parked_at, value=msgspec.Raw(value))


def _call(step: StepCode) -> StepCall:
    policy = RetryPolicy(attempts=step.attempts, initial_ms=500, coefficient=2.0, cap_ms=9_000)
    declaration = StepDeclaration(
        id=step.id,
        name=step.id,
        retry=policy,
        timeout_ms=step.timeout_ms,
        compensable=step.has_compensator,
        undo_retry=policy,
        undo_timeout_ms=step.timeout_ms,
    )
    compensate = _nothing if step.has_compensator else None
    return StepCall(declaration, _nothing, (), {}, None, _CONTEXT, compensate)


def _nothing() -> None:
    return None


def callback_outcome(draws: Draws, value: str) -> Outcome:
    """Return how a callback ends that was not cut short."""
    if draws.chance(0.62):
        return Succeeded(value=msgspec.Raw(b'"%s"' % value.encode()))
    failure = Failure(category="application", message=f"no {value}")
    return Failed(failure=failure, retryable=draws.chance(0.65))
