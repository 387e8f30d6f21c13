"""Records of definition blockers: what blocks a run, and how far the wake of a function's blocked runs has come."""

from __future__ import annotations

from enum import StrEnum

from keyspace.limits import PROBE_DELAY_MS_INITIAL, PROBE_DELAY_MS_MAX
from keyspace.records.codec import Record, RecordCodec

__all__ = ["BLOCKER", "WAKE", "BlockReason", "BlockerRecord", "CallSite", "WakeRecord", "probe_delay_ms"]


def probe_delay_ms(probe_count: int) -> int:
    """Return the delay before the next probe after `probe_count` of them: 1 min, doubling to 1 h.

    Source: RFD 2, "so their blockers use a capped low-frequency delayed probe".
    """
    return min(PROBE_DELAY_MS_MAX, PROBE_DELAY_MS_INITIAL << min(probe_count, 30))


class BlockReason(StrEnum):
    """Why a run's definition cannot be followed. The word is in the blocker's key."""

    DUPLICATE_STEP_ID = "duplicate_step_id"


class CallSite(Record, frozen=True, kw_only=True, array_like=True):
    """Where a step is called and how it is called there, as far as its worker could tell; both may be empty."""

    location: str = ""
    name: str = ""


class BlockerRecord(Record, frozen=True, kw_only=True, array_like=True):
    """The one active blocker of a run and a reason.

    `count` says how many passes reported this conflict. `instance`, `release` and `position` are of the worker that saw it
    last: the release's name and its stamp in hexadecimal, both empty for a worker that names none. `head_position` is that of
    the release which the function preferred when the run was last blocked or woken: only a later one is news.
    `probe_count` counts the probes that fired; `probe_item` is the one that waits.
    """

    reason: BlockReason
    step_id: str
    first: CallSite
    duplicate: CallSite
    first_seen_at_ms: int
    seen_at_ms: int
    count: int = 1
    instance: str | None = None
    release: str = ""
    position: str = ""
    head_position: str = ""
    probe_count: int = 0
    probe_item: str | None = None

    @property
    def needs_probe(self) -> bool:
        """Whether a fix may come unannounced: the code that saw the conflict is not the release its function prefers.

        A worker that names no release announces none, and one that is older than the preferred release says nothing of it.
        """
        return not self.position or self.head_position > self.position

    @property
    def probe_due_ms(self) -> int | None:
        """When the probe that waits is due (Unix epoch milliseconds); None when none waits."""
        return None if self.probe_item is None else self.seen_at_ms + probe_delay_ms(self.probe_count)


class WakeRecord(Record, frozen=True, kw_only=True, array_like=True):
    """The wake of a function's blocked runs for a newly preferred release; `after` is the last run it has looked at."""

    application: str
    function: str
    release_id: str
    position: str
    item_id: str
    after: str = ""
    woken_count: int = 0


BLOCKER = RecordCodec(BlockerRecord)
WAKE = RecordCodec(WakeRecord)
