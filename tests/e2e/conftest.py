"""Fixtures of the end-to-end tests: real processes, real sockets, on every store there is."""

from __future__ import annotations

import os
import uuid

import pytest
from e2e_world import Site

CLUSTER_FILE = os.environ.get("FDB_CLUSTER_FILE", "")


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
def site(request: pytest.FixtureRequest) -> Site:
    """Where the processes keep their state; on a cluster each module has a key prefix of its own."""
    if request.param == "embedded":
        return Site(None, "")
    return Site(f"fdb:{CLUSTER_FILE}", f"e2e-{uuid.uuid4().hex[:12]}/")
