"""The retry loop: runs a transition's body in new attempts until one commits or the policy's bounds are reached.

What is retried: RetryableError, from a read of the body or from the commit, after the pause the store advises. What is
not: an outcome nobody knows (OutcomeUnknownError, a cancellation while committing), because the commit may still land
after the answer; an exception of the body, which ends its attempt unwritten; an error no attempt can cure.

The commit is awaited under a shield and a deadline of its own, so neither the caller's cancellation nor a store that
hangs can make "it may have committed" look like "it did not". A commit left behind so is kept in the runner until it
has landed or failed; `aclose` waits for those.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar

from keyspace.clock import Clock
from keyspace.store.api import Store, Transaction
from keyspace.store.errors import OutcomeUnknownError, RetryableError, StoreError, TransactionTimedOut
from keyspace.store.meter import NO_COUNTS, Meter, TransactionCounts

__all__ = ["DEFAULT_POLICY", "RetriesExhausted", "RetryPolicy", "RunContext", "Runner", "current_run"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long a transition is tried."""

    attempts_max: int = 50
    """Attempts in one run, the first included; at least 1."""
    elapsed_ms_max: float = 20_000.0
    """No attempt begins once this much time of the injected clock has passed since the first one began."""
    commit_ms_max: float = 10_000.0
    """How long a commit is awaited before its outcome is called unknown; above the store's 5 s transaction limit.

    On the event loop's time: it guards against a device or a cluster that hangs, and a virtual clock, which may jump a
    minute while a real disk is syncing, would call that hanging.
    """

    def __post_init__(self) -> None:
        """Refuse bounds that would let no attempt or no commit happen."""
        if self.attempts_max < 1 or self.elapsed_ms_max <= 0 or self.commit_ms_max <= 0:
            raise ValueError(f"every bound of a retry policy must be positive: {self}")


DEFAULT_POLICY = RetryPolicy()


class RetriesExhausted(StoreError):
    """A transition did not commit within its retry policy's bounds; `maybe_committed` says whether it still may have.

    When `maybe_committed` is true, an attempt ended in an unknown result: read the receipt before deciding anything.
    """

    def __init__(self, name: str, attempts: int, last: RetryableError, *, maybe_committed: bool) -> None:
        """Carry the transition's `name`, how many `attempts` were made and the `last` one's error."""
        self.name = name
        self.attempts = attempts
        self.last = last
        self.maybe_committed = maybe_committed
        outcome = "one of them may have committed: read the receipt" if maybe_committed else "nothing was written"
        super().__init__(
            f"the transition did not commit within its bounds; {outcome} "
            f"name={name} attempts={attempts} last={type(last).__name__}",
            code=last.code,
        )


@dataclass(eq=False, slots=True)
class RunContext:
    """The run that the current code belongs to: what a store may know of its caller. Compared by identity."""

    name: str
    """The transition's name."""
    attempt_index: int = 0
    """0 in the first attempt."""


_current_run: ContextVar[RunContext | None] = ContextVar("keyspace_store_run", default=None)


def current_run() -> RunContext | None:
    """Return the run whose body or commit is executing, or None outside one; for adapters that name what they do."""
    return _current_run.get()


class Runner:
    """Runs transitions on one store. Shared by every task of one event loop."""

    def __init__(self, store: Store, *, clock: Clock, meter: Meter, policy: RetryPolicy = DEFAULT_POLICY) -> None:
        """Run on `store`, take durations from `clock`, count in `meter`, stop at the bounds of `policy`."""
        self.store = store
        self.clock = clock
        self.meter = meter
        self.policy = policy
        self._left_behind: set[asyncio.Future[None]] = set()

    async def run(self, name: str, body: Callable[[Transaction, int], Awaitable[T]]) -> T:
        """Run `body` in one transaction, again from its start after each retryable error, and return its value.

        The body must be idempotent on re-execution: after an unknown result an earlier attempt's writes may be there,
        so it looks for its own receipt first. It may be called up to `policy.attempts_max` times.

        Args:
            name: the transition's name; the label of its figures.
            body: takes the open transaction and the attempt's index (0 first); must not commit or cancel it.

        Returns:
            What the body of the attempt that committed returned. A body that wrote nothing is committed too.

        Raises:
            RetriesExhausted: a bound of the policy was reached.
            OutcomeUnknownError: the commit timed out or was cancelled below; it may still land.
            StoreError: an error that running again cannot cure.
        """
        run = RunContext(name)
        token = _current_run.set(run)
        try:
            return await self._run(run, body)
        finally:
            _current_run.reset(token)

    async def aclose(self) -> None:
        """Wait until every commit that was left to land has ended; call before the store is closed."""
        if self._left_behind:
            await asyncio.wait(self._left_behind)

    async def _run(self, run: RunContext, body: Callable[[Transaction, int], Awaitable[T]]) -> T:
        started_ms = self.clock.monotonic_ms()
        maybe_committed = False
        while True:
            try:
                return await self._attempt(run, body, started_ms)
            except RetryableError as error:
                last = error
            maybe_committed = maybe_committed or last.maybe_committed
            self.meter.observe_retry(run.name, last, maybe_committed=last.maybe_committed)
            run.attempt_index += 1
            if run.attempt_index < self.policy.attempts_max:
                await self.store.backoff(last, run.attempt_index)
                if self.clock.monotonic_ms() - started_ms < self.policy.elapsed_ms_max:
                    continue
            self.meter.observe_exhausted(run.name)
            raise RetriesExhausted(run.name, run.attempt_index, last, maybe_committed=maybe_committed) from last

    async def _attempt(self, run: RunContext, body: Callable[[Transaction, int], Awaitable[T]], started_ms: float) -> T:
        transaction = self.store.begin()
        try:
            value = await body(transaction, run.attempt_index)
        except BaseException as error:
            # Whatever it was, the attempt is over: let go of its reads and watches before anybody else hears of it.
            self.meter.observe_attempt(run.name, _counts_of(transaction))
            transaction.cancel()
            if not isinstance(error, RetryableError):
                self.meter.observe_failure(run.name)
            raise
        counts = _counts_of(transaction)
        self.meter.observe_attempt(run.name, counts)
        commit_started_ms = self.clock.monotonic_ms()
        try:
            await self._commit(transaction)
        except RetryableError:
            raise
        except (OutcomeUnknownError, asyncio.CancelledError):
            self.meter.observe_unknown(run.name)
            raise
        except BaseException:
            self.meter.observe_failure(run.name)
            raise
        now_ms = self.clock.monotonic_ms()
        self.meter.observe_commit(
            run.name, size_bytes=counts.size_bytes, commit_ms=now_ms - commit_started_ms, run_ms=now_ms - started_ms
        )
        return value

    async def _commit(self, transaction: Transaction) -> None:
        commit = asyncio.ensure_future(transaction.commit())
        try:
            # A store in memory ends its commit in the task's first step; only a slower one is worth a timer.
            await asyncio.sleep(0)
            if not commit.done():
                await asyncio.wait((commit,), timeout=self.policy.commit_ms_max / 1000.0)
        except asyncio.CancelledError:
            self._leave_to_land(commit)
            raise
        if not commit.done():
            self._leave_to_land(commit)
            raise TransactionTimedOut(
                f"the commit did not answer in time and may still land limit_ms={self.policy.commit_ms_max:g}"
            )
        commit.result()

    def _leave_to_land(self, commit: asyncio.Future[None]) -> None:
        self._left_behind.add(commit)
        commit.add_done_callback(self._landed)

    def _landed(self, commit: asyncio.Future[None]) -> None:
        self._left_behind.discard(commit)
        # Nobody is left to tell; asking for the exception keeps the event loop from reporting it as forgotten.
        if not commit.cancelled():
            commit.exception()


def _counts_of(transaction: Transaction) -> TransactionCounts:
    counts: Callable[[], TransactionCounts] | None = getattr(transaction, "counts", None)
    return NO_COUNTS if counts is None else counts()
