"""The settings and bounds of a pump of server lanes."""

from __future__ import annotations

from dataclasses import dataclass

from keyspace.limits import SKEW_MS_DEFAULT

__all__ = [
    "DUE_PAGE_ITEMS",
    "RETRY_MS",
    "SKIPPED_ITEMS_MAX",
    "TURNS_MAX",
    "TURN_ITEMS",
    "UNKNOWN_KIND_MS",
    "LaneOptions",
]

TURN_ITEMS = 16
"""Items of one workspace's lane handled before another workspace has its turn."""
TURNS_MAX = 8
"""Lanes that have their turn at the same time."""
DUE_PAGE_ITEMS = 1_000
"""Pointers read from a shard in one scan; more are read by the next one, after these were worked off."""
RETRY_MS = 250
"""How long a turn that met trouble with the store waits."""
SKIPPED_ITEMS_MAX = 256
"""Items of one lane that can be neither handled nor deferred, and so are passed over in memory."""
UNKNOWN_KIND_MS = 60_000
"""How long an item of a kind that this process does not know is passed over."""


@dataclass(frozen=True)
class LaneOptions:
    """How a pump works.

    Attributes:
        skew_ms: how far the clocks of live processes may lie apart.
        rescan_ms: how often all pointers are read, those of other processes' shards included.
        concurrency: items handled at once, at least 1.
    """

    skew_ms: int = SKEW_MS_DEFAULT
    rescan_ms: int = 30_000
    concurrency: int = 16
