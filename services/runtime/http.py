"""Serving an ASGI application inside a process: one port, told when to stop, its connections finished first."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Awaitable, Callable, Iterator
from http import HTTPStatus
from typing import Any

import anyio
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from services.runtime.gathering import GatheringTransport

__all__ = ["BoundedHttp", "PortUnavailable", "bind", "serve_http"]

BACKLOG = 1_024
HEAD_BYTES_MAX = 65_536
"""Request line and headers of one request, as they travel."""
HEAD_MS_MAX = 10_000
"""How long a caller may take to send them, from the connection's begin or the request's first byte."""
CONNECTIONS_MAX = 20_000
"""Connections beyond which requests are answered 503 at once: far above the bounds on requests, streams and sessions."""
KEEP_ALIVE_S = 15
CUT_OFF_S = 2.0
"""How long requests that were cancelled may take to end."""
WEBSOCKET_QUEUE_FRAMES = 32
WEBSOCKET_BYTES_DEFAULT = 1_024


class PortUnavailable(Exception):
    """An address cannot be listened on; the message says which setting to change."""


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        # Signals belong to the process, which drains all its parts in order.
        yield


class BoundedHttp(HttpToolsProtocol):
    """The HTTP protocol with bounds on a request's head, in bytes and in time, which the server leaves open.

    The body's bounds belong to the application, which knows what it expects.
    """

    head_ms_max = HEAD_MS_MAX
    head_bytes_max = HEAD_BYTES_MAX

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Take what the server gives every protocol."""
        super().__init__(*arguments, **options)
        self._is_in_head = True
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request; a WebSocket takes over the transport as it is then."""
        super().connection_made(GatheringTransport(transport, self.loop))
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing more."""
        self._end_head()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """Begin the head of a request, the second on a kept connection as well."""
        super().on_message_begin()
        if not self._is_in_head:
            self._head_bytes = 0
            self._expect_head()

    def on_headers_complete(self) -> None:
        """End the head."""
        self._end_head()
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        """Read; a head that does not end within its bytes ends the connection."""
        self._head_bytes += len(data)
        super().data_received(data)
        if self._is_in_head and self._head_bytes > self.head_bytes_max and not self.transport.is_closing():
            self._refuse(431, "head_too_large", "The request line and headers are too large.")

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP request in the form that every other refusal has."""
        self._refuse(400, "malformed_request", msg)

    def _expect_head(self) -> None:
        self._is_in_head = True
        self._head_timer = self.loop.call_later(self.head_ms_max / 1_000, self._on_late_head)

    def _end_head(self) -> None:
        self._is_in_head = False
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _on_late_head(self) -> None:
        if not self.transport.is_closing():
            self._refuse(408, "head_timeout", "The request did not arrive in time.")

    def _refuse(self, status: int, code: str, detail: str) -> None:
        self._end_head()
        body = (
            f'{{"type":"urn:ryusen:problem:{code}","title":"Refused","status":{status},"code":"{code}","detail":"{detail}"}}'
        ).encode()
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/problem+json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        ).encode()
        self.transport.write(head + body)
        self.transport.close()


def bind(host: str, port: int, *, setting: str) -> socket.socket:
    """Return a listening-ready socket, so that a taken port is known before anything else starts.

    Args:
        host: an address of this machine or a name of one.
        port: 0 takes a free one.
        setting: the setting that names the port, for the message.

    Raises:
        PortUnavailable: taken, not allowed, or no address of this machine.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family, kind, protocol)
    except OSError as error:
        raise PortUnavailable(f"cannot listen on {host}: {error.strerror or error}; set {setting}") from error
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        # Now, not when the server starts: two processes may both bind with SO_REUSEADDR while neither listens.
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        what = "is taken by another process" if error.errno == errno.EADDRINUSE else f"failed: {error.strerror}"
        raise PortUnavailable(f"port {port} on {host} {what}; set {setting} to another port") from error
    sock.setblocking(False)
    return sock


async def serve_http(
    app: ASGIApp,
    sock: socket.socket,
    *,
    until: Callable[[], Awaitable[object]],
    websocket_bytes_max: int = WEBSOCKET_BYTES_DEFAULT,
    drain_ms: int,
) -> None:
    """Serve `app` on a bound socket until `until()` returns, then finish the open requests.

    Args:
        app: the application.
        sock: from `bind`; closed when this returns.
        until: awaited once; when it returns, no new connection is taken.
        websocket_bytes_max: the largest WebSocket message.
        drain_ms: how long open requests may take to finish once told to stop.
    """
    config = uvicorn.Config(
        app,
        http=BoundedHttp,
        ws="websockets-sansio",
        ws_max_size=websocket_bytes_max,
        ws_max_queue=WEBSOCKET_QUEUE_FRAMES,
        # Liveness of a worker session is the worker protocol's own business; pings keep only the path open.
        ws_ping_interval=20.0,
        ws_ping_timeout=20.0,
        ws_per_message_deflate=False,
        loop="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        limit_concurrency=CONNECTIONS_MAX,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=max(1, drain_ms // 1_000),
    )
    server = _Server(config)

    async def stop() -> None:
        await until()
        server.should_exit = True

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(stop, name="http stop")
            await server.serve(sockets=[sock])
            group.cancel_scope.cancel()
    finally:
        sock.close()
        await _cut_off(server)


async def _cut_off(server: uvicorn.Server) -> None:
    """Cancel the requests that are still open; the server's tasks have no group that would."""
    open_tasks = list(server.server_state.tasks)
    for task in open_tasks:
        task.cancel()
    if open_tasks:
        with anyio.CancelScope(shield=True):
            await asyncio.wait(open_tasks, timeout=CUT_OFF_S)
