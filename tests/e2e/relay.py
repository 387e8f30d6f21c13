"""A TCP relay between a worker and its dispatchers: a small balancer whose connections can be broken in every way.

It forwards what dispatchers send whole frame by whole frame, so that a connection breaks between two frames and a test can
say before which one.
"""

from __future__ import annotations

import enum
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import anyio
import msgspec
from anyio.abc import Listener, SocketAttribute, SocketStream
from e2e_world import APPS, World
from eventually import eventually

from topology.launcher import WorkerSpec
from topology.ports import HOST
from topology.process import Process
from topology.tables import Role

__all__ = ["Break", "CloseWith", "How", "Relay", "open_relay", "start_behind"]

HEAD_END = b"\r\n\r\n"
READ_BYTES = 65_536
HEAD_BYTES_MAX = 16_384
BAD_GATEWAY = b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
CLOSE_OPCODE = 0x88
"""Source: RFC 6455, section 5.2: final frame, opcode 8."""
LINGER_NOTHING = struct.pack("ii", 1, 0)
"""Linger for no time: closing then resets the connection."""


class Break(enum.Enum):
    """How a connection ends without a word."""

    RESET = "reset"
    FIN = "fin"
    SILENCE = "silence"
    """It stays open and nothing comes through any more, as behind a router that has forgotten it."""


@dataclass(frozen=True, slots=True)
class CloseWith:
    """A WebSocket close frame with a code, as the dispatcher or something between would send it; then the end."""

    code: int


How = Break | CloseWith
MayPass = Callable[["Pair", bytes], Awaitable[bool]]


class Frames:
    """Cuts a server's bytes into the upgrade's head and whole WebSocket frames, which servers never mask."""

    def __init__(self) -> None:
        self._rest = b""
        self._has_head = False

    def feed(self, data: bytes) -> list[bytes]:
        """Take bytes and return what is whole by now."""
        self._rest += data
        found: list[bytes] = []
        while size := self._next_size():
            found.append(self._rest[:size])
            self._rest = self._rest[size:]
        return found

    def _next_size(self) -> int:
        rest = self._rest
        if not self._has_head:
            end = rest.find(HEAD_END)
            assert end >= 0 or len(rest) <= HEAD_BYTES_MAX, "no upgrade was answered"
            self._has_head = end >= 0
            return end + len(HEAD_END) if end >= 0 else 0
        start, length = payload_of(rest)
        return start + length if start > 0 and start + length <= len(rest) else 0


def payload_of(frame: bytes) -> tuple[int, int]:
    """Return where a frame's payload starts and how long it is; (0, 0) while its header is not complete."""
    if len(frame) < 2:
        return 0, 0
    length = frame[1] & 0x7F
    if length < 126:
        return 2, length
    start = 4 if length == 126 else 10
    return (start, int.from_bytes(frame[2:start], "big")) if len(frame) >= start else (0, 0)


def kind_of(frame: bytes) -> str:
    """Return which frame of the worker protocol a WebSocket frame carries; nothing for the upgrade and control frames."""
    if frame[:1] != b"\x81":
        return ""
    start, length = payload_of(frame)
    return str(msgspec.json.decode(frame[start : start + length])["frame"])


class Pair:
    """One connection through the relay."""

    def __init__(self, near: SocketStream, far: SocketStream, port: int) -> None:
        self.near = near
        self.far = far
        self.port = port
        self.has_upgraded = False
        self.is_mute = False
        self._scope = anyio.CancelScope()

    async def run(self, may_pass: MayPass) -> None:
        """Forward both ways until either side ends or the connection is broken."""
        with self._scope:
            async with anyio.create_task_group() as group:
                group.start_soon(self._out, name="relay out")
                group.start_soon(self._back, may_pass, name="relay back")
        await anyio.aclose_forcefully(self.near)
        await anyio.aclose_forcefully(self.far)

    def end(self) -> None:
        """Close both sides."""
        self._scope.cancel()

    def reset(self) -> None:
        """Let the ends be resets."""
        for side in (self.near, self.far):
            sock = side.extra(SocketAttribute.raw_socket)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NOTHING)
        self.end()

    async def _out(self) -> None:
        with suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            while True:
                data = await self.near.receive(READ_BYTES)
                if not self.is_mute:
                    await self.far.send(data)
        self.end()

    async def _back(self, may_pass: MayPass) -> None:
        frames = Frames()
        with suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            while True:
                for frame in frames.feed(await self.far.receive(READ_BYTES)):
                    if self.is_mute:
                        continue
                    if not await may_pass(self, frame):
                        break
                    await self.near.send(frame)
                    self.has_upgraded = True
        self.end()


class Relay:
    """A listening relay. Connections go to the backends in turn, those that refuse or are out of service passed over."""

    def __init__(self, backends: Sequence[int], listener: Listener[SocketStream]) -> None:
        self.backends = list(backends)
        self.out_of_service: set[int] = set()
        self.is_bad_gateway = False
        self.connection_count = 0
        self._listener = listener
        self._port: int = listener.extra(SocketAttribute.local_port)
        self._turn = 0
        self._pairs: list[Pair] = []
        self._trap: tuple[str, How] | None = None

    @property
    def url(self) -> str:
        """The address for a worker."""
        return f"ws://{HOST}:{self._port}"

    @property
    def backend(self) -> int | None:
        """The backend of the connection that stands, or None."""
        return next((pair.port for pair in reversed(self._pairs) if pair.has_upgraded and not pair.is_mute), None)

    async def serve(self) -> None:
        """Relay until cancelled."""
        await self._listener.serve(self._serve_one)

    async def until_connected(self, *, after: int = 0) -> None:
        """Wait until a connection later than the first `after` ones stands."""

        async def stands() -> bool:
            return self.connection_count > after and self.backend is not None

        await eventually(stands, "the worker is connected")

    def trap(self, kind: str, how: How) -> None:
        """Break the connection that is about to bring a frame of this kind to the worker, instead of bringing it."""
        self._trap = (kind, how)

    @property
    def is_sprung(self) -> bool:
        """Whether the trap has broken a connection."""
        return self._trap is None

    async def cut(self, how: How) -> None:
        """Break every connection that stands."""
        for pair in [pair for pair in self._pairs if not pair.is_mute]:
            await self._break(pair, how)

    async def _break(self, pair: Pair, how: How) -> None:
        if isinstance(how, CloseWith):
            payload = how.code.to_bytes(2, "big")
            with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                await pair.near.send(bytes((CLOSE_OPCODE, len(payload))) + payload)
            pair.end()
        elif how is Break.SILENCE:
            pair.is_mute = True
        elif how is Break.RESET:
            pair.reset()
        else:
            pair.end()

    async def _serve_one(self, near: SocketStream) -> None:
        if self.is_bad_gateway:
            self.connection_count += 1
            async with near:
                await near.receive(READ_BYTES)
                await near.send(BAD_GATEWAY)
            return
        far, port = await self._connect()
        if far is None:
            await anyio.aclose_forcefully(near)
            return
        pair = Pair(near, far, port)
        self._pairs.append(pair)
        self.connection_count += 1
        try:
            await pair.run(self._may_pass)
        finally:
            self._pairs.remove(pair)

    async def _connect(self) -> tuple[SocketStream | None, int]:
        for _ in range(len(self.backends)):
            port = self.backends[self._turn % len(self.backends)]
            if port not in self.out_of_service:
                with suppress(OSError):
                    return await anyio.connect_tcp(HOST, port), port
            self._turn += 1
        return None, 0

    async def _may_pass(self, pair: Pair, frame: bytes) -> bool:
        if self._trap is None or kind_of(frame) != self._trap[0]:
            return True
        how, self._trap = self._trap[1], None
        await self._break(pair, how)
        return False


@asynccontextmanager
async def open_relay(backends: Sequence[int]) -> AsyncIterator[Relay]:
    """Relay to ports of this machine for as long as the block."""
    listener = await anyio.create_tcp_listener(local_host=HOST)
    relay = Relay(backends, listener)
    async with listener, anyio.create_task_group() as group:
        group.start_soon(relay.serve, name="relay")
        yield relay
        group.cancel_scope.cancel()


async def start_behind(relay: Relay, world: World, index: int, *, capacity: int, grace: str = "10s") -> Process:
    """Start a worker of a world behind a relay and wait until it is connected."""
    spec = WorkerSpec(
        app="field:app",
        folder=APPS,
        key=world.access.worker_key,
        capacity=capacity,
        grace=grace,
        environment={"FIELD_LEDGER": str(world.ledger), "RYUSEN_URL": relay.url},
    )
    before = relay.connection_count
    await world.launcher.start_workers(spec, [index])
    await relay.until_connected(after=before)
    return world.launcher.process(Role.WORKER, index)
