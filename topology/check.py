"""A deployment's keyspace from outside: check it with what `ryusen fsck` checks, or clear it away."""

from __future__ import annotations

from keyspace.clock import SystemClock
from keyspace.fsck import Report, check_keyspace
from keyspace.keyspace import Keyspace
from keyspace.store.api import Transaction
from keyspace.store.meter import Meter
from keyspace.store.open import open_store
from keyspace.store.runner import Runner

__all__ = ["check_store", "clear_store"]


async def check_store(store: str, *, prefix: str = "") -> Report:
    """Open the store at an address, walk the whole keyspace and return what is wrong with it."""
    clock = SystemClock()
    opened = await open_store(store, clock=clock)
    try:
        return await check_keyspace(Keyspace(opened, clock=clock, prefix=prefix.encode()))
    finally:
        await opened.close()


async def clear_store(store: str, *, prefix: str) -> None:
    """Remove every key under a prefix, which must not be empty, from a shared store."""
    assert prefix, "a whole store is not cleared"
    clock = SystemClock()
    opened = await open_store(store, clock=clock)
    begin = prefix.encode()

    async def clear(transaction: Transaction, attempt_index: int) -> None:
        transaction.clear_range(begin, begin + b"\xff")

    try:
        await Runner(opened, clock=clock, meter=Meter()).run("clear_store", clear)
    finally:
        await opened.close()
