"""What one turn of the loop writes goes out in one call, in order, and before anything that ends the writing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from services.runtime.gathering import GATHERED_BYTES_MAX, GatheringTransport


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Inner(asyncio.Transport):
    """Notes what it is asked to do."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[object] = []
        self.is_lost = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.done.append(bytes(data))

    def close(self) -> None:
        self.done.append("close")

    def abort(self) -> None:
        self.done.append("abort")

    def write_eof(self) -> None:
        self.done.append("eof")

    def is_closing(self) -> bool:
        return self.is_lost

    def get_write_buffer_size(self) -> int:
        return 7


def gathering() -> tuple[GatheringTransport, Inner]:
    inner = Inner()
    return GatheringTransport(inner, asyncio.get_running_loop()), inner


async def test_a_turns_writes_go_out_together_at_the_next() -> None:
    """Would catch a write for each frame, and frames that change places."""
    transport, inner = gathering()
    for part in (b"a", bytearray(b"b"), memoryview(b"c")):
        transport.write(part)
    assert inner.done == []
    assert transport.get_write_buffer_size() == 3 + 7
    await asyncio.sleep(0)
    assert inner.done == [b"abc"]
    transport.write(b"d")
    await asyncio.sleep(0)
    assert inner.done == [b"abc", b"d"]


async def test_what_is_large_goes_out_at_once() -> None:
    """Else a turn could gather without end, and the transport would never say that it has enough."""
    transport, inner = gathering()
    transport.write(b"a")
    transport.write(bytes(GATHERED_BYTES_MAX))
    assert [len(part) for part in inner.done if isinstance(part, bytes)] == [GATHERED_BYTES_MAX + 1]
    await asyncio.sleep(0)
    assert len(inner.done) == 1


@pytest.mark.parametrize(
    ("end", "done"), [("close", [b"a", "close"]), ("write_eof", [b"a", "eof"]), ("abort", ["abort"])]
)
async def test_what_was_written_goes_before_the_end(end: str, done: list[object]) -> None:
    """Would catch an answer that is lost because the connection is closed behind it."""
    transport, inner = gathering()
    transport.write(b"a")
    getattr(transport, end)()
    await asyncio.sleep(0)
    assert inner.done == done


async def test_a_connection_lost_meanwhile_is_not_written_to() -> None:
    """A closed transport of the loop refuses a write with an exception that nobody would catch."""
    transport, inner = gathering()
    transport.write(b"a")
    inner.is_lost = True
    await asyncio.sleep(0)
    assert inner.done == []


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[GatheringTransport, asyncio.StreamReader]]:
    made: asyncio.Future[GatheringTransport] = asyncio.get_running_loop().create_future()

    class Served(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            made.set_result(GatheringTransport(transport, asyncio.get_running_loop()))

    server = await asyncio.get_running_loop().create_server(Served, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
    try:
        yield await made, reader
    finally:
        writer.close()
        await writer.wait_closed()
        server.close()
        await server.wait_closed()


async def test_it_is_the_other_transport_in_every_other_respect() -> None:
    """On a real connection: bounds, reading, the protocol and the peer's name are the other one's."""
    async with connected() as (transport, reader):
        transport.set_write_buffer_limits(high=1_000, low=10)
        assert transport.get_write_buffer_limits() == (10, 1_000)
        assert transport.get_extra_info("peername") is not None
        assert isinstance(transport.get_protocol(), asyncio.Protocol)
        transport.set_protocol(transport.get_protocol())
        transport.pause_reading()
        assert not transport.is_reading()
        transport.resume_reading()
        assert transport.is_reading() and transport.can_write_eof() and not transport.is_closing()
        transport.write(b"all ")
        transport.write(b"of it")
        transport.close()
        assert await reader.read() == b"all of it"
