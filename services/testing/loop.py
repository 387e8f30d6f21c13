"""An event loop on a thread of its own that knows when nothing in it can happen any more.

Everything of the service runs on this loop and waits for the virtual clock, for memory or for user code, so an idle loop means
that only time or user code can bring anything new. That is exact: the loop tells by how it is about to wait, and nothing
is guessed by turns or pauses.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import selectors
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from services.testing.errors import WorkflowTestError

__all__ = ["EngineLoop"]

T = TypeVar("T")

JOIN_S = 30.0
"""Seconds for the loop's thread to end; above what ended sessions may take to give their work back."""
ROUNDS_MAX = 10
"""Rounds of cancellation for tasks that are left when the loop ends."""


class _IdleSelector(selectors.DefaultSelector):
    """Says when the loop is about to wait for something outside it."""

    def __init__(self) -> None:
        super().__init__()
        self.on_idle: Callable[[], None] | None = None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        # The event loop asks with a timeout of zero while it has callbacks that are ready to run.
        if self.on_idle is None or timeout == 0:
            return super().select(timeout)
        events = super().select(0)
        if not events:
            on_idle, self.on_idle = self.on_idle, None
            on_idle()
        return events


class EngineLoop:
    """The loop and its thread; `main` is its root task, and everything ends with it."""

    def __init__(self) -> None:
        """Make the loop; nothing runs yet."""
        self._selector = _IdleSelector()
        self._loop = asyncio.SelectorEventLoop(self._selector)
        self._ended: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._thread: threading.Thread | None = None

    def start(self, main: Coroutine[Any, Any, None]) -> None:
        """Run `main` on the thread."""
        self._thread = threading.Thread(target=self._run, args=(main,), name="ryusen-engine", daemon=True)
        self._thread.start()

    def call(self, body: Coroutine[Any, Any, T]) -> T:
        """Run `body` on the loop from another thread and return what it returns.

        Raises:
            WorkflowTestError: the loop has ended, with the reason as its cause.
        """
        if self._ended.done():
            body.close()
            raise WorkflowTestError("The workflow test is closed.") from self._ended.exception()
        future = asyncio.run_coroutine_threadsafe(body, self._loop)
        try:
            return future.result()
        except (asyncio.CancelledError, concurrent.futures.CancelledError):
            cause = self._ended.exception(JOIN_S)
            raise WorkflowTestError("The service under the workflow test has ended.") from cause
        except KeyboardInterrupt:
            future.cancel()
            raise

    async def idle(self) -> None:
        """Return when nothing on the loop can happen before something comes from outside or time passes."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._selector.on_idle = lambda: waiter.set_result(None)
        await waiter

    def join(self) -> None:
        """Wait until `main` has ended.

        Raises:
            WorkflowTestError: it did not end in time.
        """
        if self._thread is not None:
            self._thread.join(JOIN_S)
            if self._thread.is_alive():
                raise WorkflowTestError(f"The service under the workflow test did not end within {JOIN_S:g} s.")

    def _run(self, main: Coroutine[Any, Any, None]) -> None:
        fault: BaseException | None = None
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(main)
        except BaseException as error:  # noqa: BLE001 - carried to the thread that calls next
            fault = error
        # Marked before the calls under way are cancelled, so that they find the reason.
        if fault is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(fault)
        self._finish()

    def _finish(self) -> None:
        for _ in range(ROUNDS_MAX):
            tasks = asyncio.all_tasks(self._loop)
            if not tasks:
                break
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        asyncio.set_event_loop(None)
        self._loop.close()
