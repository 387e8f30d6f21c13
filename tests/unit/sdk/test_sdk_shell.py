"""The worker's shell against a real WebSocket server: connecting again, blocking user code, leaving."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
from ryusen import App, ConfigurationError, Context
from ryusen.protocol.closes import KEY_REVOKED, KEY_REVOKED_REASON
from ryusen.protocol.frames import Bye, Complete, Declare, Drain, Failed, GiveBack, HeldWork, Hello, Settled, Succeeded
from ryusen.worker import shell
from ryusen.worker.shell import EXIT_STOPPED, Worker, WorkerOptions, worker_url
from ryusen.worker.work import EXIT_REFUSED, EXIT_UNFINISHED
from sdk_peer import DEADLINE_S, Peer, assignment
from sdk_waiting import until
from websockets.asyncio.server import ServerConnection

app = App("orders")
gate = threading.Event()


@app.function
async def quick(ctx: Context) -> str:
    return await ctx.step.run("s", answer)


@app.function
async def slow(ctx: Context) -> str:
    return await ctx.step.run("s", wait_for_gate)


@app.function
async def blocking(ctx: Context) -> str:
    return await ctx.step.run("s", block_the_loop)


@app.function
async def spinning(ctx: Context) -> str:
    return await ctx.step.run("s", spin_the_loop)


@app.function
async def stray(ctx: Context) -> str:
    return await ctx.step.run("s", exit_in_a_task)


async def answer() -> str:
    return "done"


def wait_for_gate() -> str:
    assert gate.wait(DEADLINE_S)
    return "late"


async def block_the_loop() -> str:
    time.sleep(0.6)  # noqa: ASYNC251 - the fault under test
    return "blocked"


async def spin_the_loop() -> str:
    end = time.monotonic() + 0.6
    while time.monotonic() < end:
        pass
    return "spun"


async def exit_in_a_task() -> str:
    async def fatal() -> None:
        raise SystemExit(7)

    task = asyncio.get_running_loop().create_task(fatal())
    with contextlib.suppress(SystemExit):
        await task
    return "survived"


class Delays(random.Random):
    """Notes the backoff's bounds and waits no time worth mentioning."""

    def __init__(self) -> None:
        super().__init__()
        self.longest: list[float] = []

    def uniform(self, a: float, b: float) -> float:
        self.longest.append(b)
        return 0.001


class Running:
    """A worker that runs beside the test."""

    def __init__(self, url: str, **options: Any) -> None:
        self.delays = Delays()
        self.worker = Worker(app, WorkerOptions(url=url, key="secret", **options), jitter=self.delays)
        self.task = asyncio.create_task(self.worker.run())

    async def code(self) -> int:
        return await asyncio.wait_for(asyncio.shield(self.task), DEADLINE_S)


@pytest.fixture(autouse=True)
def closed_gate() -> None:
    gate.clear()


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    async with Peer() as opened:
        yield opened


@contextlib.asynccontextmanager
async def working(peer: Peer, **options: Any) -> AsyncIterator[Running]:
    running = Running(peer.url, **options)
    try:
        yield running
    finally:
        gate.set()
        if not running.task.done():
            running.worker.stop()
            running.worker.stop()
        await running.code()


async def test_work_is_done_over_a_real_connection(peer: Peer) -> None:
    async with working(peer) as running:
        session = await peer.session()
        hello = await session.welcome()
        assert hello.application == "orders"
        assert peer.authorization == ["Bearer secret"]
        await session.send(assignment("q1", "discovery", "quick"))
        ending = (await session.answer("q1")).ending
        assert isinstance(ending, Declare)
        assert ending.steps[0].id == "s"
        await session.start("q2", "s", "quick")
        assert isinstance((await session.result("q2")).outcome, Succeeded)
        assert running.worker.is_connected
        running.worker.stop()
        await session.expect(Bye)
        assert await running.code() == 0


@pytest.mark.case(71)
@pytest.mark.parametrize(
    "close_code", [1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014, 3000, 4999]
)
async def test_every_close_code_leads_to_another_session(peer: Peer, close_code: int) -> None:
    """Case 071: only the user's own stop or a definitive refusal ends the worker."""
    async with working(peer):
        session = await peer.session()
        await session.welcome()
        await session.connection.close(close_code, "test")
        await (await peer.session()).welcome()


@pytest.mark.case(71)
async def test_resets_and_refused_upgrades_lead_to_another_session(peer: Peer) -> None:
    """Case 071: TCP reset, 502 and friends on the upgrade."""
    peer.refusals = [502, 503, 500, 429, 404]
    async with working(peer) as running:
        session = await peer.session()
        assert peer.upgrades == 6
        await session.welcome()
        raw: socket.socket = session.connection.transport.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        session.connection.transport.abort()
        await (await peer.session()).welcome()
        assert not running.task.done()


@pytest.mark.case(71)
async def test_nobody_listening_is_no_reason_to_end() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        running = Running(f"ws://127.0.0.1:{closed.getsockname()[1]}")
        await until(lambda: len(running.delays.longest) >= 3)
        assert not running.worker.is_connected
        running.worker.stop()
        assert await running.code() == 0


@pytest.mark.case(71)
@pytest.mark.parametrize("status", [401, 403])
async def test_a_refused_key_ends_the_worker_with_a_message(
    peer: Peer, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Case 071: a definitive refusal ends the process, with a message and a non-zero code."""
    peer.refusals = [status]
    assert await Running(peer.url).code() == EXIT_REFUSED
    assert f"the service refused the key: HTTP {status}" in caplog.text
    assert peer.upgrades == 1


@pytest.mark.case(74)
async def test_a_session_ended_for_its_key_ends_the_worker_instead_of_being_opened_again(
    peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    """Case 074, "revocation ends sessions": the worker says why and stops, also while a callback runs."""
    running = Running(peer.url)
    session = await peer.session()
    await session.welcome()
    await session.start("q1", "s", "slow")
    await session.connection.close(KEY_REVOKED, KEY_REVOKED_REASON)
    try:
        assert await running.code() == EXIT_REFUSED
    finally:
        gate.set()
    assert "the worker ends: the service ended the session: key_revoked" in caplog.text
    assert peer.upgrades == 1


@pytest.mark.case(71)
@pytest.mark.parametrize("moment", ["callback", "result"])
async def test_a_lost_connection_loses_neither_the_callback_nor_its_result(peer: Peer, moment: str) -> None:
    """Case 071: during a callback, and between result and acknowledgement."""
    async with working(peer):
        session = await peer.session()
        await session.welcome()
        await session.start("q1", "s", "slow")
        if moment == "result":
            gate.set()
            await session.frames.get()
        session.connection.transport.abort()
        second = await peer.session()
        hello = await second.welcome()
        gate.set()
        (held,) = hello.held
        assert isinstance(held, HeldWork)
        assert held.request == "q1"
        assert held.state == ("running" if moment == "callback" else "finished")
        assert isinstance((await second.result("q1")).outcome, Succeeded)


@pytest.mark.case(53)
@pytest.mark.parametrize(
    "garbage",
    ["{", '{"frame":"unknown"}', '{"frame":"start"}', "[" * 100_000, '{"frame":"start","request":7}', "null"],
)
async def test_an_unreadable_frame_costs_its_session_at_a_falling_rate(peer: Peer, garbage: str) -> None:
    """Case 053 (d): a frame that cannot be decoded comes again and again; the worker neither dies nor storms."""

    async def bad(connection: ServerConnection) -> None:
        await connection.recv()
        await connection.send(garbage)
        await connection.wait_closed()

    peer.on_open = bad
    async with working(peer) as running:
        await until(lambda: len(running.delays.longest) >= 9)
        assert running.delays.longest[:9] == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 15.0, 15.0]
        peer.on_open = None
        await (await peer.session()).welcome()


@pytest.mark.case(11)
@pytest.mark.parametrize("function", ["blocking", "spinning"])
async def test_blocking_user_code_loses_no_lease_and_is_named(
    peer: Peer, function: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Case 011: three lease lengths of time.sleep or of computing on the user's loop; neighbours' leases go on too."""
    monkeypatch.setattr(shell, "BLOCKED_S", 0.05)
    async with working(peer):
        session = await peer.session()
        await session.welcome()
        await session.start("q0", "s", "slow")
        await session.start("q1", "s", function)
        before = len(session.renewals)
        result = await session.result("q1")
        assert isinstance(result.outcome, Succeeded)
        during = session.renewals[before:]
        assert len(during) >= 3, "15 are due in these 600 ms; fewer than one for each lease would have lost it"
        assert all(set(requests) == {"q0", "q1"} for requests in during)
        assert f"step s of function {function}" in caplog.text
        assert "test_sdk_shell.py" in caplog.text
        gate.set()
        assert isinstance((await session.result("q0")).outcome, Succeeded)


@pytest.mark.case(68)
async def test_a_task_of_user_code_that_exits_takes_nobody_along(peer: Peer, caplog: pytest.LogCaptureFixture) -> None:
    """Case 068: asyncio lets SystemExit of a task end the loop; the worker's goes on."""
    async with working(peer):
        session = await peer.session()
        await session.welcome()
        await session.start("q1", "s", "stray")
        assert isinstance((await session.result("q1")).outcome, Succeeded)
        assert "SystemExit" in caplog.text
        await session.send(assignment("q2", "discovery", "quick"))
        await session.answer("q2")


async def test_an_attempt_beyond_its_timeout_is_answered_while_its_thread_goes_on(peer: Peer) -> None:
    """FILLED-IN 11, "Attempt timeout"."""
    async with working(peer, capacity=1):
        session = await peer.session()
        await session.welcome()
        await session.start("q1", "s", "slow", timeout_ms=50)
        outcome = (await session.result("q1")).outcome
        assert isinstance(outcome, Failed)
        assert outcome.failure.category == "sdk.timeout"
        await session.send(assignment("q2", "callback", "quick", step="s"))
        await session.send(assignment("q3", "discovery", "quick"))
        await session.answer("q3")
        assert session.frames.empty(), "no slot, so no ready"
        gate.set()
        assert (await session.frames.get()).__class__.__name__ == "Ready"


async def test_a_leaving_dispatcher_is_left_for_another(peer: Peer) -> None:
    async with working(peer):
        session = await peer.session()
        await session.welcome()
        await session.send(Drain())
        await (await peer.session()).welcome()


async def test_a_silent_dispatcher_is_left_for_another(peer: Peer) -> None:
    async def mute(connection: ServerConnection) -> None:
        await connection.send(
            '{"frame":"welcome","session":"s","protocol":1,"workspace":"w","lease_ms":200,"renew_every_ms":40,'
            '"silence_ms":120,"value_bytes_max":4096,"clock_ms":0}'
        )
        with anyio.move_on_after(DEADLINE_S):
            await connection.wait_closed()

    peer.on_open = mute
    async with working(peer) as running:
        await until(lambda: running.delays.longest)
        peer.on_open = None
        await (await peer.session()).welcome()


async def test_a_peer_that_hangs_is_left_without_its_goodbye(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Would catch a worker that waits for a closing handshake while its leases run out."""
    monkeypatch.setattr(shell, "CLOSE_S", 10 * DEADLINE_S)
    async with working(peer) as running:
        hanging = await peer.session()
        await hanging.welcome(silence_ms=120)
        hanging.connection.transport.pause_reading()
        try:
            await (await peer.session()).welcome()
            await until(lambda: running.worker.is_connected)
        finally:
            hanging.connection.transport.resume_reading()


async def test_leaving_finishes_what_runs_and_gives_back_the_rest(peer: Peer) -> None:
    async with working(peer, capacity=1) as running:
        session = await peer.session()
        await session.welcome()
        await session.start("q1", "s", "slow")
        await session.send(assignment("q2", "callback", "quick", step="s"))
        await session.send(assignment("q3", "discovery", "quick"))
        await session.answer("q3")
        running.worker.stop()
        assert (await session.expect(GiveBack)).request == "q2"
        assert session.drain_count == 1, "said before anything goes back, so that none of it comes again"
        gate.set()
        await session.result("q1")
        await session.expect(Bye)
        assert await running.code() == 0


async def test_a_grace_that_ends_first_ends_the_worker(peer: Peer) -> None:
    async with working(peer, grace_ms=50) as running:
        session = await peer.session()
        await session.welcome()
        await session.start("q1", "s", "slow")
        running.worker.stop()
        assert await running.code() == EXIT_UNFINISHED


async def test_a_second_stop_ends_it_at_once(peer: Peer) -> None:
    async with working(peer) as running:
        session = await peer.session()
        await session.welcome()
        await session.start("q1", "s", "slow")
        running.worker.stop()
        running.worker.stop()
        assert await running.code() == EXIT_STOPPED


async def test_a_stop_before_the_first_connection_ends_it(peer: Peer) -> None:
    running = Running(peer.url)
    running.worker.stop()
    assert await running.code() == 0


async def test_a_refused_declaration_reaches_user_code_over_the_wire(
    peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    async with working(peer):
        session = await peer.session()
        await session.welcome()
        await session.send(assignment("q1", "discovery", "quick"))
        first = await session.frames.get()
        assert not isinstance(first, Hello)
        await session.send(Settled(request="q1", verdict="refused", code="too_many_steps", field="steps", limit=3))
        ending = (await session.answer("q1")).ending
        assert not isinstance(ending, Declare | Complete)
        assert ending.failure.category == "sdk.declaration_refused"


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("ws://h:1", "ws://h:1/v1/worker"),
        ("http://h:1/", "ws://h:1/v1/worker"),
        ("https://h", "wss://h/v1/worker"),
        ("wss://h/own/path", "wss://h/own/path"),
    ],
)
def test_addresses_are_completed(url: str, address: str) -> None:
    assert worker_url(url) == address


@pytest.mark.parametrize(
    "options",
    [
        {"url": "h:1"},
        {"url": "ftp://h"},
        {"url": "ws://"},
        {"key": ""},
        {"key": "a\nb"},
        {"key": "é"},
        {"capacity": 0},
        {"capacity": 201},
        {"undo_capacity": -1},
        {"undo_capacity": 201},
        {"grace_ms": -1},
    ],
)
def test_options_out_of_bounds_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        WorkerOptions(**{"url": "ws://h:1", "key": "k", **options})
