"""The customers' code as data: functions of a few steps in versions, each a small change of the one before.

A pass over it is a walk along the steps; that is all a workflow function is to the worker's core, which gets here the same
turns that real user code would give it.
"""

from __future__ import annotations

import contextvars
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import msgspec
from ryusen.context import StepCall
from ryusen.protocol.frames import (
    Assign,
    CallSite,
    Child,
    Complete,
    DefinitionBlocked,
    Fail,
    Failed,
    Failure,
    Outcome,
    RetryPolicy,
    StepDeclaration,
    StepMemo,
    Succeeded,
    Timer,
    Wait,
)
from ryusen.server_steps import emission_of, server_step
from ryusen.worker.passes import Ended, Met, Turn

from keyspace.transitions.names import INVOCATION_EVENT
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
DELAYS_MS = (0, 1_000, 15_000)
EMITTED = {"fulfil": "returned", "refund": "seen"}
"""What each function may emit; no function starts itself so, however indirectly."""
INVOKED = {"fulfil": "refund"}
AWAITED = {"fulfil": "seen", "refund": "placed"}
PAIRS: tuple[dict[str, str], ...] = ({}, {}, {"shop": "north"}, {"shop": "south"})
"""What events carry, and what waits ask for."""
LIMITS_MS = (None, 0, 4_000, 30_000)
FORGETFUL = 26
"""Of 256 passes, how many forget a step."""
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
        is_repeatable: whether its callback may run again under its operation id.
        undo_is_repeatable: whether its compensator may.
        delay_ms: a durable timer of so long instead of a callback.
        emits: an event that is emitted instead of a callback.
        invokes: a function that is started and waited for instead of a callback.
        awaits: an event that is waited for instead of a callback.
        limit_ms: how long the invoked run, or the wait, may take; None is for ever, which no wait may.
    """

    id: str
    is_handled: bool
    has_compensator: bool
    attempts: int
    timeout_ms: int | None
    is_repeatable: bool = False
    undo_is_repeatable: bool = False
    delay_ms: int | None = None
    emits: str = ""
    invokes: str = ""
    awaits: str = ""
    limit_ms: int | None = None

    @property
    def is_callback(self) -> bool:
        """Whether workers run it; the server settles the others."""
        return self.delay_ms is None and not (self.emits or self.invokes or self.awaits)


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

    @property
    def has_duplicate(self) -> bool:
        """Whether some function uses a step id twice."""
        return any(len({step.id for step in steps}) < len(steps) for steps in self.functions.values())


def _new_step(draws: Draws, step_id: str, function: str) -> StepCode:
    step = StepCode(
        id=step_id,
        is_handled=draws.chance(0.4),
        has_compensator=draws.chance(0.7),
        attempts=draws.one_of((1, 1, 2, 3)),
        timeout_ms=draws.one_of(TIMEOUTS_MS),
        is_repeatable=draws.chance(0.35),
        undo_is_repeatable=draws.chance(0.35),
    )
    kind = draws.number(1, 100)
    owned = replace(step, has_compensator=False)
    if kind <= 10:
        return replace(owned, delay_ms=draws.one_of(DELAYS_MS))
    if kind <= 18:
        return replace(owned, emits=EMITTED[function])
    if kind <= 26 and function in INVOKED:
        return replace(owned, invokes=INVOKED[function], limit_ms=draws.one_of(LIMITS_MS))
    if kind <= 32:
        awaited = INVOCATION_EVENT if draws.chance(0.2) else AWAITED[function]
        limit_ms = draws.one_of(LIMITS_MS)
        return replace(owned, awaits=awaited, limit_ms=60_000 if limit_ms is None else limit_ms)
    return step


def first_code(draws: Draws) -> Code:
    """Return the version that is deployed first."""
    functions = {
        name: tuple(_new_step(draws, f"s{index}", name) for index in range(1, draws.number(0, STEPS_MAX) + 1))
        for name in FUNCTIONS
    }
    failing = frozenset(name for name in FUNCTIONS if draws.chance(0.5))
    code = Code("r1" if draws.chance(0.8) else "", functions, failing)
    return _with_duplicate(code, draws) if draws.chance(0.12) else code


def next_code(code: Code, draws: Draws, version: int) -> Code:
    """Return the version after `code`: one function changes by one step."""
    release = f"r{version}" if draws.chance(0.8) else ""
    if code.has_duplicate and draws.chance(0.6):
        return replace(mended(code), release=release)
    name = draws.one_of(FUNCTIONS)
    steps = list(code.functions[name])
    place = draws.number(0, max(0, len(steps) - 1))
    change = draws.one_of(("add", "remove", "remove", "rename", "compensator", "compensator", "ending", "duplicate"))
    if change == "add" or not steps:
        steps.insert(place, _new_step(draws, f"n{version}", name))
    elif change == "remove":
        del steps[place]
    elif change == "rename":
        steps[place] = replace(steps[place], id=f"n{version}")
    elif change == "compensator" and steps[place].is_callback:
        steps[place] = replace(steps[place], has_compensator=not steps[place].has_compensator)
    changed = replace(code, release=release, functions={**code.functions, name: tuple(steps)})
    if change == "duplicate":
        return _with_duplicate(changed, draws)
    return replace(changed, failing=code.failing ^ {name}) if change == "ending" else changed


def _with_duplicate(code: Code, draws: Draws) -> Code:
    """Return the code with one step id used twice in one function."""
    name = draws.one_of(FUNCTIONS)
    steps = code.functions[name]
    if not steps:
        return code
    again = draws.one_of(steps)
    place = draws.number(0, len(steps))
    return replace(code, functions={**code.functions, name: (*steps[:place], again, *steps[place:])})


def mended(code: Code) -> Code:
    """Return the code with a new id for every second use of one."""
    functions = {}
    for name, steps in code.functions.items():
        ids: set[str] = set()
        fixed = []
        for step in steps:
            free = next(name for name in (step.id, *(f"{step.id}-{n}" for n in range(2, 99))) if name not in ids)
            ids.add(free)
            fixed.append(replace(step, id=free))
        functions[name] = tuple(fixed)
    return replace(code, functions=functions)


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
        self._forget()
        self.parked_at = ""

    def _forget(self) -> None:
        """Let a few passes lose what they were told of one step that the server settled, and so declare it again.

        Decided by the delivery's token, so that the same delivery forgets the same again.
        """
        if self.assign.ref.kind == "compensation":
            return
        if hashlib.blake2b(f"forget/{self.assign.ref.token}".encode()).digest()[0] >= FORGETFUL:
            return
        for step in self.code.functions[self.assign.function]:
            if not step.is_callback and self.memo.pop(step.id, None) is not None:
                return

    def turn(self) -> Turn:
        """Walk to the next unresolved step, or to the end."""
        self.failed_met.clear()
        target = self.assign.ref.step if self.assign.ref.kind == "compensation" else None
        met: set[str] = set()
        for step in self.code.functions[self.assign.function]:
            if step.id in met and target is None:
                site = CallSite(location=f"shop.py:{len(met)}")
                return Ended(DefinitionBlocked(reason="duplicate_step_id", step=step.id, first=site, duplicate=site))
            met.add(step.id)
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
    if step.delay_ms is not None:
        terms = server_step(step.id, None, "shop.py", kind="timer", timer=Timer(delay_ms=step.delay_ms))
        return StepCall(terms, None, (), {}, None, _CONTEXT)
    if step.emits:
        emission = emission_of(step.emits, step.id, _pairs_of(step))
        terms = server_step(step.id, None, "shop.py", kind="emission", emission=emission)
        return StepCall(terms, None, (), {}, None, _CONTEXT)
    if step.invokes:
        child = Child(function=step.invokes, input=msgspec.Raw(b'"invoked"'), timeout_ms=step.limit_ms)
        return StepCall(server_step(step.id, None, "shop.py", kind="child", child=child), None, (), {}, None, _CONTEXT)
    if step.awaits:
        wait = Wait(event=step.awaits, match=_pairs_of(step), timeout_ms=step.limit_ms or 0)
        return StepCall(server_step(step.id, None, "shop.py", kind="wait", wait=wait), None, (), {}, None, _CONTEXT)
    policy = RetryPolicy(attempts=step.attempts, initial_ms=500, coefficient=2.0, cap_ms=9_000)
    declaration = StepDeclaration(
        id=step.id,
        name=step.id,
        retry=policy,
        timeout_ms=step.timeout_ms,
        compensable=step.has_compensator,
        undo_retry=policy,
        undo_timeout_ms=step.timeout_ms,
        repeatable=step.is_repeatable,
        undo_repeatable=step.undo_is_repeatable,
    )
    compensate = _nothing if step.has_compensator else None
    return StepCall(declaration, _nothing, (), {}, None, _CONTEXT, compensate)


def _pairs_of(step: StepCode) -> dict[str, str]:
    return PAIRS[(step.attempts + step.is_handled) % len(PAIRS)]


def _nothing() -> None:
    return None


def callback_outcome(draws: Draws, value: str, *, is_undo: bool) -> Outcome:
    """Return how a callback ends that was not cut short."""
    if draws.chance(0.58 if is_undo else 0.64):
        return Succeeded(value=msgspec.Raw(b'"%s"' % value.encode()))
    failure = Failure(category="application", message=f"no {value}")
    return Failed(failure=failure, retryable=draws.chance(0.65))
