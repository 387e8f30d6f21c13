"""The local server as a process: every service on one port, and the worker it keeps running."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import anyio
from ryusen.protocol.frames import FRAME_BYTES_MAX

from services.dispatcher.dispatcher import Dispatcher
from services.dispatcher.endpoint import worker_route
from services.dispatcher.service import open_dispatcher, options_of
from services.fanout import service as fanout_service
from services.gateway.app import gateway_app
from services.gateway.endpoints import Gateway
from services.runtime.dev.access import Access, access_file, open_access
from services.runtime.dev.supervisor import Supervisor, code_folder
from services.runtime.http import bind, serve_http
from services.runtime.process import Process
from services.runtime.telemetry import metrics_route

__all__ = ["DevServer"]

HTTP_DRAIN_MS = 2_000


@dataclass(frozen=True)
class DevServer:
    """What to run beside the services.

    Attributes:
        target: the application as module:attribute; None for no worker.
        workspace: the workspace it lives in.
        is_reloading: whether a change of the code starts a new worker.
    """

    target: str | None
    workspace: str
    is_reloading: bool = True

    async def run(self, process: Process) -> None:
        """Serve until the process drains: the worker first, then its dispatcher, then the API.

        Raises:
            PortUnavailable: the port is taken.
        """
        config = process.config
        sock = bind(config.gateway_host, config.gateway_port, setting="gateway_port")
        host, port = sock.getsockname()[:2]
        url = f"http://{host}:{port}"
        access = await open_access(process.keyspace, self.workspace, access_file(config.store))
        _greet(process, access, url)
        is_quiet = anyio.Event()
        async with open_dispatcher(process) as dispatcher, anyio.create_task_group() as group:
            metrics = metrics_route(process.telemetry, config.metrics_path)
            app = gateway_app(
                Gateway(process), worker_route(dispatcher, process.keyspace, process.keys_in_use), metrics
            )
            group.start_soon(fanout_service.run, process, name="fan-out")
            group.start_soon(self._work, process, dispatcher, access, url, is_quiet, name="worker")
            await serve_http(
                app, sock, until=is_quiet.wait, websocket_bytes_max=FRAME_BYTES_MAX, drain_ms=HTTP_DRAIN_MS
            )

    async def _work(
        self, process: Process, dispatcher: Dispatcher, access: Access, url: str, is_quiet: anyio.Event
    ) -> None:
        """Keep the worker; when the process drains, let it finish while its dispatcher still listens."""
        if self.target is None:
            await process.drain.wait()
        else:
            environment = dict(os.environ) | {
                "RYUSEN_URL": url,
                "RYUSEN_KEY": access.secret,
                "RYUSEN_WORKSPACE": access.workspace,
                "RYUSEN_LOG_LEVEL": process.config.log_level,
            }
            folder = code_folder(self.target) if self.is_reloading else None
            supervisor = Supervisor(self.target, environment, folder)
            async with anyio.create_task_group() as group:
                group.start_soon(supervisor.run, name="supervisor")
                await process.drain.wait()
                supervisor.stop()
        await dispatcher.drain(options_of(process.config).drain_ms)
        is_quiet.set()


def _greet(process: Process, access: Access, url: str) -> None:
    name = process.keyspace.store.name
    scheme, _, path = process.config.store.partition(":")
    kept = "in memory: gone when this process ends"
    if scheme == "embedded":
        kept = f"in {Path(path).resolve()}: kept between starts, remove the folder to begin anew"
    elif scheme == "fdb":
        kept = f"in {name}"
    sys.stderr.write(
        f"Ryusen serves on {url}\n"
        f"State is {kept}\n"
        "To talk to it:\n"
        f"  export RYUSEN_URL={url} RYUSEN_WORKSPACE={access.workspace} RYUSEN_KEY={access.secret}\n"
        "  ryusen events submit NAME --payload '{...}'\n"
    )
    sys.stderr.flush()
