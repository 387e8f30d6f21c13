"""Records of connected releases: what a release offers, which one a function prefers, and which are live."""

from __future__ import annotations

from keyspace.records.codec import Record, RecordCodec

__all__ = [
    "HEAD",
    "LIVE",
    "OFFERS",
    "RELEASE",
    "HeadRecord",
    "LiveRecord",
    "LiveRelease",
    "OffersRecord",
    "ReleaseRecord",
]


class ReleaseRecord(Record, frozen=True, kw_only=True, array_like=True):
    """A connected release of an application: a name that workers gave, with exactly these functions and contracts.

    `is_preferred` says that every function's head has been brought up to it.
    """

    release_id: str
    name: str
    function_count: int
    offers_bytes: int
    registered_at_ms: int
    is_preferred: bool = False


class OffersRecord(Record, frozen=True, kw_only=True, array_like=True):
    """The functions a release offers, each with the digest of its execution contract; stored split, it may be large."""

    contracts: dict[str, str]


class HeadRecord(Record, frozen=True, kw_only=True, array_like=True):
    """The release that a function prefers: the newest registered one that offers it. `position` is its stamp in hexadecimal."""

    release_id: str
    position: str


class LiveRelease(Record, frozen=True, kw_only=True, array_like=True):
    """A release that some session of one dispatcher runs."""

    workspace: str
    application: str
    release_id: str
    position: str
    session_count: int


class LiveRecord(Record, frozen=True, kw_only=True, array_like=True):
    """One page of what a dispatcher's sessions run; counts for nothing from `expires_at_ms` on."""

    expires_at_ms: int
    releases: list[LiveRelease]


RELEASE = RecordCodec(ReleaseRecord)
OFFERS = RecordCodec(OffersRecord)
HEAD = RecordCodec(HeadRecord)
LIVE = RecordCodec(LiveRecord)
