"""The parts of the FoundationDB adapter that need no cluster: errors, wake-ups, advice. The rest is in conformance."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from waiting import until

from keyspace.store.errors import (
    BatchThrottled,
    CommitUnknownResult,
    NotCommitted,
    OutcomeUnknownError,
    RetryableError,
    StoreError,
    StoreUnavailableError,
    TransactionTimedOut,
    TransactionTooLarge,
)
from keyspace.store.fdb_bridge import FutureBridge
from keyspace.store.fdb_native import NativeAnswer, NativeClient, as_number


class ClientError(Exception):
    def __init__(self, code: int) -> None:
        self.code = code
        self.description = b"words"


class Capi:
    """Keeps the callbacks that are set, for a test to run them on a thread of its own, as the client does."""

    def __init__(self) -> None:
        self.callbacks: dict[int, Callable[[int, None], None]] = {}

    def fdb_future_set_callback(self, pointer: int, callback: Callable[[int, None], None], _: None) -> None:
        assert pointer not in self.callbacks, "the client takes one callback a future"
        self.callbacks[pointer] = callback

    def fire(self, *pointers: int) -> None:
        thread = threading.Thread(target=lambda: [self.callbacks.pop(pointer)(pointer, None) for pointer in pointers])
        thread.start()
        thread.join()


class NativeFuture:
    def __init__(self, pointer: int, *, error: int = 0) -> None:
        self.fpointer = pointer
        self.is_done = False
        self._error = error

    def is_ready(self) -> bool:
        return self.is_done

    def wait(self) -> int:
        assert self.is_done, "the event loop must never block in the client"
        if self._error:
            raise ClientError(self._error)
        return self.fpointer


class Native:
    """A transaction whose on_error answers with `advice`."""

    def __init__(self, advice: NativeFuture) -> None:
        self._advice = advice
        self.asked_for: list[int] = []

    def on_error(self, code: int) -> NativeFuture:
        self.asked_for.append(code)
        return self._advice


def make_client() -> tuple[NativeClient, Capi]:
    capi = Capi()
    package: Any = SimpleNamespace(
        FDBError=ClientError,
        impl=SimpleNamespace(_FDBBase=SimpleNamespace(capi=capi)),
        predicates=SimpleNamespace(
            is_maybe_committed=lambda error: error.code == 1999, is_retryable=lambda error: error.code in (1042, 1999)
        ),
    )
    return NativeClient(package, asyncio.get_running_loop()), capi


@pytest.mark.parametrize(
    ("code", "is_commit", "expected"),
    [
        (1020, True, NotCommitted),
        (1021, True, CommitUnknownResult),
        (1039, True, CommitUnknownResult),
        (1213, False, BatchThrottled),
        (1031, True, TransactionTimedOut),
        (1031, False, StoreUnavailableError),
        (1101, True, OutcomeUnknownError),
        (2101, True, TransactionTooLarge),
        (1042, True, RetryableError),
        (1999, True, CommitUnknownResult),
        (4100, True, StoreError),
    ],
)
async def test_a_native_error_becomes_the_ports(code: int, is_commit: bool, expected: type[StoreError]) -> None:
    """Would catch a retryable code taken for a failure, or a read's time-out taken for an unknown commit."""
    client, _ = make_client()
    mapped = client.failure(ClientError(code), Native(NativeFuture(1)), is_commit=is_commit)
    assert type(mapped) is expected
    assert mapped.code == code
    assert "words" in str(mapped)


async def test_a_burst_of_answers_wakes_the_loop_once() -> None:
    """Would catch a wake-up for each future, which costs more than the reads."""
    client, capi = make_client()
    futures = [NativeFuture(pointer) for pointer in (11, 12, 13)]
    waiters = [client.bridge.waiter(future, None) for future in futures]
    wakes: list[object] = []
    loop: Any = SimpleNamespace(call_soon_threadsafe=wakes.append)
    client.bridge._loop, running = loop, client.bridge._loop
    capi.fire(11, 12, 13)
    client.bridge._loop = running
    assert len(wakes) == 1
    running.call_soon_threadsafe(wakes[0])  # type: ignore[arg-type]
    await asyncio.wait_for(asyncio.gather(*waiters), 5.0)
    capi.callbacks.clear()
    again = client.bridge.waiter(NativeFuture(14), None)
    capi.fire(14)
    await asyncio.wait_for(again, 5.0)


async def test_a_wait_given_up_can_be_taken_up_again() -> None:
    """Would catch a second callback on one future, which the client does not allow, and a watch that is lost with its waiter."""
    client, capi = make_client()
    future = NativeFuture(21)
    client.bridge.waiter(future, None).cancel()
    again = client.bridge.waiter(future, None)
    capi.fire(21)
    await asyncio.wait_for(again, 5.0)


async def test_an_answer_after_the_loop_has_closed_harms_nobody() -> None:
    """Would catch an exception on the client's network thread at the end of a process."""
    capi = Capi()
    closed = asyncio.new_event_loop()
    bridge = FutureBridge(capi, closed)
    bridge.waiter(NativeFuture(31), None)
    closed.close()
    capi.fire(31)
    again = FutureBridge(capi, asyncio.get_running_loop()).waiter(NativeFuture(31), None)
    capi.fire(31)
    await asyncio.wait_for(again, 5.0)


async def test_a_ready_future_sets_no_callback() -> None:
    """ARCHITECTURE 3: a callback only on a future that is not ready when it is awaited."""
    client, capi = make_client()
    future = NativeFuture(41)
    future.is_done = True
    assert await NativeAnswer(client, None, future, as_number) == 41
    assert not capi.callbacks


async def test_advice_is_asked_of_the_transaction_that_failed() -> None:
    """Would catch a pause drawn by ourselves where the cluster has said how long to wait."""
    client, capi = make_client()
    advice = NativeFuture(51)
    native = Native(advice)
    mapped = client.failure(ClientError(1213), native)
    assert isinstance(mapped, RetryableError)
    assert client.is_adviser(native)
    waiting = asyncio.ensure_future(client.take_advice(mapped))
    await until(lambda: 51 in capi.callbacks)
    assert native.asked_for == [1213]
    assert not waiting.done()
    advice.is_done = True
    capi.fire(51)
    assert await waiting is True
    assert await client.take_advice(mapped) is False, "it has been taken"


async def test_a_transaction_that_cannot_advise_is_passed_over() -> None:
    """Would catch a retry that fails because the failed transaction has timed out meanwhile."""
    client, _ = make_client()
    advice = NativeFuture(61, error=1031)
    advice.is_done = True
    mapped = client.failure(ClientError(1020), Native(advice))
    assert isinstance(mapped, RetryableError)
    assert await client.take_advice(mapped) is False
