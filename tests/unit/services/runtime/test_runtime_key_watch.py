"""The watch of keys in use: who is told, when, and what a look costs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import anyio
import pytest
from anyio.lowlevel import checkpoint
from transitions.world import World

from keyspace.clock import VirtualClock
from keyspace.records.tenancy import Role
from keyspace.store.embedded import memory_store
from keyspace.store.errors import StoreUnavailableError
from keyspace.transitions.keys import KeyName, create_key, revoke_key, revoked_keys
from keyspace.tx import Tx
from services.runtime.config import Config
from services.runtime.key_watch import KEY_LOOK_MS, KEYS_A_LOOK_MAX, REVOKED_MS_MAX, KeyWatch
from services.runtime.process import open_process

TURNS = 100
STEP_MS = 100


class Desk:
    """A world with keys, and a watch whose transactions are counted and can be made to fail."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.look_count = 0
        self.is_failing = False
        self.watch = KeyWatch(self.transact, clock=world.clock)

    async def transact(self, name: str, body: Callable[[Tx], Awaitable[list[KeyName]]]) -> list[KeyName]:
        self.look_count += 1
        if self.is_failing:
            raise StoreUnavailableError("the test says so")
        return await self.world.keyspace.transact(name, body)

    async def add_key(self) -> str:
        key_id = self.world.keyspace.mint()
        await self.world.run(
            "create_key",
            lambda tx: create_key(tx, "acme", key_id=key_id, secret=f"secret {key_id}", role=Role.CLIENT),
        )
        return key_id

    async def revoke(self, key_id: str) -> None:
        await self.world.run("revoke_key", lambda tx: revoke_key(tx, "acme", key_id))

    async def pass_time(self, delta_ms: int) -> None:
        await turn()
        self.world.clock.advance(delta_ms)
        await turn()


async def turn() -> None:
    for _ in range(TURNS):
        await anyio.lowlevel.checkpoint()


@pytest.fixture
async def desk(anyio_backend: str) -> AsyncIterator[Desk]:
    world = World(clock=VirtualClock())
    await world.begin()
    desk = Desk(world)
    async with anyio.create_task_group() as group:
        group.start_soon(desk.watch.run)
        yield desk
        group.cancel_scope.cancel()


@pytest.mark.case(74)
async def test_a_holder_is_told_once_within_the_stated_time(desk: Desk) -> None:
    """Case 074: revocation ends what stands open within a stated time, whenever between two looks it comes."""
    for delay_ms in (0, 1, KEY_LOOK_MS // 2, KEY_LOOK_MS - 1):
        told: list[str] = []
        revoked, standing = await desk.add_key(), await desk.add_key()
        with desk.watch.hold("acme", revoked) as first, desk.watch.hold("acme", standing) as second:
            first.when_revoked(lambda told=told: told.append("first"))  # type: ignore[misc]
            second.when_revoked(lambda told=told: told.append("second"))  # type: ignore[misc]
            await desk.pass_time(delay_ms)
            await desk.revoke(revoked)
            assert told == []
            await desk.pass_time(KEY_LOOK_MS)
            assert told == ["first"]
            await desk.pass_time(KEY_LOOK_MS)
            assert told == ["first"]
            assert (first.is_revoked, second.is_revoked) == (True, False)
    assert KEY_LOOK_MS < REVOKED_MS_MAX
    assert desk.watch.key_count == 0


async def test_a_key_that_is_not_there_does_not_stand(desk: Desk) -> None:
    there, elsewhere = await desk.add_key(), KeyName("nobody", "0" * 32)
    names = [KeyName("acme", there), elsewhere]
    assert await desk.world.run("revoked_keys", lambda tx: revoked_keys(tx, names)) == [elsewhere]


async def test_who_asks_late_is_told_at_once(desk: Desk) -> None:
    key_id = await desk.add_key()
    told: list[bool] = []
    with desk.watch.hold("acme", key_id) as held:
        await desk.revoke(key_id)
        await desk.pass_time(KEY_LOOK_MS)
        held.when_revoked(lambda: told.append(True))
    assert told == [True]


async def test_a_look_costs_by_the_key_and_nothing_when_nothing_is_held(desk: Desk) -> None:
    """Would catch a poll for each session: a thousand holders of one key are one transaction a period."""
    await desk.pass_time(10 * KEY_LOOK_MS)
    assert desk.look_count == 0
    key_id = await desk.add_key()
    told: list[int] = []
    holders = [desk.watch.hold("acme", key_id) for _ in range(1_000)]
    for number, held in enumerate(holders):
        held.when_revoked(lambda number=number: told.append(number))  # type: ignore[misc]
    assert desk.watch.key_count == 1
    for looks in (1, 2, 3):
        await desk.pass_time(KEY_LOOK_MS)
        assert desk.look_count == looks
    holders.pop().release()
    await desk.revoke(key_id)
    await desk.pass_time(KEY_LOOK_MS)
    assert told == list(range(999))
    before = desk.look_count
    await desk.pass_time(10 * KEY_LOOK_MS)
    assert desk.look_count == before


async def test_many_keys_are_read_in_pages(desk: Desk) -> None:
    """One key more than a transaction reads; the last of them is seen all the same."""
    last = await desk.add_key()
    for number in range(KEYS_A_LOOK_MAX):
        desk.watch.hold("acme", f"{number:032x}")
    held = desk.watch.hold("acme", last)
    await desk.revoke(last)
    await desk.watch.look()
    assert desk.look_count == 2
    assert held.is_revoked


async def test_a_store_that_does_not_answer_ends_nothing_and_the_next_look_sees(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    key_id = await desk.add_key()
    with desk.watch.hold("acme", key_id) as held:
        await desk.revoke(key_id)
        desk.is_failing = True
        await desk.pass_time(KEY_LOOK_MS)
        assert not held.is_revoked
        assert "the keys in use cannot be read" in caplog.text
        desk.is_failing = False
        await desk.pass_time(KEY_LOOK_MS)
        assert held.is_revoked


@pytest.mark.case(74)
async def test_an_open_process_looks_at_the_keys_in_use() -> None:
    """Case 074: would catch a process that holds keys and never looks, so that what stands open outlives its key for ever."""
    clock = VirtualClock()
    store = memory_store(clock=clock)
    async with open_process(Config(store="memory:"), "gateway", clock=clock, store=store) as process:
        held = process.keys_in_use.hold("acme", "12" * 16)
        for _ in range(2 * KEY_LOOK_MS // STEP_MS):
            # In small steps, since the process has other sleepers, which begin at instants of their own.
            clock.advance(STEP_MS)
            for _ in range(TURNS):
                await checkpoint()
        assert held.is_revoked, "a key that is not there does not stand"
    await store.close()
