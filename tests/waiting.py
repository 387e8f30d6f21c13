"""Waiting in tests without sleeping: for a condition, with a bound, or while virtual time passes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from keyspace.clock import VirtualClock

__all__ = ["advance_while", "until"]

T = TypeVar("T")

PASSES_MAX = 1_000
"""Passes of the event loop after which a condition that depends on nothing but tasks will never hold."""


async def until(condition: Callable[[], bool]) -> None:
    """Let the event loop run until `condition` holds; fail when it never will."""
    for _ in range(PASSES_MAX):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("the condition never came to hold")


async def advance_while(clock: VirtualClock, waiting: Awaitable[T], *, real_seconds_max: float = 30.0) -> T:
    """Let virtual time pass, sleeper by sleeper, until `waiting` has its answer."""

    async def drive() -> T:
        task = asyncio.ensure_future(waiting)
        while not task.done():
            await asyncio.sleep(0)
            wake_ms = clock.next_wake_ms()
            if wake_ms is not None:
                clock.advance(wake_ms)
        return await task

    return await asyncio.wait_for(drive(), real_seconds_max)
