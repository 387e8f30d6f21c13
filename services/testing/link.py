"""A connection between the dispatcher and a worker in one process: frames as text, in order, until either side hangs up."""

from __future__ import annotations

from collections import deque

import anyio
from ryusen.protocol.frames import ServerFrame, WorkerFrame, decode_server_frame, encode_frame

from services.dispatcher.peer import PeerGone
from services.testing.errors import WorkflowTestError

__all__ = ["Link"]

QUEUE_FRAMES_MAX = 100_000
"""Frames that may wait in one direction; a side that reads nothing is a defect."""


class _Queue:
    def __init__(self) -> None:
        self._messages: deque[str] = deque()
        self._arrived = anyio.Event()
        self._is_closed = False

    def put(self, message: str) -> None:
        if self._is_closed:
            raise PeerGone("the connection is closed")
        if len(self._messages) >= QUEUE_FRAMES_MAX:
            raise WorkflowTestError("A side of the worker's connection does not read.")
        self._messages.append(message)
        self._arrived.set()

    def close(self) -> None:
        self._is_closed = True
        self._arrived.set()

    async def take(self) -> str:
        while not self._messages:
            if self._is_closed:
                raise PeerGone("the connection is closed")
            self._arrived = anyio.Event()
            await self._arrived.wait()
        return self._messages.popleft()


class Link:
    """One connection. The dispatcher sees a `Peer`; the worker uses `say`, `hear` and `drop`."""

    def __init__(self) -> None:
        """Open it."""
        self._to_server = _Queue()
        self._to_worker = _Queue()
        self.reason = ""

    # -- the dispatcher's end

    async def receive(self) -> str | bytes:
        """Return the worker's next message, as `Peer.receive`."""
        return await self._to_server.take()

    async def send(self, text: str) -> None:
        """Send a message to the worker, as `Peer.send`."""
        self._to_worker.put(text)

    async def close(self, code: int, reason: str) -> None:
        """Close the connection, as `Peer.close`; what was sent before is still heard."""
        self.reason = self.reason or reason
        self._to_worker.close()
        self._to_server.close()

    # -- the worker's end

    def say(self, frame: WorkerFrame) -> None:
        """Send a frame; on a closed connection it is lost, as in a socket's buffer."""
        try:
            self._to_server.put(encode_frame(frame).decode())
        except PeerGone:
            return

    async def hear(self) -> ServerFrame:
        """Return the dispatcher's next frame.

        Raises:
            PeerGone: there will be none.
        """
        return decode_server_frame(await self._to_worker.take())

    def drop(self) -> None:
        """Cut the connection as a reset would."""
        self._to_server.close()
        self._to_worker.close()
