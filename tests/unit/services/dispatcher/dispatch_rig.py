"""A dispatcher over a memory store, and workers that speak frames to it without a socket."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

import anyio
import msgspec
from anyio.lowlevel import checkpoint
from prometheus_client import CollectorRegistry
from ryusen.protocol.frames import (
    CODEC,
    PROTOCOL_VERSION,
    Answer,
    Assign,
    Complete,
    Declare,
    FunctionOffer,
    HeldWork,
    Hello,
    Ready,
    Result,
    RetryPolicy,
    ServerFrame,
    Settled,
    Start,
    StepDeclaration,
    Succeeded,
    Welcome,
    WorkerFrame,
    decode_server_frame,
    encode_frame,
)
from transitions.world import World

from keyspace.clock import VirtualClock
from keyspace.keyspace import Keyspace
from keyspace.store.api import Store
from keyspace.tx import Tx
from services.dispatcher.dispatcher import Dispatcher
from services.dispatcher.metrics import DispatcherMetrics
from services.dispatcher.options import DispatcherOptions
from services.dispatcher.peer import PeerGone
from services.runtime.key_watch import HeldKey

F = TypeVar("F")
M = TypeVar("M")

DEADLINE_S = 5.0
"""Real time that a frame may take; a test that waits longer has failed."""
LOOP_TURNS = 30
"""Turns of the event loop in which everything that needs no time has happened."""
STEP_MS = 50


class Mailbox(Generic[M]):
    """Messages for one reader."""

    def __init__(self) -> None:
        self.messages: deque[M] = deque()
        self.is_closed = False
        self._arrived = anyio.Event()

    def put(self, message: M) -> None:
        self.messages.append(message)
        self._arrived.set()

    def close(self) -> None:
        self.is_closed = True
        self._arrived.set()

    async def arrival(self) -> None:
        """Return when another message has come."""
        self._arrived = anyio.Event()
        await self._arrived.wait()

    async def take(self) -> M:
        while not self.messages:
            if self.is_closed:
                raise PeerGone("dropped")
            await self.arrival()
        return self.messages.popleft()


class FakeWorker:
    """Both ends of one connection: the dispatcher's peer, and the worker's hands."""

    def __init__(self) -> None:
        self._to_server: Mailbox[str | bytes] = Mailbox()
        self._to_worker: Mailbox[ServerFrame] = Mailbox()
        self.closed: tuple[int, str] | None = None
        self.has_closed = anyio.Event()
        self.takes_frames = anyio.Event()
        self.takes_frames.set()

    # -- the dispatcher's side

    async def receive(self) -> str | bytes:
        return await self._to_server.take()

    async def send(self, text: str) -> None:
        await self.takes_frames.wait()
        if self.closed is not None or self._to_server.is_closed:
            raise PeerGone("closed")
        self._to_worker.put(decode_server_frame(text))

    async def close(self, code: int, reason: str) -> None:
        self.cut(code, reason)

    def cut(self, code: int = 1006, reason: str = "") -> None:
        """End the connection; 1006 is how a worker sees one that ended without a close frame."""
        if self.closed is None:
            self.closed = (code, reason)
            self.has_closed.set()
            self._to_worker.close()

    # -- the worker's side

    def say(self, frame: WorkerFrame | str | bytes) -> None:
        self._to_server.put(frame if isinstance(frame, str | bytes) else encode_frame(frame).decode())

    async def hear(self, kind: type[F], accepts: Callable[[F], bool] = lambda frame: True) -> F:
        """Return the first frame of `kind` that `accepts` takes; the others stay in their order."""
        with anyio.fail_after(DEADLINE_S):
            while True:
                for index, frame in enumerate(self._to_worker.messages):
                    if isinstance(frame, kind) and accepts(frame):
                        del self._to_worker.messages[index]
                        return frame
                await self._to_worker.arrival()

    async def next_frame(self) -> ServerFrame:
        """Return the next frame of any kind.

        Raises:
            PeerGone: the dispatcher closed the connection.
        """
        return await self._to_worker.take()

    def heard(self) -> list[ServerFrame]:
        """Return what has come and was not looked at."""
        frames = list(self._to_worker.messages)
        self._to_worker.messages.clear()
        return frames

    def drop(self) -> None:
        """Cut the connection as a reset would."""
        self._to_server.close()

    async def parted(self) -> tuple[int, str]:
        """Return the close code and reason."""
        with anyio.fail_after(DEADLINE_S):
            await self.has_closed.wait()
        assert self.closed is not None
        return self.closed

    # -- what workers do

    async def assigned_pass(self) -> Assign:
        return await self.hear(Assign, lambda assign: assign.ref.kind == "discovery")

    async def declare(self, assign: Assign, step: str = "s1", **options: object) -> Settled:
        declaration = StepDeclaration(id=step, **options)  # type: ignore[arg-type]
        self.say(Answer(request=assign.request, ref=assign.ref, ending=Declare(steps=[declaration])))
        return await self.hear(Settled, lambda answer: answer.request == assign.request)

    async def start(self) -> Assign:
        """Take the next callback up to its start."""
        assign = await self.hear(Assign, lambda assign: assign.ref.kind == "callback")
        self.say(Ready(request=assign.request))
        await self.hear(Start, lambda start: start.request == assign.request)
        return assign

    def succeed(self, assign: Assign, value: bytes = b'"ok"') -> None:
        outcome = Succeeded(value=msgspec.Raw(value))
        self.say(Result(request=assign.request, ref=assign.ref, outcome=outcome))

    def complete(self, assign: Assign, value: bytes = b'"done"') -> None:
        self.say(Answer(request=assign.request, ref=assign.ref, ending=Complete(value=msgspec.Raw(value))))


RETRY_AT_ONCE = RetryPolicy(attempts=3, initial_ms=0)


def hello(
    *,
    instance: str = "11" * 16,
    capacity: int = 4,
    undo_capacity: int = 0,
    held: list[HeldWork] | None = None,
    functions: str = "fulfil",
    features: list[str] | None = None,
) -> Hello:
    """Return a sound hello."""
    return Hello(
        application="shop",
        instance=instance,
        protocols=[PROTOCOL_VERSION],
        codecs=[CODEC],
        functions=[FunctionOffer(name=name) for name in functions.split()],
        capacity=capacity,
        release="release-1",
        held=held or [],
        features=features or [],
        undo_capacity=undo_capacity,
    )


class MortalKeyspace(Keyspace):
    """A keyspace whose process can be killed: from then on nothing more of it reaches the store."""

    is_dead = False

    async def transact(self, name: str, body: Callable[[Tx], Awaitable[M]]) -> M:
        if self.is_dead:
            raise RuntimeError("the process was killed")
        return await super().transact(name, body)


class Rig:
    """One dispatcher and the world it works in."""

    def __init__(
        self,
        world: World,
        *,
        options: DispatcherOptions | None = None,
        process_id: str = "d1",
        peers: tuple[str, ...] = (),
        store: Store | None = None,
        keyspace: Keyspace | None = None,
    ) -> None:
        self.world = world
        self.clock = world.clock
        self.registry = CollectorRegistry()
        self.keyspace = MortalKeyspace(
            store or world.store,
            clock=world.clock,
            prefix=world.keyspace.prefix,
            rng=random.Random(process_id),
        )
        self.dispatcher = Dispatcher(
            keyspace or self.keyspace,
            options or DispatcherOptions(),
            DispatcherMetrics(self.registry),
            process_id=process_id,
            peers=lambda: [process_id, *peers],
            rng=random.Random(1),
        )

    def metric(self, name: str, **labels: str) -> float:
        """Return a counter's value; 0 when it never counted."""
        return self.registry.get_sample_value(f"ryusen_dispatch_{name}", labels) or 0.0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Rig]:
        """Run the dispatcher for as long as the block; `kill` before leaving it is a kill -9."""
        async with anyio.create_task_group() as group:
            self.group = group
            await group.start(self.dispatcher.run)
            yield self
            group.cancel_scope.cancel()

    def kill(self) -> None:
        """Let nothing more of this process reach the store, not even what it would do when it ends."""
        self.keyspace.is_dead = True

    def connect(self, workspace: str = "acme", key: HeldKey | None = None) -> FakeWorker:
        """Open a connection that has not said hello."""
        worker = FakeWorker()

        async def serve() -> None:
            try:
                await self.dispatcher.serve_peer(worker, workspace, key)
            except RuntimeError:
                # A connection that was being greeted when its process was killed ends with it, and nobody is told.
                if not self.keyspace.is_dead:
                    raise
            finally:
                worker.cut()  # the operating system closes the connections of a process that is gone

        self.group.start_soon(serve)
        return worker

    async def join(
        self, said: Hello | None = None, *, workspace: str = "acme", key: HeldKey | None = None
    ) -> FakeWorker:
        """Open a session."""
        worker = self.connect(workspace, key)
        worker.say(said or hello())
        await worker.hear(Welcome)
        return worker

    async def pass_time(self, delta_ms: int, step_ms: int = STEP_MS) -> None:
        """Let time pass in small steps, with everything done that each one brings."""
        for _ in range(0, delta_ms, step_ms):
            self.clock.advance(step_ms)
            await turns()

    async def until_settled(self) -> None:
        """Let everything happen that needs no time."""
        await turns(10 * LOOP_TURNS)


async def turns(count: int = LOOP_TURNS) -> None:
    """Let the event loop turn."""
    for _ in range(count):
        await checkpoint()


def virtual_world() -> World:
    """Return a world whose time stands still until a test moves it."""
    return World(clock=VirtualClock())
