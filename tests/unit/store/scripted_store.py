"""A store whose every answer is written down beforehand, for tests of what stands above a store."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import cast

from keyspace.clock import VirtualClock
from keyspace.store.api import Store, Transaction
from keyspace.store.errors import RetryableError
from keyspace.store.meter import TransactionCounts

Step = BaseException | Awaitable[None] | None


class ScriptedTransaction:
    """Commits as its store's script says: an exception to raise, something to wait for, or success."""

    def __init__(self, step: Step) -> None:
        self._step = step
        self.is_cancelled = False
        self.is_committed = False

    def counts(self) -> TransactionCounts:
        return TransactionCounts(read_count=2, write_count=3, size_bytes=400)

    async def commit(self) -> None:
        if isinstance(self._step, BaseException):
            raise self._step
        if self._step is not None:
            await self._step
        self.is_committed = True

    def cancel(self) -> None:
        self.is_cancelled = True


class ScriptedStore:
    """Hands out transactions that follow `script`, then clean ones; notes every pause it was asked for."""

    def __init__(self, *script: Step, clock: VirtualClock | None = None, pause_ms: float = 0.0) -> None:
        self._script = list(script)
        self._clock = clock
        self._pause_ms = pause_ms
        self.begun: list[ScriptedTransaction] = []
        self.pauses: list[tuple[int, int]] = []

    def begin(self) -> Transaction:
        self.begun.append(ScriptedTransaction(self._script.pop(0) if self._script else None))
        return cast(Transaction, self.begun[-1])

    async def backoff(self, error: RetryableError, attempt_count: int) -> None:
        self.pauses.append((error.code, attempt_count))
        if self._clock is not None:
            self._clock.advance(self._pause_ms)

    def as_store(self) -> Store:
        return cast(Store, self)
