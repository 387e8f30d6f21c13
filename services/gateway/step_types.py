"""What the API answers of steps: each with its policy, its attempts and what came of them."""

from __future__ import annotations

import msgspec

from services.gateway.run_types import Failure, OptionalRaw

__all__ = [
    "Attempt",
    "AwaitedEvent",
    "Retry",
    "StaleResult",
    "Step",
    "StepDetail",
]


class _Answer(msgspec.Struct, frozen=True, kw_only=True):
    pass


class Retry(_Answer, frozen=True, kw_only=True):
    """The retry policy that the declaration recorded; `attempts` counts the first one too."""

    attempts: int
    initial_ms: int
    coefficient: float
    cap_ms: int


class Attempt(_Answer, frozen=True, kw_only=True):
    """One physical attempt of a step, by the worker instance that was authorized to make it."""

    direction: str
    generation: int
    ordinal: int
    operation: str
    state: str
    queued_at_ms: int
    vesting_ms: int
    authorized_at_ms: int | None
    lost_at_ms: int | None
    settled_at_ms: int | None
    session: str | None
    instance: str | None
    release: str | None
    failure: Failure | None
    stale_count: int
    loss_count: int


class AwaitedEvent(_Answer, frozen=True, kw_only=True):
    """What a waiting step is registered for: an event of this name that carries every pair of `match`.

    Only an event accepted after the registration counts, and before the timeout is over: `registered_at_ms` is when it was
    made, and `stamp` is its place among the commits, which decides between two of the same millisecond.
    """

    name: str
    match: dict[str, str]
    timeout_ms: int
    registered_at_ms: int
    stamp: str


class Step(_Answer, frozen=True, kw_only=True):
    """A step with all its attempts, forward ones first.

    `repeatable` says that an attempt that is lost is delivered again by itself; `undo_repeatable` says it of its compensator.
    `kind` is `callback`, or names a step that the service settles itself and that has no attempts: `due_at_ms` is the instant it
    waits for, `event` the event it emitted or was settled by, `awaited` what a wait that is not settled is registered for, `child`
    the run that it started.
    """

    step: str
    name: str
    kind: str
    child: str | None
    state: str
    compensation: str
    ordinal: int
    failure_count: int
    retry: Retry
    timeout_ms: int | None
    repeatable: bool
    undo_repeatable: bool
    location: str
    declared_at_ms: int
    settled_at_ms: int | None
    completion: int | None
    value_bytes: int | None
    failure: Failure | None
    attempts: list[Attempt]
    due_at_ms: int | None
    event: str | None
    awaited: AwaitedEvent | None = None


class StaleResult(_Answer, frozen=True, kw_only=True):
    """A result that came after the attempt had been decided: a diagnostic, acted upon by nobody."""

    direction: str
    generation: int
    received_at_ms: int
    outcome: str
    value_bytes: int
    failure: Failure | None


class StepDetail(Step, frozen=True, kw_only=True):
    """A step with its accepted value and the results that lost."""

    stale_results: list[StaleResult] = []
    value: OptionalRaw = None
