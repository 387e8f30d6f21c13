"""What one session holds, against what its worker has declared: places for every delivery, and some for compensation alone.

With long callbacks in all its places, a worker would have none for an undo that a failed run waits for. So it may declare,
besides its capacity, an undo capacity (RFD 2, "can reserve capacity"). Places are counted, not numbered: forward work holds at
most the capacity, and everything together at most both, so as many as are reserved are always either free or compensation's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from keyspace.records.work import WorkKind
from services.dispatcher.held import Held

__all__ = ["Deliveries"]


class Deliveries:
    """The deliveries of one session by request id, and the seats kept for leases that are being made.

    The counts are kept, not taken: they are asked for at every frame.
    """

    def __init__(self, capacity: int, undo_capacity: int, adopted: Iterable[Held]) -> None:
        """Hold what a hello listed, which may be more than it declared.

        Args:
            capacity: places for any delivery, at least 1.
            undo_capacity: more places, for compensation alone, at least 0.
            adopted: what is held already.
        """
        self._capacity = capacity
        self._undo_capacity = undo_capacity
        self._held: dict[str, Held] = {}
        self._kept: dict[str, bool] = {}
        self._undo_count = 0
        for held in adopted:
            self.add(held)

    def __len__(self) -> int:
        """Return how many deliveries are held; seats kept for leases do not count."""
        return len(self._held)

    def __iter__(self) -> Iterator[Held]:
        """Iterate over a copy, so that what is met may be removed."""
        return iter(list(self._held.values()))

    def __contains__(self, request: str) -> bool:
        """Whether the delivery is held."""
        return request in self._held

    def __getitem__(self, request: str) -> Held:
        """Return the delivery.

        Raises:
            KeyError: it is not held.
        """
        return self._held[request]

    def get(self, request: str) -> Held | None:
        """Return the delivery, or None when it is not held."""
        return self._held.get(request)

    def add(self, held: Held) -> None:
        """Hold a delivery; the seat that was kept for it is its own now."""
        self.free_seat(held.request)
        self.remove(held.request)
        self._held[held.request] = held
        self._undo_count += _is_undo(held)

    def remove(self, request: str) -> Held | None:
        """Hold a delivery no longer and return it; None when it is not held."""
        held = self._held.pop(request, None)
        if held is not None:
            self._undo_count -= _is_undo(held)
        return held

    def clear(self) -> None:
        """Hold nothing any more; seats stay kept for the leases that are being made."""
        for held in self:
            self.remove(held.request)

    # -- seats

    def keep_seat(self, token: str, *, is_undo: bool) -> None:
        """Keep a place for what comes under `token`."""
        self.free_seat(token)
        self._kept[token] = is_undo
        self._undo_count += is_undo

    def free_seat(self, token: str) -> None:
        """Free a place that was kept; again changes nothing."""
        self._undo_count -= self._kept.pop(token, False)

    @property
    def undo_free_count(self) -> int:
        """How many places compensation may still take: any that is free."""
        return max(0, self._capacity + self._undo_capacity - len(self._held) - len(self._kept))

    @property
    def free_count(self) -> int:
        """How many places anything may still take: none of those that are compensation's alone."""
        free_count = self._capacity - len(self._held) - len(self._kept)
        # Undos stand in reserved places first; forward work may have what they so leave of the others.
        beyond_count = min(self._undo_count, self._undo_capacity)
        return max(0, free_count + beyond_count)


def _is_undo(held: Held) -> bool:
    return held.work.kind is WorkKind.COMPENSATION
