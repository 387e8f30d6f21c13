"""The pieces of work a worker tracks, who it is, and the bounds of both."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from ryusen.protocol.frames import Answer, NotFound, Result, WorkRef

__all__ = [
    "EXIT_REFUSED",
    "EXIT_UNFINISHED",
    "FOLLOWING",
    "HELD_EXTRA_MAX",
    "HELLO_MS_MAX",
    "OVERRUN_WARN_MS",
    "PASS_MS_MAX",
    "RECENT_MAX",
    "REFUSALS_MAX",
    "RENEW_EVERY_MS_MIN",
    "RENEW_PAGE",
    "SLOT_WAIT_MS_MAX",
    "UNDO_CAPACITY_DEFAULT",
    "UNSTARTED",
    "Link",
    "State",
    "Work",
    "WorkerIdentity",
]

UNDO_CAPACITY_DEFAULT = 1
"""Slots for compensators alone: with one, no undo waits for another run's callback to end."""
HELLO_MS_MAX = 10_000
"""How long the answer to a hello may take."""
SLOT_WAIT_MS_MAX = 10_000
"""How long work may wait here for a free slot before it goes back to the queue, where another worker may take it."""
PASS_MS_MAX = 300_000
"""How long one turn of a pass may take; code outside steps is meant to be short."""
OVERRUN_WARN_MS = 5_000
"""How long a callback may go on after its timeout before it is named in a warning."""
HELD_EXTRA_MAX = 56
"""Deliveries held beyond both capacities: passes under way and frames kept until settled. More is given back."""
RECENT_MAX = 1_024
"""Request ids remembered after their work is forgotten, to know a repeated delivery."""
REFUSALS_MAX = 100
"""Refused declarations in one pass before the pass is failed instead of going on."""
RENEW_PAGE = 64
"""Request ids in one renew frame."""
RENEW_EVERY_MS_MIN = 20
"""The least time between renewals, whatever the server asks for."""

FOLLOWING = "+"
"""Behind a result's request id: the request id of the pass that follows it. No other request id ends so."""

EXIT_REFUSED = 3
"""The service refused this worker for good: credentials or protocol."""
EXIT_UNFINISHED = 1
"""The grace ended before the work did."""


class State(enum.Enum):
    """How far one delivery of work has come in this process; `core` tells the story."""

    PASSING = "passing"
    WAITING = "waiting"
    READY = "ready"
    RUNNING = "running"
    ENDED = "ended"


class Link(enum.Enum):
    """The connection as the core sees it."""

    DOWN = "down"
    GREETING = "greeting"
    UP = "up"
    CLOSING = "closing"


UNSTARTED = frozenset((State.PASSING, State.WAITING, State.READY))


@dataclass(frozen=True)
class WorkerIdentity:
    """What a worker says about itself.

    Attributes:
        application: the application it serves.
        instance: new for every process.
        functions: the names of the functions it serves.
        capacity: how many callbacks it runs at once, at least 1.
        release: the deployed release, for people and for release choice.
        sdk: the SDK's name and version.
        undo_capacity: how many compensators it runs besides, at least 0.
    """

    application: str
    instance: str
    functions: tuple[str, ...]
    capacity: int
    release: str = ""
    sdk: str = ""
    undo_capacity: int = 0


@dataclass
class Work:
    """One delivery of work. `frame` is what was answered and is kept until it is settled.

    `follows` is the request of the success that this pass goes on from; empty for work that was assigned.
    """

    request: str
    ref: WorkRef
    function: str
    timeout_ms: int | None
    since_ms: float
    state: State = State.PASSING
    frame: Result | Answer | NotFound | None = None
    deadline_ms: float | None = None
    refusals: int = 0
    follows: str = ""

    @property
    def is_discovery(self) -> bool:
        """Whether it is a pass to find the next step, rather than one towards a callback."""
        return self.ref.kind == "discovery" or self.follows != ""

    @property
    def is_undo(self) -> bool:
        """Whether it is one towards a compensator."""
        return self.ref.kind == "compensation"

    @property
    def due_ms(self) -> float | None:
        """When the present state has lasted too long, or None when it may last."""
        if self.state is State.PASSING:
            return self.since_ms + PASS_MS_MAX
        if self.state is State.WAITING:
            return self.since_ms + SLOT_WAIT_MS_MAX
        return self.deadline_ms

    @property
    def label(self) -> str:
        """Name the work for people."""
        step = f"step {self.ref.step} of " if self.ref.step else ""
        return f"{step}function {self.function}, run {self.ref.run}"
