"""What the core asks the shell to do. The core itself does nothing to the world."""

from __future__ import annotations

from dataclasses import dataclass, field

from ryusen.errors import DeclarationRefused
from ryusen.protocol.frames import Assign, WorkerFrame, WorkRef

__all__ = [
    "CancelCallback",
    "Close",
    "ClosePass",
    "ContinuePass",
    "Effect",
    "Effects",
    "Exit",
    "MovePass",
    "ResumePass",
    "RunCallback",
    "Send",
    "StartPass",
    "Warn",
]


@dataclass(frozen=True)
class Send:
    """Send a frame in the current session."""

    frame: WorkerFrame


@dataclass(frozen=True)
class StartPass:
    """Start a pass for an assignment; its turns come back under the request id."""

    request: str
    assign: Assign
    value_bytes_max: int


@dataclass(frozen=True)
class ResumePass:
    """Raise the refusal at the call that the pass is parked at."""

    request: str
    refusal: DeclarationRefused


@dataclass(frozen=True)
class ContinuePass:
    """Let the pass go on behind the step whose callback has just succeeded; its turns come back under `following`.

    It sees the value decoded from the bytes that were reported, as every later pass will.
    """

    request: str
    following: str
    value: bytes


@dataclass(frozen=True)
class MovePass:
    """The step that the pass is parked at is this delivery now: its callback runs under `following`."""

    request: str
    following: str
    ref: WorkRef


@dataclass(frozen=True)
class RunCallback:
    """Run the callback that the pass is parked at, once."""

    request: str
    value_bytes_max: int


@dataclass(frozen=True)
class CancelCallback:
    """Ask a callback that overran its timeout to end; its outcome no longer counts."""

    request: str


@dataclass(frozen=True)
class ClosePass:
    """The pass is over; nothing of it is heard any more."""

    request: str


@dataclass(frozen=True)
class Close:
    """Close the connection and open another one."""

    reason: str


@dataclass(frozen=True)
class Exit:
    """End the worker with this exit code, after the frames sent so far."""

    code: int
    message: str


@dataclass(frozen=True)
class Warn:
    """Tell the operator."""

    message: str


Effect = (
    Send
    | StartPass
    | ResumePass
    | ContinuePass
    | MovePass
    | RunCallback
    | CancelCallback
    | ClosePass
    | Close
    | Exit
    | Warn
)


@dataclass
class Effects:
    """Effects in the order in which they are to be done."""

    items: list[Effect] = field(default_factory=list)

    def add(self, *effects: Effect) -> None:
        """Do these after the others."""
        self.items.extend(effects)
