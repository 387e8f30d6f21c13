"""A keyspace: one deployment's range of a store, and the only way transitions are run on it.

`Keyspace.transact(name, body)` owns a transition's life: it samples engine time once an attempt, opens the byte budget and
the attempt's ids, and leaves retries, counters and the commit to the store's runner.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from keyspace.budget import Budget, check_allowance
from keyspace.clock import Clock
from keyspace.limits import ALLOWANCE_BYTES_DEFAULT, PAYLOAD_BYTES_DEFAULT
from keyspace.policy import ANY_TIME, RunTimePolicy
from keyspace.store.api import Store, Transaction
from keyspace.store.meter import Meter
from keyspace.store.runner import Runner
from keyspace.tx import ID_BYTES, Ids, Tx

__all__ = ["Keyspace", "Randomness", "SystemRandomness"]

T = TypeVar("T")


RANDOM_POOL_BYTES = 4_096


class Randomness(Protocol):
    """Where ids come from; `random.Random` is one."""

    def randbytes(self, n: int, /) -> bytes:
        """Return `n` random bytes."""
        ...


class SystemRandomness:
    """The operating system's random bytes, read a page at a time: a call for each id would cost more than its transaction's keys."""

    def __init__(self) -> None:
        """Start with nothing read, so that no two processes share what one of them read."""
        self._pool = b""
        self._taken = 0

    def randbytes(self, n: int, /) -> bytes:
        """Return `n` random bytes, at most 4,096; none is ever returned twice."""
        if self._taken + n > len(self._pool):
            self._pool, self._taken = os.urandom(RANDOM_POOL_BYTES), 0
        self._taken += n
        return self._pool[self._taken - n : self._taken]


class Keyspace:
    """One deployment's keys in one store, shared by the tasks of one process."""

    def __init__(
        self,
        store: Store,
        *,
        clock: Clock,
        prefix: bytes = b"",
        allowance_bytes: int = ALLOWANCE_BYTES_DEFAULT,
        payload_bytes_max: int = PAYLOAD_BYTES_DEFAULT,
        rng: Randomness | None = None,
        meter: Meter | None = None,
        run_time: RunTimePolicy = ANY_TIME,
    ) -> None:
        """Bind a store to a deployment.

        Args:
            store: an open store of any adapter.
            clock: where engine time comes from.
            prefix: the deployment's physical key prefix, short; empty when it owns the whole store.
            allowance_bytes: a transaction's byte allowance.
            payload_bytes_max: the largest payload or result accepted.
            rng: where ids come from; the operating system's source by default, a seeded one in tests.
            meter: where counters by transition name go.
            run_time: how long runs may take where nothing else says so.

        Raises:
            Refusal: `bad_allowance`.
        """
        check_allowance(allowance_bytes, payload_bytes_max)
        self.store = store
        self.clock = clock
        self.prefix = prefix
        self.allowance_bytes = allowance_bytes
        self.payload_bytes_max = payload_bytes_max
        self.run_time = run_time
        self.meter = meter if meter is not None else Meter()
        self._rng: Randomness = rng if rng is not None else SystemRandomness()
        self._runner = Runner(store, clock=clock, meter=self.meter)

    def mint(self) -> str:
        """Return a new id, 32 hexadecimal digits; what a receipt is found by is minted so, before the transaction."""
        return self._rng.randbytes(ID_BYTES).hex()

    async def transact(self, name: str, body: Callable[[Tx], Awaitable[T]]) -> T:
        """Run one transition as exactly one transaction and return what `body` returned in the attempt that committed.

        `body` may run several times. It must do nothing but read and write through its Tx.

        Args:
            name: the transition's name in counters and traces.
            body: the transition; gets a new Tx each attempt, with new ids.

        Raises:
            Refusal: `body` refused; nothing was mutated.
            RetriesExhausted: conflicts or faults outlasted the retry policy.
            OutcomeUnknownError: cancelled or timed out while committing.
        """
        seed = self._rng.randbytes(ID_BYTES)

        async def attempt(raw: Transaction, attempt_index: int) -> T:
            tx = Tx(
                raw,
                prefix=self.prefix,
                budget=Budget(self.allowance_bytes),
                now_ms=self.clock.now_ms(),
                ids=Ids(seed, attempt_index),
                run_time=self.run_time,
                attempt_index=attempt_index,
            )
            return await body(tx)

        return await self._runner.run(name, attempt)
