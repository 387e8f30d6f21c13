"""The list of releases: positions in order, live sessions as dispatchers said, nothing of another workspace."""

from __future__ import annotations

from gateway_world import GatewayWorld

from keyspace.limits import LIVE_MS
from keyspace.records.release import LiveRelease
from keyspace.transitions.live_releases import announce_live
from keyspace.transitions.register_release import register_release
from keyspace.tx import Tx

RELEASES = "/v1/workspaces/acme/applications/shop/releases"


async def register(world: GatewayWorld, name: str) -> str:
    record = await world.core.run(
        "register_release", lambda tx: register_release(tx, "acme", "shop", name, {"fulfil": ""})
    )
    return record.release_id


async def announce(world: GatewayWorld, process_id: str, release_id: str, *, workspace: str, sessions: int) -> None:
    live = LiveRelease(
        workspace=workspace, application="shop", release_id=release_id, position="", session_count=sessions
    )

    async def body(tx: Tx) -> None:
        announce_live(tx, process_id, [live])

    await world.core.run("announce_live", body)


async def test_releases_are_listed_by_position_with_their_live_sessions(world: GatewayWorld) -> None:
    """ARCHITECTURE 6, "Release choice": an operator sees what the choice rests on; a dead dispatcher's word runs out."""
    old, new = await register(world, "v1"), await register(world, "v2")
    await announce(world, "d1", old, workspace="acme", sessions=2)
    await announce(world, "d2", old, workspace="acme", sessions=1)
    await announce(world, "d3", new, workspace="other", sessions=5)
    listed = (await world.ask("GET", RELEASES))["items"]
    assert [(one["name"], one["release"], one["live_sessions"]) for one in listed] == [("v2", new, 0), ("v1", old, 3)]
    assert listed[0]["position"] > listed[1]["position"]
    world.core.clock.advance(LIVE_MS)
    assert [one["live_sessions"] for one in (await world.ask("GET", RELEASES))["items"]] == [0, 0]


async def test_the_list_is_paged(world: GatewayWorld) -> None:
    identities = [await register(world, f"v{number}") for number in range(3)]
    first = await world.ask("GET", RELEASES, params={"limit": 2})
    rest = await world.ask("GET", RELEASES, params={"cursor": first["next_cursor"]})
    shown = [one["release"] for one in (*first["items"], *rest["items"])]
    assert (shown, rest["next_cursor"]) == (identities[::-1], None)
    assert (await world.ask("GET", RELEASES.replace("shop", "nobody")))["items"] == []
