"""Waiting for a condition with a deadline, in one place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

DEADLINE_S = 10.0


async def until(condition: Callable[[], object]) -> None:
    """Let the loop turn until `condition` holds; fail after the deadline."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - other threads and logs raise no event here
            await asyncio.sleep(0.001)
