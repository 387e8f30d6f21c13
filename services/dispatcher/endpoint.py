"""The worker endpoint as ASGI: `/v1/worker`, a WebSocket that is refused by HTTP status before it is accepted."""

from __future__ import annotations

import logging

from starlette.responses import JSONResponse
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket

from keyspace.errors import KeyspaceError
from keyspace.keyspace import Keyspace
from keyspace.records.tenancy import KeyOwnerRecord, Role
from keyspace.store.errors import StoreError
from keyspace.transitions.keys import authenticate
from services.dispatcher.dispatcher import Dispatcher
from services.dispatcher.peer import WebSocketPeer
from services.runtime.key_watch import KeyWatch

__all__ = ["WORKER_PATH", "WORKER_ROLES", "worker_route"]

log = logging.getLogger(__name__)

WORKER_PATH = "/v1/worker"
WORKER_ROLES = frozenset((Role.WORKER, Role.ADMIN))
"""Who may open a session: a worker's own key, or an administrator's of the same workspace."""
SECRET_CHARS_MAX = 512
RETRY_AFTER_S = 1


def worker_route(dispatcher: Dispatcher, keyspace: Keyspace, keys_in_use: KeyWatch) -> WebSocketRoute:
    """Return the route to mount into an application; the server must accept messages of FRAME_BYTES_MAX.

    Args:
        dispatcher: serves the sessions; its `run` is running.
        keyspace: where keys are looked up.
        keys_in_use: says when the key of a session was revoked; its `run` is running.
    """

    async def endpoint(websocket: WebSocket) -> None:
        owner = await _authorize(websocket, keyspace)
        if owner is None:
            return
        with keys_in_use.hold(owner.workspace, owner.key_id) as key:
            await websocket.accept()
            await dispatcher.serve_peer(WebSocketPeer(websocket), owner.workspace, key)

    return WebSocketRoute(WORKER_PATH, endpoint, name="worker")


async def _authorize(websocket: WebSocket, keyspace: Keyspace) -> KeyOwnerRecord | None:
    scheme, _, secret = websocket.headers.get("authorization", "").partition(" ")
    secret = secret.strip()
    if scheme.lower() != "bearer" or not 0 < len(secret) <= SECRET_CHARS_MAX:
        await _deny(websocket, 401, "unauthenticated", "A bearer key is required.")
        return None
    try:
        owner = await keyspace.transact("authenticate", lambda tx: authenticate(tx, secret))
    except (StoreError, KeyspaceError) as error:
        log.warning("a worker's key cannot be looked up", extra={"error": repr(error)})
        await _deny(websocket, 503, "store_unavailable", "Try again in a moment.")
        return None
    if owner is None:
        await _deny(websocket, 401, "unauthenticated", "This key is unknown or revoked.")
        return None
    if owner.role not in WORKER_ROLES:
        await _deny(websocket, 403, "forbidden", "This key's role may not run workers.")
        return None
    return owner


async def _deny(websocket: WebSocket, status: int, code: str, detail: str) -> None:
    headers = {"retry-after": str(RETRY_AFTER_S)} if status == 503 else {}
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    body = {"type": "about:blank", "status": status, "code": code, "title": detail}
    await websocket.send_denial_response(
        JSONResponse(body, status_code=status, headers=headers, media_type="application/problem+json")
    )
