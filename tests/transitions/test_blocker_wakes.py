"""What looks at a blocked run again: a newly preferred release, a probe, an operator; and that no wake is ever lost."""

from __future__ import annotations

import anyio
import pytest
from blocker_verbs import (
    be_blocked,
    block,
    blocked_runs,
    blocker_of,
    join,
    probe,
    rediscover,
    run_probe_lane,
    wakes,
)
from operator_verbs import cancel, must_refuse
from recording import RecordingStore, overlaps
from test_races import prepared, race
from test_releases import prefer, register, release
from world import EagerClock, World

from keyspace.layout import ITEM
from keyspace.lifecycle import ItemState, Phase
from keyspace.limits import (
    LOCATION_CHARS_MAX,
    NAME_CHARS_MAX,
    PRIORITY_FIRST,
    PRIORITY_OPERATOR,
    PROBE_DELAY_MS_INITIAL,
    PROBE_DELAY_MS_MAX,
    STEP_NAME_CHARS_MAX,
    WAKE_PAGE_ITEMS,
    WAKE_RUN_BYTES,
)
from keyspace.records.blocker import CallSite, probe_delay_ms
from keyspace.records.run import RunRecord
from keyspace.records.work import ItemRecord, LaneKind, WorkKind
from keyspace.store.embedded import memory_store
from keyspace.transitions.block_run import DefinitionConflict, block_run
from keyspace.transitions.probe_definition import Probe
from keyspace.transitions.rediscover_run import RediscoverOutcome
from keyspace.transitions.wake_blocked import Woken, wake_blocked, wake_id_of
from keyspace.transitions.work import Accepted, Work

OTHER_INSTANCE = "22" * 16


async def discoveries(world: World) -> list[ItemRecord]:
    return [item for item in await world.records(ITEM) if item.kind is WorkKind.DISCOVERY]


async def versioned_run(world: World, name: str = "v1") -> RunRecord:
    """Return a run that is blocked by the code of the release its function prefers."""
    await join(world, await release(world, name))
    return await be_blocked(world)


# -- a newly preferred release


@pytest.mark.case(10)
@pytest.mark.case(52)
async def test_a_newly_preferred_release_wakes_the_blocked_runs_of_its_functions(empty: World) -> None:
    """RFD 1, "A newly preferred connected release wakes blocked runs for its functions"; the others sleep on."""
    await empty.begin({"fulfil": ["order.placed"], "refund": ["order.lost"]})
    await join(empty, await release(empty, "v1", "fulfil refund"))
    run = await be_blocked(empty)
    other = await empty.start_run("order.lost")
    assert await block(empty, await empty.lease_pass(function="refund")) == Accepted()
    assert await wakes(empty) == []
    v2 = await release(empty, "v2", "fulfil")
    (item,) = [item for item in await empty.records(ITEM) if item.kind is WorkKind.RELEASE_WAKE]
    assert item.state is ItemState.READY and item.token is None, "no duty hangs on a lease"
    assert (item.where.kind, item.target) == (LaneKind.PROBE, wake_id_of("shop", "fulfil"))
    await empty.check()
    assert [one.kind for one in await run_probe_lane(empty)] == [WorkKind.RELEASE_WAKE]
    assert await wakes(empty) == []
    (woken,) = await discoveries(empty)
    assert (woken.target, woken.priority) == (run.run_id, PRIORITY_FIRST)
    entry = (await empty.history(run.run_id))[-1]
    assert (entry.kind, entry.data) == ("definition-woken", {"by": "release", "release": v2.release_id})
    assert (await empty.get_run(run.run_id)).phase is Phase.DEFINITION_BLOCKED, "only a pass can clear the blocker"
    assert (await empty.get_run(other.run_id)).item_id is None
    await empty.check()


async def test_nothing_blocked_makes_no_wake(world: World) -> None:
    """S4: a release that nobody waits for writes its heads and nothing more."""
    await release(world, "v1")
    assert await wakes(world) == []
    assert await world.records(ITEM) == []


async def test_an_older_release_wakes_nobody(world: World) -> None:
    """RFD 2, "The first registration of a newly preferred": going back registers nothing, and nothing is preferred anew."""
    v1 = await release(world, "v1")
    v2 = await release(world, "v2")
    await join(world, v2)
    await be_blocked(world)
    await prefer(world.keyspace, v1)
    await prefer(world.keyspace, v2)
    assert await wakes(world) == []
    await world.check()


async def test_a_run_that_has_its_next_pass_gets_no_second_one(world: World) -> None:
    """RFD 2, "Wake and manual requests are deduplicated against existing discovery work"."""
    run = await versioned_run(world)
    await rediscover(world, run.run_id)
    (asked,) = await discoveries(world)
    await release(world, "v2")
    await run_probe_lane(world)
    assert [item.item_id for item in await discoveries(world)] == [asked.item_id]
    assert (await world.kinds(run.run_id)).count("definition-woken") == 0
    await world.check()


async def test_pages_are_bounded_and_resumable(world: World) -> None:
    """FILLED-IN 1 (25), "bounded pages, resumable": each page moves the cursor that the next one begins behind."""
    await join(world, await release(world, "v1"))
    runs = [await be_blocked(world) for _ in range(2 * WAKE_PAGE_ITEMS + 3)]
    await release(world, "v2")
    wake_id = wake_id_of("shop", "fulfil")
    told: list[Woken] = []
    while found := await wakes(world):
        item_id = found[0].item_id
        told.append(await world.run("wake", lambda tx, item_id=item_id: wake_blocked(tx, "acme", wake_id, item_id)))
        await world.check()
    limit = min(WAKE_PAGE_ITEMS, world.keyspace.allowance_bytes // 2 // WAKE_RUN_BYTES)
    assert max(one.woken_count for one in told) <= limit
    assert sum(one.woken_count for one in told) == len(runs) == len(await discoveries(world))
    assert [one.is_complete for one in told] == [False] * (len(told) - 1) + [True]
    again = await world.run("wake", lambda tx: wake_blocked(tx, "acme", wake_id, item_id))
    assert again == Woken(0, is_complete=True), "redelivered, it finds its work done"


async def test_a_release_in_the_middle_of_a_wake_begins_it_anew(world: World) -> None:
    """One wake a function: the newer release starts from the first run, under the same item."""
    await join(world, await release(world, "v1"))
    for _ in range(WAKE_PAGE_ITEMS + 1):
        await be_blocked(world)
    await release(world, "v2")
    (wake,) = await wakes(world)
    await world.run("wake", lambda tx: wake_blocked(tx, "acme", wake_id_of("shop", "fulfil"), wake.item_id))
    (moved,) = await wakes(world)
    assert moved.after and moved.woken_count
    v3 = await release(world, "v3")
    (begun,) = await wakes(world)
    assert (begun.after, begun.release_id, begun.item_id) == ("", v3.release_id, wake.item_id)
    await run_probe_lane(world)
    assert len(await discoveries(world)) == WAKE_PAGE_ITEMS + 1
    await world.check()


# -- no wake is lost


@pytest.mark.case(19)
@pytest.mark.case(52)
@pytest.mark.parametrize("is_block_first", [True, False])
async def test_a_block_races_a_newly_preferred_release(is_block_first: bool) -> None:
    """Case 019, "release wake": whichever commits second sees the other, so the run gets its pass in either order."""
    world, store = await prepared()
    await join(world, await release(world, "v1"))
    work = await world.lease_pass()
    v2 = await register(world.keyspace, "v2")

    async def blocks(world: World, work: Work) -> object:
        return await block(world, work)

    async def prefers(world: World, _: Work) -> object:
        return await prefer(world.keyspace, v2)

    first, second = (blocks, prefers) if is_block_first else (prefers, blocks)
    await race(world, store, first, second, work)
    await world.check()
    run = await world.get_run(work.run_id)
    assert run.phase is Phase.DEFINITION_BLOCKED
    if is_block_first:
        assert run.item_id is None and len(await wakes(world)) == 1, "the release saw the blocked run"
    else:
        assert run.item_id is not None and await wakes(world) == [], "the report saw the new head"
        assert (await world.history(run.run_id))[-1].data["newer_release"] == v2.release_id
    await run_probe_lane(world)
    (item,) = await discoveries(world)
    assert item.target == run.run_id
    await world.check()


@pytest.mark.case(19)
@pytest.mark.parametrize("is_wake_first", [True, False])
@pytest.mark.parametrize("other", ["cancel", "rediscover", "newer release"])
async def test_a_wake_races_everything_that_happens_to_a_blocked_run(other: str, is_wake_first: bool) -> None:
    """Case 019: one serial order explains the history; a run that ends is not woken, one that is woken ends all the same."""
    world, store = await prepared()
    await join(world, await release(world, "v1"))
    work = await world.lease_pass()
    await block(world, work)
    await release(world, "v2")
    v3 = await register(world.keyspace, "v3")
    (wake,) = await wakes(world)

    async def wakes_up(world: World, _: Work) -> object:
        wake_id = wake_id_of("shop", "fulfil")
        return await world.run("wake_blocked", lambda tx: wake_blocked(tx, "acme", wake_id, wake.item_id))

    async def acts(world: World, work: Work) -> object:
        if other == "cancel":
            return await cancel(world, work.run_id)
        if other == "rediscover":
            return await rediscover(world, work.run_id)
        return await prefer(world.keyspace, v3)

    first, second = (wakes_up, acts) if is_wake_first else (acts, wakes_up)
    if (other, is_wake_first) == ("rediscover", True):
        # It finds the pass of the wake and writes nothing, so there is no commit to hold up.
        await wakes_up(world, work)
        await acts(world, work)
    else:
        await race(world, store, first, second, work)
    await world.check()
    await run_probe_lane(world)
    await world.check()
    run = await world.get_run(work.run_id)
    if other == "cancel":
        assert run.phase is Phase.TERMINAL and await world.records(ITEM) == []
    else:
        assert len(await discoveries(world)) == 1 and run.phase is Phase.DEFINITION_BLOCKED


@pytest.mark.case(52)
async def test_an_older_release_that_blocks_again_is_not_woken_again_at_once(world: World) -> None:
    """A release is news once: a run that keeps falling to older code is probed with growing delay instead of spinning."""
    v1 = await release(world, "v1")
    await join(world, v1)
    run = await world.start_run()
    work = await world.lease_pass()
    v2 = await release(world, "v2")
    assert await block(world, work) == Accepted()
    blocker = await blocker_of(world, run.run_id)
    assert blocker is not None and blocker.probe_item is None
    assert len(await discoveries(world)) == 1, "it is told at once"
    assert await block(world, await world.lease_pass()) == Accepted()
    blocker = await blocker_of(world, run.run_id)
    assert blocker is not None and blocker.probe_item is not None, "v1 says nothing of v2, so it is looked at again"
    assert await discoveries(world) == []
    await world.check()
    await rediscover(world, run.run_id)
    await join(world, v2, instance=OTHER_INSTANCE)
    assert await block(world, await world.lease_pass(instance=OTHER_INSTANCE)) == Accepted()
    blocker = await blocker_of(world, run.run_id)
    assert blocker is not None and blocker.probe_item is None, "the preferred code itself has the conflict"
    await world.check()


# -- probes


def test_probes_come_rarer_and_rarer() -> None:
    """RFD 1, "a capped low-frequency probe": 1 min, doubling, never beyond 1 h."""
    delays = [probe_delay_ms(count) for count in range(100)]
    assert delays[:7] == [60_000, 120_000, 240_000, 480_000, 960_000, 1_920_000, 3_600_000]
    assert set(delays[6:]) == {PROBE_DELAY_MS_MAX}


@pytest.mark.case(10)
@pytest.mark.case(52)
async def test_a_probe_looks_again_for_a_worker_that_names_no_release(world: World) -> None:
    """RFD 2, "HTTP endpoints and unversioned workers do not provide trustworthy code-change identity"."""
    run = await be_blocked(world)
    expected_ms = PROBE_DELAY_MS_INITIAL
    for count in (1, 2, 3):
        blocker = await blocker_of(world, run.run_id)
        assert blocker is not None and blocker.probe_item is not None
        item_id = blocker.probe_item
        item = await world.item(item_id)
        assert item is not None and item.vesting_ms == blocker.probe_due_ms == blocker.seen_at_ms + expected_ms
        assert item.state is ItemState.READY and item.token is None, "no duty hangs on a lease"
        world.clock.advance(expected_ms - 1)
        assert await probe(world, run.run_id, item_id) is Probe.NOT_DUE
        assert await run_probe_lane(world) == []
        world.clock.advance(1)
        assert [item.item_id for item in await run_probe_lane(world)] == [item_id]
        assert await probe(world, run.run_id, item_id) is Probe.GONE, "redelivered, it finds nothing"
        entry = (await world.history(run.run_id))[-1]
        assert (entry.kind, entry.data) == ("definition-woken", {"by": "probe", "probe": count})
        await world.check()
        assert await block(world, await world.lease_pass()) == Accepted()
        await world.check()
        expected_ms *= 2


async def test_another_conflict_is_probed_soon_again(world: World) -> None:
    """A conflict that moved is code that changed: the delay begins anew."""
    run = await be_blocked(world, "one")
    world.clock.advance(PROBE_DELAY_MS_INITIAL)
    await run_probe_lane(world)
    await block(world, await world.lease_pass(), "two")
    blocker = await blocker_of(world, run.run_id)
    assert blocker is not None and blocker.probe_count == 0
    item = await world.item(blocker.probe_item or "")
    assert item is not None and item.vesting_ms == world.clock.now_ms() + PROBE_DELAY_MS_INITIAL


@pytest.mark.parametrize("way", ["release", "operator", "answer", "cancel"])
async def test_a_probe_goes_with_what_it_was_for(world: World, way: str) -> None:
    """C4: a run that is looked at, free or stopped owns no probe; one that is delivered all the same does nothing."""
    run = await be_blocked(world)
    blocker = await blocker_of(world, run.run_id)
    assert blocker is not None and blocker.probe_item is not None
    if way == "release":
        await release(world, "v1")
        assert [item.kind for item in await run_probe_lane(world)] == [WorkKind.RELEASE_WAKE]
    elif way == "cancel":
        await cancel(world, run.run_id)
    else:
        await rediscover(world, run.run_id)
    if way == "answer":
        assert await world.complete(await world.lease_pass()) == Accepted()
    assert await world.item(blocker.probe_item) is None
    world.clock.advance(PROBE_DELAY_MS_INITIAL)
    before = await world.dump()
    assert await probe(world, run.run_id, blocker.probe_item) is Probe.GONE
    assert await world.dump() == before
    await world.check()


# -- an operator


@pytest.mark.case(52)
async def test_an_operator_asks_twice(world: World) -> None:
    """Case 052, "operator retry twice": the second finds the first one's pass, queued or under way, and adds nothing."""
    run = await versioned_run(world)
    first = await rediscover(world, run.run_id, by="key-of-ann")
    assert first.outcome is RediscoverOutcome.ACCEPTED
    assert first.blocker is not None and first.blocker.step_id == "twice"
    (item,) = await discoveries(world)
    assert item.priority == PRIORITY_OPERATOR
    for stage in ("queued", "under way"):
        before = await world.dump()
        again = await rediscover(world, run.run_id, by="key-of-bob")
        assert again.outcome is RediscoverOutcome.ALREADY_REQUESTED, stage
        assert await world.dump() == before
        if stage == "queued":
            await world.lease_pass()
    entries = [entry for entry in await world.history(run.run_id) if entry.kind == "definition-retry-requested"]
    assert [entry.data for entry in entries] == [{"by": "key-of-ann", "step": "twice"}]
    await world.check()


async def test_an_operator_hastens_a_pass_that_waits(world: World) -> None:
    """FILLED-IN 11, "Crashing discovery is redelivered with growing, capped delay": immediate means now all the same."""
    run = await versioned_run(world)
    await rediscover(world, run.run_id)
    # The first loss is redelivered at once, the second waits.
    for _ in range(2):
        work = await world.lease_pass()
        await world.lose(work.item_id, is_session_lost=True)
    item = await world.item(work.item_id)
    assert item is not None and item.state is ItemState.READY and item.vesting_ms > world.clock.now_ms()
    assert (await rediscover(world, run.run_id)).outcome is RediscoverOutcome.ACCEPTED
    assert (await world.lease_pass()).item_id == work.item_id
    assert (await world.kinds(run.run_id)).count("definition-retry-requested") == 2
    await world.check()


@pytest.mark.parametrize("stage", ["running", "cancelled", "completed", "nobody"])
async def test_only_a_blocked_run_is_rediscovered(world: World, stage: str) -> None:
    """A refusal says why and mutates nothing; the code is stable."""
    run = await world.start_run()
    if stage == "cancelled":
        await cancel(world, run.run_id)
    if stage == "completed":
        await world.complete(await world.lease_pass())
    run_id = "ab" * 16 if stage == "nobody" else run.run_id
    code = "not_found" if stage == "nobody" else "run_not_blocked"
    refusal = await must_refuse(world, code, rediscover(world, run_id))
    assert refusal.details["run"] == run_id


@pytest.mark.case(1)
async def test_a_repeated_request_finds_its_receipt(world: World) -> None:
    """ARCHITECTURE 3, "Unknown commits": the same request again is the same answer, whatever has become of its pass."""
    run = await versioned_run(world)
    item_id = world.keyspace.mint()
    for stage in ("asked", "under way", "blocked again"):
        assert (await rediscover(world, run.run_id, item_id=item_id)).outcome is RediscoverOutcome.ACCEPTED, stage
        assert (await world.kinds(run.run_id)).count("definition-retry-requested") == 1
        if stage == "asked":
            work = await world.lease_pass()
        elif stage == "under way":
            await block(world, work)


# -- costs and conflicts


async def test_blocked_runs_conflict_with_nobody(anyio_backend: str) -> None:
    """S2: two runs of one function that block, are asked for and go on never touch what the other one reads."""
    clock = EagerClock()
    store = RecordingStore(memory_store(clock=clock))
    world = World(clock=clock, store=store)
    await world.begin()
    await join(world, await release(world, "v1"))
    for tag in ("one", "two"):
        store.tag = tag
        run = await be_blocked(world)
        await rediscover(world, run.run_id)
        await block(world, await world.lease_pass())
        await rediscover(world, run.run_id)
        await world.complete(await world.lease_pass())
        store.tag = ""
    tagged = [commit for commit in store.commits if commit.tag]
    assert {commit.name for commit in tagged} >= {"block_run", "rediscover_run", "complete_run"}
    for left in tagged:
        for right in tagged:
            if left.tag != right.tag:
                assert not overlaps(left.reads, right.writes), f"{left.name} reads what {right.name} writes"
    sizes = {commit.name: commit.size_bytes for commit in tagged}
    assert sizes["block_run"] < 16_000 and sizes["rediscover_run"] < 10_000, sizes


async def test_waking_a_run_costs_no_more_than_is_reserved(anyio_backend: str) -> None:
    """S5, "by construction": with the longest names there are, a page of the stated size fits half the allowance."""
    clock = EagerClock()
    store = RecordingStore(memory_store(clock=clock))
    world = World(clock=clock, store=store, prefix=b"\x15" * 64)
    face = "\U0001f600"
    wide, count = face * (NAME_CHARS_MAX - len("@order.placed")), 4
    site = CallSite(location=face * LOCATION_CHARS_MAX, name=face * STEP_NAME_CHARS_MAX)
    worst = DefinitionConflict(face * NAME_CHARS_MAX, site, site)
    await world.begin({wide: ["order.placed"]})
    await world.hello()
    for _ in range(count):
        await world.start_run()
        work = await world.lease_pass(function=wide)
        await world.run("block_run", lambda tx, work=work: block_run(tx, "acme", work, worst))
    await release(world, "v1", wide)
    (wake,) = await wakes(world)
    await world.run("wake_blocked", lambda tx: wake_blocked(tx, "acme", wake_id_of("shop", wide), wake.item_id))
    commit = store.commits[-1]
    assert commit.name == "wake_blocked" and len(await discoveries(world)) == count
    # An application with as long a name would add as much again as its function's.
    assert commit.size_bytes / count < WAKE_RUN_BYTES / 1.3, commit.size_bytes / count


async def test_many_blocks_and_releases_at_once_lose_no_wake(anyio_backend: str) -> None:
    """Releases that come while runs are blocking, all at once: in the end every run has a pass or knows the newest head."""
    world, _ = await prepared()
    await join(world, await release(world, "v1"))
    for _ in range(15):
        await world.start_run()
    works = [await world.lease_pass() for _ in range(16)]
    async with anyio.create_task_group() as group:
        for number, work in enumerate(works):
            group.start_soon(block, world, work)
            if number % 4 == 0:
                group.start_soon(release, world, f"v{number + 2}")
    await run_probe_lane(world)
    await world.check()
    assert len(await blocked_runs(world)) == len(await discoveries(world)) == 16
