"""What a session's core asks its shell to do. The core itself does nothing to the world."""

from __future__ import annotations

from dataclasses import dataclass

from ryusen.protocol.frames import Answer, ServerFrame

from services.dispatcher.held import Held
from services.dispatcher.settlement import SettlementFrame

__all__ = [
    "Authorize",
    "Close",
    "CloseSession",
    "Effect",
    "Leaving",
    "Load",
    "Lose",
    "Renewal",
    "Return",
    "Send",
    "Settle",
    "Unstart",
    "Wait",
]


@dataclass(frozen=True)
class Send:
    """Send a frame."""

    frame: ServerFrame


@dataclass(frozen=True)
class Load:
    """Read the assignment of a delivery and hand it to `SessionCore.loaded`; `is_full`: whatever its worker was sent before."""

    held: Held
    is_full: bool = False


@dataclass(frozen=True)
class Authorize:
    """Authorize a start and hand the verdict to `SessionCore.authorized`."""

    held: Held


@dataclass(frozen=True)
class Settle:
    """Settle what the worker said and hand the outcome to `SessionCore.settled`.

    With `joint`, the answer of the pass that follows the success `frame`, both in one transaction. `may_hold` says whether
    the session goes on with the run by itself.
    """

    frame: SettlementFrame
    joint: Answer | None = None
    may_hold: bool = False


@dataclass(frozen=True)
class Wait:
    """Call `SessionCore.waited` with `following` when the answer has had its moment to come."""

    following: str


@dataclass(frozen=True)
class Renewal:
    """Renew leases and hand the outcome to `SessionCore.renewed`; `unknown` are request ids that name none of ours."""

    held: tuple[Held, ...]
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True)
class Return:
    """Give work back that was not started, without counting a loss."""

    item_id: str
    token: str


@dataclass(frozen=True)
class Unstart:
    """An effect that may have been authorized has provably not begun: back to its lane."""

    held: Held


@dataclass(frozen=True)
class Lose:
    """The holder of a lease is gone: redeliver what may be, later each time."""

    held: Held


@dataclass(frozen=True)
class Leaving:
    """The worker takes no more work and finishes what it has."""


@dataclass(frozen=True)
class CloseSession:
    """The worker said bye: forget the instance."""


@dataclass(frozen=True)
class Close:
    """End the connection with a close code and a stable reason."""

    code: int
    reason: str


Effect = Send | Load | Authorize | Settle | Wait | Renewal | Return | Unstart | Lose | Leaving | CloseSession | Close
