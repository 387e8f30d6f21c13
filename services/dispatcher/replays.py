"""What a session's worker was sent of each run's replay, so that the next assignment carries only what is new.

Only a memory: what it has forgotten is sent in full, and a worker that lacks what is remembered here says so.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

__all__ = ["Replays", "Sent"]

RUNS_MAX = 4_096
"""Runs remembered for one session; the one longest not assigned is forgotten first."""


class Sent(NamedTuple):
    """The settled steps that the worker has, from the first on: how many, and their digest."""

    step_count: int
    digest: str


class Replays:
    """One session's memory."""

    def __init__(self, runs_max: int = RUNS_MAX) -> None:
        """Remember nothing yet, and never more than `runs_max` runs."""
        self._runs_max = runs_max
        self._sent: OrderedDict[str, Sent] = OrderedDict()

    def of(self, run_id: str) -> Sent | None:
        """Return what the worker has of a run, or None."""
        return self._sent.get(run_id)

    def remember(self, run_id: str, sent: Sent) -> None:
        """An assignment goes to the worker, after which it has this much."""
        self._sent[run_id] = sent
        self._sent.move_to_end(run_id)
        if len(self._sent) > self._runs_max:
            self._sent.popitem(last=False)

    def forget(self, run_id: str) -> None:
        """The worker has nothing of a run any more."""
        self._sent.pop(run_id, None)
