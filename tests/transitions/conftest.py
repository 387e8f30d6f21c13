"""Fixtures of the transition tests: an empty world, and one with a workspace, a function and an open session."""

from __future__ import annotations

import pytest
from world import World


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def empty() -> World:
    """A keyspace with nothing in it."""
    return World()


@pytest.fixture
async def world(anyio_backend: str) -> World:
    """A workspace `acme` whose function `fulfil` starts on `order.placed`, and a worker with an open session."""
    made = World()
    await made.begin()
    await made.hello()
    return made
