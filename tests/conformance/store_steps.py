"""Short words for what the suite does again and again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable

import pytest

from keyspace.store.api import KeyValue, Store, Transaction, Watch
from keyspace.store.errors import StoreError

DEADLINE_S = 10.0
"""By when whatever a test waits for must have happened."""


async def put(store: Store, *pairs: KeyValue) -> int:
    """Write pairs in one transaction and return its commit version."""
    transaction = store.begin()
    for key, value in pairs:
        transaction.set(key, value)
    await transaction.commit()
    return transaction.committed_version()


async def clear(store: Store, *keys: bytes) -> None:
    transaction = store.begin()
    for key in keys:
        transaction.clear(key)
    await transaction.commit()


async def value_of(store: Store, key: bytes) -> bytes | None:
    """Read one key in a transaction of its own."""
    transaction = store.begin()
    try:
        return await transaction.get(key)
    finally:
        transaction.cancel()


async def rows_of(store: Store, prefix: bytes, *, limit: int = 10_000) -> list[KeyValue]:
    """Read everything under a prefix in a transaction of its own."""
    transaction = store.begin()
    try:
        return await transaction.get_range(prefix, prefix + b"\xff", limit=limit)
    finally:
        transaction.cancel()


async def commits(*transactions: Transaction) -> list[type[StoreError] | None]:
    """Commit one after the other and return how each ended."""
    ended: list[type[StoreError] | None] = []
    for transaction in transactions:
        try:
            await transaction.commit()
        except StoreError as error:
            ended.append(type(error))
        else:
            ended.append(None)
    return ended


async def fires(watch: Watch) -> None:
    """Wait for a watch, with a deadline."""
    await asyncio.wait_for(watch.wait(), DEADLINE_S)


@contextlib.asynccontextmanager
async def refused(*errors: type[StoreError]) -> AsyncIterator[None]:
    """Expect a refusal, be it at the call or at the await after it: adapters differ in when they can know."""
    with pytest.raises(errors):
        yield


def keys_of(rows: Iterable[KeyValue]) -> list[bytes]:
    return [key for key, _ in rows]
