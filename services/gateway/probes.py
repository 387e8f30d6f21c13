"""Whether the process is alive and whether it serves; asked by machines, without a key."""

from __future__ import annotations

import anyio
import msgspec
from starlette.responses import Response

from keyspace.errors import KeyspaceError
from keyspace.layout import FORMAT
from keyspace.store.errors import StoreError
from keyspace.tx import Tx
from services.gateway.types import Readiness
from services.runtime.process import Process

__all__ = ["alive", "readiness", "ready"]

_encoder = msgspec.json.Encoder()


async def alive(_process: Process) -> Response:
    """Answer that the process runs its event loop."""
    return _answer(Readiness(ready=True), 200)


async def ready(process: Process) -> Response:
    """Answer 200 when the process serves, 503 with the reasons when it does not."""
    found = await readiness(process)
    return _answer(found, 200 if found.ready else 503)


async def readiness(process: Process) -> Readiness:
    """Ask the store now, within the configured time, and add what the process knows of itself."""
    faults = list(process.health.faults)

    async def read(tx: Tx) -> None:
        await tx.load(FORMAT.at(), snapshot=True)

    try:
        with anyio.fail_after(process.config.ready_ms / 1_000):
            await process.keyspace.transact_always("check_ready", read)
    except TimeoutError:
        faults.append(f"store did not answer within {process.config.ready_ms} ms")
    except (StoreError, KeyspaceError) as error:
        faults.append(f"store: {error}")
    return Readiness(ready=not faults, faults=faults)


def _answer(found: Readiness, status: int) -> Response:
    return Response(
        _encoder.encode(found), status, media_type="application/json", headers={"Cache-Control": "no-store"}
    )
