"""Fixtures of the gateway's tests: a gateway over a memory store, and one with a workspace, keys and a function."""

from __future__ import annotations

import pytest
from gateway_world import GatewayWorld


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def empty(anyio_backend: str) -> GatewayWorld:
    """A gateway with nothing behind it but the operator's key."""
    return GatewayWorld()


@pytest.fixture
async def world(anyio_backend: str) -> GatewayWorld:
    """Workspaces `acme` and `rival` with a key of each role; acme's application `shop` starts `fulfil` on order.placed."""
    made = GatewayWorld()
    await made.furnish()
    return made
