"""Records of the queue: work items, worker instances and live processes."""

from __future__ import annotations

from enum import IntEnum, StrEnum
from functools import lru_cache
from typing import NamedTuple

from keyspace.lifecycle import ItemState
from keyspace.records.codec import Record, RecordCodec

__all__ = [
    "INSTANCE",
    "ITEM",
    "PROCESS",
    "Direction",
    "InstanceRecord",
    "ItemRecord",
    "Lane",
    "LaneKind",
    "ProcessRecord",
    "WorkKind",
    "application_lane",
    "server_lane",
]


LANE_CACHE_ITEMS = 1_024


class LaneKind(IntEnum):
    """What one kind of claimer claims. The numbers are in keys."""

    FANOUT = 1
    TIME = 2
    SETTLE = 3
    PROBE = 4
    RETENTION = 5
    CONNECTED = 16
    HTTP = 17

    @property
    def is_server(self) -> bool:
        """Whether server processes run the work themselves."""
        return self < LaneKind.CONNECTED


class Direction(IntEnum):
    """Forward work and compensation never share a lane."""

    FORWARD = 0
    COMPENSATION = 1


class Lane(NamedTuple):
    """One ready queue of one workspace; server lanes leave the last three at their zero values."""

    kind: LaneKind
    application: str = ""
    function: str = ""
    direction: Direction = Direction.FORWARD

    @property
    def stored(self) -> tuple[int, str, str, int]:
        """The lane as an item records it."""
        return int(self.kind), self.application, self.function, int(self.direction)


@lru_cache(maxsize=LANE_CACHE_ITEMS)
def _lane_of(stored: tuple[int, str, str, int]) -> Lane:
    # Kept, because looking two enumerations up costs as much as packing the whole item, and lanes are few.
    kind, application, function, direction = stored
    return Lane(LaneKind(kind), application, function, Direction(direction))


def server_lane(kind: LaneKind) -> Lane:
    """Return the lane of a kind of server work."""
    return Lane(kind)


def application_lane(application: str, function: str, direction: Direction = Direction.FORWARD) -> Lane:
    """Return the lane of a function served by connected workers."""
    return Lane(LaneKind.CONNECTED, application, function, direction)


class WorkKind(StrEnum):
    """What a work item asks for."""

    FANOUT = "fanout"
    DISCOVERY = "discovery"
    CALLBACK = "callback"
    COMPENSATION = "compensation"
    CHILD_SETTLE = "child_settle"
    STOP_PROPAGATE = "stop_propagate"
    RUN_TIMEOUT = "run_timeout"
    TIMER = "timer"
    DEFINITION_PROBE = "definition_probe"
    RELEASE_WAKE = "release_wake"


class ItemRecord(Record, frozen=True, kw_only=True, array_like=True):
    """One physical work item (RFD 2, "A work item contains").

    `ordinal` is the application attempt and never changes; `delivery_count` and `token` change with each lease. After a lease
    ends without a settlement the token stays, so that its holder's report is still accepted until somebody else leases.
    """

    item_id: str
    kind: WorkKind
    lane: tuple[int, str, str, int]
    target: str
    step_id: str | None
    priority: int
    vesting_ms: int
    ordinal: int
    generation: int
    operation_id: str
    repeatable: bool
    enqueued_at_ms: int
    state: ItemState = ItemState.READY
    delivery_count: int = 0
    loss_count: int = 0
    token: str | None = None
    expires_at_ms: int | None = None
    session: str | None = None
    instance: str | None = None
    authorized_at_ms: int | None = None
    renew_until_ms: int | None = None

    @property
    def where(self) -> Lane:
        """The lane the item is queued in."""
        return _lane_of(self.lane)


class InstanceRecord(Record, frozen=True, kw_only=True, array_like=True):
    """A worker process and the one session that may start work on it; `connection` counts the process's connections.

    `position` is the stamp of the release it runs, in hexadecimal; empty for a worker that names none.
    """

    instance: str
    application: str
    session: str
    release: str
    connected_at_ms: int
    connection: int = 0
    position: str = ""


class ProcessRecord(Record, frozen=True, kw_only=True, array_like=True):
    """A live server process, for affinity and clock comparison only.

    `mark_ms` is what its clock said when it read at store version `mark_version`. Versions advance with the store's own
    time, so two processes' marks show how far their clocks lie apart however old the marks are; 0 says that there is none yet.
    """

    process_id: str
    role: str
    address: str
    clock_ms: int
    started_at_ms: int
    version: str
    mark_ms: int = 0
    mark_version: int = 0


ITEM = RecordCodec(ItemRecord)
INSTANCE = RecordCodec(InstanceRecord)
PROCESS = RecordCodec(ProcessRecord)
