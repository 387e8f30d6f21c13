"""A gateway process from start to end: signals, drain, exit codes, metrics (HOUSE 8, 16)."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import httpx
import pytest
from anyio.abc import SocketStream
from eventually import eventually

from topology.ports import free_ports
from topology.process import Command, Process, clean_environment

SYSTEM_KEY = "the-operator-s-own-key-of-tests"
STOP_S = 15.0
BODY = b'{"name":"order.placed","payload":{"n":1}}'


class Server:
    """A gateway process and how to reach it."""

    def __init__(self, process: Process, port: int, metrics_port: int) -> None:
        self.process = process
        self.port = port
        self.metrics_port = metrics_port
        self.http = httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", headers={"Authorization": f"Bearer {SYSTEM_KEY}"}, trust_env=False
        )

    async def begin_submission(self) -> SocketStream:
        """Send the head of a submission and half its body; return the connection."""
        stream = await anyio.connect_tcp("127.0.0.1", self.port)
        head = (
            "POST /v1/workspaces/acme/events HTTP/1.1\r\nhost: gateway\r\n"
            f"authorization: Bearer {SYSTEM_KEY}\r\ncontent-length: {len(BODY)}\r\n\r\n"
        )
        await stream.send(head.encode() + BODY[:10])

        async def is_being_read() -> bool:
            # The key is looked up before the body is read, and its look-up is counted.
            return b'attempts_total{transition="create_workspace"}' in (await self.metrics())

        await eventually(is_being_read, "the gateway reads")
        return stream

    async def metrics(self) -> bytes:
        async with httpx.AsyncClient(trust_env=False) as http:
            return (await http.get(f"http://127.0.0.1:{self.metrics_port}/metrics")).content


@asynccontextmanager
async def serving(folder: Path, settings: Mapping[str, str] | None = None) -> AsyncIterator[Server]:
    port, metrics_port = free_ports(2)
    environment = {
        "RYUSEN_STORE": f"embedded:{folder / 'store'}",
        "RYUSEN_GATEWAY_PORT": str(port),
        "RYUSEN_METRICS_PORT": str(metrics_port),
        "RYUSEN_SYSTEM_KEY": SYSTEM_KEY,
        "RYUSEN_LOG_FORMAT": "json",
    } | dict(settings or {})
    process = await Process.start(
        "gateway",
        Command(
            arguments=(sys.executable, "-m", "services.runtime.cli", "gateway"),
            environment=clean_environment(environment),
            folder=folder,
            log=folder / "gateway.log",
        ),
    )
    server = Server(process, port, metrics_port)
    try:

        async def is_ready() -> bool:
            assert process.is_alive, process.log_tail()
            try:
                return (await server.http.get("/readyz")).is_success
            except httpx.TransportError:
                return False

        await eventually(is_ready, "the gateway is ready")
        (await server.http.post("/v1/workspaces", json={"name": "acme"})).raise_for_status()
        yield server
    finally:
        await server.http.aclose()
        await process.finish()


async def answer_of(stream: SocketStream) -> bytes:
    parts = []
    with anyio.fail_after(STOP_S):
        while True:
            try:
                parts.append(await stream.receive())
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                return b"".join(parts)


async def test_a_submission_under_way_is_finished_when_the_process_is_told_to_stop(tmp_path: Path) -> None:
    """SIGTERM: stop accepting, drain, exit 0; what was begun is answered and durable."""
    async with serving(tmp_path) as server:
        async with await server.begin_submission() as stream:
            server.process.signal(signal.SIGTERM)

            async def is_closed() -> bool:
                try:
                    await (await anyio.connect_tcp("127.0.0.1", server.port)).aclose()
                except OSError:
                    return True
                return False

            await eventually(is_closed, "no new connection is taken")
            await stream.send(BODY[10:])
            assert b"202 Accepted" in await answer_of(stream)
        assert await server.process.wait(STOP_S) == 0
    async with serving(tmp_path) as server:
        events = (await server.http.get("/v1/workspaces/acme/events")).json()["items"]
        assert [event["name"] for event in events] == ["order.placed"]
        lines = [json.loads(line) for line in server.process.command.log.read_text().splitlines()]
        assert [line["message"] for line in lines if line["message"] in ("draining", "stopped")] == [
            "draining",
            "stopped",
        ]


async def test_a_second_signal_stops_at_once(tmp_path: Path) -> None:
    """The operator who cannot wait says so twice; the exit code says that it was not orderly."""
    async with serving(tmp_path, {"RYUSEN_DRAIN_MS": "600000"}) as server, await server.begin_submission():
        server.process.signal(signal.SIGTERM)

        async def is_draining() -> bool:
            return "draining" in server.process.log_tail()

        await eventually(is_draining, "it drains")
        server.process.signal(signal.SIGTERM)
        assert await server.process.wait(STOP_S) == 1
        assert "Traceback" not in server.process.log_tail()


async def test_a_drain_ends_at_its_deadline(tmp_path: Path) -> None:
    """A caller that never finishes does not keep a process for ever."""
    async with serving(tmp_path, {"RYUSEN_DRAIN_MS": "300"}) as server, await server.begin_submission():
        server.process.signal(signal.SIGTERM)
        assert await server.process.wait(STOP_S) == 1
        assert "Traceback" not in server.process.log_tail()


async def test_metrics_and_probes_have_a_port_of_their_own(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        assert (await server.http.post("/v1/workspaces/acme/events", content=BODY)).status_code == 202
        text = (await server.metrics()).decode()
        assert 'ryusen_transition_commits_total{transition="accept_event"} 1.0' in text
        assert "ryusen_process_ready 1.0" in text
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.metrics_port}", trust_env=False) as http:
            assert (await http.get("/readyz")).json() == {"ready": True, "faults": []}
            assert (await http.get("/healthz")).is_success


@pytest.mark.parametrize(
    ("settings", "code", "said"),
    [
        ({"RYUSEN_LEASE_MS": "1"}, 2, "lease_ms (variable RYUSEN_LEASE_MS): 1 is out of range"),
        ({"RYUSEN_STORE": "nothing:x"}, 3, "not an address of a store"),
        ({"RYUSEN_STORE": "fdb:/nonexistent/fdb.cluster"}, 3, "no such cluster file"),
        ({"RYUSEN_GATEWAY_HOST": "203.0.113.1"}, 3, "set gateway_port"),
    ],
)
async def test_a_process_that_cannot_serve_says_why_in_one_line(
    tmp_path: Path, settings: dict[str, str], code: int, said: str
) -> None:
    """HOUSE 16: 2 usage, 3 not ready; never a traceback for what an operator can mend."""
    environment = {"RYUSEN_STORE": f"embedded:{tmp_path / 'store'}"} | settings
    with anyio.fail_after(STOP_S):
        done = await anyio.run_process(
            [sys.executable, "-m", "services.runtime.cli", "gateway"],
            env=clean_environment(environment), cwd=tmp_path, check=False,
        )  # fmt: skip
    assert done.returncode == code
    refusals = [line for line in done.stderr.decode().splitlines() if line.startswith("ryusen:")]
    assert said in refusals[0]
    assert "Traceback" not in done.stderr.decode()
