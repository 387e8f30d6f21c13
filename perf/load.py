"""The load process: `python -m perf.load` reads a Spec as JSON from standard input and writes a Yield to standard output.

Closed loop: each of `concurrency` callers sends its next submission when the former one is acknowledged or, when a bell is
given, when the former one's run has reached its end. The warm-up is driven like the rest and left out of the figures.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import socket
import sys
import time
from collections import Counter
from pathlib import Path

import msgspec

from perf.wire import Connection, WireError

__all__ = ["Load", "Spec", "Yield"]

CONCURRENCY_MAX = 512
RUN_S_MAX = 30.0
"""Seconds after which a run that has not rung counts as an error."""
ERRORS_MAX = 1_000
"""Errors after which the load gives up; what it then measured is worthless."""
BELL_BYTES_MAX = 256


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """What to offer.

    Attributes:
        host: the gateway's address.
        port: its port.
        workspace: to submit to.
        key: its bearer key.
        event: the event's name.
        concurrency: callers, 1 to 512.
        warm_s: seconds driven before anything counts.
        seconds: seconds that count.
        keyed: whether each submission bears an idempotency key.
        payload_bytes: about how long the payload is, and each step's value.
        steps: how many steps the run is to have.
        bell: the path, not there yet, of the datagram socket on which runs tell of their end; when None, an acknowledgement is enough.
        count_max: submissions after which to stop early; None for no limit but time.
    """

    host: str
    port: int
    workspace: str
    key: str
    event: str
    concurrency: int
    warm_s: float
    seconds: float
    keyed: bool
    payload_bytes: int
    steps: int
    bell: str | None = None
    count_max: int | None = None


class Yield(msgspec.Struct, kw_only=True):
    """What came of it.

    Attributes:
        offered: submissions sent, the warm-up included.
        accepted: submissions acknowledged, the warm-up included.
        errors: failures by kind, the warm-up included.
        window_s: seconds that counted.
        window_begin_ms: when they began, by the host's clock.
        window_end_ms: when they ended.
        acknowledgement_ms: latencies that counted, one for each submission acknowledged in the window.
        submitted_at_ms: by event id, when its submission was sent; only with a bell.
        cpu_s: processor time of the load process.
    """

    offered: int = 0
    accepted: int = 0
    errors: dict[str, int] = {}
    window_s: float = 0.0
    window_begin_ms: float = 0.0
    window_end_ms: float = 0.0
    acknowledgement_ms: list[float] = []
    submitted_at_ms: dict[str, float] = {}
    cpu_s: float = 0.0


class _Bell(asyncio.DatagramProtocol):
    """Runs that are waited for, by the id in their payload."""

    def __init__(self) -> None:
        self.waiting: dict[str, asyncio.Future[None]] = {}

    def datagram_received(self, data: bytes, addr: object) -> None:
        future = self.waiting.pop(data[:BELL_BYTES_MAX].decode(errors="replace"), None)
        if future is not None and not future.done():
            future.set_result(None)


class Load:
    """One load, driven to its end by `run`."""

    def __init__(self, spec: Spec) -> None:
        assert 1 <= spec.concurrency <= CONCURRENCY_MAX, spec.concurrency
        self._spec = spec
        self._yield = Yield(acknowledgement_ms=[], submitted_at_ms={})
        self._errors: Counter[str] = Counter()
        self._bell = _Bell()
        self._path = f"/v1/workspaces/{spec.workspace}/events"
        self._filling = "x" * max(0, spec.payload_bytes - 64)
        self._marker = os.urandom(8).hex()
        self._begin_s = self._end_s = 0.0

    async def run(self) -> Yield:
        """Offer the load and return what came of it."""
        spec, result = self._spec, self._yield
        transport = await self._listen() if spec.bell else None
        self._begin_s = time.monotonic() + spec.warm_s
        self._end_s = self._begin_s + spec.seconds
        offset_s = time.time() - time.monotonic()
        try:
            await asyncio.gather(*(self._call(index) for index in range(spec.concurrency)))
        finally:
            if transport is not None:
                transport.close()
        result.window_s = min(self._end_s, time.monotonic()) - self._begin_s
        result.window_begin_ms = (self._begin_s + offset_s) * 1_000
        result.window_end_ms = result.window_begin_ms + result.window_s * 1_000
        result.errors = dict(self._errors)
        usage = resource.getrusage(resource.RUSAGE_SELF)
        result.cpu_s = usage.ru_utime + usage.ru_stime
        return result

    async def _listen(self) -> asyncio.BaseTransport:
        assert self._spec.bell is not None
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        sock.setblocking(False)
        sock.bind(self._spec.bell)
        transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(lambda: self._bell, sock=sock)
        return transport

    async def _call(self, caller: int) -> None:
        spec, connection, serial = self._spec, None, 0
        while time.monotonic() < self._end_s and self._errors.total() < ERRORS_MAX:
            if spec.count_max is not None and self._yield.offered >= spec.count_max:
                break
            serial += 1
            try:
                if connection is None:
                    connection = await Connection.open(spec.host, spec.port)
                await self._submit(connection, f"{self._marker}-{caller}-{serial}")
            except (OSError, WireError) as error:
                self._errors[type(error).__name__] += 1
                if connection is not None:
                    await connection.close()
                connection = None
        if connection is not None:
            await connection.close()

    async def _submit(self, connection: Connection, identifier: str) -> None:
        spec, result = self._spec, self._yield
        body = {"name": spec.event, "payload": {"id": identifier, "filling": self._filling, "steps": spec.steps}}
        headers = {"Authorization": f"Bearer {spec.key}", "Content-Type": "application/json"}
        if spec.keyed:
            headers["Idempotency-Key"] = identifier
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if spec.bell:
            self._bell.waiting[identifier] = ended
        result.offered += 1
        sent_s, sent_at_ms = time.monotonic(), time.time() * 1_000
        answer = await connection.request("POST", self._path, headers, msgspec.json.encode(body))
        now_s = time.monotonic()
        if answer.status != 202:
            self._errors[f"HTTP {answer.status}"] += 1
            self._bell.waiting.pop(identifier, None)
            return
        result.accepted += 1
        if self._begin_s <= now_s <= self._end_s:
            result.acknowledgement_ms.append((now_s - sent_s) * 1_000)
        if spec.bell:
            result.submitted_at_ms[json.loads(answer.body)["event"]] = sent_at_ms
            try:
                await asyncio.wait_for(ended, RUN_S_MAX)
            except TimeoutError:
                self._errors["run did not end in time"] += 1
                self._bell.waiting.pop(identifier, None)


def main() -> None:
    """Read a Spec, offer it, write the Yield."""
    spec = msgspec.json.decode(sys.stdin.buffer.read(), type=Spec)
    try:
        result = asyncio.run(Load(spec).run())
    finally:
        if spec.bell:
            Path(spec.bell).unlink(missing_ok=True)
    sys.stdout.buffer.write(msgspec.json.encode(result))


if __name__ == "__main__":
    main()
