"""One suite, every adapter: a test asks for `store`, or for `adapter` when it needs several connections or the clock.

Without a cluster the FoundationDB adapter is left out, and test_store_cluster.py says so once, aloud.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from store_adapters import ADAPTERS, CLUSTER_FILE, Adapter

from keyspace.clock import VirtualClock
from keyspace.store.api import Store


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=[name for name in ADAPTERS if name != "fdb" or CLUSTER_FILE])
async def adapter(request: pytest.FixtureRequest, tmp_path: Path, anyio_backend: str) -> AsyncIterator[Adapter]:
    opened = ADAPTERS[request.param](tmp_path)
    opened.prefix = b"conformance/" + uuid.uuid4().hex.encode() + b"/"
    yield opened
    await opened.close()


@pytest.fixture
async def store(adapter: Adapter) -> Store:
    return await adapter.open()


@pytest.fixture
def prefix(adapter: Adapter) -> bytes:
    """Begins every key of the test."""
    return adapter.prefix


@pytest.fixture
def virtual(adapter: Adapter) -> VirtualClock:
    if adapter.virtual is None:
        pytest.skip(f"{adapter.name} has its own clock, which a test cannot move")
    return adapter.virtual
