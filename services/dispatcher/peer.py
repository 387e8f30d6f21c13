"""The other end of a session's connection, as the session needs it, and the WebSocket that is one."""

from __future__ import annotations

from typing import Protocol

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

__all__ = ["Peer", "PeerGone", "WebSocketPeer"]

REASON_BYTES_MAX = 123
"""Source: RFC 6455, section 5.5.1: a close frame's reason is at most 123 bytes."""


class PeerGone(Exception):
    """The connection is closed or broken."""


class Peer(Protocol):
    """A connection that carries one frame a message."""

    async def receive(self) -> str | bytes:
        """Return the next message.

        Raises:
            PeerGone: there will be none.
        """
        ...

    async def send(self, text: str) -> None:
        """Send a message; returns when the transport has taken it.

        Raises:
            PeerGone: it cannot.
        """
        ...

    async def close(self, code: int, reason: str) -> None:
        """Close the connection; closing again changes nothing."""
        ...


class WebSocketPeer:
    """An accepted WebSocket."""

    def __init__(self, websocket: WebSocket) -> None:
        """Wrap `websocket`."""
        self._websocket = websocket

    async def receive(self) -> str | bytes:
        """Return the next message, as `Peer.receive`."""
        try:
            message = await self._websocket.receive()
        except (WebSocketDisconnect, RuntimeError, OSError) as error:
            raise PeerGone(type(error).__name__) from error
        if message["type"] != "websocket.receive":
            raise PeerGone(f"close code {message.get('code')}")
        text: str | None = message.get("text")
        return text if text is not None else bytes(message["bytes"])

    async def send(self, text: str) -> None:
        """Send a message, as `Peer.send`."""
        try:
            await self._websocket.send_text(text)
        except (WebSocketDisconnect, RuntimeError, OSError) as error:
            raise PeerGone(type(error).__name__) from error

    async def close(self, code: int, reason: str) -> None:
        """Close the connection, as `Peer.close`."""
        if self._websocket.application_state is WebSocketState.DISCONNECTED:
            return
        try:
            await self._websocket.close(code, reason.encode()[:REASON_BYTES_MAX].decode(errors="ignore"))
        except (WebSocketDisconnect, RuntimeError, OSError):
            return
