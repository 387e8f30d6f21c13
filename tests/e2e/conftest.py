"""Fixtures of the end-to-end tests: real processes, real sockets, on every store there is."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"
