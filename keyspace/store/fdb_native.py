"""What the FoundationDB client answers with, in the port's terms: its errors, its futures, its advice after a failure.

Only the FoundationDB adapter's modules import this, and it does not import `fdb`: `NativeClient` is handed the loaded
package, so that a machine without the C client can import everything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary, WeakSet

from keyspace.store.api import KeyValue
from keyspace.store.errors import (
    CommitUnknownResult,
    RetryableError,
    StoreError,
    StoreUnavailableError,
    TransactionTimedOut,
    error_for_code,
)
from keyspace.store.fdb_bridge import FutureBridge

__all__ = [
    "NativeAnswer",
    "NativeClient",
    "NativeRange",
    "NativeRefusal",
    "as_bytes",
    "as_nothing",
    "as_number",
    "as_value",
    "error_text",
]

T = TypeVar("T")


class NativeClient:
    """The loaded client package, seen from one event loop."""

    def __init__(self, package: Any, loop: asyncio.AbstractEventLoop) -> None:
        """Use `package`, the imported `fdb` with its API version chosen."""
        self.package = package
        self.error_class: type[Exception] = package.FDBError
        self.bridge = FutureBridge(package.impl._FDBBase.capi, loop)
        self._failed: WeakKeyDictionary[StoreError, Any] = WeakKeyDictionary()
        self._advisers: WeakSet[Any] = WeakSet()

    def failure(self, error: Any, native: Any, *, is_commit: bool = False) -> StoreError:
        """Return the port's error for a native one; a retryable one keeps its transaction for `advice`."""
        text = error_text(error)
        mapped = error_for_code(error.code, text)
        if isinstance(mapped, TransactionTimedOut) and not is_commit:
            # Before the commit was sent nothing is unknown: nothing was written.
            mapped = StoreUnavailableError(f"the cluster did not answer: {text}", code=error.code)
        elif type(mapped) is StoreError:
            # Codes newer than our table; the client knows which of them may be run again.
            if self.package.predicates.is_maybe_committed(error):
                mapped = CommitUnknownResult(text, code=error.code)
            elif self.package.predicates.is_retryable(error):
                mapped = RetryableError(text, code=error.code)
        if isinstance(mapped, RetryableError):
            self._failed[mapped] = native
            self._advisers.add(native)
        return mapped

    def is_adviser(self, native: Any) -> bool:
        """Tell whether this failed transaction may still be asked for advice, so that it must not be cancelled."""
        return native in self._advisers

    async def take_advice(self, error: RetryableError) -> bool:
        """Wait as the client's on_error wants after `error`; False when it has nothing to say, without waiting."""
        native = self._failed.pop(error, None)
        if native is None:
            return False
        try:
            await NativeAnswer(self, native, native.on_error(error.code), as_nothing)
        except StoreError:
            return False
        return True


class NativeAnswer(Generic[T]):
    """What a native future will yield. The future was issued already; awaiting sets a callback only when it must."""

    __slots__ = ("_client", "_decode", "_future", "_native")

    def __init__(self, client: NativeClient, native: Any, future: Any, decode: Callable[[Any], T]) -> None:
        self._client = client
        self._native = native
        self._future = future
        self._decode = decode

    def __await__(self) -> Generator[Any, None, T]:
        future = self._future
        if not future.is_ready():
            yield from self._client.bridge.waiter(future, self._native).__await__()
        try:
            return self._decode(future)
        except self._client.error_class as error:
            raise self._client.failure(error, self._native) from error


class NativeRefusal:
    """A read that is not issued at all; awaiting it says why."""

    def __init__(self, error: StoreError) -> None:
        self._error = error

    def __await__(self) -> Generator[Any, None, Any]:
        raise self._error
        yield


class NativeRange:
    """What a range read will yield: the batch issued at the call and as many more as the cluster splits it into."""

    __slots__ = ("_begin", "_client", "_end", "_future", "_limit", "_native", "_reverse", "_source")

    def __init__(
        self, client: NativeClient, native: Any, begin: bytes, end: bytes, *, limit: int, reverse: bool, snapshot: bool
    ) -> None:
        self._client = client
        self._native = native
        self._source = native.snapshot if snapshot else native
        self._begin = begin
        self._end = end
        self._limit = limit
        self._reverse = reverse
        self._future = self._issue(limit, 1)

    def __await__(self) -> Generator[Any, None, list[KeyValue]]:
        rows: list[KeyValue] = []
        iteration = 1
        while True:
            answer = NativeAnswer(self._client, self._native, self._future, _as_batch)
            batch, has_more = yield from answer.__await__()
            rows.extend(batch)
            if not has_more or not batch or len(rows) >= self._limit:
                return rows
            if self._reverse:
                self._end = rows[-1][0]
            else:
                self._begin = rows[-1][0] + b"\x00"
            iteration += 1
            self._future = self._issue(self._limit - len(rows), iteration)

    def _issue(self, limit: int, iteration: int) -> Any:
        package = self._client.package
        first = package.KeySelector.first_greater_or_equal
        return self._source._get_range(
            first(self._begin), first(self._end), limit, package.StreamingMode.exact, iteration, self._reverse
        )


def as_value(future: Any) -> bytes | None:
    """Return a point read's value, None where there is none."""
    value: bytes | None = future.value
    return value


def as_bytes(future: Any) -> bytes:
    """Return a key or a stamp."""
    key: bytes = future.value
    return key


def as_number(future: Any) -> int:
    """Return an integer."""
    number: int = future.wait()
    return number


def as_nothing(future: Any) -> None:
    """Raise what the future failed with, if it did."""
    future.wait()


def _as_batch(future: Any) -> tuple[list[KeyValue], bool]:
    rows, _, has_more = future.wait()
    return [(row.key, row.value) for row in rows], bool(has_more)


def error_text(error: Any) -> str:
    """Return the client's words for a native error."""
    description = error.description
    return description.decode() if isinstance(description, bytes) else str(description)
