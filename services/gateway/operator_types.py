"""What the operator's endpoints take and answer: cancellation, the attempts whose outcome is unknown, and their resolution."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

__all__ = [
    "Cancellation",
    "FailureDeclared",
    "Resolution",
    "ResolutionRequest",
    "RetryAuthorized",
    "Stop",
    "SuccessSupplied",
    "UnresolvedAttempt",
]

if TYPE_CHECKING:
    UnsetRaw: TypeAlias = msgspec.Raw | msgspec.UnsetType
else:
    # The decoder keeps raw text only for a member declared as nothing but raw; an absent one stays unset all the same.
    UnsetRaw = msgspec.Raw


class _Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class _Answer(msgspec.Struct, frozen=True, kw_only=True):
    pass


class Cancellation(_Answer, frozen=True, kw_only=True):
    """What a cancellation came to.

    `outcome` is accepted, repeated, already_ending or already_terminal. `settling` says that a step that had begun, or whose
    outcome is unknown, is still waited for: nothing here says that running work has stopped. `explanation` says it in words.
    """

    run: str
    outcome: str
    phase: str
    status: str
    execution: str | None
    recovery: str | None
    settling: bool
    explanation: str


class Stop(_Answer, frozen=True, kw_only=True):
    """Why a run was told to stop, when, and by which key; the first reason stands."""

    reason: str
    at_ms: int
    by: str


class UnresolvedAttempt(_Answer, frozen=True, kw_only=True):
    """An attempt whose outcome nobody knows. `stop` is why its run was told to stop.

    `may_retry` says whether an explicit retry is allowed now: forward it is not once the run was stopped or its deadline has
    passed.
    """

    run: str
    application: str
    function: str
    phase: str
    stop: str | None
    step: str
    direction: str
    generation: int
    ordinal: int
    operation: str
    instance: str | None
    release: str | None
    authorized_at_ms: int | None
    lost_at_ms: int | None
    may_retry: bool


class SuccessSupplied(_Request, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The effect happened, and `value` is its result, kept byte for byte; a compensation's value is not kept."""

    value: msgspec.Raw


class FailureDeclared(_Request, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The attempt failed; the step's recorded retry policy decides what follows. `details` is any portable value."""

    message: str
    category: str = "operator"
    details: UnsetRaw = msgspec.UNSET


class RetryAuthorized(_Request, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Do it again under the same operation id, although it may have happened."""


class ResolutionRequest(_Request, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Exactly one of `success`, `failure` and `retry`, for an attempt of the step or, by `direction`, of its compensation."""

    success: SuccessSupplied | msgspec.UnsetType = msgspec.UNSET
    failure: FailureDeclared | msgspec.UnsetType = msgspec.UNSET
    retry: RetryAuthorized | msgspec.UnsetType = msgspec.UNSET
    direction: Literal["forward", "compensation"] = "forward"


class Resolution(_Answer, frozen=True, kw_only=True):
    """What a command did, as it was recorded when it was first executed; `replayed` says that this answer repeats it.

    `phase` is the run's phase right after the command, `following_generation` the attempt that an authorized retry created.
    """

    run: str
    step: str
    direction: str
    generation: int
    command: str
    attempt_state: str
    phase: str
    following_generation: int | None
    resolved_at_ms: int
    resolved_by: str
    replayed: bool
    consequence: str
