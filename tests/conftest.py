"""What holds for every test: the machine's speed decides nothing."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

# A busy machine is slow to draw inputs and slow to run them; neither says anything about the code.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse a test whose name holds an address: two processes would not call it the same."""
    moving = [item.nodeid for item in items if " at 0x" in item.nodeid]
    if moving:
        raise pytest.UsageError(f"names that differ from process to process; give ids: {moving[:3]}")
