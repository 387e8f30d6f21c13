"""Several processes on one store, embedded or a cluster: nothing is lost, whoever dies, and watches cross over."""

from __future__ import annotations

import asyncio
import random
import struct
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from store_adapters import CLUSTER_FILE, NO_CLUSTER
from store_processes import Start, expect, finish, line_of, workers
from store_steps import DEADLINE_S, put, rows_of, value_of
from store_worker import ACCOUNTS

from keyspace.clock import SystemClock
from keyspace.store.api import Store
from keyspace.store.open import open_store


@dataclass
class Home:
    """Where the data is: the address every process opens and what begins its keys."""

    address: str
    prefix: bytes

    async def open(self) -> Store:
        return await open_store(self.address, clock=SystemClock())


@pytest.fixture(params=["embedded", pytest.param("fdb", marks=pytest.mark.skipif(not CLUSTER_FILE, reason=NO_CLUSTER))])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Home:
    if request.param == "fdb":
        return Home(f"fdb:{CLUSTER_FILE}", f"conformance/{uuid.uuid4().hex}/".encode())
    return Home(f"embedded:{tmp_path / 'store'}", b"")


@pytest.fixture
async def store(home: Home, anyio_backend: str) -> AsyncIterator[Store]:
    opened = await home.open()
    yield opened
    await opened.close()


@pytest.fixture
async def start(home: Home, anyio_backend: str) -> AsyncIterator[Start]:
    async with workers(home.address, home.prefix.decode()) as starter:
        yield starter


async def test_many_processes_increment_and_lose_nothing(store: Store, start: Start, home: Home) -> None:
    workers = [await start("increment", 60) for _ in range(4)]
    for worker in workers:
        await finish(worker)
    assert await value_of(store, home.prefix + b"count") == b"240"


async def test_many_processes_transfer_and_the_sum_stays(store: Store, start: Start, home: Home) -> None:
    await put(store, *((home.prefix + b"account/%d" % index, b"1000") for index in range(ACCOUNTS)))
    workers = [await start("transfer", 50, seed) for seed in range(3)]
    for worker in workers:
        await finish(worker)
    balances = [int(value) for _, value in await rows_of(store, home.prefix + b"account/")]
    assert sum(balances) == 1000 * ACCOUNTS
    assert all(balance >= 0 for balance in balances)


async def test_kill_9_in_the_middle_of_commits_loses_nothing_acknowledged(
    store: Store, start: Start, home: Home
) -> None:
    """Three processes commit as fast as they can and are killed at random moments, again and again, on one store."""
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
        await asyncio.wait_for(put(store, (home.prefix + b"alive", b"%d" % round_index)), DEADLINE_S)
    await store.close()
    reopened = await home.open()
    assert len(acknowledged) == 12
    for name, acks in acknowledged.items():
        rows = await rows_of(reopened, home.prefix + f"{name}/".encode(), limit=100_000)
        kept = {(int(key.split(b"/")[-3]), int(key.split(b"/")[-2])) for key, _ in rows}
        assert acks <= kept, f"acknowledged and gone: {sorted(acks - kept)[:5]}"
        assert len(rows) == 2 * len(kept), "a transaction was kept in part"
        (total,) = struct.unpack("<q", await value_of(reopened, home.prefix + f"total/{name}".encode()) or bytes(8))
        assert total == len(kept), "a counter and its rows were written by one transaction and differ"
    await reopened.close()


async def _some_lines(worker: asyncio.subprocess.Process, count: int) -> None:
    for _ in range(count):
        assert await line_of(worker)


def _ack(line: str) -> tuple[int, int]:
    lane, number = line.split()
    return int(lane), int(number)


async def test_watches_fire_across_processes(store: Store, start: Start, home: Home) -> None:
    """Every change made after the watcher has seen the one before it reaches it, although nobody polls."""
    watcher = await start("watch", 20)
    await expect(watcher, "saw 0")
    for number in range(1, 21):
        await put(store, (home.prefix + b"bell", b"%d" % number))
        await expect(watcher, f"saw {number}")
    await finish(watcher)


async def test_a_process_of_another_hears_of_cleared_ranges(store: Store, start: Start, home: Home) -> None:
    await put(store, (home.prefix + b"bell", b"1"))
    watcher = await start("watch_until_killed")
    await expect(watcher, "watching")
    transaction = store.begin()
    transaction.clear_range(home.prefix + b"a", home.prefix + b"z")
    await transaction.commit()
    await expect(watcher, "fired")
