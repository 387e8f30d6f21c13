"""What the worker keeps of the runs it has seen, so that their input and settled steps are sent to it once.

Only a cache: whatever is not here, or is not what the dispatcher means, is asked for again.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import msgspec

from ryusen.protocol.frames import Assign, StepMemo
from ryusen.protocol.replay import extend_digest, first_digest

__all__ = ["ReplayCache"]

REPLAY_RUNS_MAX = 1_000
"""Runs kept; the one longest not seen goes first."""
REPLAY_BYTES_MAX = 64 * 1024 * 1024
"""Bytes kept, inputs and values; one replay has at most 8 MiB."""
STEP_BYTES = 200
"""What a settled step takes besides its value."""


@dataclass(frozen=True)
class _Kept:
    given: msgspec.Raw
    memo: list[StepMemo]
    digest: str
    size_bytes: int


class ReplayCache:
    """Inputs and settled steps by run."""

    def __init__(self, *, runs_max: int = REPLAY_RUNS_MAX, bytes_max: int = REPLAY_BYTES_MAX) -> None:
        """Keep nothing yet, and never more than these."""
        self._runs_max = runs_max
        self._bytes_max = bytes_max
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self.size_bytes = 0

    def __len__(self) -> int:
        """Return how many runs are kept."""
        return len(self._kept)

    def complete(self, frame: Assign) -> Assign | None:
        """Return the assignment with its input and all settled steps, and keep them; None when its first part is not here."""
        run = frame.ref.run
        kept = self.forget(run)
        if not frame.base_digest:
            first = _Kept(frame.input, [], first_digest(run, bytes(frame.input)), len(bytes(frame.input)))
        elif kept is None or len(kept.memo) != frame.base or kept.digest != frame.base_digest:
            return None
        else:
            first = kept
        memo = [*first.memo, *frame.memo]
        size_bytes = first.size_bytes + sum(map(_size_bytes, frame.memo))
        self._keep(run, _Kept(first.given, memo, extend_digest(first.digest, frame.memo), size_bytes))
        return msgspec.structs.replace(frame, input=first.given, memo=memo, base=0, base_digest="")

    def forget(self, run: str) -> _Kept | None:
        """Keep nothing of a run; return what was kept."""
        kept = self._kept.pop(run, None)
        if kept is not None:
            self.size_bytes -= kept.size_bytes
        return kept

    def _keep(self, run: str, kept: _Kept) -> None:
        self._kept[run] = kept
        self.size_bytes += kept.size_bytes
        while len(self._kept) > self._runs_max or self.size_bytes > self._bytes_max:
            self.forget(next(iter(self._kept)))


def _size_bytes(step: StepMemo) -> int:
    value_bytes = 0 if step.value is None else len(bytes(step.value))
    failure_bytes = 0 if step.failure is None else len(step.failure.message.encode())
    return value_bytes + failure_bytes + len(step.id.encode()) + STEP_BYTES
