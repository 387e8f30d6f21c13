"""Whether the check of a keyspace sees damage: every key removed or swapped for another's value, one at a time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from blocker_verbs import be_blocked, block, join, rediscover, run_probe_lane
from child_verbs import child_of, family, invoke, pass_on_all, settle_work
from operator_verbs import cancel
from server_steps import emit, sleep
from test_releases import release
from test_waits import waiting
from world import LEASE_MS, World, work_of

from keyspace.fsck import check_keyspace
from keyspace.layout import ITEM, RUN, RUN_INPUT, STEP, identify
from keyspace.leaf import Key
from keyspace.lifecycle import Execution, Phase, Recovery
from keyspace.queue import items
from keyspace.records.run import ParentRecord, RunRecord
from keyspace.transitions.child_work import enqueue_stop
from keyspace.tx import Tx

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
    # Asleep; gone on behind an emission.
    await world.start_run()
    await sleep(world, await world.lease_pass(), delay_ms=10_000_000)
    await world.start_run()
    await emit(world, await world.lease_pass())
    await world.lease_pass()
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
    # Waiting for an event, of one pair and of none.
    for match in ({"order": "7"}, {}):
        await waiting(world, match=match)
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


async def families() -> World:
    """A keyspace with parents and children in every situation that they can be in together."""
    world = World()
    await world.begin({"fulfil": ["order.placed"], "pick": []})
    await world.hello()

    async def parent() -> str:
        run = await world.start_run()
        await invoke(world, await world.lease_pass())
        return run.run_id

    # Settled by a success and by a failure.
    for ending in (world.complete, world.fail):
        await parent()
        await ending(await world.lease_pass(function="pick"))
        await pass_on_all(world)
        await world.complete(await world.lease_pass())
    # Stopped, its stop on the way to a child that is being undone; its own child has ended unheard; the child just created.
    stopped = await parent()
    passed = await world.lease_pass(function="pick")
    await world.declare(passed, "a")
    work = work_of(await world.lease(function="pick"))
    await world.authorize(work)
    await cancel(world, stopped)
    await parent()
    await world.complete(await world.lease_pass(function="pick"))
    await parent()
    await world.check()
    return world


worlds = pytest.mark.parametrize("world_of", [busy_world, families], ids=["runs", "families"])


@worlds
async def test_every_key_that_is_owed_is_missed(world_of: Callable[[], Awaitable[World]]) -> None:
    """C2 to C12: whatever key is lost, the check says so, or the table above says why it need not."""
    world = await world_of()
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
    assert set(unseen) <= set(UNSEEN_WHEN_REMOVED), unseen
    assert world_of is families or set(unseen) == set(UNSEEN_WHEN_REMOVED), unseen
    await world.check()


@pytest.mark.parametrize("damage", [b"", b"\x01", b"\x7f[]", b"\x01[]", b"\x01{}"], ids=repr)
@worlds
async def test_every_value_that_is_none_is_reported(damage: bytes, world_of: Callable[[], Awaitable[World]]) -> None:
    """Would catch a record that is damaged and read as something."""
    world = await world_of()
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


# -- families


Plant = Callable[[World, RunRecord, RunRecord], Awaitable[Any]]


def change_run(whose: str, **fields: Any) -> Plant:
    """Return what rewrites the parent or the child."""

    async def plant(world: World, parent: RunRecord, child: RunRecord) -> None:
        run = parent if whose == "parent" else child
        changed = msgspec.structs.replace(run, **fields)
        await world.run("plant", lambda tx: _put(tx, RUN.at("acme", run.run_id), changed))

    return plant


def change_step(**fields: Any) -> Plant:
    """Return what rewrites what the parent's step records of its child."""

    async def plant(world: World, parent: RunRecord, child: RunRecord) -> None:
        step = await world.step(parent.run_id, "call")
        assert step.server is not None
        changed = msgspec.structs.replace(step, server=msgspec.structs.replace(step.server, **fields))
        await world.run("plant", lambda tx: _put(tx, STEP.at("acme", parent.run_id, "call"), changed))

    return plant


async def _put(tx: Tx, key: Key[Any], record: Any) -> None:
    tx.put(key, record)


async def drop_work(world: World, parent: RunRecord, child: RunRecord) -> None:
    (item,) = await settle_work(world)

    async def drop(tx: Tx) -> None:
        items.consume(tx, "acme", item)

    await world.run("plant", drop)


async def misdirect_work(world: World, parent: RunRecord, child: RunRecord) -> None:
    (item,) = await settle_work(world)
    other = msgspec.structs.replace(item, target=child.run_id if item.target == parent.run_id else parent.run_id)
    await world.run("plant", lambda tx: _put(tx, ITEM.at("acme", item.item_id), other))


async def stop_without_cause(world: World, parent: RunRecord, child: RunRecord) -> None:
    """A stop on its way to a child whose parent was not stopped."""

    async def plant(tx: Tx) -> None:
        enqueue_stop(tx, "acme", child, world.clock.now_ms())

    await world.run("plant", plant)


async def drop_input(world: World, parent: RunRecord, child: RunRecord) -> None:
    async def drop(tx: Tx) -> None:
        tx.remove(RUN_INPUT.at("acme", child.run_id, 0))

    await world.run("plant", drop)


STRANGER = ParentRecord(run_id="9" * 32, step_id="call", depth=1)


@pytest.mark.parametrize(
    ("stage", "check", "plant"),
    [
        ("waiting", "C10", change_run("parent", child_id=None)),
        ("waiting", "C10", change_run("parent", child_id="9" * 32)),
        ("waiting", "C10", change_run("child", parent=STRANGER)),
        ("waiting", "C11", change_run("child", parent=STRANGER)),
        ("waiting", "C10", change_run("child", parent=ParentRecord(run_id="x", step_id="call", depth=17))),
        ("waiting", "C8", change_run("child", event_id="e" * 32)),
        ("waiting", "C10", change_step(child_id=None)),
        ("waiting", "C10", change_step(child_id="9" * 32)),
        ("waiting", "C8", stop_without_cause),
        ("waiting", "C1", drop_input),
        ("ended", "C3", drop_work),
        ("ended", "C4", misdirect_work),
        ("stopping", "C3", drop_work),
        ("stopping", "C4", misdirect_work),
        ("settled", "C10", change_step(child_id="9" * 32)),
        ("settled", "C1", change_run("child", execution=Execution.FAILED)),
        ("settled", "C10", change_run("child", phase=Phase.RUNNING)),
        ("settled", "C10", change_run("child", parent=STRANGER)),
    ],
)
async def test_families_that_do_not_agree_are_reported(stage: str, check: str, plant: Plant) -> None:
    """C10, "A child exists if and only if its parent's step records it; a parent is terminal only after its children"."""
    world = World()
    await world.begin()
    await world.hello()
    parent, child = await family(world)
    if stage in ("ended", "settled"):
        await world.complete(await world.lease_pass(function="pick"))
    if stage == "settled":
        await pass_on_all(world)
    if stage == "stopping":
        await cancel(world, parent.run_id)
    await world.check()
    await plant(world, await world.get_run(parent.run_id), await world.get_run(child.run_id))
    report = await check_keyspace(world.keyspace)
    assert check in {problem.check for problem in report.problems}, report.problems


async def test_a_parent_that_ended_before_its_child_is_reported() -> None:
    """C10, in the words of the child: the parent that it has does not wait for it."""
    world = World()
    await world.begin()
    await world.hello()
    parent, _ = await family(world)
    child = await child_of(world, parent.run_id)
    ended = msgspec.structs.replace(
        parent, phase=Phase.TERMINAL, execution=Execution.FAILED, recovery=Recovery.EMPTY_UNWIND, terminal_at_ms=9,
        child_id=None,
    )  # fmt: skip
    await world.run("plant", lambda tx: _put(tx, RUN.at("acme", parent.run_id), ended))
    report = await check_keyspace(world.keyspace)
    told = [problem for problem in report.problems if child.run_id in problem.key]
    assert "a parent does not wait for its child" in {problem.sentence for problem in told}
