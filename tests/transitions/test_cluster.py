"""Says once, aloud, whether the transitions ran on a cluster."""

from __future__ import annotations

import os

import pytest


def test_the_transitions_run_on_a_cluster_where_there_is_one() -> None:
    """Every story of this folder runs on the cluster that FDB_CLUSTER_FILE names, besides the store in memory."""
    if not os.environ.get("FDB_CLUSTER_FILE"):
        pytest.skip(
            "no FoundationDB cluster: FDB_CLUSTER_FILE is not set, so the transitions ran on the memory store only"
        )
    assert os.path.exists(os.environ["FDB_CLUSTER_FILE"])  # noqa: PTH110 - the variable is a plain string of the operator's
