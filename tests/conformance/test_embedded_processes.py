"""Several processes on one embedded store: nobody waits for the dead, and what they held is freed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from store_processes import Start, expect, finish, workers
from store_steps import DEADLINE_S, fires, put, rows_of, value_of

from keyspace.clock import SystemClock
from keyspace.store.api import Store
from keyspace.store.embedded import EmbeddedStore, open_embedded


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
async def store(folder: Path, anyio_backend: str) -> AsyncIterator[EmbeddedStore]:
    opened = open_embedded(folder, clock=SystemClock())
    yield opened
    await opened.close()


@pytest.fixture
async def start(folder: Path, anyio_backend: str) -> AsyncIterator[Start]:
    async with workers(f"embedded:{folder}", "") as starter:
        yield starter


def pipes_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("wake-*"))


async def test_a_process_killed_with_the_write_lock_held_blocks_nobody(store: EmbeddedStore, start: Start) -> None:
    await put(store, (b"before", b"1"))
    holder = await start("hold_lock")
    await expect(holder, "holding")
    waiting = asyncio.ensure_future(put(store, (b"after", b"1")))
    await asyncio.wait_for(_served(store), DEADLINE_S)
    assert not waiting.done(), "the lock was not held after all"
    holder.kill()
    await holder.wait()
    await asyncio.wait_for(waiting, DEADLINE_S)
    assert await value_of(store, b"half") is None, "half a write was kept"
    assert await value_of(store, b"after") == b"1"


async def _served(store: Store) -> None:
    """Reads go on while a write is held."""
    for _ in range(50):
        assert await value_of(store, b"before") == b"1"
        await asyncio.sleep(0)


async def test_the_slot_of_a_reader_that_died_is_freed(store: EmbeddedStore, start: Start) -> None:
    reader = await start("read_until_killed")
    await expect(reader, "reading")
    reader.kill()
    await reader.wait()
    again = await start("increment", 1)
    await finish(again)
    assert store._engine.release_dead_readers() == 0, "opening the file had freed it"


async def test_a_living_process_frees_the_slot_of_a_reader_that_died(store: EmbeddedStore, start: Start) -> None:
    reader = await start("read_until_killed")
    await expect(reader, "reading")
    reader.kill()
    await reader.wait()
    assert store._engine.release_dead_readers() == 1


async def test_a_watcher_that_died_is_forgotten(store: EmbeddedStore, start: Start, folder: Path) -> None:
    watcher = await start("watch_until_killed")
    await expect(watcher, "watching")
    watcher.kill()
    await watcher.wait()
    await put(store, (b"bell", b"1"))
    await put(store, (b"bell", b"2"))
    successor = await start("watch_until_killed")
    await expect(successor, "watching")
    assert pipes_in(folder) == ["wake-00"], "the dead one's slot was not taken over"
    await put(store, (b"bell", b"3"))
    await expect(successor, "fired")


async def test_two_stores_of_one_process_share_a_folder(folder: Path, start: Start) -> None:
    first = open_embedded(folder, clock=SystemClock())
    second = open_embedded(folder / ".." / folder.name, clock=SystemClock())
    transaction = second.begin()
    seen = transaction.watch(b"k")
    await transaction.commit()
    await put(first, (b"k", b"1"))
    await fires(seen)
    await first.close()
    await put(second, (b"k", b"2"))
    assert await value_of(second, b"k") == b"2"
    await second.close()
    third = open_embedded(folder, clock=SystemClock())
    assert await value_of(third, b"k") == b"2"
    await third.close()


@pytest.mark.case(79)
async def test_a_full_disk_is_refused_and_leaves_the_store_whole(store: EmbeddedStore, start: Start) -> None:
    """Case 079, "disk full": the refusal says so, nothing of it was written, and with room the store goes on."""
    filler = await start("fill", 8_000_000)
    lines = await finish(filler)
    refusal = next(line for line in lines if line.startswith("refused"))
    assert "the disk is full" in refusal
    assert "written after" in lines
    number = int(next(line.split()[1] for line in lines if line.startswith("acknowledged")))
    assert number > 3
    rows = await rows_of(store, b"fill/")
    assert len(rows) == 8 * number
    assert await value_of(store, b"after") == b"1"
