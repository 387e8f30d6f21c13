"""Serving an ASGI application inside a process: one port, told when to stop, its connections finished first."""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Awaitable, Callable, Iterator

import anyio
import uvicorn
from starlette.types import ASGIApp

__all__ = ["PortUnavailable", "bind", "serve_http"]

BACKLOG = 1_024
KEEP_ALIVE_S = 15
WEBSOCKET_QUEUE_FRAMES = 32
WEBSOCKET_BYTES_DEFAULT = 1_024


class PortUnavailable(Exception):
    """An address cannot be listened on; the message says which setting to change."""


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        # Signals belong to the process, which drains all its parts in order.
        yield


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
        http="httptools",
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
