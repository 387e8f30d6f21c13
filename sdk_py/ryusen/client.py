"""The service's API for submitting events, reading runs and publishing manifests, in a plain and an async form."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any, Self

import anyio
import httpx

from ryusen.app import App
from ryusen.clients.calls import Calls, EventReceipt, Page, read_generation, read_page, read_receipt
from ryusen.clients.exchange import BACKOFF_CAP_S, BACKOFF_FIRST_S, Attempt, Call, exchange, read_body
from ryusen.clients.streams import FAILURES_MAX, Following
from ryusen.errors import ConfigurationError, Unreachable
from ryusen.protocol.manifest import Manifest
from ryusen.version import SDK

__all__ = ["AsyncClient", "Client", "EventReceipt", "Page"]

TIMEOUT_S_DEFAULT = 10.0
"""Seconds for one attempt of a call, for each of connecting, writing and reading."""
STREAM_SILENCE_S = 60.0
"""Seconds without a byte, keep-alives included, after which a stream is taken for dead."""


class Client:
    """A client of one workspace; use it as a context manager, or call `close`.

    Reads, and submissions with an idempotency key, are tried again a few times when the service does not answer; nothing else
    is. Answers that are not receipts, pages or numbers are plain dicts with the members that the API documents.

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
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Prepare the connection pool; nothing is sent yet."""
        self._calls = Calls(workspace)
        self._http = httpx.Client(
            base_url=_base_url(url), headers=_headers(key), timeout=timeout_s, transport=transport
        )
        self._sleep = sleep
        self._jitter = random.Random()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def submit(
        self,
        name: str,
        payload: object = None,
        *,
        idempotency_key: str | None = None,
        correlation: Mapping[str, str] | None = None,
        timestamp_ms: int | None = None,
    ) -> EventReceipt:
        """Submit an event; when this returns, it is durable.

        Args:
            name: the event's name, 1 to 200 characters.
            payload: a portable value, a dataclass or a model.
            idempotency_key: makes repeating the submission harmless; 1 to 256 printable ASCII characters.
            correlation: pairs that waits may match.
            timestamp_ms: when it happened, by your clock, Unix epoch milliseconds.

        Raises:
            InvalidValue: the payload has no portable encoding.
            ApiError: the service refused it; `idempotency_conflict` when the key was used for something else.
            Unreachable: no answer; without a key it may have been accepted.
        """
        return read_receipt(self._ask(self._calls.submit(name, payload, idempotency_key, correlation, timestamp_ms)))

    def event(self, event: str) -> dict[str, Any]:
        """Return one event."""
        return _dict(self._ask(self._calls.event(event)))

    def events(self, *, limit: int | None = None, cursor: str | None = None) -> Page:
        """Return a page of events."""
        return read_page(self._ask(self._calls.events(limit, cursor)))

    def run(self, run: str) -> dict[str, Any]:
        """Return one run."""
        return _dict(self._ask(self._calls.run(run)))

    def runs(
        self,
        *,
        status: str | None = None,
        function: str | None = None,
        application: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Page:
        """Return a page of runs, narrowed by what is given."""
        return read_page(self._ask(self._calls.runs(status, function, application, limit, cursor)))

    def steps(self, run: str) -> Page:
        """Return a run's steps."""
        return read_page(self._ask(self._calls.steps(run)))

    def history(self, run: str, *, after: int = 0, limit: int | None = None) -> Page:
        """Return a page of a run's history, after the entry with the ordinal `after`."""
        return read_page(self._ask(self._calls.history(run, after, limit)))

    def follow(self, run: str, *, after: int = 0) -> Iterator[dict[str, Any]]:
        """Yield a run's history entries as they are written, until it is complete; lost connections are resumed.

        Raises:
            ApiError: the service refused.
            Unreachable: several connections in a row brought nothing.
        """
        following = Following(after)
        while not following.is_over:
            is_clean = False
            try:
                request = self._calls.follow(run, following.after)
                with self._http.stream(**_arguments(request), timeout=_stream_timeout()) as response:
                    if not response.is_success:
                        response.read()
                        read_body(response)
                    for line in response.iter_lines():
                        entry = following.line(line)
                        if entry is not None:
                            yield entry
                        if following.is_over:
                            return
                    is_clean = True
            except httpx.TransportError as exc:
                error: Exception | None = exc
            else:
                error = None
            following.ended(is_clean)
            if not following.is_over:
                self._sleep(_reconnect_s(following, error, self._jitter))

    def publish(self, manifest: App | Manifest) -> int:
        """Publish an application's manifest; return its generation. It takes effect with `activate`."""
        return read_generation(self._ask(self._calls.publish(manifest)))

    def manifests(self, application: str) -> Page:
        """Return the published generations of an application."""
        return read_page(self._ask(self._calls.manifest(application, None)))

    def manifest(self, application: str, generation: int) -> dict[str, Any]:
        """Return one published generation."""
        return _dict(self._ask(self._calls.manifest(application, generation)))

    def activate(self, applications: Mapping[str, int]) -> int:
        """Route new events by these manifest generations from now on; return the routing generation."""
        return read_generation(self._ask(self._calls.activate(applications)))

    def routing(self) -> dict[str, Any]:
        """Return the active routing generation."""
        return _dict(self._ask(self._calls.routing()))

    def _ask(self, call: Call) -> Any:
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
                    answer = self._http.request(**_arguments(wish.call))
                except httpx.TransportError as exc:
                    answer = exc
            else:
                self._sleep(wish.seconds)


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
            base_url=_base_url(url), headers=_headers(key), timeout=timeout_s, transport=transport
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

    async def event(self, event: str) -> dict[str, Any]:
        """Return one event."""
        return _dict(await self._ask(self._calls.event(event)))

    async def events(self, *, limit: int | None = None, cursor: str | None = None) -> Page:
        """Return a page of events."""
        return read_page(await self._ask(self._calls.events(limit, cursor)))

    async def run(self, run: str) -> dict[str, Any]:
        """Return one run."""
        return _dict(await self._ask(self._calls.run(run)))

    async def runs(
        self,
        *,
        status: str | None = None,
        function: str | None = None,
        application: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Page:
        """Return a page of runs, narrowed by what is given."""
        return read_page(await self._ask(self._calls.runs(status, function, application, limit, cursor)))

    async def steps(self, run: str) -> Page:
        """Return a run's steps."""
        return read_page(await self._ask(self._calls.steps(run)))

    async def history(self, run: str, *, after: int = 0, limit: int | None = None) -> Page:
        """Return a page of a run's history, after the entry with the ordinal `after`."""
        return read_page(await self._ask(self._calls.history(run, after, limit)))

    async def follow(self, run: str, *, after: int = 0) -> AsyncIterator[dict[str, Any]]:
        """Yield a run's history entries as they are written (see `Client.follow`)."""
        following = Following(after)
        while not following.is_over:
            is_clean = False
            try:
                request = self._calls.follow(run, following.after)
                async with self._http.stream(**_arguments(request), timeout=_stream_timeout()) as response:
                    if not response.is_success:
                        await response.aread()
                        read_body(response)
                    async for line in response.aiter_lines():
                        entry = following.line(line)
                        if entry is not None:
                            yield entry
                        if following.is_over:
                            return
                    is_clean = True
            except httpx.TransportError as exc:
                error: Exception | None = exc
            else:
                error = None
            following.ended(is_clean)
            if not following.is_over:
                await self._sleep(_reconnect_s(following, error, self._jitter))

    async def publish(self, manifest: App | Manifest) -> int:
        """Publish an application's manifest; return its generation. It takes effect with `activate`."""
        return read_generation(await self._ask(self._calls.publish(manifest)))

    async def manifests(self, application: str) -> Page:
        """Return the published generations of an application."""
        return read_page(await self._ask(self._calls.manifest(application, None)))

    async def manifest(self, application: str, generation: int) -> dict[str, Any]:
        """Return one published generation."""
        return _dict(await self._ask(self._calls.manifest(application, generation)))

    async def activate(self, applications: Mapping[str, int]) -> int:
        """Route new events by these manifest generations from now on; return the routing generation."""
        return read_generation(await self._ask(self._calls.activate(applications)))

    async def routing(self) -> dict[str, Any]:
        """Return the active routing generation."""
        return _dict(await self._ask(self._calls.routing()))

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
                    answer = await self._http.request(**_arguments(wish.call))
                except httpx.TransportError as exc:
                    answer = exc
            else:
                await self._sleep(wish.seconds)


def _base_url(url: str) -> str:
    if not url.startswith(("http://", "https://")):
        raise ConfigurationError("the address must look like http://host:port", url=url)
    return url.rstrip("/")


def _headers(key: str) -> dict[str, str]:
    if not key or not key.isascii() or not key.isprintable():
        raise ConfigurationError("the key must be printable ASCII text")
    return {"Authorization": f"Bearer {key}", "User-Agent": SDK, "Accept": "application/json"}


def _arguments(call: Call) -> dict[str, Any]:
    headers = dict(call.headers)
    if call.body is not None:
        headers["Content-Type"] = "application/json"
    return {
        "method": call.method,
        "url": call.path,
        "params": call.parameters(),
        "content": call.body,
        "headers": headers,
    }


def _stream_timeout() -> httpx.Timeout:
    return httpx.Timeout(TIMEOUT_S_DEFAULT, read=STREAM_SILENCE_S)


def _reconnect_s(following: Following, error: Exception | None, jitter: random.Random) -> float:
    if following.failures >= FAILURES_MAX:
        raise Unreachable("the history stream brings nothing", attempts=following.failures) from error
    return jitter.uniform(0.5, 1.0) * min(BACKOFF_CAP_S, BACKOFF_FIRST_S * 2.0**following.failures)


def _dict(body: Any) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise ConfigurationError("the answer is not an object; is this the gateway's address?")
    return body
