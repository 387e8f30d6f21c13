"""Fixtures of the end-to-end tests: real processes, real sockets, on every store there is."""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncIterator

import pytest
from e2e_world import Site

from topology.check import clear_store

CLUSTER_FILE = os.environ.get("FDB_CLUSTER_FILE", "")
CALM = frozenset({"test_e2e_cli", "test_e2e_demo", "test_gateway_dev", "test_gateway_process", "test_topology"})
"""Modules that wait for what is to happen and measure no time; the other ones load, kill and measure."""


def pytest_itemcollected(item: pytest.Item) -> None:
    """Keep what loads and kills in one job, and what only starts processes in one, when several jobs share the tests."""
    if item.get_closest_marker("xdist_group") is None:
        item.add_marker(pytest.mark.xdist_group("calm" if item.path.stem in CALM else "stormy"))


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(
    scope="module",
    params=[
        "embedded",
        pytest.param(
            "fdb",
            marks=pytest.mark.skipif(
                not CLUSTER_FILE, reason="no FoundationDB cluster: FDB_CLUSTER_FILE is not set, so nothing ran on one"
            ),
        ),
    ],
)
async def site(request: pytest.FixtureRequest, anyio_backend: str) -> AsyncIterator[Site]:
    """Where the processes keep their state; on a cluster each module has a key prefix of its own, cleared afterwards."""
    if request.param == "embedded":
        yield Site(None, "")
        return
    store, prefix = f"fdb:{CLUSTER_FILE}", f"e2e-{uuid.uuid4().hex[:12]}/"
    yield Site(store, prefix)
    await clear_store(store, prefix=prefix)
