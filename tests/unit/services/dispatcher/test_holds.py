"""The short waits of announced successes, in virtual time (ARCHITECTURE 6, "Continuation": "or 5 ms")."""

from __future__ import annotations

import anyio
import pytest
from dispatch_rig import turns

from keyspace.clock import VirtualClock
from services.dispatcher.holds import Holds
from services.dispatcher.options import HOLD_MS


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_each_wait_ends_at_its_time_unless_its_answer_came() -> None:
    """Would catch a wait that ends early, late, twice or although it was answered."""
    clock = VirtualClock()
    waiting: set[str] = set()
    ended: list[tuple[float, str]] = []

    def end(following: str) -> None:
        waiting.discard(following)
        ended.append((clock.monotonic_ms(), following))

    holds = Holds(clock, waiting.__contains__, end)
    async with anyio.create_task_group() as group:
        group.start_soon(holds.run)
        await turns()
        for following in ("a", "b", "c", "d"):
            waiting.add(following)
            holds.begin(following)
            await turns()
            clock.advance(1)
            await turns()
        assert ended == []
        waiting.discard("b")
        for _ in range(2 * HOLD_MS):
            clock.advance(1)
            await turns()
        assert ended == [(HOLD_MS, "a"), (HOLD_MS + 2, "c"), (HOLD_MS + 3, "d")]
        clock.advance(1_000)
        waiting.add("e")
        holds.begin("e")
        await turns()
        clock.advance(HOLD_MS)
        await turns()
        assert ended[-1][1] == "e", "a wait after a quiet time ends too"
        group.cancel_scope.cancel()


async def test_answered_waits_wake_nobody() -> None:
    """The point of one task: what was answered in time costs no timer that anybody hears of."""
    clock = VirtualClock()
    calls: list[str] = []
    holds = Holds(clock, lambda following: False, calls.append)
    async with anyio.create_task_group() as group:
        group.start_soon(holds.run)
        for number in range(100):
            holds.begin(str(number))
        await turns()
        assert clock.next_wake_ms() is None
        assert calls == []
        group.cancel_scope.cancel()
