"""A process of its own on a store: `python store_worker.py ADDRESS PREFIX COMMAND ARGUMENTS...`.

The address is what `open_store` takes; every key begins with the prefix, which may be empty.

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
from keyspace.store.errors import RetryableError, StoreUnavailableError
from keyspace.store.lmdb_engine import LmdbEngine
from keyspace.store.open import open_store

ATTEMPTS_MAX = 10_000
ACCOUNTS = 5


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def increment(store: Store, prefix: bytes, count: int) -> None:
    """Read, add one, write: `count` times, each until it commits."""
    for _ in range(count):
        for attempt in range(1, ATTEMPTS_MAX):
            transaction = store.begin()
            try:
                stored = await transaction.get(prefix + b"count")
                transaction.set(prefix + b"count", b"%d" % (int(stored or b"0") + 1))
                await transaction.commit()
                break
            except RetryableError as error:
                await store.backoff(error, attempt)


async def transfer(store: Store, prefix: bytes, count: int, seed: int) -> None:
    """Move random amounts between accounts, looking at all of them with one range read."""
    rng = random.Random(seed)
    for _ in range(count):
        source, target = rng.sample(range(ACCOUNTS), 2)
        for attempt in range(1, ATTEMPTS_MAX):
            transaction = store.begin()
            try:
                rows = dict(await transaction.get_range(prefix + b"account/", prefix + b"account0", limit=ACCOUNTS + 1))
                balances = [int(rows[prefix + b"account/%d" % index]) for index in range(ACCOUNTS)]
                amount = rng.randint(0, balances[source])
                transaction.set(prefix + b"account/%d" % source, b"%d" % (balances[source] - amount))
                transaction.set(prefix + b"account/%d" % target, b"%d" % (balances[target] + amount))
                await transaction.commit()
                break
            except RetryableError as error:
                await store.backoff(error, attempt)


async def append(store: Store, prefix: bytes, name: str) -> None:
    """Until killed: several writers append numbered pairs of keys and print each number once it is acknowledged."""

    async def write(lane: int) -> None:
        number = 0
        while True:
            transaction = store.begin()
            for half in (b"a", b"b"):
                transaction.set(prefix + f"{name}/{lane}/{number:06d}/".encode() + half, b"x" * 300)
            transaction.add(prefix + f"total/{name}".encode(), 1)
            await transaction.commit()
            say(f"{lane} {number}")
            number += 1

    await asyncio.gather(*(write(lane) for lane in range(4)))


async def watch(store: Store, prefix: bytes, count: int) -> None:
    """Print each value of `bell` as a watch reports it, up to the value `count`."""
    while True:
        transaction = store.begin()
        value = await transaction.get(prefix + b"bell")
        seen = transaction.watch(prefix + b"bell")
        await transaction.commit()
        say(f"saw {int(value or b'0')}")
        if int(value or b"0") >= count:
            return
        await seen.wait()


async def watch_until_killed(store: Store, prefix: bytes) -> None:
    transaction = store.begin()
    seen = transaction.watch(prefix + b"bell")
    await transaction.commit()
    say("watching")
    await seen.wait()
    say("fired")
    await asyncio.Event().wait()


async def read_until_killed(store: Store, prefix: bytes) -> None:
    """Hold a snapshot open."""
    transaction = store.begin()
    await transaction.get(prefix + b"k")
    say("reading")
    await asyncio.Event().wait()


async def fill(store: Store, prefix: bytes, file_bytes: int) -> None:
    """Write until the file may not grow any more, say how that was refused, and show that the store still serves."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, resource.RLIM_INFINITY))
    number = 0
    while True:
        transaction = store.begin()
        for part in range(8):
            transaction.set(prefix + b"fill/%06d/%d" % (number, part), bytes(60_000))
        try:
            await transaction.commit()
        except StoreUnavailableError as error:
            say(f"refused {error}")
            break
        number += 1
    say(f"acknowledged {number}")
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    transaction = store.begin()
    assert await transaction.get(prefix + b"fill/%06d/0" % number) is None
    transaction.set(prefix + b"after", b"1")
    await transaction.commit()
    say("written after")


async def run(address: str, prefix: bytes, command: str, arguments: list[str]) -> None:
    store = await open_store(address, clock=SystemClock())
    say("open")
    match command:
        case "increment":
            await increment(store, prefix, int(arguments[0]))
        case "transfer":
            await transfer(store, prefix, int(arguments[0]), int(arguments[1]))
        case "append":
            await append(store, prefix, arguments[0])
        case "watch":
            await watch(store, prefix, int(arguments[0]))
        case "watch_until_killed":
            await watch_until_killed(store, prefix)
        case "read_until_killed":
            await read_until_killed(store, prefix)
        case "fill":
            await fill(store, prefix, int(arguments[0]))
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
    if sys.argv[3] == "hold_lock":
        hold_lock(Path(sys.argv[1].removeprefix("embedded:")))
    else:
        asyncio.run(run(sys.argv[1], sys.argv[2].encode(), sys.argv[3], sys.argv[4:]))
