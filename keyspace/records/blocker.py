"""Records of definition blockers: what blocks a run, and how far the wake of a function's blocked runs has come."""

from __future__ import annotations

from enum import StrEnum

from keyspace.records.codec import Record, RecordCodec

__all__ = ["BLOCKER", "WAKE", "BlockReason", "BlockerRecord", "CallSite", "WakeRecord"]


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
