"""What becomes of a session, and of its work, when the key it was opened with is revoked."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from dispatch_rig import Rig, hello, turns, virtual_world
from ryusen.protocol.closes import KEY_REVOKED, KEY_REVOKED_REASON
from transitions.world import World

from keyspace.lifecycle import AttemptState, Phase
from keyspace.records.tenancy import Role
from keyspace.transitions.keys import create_key, revoke_key
from services.dispatcher.options import DispatcherOptions
from services.runtime.key_watch import KEY_LOOK_MS, KeyWatch

OTHER = "22" * 16
OPTIONS = DispatcherOptions()


async def add_key(world: World) -> str:
    key_id = world.keyspace.mint()
    await world.run(
        "create_key", lambda tx: create_key(tx, "acme", key_id=key_id, secret=f"secret {key_id}", role=Role.WORKER)
    )
    return key_id


@asynccontextmanager
async def watched() -> AsyncIterator[tuple[World, Rig, KeyWatch]]:
    """A dispatcher beside a watch of keys, in virtual time."""
    world = virtual_world()
    await world.begin()
    async with Rig(world, options=OPTIONS).running() as rig:
        keys = KeyWatch(rig.keyspace.transact, clock=world.clock)
        rig.group.start_soon(keys.run)
        await turns()
        yield world, rig, keys


@pytest.mark.case(74)
async def test_what_a_revoked_session_held_is_handled_as_a_lost_sessions() -> None:
    """Case 074: nothing more is taken of it; what had started is Unknown when its lease has run out, and not before."""
    async with watched() as (world, rig, keys):
        key_id = await add_key(world)
        with keys.hold("acme", key_id) as key:
            worker = await rig.join(key=key)
            run = await world.start_run()
            await worker.declare(await worker.assigned_pass())
            assign = await worker.start()
            await world.run("revoke_key", lambda tx: revoke_key(tx, "acme", key_id))
            await rig.pass_time(KEY_LOOK_MS)
            assert await worker.parted() == (KEY_REVOKED, KEY_REVOKED_REASON)
        assert rig.metric("sessions_ended_total", reason=KEY_REVOKED_REASON) == 1
        worker.succeed(assign)
        await rig.until_settled()
        assert (await world.attempt(run.run_id, "s1", 1)).state is AttemptState.AUTHORIZED
        await rig.pass_time(OPTIONS.lease_ms + OPTIONS.skew_ms + 2 * OPTIONS.recovery_ms)
        assert (await world.attempt(run.run_id, "s1", 1)).state is AttemptState.UNKNOWN
        await world.check()


async def test_a_session_of_another_key_goes_on_and_takes_what_never_started() -> None:
    async with watched() as (world, rig, keys):
        key_id, other_id = await add_key(world), await add_key(world)
        with keys.hold("acme", key_id) as key, keys.hold("acme", other_id) as other_key:
            worker = await rig.join(key=key)
            run = await world.start_run()
            await worker.declare(await worker.assigned_pass())
            other = await rig.join(hello(instance=OTHER), key=other_key)
            await world.run("revoke_key", lambda tx: revoke_key(tx, "acme", key_id))
            await rig.pass_time(KEY_LOOK_MS)
            assert (await worker.parted())[0] == KEY_REVOKED
            other.succeed(await other.start())
            other.complete(await other.assigned_pass())
            await rig.until_settled()
            assert other.closed is None
        assert (await world.get_run(run.run_id)).phase is Phase.TERMINAL
        await world.check()


async def test_a_key_revoked_before_the_hello_ends_the_session_as_it_begins() -> None:
    """Would catch a session that stands because its key was found revoked while nobody listened."""
    async with watched() as (world, rig, keys):
        key_id = await add_key(world)
        with keys.hold("acme", key_id) as key:
            worker = rig.connect(key=key)
            await world.run("revoke_key", lambda tx: revoke_key(tx, "acme", key_id))
            await rig.pass_time(KEY_LOOK_MS)
            assert key.is_revoked
            worker.say(hello())
            assert await worker.parted() == (KEY_REVOKED, KEY_REVOKED_REASON)
