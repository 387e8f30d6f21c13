"""A process of its own on an embedded store: `python store_worker.py FOLDER COMMAND ARGUMENTS...`.

What has been acknowledged is printed, one line each, flushed at once: whatever a line says must survive any kill.
"""

from __future__ import annotations

import asyncio
import random
import resource
import sys
from pathlib import Path

from keyspace.clock import SystemClock
from keyspace.store.api import Store
from keyspace.store.embedded import open_embedded
from keyspace.store.errors import RetryableError, StoreUnavailableError
from keyspace.store.lmdb_engine import LmdbEngine

ATTEMPTS_MAX = 10_000
ACCOUNTS = 5


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def increment(store: Store, count: int) -> None:
    """Read, add one, write: `count` times, each until it commits."""
    for _ in range(count):
        for attempt in range(1, ATTEMPTS_MAX):
            transaction = store.begin()
            try:
                stored = await transaction.get(b"count")
                transaction.set(b"count", b"%d" % (int(stored or b"0") + 1))
                await transaction.commit()
                break
            except RetryableError as error:
                await store.backoff(error, attempt)


async def transfer(store: Store, count: int, seed: int) -> None:
    """Move random amounts between accounts, looking at all of them with one range read."""
    rng = random.Random(seed)
    for _ in range(count):
        source, target = rng.sample(range(ACCOUNTS), 2)
        for attempt in range(1, ATTEMPTS_MAX):
            transaction = store.begin()
            try:
                rows = dict(await transaction.get_range(b"account/", b"account0", limit=ACCOUNTS + 1))
                balances = [int(rows[b"account/%d" % index]) for index in range(ACCOUNTS)]
                amount = rng.randint(0, balances[source])
                transaction.set(b"account/%d" % source, b"%d" % (balances[source] - amount))
                transaction.set(b"account/%d" % target, b"%d" % (balances[target] + amount))
                await transaction.commit()
                break
            except RetryableError as error:
                await store.backoff(error, attempt)


async def append(store: Store, name: str) -> None:
    """Until killed: several writers append numbered pairs of keys and print each number once it is acknowledged."""

    async def write(lane: int) -> None:
        number = 0
        while True:
            transaction = store.begin()
            for half in (b"a", b"b"):
                transaction.set(f"{name}/{lane}/{number:06d}/".encode() + half, b"x" * 300)
            transaction.add(f"total/{name}".encode(), 1)
            await transaction.commit()
            say(f"{lane} {number}")
            number += 1

    await asyncio.gather(*(write(lane) for lane in range(4)))


async def watch(store: Store, count: int) -> None:
    """Print each value of `bell` as a watch reports it, up to the value `count`."""
    while True:
        transaction = store.begin()
        value = await transaction.get(b"bell")
        seen = transaction.watch(b"bell")
        await transaction.commit()
        say(f"saw {int(value or b'0')}")
        if int(value or b"0") >= count:
            return
        await seen.wait()


async def watch_until_killed(store: Store) -> None:
    transaction = store.begin()
    seen = transaction.watch(b"bell")
    await transaction.commit()
    say("watching")
    await seen.wait()
    say("fired")
    await asyncio.Event().wait()


async def read_until_killed(store: Store) -> None:
    """Hold a snapshot open."""
    transaction = store.begin()
    await transaction.get(b"k")
    say("reading")
    await asyncio.Event().wait()


async def fill(store: Store, file_bytes: int) -> None:
    """Write until the file may not grow any more, say how that was refused, and show that the store still serves."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, resource.RLIM_INFINITY))
    number = 0
    while True:
        transaction = store.begin()
        for part in range(8):
            transaction.set(b"fill/%06d/%d" % (number, part), bytes(60_000))
        try:
            await transaction.commit()
        except StoreUnavailableError as error:
            say(f"refused {error}")
            break
        number += 1
    say(f"acknowledged {number}")
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    transaction = store.begin()
    assert await transaction.get(b"fill/%06d/0" % number) is None
    transaction.set(b"after", b"1")
    await transaction.commit()
    say("written after")


async def run(folder: Path, command: str, arguments: list[str]) -> None:
    store = open_embedded(folder, clock=SystemClock())
    say("open")
    match command:
        case "increment":
            await increment(store, int(arguments[0]))
        case "transfer":
            await transfer(store, int(arguments[0]), int(arguments[1]))
        case "append":
            await append(store, arguments[0])
        case "watch":
            await watch(store, int(arguments[0]))
        case "watch_until_killed":
            await watch_until_killed(store)
        case "read_until_killed":
            await read_until_killed(store)
        case "fill":
            await fill(store, int(arguments[0]))
        case _:
            raise SystemExit(f"no such command: {command}")
    await store.close()
    say("done")


def hold_lock(folder: Path) -> None:
    """Sit in the middle of a write, with the lock held and half of it made, until killed."""
    engine = LmdbEngine(folder)
    batch = engine.write()
    batch.put(b"half", b"made")
    say("holding")
    sys.stdin.read()


if __name__ == "__main__":
    if sys.argv[2] == "hold_lock":
        hold_lock(Path(sys.argv[1]))
    else:
        asyncio.run(run(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))
