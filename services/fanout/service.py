"""The fan-out service as a part of a process."""

from __future__ import annotations

import anyio

from services.fanout.expansion import fan_out_pump
from services.lanes.options import LaneOptions
from services.runtime.process import Process

__all__ = ["run"]


async def run(process: Process) -> None:
    """Expand events until the process drains; the chunks under way are finished first.

    Args:
        process: an open process; its settings `skew_ms`, `rescan_ms`, `fanout_concurrency` and
            `run_timeout_default_ms` count here.
    """
    config = process.config
    options = LaneOptions(skew_ms=config.skew_ms, rescan_ms=config.rescan_ms, concurrency=config.fanout_concurrency)
    pump = fan_out_pump(
        process.keyspace,
        options,
        process.telemetry.registry,
        process_id=process.process_id,
        peers=lambda: process.peers("fanout"),
        run_timeout_default_ms=config.run_timeout_default_ms or None,
    )

    async def drain() -> None:
        await process.drain.wait()
        pump.drain()

    async with anyio.create_task_group() as group:
        group.start_soon(drain, name="fan-out drain")
        await pump.run()
        group.cancel_scope.cancel()
