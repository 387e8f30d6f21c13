"""What an incident did to the runs that were under way, told from their histories: who was hit, and how long each stood still."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from e2e_world import Mark

__all__ = ["Incident", "Story", "aftermath", "instances_of", "now_ms", "quantile"]

UNDER_WAY_MS = 100
"""Entries as young as this after an incident were commits on their way when it came; they are no sign of recovery."""
OPENING = frozenset({"pass-authorized", "attempt-authorized"})
CLOSING = frozenset(
    {"step-declared", "step-completed", "run-completed", "pass-lost", "attempt-unknown", "attempt-redelivered"}
    | {"attempt-not-started"}
)
PROGRESS = frozenset({"pass-authorized", "attempt-authorized", "step-declared", "step-completed", "run-completed"})


def now_ms() -> float:
    """Return the wall clock that the processes of this machine share, in milliseconds since the Unix epoch."""
    return time.time_ns() / 1_000_000


@dataclass
class Incident:
    """Something that was done to a process.

    Attributes:
        what: in words.
        pids: of the workers whose work it hit: the worker itself, or those with a session at the dispatcher.
        at_ms: when, Unix epoch.
        over_ms: when the process was there again.
    """

    what: str
    pids: set[int]
    at_ms: float = field(default_factory=now_ms)
    over_ms: float = 0.0


@dataclass(frozen=True)
class Story:
    """A run's history."""

    run: str
    entries: Sequence[Mapping[str, Any]]

    def holder(self, at_ms: float) -> str | None:
        """Return the instance that held the run's work at an instant."""
        holder: str | None = None
        for entry in self.entries:
            if entry["at_ms"] > at_ms:
                break
            if entry["kind"] in OPENING:
                holder = entry["data"]["instance"]
            elif entry["kind"] in CLOSING:
                holder = None
        return holder

    def still_ms(self, at_ms: float) -> float | None:
        """Return how long after an instant the run went on; None for one that waits for an operator."""
        for entry in self.entries:
            late_ms = float(entry["at_ms"]) - at_ms
            is_end = entry["kind"] == "run-completed" and late_ms > 0
            if is_end or (late_ms > UNDER_WAY_MS and entry["kind"] in PROGRESS):
                return late_ms
        return None

    def way(self, at_ms: float, until_ms: float) -> str:
        """Return, in words, what the run did from just before an instant until it went on."""
        late = ((entry["kind"], float(entry["at_ms"]) - at_ms) for entry in self.entries)
        return ", ".join(f"{kind} {ms:+.0f}" for kind, ms in late if -UNDER_WAY_MS <= ms <= until_ms)

    def doubt_ms(self, at_ms: float) -> float | None:
        """Return how long after an instant an attempt of the run was shown as Unknown."""
        late = [entry["at_ms"] - at_ms for entry in self.entries if entry["kind"] == "attempt-unknown"]
        return min((float(one) for one in late if one > 0), default=None)


def instances_of(marks: Iterable[Mark], stories: Iterable[Story]) -> dict[str, int]:
    """Return the process of each worker instance, from what both the ledger and the histories tell of one attempt."""
    pids = {(mark.run, mark.step, mark.attempt): mark.pid for mark in marks}
    found: dict[str, int] = {}
    for story in stories:
        for entry in story.entries:
            if entry["kind"] == "attempt-authorized":
                data = entry["data"]
                pid = pids.get((story.run, data["step"], data["attempt"]))
                if pid is not None:
                    found[data["instance"]] = pid
    return found


def aftermath(incident: Incident, stories: Iterable[Story], instances: Mapping[str, int], lease_ms: int) -> list[float]:
    """Print what an incident did and return how long, in ms, each run stood still whose work it hit and that went on."""
    hit = [story for story in stories if instances.get(story.holder(incident.at_ms) or "") in incident.pids]
    assert hit, f"{incident.what} hit nothing"
    went_on = sorted(
        ((late, story) for story in hit if (late := story.still_ms(incident.at_ms)) is not None), key=lambda one: one[0]
    )
    still = [late for late, _ in went_on]
    doubts = [late for late in (story.doubt_ms(incident.at_ms) for story in hit) if late is not None]
    print(f"{incident.what} (away {incident.over_ms - incident.at_ms:.0f} ms): {len(hit)} runs hit")
    if doubts:
        waits = len(hit) - len(still)
        print(f"    {len(doubts)} shown as Unknown, by {max(doubts):.0f} ms; {waits} of all wait for an operator")
    if still:
        last, slowest = went_on[-1]
        print(
            f"    went on: p50 {quantile(still, 0.5):.0f} ms, the last after {last:.0f} ms ({last / lease_ms:.2f} leases)"
        )
        print(f"    the last one's way: {slowest.way(incident.at_ms, last)}")
    return still


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value that a share of the sorted values does not exceed."""
    return values[max(0, math.ceil(share * len(values)) - 1)]
