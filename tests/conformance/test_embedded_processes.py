"""Several processes on one embedded store: nothing is lost, nobody waits for the dead, watches cross over."""

from __future__ import annotations

import asyncio
import random
import struct
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from store_steps import DEADLINE_S, fires, put, rows_of, value_of
from store_worker import ACCOUNTS

from keyspace.clock import SystemClock
from keyspace.store.api import Store
from keyspace.store.embedded import EmbeddedStore, open_embedded

WORKER = Path(__file__).with_name("store_worker.py")
Start = Callable[..., Awaitable[asyncio.subprocess.Process]]


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
    """Start workers; those still running at the end are killed and awaited."""
    started: list[asyncio.subprocess.Process] = []

    async def start_one(*arguments: object) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(WORKER),
            str(folder),
            *map(str, arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=1 << 24,
        )
        started.append(process)
        return process

    yield start_one
    for process in started:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def pipes_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("wake-*"))


async def line_of(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    return (await asyncio.wait_for(process.stdout.readline(), DEADLINE_S)).decode().strip()


async def expect(process: asyncio.subprocess.Process, wanted: str) -> None:
    while (line := await line_of(process)) != wanted:
        assert line, f"the worker ended before it said {wanted!r}"


async def finish(process: asyncio.subprocess.Process) -> list[str]:
    out, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, out
    return out.decode().splitlines()


async def test_many_processes_increment_and_lose_nothing(store: EmbeddedStore, start: Start) -> None:
    workers = [await start("increment", 60) for _ in range(4)]
    for worker in workers:
        await finish(worker)
    assert await value_of(store, b"count") == b"240"


async def test_many_processes_transfer_and_the_sum_stays(store: EmbeddedStore, start: Start) -> None:
    await put(store, *((b"account/%d" % index, b"1000") for index in range(ACCOUNTS)))
    workers = [await start("transfer", 50, seed) for seed in range(3)]
    for worker in workers:
        await finish(worker)
    balances = [int(value) for _, value in await rows_of(store, b"account/")]
    assert sum(balances) == 1000 * ACCOUNTS
    assert all(balance >= 0 for balance in balances)


async def test_kill_9_in_the_middle_of_commits_loses_nothing_acknowledged(
    store: EmbeddedStore, start: Start, folder: Path
) -> None:
    """Three processes commit as fast as they can and are killed at random moments, again and again, on one file."""
    rng = random.Random(20)
    acknowledged: dict[str, set[tuple[int, int]]] = {}
    for round_index in range(4):
        names = [f"r{round_index}w{index}" for index in range(3)]
        workers = {name: await start("append", name) for name in names}
        for worker in workers.values():
            await expect(worker, "open")
            await line_of(worker)
        for name, worker in workers.items():
            await asyncio.wait_for(_some_lines(worker, rng.randint(5, 60)), DEADLINE_S)
            worker.kill()
            out, _ = await worker.communicate()
            acknowledged[name] = {_ack(line) for line in out.decode().splitlines() if line.count(" ") == 1}
        # A process that lives on writes between the kills: it must not wait for the dead, nor see half of them.
        await asyncio.wait_for(put(store, (b"alive", b"%d" % round_index)), DEADLINE_S)
    await store.close()
    reopened = open_embedded(folder, clock=SystemClock())
    assert len(acknowledged) == 12
    for name, acks in acknowledged.items():
        rows = await rows_of(reopened, f"{name}/".encode(), limit=100_000)
        kept = {(int(key.split(b"/")[1]), int(key.split(b"/")[2])) for key, _ in rows}
        assert acks <= kept, f"acknowledged and gone: {sorted(acks - kept)[:5]}"
        assert len(rows) == 2 * len(kept), "a transaction was kept in part"
        (total,) = struct.unpack("<q", await value_of(reopened, f"total/{name}".encode()) or bytes(8))
        assert total == len(kept), "a counter and its rows were written by one transaction and differ"
    await reopened.close()


async def _some_lines(worker: asyncio.subprocess.Process, count: int) -> None:
    for _ in range(count):
        assert await line_of(worker)


def _ack(line: str) -> tuple[int, int]:
    lane, number = line.split()
    return int(lane), int(number)


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


async def test_watches_fire_across_processes(store: EmbeddedStore, start: Start) -> None:
    """Every change made after the watcher has seen the one before it reaches it, although nobody polls."""
    watcher = await start("watch", 20)
    await expect(watcher, "saw 0")
    for number in range(1, 21):
        await put(store, (b"bell", b"%d" % number))
        await expect(watcher, f"saw {number}")
    await finish(watcher)


async def test_a_process_of_another_hears_of_cleared_ranges(store: EmbeddedStore, start: Start) -> None:
    await put(store, (b"bell", b"1"))
    watcher = await start("watch_until_killed")
    await expect(watcher, "watching")
    transaction = store.begin()
    transaction.clear_range(b"a", b"z")
    await transaction.commit()
    await expect(watcher, "fired")


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
