"""Which other processes live, told by signs of life that change, whatever the clocks say.

A record that says the same for too long is of a dead process: that is measured on the own monotonic clock alone. How old a record
is when it is first met can only be told by comparing clocks; it spares a process that has just begun from waiting for the long dead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from keyspace.records.work import ProcessRecord
from services.runtime.health import ClockMark

__all__ = ["SignsOfLife"]


class _Sign(NamedTuple):
    """What a process last said, and when that was first read on the own monotonic clock."""

    clock_ms: int
    read_ms: float


class SignsOfLife:
    """What one process has seen of the others."""

    def __init__(self, live_ms: int) -> None:
        """A process silent for longer than `live_ms` milliseconds is dead."""
        self._live_ms = live_ms
        self._signs: dict[str, _Sign] = {}

    def live(
        self, everybody: Sequence[ProcessRecord], *, now_ms: int, monotonic_ms: float, own: ClockMark | None
    ) -> list[ProcessRecord]:
        """Take in what was read and return the records of those that live.

        Args:
            everybody: every process's record, read just now.
            now_ms: engine time in milliseconds.
            monotonic_ms: the own monotonic clock, in milliseconds.
            own: what the own clock said at a store version; None as long as no mark was prompt enough.
        """
        self._signs = {peer.process_id: self._sign(peer, monotonic_ms) for peer in everybody}
        return [
            peer
            for peer in everybody
            if monotonic_ms - self._signs[peer.process_id].read_ms <= self._live_ms
            and abs(now_ms - peer.clock_ms) <= self._live_ms + stray_ms(peer, own)
        ]

    def _sign(self, peer: ProcessRecord, monotonic_ms: float) -> _Sign:
        before = self._signs.get(peer.process_id)
        if before is not None and before.clock_ms == peer.clock_ms:
            return before
        return _Sign(peer.clock_ms, monotonic_ms)


def stray_ms(peer: ProcessRecord, own: ClockMark | None) -> float:
    """Return how far a peer's clock lies from the own one, so that one that is off seems no older than it is; 0 when unknown."""
    if own is None or not peer.mark_version:
        return 0.0
    return abs(ClockMark(peer.mark_ms, peer.mark_version).offset_ms - own.offset_ms)
