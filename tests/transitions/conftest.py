"""Fixtures of the transition tests: an empty world, and one with a workspace, a function and an open session.

They stand on a memory store and, with FDB_CLUSTER_FILE set, on that cluster too; engine time is virtual on both.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from world import World

from keyspace.clock import SystemClock
from keyspace.store.fdb_adapter import open_fdb

CLUSTER_FILE = os.environ.get("FDB_CLUSTER_FILE", "")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


STORES = ["memory", "fdb"] if CLUSTER_FILE else ["memory"]


@pytest.fixture(params=STORES)
async def empty(request: pytest.FixtureRequest, anyio_backend: str) -> AsyncIterator[World]:
    """A keyspace with nothing in it; on a cluster it has a key prefix of its own, cleared afterwards."""
    if request.param == "memory":
        yield World()
        return
    store = await open_fdb(Path(CLUSTER_FILE), clock=SystemClock())
    prefix = b"transitions/" + uuid.uuid4().bytes
    yield World(store=store, prefix=prefix)
    cleaner = store.begin()
    cleaner.clear_range(prefix, prefix + b"\xff")
    await cleaner.commit()
    await store.close()


@pytest.fixture
async def world(empty: World) -> World:
    """A workspace `acme` whose function `fulfil` starts on `order.placed`, and a worker with an open session."""
    await empty.begin()
    await empty.hello()
    return empty
