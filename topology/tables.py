"""The local topologies by name: which roles, and how many processes of each.

Everything that starts real processes (the demo, the end-to-end tests, the benchmarks) names one of these, so that a figure
or a failure can be said to belong to a known arrangement.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["PROCESSES_MAX", "TOPOLOGIES", "Role", "Topology", "topology_named"]

PROCESSES_MAX = 16
"""Processes of one role in a local topology; more say nothing on one machine."""


class Role(StrEnum):
    """What a process does."""

    GATEWAY = "gateway"
    FANOUT = "fanout"
    DISPATCHER = "dispatcher"
    WORKER = "worker"

    @property
    def is_server(self) -> bool:
        """Whether it is one of the service's own processes; workers are the customer's."""
        return self is not Role.WORKER


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """A named arrangement of processes on this machine.

    Attributes:
        name: how it is called.
        meaning: what it is for, one sentence.
        gateways: API processes, 0 to 16.
        fanouts: fan-out processes, 0 to 16.
        dispatchers: dispatcher processes, 0 to 16; workers are spread over them in turn.
        workers: worker processes, 0 to 16.
    """

    name: str
    meaning: str
    gateways: int = 1
    fanouts: int = 1
    dispatchers: int = 1
    workers: int = 1

    def __post_init__(self) -> None:
        for role in Role:
            if not 0 <= self.count(role) <= PROCESSES_MAX:
                raise ValueError(f"topology {self.name}: {role} must be 0 to {PROCESSES_MAX}")

    def count(self, role: Role) -> int:
        """Return how many processes of `role` there are."""
        counts = {
            Role.GATEWAY: self.gateways,
            Role.FANOUT: self.fanouts,
            Role.DISPATCHER: self.dispatchers,
            Role.WORKER: self.workers,
        }
        return counts[role]


TOPOLOGIES: tuple[Topology, ...] = (
    Topology(name="demo", meaning="One process of each role: what `make demo` shows."),
    Topology(name="bare", meaning="The servers without a worker: submissions are measured alone.", workers=0),
    Topology(name="gateways", meaning="Three gateways over one store: callers race.", gateways=3),
    Topology(name="pairs", meaning="Two processes of each role: one of each may die.", gateways=2, fanouts=2, dispatchers=2, workers=2),
    Topology(name="rolling", meaning="Two dispatchers, four workers: a pair of the release that comes, a pair of the one that goes.", dispatchers=2, workers=4),
    Topology(name="fleet", meaning="One server of each role, five workers: some of them crash.", workers=5),
)  # fmt: skip
"""The table."""

_BY_NAME = {topology.name: topology for topology in TOPOLOGIES}
assert len(_BY_NAME) == len(TOPOLOGIES), "names are unique"


def topology_named(name: str) -> Topology:
    """Return the topology of that name.

    Raises:
        LookupError: there is none; the message lists those there are.
    """
    try:
        return _BY_NAME[name]
    except KeyError:
        raise LookupError(f"there is no topology {name!r}; there are {', '.join(_BY_NAME)}") from None
