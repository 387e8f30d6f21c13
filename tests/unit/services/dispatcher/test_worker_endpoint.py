"""The endpoint on a real port: who may open a session, and the SDK's worker serving through one."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import msgspec
import pytest
from dispatch_rig import DEADLINE_S, Rig, hello
from ryusen import App, Context, Retry
from ryusen.protocol.closes import KEY_REVOKED
from ryusen.protocol.frames import FRAME_BYTES_MAX, Welcome, decode_server_frame, encode_frame
from ryusen.worker.shell import Worker, WorkerOptions
from starlette.applications import Starlette
from transitions.world import World
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus

from keyspace.clock import SystemClock
from keyspace.layout import RUN
from keyspace.leaf import Key
from keyspace.lifecycle import Phase
from keyspace.records.run import RunRecord
from keyspace.records.tenancy import Role
from keyspace.store.api import Watch
from keyspace.transitions.keys import create_key, revoke_key
from keyspace.tx import Tx
from services.dispatcher.endpoint import WORKER_PATH, worker_route
from services.runtime.http import bind, serve_http
from services.runtime.key_watch import REVOKED_MS_MAX, KeyWatch


async def add_key(world: World, role: Role, secret: str) -> str:
    key_id = world.keyspace.mint()
    await world.run("create_key", lambda tx: create_key(tx, "acme", key_id=key_id, secret=secret, role=role))
    return key_id


@pytest.fixture
async def real_world(anyio_backend: str) -> World:
    """A workspace in real time."""
    world = World(clock=SystemClock())  # type: ignore[arg-type]
    await world.begin()
    return world


@asynccontextmanager
async def served(world: World) -> AsyncIterator[tuple[Rig, int]]:
    """A dispatcher on a port of this machine."""
    sock = bind("127.0.0.1", 0, setting="none")
    port = sock.getsockname()[1]
    stop = anyio.Event()
    async with Rig(world).running() as rig, anyio.create_task_group() as group:
        keys_in_use = KeyWatch(rig.keyspace.transact, clock=world.clock)

        async def until() -> None:
            await stop.wait()
            await rig.dispatcher.drain(1_000)

        async def serve() -> None:
            app = Starlette(routes=[worker_route(rig.dispatcher, rig.keyspace, keys_in_use)])
            await serve_http(app, sock, until=until, websocket_bytes_max=FRAME_BYTES_MAX, drain_ms=2_000)

        async with anyio.create_task_group() as watching:
            watching.start_soon(keys_in_use.run)
            group.start_soon(serve)
            yield rig, port
            watching.cancel_scope.cancel()
        stop.set()


async def until_ended(world: World, run_id: str) -> None:
    """Wait for the run's end by watching its record."""
    key = RUN.at("acme", run_id)
    while True:
        run, watch = await world.run("watch_run", lambda tx: read_and_watch(tx, key))
        if run is not None and run.phase is Phase.TERMINAL:
            watch.cancel()
            return
        await watch.wait()


async def read_and_watch(tx: Tx, key: Key[RunRecord]) -> tuple[RunRecord | None, Watch]:
    return await tx.load(key), tx.watch(key)


async def open_session(port: int, authorization: str | None) -> ClientConnection:
    headers = {} if authorization is None else {"Authorization": authorization}
    with anyio.fail_after(DEADLINE_S):
        return await connect(f"ws://127.0.0.1:{port}{WORKER_PATH}", additional_headers=headers, compression=None)


@pytest.mark.case(77)
async def test_the_upgrade_is_refused_by_status_before_anything_is_read(real_world: World) -> None:
    """ARCHITECTURE 6: credentials are a definitive refusal, told by the status of the upgrade with a stable code."""
    for role in (Role.CLIENT, Role.READER, Role.WORKER, Role.ADMIN):
        await add_key(real_world, role, f"secret-{role.value}")
    revoked = await add_key(real_world, Role.WORKER, "secret-revoked")
    await real_world.run("revoke_key", lambda tx: revoke_key(tx, "acme", revoked))
    expected = {
        None: 401,
        "Bearer": 401,
        "Bearer ": 401,
        "Basic c2VjcmV0": 401,
        "Bearer unknown": 401,
        "Bearer " + "x" * 5_000: 401,
        "Bearer secret-revoked": 401,
        "Bearer secret-client": 403,
        "Bearer secret-reader": 403,
    }
    async with served(real_world) as (_, port):
        for authorization, status in expected.items():
            with pytest.raises(InvalidStatus) as caught:
                await open_session(port, authorization)
            response = caught.value.response
            assert response.status_code == status, authorization
            code = msgspec.json.decode(response.body)["code"]
            assert code == {401: "unauthenticated", 403: "forbidden"}[status]
        for role in ("worker", "admin"):
            connection = await open_session(port, f"Bearer secret-{role}")
            await connection.close()


async def test_the_sdk_worker_serves_a_run_to_its_end(real_world: World, caplog: pytest.LogCaptureFixture) -> None:
    """ARCHITECTURE 6 end to end over a socket: three steps, a retry, a blocking callback, then a graceful stop."""
    caplog.set_level(logging.ERROR)
    app = App("shop")
    seen: list[str] = []

    @app.function(on="order.placed")
    async def fulfil(ctx: Context, order: int) -> list[str]:
        first = await ctx.step.run("reserve", reserve, order)
        second = await ctx.step.run("charge", charge, order, retry=Retry(attempts=3, initial="50ms"))
        return [first, second]

    def reserve(order: int) -> str:
        return f"reserved {order}"

    async def charge(order: int) -> str:
        seen.append("charge")
        if len(seen) < 3:
            raise ValueError("declined")
        return f"charged {order}"

    await add_key(real_world, Role.WORKER, "secret")
    run = await real_world.start_run(payload=b"7")
    async with served(real_world) as (rig, port):
        worker = Worker(app, WorkerOptions(url=f"ws://127.0.0.1:{port}", key="secret", capacity=2))
        async with anyio.create_task_group() as group:
            group.start_soon(worker.run)
            with anyio.fail_after(20):
                await until_ended(real_world, run.run_id)
            worker.stop()
        with anyio.fail_after(DEADLINE_S):
            await rig.dispatcher._until_parted()
        assert rig.metric("sessions_ended_total", reason="bye") + rig.metric(
            "sessions_ended_total", reason="connection_lost"
        )
    ended = await real_world.get_run(run.run_id)
    assert ended.output_bytes == len(b'["reserved 7","charged 7"]')
    assert len(seen) == 3
    assert caplog.records == []
    await real_world.check()


@pytest.mark.case(74)
async def test_a_standing_session_ends_with_its_key_and_no_other_one_does(real_world: World) -> None:
    """Case 074, "revoked keys on open sessions": over a socket, with a close code and a reason, within the stated time."""
    revoked = await add_key(real_world, Role.WORKER, "secret-1")
    await add_key(real_world, Role.WORKER, "secret-2")
    async with served(real_world) as (_, port):
        first = await open_session(port, "Bearer secret-1")
        other = await open_session(port, "Bearer secret-2")
        for number, connection in enumerate((first, other)):
            await connection.send(encode_frame(hello(instance=f"{number}1" * 16)).decode())
            assert isinstance(decode_server_frame(await connection.recv()), Welcome)
        await real_world.run("revoke_key", lambda tx: revoke_key(tx, "acme", revoked))
        with anyio.fail_after(REVOKED_MS_MAX / 1_000):
            await first.wait_closed()
        assert (first.close_code, first.close_reason) == (KEY_REVOKED, "key_revoked")
        assert other.close_code is None
        await other.close()
