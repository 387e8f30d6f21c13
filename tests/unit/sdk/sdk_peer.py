"""A dispatcher for tests: a real WebSocket server on 127.0.0.1 that speaks the frames and answers heartbeats."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec
from ryusen.protocol.frames import (
    Answer,
    Assign,
    Drain,
    Hello,
    Ready,
    Renew,
    Renewed,
    Result,
    ServerFrame,
    Settled,
    Start,
    Welcome,
    WorkerFrame,
    WorkRef,
    decode_worker_frame,
    encode_frame,
)
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

F = TypeVar("F", bound=WorkerFrame)

DEADLINE_S = 10.0
SESSIONS_MAX = 1_000


class Session:
    """One worker session as the dispatcher sees it."""

    def __init__(self, connection: ServerConnection) -> None:
        self.connection = connection
        self.renewals: list[list[str]] = []
        self.drain_count = 0
        self.frames: asyncio.Queue[WorkerFrame] = asyncio.Queue()

    async def pump(self) -> None:
        try:
            async for message in self.connection:
                frame = decode_worker_frame(message)
                if isinstance(frame, Renew):
                    self.renewals.append(frame.requests)
                    await self.send(Renewed(requests=frame.requests))
                elif isinstance(frame, Drain):
                    self.drain_count += 1
                else:
                    self.frames.put_nowait(frame)
        except ConnectionClosed:
            pass

    async def send(self, *frames: ServerFrame) -> None:
        for frame in frames:
            await self.connection.send(encode_frame(frame).decode())

    async def expect(self, kind: type[F]) -> F:
        async with asyncio.timeout(DEADLINE_S):
            frame = await self.frames.get()
        assert isinstance(frame, kind), frame
        return frame

    async def welcome(self, **changes: Any) -> Hello:
        hello = await self.expect(Hello)
        given: dict[str, Any] = {
            "session": "s",
            "protocol": 1,
            "workspace": "acme",
            "lease_ms": 200,
            "renew_every_ms": 40,
            "silence_ms": 5_000,
            "value_bytes_max": 4_096,
            "clock_ms": 0,
        }
        await self.send(Welcome(**{**given, **changes}))
        return hello

    async def start(self, request: str, step: str, function: str, **changes: Any) -> None:
        """Bring a callback to where its user code runs."""
        await self.send(assignment(request, "callback", function, step=step, **changes))
        assert (await self.expect(Ready)).request == request
        await self.send(Start(request=request))

    async def result(self, request: str) -> Result:
        result = await self.expect(Result)
        assert result.request == request
        await self.send(Settled(request=request, verdict="accepted"))
        return result

    async def answer(self, request: str) -> Answer:
        answer = await self.expect(Answer)
        assert answer.request == request
        await self.send(Settled(request=request, verdict="accepted"))
        return answer


def assignment(request: str, kind: Any, function: str, step: str | None = None, **changes: Any) -> Assign:
    ref = WorkRef(
        kind=kind, item="i", token="t", run="run-1", attempt=1, generation=1, operation=f"op-{request}", step=step
    )
    given: dict[str, Any] = {"input": msgspec.Raw(b"null"), "memo": [], "event": "e", "event_name": "n"}
    return Assign(request=request, ref=ref, function=function, **{**given, **changes})


class Peer:
    """Takes sessions on a port of its own; `refusals` holds the HTTP statuses to answer the next upgrades with."""

    def __init__(self) -> None:
        self.refusals: list[int] = []
        self.upgrades = 0
        self.authorization: list[str] = []
        self.sessions: asyncio.Queue[Session] = asyncio.Queue(SESSIONS_MAX)
        self.on_open: Any = None
        self._server: Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await serve(
            self._serve, "127.0.0.1", 0, process_request=self._process, ping_interval=None, close_timeout=0.2
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        async with asyncio.timeout(DEADLINE_S):
            await self._server.wait_closed()

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"ws://127.0.0.1:{next(iter(self._server.sockets)).getsockname()[1]}"

    async def session(self) -> Session:
        async with asyncio.timeout(DEADLINE_S):
            return await self.sessions.get()

    def _process(self, connection: ServerConnection, request: Request) -> Response | None:
        self.upgrades += 1
        self.authorization.append(request.headers.get("Authorization", ""))
        if request.path != "/v1/worker":
            return connection.respond(404, "wrong path\n")
        if self.refusals:
            return connection.respond(self.refusals.pop(0), "refused\n")
        return None

    async def _serve(self, connection: ServerConnection) -> None:
        if self.on_open is not None:
            await self.on_open(connection)
            return
        session = Session(connection)
        self.sessions.put_nowait(session)
        await session.pump()
