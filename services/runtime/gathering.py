"""A transport that hands the system at its next turn, in one call, whatever the event loop's present turn writes.

A write of the loop is a call of the system each, some 10 us and a wake-up of whoever reads; a group of commits answers a dozen
frames in one turn, and an HTTP answer is two writes.
"""

from __future__ import annotations

import asyncio
from typing import Any

__all__ = ["GATHERED_BYTES_MAX", "GatheringTransport"]

GATHERED_BYTES_MAX = 65_536
"""What is kept back; more goes out at once, so that the transport can say that it has enough."""


class GatheringTransport(asyncio.Transport):
    """Gathers writes for another transport, and is that one in every other respect."""

    def __init__(self, inner: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        """Write to `inner` in turns of `loop`."""
        super().__init__()
        self._inner = inner
        self._loop = loop
        self._gathered: list[bytes] = []
        self._gathered_bytes = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write at the loop's next turn, with what else is written until then."""
        if not self._gathered:
            self._loop.call_soon(self._flush)
        self._gathered.append(bytes(data))
        self._gathered_bytes += len(data)
        if self._gathered_bytes >= GATHERED_BYTES_MAX:
            self._flush()

    def _flush(self) -> None:
        if self._gathered:
            gathered, self._gathered, self._gathered_bytes = self._gathered, [], 0
            # A connection may be lost in between; what is written to it then is lost as what is on its way.
            if not self._inner.is_closing():
                self._inner.write(gathered[0] if len(gathered) == 1 else b"".join(gathered))

    def close(self) -> None:
        """Write what was gathered, then close when it is out."""
        self._flush()
        self._inner.close()

    def abort(self) -> None:
        """Close at once; what was gathered is lost as what is on its way."""
        self._gathered.clear()
        self._gathered_bytes = 0
        self._inner.abort()

    def write_eof(self) -> None:
        """Write what was gathered, then end the writing."""
        self._flush()
        self._inner.write_eof()

    def can_write_eof(self) -> bool:
        """Return what the other transport says."""
        return self._inner.can_write_eof()

    def is_closing(self) -> bool:
        """Return whether the other transport is closing."""
        return self._inner.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what the other transport knows."""
        return self._inner.get_extra_info(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Have the other transport call `protocol` from now on."""
        self._inner.set_protocol(protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return whom the other transport calls."""
        return self._inner.get_protocol()

    def is_reading(self) -> bool:
        """Return whether the other transport reads."""
        return self._inner.is_reading()

    def pause_reading(self) -> None:
        """Have the other transport read no more."""
        self._inner.pause_reading()

    def resume_reading(self) -> None:
        """Have the other transport read again."""
        self._inner.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set when the other transport says that it has enough."""
        self._inner.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        """Return how many bytes are not yet with the system."""
        return self._gathered_bytes + self._inner.get_write_buffer_size()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """Return when the other transport says that it has enough."""
        return self._inner.get_write_buffer_limits()
