"""Whether the check of a keyspace sees damage: every key removed or swapped for another's value, one at a time."""

from __future__ import annotations

import pytest
from blocker_verbs import be_blocked, block, join, rediscover, run_probe_lane
from test_releases import release
from world import LEASE_MS, World, work_of

from keyspace.fsck import check_keyspace
from keyspace.layout import identify
from keyspace.lifecycle import Phase

UNSEEN_WHEN_REMOVED = {
    "BELL": "a lost bell costs a wake-up, which the rescan makes good",
    "BELL_APP": "the same",
    "CLAIM": "it lies under the digest of a key that only its caller knows",
    "DUE": "a pointer is owed only while its lane holds work",
    "DUE_APP": "the same",
    "INSTANCE": "an instance that said bye",
    "RELEASE_HEAD": "it goes with the release that it names, and older ones do not take its place",
    "STALE": "a diagnostic",
}


async def busy_world() -> World:
    """A keyspace with a run in every situation there is."""
    world = World()
    await world.begin({"fulfil": ["order.placed"]}, timeout_ms=86_400_000)
    await world.hello()
    # Completed, with a value, a failed attempt and a stale result.
    await world.start_run()
    first = await world.start_step()
    await world.fail_attempt(first)
    world.clock.advance(1_000)
    second = await world.start_attempt()
    await world.succeed(second)
    await world.succeed(second, b"stale")
    await world.complete(await world.lease_pass())
    # Compensating.
    await world.start_run()
    await world.run_step("a")
    await world.run_step("b")
    await world.fail(await world.lease_pass())
    # Unknown.
    await world.start_run()
    lost = await world.start_step()
    world.clock.advance(LEASE_MS)
    await world.lose(lost.item_id)
    # Backing off, running, leased, and with its pass ready; an event not yet expanded.
    await world.start_run()
    await world.fail_attempt(await world.start_step(), retry_after_ms=10_000_000)
    await world.start_run()
    await world.start_step()
    await world.start_run()
    await world.declare(await world.lease_pass(), "s1")
    work_of(await world.lease())
    # Blocked: with a probe, with its next pass, and by the code of a release while the next one is to wake it.
    await be_blocked(world)
    asked = await be_blocked(world)
    await rediscover(world, asked.run_id)
    await join(world, await release(world, "v1"), instance="22" * 16)
    await run_probe_lane(world)
    for _ in range(2):
        await block(world, await world.lease_pass(instance="22" * 16))
    await release(world, "v2")
    unannounced = await world.start_run()
    await world.hello()
    await block(world, await world.lease_pass())
    assert (await world.get_run(unannounced.run_id)).phase is Phase.DEFINITION_BLOCKED
    # Repeatable: lost and waiting for its next delivery.
    await world.start_run()
    repeatable = await world.start_step(repeatable=True)
    world.clock.advance(LEASE_MS)
    await world.lose(repeatable.item_id)
    await world.start_run()
    await world.submit(key="k")
    # Invocations: one that has met nothing, one that has started its run, one under way.
    await world.invoke("gone")
    await world.invoke("fulfil", key="k")
    await world.expand()
    await world.submit(key="l")
    await world.invoke("fulfil")
    await world.check()
    return world


async def test_every_key_that_is_owed_is_missed() -> None:
    """C2 to C12: whatever key is lost, the check says so, or the table above says why it need not."""
    world = await busy_world()
    stored = await world.dump()
    unseen: dict[str, int] = {}
    raw_prefix = world.keyspace.prefix
    for key, value in stored.items():
        transaction = world.store.begin()
        transaction.clear(raw_prefix + key)
        await transaction.commit()
        report = await check_keyspace(world.keyspace)
        if report.is_clean:
            found = identify(key)
            assert found is not None
            unseen[found[0].name] = unseen.get(found[0].name, 0) + 1
        transaction = world.store.begin()
        transaction.set(raw_prefix + key, value)
        await transaction.commit()
    assert set(unseen) == set(UNSEEN_WHEN_REMOVED), unseen
    await world.check()


@pytest.mark.parametrize("damage", [b"", b"\x01", b"\x7f[]", b"\x01[]", b"\x01{}"], ids=repr)
async def test_every_value_that_is_none_is_reported(damage: bytes) -> None:
    """Would catch a record that is damaged and read as something."""
    world = await busy_world()
    stored = await world.dump()
    for key, value in stored.items():
        found = identify(key)
        assert found is not None
        if found[0].codec.label in ("bytes", "empty", "text"):
            continue

        transaction = world.store.begin()
        transaction.set(world.keyspace.prefix + key, damage)
        await transaction.commit()
        report = await check_keyspace(world.keyspace)
        assert not report.is_clean, found
        transaction = world.store.begin()
        transaction.set(world.keyspace.prefix + key, value)
        await transaction.commit()
    await world.check()


async def test_a_key_of_nobody_is_reported(world: World) -> None:
    """A foreign key in the deployment's range is evidence of a shared prefix or of corruption."""
    for key in (b"\x02acme\x00\x15\x63", b"\x00", b"\x15\x40"):
        transaction = world.store.begin()
        transaction.set(world.keyspace.prefix + key, b"x")
        await transaction.commit()
        report = await check_keyspace(world.keyspace)
        assert not report.is_clean, key
        transaction = world.store.begin()
        transaction.clear(world.keyspace.prefix + key)
        await transaction.commit()
    await world.check()
