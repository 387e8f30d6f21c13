"""The adapters the suite runs against, and how each is opened, shared and given time."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from keyspace.clock import Clock, SystemClock, VirtualClock
from keyspace.store.api import Store
from keyspace.store.embedded import memory_store, open_embedded
from keyspace.store.fault import FaultStore
from keyspace.store.fault_plan import FaultPlan
from keyspace.store.fdb_adapter import open_fdb
from keyspace.store.memory_engine import MemoryEngine

CLUSTER_FILE = os.environ.get("FDB_CLUSTER_FILE", "")
NO_CLUSTER = (
    "no FoundationDB server: FDB_CLUSTER_FILE is not set (no package registry that CI reaches carries the server); "
    "set it to a cluster file to run this test there"
)

Open = Callable[[], Awaitable[Store]]


@dataclass
class Adapter:
    """One adapter under test. Every `open` is another connection to the same data, as another process would have."""

    name: str
    open_one: Open
    clock: Clock
    virtual: VirtualClock | None
    """The adapter's own clock where a test can move it; None where time is a server's."""
    prefix: bytes = b""
    """Begins every key of the test; on a shared cluster it keeps tests apart."""
    stores: list[Store] = field(default_factory=list)

    async def open(self) -> Store:
        """Open one more connection; closed after the test."""
        store = await self.open_one()
        self.stores.append(store)
        return store

    async def close(self) -> None:
        for store in self.stores:
            await store.close()


def memory_adapter(folder: Path) -> Adapter:
    """All stores of a test share one engine."""
    engine, clock = MemoryEngine(), VirtualClock()

    async def open_one() -> Store:
        return memory_store(clock=clock, engine=engine)

    return Adapter("memory", open_one, clock, clock)


def embedded_adapter(folder: Path) -> Adapter:
    """The file, really synced; its stores share one folder."""
    clock = VirtualClock()

    async def open_one() -> Store:
        return open_embedded(folder / "store", clock=clock)

    return Adapter("embedded", open_one, clock, clock)


def fault_adapter(folder: Path) -> Adapter:
    """The fault store with nothing to inject must be invisible."""
    engine, clock = MemoryEngine(), VirtualClock()

    async def open_one() -> Store:
        return FaultStore(memory_store(clock=clock, engine=engine), FaultPlan(), clock=clock)

    return Adapter("fault", open_one, clock, clock)


def fdb_adapter(folder: Path) -> Adapter:
    """A real cluster."""
    clock = SystemClock()

    async def open_one() -> Store:
        return await open_fdb(Path(CLUSTER_FILE), clock=clock)

    return Adapter("fdb", open_one, clock, None)


ADAPTERS: dict[str, Callable[[Path], Adapter]] = {
    "memory": memory_adapter,
    "embedded": embedded_adapter,
    "fault": fault_adapter,
    "fdb": fdb_adapter,
}
"""To run the suite on another adapter, add it here."""
