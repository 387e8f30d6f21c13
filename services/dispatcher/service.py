"""The dispatcher service as a part of a process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from ryusen.protocol.frames import FRAME_BYTES_MAX
from starlette.applications import Starlette

from services.dispatcher.dispatcher import Dispatcher
from services.dispatcher.endpoint import worker_route
from services.dispatcher.metrics import DispatcherMetrics
from services.dispatcher.options import DispatcherOptions
from services.runtime.config import Config
from services.runtime.http import bind, serve_http
from services.runtime.process import Process

__all__ = ["open_dispatcher", "options_of", "run"]

DRAIN_SHARE = 0.7
"""The part of the process's drain time in which workers may leave by themselves; the rest is for giving back."""


def options_of(config: Config) -> DispatcherOptions:
    """Return the dispatcher's options as a process's settings say."""
    return DispatcherOptions(
        lease_ms=config.lease_ms,
        skew_ms=config.skew_ms,
        rescan_ms=config.rescan_ms,
        drain_ms=int(config.drain_ms * DRAIN_SHARE),
        sessions_max=config.sessions_max,
        concurrency=config.dispatch_concurrency,
        value_bytes_max=config.payload_bytes_max,
        continues=config.continuation == "on",
    )


@asynccontextmanager
async def open_dispatcher(process: Process) -> AsyncIterator[Dispatcher]:
    """Run a dispatcher's loops inside `process` for as long as the block; the caller mounts `worker_route`.

    When the process drains, the dispatcher takes no sessions and sends its workers elsewhere; leave the block after that.
    """
    options = options_of(process.config)
    dispatcher = Dispatcher(
        process.keyspace,
        options,
        DispatcherMetrics(process.telemetry.registry),
        process_id=process.process_id,
        peers=lambda: process.peers("dispatcher"),
    )
    async with anyio.create_task_group() as group:
        await group.start(dispatcher.run, name="dispatcher")
        yield dispatcher
        group.cancel_scope.cancel()


async def run(process: Process) -> None:
    """Serve workers on the configured address until the process drains.

    Args:
        process: an open process.

    Raises:
        PortUnavailable: the address cannot be listened on.
    """
    config = process.config
    sock = bind(config.dispatcher_host, config.dispatcher_port, setting="dispatcher_port")
    async with open_dispatcher(process) as dispatcher:

        async def until_drained() -> None:
            await process.drain.wait()
            await dispatcher.drain(options_of(config).drain_ms)

        worker = worker_route(dispatcher, process.keyspace, process.keys_in_use)
        app = Starlette(routes=[worker, *process.probe_routes()])
        await serve_http(app, sock, until=until_drained, websocket_bytes_max=FRAME_BYTES_MAX, drain_ms=config.drain_ms)
