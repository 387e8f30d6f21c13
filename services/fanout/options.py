"""The settings and bounds of fan-out."""

from __future__ import annotations

from dataclasses import dataclass

from keyspace.limits import SKEW_MS_DEFAULT

__all__ = ["DUE_PAGE_ITEMS", "RETRY_MS", "TURNS_MAX", "TURN_ITEMS", "FanOutOptions"]

TURN_ITEMS = 16
"""Events of one workspace expanded before another workspace has its turn."""
TURNS_MAX = 8
"""Workspaces that have their turn at the same time."""
DUE_PAGE_ITEMS = 1_000
"""Pointers read from a shard in one scan; more are read by the next one, after these were worked off."""
RETRY_MS = 250
"""How long a turn that met trouble with the store waits."""
SKIPPED_ITEMS_MAX = 256
"""Items of one workspace that can be neither expanded nor deferred, and so are passed over in memory."""


@dataclass(frozen=True)
class FanOutOptions:
    """How fan-out works.

    Attributes:
        skew_ms: how far the clocks of live processes may lie apart.
        rescan_ms: how often all pointers are read, those of other processes' shards included.
        concurrency: expansions at once, at least 1.
    """

    skew_ms: int = SKEW_MS_DEFAULT
    rescan_ms: int = 30_000
    concurrency: int = 16
