"""Whether a process may serve: its store answers, its clock agrees with its peers', it is not leaving.

Clocks are compared through the store. Each process records what its clock said at a version it read; versions advance with
the store's own time, so the difference of two such marks is the difference of the clocks. One disagreement may be a version
that jumped (a recovery of the cluster) or a mark from before a correction, so several in a row are asked for.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from statistics import median
from typing import NamedTuple, TypeVar

from keyspace.errors import KeyspaceError
from keyspace.keyspace import Keyspace
from keyspace.tx import Tx

__all__ = ["ClockMark", "Health", "NotServing", "ServingKeyspace"]

T = TypeVar("T")

VERSIONS_PER_MS = 1_000
"""Source: apple/foundationdb fdbserver knobs, VERSIONS_PER_SECOND 1e6; the embedded store keeps the same pace."""
DISAGREEMENTS_MAX = 3
"""Comparisons in a row beyond the skew bound after which the clock counts as wrong."""


class ClockMark(NamedTuple):
    """What a clock said (Unix epoch milliseconds) when its process read at a store version."""

    clock_ms: int
    version: int

    @property
    def offset_ms(self) -> float:
        """The clock against the store's time."""
        return self.clock_ms - self.version / VERSIONS_PER_MS


class NotServing(KeyspaceError):
    """This process may not commit now; another one can."""

    def __init__(self, reason: str) -> None:
        """Say why."""
        super().__init__("not_serving", "This process does not serve at the moment; try again.", reason=reason)


class Health:
    """What a process knows of its own fitness; plain state, changed by its heartbeat."""

    def __init__(self, skew_ms: int) -> None:
        """Start without fault; clocks may differ by `skew_ms`."""
        self.skew_ms = skew_ms
        self.clock_offset_ms = 0.0
        """How far this process's clock lies ahead of the median of its live peers."""
        self.store_fault = ""
        self.is_leaving = False
        self._disagreement_count = 0

    @property
    def clock_fault(self) -> str:
        """Why the clock cannot be trusted, or nothing."""
        if self._disagreement_count < DISAGREEMENTS_MAX:
            return ""
        return f"clock is {self.clock_offset_ms:.0f} ms off its peers; allowed are {self.skew_ms} ms"

    @property
    def faults(self) -> list[str]:
        """Every reason not to serve; empty when ready."""
        leaving = "draining" if self.is_leaving else ""
        return [fault for fault in (self.store_fault, self.clock_fault, leaving) if fault]

    def compare_clocks(self, own: ClockMark, peers: Sequence[ClockMark]) -> None:
        """Judge the own clock against the median of the live peers; without peers it cannot be wrong."""
        if not peers:
            self.clock_offset_ms, self._disagreement_count = 0.0, 0
            return
        self.clock_offset_ms = own.offset_ms - median(peer.offset_ms for peer in peers)
        if abs(self.clock_offset_ms) > self.skew_ms:
            self._disagreement_count += 1
        else:
            self._disagreement_count = 0


class ServingKeyspace(Keyspace):
    """A keyspace that commits nothing while its process's clock cannot be trusted (ARCHITECTURE 5)."""

    health: Health | None = None

    async def transact(self, name: str, body: Callable[[Tx], Awaitable[T]]) -> T:
        """Run a transition as `Keyspace.transact` does.

        Raises:
            NotServing: the clock is off; nothing was tried.
        """
        if self.health is not None and self.health.clock_fault:
            raise NotServing(self.health.clock_fault)
        return await super().transact(name, body)

    async def transact_always(self, name: str, body: Callable[[Tx], Awaitable[T]]) -> T:
        """Run a transaction of the process about itself, also while it may not serve."""
        return await super().transact(name, body)
