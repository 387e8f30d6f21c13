"""Tasks that are kept for the next piece of work: beginning one costs more than most of what a frame asks for.

A task of a group costs some 18 us to begin and end, handing a piece of work to one that waits costs 2 us; a three-step run
brings about ten pieces.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from anyio.abc import TaskGroup

__all__ = ["Crew"]

P = TypeVar("P")

IDLE_MAX = 64
"""Tasks that wait for work; one that would be the next ends instead."""


class Crew(Generic[P]):
    """Does pieces of work at the same time, each in a task of one group."""

    def __init__(self, group: TaskGroup, do: Callable[[P], Awaitable[None]], name: str) -> None:
        """Work in `group`, which must be cancelled to end: those who wait do not leave by themselves.

        Args:
            group: whose tasks they are.
            do: does one piece; an exception is the group's.
            name: of the tasks.
        """
        self._group = group
        self._do = do
        self._name = name
        self._idle: list[asyncio.Future[P]] = []

    def give(self, piece: P) -> None:
        """Begin a piece of work at the loop's next turn."""
        while self._idle:
            waiting = self._idle.pop()
            # One that was cancelled while it waited is done, and gone with its group.
            if not waiting.done():
                waiting.set_result(piece)
                return
        self._group.start_soon(self._work, piece, name=self._name)

    async def _work(self, piece: P) -> None:
        while True:
            await self._do(piece)
            if len(self._idle) >= IDLE_MAX:
                return
            waiting: asyncio.Future[P] = asyncio.get_running_loop().create_future()
            self._idle.append(waiting)
            piece = await waiting
