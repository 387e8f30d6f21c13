"""A small HTTP/1.1 client for the load process: one kept connection, one request at a time, as little work as possible.

A load generator shares the machine with what it measures; a full client would cost as much as the gateway it calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import NamedTuple, Self

__all__ = ["Answer", "Connection", "WireError"]

HEAD_BYTES_MAX = 16_384


class WireError(Exception):
    """The peer sent what this client does not read."""


class Answer(NamedTuple):
    """A status and a body."""

    status: int
    body: bytes


class Connection:
    """One connection to one address; it stays open between requests."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str) -> None:
        self._reader = reader
        self._writer = writer
        self._host = host

    @classmethod
    async def open(cls, host: str, port: int) -> Self:
        """Connect."""
        reader, writer = await asyncio.open_connection(host, port, limit=HEAD_BYTES_MAX)
        return cls(reader, writer, f"{host}:{port}")

    async def request(self, method: str, path: str, headers: Mapping[str, str], body: bytes = b"") -> Answer:
        """Send a request and return the answer.

        Raises:
            OSError: the connection broke.
            WireError: the answer has no length.
        """
        self.send(method, path, headers, body)
        try:
            head = await self._reader.readuntil(b"\r\n\r\n")
            status = int(head[9:12])
            return Answer(status, await self._reader.readexactly(_length_of(head)))
        except asyncio.IncompleteReadError as error:
            raise ConnectionResetError("the peer closed the connection") from error

    def send(self, method: str, path: str, headers: Mapping[str, str], body: bytes = b"") -> None:
        """Send a request whose answer nobody awaits here."""
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self._host}", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self._writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    async def close(self) -> None:
        """Close the connection."""
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except OSError:
            return


def _length_of(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    raise WireError(f"an answer without a length: {head[:100]!r}")
