"""The service's API for submitting events, reading runs and publishing manifests."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

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
from ryusen.clients.commands import AuthorizeRetry, Command, DeclareFailure, SupplySuccess
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

__all__ = [
    "AuthorizeRetry",
    "Client",
    "DeclareFailure",
    "EventReceipt",
    "HistoryPage",
    "InvocationReceipt",
    "Page",
    "SupplySuccess",
]


class Client:
    """A client of one workspace; use it as a context manager, or call `close`.

    Reads, cancellations, and submissions, invocations and resolutions with an idempotency key are tried again a few times when the service
    does not answer; nothing else is. Answers that are not receipts, pages or numbers are plain dicts with the members that the API documents.

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
            base_url=base_url_of(url), headers=headers_of(key), timeout=timeout_s, transport=transport
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

    def invoke(
        self,
        application: str,
        function: str,
        payload: object = None,
        *,
        idempotency_key: str | None = None,
        timestamp_ms: int | None = None,
    ) -> InvocationReceipt:
        """Start one function with an input, without an event that other functions hear; when this returns, it is durable.

        The receipt's `run` is known at once; `run(...)` and `follow(...)` know it as soon as the function was looked up, and
        answer `not_found` until then.

        Args:
            application: the application's name.
            function: the function's name; it needs no trigger.
            payload: its input: a portable value, a dataclass or a model.
            idempotency_key: makes repeating the invocation harmless; 1 to 256 printable ASCII characters, apart from those of
                `submit`.
            timestamp_ms: your own instant, Unix epoch milliseconds.

        Raises:
            InvalidValue: the input has no portable encoding.
            ApiError: the service refused it; `idempotency_conflict` when the key was used for something else.
            Unreachable: no answer; without a key it may have been accepted.
        """
        return read_invocation(
            self._ask(self._calls.invoke(application, function, payload, idempotency_key, timestamp_ms))
        )

    def event(self, event: str) -> dict[str, Any]:
        """Return one event."""
        return as_object(self._ask(self._calls.event(event)))

    def events(self, *, limit: int | None = None, cursor: str | None = None) -> Page:
        """Return a page of events."""
        return read_page(self._ask(self._calls.events(limit, cursor)))

    def matches(self, event: str, *, limit: int | None = None, cursor: str | None = None) -> Page:
        """Return a page of the runs that an event started."""
        return read_page(self._ask(self._calls.matches(event, limit, cursor)))

    def run(self, run: str) -> dict[str, Any]:
        """Return one run."""
        return as_object(self._ask(self._calls.run(run)))

    def runs(
        self,
        *,
        status: str | None = None,
        function: str | None = None,
        application: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Page:
        """Return a page of runs, the newest first: all, those of a status, or those of an application's function."""
        return read_page(self._ask(self._calls.runs(status, function, application, limit, cursor)))

    def steps(self, run: str, *, limit: int | None = None, cursor: str | None = None) -> Page:
        """Return a page of a run's steps with their attempts."""
        return read_page(self._ask(self._calls.steps(run, limit, cursor)))

    def step(self, run: str, step: str) -> dict[str, Any]:
        """Return one step with its value."""
        return as_object(self._ask(self._calls.step(run, step)))

    def cancel(self, run: str) -> dict[str, Any]:
        """Cancel a run; return what that came to.

        No forward work starts any more. Work that had begun is not stopped: `settling` says that its outcome is waited for.
        `outcome` is `accepted`, `repeated`, `already_ending` or `already_terminal`; then `execution` says how it had ended.

        Raises:
            ApiError: the service refused it; `stop_conflict` when the run was stopped for another reason first.
        """
        return as_object(self._ask(self._calls.cancel(run)))

    def rediscover(self, run: str) -> dict[str, Any]:
        """Ask for another look at the code of a run that is blocked by a duplicate step id; return what that came to.

        `outcome` is `accepted`, or `already_requested` when the run has its next pass already. What the code says then, that
        pass tells: the run goes on, or stays blocked with its `blocker` brought up to date.

        Raises:
            ApiError: the service refused it; `run_not_blocked` when nothing blocks the run.
        """
        return as_object(self._ask(self._calls.rediscover(run)))

    def unresolved(self, *, limit: int | None = None, cursor: str | None = None) -> Page:
        """Return a page of the attempts whose outcome is unknown, of all runs."""
        return read_page(self._ask(self._calls.unresolved(limit, cursor)))

    def resolve(
        self,
        run: str,
        step: str,
        generation: int,
        command: Command,
        *,
        idempotency_key: str,
        compensation: bool = False,
    ) -> dict[str, Any]:
        """Settle an attempt whose outcome is unknown; return what was recorded, and `consequence` in words.

        Args:
            run: the run's id.
            step: the step's id.
            generation: which attempt, as `unresolved` names it; another one is never touched.
            command: `SupplySuccess`, `DeclareFailure` or `AuthorizeRetry`.
            idempotency_key: the same command with the same key answers what was recorded; 1 to 256 printable ASCII characters.
            compensation: the attempt is one of the step's undo.

        Raises:
            InvalidValue: the value has no portable encoding.
            ApiError: the service refused it: `idempotency_conflict` (the key was used for another command), `stale_attempt`
                (not unresolved in this generation), `retry_forbidden` or `deadline_elapsed` (the run was stopped).
            Unreachable: no answer; send the same command with the same key again.
        """
        call = self._calls.resolve(run, step, generation, command, idempotency_key, compensation)
        return as_object(self._ask(call))

    def history(self, run: str, *, after: int = 0, limit: int | None = None) -> HistoryPage:
        """Return a page of a run's history, after the entry with the ordinal `after`."""
        return read_history(self._ask(self._calls.history(run, after, limit)))

    def follow(self, run: str, *, after: int = 0) -> Iterator[dict[str, Any]]:
        """Yield a run's history entries as they are written, until it is complete; lost connections are resumed.

        Raises:
            ApiError: the service refused.
            Unreachable: several connections in a row brought nothing.
        """
        following = Following(after)
        while not following.is_over:
            error: Exception | None = None
            try:
                request = self._calls.follow(run, following.after)
                with self._http.stream(**arguments_of(request), timeout=stream_timeout()) as response:
                    if not response.is_success:
                        response.read()
                        read_body(response)
                    for line in response.iter_lines():
                        entry = following.line(line)
                        if entry is not None:
                            yield entry
                        if following.is_over:
                            return
            except httpx.TransportError as exc:
                error = exc
            following.ended()
            self._sleep(reconnect_s(following, error, self._jitter))

    def publish(self, manifest: App | Manifest) -> int:
        """Publish an application's manifest; return its generation. It takes effect with `activate`."""
        return read_generation(self._ask(self._calls.publish(manifest)))

    def manifests(self, application: str, *, limit: int | None = None, cursor: str | None = None) -> Page:
        """Return a page of the published generations of an application, the newest first."""
        return read_page(self._ask(self._calls.manifests(application, limit, cursor)))

    def manifest(self, application: str, generation: int) -> dict[str, Any]:
        """Return one published generation."""
        return as_object(self._ask(self._calls.manifest(application, generation)))

    def activate(self, applications: Mapping[str, int], *, merge: bool = False) -> int:
        """Route new events by these manifest generations from now on; return the routing generation.

        Args:
            applications: the generation of each application.
            merge: leave applications that are not named as they are; without it they are routed no longer.
        """
        return read_generation(self._ask(self._calls.activate(applications, merge)))

    def routing(self) -> dict[str, Any]:
        """Return the active routing generation."""
        return as_object(self._ask(self._calls.routing()))

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
                    answer = self._http.request(**arguments_of(wish.call))
                except httpx.TransportError as exc:
                    answer = exc
            else:
                self._sleep(wish.seconds)
