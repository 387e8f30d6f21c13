"""The service's API for asynchronous code: the same calls as `ryusen.client`, awaited."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Self

import anyio
import httpx

from ryusen.app import App
from ryusen.clients.calls import (
    Calls,
    EventReceipt,
    HistoryPage,
    InvocationReceipt,
    Page,
    read_generation,
    read_history,
    read_invocation,
    read_page,
    read_receipt,
)
from ryusen.clients.commands import Command
from ryusen.clients.exchange import Attempt, Call, exchange, read_body
from ryusen.clients.streams import Following
from ryusen.clients.transport import (
    TIMEOUT_S_DEFAULT,
    arguments_of,
    as_object,
    base_url_of,
    headers_of,
    reconnect_s,
    stream_timeout,
)
from ryusen.protocol.manifest import Manifest

__all__ = ["AsyncClient"]


class AsyncClient:
    """The async twin of `Client`: the same calls, awaited.

    Args:
        url: the gateway's address, such as http://127.0.0.1:8080.
        workspace: the workspace's name.
        key: a bearer key of that workspace.
        timeout_s: seconds for each of connecting, writing and reading.
        transport: how requests travel; for tests.
        sleep: how to wait between attempts, in seconds; for tests.

    Raises:
        ConfigurationError: an argument is out of bounds.
    """

    def __init__(
        self,
        url: str,
        workspace: str,
        key: str,
        *,
        timeout_s: float = TIMEOUT_S_DEFAULT,
        transport: httpx.AsyncBaseTransport | None = None,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
    ) -> None:
        """Prepare the connection pool; nothing is sent yet."""
        self._calls = Calls(workspace)
        self._http = httpx.AsyncClient(
            base_url=base_url_of(url), headers=headers_of(key), timeout=timeout_s, transport=transport
        )
        self._sleep = sleep
        self._jitter = random.Random()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def submit(
        self,
        name: str,
        payload: object = None,
        *,
        idempotency_key: str | None = None,
        correlation: Mapping[str, str] | None = None,
        timestamp_ms: int | None = None,
    ) -> EventReceipt:
        """Submit an event (see `Client.submit`)."""
        call = self._calls.submit(name, payload, idempotency_key, correlation, timestamp_ms)
        return read_receipt(await self._ask(call))

    async def invoke(
        self,
        application: str,
        function: str,
        payload: object = None,
        *,
        idempotency_key: str | None = None,
        timestamp_ms: int | None = None,
    ) -> InvocationReceipt:
        """Start one function with an input (see `Client.invoke`)."""
        call = self._calls.invoke(application, function, payload, idempotency_key, timestamp_ms)
        return read_invocation(await self._ask(call))

    async def event(self, event: str) -> dict[str, Any]:
        """Return one event."""
        return as_object(await self._ask(self._calls.event(event)))

    async def events(self, *, limit: int | None = None, cursor: str | None = None) -> Page:
        """Return a page of events."""
        return read_page(await self._ask(self._calls.events(limit, cursor)))

    async def matches(self, event: str, *, limit: int | None = None, cursor: str | None = None) -> Page:
        """Return a page of the runs that an event started."""
        return read_page(await self._ask(self._calls.matches(event, limit, cursor)))

    async def run(self, run: str) -> dict[str, Any]:
        """Return one run."""
        return as_object(await self._ask(self._calls.run(run)))

    async def runs(
        self,
        *,
        status: str | None = None,
        function: str | None = None,
        application: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Page:
        """Return a page of runs, the newest first: all, those of a status, or those of an application's function."""
        return read_page(await self._ask(self._calls.runs(status, function, application, limit, cursor)))

    async def steps(self, run: str, *, limit: int | None = None, cursor: str | None = None) -> Page:
        """Return a page of a run's steps with their attempts."""
        return read_page(await self._ask(self._calls.steps(run, limit, cursor)))

    async def step(self, run: str, step: str) -> dict[str, Any]:
        """Return one step with its value."""
        return as_object(await self._ask(self._calls.step(run, step)))

    async def cancel(self, run: str) -> dict[str, Any]:
        """Cancel a run (see `Client.cancel`)."""
        return as_object(await self._ask(self._calls.cancel(run)))

    async def rediscover(self, run: str) -> dict[str, Any]:
        """Ask for another look at a blocked run's code (see `Client.rediscover`)."""
        return as_object(await self._ask(self._calls.rediscover(run)))

    async def unresolved(self, *, limit: int | None = None, cursor: str | None = None) -> Page:
        """Return a page of the attempts whose outcome is unknown, of all runs."""
        return read_page(await self._ask(self._calls.unresolved(limit, cursor)))

    async def resolve(
        self,
        run: str,
        step: str,
        generation: int,
        command: Command,
        *,
        idempotency_key: str,
        compensation: bool = False,
    ) -> dict[str, Any]:
        """Settle an attempt whose outcome is unknown (see `Client.resolve`)."""
        call = self._calls.resolve(run, step, generation, command, idempotency_key, compensation)
        return as_object(await self._ask(call))

    async def history(self, run: str, *, after: int = 0, limit: int | None = None) -> HistoryPage:
        """Return a page of a run's history, after the entry with the ordinal `after`."""
        return read_history(await self._ask(self._calls.history(run, after, limit)))

    async def follow(self, run: str, *, after: int = 0) -> AsyncIterator[dict[str, Any]]:
        """Yield a run's history entries as they are written (see `Client.follow`)."""
        following = Following(after)
        while not following.is_over:
            error: Exception | None = None
            try:
                request = self._calls.follow(run, following.after)
                async with self._http.stream(**arguments_of(request), timeout=stream_timeout()) as response:
                    if not response.is_success:
                        await response.aread()
                        read_body(response)
                    async for line in response.aiter_lines():
                        entry = following.line(line)
                        if entry is not None:
                            yield entry
                        if following.is_over:
                            return
            except httpx.TransportError as exc:
                error = exc
            following.ended()
            await self._sleep(reconnect_s(following, error, self._jitter))

    async def publish(self, manifest: App | Manifest) -> int:
        """Publish an application's manifest; return its generation. It takes effect with `activate`."""
        return read_generation(await self._ask(self._calls.publish(manifest)))

    async def manifests(self, application: str, *, limit: int | None = None, cursor: str | None = None) -> Page:
        """Return a page of the published generations of an application, the newest first."""
        return read_page(await self._ask(self._calls.manifests(application, limit, cursor)))

    async def manifest(self, application: str, generation: int) -> dict[str, Any]:
        """Return one published generation."""
        return as_object(await self._ask(self._calls.manifest(application, generation)))

    async def activate(self, applications: Mapping[str, int], *, merge: bool = False) -> int:
        """Route new events by these manifest generations from now on; return the routing generation.

        Args:
            applications: the generation of each application.
            merge: leave applications that are not named as they are; without it they are routed no longer.
        """
        return read_generation(await self._ask(self._calls.activate(applications, merge)))

    async def routing(self) -> dict[str, Any]:
        """Return the active routing generation."""
        return as_object(await self._ask(self._calls.routing()))

    async def _ask(self, call: Call) -> Any:
        conversation = exchange(call, self._jitter)
        answer: httpx.Response | httpx.TransportError | None = None
        while True:
            try:
                wish = conversation.send(answer)
            except StopIteration as end:
                return end.value
            answer = None
            if isinstance(wish, Attempt):
                try:
                    answer = await self._http.request(**arguments_of(wish.call))
                except httpx.TransportError as exc:
                    answer = exc
            else:
                await self._sleep(wish.seconds)
