"""What the API shows of a run that is blocked by its definition."""

from __future__ import annotations

import msgspec

__all__ = ["Blocker", "Rediscovery", "StepCallSite"]


class _Answer(msgspec.Struct, frozen=True, kw_only=True):
    pass


class StepCallSite(_Answer, frozen=True, kw_only=True):
    """Where a step is called, as file:line, and what it is shown as there; either is empty where the worker could not tell."""

    location: str
    name: str


class Blocker(_Answer, frozen=True, kw_only=True):
    """Why a run's code cannot be followed: one step id is used twice in a pass.

    `count` says how many passes found it so. `release` and `instance` are of the worker that saw it last. `needs_probe` says
    that a fix may come unannounced, so that the code is looked at again from time to time; `probe_count` of those looks were made.
    """

    reason: str
    step: str
    first: StepCallSite
    duplicate: StepCallSite
    first_seen_at_ms: int
    seen_at_ms: int
    count: int
    instance: str | None
    release: str | None
    probe_count: int
    needs_probe: bool


class Rediscovery(_Answer, frozen=True, kw_only=True):
    """What a request to look at a blocked run's code came to: `outcome` is accepted or already_requested.

    `blocker` is what blocked the run at that moment.
    """

    run: str
    outcome: str
    blocker: Blocker | None
    explanation: str
