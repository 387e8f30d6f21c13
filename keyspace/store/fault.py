"""A store that wraps another and makes it fail on purpose, as a FoundationDB client can be made to see its cluster fail.

`FaultStore(inner, plan)` behaves as `inner` except where the plan says otherwise: at the n-th commit, read or watch, in
a sequence over the attempts of one run, or drawn from a seed. What it injects is written to `trace`; it prints nothing.

Commits are numbered from 1 in the order they reach the store, one number an attempt. A transaction that wrote nothing
is not numbered and never faulted: a read-only commit has no outcome that could be unknown.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Generic, NamedTuple, TypeVar

from keyspace.clock import Clock
from keyspace.store.api import KeyRange, KeyValue, Store, Transaction, Watch
from keyspace.store.errors import (
    BatchThrottled,
    CommitUnknownResult,
    FutureVersion,
    NotCommitted,
    ProcessBehind,
    RetryableError,
    StoreError,
    TransactionTimedOut,
    TransactionTooOld,
    error_for_code,
)
from keyspace.store.fault_plan import CommitFault, FaultPlan, ReadFault, WatchFault
from keyspace.store.meter import NO_COUNTS, TransactionCounts
from keyspace.store.runner import RunContext, current_run

__all__ = ["TRACE_MAX", "FaultStore", "ProcessStopped", "TraceEntry"]

T = TypeVar("T")

TRACE_MAX = 100_000
"""Trace entries kept; the oldest go first, since the last ones explain a failure."""

_OPERATION_CANCELLED = 1101

_REFUSED_COMMITS: dict[CommitFault, type[RetryableError]] = {
    CommitFault.NOT_COMMITTED: NotCommitted,
    CommitFault.TRANSACTION_TOO_OLD: TransactionTooOld,
    CommitFault.FUTURE_VERSION: FutureVersion,
    CommitFault.PROCESS_BEHIND: ProcessBehind,
    CommitFault.THROTTLED: BatchThrottled,
    CommitFault.UNKNOWN_NOT_COMMITTED: CommitUnknownResult,
}

_REFUSED_READS: dict[ReadFault, type[RetryableError]] = {
    ReadFault.TRANSACTION_TOO_OLD: TransactionTooOld,
    ReadFault.FUTURE_VERSION: FutureVersion,
    ReadFault.PROCESS_BEHIND: ProcessBehind,
    ReadFault.THROTTLED: BatchThrottled,
}


class ProcessStopped(BaseException):
    """The simulated process is gone: nothing it still does reaches the store.

    A BaseException, so that no handler of the code under test mistakes the end of the process for an error of its own.
    """


class TraceEntry(NamedTuple):
    """One fault that was injected."""

    kind: str
    """`commit`, `read`, `watch`, or `late` for a commit that landed after its time-out."""
    number: int
    """Its number among its kind, from 1; a late commit keeps the number it had."""
    transition: str | None
    """The name of the run it struck, None outside one."""
    fault: str
    """The fault's name; for `late`, `landed` or the class of the error that refused it."""


class _LateCommit(NamedTuple):
    inner: Transaction
    number: int
    transition: str | None


class FaultStore:
    """One process's connection to `inner` with the faults of a plan. After a stop, open another one on the same store."""

    def __init__(self, inner: Store, plan: FaultPlan, *, clock: Clock) -> None:
        """Wrap `inner`; delays are waited for on `clock`."""
        self.inner = inner
        self.plan = plan
        self.clock = clock
        self.is_stopped = False
        self.commit_count = 0
        self.read_count = 0
        self.watch_count = 0
        self.trace: deque[TraceEntry] = deque(maxlen=TRACE_MAX)
        self._late: deque[_LateCommit] = deque()

    @property
    def name(self) -> str:
        """The wrapped store's name."""
        return self.inner.name

    def begin(self) -> FaultTransaction:
        """Start an attempt on the wrapped store."""
        self.require_running()
        return FaultTransaction(self, self.inner.begin(), current_run())

    async def backoff(self, error: RetryableError, attempt_count: int) -> None:
        """Wait as the wrapped store advises."""
        self.require_running()
        await self.inner.backoff(error, attempt_count)
        self.require_running()

    async def close(self) -> None:
        """Send the late commits and close the wrapped store."""
        await self.land()
        await self.inner.close()

    async def land(self) -> None:
        """Send every commit that is late; each lands, or is refused by the store's own rules, in their order."""
        while self._late:
            late = self._late.popleft()
            try:
                await late.inner.commit()
            except StoreError as error:
                self.trace.append(TraceEntry("late", late.number, late.transition, type(error).__name__))
            else:
                self.trace.append(TraceEntry("late", late.number, late.transition, "landed"))

    def require_running(self) -> None:
        """Raise ProcessStopped when the process has stopped."""
        if self.is_stopped:
            raise ProcessStopped

    def stop(self) -> ProcessStopped:
        """Stop the process: every later call and every answer still awaited raises. Returns what to raise."""
        self.is_stopped = True
        return ProcessStopped()

    def next_commit(self, run: RunContext | None) -> tuple[int, CommitFault | None]:
        """Number a commit and draw its fault."""
        self.commit_count += 1
        fault = self.plan.next_commit(run)
        self._note("commit", self.commit_count, run, fault)
        return self.commit_count, fault

    def next_read(self, run: RunContext | None) -> ReadFault | None:
        """Number a read and draw its fault."""
        self.read_count += 1
        fault = self.plan.next_read(run)
        self._note("read", self.read_count, run, fault)
        return fault

    def next_watch(self, run: RunContext | None) -> WatchFault | None:
        """Number a watch and draw its fault."""
        self.watch_count += 1
        fault = self.plan.next_watch(run)
        self._note("watch", self.watch_count, run, fault)
        return fault

    def commit_late(self, inner: Transaction, number: int, run: RunContext | None) -> None:
        """Keep a commit whose time-out was reported, to be sent later."""
        self._late.append(_LateCommit(inner, number, run.name if run else None))

    def _note(
        self, kind: str, number: int, run: RunContext | None, fault: CommitFault | ReadFault | WatchFault | None
    ) -> None:
        if fault is not None:
            self.trace.append(TraceEntry(kind, number, run.name if run else None, fault.value))


class FaultTransaction:
    """One attempt through a `FaultStore`."""

    def __init__(self, store: FaultStore, inner: Transaction, run: RunContext | None) -> None:
        self._store = store
        self._inner = inner
        self._run = run
        self._is_writing = False
        self._reported: StoreError | None = None

    def counts(self) -> TransactionCounts:
        """Return the wrapped transaction's counts, when it keeps them."""
        counts: Callable[[], TransactionCounts] | None = getattr(self._inner, "counts", None)
        return NO_COUNTS if counts is None else counts()

    def get(self, key: bytes, *, snapshot: bool = False) -> Awaitable[bytes | None]:
        """Issue a read of one key, or fail it."""
        return self._read(self._inner.get(key, snapshot=snapshot))

    def get_range(
        self, begin: bytes, end: bytes, *, limit: int, reverse: bool = False, snapshot: bool = False
    ) -> Awaitable[list[KeyValue]]:
        """Issue a range read, or fail it."""
        return self._read(self._inner.get_range(begin, end, limit=limit, reverse=reverse, snapshot=snapshot))

    def get_read_version(self) -> Awaitable[int]:
        """Ask for the read version, or fail that."""
        return self._read(self._inner.get_read_version())

    def set(self, key: bytes, value: bytes) -> None:
        """Write one pair."""
        self._writing().set(key, value)

    def clear(self, key: bytes) -> None:
        """Remove one key."""
        self._writing().clear(key)

    def clear_range(self, begin: bytes, end: bytes) -> None:
        """Remove a range."""
        self._writing().clear_range(begin, end)

    def add(self, key: bytes, delta: int) -> None:
        """Add atomically."""
        self._writing().add(key, delta)

    def byte_max(self, key: bytes, value: bytes) -> None:
        """Keep the greater value atomically."""
        self._writing().byte_max(key, value)

    def set_versionstamped_key(self, key: bytes, offset: int, value: bytes) -> None:
        """Write under a stamped key."""
        self._writing().set_versionstamped_key(key, offset, value)

    def set_versionstamped_value(self, key: bytes, value: bytes, offset: int) -> None:
        """Write a stamped value."""
        self._writing().set_versionstamped_value(key, value, offset)

    def add_read_conflict_key(self, key: bytes) -> None:
        """Depend on a key."""
        self._inner.add_read_conflict_key(key)

    def add_read_conflict_range(self, begin: bytes, end: bytes) -> None:
        """Depend on a range."""
        self._inner.add_read_conflict_range(begin, end)

    def add_write_conflict_key(self, key: bytes) -> None:
        """Conflict later committers that read `key`."""
        self._writing().add_write_conflict_key(key)

    def watch(self, key: bytes) -> Watch:
        """Make a watch, or a faulty one."""
        self._store.require_running()
        fault = self._store.next_watch(self._run)
        inner = self._inner.watch(key)
        return inner if fault is None else _FaultWatch(self._store, inner, fault)

    def get_versionstamp(self) -> Awaitable[bytes]:
        """Return the wrapped transaction's stamp, or the commit's error where one was reported."""
        return _Answer(self._inner.get_versionstamp(), self._stamp_check)

    def approximate_size(self) -> Awaitable[int]:
        """Return the wrapped transaction's size."""
        return self._inner.approximate_size()

    def read_conflict_ranges(self) -> Awaitable[list[KeyRange]]:
        """Return the wrapped transaction's read conflict ranges."""
        return self._inner.read_conflict_ranges()

    def write_conflict_ranges(self) -> Awaitable[list[KeyRange]]:
        """Return the wrapped transaction's write conflict ranges."""
        return self._inner.write_conflict_ranges()

    async def commit(self) -> None:
        """Commit, with the fault the plan has for this one."""
        self._store.require_running()
        if not self._is_writing:
            await self._inner.commit()
            return
        number, fault = self._store.next_commit(self._run)
        # The worst moment for a late commit: after this attempt has read, before it commits.
        await self._store.land()
        try:
            await self._commit(number, fault)
        except StoreError as error:
            self._reported = error
            raise

    async def _commit(self, number: int, fault: CommitFault | None) -> None:
        store = self._store
        if fault in _REFUSED_COMMITS:
            self._inner.cancel()
            raise _REFUSED_COMMITS[fault]()
        if fault is CommitFault.STOP_BEFORE:
            self._inner.cancel()
            raise store.stop()
        if fault is CommitFault.TIMED_OUT_LOST:
            self._inner.cancel()
            raise TransactionTimedOut
        if fault is CommitFault.TIMED_OUT_LATE:
            store.commit_late(self._inner, number, self._run)
            raise TransactionTimedOut
        if fault is CommitFault.DELAYED:
            await store.clock.sleep_ms(store.plan.delay_ms())
            store.require_running()
        await self._inner.commit()
        if fault is CommitFault.STOP_AFTER:
            raise store.stop()
        store.require_running()
        if fault is CommitFault.UNKNOWN_COMMITTED:
            raise CommitUnknownResult

    def committed_version(self) -> int:
        """Return the wrapped transaction's commit version."""
        return self._inner.committed_version()

    def cancel(self) -> None:
        """End the attempt; a commit already reported as timed out is not called back."""
        if not isinstance(self._reported, TransactionTimedOut):
            self._inner.cancel()

    def _writing(self) -> Transaction:
        self._store.require_running()
        self._is_writing = True
        return self._inner

    def _read(self, answer: Awaitable[T]) -> Awaitable[T]:
        self._store.require_running()
        fault = self._store.next_read(self._run)
        if fault in _REFUSED_READS:
            return _Answer(answer, self._read_check, error=_REFUSED_READS[fault]())
        delay_ms = self._store.plan.delay_ms() if fault is ReadFault.DELAYED else 0.0
        return _Answer(answer, self._read_check, delay=self._store.clock.sleep_ms if delay_ms else None, ms=delay_ms)

    def _read_check(self) -> None:
        self._store.require_running()

    def _stamp_check(self) -> None:
        self._store.require_running()
        if self._reported is not None:
            raise self._reported


class _Answer(Generic[T]):
    """An awaitable that checks, delays or fails before and after it yields another's answer."""

    def __init__(
        self,
        inner: Awaitable[T],
        check: Callable[[], None],
        *,
        error: StoreError | None = None,
        delay: Callable[[float], Awaitable[None]] | None = None,
        ms: float = 0.0,
    ) -> None:
        self._inner = inner
        self._check = check
        self._error = error
        self._delay = delay
        self._ms = ms

    def __await__(self) -> Generator[Any, None, T]:
        if self._error is not None:
            raise self._error
        if self._delay is not None:
            yield from self._delay(self._ms).__await__()
        self._check()
        value = yield from self._inner.__await__()
        self._check()
        return value


class _FaultWatch:
    """A watch that fires wrongly; the wrapped one is given up at once, since its answer is never used."""

    def __init__(self, store: FaultStore, inner: Watch, fault: WatchFault) -> None:
        inner.cancel()
        self._store = store
        self._fault = fault
        self._cancelled = asyncio.Event()

    async def wait(self) -> None:
        """Fire early, spuriously, never, or fail."""
        self._store.require_running()
        if self._fault is WatchFault.SPURIOUS:
            await self._store.clock.sleep_ms(self._store.plan.delay_ms())
            self._store.require_running()
        elif self._fault is not WatchFault.EARLY:
            if self._fault is WatchFault.LOST:
                await self._cancelled.wait()
            raise error_for_code(_OPERATION_CANCELLED, "the watch was lost")

    def cancel(self) -> None:
        """Give the watch up."""
        self._cancelled.set()
