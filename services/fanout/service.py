"""The fan-out service as a part of a process."""

from __future__ import annotations

import anyio

from services.fanout.metrics import FanOutMetrics
from services.fanout.options import FanOutOptions
from services.fanout.pump import FanOutPump
from services.runtime.process import Process

__all__ = ["run"]


async def run(process: Process) -> None:
    """Expand events until the process drains; the chunks under way are finished first.

    Args:
        process: an open process; its settings `skew_ms`, `rescan_ms` and `fanout_concurrency` count here.
    """
    config = process.config
    options = FanOutOptions(skew_ms=config.skew_ms, rescan_ms=config.rescan_ms, concurrency=config.fanout_concurrency)
    pump = FanOutPump(
        process.keyspace,
        options,
        FanOutMetrics(process.telemetry.registry),
        process_id=process.process_id,
        peers=lambda: process.peers("fanout"),
    )

    async def drain() -> None:
        await process.drain.wait()
        pump.drain()

    async with anyio.create_task_group() as group:
        group.start_soon(drain, name="fan-out drain")
        await pump.run()
        group.cancel_scope.cancel()
