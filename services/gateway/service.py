"""The gateway as a process."""

from __future__ import annotations

import logging

from services.gateway.app import gateway_app
from services.gateway.endpoints import Gateway
from services.runtime.http import bind, serve_http
from services.runtime.process import Process

__all__ = ["run"]

log = logging.getLogger(__name__)


async def run(process: Process) -> None:
    """Serve the API until the process drains, then finish the open requests.

    Raises:
        PortUnavailable: the configured address cannot be listened on.
    """
    config = process.config
    sock = bind(config.gateway_host, config.gateway_port, setting="gateway_port")
    host, port = sock.getsockname()[:2]
    log.info("listening", extra={"url": f"http://{host}:{port}", "port": port})
    await serve_http(gateway_app(Gateway(process)), sock, until=process.drain.wait, drain_ms=config.drain_ms)
