"""Which fault strikes where: scripts by number and transition, sequences over one run's attempts, and draws from a seed.

A plan is consulted by `FaultStore` and decides nothing else. Two plans made alike answer alike to the same questions:
commits, reads, watches and delays are drawn from separate streams, so one read more does not move the commit faults.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, TypeVar

from keyspace.store.runner import RunContext

__all__ = ["NO_RATES", "CommitFault", "FaultPlan", "FaultRates", "ReadFault", "WatchFault"]


class CommitFault(Enum):
    """What can befall a commit."""

    CLEAN = "clean"
    """Nothing; a place in a sequence, or an exception from the drawn rates."""
    NOT_COMMITTED = "not_committed"
    TRANSACTION_TOO_OLD = "transaction_too_old"
    FUTURE_VERSION = "future_version"
    PROCESS_BEHIND = "process_behind"
    THROTTLED = "throttled"
    UNKNOWN_COMMITTED = "unknown_committed"
    """It commits, and commit_unknown_result is reported."""
    UNKNOWN_NOT_COMMITTED = "unknown_not_committed"
    """It does not commit, and commit_unknown_result is reported."""
    TIMED_OUT_LATE = "timed_out_late"
    """transaction_timed_out is reported; it is sent to commit just before the next numbered commit, or at `land`."""
    TIMED_OUT_LOST = "timed_out_lost"
    """transaction_timed_out is reported; it never commits."""
    DELAYED = "delayed"
    """It commits after a delay on the clock."""
    STOP_BEFORE = "stop_before"
    """The process stops; the commit was never sent."""
    STOP_AFTER = "stop_after"
    """It commits and the process stops before anybody hears of it."""


class ReadFault(Enum):
    """What can befall a read."""

    TRANSACTION_TOO_OLD = "transaction_too_old"
    FUTURE_VERSION = "future_version"
    PROCESS_BEHIND = "process_behind"
    THROTTLED = "throttled"
    DELAYED = "delayed"
    """The answer, correct at its read version, comes after a delay on the clock."""


class WatchFault(Enum):
    """What can befall a watch."""

    LOST = "lost"
    """It never fires, whatever changes."""
    EARLY = "early"
    """It fires at once, before anything has changed."""
    SPURIOUS = "spurious"
    """It fires after a delay on the clock although nothing has changed."""
    BROKEN = "broken"
    """It fails with operation_cancelled."""


F = TypeVar("F", bound=Enum)


@dataclass(frozen=True, slots=True)
class FaultRates:
    """The probability, 0 to 1, of each fault at each point; in each mapping they sum to 1 at most."""

    commit: Mapping[CommitFault, float] = field(default_factory=dict)
    read: Mapping[ReadFault, float] = field(default_factory=dict)
    watch: Mapping[WatchFault, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what is not a distribution."""
        for rates in (self.commit, self.read, self.watch):
            shares = list(rates.values())
            if any(share < 0 for share in shares) or sum(shares) > 1:
                raise ValueError(f"fault rates must lie in 0 to 1 and sum to 1 at most: {dict(rates)}")


NO_RATES = FaultRates()


@dataclass(slots=True)
class _Script(Generic[F]):
    number: int
    faults: tuple[F, ...]
    transition: str | None
    seen_count: int = 0

    def strikes(self, transition: str | None) -> bool:
        """Count a point that the filter lets through and tell whether it is the one meant."""
        if self.transition is not None and self.transition != transition:
            return False
        self.seen_count += 1
        return self.seen_count == self.number


class FaultPlan:
    """What a `FaultStore` injects. May be extended while in use; holds no store and no clock."""

    def __init__(self, seed: int = 0, rates: FaultRates = NO_RATES, *, delay_ms_max: float = 50.0) -> None:
        """Draw faults with the probabilities of `rates` and delays up to `delay_ms_max` from `seed`."""
        self.seed = seed
        self.rates = rates
        self.delay_ms_max = delay_ms_max
        self._is_healed = False
        self._commits = _Points[CommitFault](seed, "commit", rates.commit)
        self._reads = _Points[ReadFault](seed, "read", rates.read)
        self._watches = _Points[WatchFault](seed, "watch", rates.watch)
        self._delays = random.Random(f"{seed}:delay")

    def at_commit(self, number: int, *faults: CommitFault, transition: str | None = None) -> FaultPlan:
        """Strike the `number`-th commit (from 1) of `transition` (of any, when None) and return the plan.

        Several faults are a sequence: the first strikes that commit, the following ones the later attempts of the same
        run, whatever their numbers; then the run is left alone by this script.
        """
        self._commits.add(_Script(number, faults, transition))
        return self

    def at_read(self, number: int, fault: ReadFault, *, transition: str | None = None) -> FaultPlan:
        """Strike the `number`-th read (from 1) of `transition` (of any, when None) and return the plan."""
        self._reads.add(_Script(number, (fault,), transition))
        return self

    def at_watch(self, number: int, fault: WatchFault, *, transition: str | None = None) -> FaultPlan:
        """Strike the `number`-th watch made (from 1) by `transition` (by any, when None) and return the plan."""
        self._watches.add(_Script(number, (fault,), transition))
        return self

    def heal(self) -> None:
        """Strike nothing from now on, so that a test can ask whether everything finishes once the trouble is over."""
        self._is_healed = True

    def next_commit(self, run: RunContext | None) -> CommitFault | None:
        """Return what strikes the next commit, asked for by `run`."""
        fault = None if self._is_healed else self._commits.next(run)
        return None if fault is CommitFault.CLEAN else fault

    def next_read(self, run: RunContext | None) -> ReadFault | None:
        """Return what strikes the next read, asked for by `run`."""
        return None if self._is_healed else self._reads.next(run)

    def next_watch(self, run: RunContext | None) -> WatchFault | None:
        """Return what strikes the next watch, made by `run`."""
        return None if self._is_healed else self._watches.next(run)

    def delay_ms(self) -> float:
        """Draw a delay, above 0 and up to `delay_ms_max`."""
        return self.delay_ms_max * (1.0 - self._delays.random())


class _Points(Generic[F]):
    """One kind of point: its scripts, the sequences under way and its stream of draws."""

    def __init__(self, seed: int, kind: str, rates: Mapping[F, float]) -> None:
        self._scripts: list[_Script[F]] = []
        self._sequences: dict[RunContext | None, deque[F]] = {}
        self._rates = rates
        self._random = random.Random(f"{seed}:{kind}")

    def add(self, script: _Script[F]) -> None:
        """Take one more script; the first added wins where two strike the same point."""
        if script.number < 1 or not script.faults:
            raise ValueError(f"a script names a point from 1 on and at least one fault: {script}")
        self._scripts.append(script)

    def next(self, run: RunContext | None) -> F | None:
        """Return the fault for the next point, counting it against every script."""
        transition = run.name if run is not None else None
        begun = [script.faults for script in self._scripts if script.strikes(transition)]
        drawn = self._draw()
        if run in self._sequences:
            sequence = self._sequences[run]
        elif begun:
            sequence = self._sequences[run] = deque(begun[0])
        else:
            return drawn
        fault = sequence.popleft()
        if not sequence:
            del self._sequences[run]
        return fault

    def _draw(self) -> F | None:
        if not self._rates:
            return None
        point = self._random.random()
        for fault, share in self._rates.items():
            if point < share:
                return fault
            point -= share
        return None
