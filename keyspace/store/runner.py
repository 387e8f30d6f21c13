"""The retry loop: runs a transition's body in new attempts until one commits or the policy's bounds are reached.

What is retried: RetryableError, from a read of the body or from the commit, after the pause the store advises. What is
not: an outcome nobody knows (OutcomeUnknownError, a cancellation while committing), because the commit may still land
after the answer; an exception of the body, which ends its attempt unwritten; an error no attempt can cure.

The commit is awaited behind a shield and a deadline of its own, so neither the caller's cancellation nor a store that
hangs can make "it may have committed" look like "it did not". A commit left behind so is kept in the runner until it
has landed or failed; `aclose` waits for those.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

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
        self._patience = _Patience()

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
        self._patience.close()
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
        # The commit is run here, step by step, and not as a task of its own: a task, its timer and their turns of the
        # event loop cost as much as a small transaction's reads. Only a commit that is left behind becomes one.
        commit = transaction.commit()
        ends_s = asyncio.get_running_loop().time() + self.policy.commit_ms_max / 1000.0
        try:
            while True:
                waits_for: asyncio.Future[Any] | None = commit.send(None)
                try:
                    is_in_time = await self._patience.wait(waits_for, ends_s)
                except asyncio.CancelledError:
                    self._leave_to_land(commit, waits_for)
                    raise
                if not is_in_time:
                    self._leave_to_land(commit, waits_for)
                    raise TransactionTimedOut(
                        f"the commit did not answer in time and may still land limit_ms={self.policy.commit_ms_max:g}"
                    )
        except StopIteration:
            return

    def _leave_to_land(self, commit: Coroutine[Any, Any, None], waits_for: asyncio.Future[Any] | None) -> None:
        landing = asyncio.ensure_future(_go_on(commit, waits_for))
        self._left_behind.add(landing)
        landing.add_done_callback(self._landed)

    def _landed(self, commit: asyncio.Future[None]) -> None:
        self._left_behind.discard(commit)
        # Nobody is left to tell; asking for the exception keeps the event loop from reporting it as forgotten.
        if not commit.cancelled():
            commit.exception()


@types.coroutine
def _go_on(begun: Coroutine[Any, Any, None], waits_for: asyncio.Future[Any] | None) -> Generator[Any, Any, None]:
    """Go on with a coroutine that has been run up to a wait, which is for `waits_for`, or for the loop's next turn."""
    while True:
        try:
            answer = yield waits_for
        except BaseException as error:  # noqa: BLE001 - it is the coroutine's, whatever it is
            step = partial(begun.throw, error)
        else:
            step = partial(begun.send, answer)
        try:
            waits_for = step()
        except StopIteration:
            return


class _Patience:
    """Waits for what is not the waiter's to cancel, up to an instant.

    One timer serves all waits: they are given the same time, so none runs out before the first that the timer was set for,
    and nearly all are over long before. A timer for each would stay in the loop's heap when cancelled, thousands a second.
    """

    def __init__(self) -> None:
        self._ends: dict[asyncio.Future[bool], float] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def wait(self, awaited: asyncio.Future[Any] | None, ends_s: float) -> bool:
        """Return whether `awaited` ended before the loop's time `ends_s`; None is the loop's next turn, and in time."""
        if awaited is None:
            await asyncio.sleep(0)
            return True
        loop = asyncio.get_running_loop()
        # Not `awaited` itself: a cancellation of the caller would cancel it too.
        waiter: asyncio.Future[bool] = loop.create_future()
        wake = partial(_answer, waiter, True)
        awaited.add_done_callback(wake)
        self._ends[waiter] = ends_s
        if self._timer is None:
            self._timer = loop.call_at(ends_s, self._on_timer)
        try:
            return await waiter
        finally:
            del self._ends[waiter]
            awaited.remove_done_callback(wake)

    def close(self) -> None:
        """Stop the timer; waits under way go on without it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        for waiter, ends_s in self._ends.items():
            if ends_s <= now_s:
                _answer(waiter, False, None)
        later = [ends_s for ends_s in self._ends.values() if ends_s > now_s]
        self._timer = loop.call_at(min(later), self._on_timer) if later else None


def _answer(waiter: asyncio.Future[bool], is_in_time: bool, _: object) -> None:
    if not waiter.done():
        waiter.set_result(is_in_time)


def _counts_of(transaction: Transaction) -> TransactionCounts:
    counts: Callable[[], TransactionCounts] | None = getattr(transaction, "counts", None)
    return NO_COUNTS if counts is None else counts()
