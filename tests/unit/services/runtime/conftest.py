"""Fixtures of the runtime's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from anyio.from_thread import start_blocking_portal
from runtime_cli import Cli
from unit.services.gateway.gateway_world import GatewayWorld


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def cli() -> Iterator[Cli]:
    with start_blocking_portal() as portal:

        async def build() -> GatewayWorld:
            world = GatewayWorld()
            await world.furnish()
            return world

        yield Cli(portal, portal.call(build))
