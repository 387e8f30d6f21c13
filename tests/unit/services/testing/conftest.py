"""Fixtures of the test helper's own tests; the fixture `workflow` comes from the plugin, as it does for users."""

from __future__ import annotations

import pytest


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
