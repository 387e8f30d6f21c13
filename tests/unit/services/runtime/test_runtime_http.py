"""The HTTP server on a real socket: ports, heads that never end, bodies refused early, an orderly end (case 077)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import httpx
import pytest
from anyio.abc import SocketStream
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from unit.services.gateway.gateway_world import GatewayWorld

from services.runtime.http import BoundedHttp, PortUnavailable, bind, serve_http

DEADLINE_S = 10.0


class Site:
    """A served application and how to stop it."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.stop = anyio.Event()

    async def connect(self) -> SocketStream:
        return await anyio.connect_tcp("127.0.0.1", self.port)


@asynccontextmanager
async def served(app: object, *, drain_ms: int = 2_000) -> AsyncIterator[Site]:
    sock = bind("127.0.0.1", 0, setting="gateway_port")
    site = Site(sock.getsockname()[1])

    async def serve() -> None:
        await serve_http(app, sock, until=site.stop.wait, drain_ms=drain_ms)  # type: ignore[arg-type]

    with anyio.fail_after(DEADLINE_S):
        async with anyio.create_task_group() as group:
            group.start_soon(serve)
            yield site
            site.stop.set()


async def read_all(stream: SocketStream) -> bytes:
    parts = []
    with anyio.fail_after(DEADLINE_S):
        while True:
            try:
                parts.append(await stream.receive())
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                return b"".join(parts)


def echo(body: Callable[[Request], Awaitable[Response]] | None = None) -> Starlette:
    async def answer(request: Request) -> Response:
        return PlainTextResponse(await request.body())

    return Starlette(routes=[Route("/", body or answer, methods=["GET", "POST"])])


def problem_of(answer: bytes) -> tuple[int, str]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"application/problem+json" in head
    return int(head.split()[1]), json.loads(body)["code"]


@pytest.mark.case(77)
@pytest.mark.parametrize("sent", [b"nonsense\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x00\xff\x16\x03\x01"])
async def test_what_is_no_request_is_refused_at_once(sent: bytes) -> None:
    """Case 077: broken requests get a typed answer and cost their connection only."""
    async with served(echo()) as site:
        async with await site.connect() as stream:
            await stream.send(sent)
            answer = await read_all(stream)
        assert problem_of(answer) == (400, "malformed_request")
        async with httpx.AsyncClient() as http:
            assert (await http.post(site.url, content=b"fine")).text == "fine"


@pytest.mark.case(77)
@pytest.mark.parametrize("piece", [b"x: " + b"y" * 8_000 + b"\r\n", b"y" * 8_000])
async def test_a_head_without_end_is_refused_at_its_bound(piece: bytes) -> None:
    """Case 077: neither many headers nor one endless header take more memory than the bound."""
    async with served(echo()) as site, await site.connect() as stream:
        await stream.send(b"GET / HTTP/1.1\r\nhost: x\r\na: ")
        for _ in range(20):
            try:
                await stream.send(piece)
            except anyio.BrokenResourceError:
                break
        answer = await read_all(stream)
        assert answer == b"" or problem_of(answer) == (431, "head_too_large")


@pytest.mark.case(77)
@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nhost: x\r\n"])
async def test_a_head_that_does_not_arrive_is_given_up(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 077: a silent or dawdling connection ends within its time."""
    monkeypatch.setattr(BoundedHttp, "head_ms_max", 100)
    async with served(echo()) as site, await site.connect() as stream:
        if sent:
            await stream.send(sent)
        assert problem_of(await read_all(stream)) == (408, "head_timeout")


async def test_the_time_of_a_head_ends_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow answer, or a second request on the same connection, is not taken for a slow head."""
    monkeypatch.setattr(BoundedHttp, "head_ms_max", 100)
    sites: list[Site] = []

    async def slow(_request: Request) -> Response:
        # A connection that begins now and says nothing shows when the time of a head has passed.
        async with await sites[0].connect() as idle:
            assert problem_of(await read_all(idle)) == (408, "head_timeout")
        return PlainTextResponse("late")

    async with served(echo(slow)) as site, httpx.AsyncClient() as http:
        sites.append(site)
        for _ in range(2):
            assert (await http.get(site.url)).text == "late"


async def test_many_requests_on_one_connection_are_each_counted_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BoundedHttp, "head_bytes_max", 1_000)
    async with served(echo()) as site, httpx.AsyncClient() as http:
        for _ in range(5):
            assert (await http.post(site.url, content=b"x" * 500_000)).status_code == 200


@pytest.mark.case(77)
async def test_a_flood_over_a_socket_is_refused_before_it_ends() -> None:
    """Case 077: a 100 MB body is answered 413 while most of it was never sent."""
    world = GatewayWorld()
    await world.furnish()
    async with served(world.app) as site, await site.connect() as stream:
        key = world.keys["acme", "client"]
        head = f"POST /v1/workspaces/acme/events HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n"
        await stream.send(head.encode() + b"transfer-encoding: chunked\r\n\r\n")
        sent = 0
        answers: list[bytes] = []

        async def read() -> None:
            answers.append(await read_all(stream))

        async with anyio.create_task_group() as group:
            group.start_soon(read)
            try:
                while sent < 100_000_000:
                    await stream.send(b"10000\r\n" + bytes(65_536) + b"\r\n")
                    sent += 65_536
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                pass
        assert problem_of(answers[0]) == (413, "body_too_large")
        assert sent < 50_000_000


async def test_open_requests_are_finished_when_told_to_stop() -> None:
    """HOUSE 8: stop accepting, drain, end."""
    begun, release = anyio.Event(), anyio.Event()

    async def slow(_request: Request) -> Response:
        begun.set()
        await release.wait()
        return PlainTextResponse("finished")

    texts: list[str] = []
    async with served(echo(slow)) as site, anyio.create_task_group() as group:

        async def ask() -> None:
            async with httpx.AsyncClient() as http:
                texts.append((await http.get(site.url)).text)

        group.start_soon(ask)
        await begun.wait()
        site.stop.set()
        with pytest.raises(OSError):
            while True:
                async with await site.connect():
                    await anyio.lowlevel.checkpoint()
        release.set()
    assert texts == ["finished"]


def test_a_taken_port_is_named_with_its_setting() -> None:
    with bind("127.0.0.1", 0, setting="gateway_port") as sock:
        port = sock.getsockname()[1]
        with pytest.raises(PortUnavailable, match=f"port {port} on 127.0.0.1 is taken .* set gateway_port"):
            bind("127.0.0.1", port, setting="gateway_port")
    with pytest.raises(PortUnavailable, match="set gateway_port"):
        bind("203.0.113.1", 0, setting="gateway_port")
