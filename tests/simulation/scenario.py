"""A scenario: a seed and a list of moves, each of which decides for itself, so that taking one away does not reshuffle the rest.

A move carries its number, what kind of thing happens and which of its commits fail. Everything else it needs is drawn from a
stream named by the seed and its number. Whom it concerns is not an index but a choice by digest: of the candidates
there are, the one whose name goes best with the move; so it stays the same while other candidates come and go.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from keyspace.store.fault_plan import CommitFault

__all__ = ["FAULTS_PER_MOVE_MAX", "MOVES", "Draws", "Kind", "Move", "Scenario", "make_scenario"]

T = TypeVar("T")

MOVES = 110
"""Moves of a scenario. Measured: rare paths meet in few events and workers, so many short scenarios beat few long ones."""
OPENING = 6
"""Moves at the start that set the scene: workers and events, so that the rest has something to act on."""
FAULTY_SHARE = 0.3
FAULTS_PER_MOVE_MAX = 2
COMMITS_PER_MOVE = 4


class Kind(StrEnum):
    """What can happen."""

    SUBMIT = "submit an event"
    INVOKE = "a function is invoked"
    FLOW = "let everything flow"
    LEASE = "lease work"
    TO_WORKER = "a frame reaches a worker"
    TO_SERVER = "a frame reaches a dispatcher"
    DISPATCHER = "a dispatcher does something"
    WORKER = "a worker does something"
    TIME = "time passes"
    HEARTBEAT = "leases are renewed in time"
    CLOCK_SET = "the clock is set"
    RECOVER = "expired leases are recovered"
    CUT = "a connection breaks"
    HURRY = "a worker connects anew at once"
    START_WORKER = "a worker starts"
    KILL_WORKER = "a worker is killed"
    LOSE = "contact with running work is lost"
    DRAIN_WORKER = "a worker drains"
    STOP_DISPATCHER = "a dispatcher restarts"
    LEAVE = "a dispatcher drains"
    CANCEL = "a run is cancelled"
    REDISCOVER = "an operator asks to look again"
    RESOLVE = "an operator resolves"
    DUPLICATE = "a worker's frame comes twice"
    REORDER = "frames overtake each other"
    FORGE = "a forged frame comes"
    CLEAR = "a due pointer is cleared"


WEIGHTS: dict[Kind, float] = {
    Kind.SUBMIT: 1.5,
    Kind.INVOKE: 1.2,
    Kind.FLOW: 13,
    Kind.LEASE: 9,
    Kind.TO_WORKER: 12,
    Kind.TO_SERVER: 12,
    Kind.DISPATCHER: 16,
    Kind.WORKER: 12,
    Kind.TIME: 7,
    Kind.HEARTBEAT: 2,
    Kind.CLOCK_SET: 0.7,
    Kind.RECOVER: 5,
    Kind.CUT: 4,
    Kind.HURRY: 5,
    Kind.START_WORKER: 3,
    Kind.KILL_WORKER: 1,
    Kind.LOSE: 8,
    Kind.DRAIN_WORKER: 0.7,
    Kind.STOP_DISPATCHER: 0.7,
    Kind.LEAVE: 0.4,
    Kind.CANCEL: 2,
    Kind.REDISCOVER: 2,
    Kind.RESOLVE: 5,
    Kind.DUPLICATE: 2,
    Kind.REORDER: 1,
    Kind.FORGE: 2,
    Kind.CLEAR: 0.7,
}

FAULTS: dict[CommitFault, float] = {
    CommitFault.NOT_COMMITTED: 5,
    CommitFault.TRANSACTION_TOO_OLD: 1,
    CommitFault.UNKNOWN_COMMITTED: 5,
    CommitFault.UNKNOWN_NOT_COMMITTED: 3,
    CommitFault.TIMED_OUT_LATE: 3,
    CommitFault.TIMED_OUT_LOST: 1,
    CommitFault.DELAYED: 1,
    CommitFault.STOP_BEFORE: 2,
    CommitFault.STOP_AFTER: 2,
}


@dataclass(frozen=True)
class Move:
    """One scripted decision.

    Attributes:
        number: its place in the scenario it was made for, from 1; its name for ever.
        kind: what happens.
        faults: which commits inside it fail, counted from 1, and how.
    """

    number: int
    kind: Kind
    faults: tuple[tuple[int, CommitFault], ...] = ()

    @property
    def text(self) -> str:
        """The move in words."""
        faults = "".join(f" [commit {number}: {fault.value}]" for number, fault in self.faults)
        return f"{self.kind.value}{faults}"


@dataclass(frozen=True)
class Scenario:
    """What a seed stands for; a shrunk one has fewer moves and faults."""

    seed: int
    moves: tuple[Move, ...]


class Draws:
    """The decisions of one move."""

    def __init__(self, seed: int, name: str) -> None:
        """Begin the stream called `name`."""
        self._name = f"{seed}/{name}"
        self._rng = random.Random(self._name)

    def chance(self, share: float) -> bool:
        """Return True in that share of all moves."""
        return self._rng.random() < share

    def number(self, least: int, most: int) -> int:
        """Return a whole number, both ends included."""
        return self._rng.randint(least, most)

    def one_of(self, options: Sequence[T]) -> T:
        """Return one of a fixed list."""
        return self._rng.choice(options)

    def bytes(self, count: int) -> bytes:
        """Return random bytes."""
        return self._rng.randbytes(count)

    def choose(self, candidates: Sequence[T], name_of: Callable[[T], str]) -> T:
        """Return the candidate whose name goes best with this move; at least one is needed."""
        return min(candidates, key=lambda one: hashlib.blake2b(f"{self._name}/{name_of(one)}".encode()).digest())


def make_scenario(seed: int, count: int = MOVES) -> Scenario:
    """Return the scenario of a seed."""
    return Scenario(seed, tuple(_make_move(seed, number) for number in range(1, count + 1)))


def _make_move(seed: int, number: int) -> Move:
    rng = random.Random(f"{seed}/move/{number}")
    if number <= OPENING:
        return Move(number, (Kind.START_WORKER, Kind.SUBMIT, Kind.FLOW)[(number - 1) % 3])
    kind = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
    faults = []
    if rng.random() < FAULTY_SHARE:
        for _ in range(rng.randint(1, FAULTS_PER_MOVE_MAX)):
            fault = rng.choices(list(FAULTS), list(FAULTS.values()))[0]
            faults.append((rng.randint(1, COMMITS_PER_MOVE), fault))
    return Move(number, kind, tuple(sorted(dict(faults).items())))
