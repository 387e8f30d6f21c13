"""Check a stopped or running deployment's keyspace from outside, with what `ryusen fsck` checks."""

from __future__ import annotations

from keyspace.clock import SystemClock
from keyspace.fsck import Report, check_keyspace
from keyspace.keyspace import Keyspace
from keyspace.store.open import open_store

__all__ = ["check_store"]


async def check_store(store: str, *, prefix: str = "") -> Report:
    """Open the store at an address, walk the whole keyspace and return what is wrong with it."""
    clock = SystemClock()
    opened = await open_store(store, clock=clock)
    try:
        return await check_keyspace(Keyspace(opened, clock=clock, prefix=prefix.encode()))
    finally:
        await opened.close()
