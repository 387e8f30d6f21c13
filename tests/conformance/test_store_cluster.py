"""Whether this run of the suite meets a real FoundationDB."""

from __future__ import annotations

from pathlib import Path

import pytest
from store_adapters import CLUSTER_FILE, NO_CLUSTER

from keyspace.clock import SystemClock
from keyspace.store.fdb_adapter import open_fdb


@pytest.mark.skipif(not CLUSTER_FILE, reason=NO_CLUSTER)
async def test_the_cluster_answers() -> None:
    """Everything in this folder runs on the cluster too when FDB_CLUSTER_FILE is set; it must be there."""
    store = await open_fdb(Path(CLUSTER_FILE), clock=SystemClock())
    assert await store.begin().get_read_version() > 0
    await store.close()
