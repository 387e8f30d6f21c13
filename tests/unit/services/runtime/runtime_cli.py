"""The command line against a gateway in this process."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
from anyio.from_thread import BlockingPortal
from click.testing import CliRunner, Result
from unit.services.gateway.gateway_world import GatewayWorld

from services.runtime.cli import main

__all__ = ["Bridge", "Cli"]


class Bridge(httpx.BaseTransport):
    """Carries a plain client's requests to the gateway on its own event loop."""

    def __init__(self, portal: BlockingPortal, world: GatewayWorld) -> None:
        self.portal = portal
        self.world = world

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        content = request.read()

        async def send() -> httpx.Response:
            headers = {name: value for name, value in request.headers.items() if name != "host"}
            async with httpx.AsyncClient(transport=httpx.ASGITransport(self.world.app)) as http:
                return await http.request(request.method, request.url, headers=headers, content=content)

        answer = self.portal.call(send)
        return httpx.Response(answer.status_code, headers=answer.headers, content=answer.content, request=request)


class Cli:
    """The command line with an administrator's key of acme."""

    def __init__(self, portal: BlockingPortal, world: GatewayWorld) -> None:
        self.portal = portal
        self.world = world
        self.key = world.keys["acme", "admin"]

    def invoke(self, *arguments: str, stdin: str | bytes | None = None, **environ: str | None) -> Result:
        env = {"RYUSEN_URL": "http://gateway", "RYUSEN_WORKSPACE": "acme", "RYUSEN_KEY": self.key} | environ
        return CliRunner().invoke(
            main, arguments, env=env, input=stdin, obj=Bridge(self.portal, self.world), catch_exceptions=False
        )

    def out(self, *arguments: str, **more: Any) -> str:
        result = self.invoke(*arguments, **more)
        assert result.exit_code == 0, result.stderr
        return result.stdout

    def json(self, *arguments: str, **more: Any) -> Any:
        return json.loads(self.out(*arguments, "--json", **more))

    def run(self, verb: Callable[..., Any], *arguments: Any) -> Any:
        return self.portal.call(verb, *arguments)
