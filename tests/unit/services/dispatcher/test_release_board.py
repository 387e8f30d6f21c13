"""A dispatcher's view of live releases: what it rests on, when it is renewed, and what it costs."""

from __future__ import annotations

import anyio
import pytest
from dispatch_rig import turns
from transitions.world import World

from keyspace.limits import LIVE_MS
from keyspace.records.release import LiveRelease
from keyspace.transitions.live_releases import announce_live, read_live
from keyspace.transitions.publish_manifest import FunctionSpec, ManifestSpec, publish_manifest
from keyspace.transitions.register_release import register_release, release_position
from keyspace.tx import Tx
from services.dispatcher.options import LIVE_FORGOTTEN_MS, LIVE_LOOK_MS, LIVE_PAUSE_MS
from services.dispatcher.release_board import Application, ReleaseBoard
from services.dispatcher.releases import UNVERSIONED, Standing

SHOP = Application("acme", "shop")
SKEW_MS = 500


class Desk:
    """A board and what it told its dispatcher."""

    def __init__(self, world: World, process_id: str = "d1") -> None:
        self.world = world
        self.changed: list[Application] = []
        self.board = ReleaseBoard(world.keyspace, process_id=process_id, skew_ms=SKEW_MS, on_change=self.changed.append)

    def count(self, name: str) -> int:
        """Return how often a transaction committed so far."""
        figures = self.world.keyspace.meter.snapshot().get(name)
        return 0 if figures is None else figures.commit_count


def standing(position: str, functions: str = "fulfil", contract: str = "") -> Standing:
    return Standing(position and f"{int(position, 16):032x}", position, dict.fromkeys(functions.split(), contract))


async def registered(world: World, name: str, functions: str = "fulfil") -> Standing:
    contracts = dict.fromkeys(functions.split(), "")
    record = await world.run("register", lambda tx: register_release(tx, "acme", "shop", name, contracts))
    position = await world.read(lambda tx: release_position(tx, "acme", "shop", record.release_id))
    assert position is not None
    return Standing(record.release_id, position.hex(), contracts)


async def say(world: World, process_id: str, *standings: Standing) -> None:
    """Let another dispatcher say what its sessions run."""

    async def body(tx: Tx) -> None:
        live = [
            LiveRelease(
                workspace="acme", application="shop", release_id=one.release_id, position=one.position, session_count=1
            )
            for one in standings
        ]
        announce_live(tx, process_id, live)

    await world.run("announce_live", body)


@pytest.mark.parametrize(
    ("own", "others", "function", "goes_on"),
    [
        (standing("05"), [], "fulfil", True),
        (standing("05"), [standing("05")], "fulfil", True),
        (standing("05"), [standing("04")], "fulfil", True),
        (standing("05"), [standing("06")], "fulfil", False),
        (standing("05"), [standing("06", "refund")], "fulfil", True),
        (standing("05", "fulfil refund"), [standing("06", "refund")], "refund", False),
        (standing("05", "fulfil refund"), [standing("06", "refund")], "", False),
        (standing("05", "fulfil refund"), [standing("06", "refund")], "fulfil", True),
        (standing(UNVERSIONED), [standing(UNVERSIONED)], "fulfil", True),
        (standing(UNVERSIONED), [standing("01")], "fulfil", False),
        (standing("05"), [], "refund", False),
    ],
)
def test_a_run_stays_while_no_newer_release_would_have_it(
    own: Standing, others: list[Standing], function: str, goes_on: bool
) -> None:
    """ARCHITECTURE 6, "Continuation stays with its session while": by table; an unknown function asks for all of them."""
    desk = Desk(World())
    desk.board.join(SHOP, "own", own)
    for number, other in enumerate(others):
        desk.board.join(SHOP, f"other-{number}", other)
    assert desk.board.goes_on(SHOP, function, own) is goes_on
    for number, _ in enumerate(others):
        desk.board.part(SHOP, f"other-{number}")
    assert desk.board.goes_on(SHOP, function, own) is (function != "refund" or "refund" in own.contracts)


async def test_the_word_is_written_when_it_changes_and_before_it_runs_out(world: World) -> None:
    """ARCHITECTURE 6, "liveness is one record for each dispatcher": not at every heartbeat, and nothing for the unversioned."""
    desk = Desk(world)
    desk.board.join(SHOP, "plain", standing(UNVERSIONED))
    await desk.board.look()
    assert desk.count("announce_live") == 0
    desk.board.join(SHOP, "a", await registered(world, "v1"))
    desk.board.join(SHOP, "b", await registered(world, "v1"))
    for _ in range(LIVE_MS // LIVE_LOOK_MS):
        await desk.board.look()
        world.clock.advance(LIVE_LOOK_MS)
    assert desk.count("announce_live") == 2, "once new, once at half of its time"
    ((_, _, record),) = await world.read(read_live)
    assert [(one.application, one.session_count) for one in record.releases] == [("shop", 2)]
    assert record.expires_at_ms > world.clock.now_ms()
    desk.board.part(SHOP, "a")
    desk.board.part(SHOP, "b")
    await desk.board.look()
    assert await world.read(read_live) == []


async def test_without_sessions_it_asks_nothing_of_the_store(world: World) -> None:
    """S4: idle costs nothing; also when sessions came and went."""
    desk = Desk(world)
    async with anyio.create_task_group() as group:
        group.start_soon(desk.board.run)
        await turns()
        desk.board.join(SHOP, "a", await registered(world, "v1"))
        await turns()
        desk.board.part(SHOP, "a")
        for _ in range(3):
            world.clock.advance(LIVE_PAUSE_MS)
            await turns()
        assert await world.read(read_live) == []
        before = desk.count("read_live")
        assert before >= 2, "there was something to know while the session stood"
        for _ in range(60):
            world.clock.advance(LIVE_LOOK_MS)
            await turns(5)
        assert desk.count("read_live") == before
        group.cancel_scope.cancel()


async def test_what_others_say_counts_by_their_offers_until_it_runs_out(world: World) -> None:
    """Case 050: a newer release elsewhere counts for what it offers only, and no longer than its dispatcher lives."""
    desk = Desk(world)
    old, new = await registered(world, "v1", "fulfil refund"), await registered(world, "v2", "fulfil")
    desk.board.join(SHOP, "a", old)
    await say(world, "d2", new)
    await desk.board.look()
    assert (desk.board.newest(SHOP, "fulfil"), desk.board.newest(SHOP, "refund")) == (new.position, old.position)
    assert desk.changed == [SHOP] * len(desk.changed)
    told = len(desk.changed)
    await desk.board.look()
    assert len(desk.changed) == told, "an unchanged view wakes nobody"
    world.clock.advance(LIVE_MS + SKEW_MS)
    await desk.board.look()
    assert desk.board.newest(SHOP, "fulfil") == old.position
    assert len(desk.changed) == told + 1
    world.clock.advance(LIVE_FORGOTTEN_MS)
    await desk.board.look()
    assert {page.process_id for page in await world.read(read_live)} == {"d1"}, "the dead one's word is taken away"


async def test_a_release_that_was_removed_holds_nobody_back(world: World) -> None:
    """What nobody can look up offers nothing; would catch a yield for the sake of a release that does not exist."""
    desk = Desk(world)
    own = await registered(world, "v1")
    desk.board.join(SHOP, "a", own)
    await say(world, "d2", Standing("77" * 16, "ff" * 12, {}))
    await desk.board.look()
    assert desk.board.goes_on(SHOP, "fulfil", own)


async def test_a_new_manifest_changes_who_may_run_what_within_a_look(world: World) -> None:
    """RFD 2, "current execution contract": read when the active routing generation changed, and only then."""
    desk = Desk(world)
    own = standing("05", contract="c1")
    desk.board.join(SHOP, "a", own)
    await desk.board.look()
    assert desk.board.is_eligible(SHOP, "fulfil", own)
    spec = ManifestSpec("shop", (FunctionSpec("fulfil", (), "c2"),))
    await world.run("publish_manifest", lambda tx: publish_manifest(tx, "acme", spec, published_by="test"))
    await desk.board.look()
    assert desk.board.is_eligible(SHOP, "fulfil", own), "published is not active"
    await world.publish({"fulfil": []})
    reads = desk.count("read_contracts")
    await desk.board.look()
    await desk.board.look()
    assert desk.count("read_contracts") == reads + 1
