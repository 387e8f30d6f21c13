"""Whether a process is alive and whether it serves; asked by machines, without a key, on every process's own port."""

from __future__ import annotations

import anyio
import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from keyspace.errors import KeyspaceError
from keyspace.layout import FORMAT
from keyspace.store.errors import StoreError
from keyspace.tx import Tx
from services.runtime.health import Health, ServingKeyspace

__all__ = ["Readiness", "probe_routes", "readiness"]

_encoder = msgspec.json.Encoder()


class Readiness(msgspec.Struct, frozen=True, kw_only=True):
    """Whether this process serves, and every reason why not."""

    ready: bool
    faults: list[str] = []


def probe_routes(keyspace: ServingKeyspace, health: Health, *, ready_ms: int) -> list[Route]:
    """Return /healthz, which says that the event loop runs, and /readyz, which asks the store: 200, or 503 with reasons.

    Args:
        keyspace: asked whether its store answers.
        health: what the process knows of itself.
        ready_ms: how long the store may take.
    """

    async def alive(_request: Request) -> Response:
        return _answer(Readiness(ready=True), 200)

    async def ready(_request: Request) -> Response:
        found = await readiness(keyspace, health, ready_ms=ready_ms)
        return _answer(found, 200 if found.ready else 503)

    return [Route("/healthz", alive), Route("/readyz", ready)]


async def readiness(keyspace: ServingKeyspace, health: Health, *, ready_ms: int) -> Readiness:
    """Ask the store now, within `ready_ms`, and add what the process knows of itself."""
    faults = list(health.faults)

    async def read(tx: Tx) -> None:
        await tx.load(FORMAT.at(), snapshot=True)

    try:
        with anyio.fail_after(ready_ms / 1_000):
            await keyspace.transact_always("check_ready", read)
    except TimeoutError:
        faults.append(f"store did not answer within {ready_ms} ms")
    except (StoreError, KeyspaceError) as error:
        faults.append(f"store: {error}")
    return Readiness(ready=not faults, faults=faults)


def _answer(found: Readiness, status: int) -> Response:
    return Response(_encoder.encode(found), status, {"Cache-Control": "no-store"}, media_type="application/json")
