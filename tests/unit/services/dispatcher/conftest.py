"""Fixtures of the dispatcher's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from dispatch_rig import Rig, virtual_world
from transitions.world import World


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def world(anyio_backend: str) -> World:
    """A workspace whose function `fulfil` starts on `order.placed`, in virtual time."""
    made = virtual_world()
    await made.begin()
    return made


@pytest.fixture
async def rig(world: World) -> AsyncIterator[Rig]:
    """A running dispatcher."""
    async with Rig(world).running() as running:
        yield running
