"""Tasks that are kept for the next piece of work."""

from __future__ import annotations

import asyncio

import anyio
import pytest

from services.lanes.crew import IDLE_MAX, Crew


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_pieces_are_done_at_the_same_time_and_tasks_are_kept() -> None:
    """Would catch a piece that waits behind another one, and a task for each piece."""
    gate, under_way, names = anyio.Event(), set(), set()

    async def do(piece: int) -> None:
        under_way.add(piece)
        names.add(id(asyncio.current_task()))
        await gate.wait()
        under_way.discard(piece)

    async with anyio.create_task_group() as group:
        crew = Crew(group, do, "crew")
        for piece in range(3):
            crew.give(piece)
        await turns()
        assert under_way == {0, 1, 2}
        gate.set()
        await turns()
        assert under_way == set()
        for piece in range(20):
            crew.give(piece)
            await turns()
        assert len(names) == 3
        group.cancel_scope.cancel()


async def test_what_is_kept_is_bounded() -> None:
    """A burst must not leave its tasks behind for ever."""
    tasks = set()

    async def do(piece: int) -> None:
        tasks.add(asyncio.current_task())
        await asyncio.sleep(0)

    async with anyio.create_task_group() as group:
        crew = Crew(group, do, "crew")
        for piece in range(2 * IDLE_MAX):
            crew.give(piece)
        await turns()
        assert len(tasks) == 2 * IDLE_MAX
        assert sum(1 for task in tasks if task is not None and not task.done()) == IDLE_MAX
        group.cancel_scope.cancel()


async def test_a_piece_that_fails_fails_the_group() -> None:
    """Would catch a defect that is swallowed because nobody awaits the piece."""

    async def do(piece: int) -> None:
        if piece:
            raise ValueError(piece)

    with pytest.raises(ExceptionGroup) as caught:
        async with anyio.create_task_group() as group:
            crew = Crew(group, do, "crew")
            crew.give(0)
            await turns()
            crew.give(7)
            await anyio.sleep_forever()
    assert caught.value.subgroup(ValueError) is not None
