"""Connected releases: registered once by name and content, positions that stay, heads that only move forward, a bound."""

from __future__ import annotations

import anyio
import pytest
from world import World

from keyspace.errors import Refusal
from keyspace.keyspace import Keyspace
from keyspace.layout import LIVE, RELEASE, RELEASE_HEAD, RELEASE_LIST, RELEASE_STAMP
from keyspace.limits import HEAD_PAGE_ITEMS, LIVE_MS, LIVE_PAGE_ITEMS, RELEASES_MAX
from keyspace.records.release import HeadRecord, LiveRelease, ReleaseRecord
from keyspace.transitions.live_releases import announce_live, forget_live, read_live
from keyspace.transitions.register_release import (
    prefer_release,
    prefers,
    register_release,
    release_position,
    remove_oldest_release,
)
from keyspace.tx import Tx

PAGES_MAX = 100


async def register(
    keyspace: Keyspace, name: str, functions: str = "fulfil", *, contract: str = "", workspace: str = "acme"
) -> ReleaseRecord:
    contracts = dict.fromkeys(functions.split(), contract)
    return await keyspace.transact(
        "register_release", lambda tx: register_release(tx, workspace, "shop", name, contracts)
    )


async def prefer(keyspace: Keyspace, record: ReleaseRecord) -> int:
    """Bring the heads up to a release; return how many pages it took."""
    after: str | None = ""
    for count in range(1, PAGES_MAX):
        at = after or ""
        after = await keyspace.transact(
            "prefer_release", lambda tx, at=at: prefer_release(tx, "acme", "shop", record.release_id, after=at)
        )
        if after is None:
            return count
    raise AssertionError("it never ended")


async def release(world: World, name: str, functions: str = "fulfil", *, contract: str = "") -> ReleaseRecord:
    record = await register(world.keyspace, name, functions, contract=contract)
    await prefer(world.keyspace, record)
    return record


async def position(world: World, record: ReleaseRecord) -> bytes:
    stamp = await world.read(lambda tx: release_position(tx, "acme", "shop", record.release_id))
    assert stamp is not None
    return stamp


async def head(world: World, function: str = "fulfil") -> str | None:
    found = await world.read(lambda tx: tx.load(RELEASE_HEAD.at("acme", "shop", function)))
    return None if found is None else found.release_id


def live(record: ReleaseRecord, sessions: int = 1) -> LiveRelease:
    return LiveRelease(
        workspace="acme",
        application="shop",
        release_id=record.release_id,
        position="00",
        session_count=sessions,
    )


async def announce(world: World, process_id: str, *releases: LiveRelease) -> int:
    async def body(tx: Tx) -> int:
        return announce_live(tx, process_id, releases)

    return await world.run("announce_live", body)


@pytest.mark.parametrize(
    ("of_head", "of_release", "goes_over"),
    [(None, "05", True), ("04", "05", True), ("05", "05", False), ("06", "05", False)],
)
def test_a_function_goes_over_only_to_a_newer_release(of_head: str | None, of_release: str, goes_over: bool) -> None:
    """ARCHITECTURE 6, "The release head is written only when the preferred release changes", by table."""
    record = None if of_head is None else HeadRecord(release_id="11" * 16, position=of_head)
    assert prefers(record, of_release) is goes_over


async def test_a_registration_is_made_once_and_costs_nothing_after(world: World) -> None:
    """FILLED-IN 1 (25): idempotent by name and content; saying it again writes nothing."""
    first = await release(world, "v1", "fulfil refund")
    before = await world.dump()
    assert await register(world.keyspace, "v1", "refund fulfil") == (await world.records(RELEASE))[0]
    assert await prefer(world.keyspace, first) == 1
    assert await world.dump() == before
    await world.check()


@pytest.mark.case(50)
async def test_going_back_to_an_old_release_keeps_its_position(world: World) -> None:
    """RFD 2, "the greatest server-assigned release position": a rollback is no new release, and heads do not go back."""
    old = await release(world, "v1")
    old_position = await position(world, old)
    new = await release(world, "v2")
    assert await position(world, new) > old_position
    again = await release(world, "v1")
    assert again.release_id == old.release_id
    assert await position(world, again) == old_position
    assert await head(world) == new.release_id
    assert await world.records(RELEASE_LIST) == [old.release_id, new.release_id]
    await world.check()


async def test_other_content_under_one_name_is_another_release(world: World) -> None:
    """Two fleets of one name that serve other functions or contracts must not push each other aside at every hello."""
    both = await release(world, "v1", "fulfil refund")
    one = await release(world, "v1", "fulfil")
    other = await release(world, "v1", "fulfil", contract="c2")
    assert len({both.release_id, one.release_id, other.release_id}) == 3
    assert (await head(world, "fulfil"), await head(world, "refund")) == (other.release_id, both.release_id)
    await world.check()


async def test_workers_that_register_at_once_make_one_release(world: World) -> None:
    """RFD 2, "it prefers the greatest server-assigned release position": whoever commits first assigns the position, the others find it; distinct ones all get one."""
    names = ["v1", "v1", "v2", "v2", "v3"]
    found: list[ReleaseRecord] = []

    async def one(name: str) -> None:
        record = await register(world.keyspace, name)
        await prefer(world.keyspace, record)
        found.append(record)

    async with anyio.create_task_group() as group:
        for name in names:
            group.start_soon(one, name)
    listed = await world.records(RELEASE_LIST)
    assert sorted(listed) == sorted({record.release_id for record in found})
    assert len(listed) == 3
    assert await head(world) == listed[-1], "the newest is the head, whoever brought it up last"
    await world.check()


async def test_heads_are_brought_up_page_by_page_and_by_whoever_comes_next(world: World) -> None:
    """FILLED-IN 1 (25), "bounded pages, resumable": a process killed after its first page; the next hello ends the rest."""
    functions = [f"f{number:04}" for number in range(2 * HEAD_PAGE_ITEMS + 1)]
    record = await register(world.keyspace, "v1", " ".join(functions))
    cursor = await world.run("prefer_release", lambda tx: prefer_release(tx, "acme", "shop", record.release_id))
    assert cursor == functions[HEAD_PAGE_ITEMS - 1]
    assert [await head(world, functions[at]) for at in (0, HEAD_PAGE_ITEMS - 1)] == [record.release_id] * 2
    assert await head(world, functions[HEAD_PAGE_ITEMS]) is None
    await world.check()
    assert await prefer(world.keyspace, record) == 3
    assert {await head(world, function) for function in functions} == {record.release_id}
    (done,) = await world.records(RELEASE)
    assert done.is_preferred
    await world.check()


async def test_an_older_release_that_is_late_takes_no_head(world: World) -> None:
    """Would catch a head that goes back when a slow process brings up an older release after a newer one."""
    old = await register(world.keyspace, "v1", "fulfil refund")
    new = await release(world, "v2", "fulfil")
    await prefer(world.keyspace, old)
    assert (await head(world, "fulfil"), await head(world, "refund")) == (new.release_id, old.release_id)
    await world.check()


async def test_a_full_list_makes_room_from_its_oldest_that_nobody_runs(world: World) -> None:
    """Every index has a bound: the oldest goes with its heads, never one that is live or has only just come."""
    records = [await release(world, f"v{number}") for number in range(RELEASES_MAX)]
    with pytest.raises(Refusal, match="as many releases"):
        await register(world.keyspace, "one more")
    assert await world.run("remove", lambda tx: remove_oldest_release(tx, "acme", "shop")) is None, "all have just come"
    await world.check()
    world.clock.advance(LIVE_MS)
    await announce(world, "d1", live(records[0]))
    gone = await world.run("remove", lambda tx: remove_oldest_release(tx, "acme", "shop"))
    assert gone == records[1].release_id
    await release(world, "one more")
    listed = await world.records(RELEASE_LIST)
    assert (len(listed), listed[0], listed[1]) == (RELEASES_MAX, records[0].release_id, records[2].release_id)
    await world.check()


async def test_a_removed_head_goes_with_its_release(world: World) -> None:
    """A function that no newer release offers leaves no head behind, and the release may come back at a new position."""
    old = await release(world, "v1", "fulfil refund")
    await release(world, "v2", "fulfil")
    before = await position(world, old)
    world.clock.advance(LIVE_MS)
    assert await world.run("remove", lambda tx: remove_oldest_release(tx, "acme", "shop")) == old.release_id
    assert await head(world, "refund") is None
    assert await head(world, "fulfil") is not None
    assert await world.records(RELEASE_STAMP) != []
    await world.check()
    again = await release(world, "v1", "fulfil refund")
    assert await position(world, again) > before
    assert await head(world, "fulfil") == again.release_id
    await world.check()


async def test_what_a_dispatcher_says_replaces_what_it_said(world: World) -> None:
    """ARCHITECTURE 6, "liveness is one record for each dispatcher": pages shrink with it, and others' stay."""
    many = [
        LiveRelease(workspace="acme", application="shop", release_id=f"{number:032x}", position="", session_count=1)
        for number in range(LIVE_PAGE_ITEMS + 1)
    ]
    until_ms = await announce(world, "d1", *many)
    assert until_ms == world.clock.now_ms() + LIVE_MS
    await announce(world, "d2", many[0])
    found = await world.read(read_live)
    assert [(one.process_id, one.page, len(one.record.releases)) for one in found] == [
        ("d1", 0, LIVE_PAGE_ITEMS),
        ("d1", 1, 1),
        ("d2", 0, 1),
    ]
    await announce(world, "d1", many[0])
    assert [(one.process_id, one.page) for one in await world.read(read_live)] == [("d1", 0), ("d2", 0)]

    async def forget(tx: Tx) -> None:
        forget_live(tx, "d1")

    await world.run("forget_live", forget)
    assert [one.process_id for one in await world.read(read_live)] == ["d2"]
    await world.check()


@pytest.mark.parametrize(
    "damage", ["head of nobody", "head gone back", "no position", "not listed", "position of nobody"]
)
async def test_the_check_sees_each_kind_of_damage(world: World, damage: str) -> None:
    """FILLED-IN 10, C7 and C12: would catch a check that never finds anything."""
    old = await release(world, "v1")
    new = await release(world, "v2")
    old_position = (await position(world, old)).hex()

    async def harm(tx: Tx) -> None:
        key = RELEASE_HEAD.at("acme", "shop", "fulfil")
        if damage == "head of nobody":
            tx.put(key, HeadRecord(release_id="77" * 16, position=old_position))
        elif damage == "head gone back":
            tx.put(key, HeadRecord(release_id=old.release_id, position=old_position))
        elif damage == "no position":
            tx.remove(RELEASE_STAMP.at("acme", "shop", new.release_id))
        elif damage == "not listed":
            tx.remove_range(RELEASE_LIST.span("acme", "shop"))
        else:
            tx.remove(RELEASE.at("acme", "shop", old.release_id))

    await world.check()
    await world.run("harm", harm)
    with pytest.raises(AssertionError, match=r"C7|C12"):
        await world.check()


def test_the_live_record_is_shared_by_all_workspaces() -> None:
    """It names processes, which belong to nobody: a workspace's range must not hold it."""
    assert isinstance(LIVE.shape[0], int)
