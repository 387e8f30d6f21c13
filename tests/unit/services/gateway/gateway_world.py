"""A gateway over a memory store, asked as a client would ask it, beside the verbs that drive runs on the same store."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import httpx
import msgspec
from starlette.types import ASGIApp, Message
from transitions.world import EagerClock, World

from keyspace.clock import VirtualClock
from keyspace.store.api import Store
from keyspace.store.embedded import memory_store
from services.gateway.app import gateway_app
from services.gateway.endpoints import Gateway
from services.runtime.config import Config
from services.runtime.process import Process

__all__ = ["SYSTEM_KEY", "GatewayWorld", "Stream"]

SYSTEM_KEY = "the-operator-s-own-key-of-tests"
ROLES = ("admin", "client", "reader", "worker")


class GatewayWorld:
    """One store, one or more gateways on it, and keys."""

    def __init__(self, *, clock: VirtualClock | None = None, store: Store | None = None, **settings: Any) -> None:
        self.config = Config(store="memory:", system_key=SYSTEM_KEY, **settings)
        self.core = World(prefix=b"", clock=clock or EagerClock(), store=store)
        self.clock = self.core.clock
        self.gateway = self.start_gateway(store=store)
        self.app: ASGIApp = gateway_app(self.gateway)
        self.keys: dict[tuple[str, str], str] = {}
        self.key_ids: dict[tuple[str, str], str] = {}

    def start_gateway(self, *, store: Store | None = None, **settings: Any) -> Gateway:
        """Return another gateway on the same store, as another process would be."""
        config = dataclasses.replace(self.config, **settings)
        opened = store or memory_store(clock=self.clock, engine=self.core.engine)
        return Gateway(Process(config, "gateway", opened, self.clock))

    async def furnish(self) -> None:
        for workspace in ("acme", "rival"):
            await self.ask("POST", "/v1/workspaces", json={"name": workspace}, key=SYSTEM_KEY, status=201)
            for role in ROLES:
                made = await self.ask(
                    "POST", f"/v1/workspaces/{workspace}/keys", json={"role": role}, key=SYSTEM_KEY, status=201
                )
                self.keys[workspace, role] = made["secret"]
                self.key_ids[workspace, role] = made["key"]
            await self.core.publish({"fulfil": ["order.placed"]}, workspace=workspace)
            await self.core.hello(workspace=workspace)

    async def request(
        self,
        method: str,
        path: str,
        *,
        key: str | None = None,
        app: ASGIApp | None = None,
        **arguments: Any,
    ) -> httpx.Response:
        """Send a request with the admin key of acme, or another one; an empty one is left out."""
        secret = self.keys.get(("acme", "admin"), SYSTEM_KEY) if key is None else key
        headers = httpx.Headers(arguments.pop("headers", None))
        if secret:
            headers["Authorization"] = f"Bearer {secret}"
        transport = httpx.ASGITransport(app or self.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
            return await http.request(method, path, headers=headers, **arguments)

    async def ask(self, method: str, path: str, *, status: int = 200, **arguments: Any) -> Any:
        """Return the decoded body of an answer that must have `status`."""
        response = await self.request(method, path, **arguments)
        assert response.status_code == status, response.text
        return response.json()

    async def refused(self, code: str, method: str, path: str, **arguments: Any) -> dict[str, Any]:
        """Return the problem of a request that must be refused with `code` and must not have written anything."""
        before = await self.core.dump()
        response = await self.request(method, path, **arguments)
        assert response.headers["content-type"] == "application/problem+json", response.text
        problem: dict[str, Any] = response.json()
        assert problem["code"] == code, problem
        assert problem["status"] == response.status_code
        assert await self.core.dump() == before, "a refusal mutates nothing"
        return problem

    async def submit(
        self,
        payload: bytes = b"{}",
        *,
        name: str = "order.placed",
        workspace: str = "acme",
        idempotency_key: bytes | None = None,
        correlation: Mapping[str, str] | None = None,
        timestamp_ms: int | None = None,
        **arguments: Any,
    ) -> httpx.Response:
        body: dict[str, Any] = {"name": name, "payload": msgspec.Raw(payload)}
        if correlation is not None:
            body["correlation"] = correlation
        if timestamp_ms is not None:
            body["timestamp_ms"] = timestamp_ms
        headers = {} if idempotency_key is None else {b"Idempotency-Key": idempotency_key}
        return await self.request(
            "POST",
            f"/v1/workspaces/{workspace}/events",
            content=msgspec.json.encode(body),
            headers=headers,
            **arguments,
        )

    async def accepted(self, payload: bytes = b"{}", **arguments: Any) -> dict[str, Any]:
        response = await self.submit(payload, **arguments)
        assert response.status_code == 202, response.text
        answer: dict[str, Any] = response.json()
        return answer


class Stream:
    """A response read piece by piece while it is still being sent, which httpx's in-process transport cannot do."""

    def __init__(self, app: ASGIApp, path: str, *, key: str, query: bytes = b"") -> None:
        self._app = app
        self._scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "GET",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query,
            "root_path": "",
            "scheme": "http",
            "headers": [(b"authorization", f"Bearer {key}".encode())],
            "server": ("gateway", 80),
            "client": ("test", 1),
        }
        self.status = 0
        self.text = ""
        self.is_over = False

    async def run(self, disconnected: Callable[[], Awaitable[object]]) -> None:
        """Read until the response ends; `disconnected` returns when the client goes away."""
        is_asked = False

        async def receive() -> Message:
            nonlocal is_asked
            if not is_asked:
                is_asked = True
                return {"type": "http.request", "body": b"", "more_body": False}
            await disconnected()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.status = message["status"]
            else:
                self.text += message.get("body", b"").decode()
                self.is_over = not message.get("more_body", False)

        await self._app(self._scope, receive, send)
