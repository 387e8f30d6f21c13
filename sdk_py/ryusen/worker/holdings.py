"""The work that a worker holds and the slots it has for running it.

A slot is held from READY until the callback has truly ended, also past its timeout, and goes on with the pass behind a
success. Some slots are for compensators alone, so that no undo waits behind forward work: forward callbacks take at most
`capacity` slots, and all together at most those and the ones for undoing. What was forgotten is remembered by name for a while,
so that a repeated delivery starts nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from ryusen.protocol.frames import Ready
from ryusen.worker.effects import ClosePass, Effects, Send, Warn
from ryusen.worker.work import OVERRUN_WARN_MS, RECENT_MAX, UNSTARTED, State, Work

__all__ = ["Holdings"]


class Holdings:
    """Everything one worker process holds, by request id."""

    def __init__(self, capacity: int, undo_capacity: int) -> None:
        """Hold nothing, with `capacity` slots and `undo_capacity` more for compensators."""
        self._capacity = capacity
        self._undo_capacity = undo_capacity
        self._works: dict[str, Work] = {}
        self._waiting: dict[str, Work] = {}
        self._waiting_undos: dict[str, Work] = {}
        self._busy: dict[str, bool] = {}
        self._busy_undo_count = 0
        self._overruns: dict[str, tuple[str, float]] = {}
        self._recent: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        """Return how many pieces of work are held."""
        return len(self._works)

    def __iter__(self) -> Iterator[Work]:
        """Iterate over a copy, so that what is met may be forgotten."""
        return iter(list(self._works.values()))

    def __contains__(self, request: str) -> bool:
        """Whether the delivery is held."""
        return request in self._works

    def get(self, request: str) -> Work | None:
        """Return the work, or None when it is not held."""
        return self._works.get(request)

    def requests(self) -> list[str]:
        """Return the request ids of everything held."""
        return list(self._works)

    def knows(self, request: str) -> bool:
        """Whether the delivery is held, or was not long ago."""
        return request in self._works or request in self._recent

    def add(self, work: Work) -> None:
        """Hold a piece of work."""
        self._works[work.request] = work

    def forget(self, work: Work, effects: Effects) -> None:
        """Hold it no longer; its pass is closed and its slot free, unless its callback overruns."""
        self._remove(work)
        if work.request not in self._overruns:
            self._leave_slot(work.request)
            effects.add(ClosePass(work.request))  # an overrunning callback may still use what its pass holds open

    def hand_on(self, work: Work) -> None:
        """Hold it no longer; its pass and its slot go on under another name."""
        self._remove(work)
        self._leave_slot(work.request)

    def _remove(self, work: Work) -> None:
        del self._works[work.request]
        self._waiting.pop(work.request, None)
        self._waiting_undos.pop(work.request, None)
        self._recent[work.request] = None
        if len(self._recent) > RECENT_MAX:
            self._recent.popitem(last=False)

    def unstarted_callbacks(self) -> list[Work]:
        """Return the effects whose callback has not begun."""
        return [work for work in self._works.values() if not work.is_discovery and work.state in UNSTARTED]

    # ---- slots

    @property
    def has_undo_slot(self) -> bool:
        """Whether a slot is free for a compensator: any will do."""
        return len(self._busy) < self._capacity + self._undo_capacity

    @property
    def has_slot(self) -> bool:
        """Whether a slot is free for a forward callback."""
        return len(self._busy) - self._busy_undo_count < self._capacity and self.has_undo_slot

    def holds_slot(self, request: str) -> bool:
        """Whether a delivery holds a slot."""
        return request in self._busy

    def take_slot(self, work: Work) -> None:
        """Let a delivery hold a slot."""
        self._leave_slot(work.request)
        self._busy[work.request] = work.is_undo
        self._busy_undo_count += work.is_undo

    def free_slot(self, request: str) -> None:
        """The callback has truly ended."""
        self._leave_slot(request)
        self._overruns.pop(request, None)

    def _leave_slot(self, request: str) -> None:
        self._busy_undo_count -= self._busy.pop(request, False)

    def wait_for_slot(self, work: Work, now_ms: float) -> None:
        """Have a piece of work wait for a slot, behind what waits already."""
        work.state, work.since_ms = State.WAITING, now_ms
        (self._waiting_undos if work.is_undo else self._waiting)[work.request] = work

    def offer_slots(self, effects: Effects) -> None:
        """Give free slots to what waits for one, undos first, each in order.

        Called at every frame, so it must cost nothing when nothing waits.
        """
        while self._waiting_undos and self.has_undo_slot:
            self._offer_slot(self._waiting_undos, effects)
        while self._waiting and self.has_slot:
            self._offer_slot(self._waiting, effects)

    def _offer_slot(self, waiting: dict[str, Work], effects: Effects) -> None:
        work = waiting.pop(next(iter(waiting)))
        work.state = State.READY
        self.take_slot(work)
        effects.add(Send(Ready(request=work.request)))

    # ---- callbacks that go on after their timeout

    def overrun(self, work: Work, now_ms: float) -> None:
        """The timeout is over; the slot stays taken until the callback ends."""
        self._overruns[work.request] = (work.label, now_ms)

    def overrun_dues_ms(self) -> list[float]:
        """Return when each of those not yet named is to be."""
        return [since_ms + OVERRUN_WARN_MS for label, since_ms in self._overruns.values() if label]

    def warn_of_overruns(self, now_ms: float, effects: Effects) -> None:
        """Name those that have gone on for too long, once."""
        for request, (label, since_ms) in self._overruns.items():
            if label and since_ms + OVERRUN_WARN_MS <= now_ms:
                self._overruns[request] = ("", since_ms)
                effects.add(Warn(f"a callback goes on after its timeout and keeps its slot: {label}"))
