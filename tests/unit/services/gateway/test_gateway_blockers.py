"""Blocked runs through the API: what blocks them, where they are listed, and the request to look again."""

from __future__ import annotations

from typing import Any

import pytest
from gateway_world import GatewayWorld

from keyspace.limits import PROBE_DELAY_MS_INITIAL

ROOT = "/v1/workspaces/acme"
NO_RUN = "0" * 32
pytestmark = pytest.mark.case(52)


async def be_blocked(world: GatewayWorld) -> str:
    run = await world.core.start_run()
    await world.core.block(await world.core.lease_pass())
    return run.run_id


async def rediscover(world: GatewayWorld, run_id: str, **arguments: Any) -> Any:
    return await world.ask("POST", f"{ROOT}/runs/{run_id}/rediscover", **arguments)


@pytest.mark.case(76)
async def test_a_blocked_run_shows_the_id_and_both_places(world: GatewayWorld) -> None:
    """Case 076, "a fix of a duplicate id": the view names the conflict, since when, who saw it, and what to do."""
    run_id = await be_blocked(world)
    shown = await world.ask("GET", f"{ROOT}/runs/{run_id}", key=world.keys["acme", "reader"])
    now_ms = world.clock.now_ms()
    assert (shown["status"], shown["phase"]) == ("definition_blocked", "definition_blocked")
    assert shown["blocker"] == {
        "reason": "duplicate_step_id", "step": "twice",
        "first": {"location": "shop.py:10", "name": "reserve"}, "duplicate": {"location": "shop.py:20", "name": ""},
        "first_seen_at_ms": now_ms, "seen_at_ms": now_ms, "count": 1,
        "instance": shown["blocker"]["instance"], "release": "release-1", "probe_count": 0, "needs_probe": True,
    }  # fmt: skip
    assert shown["waiting"]["word"] == "fix"
    for part in ("'twice'", "shop.py:10", "shop.py:20", "another id"):
        assert part in shown["waiting"]["sentence"]


@pytest.mark.case(76)
async def test_blocked_runs_are_listed_by_their_status(world: GatewayWorld) -> None:
    """Each with its sentence, and no longer once a pass has cleared it."""
    run_ids = {await be_blocked(world) for _ in range(3)}
    await world.core.start_run()
    listed = (await world.ask("GET", f"{ROOT}/runs", params={"status": "definition_blocked"}))["items"]
    assert {one["run"] for one in listed} == run_ids
    assert all("shop.py:20" in one["waiting"]["sentence"] for one in listed)
    everything = (await world.ask("GET", f"{ROOT}/runs"))["items"]
    assert sorted(one["waiting"]["word"] for one in everything) == ["fix", "fix", "fix", "worker"]


async def test_a_request_to_look_again(world: GatewayWorld) -> None:
    """RFD 2, "An operator may request immediate rediscovery"; the second finds the first one's pass and writes nothing."""
    run_id = await be_blocked(world)
    answer = await rediscover(world, run_id, key=world.keys["acme", "client"])
    assert (answer["run"], answer["outcome"]) == (run_id, "accepted")
    assert answer["blocker"]["step"] == "twice"
    assert "looked at again" in answer["explanation"]
    shown = await world.ask("GET", f"{ROOT}/runs/{run_id}")
    assert shown["waiting"]["word"] == "worker"
    assert "'twice' is used twice" in shown["waiting"]["sentence"]
    before = await world.core.dump()
    assert (await rediscover(world, run_id))["outcome"] == "already_requested"
    assert await world.core.dump() == before
    history = (await world.ask("GET", f"{ROOT}/runs/{run_id}/history"))["items"]
    (entry,) = [one["data"] for one in history if one["kind"] == "definition-retry-requested"]
    assert entry == {"by": world.key_ids["acme", "client"], "step": "twice"}
    work = await world.core.lease_pass()
    await world.core.complete(work)
    after = await world.ask("GET", f"{ROOT}/runs/{run_id}")
    assert (after["status"], after["blocker"]) == ("completed", None)
    await world.core.check()


async def test_what_cannot_be_looked_at_is_refused(world: GatewayWorld) -> None:
    """Stable codes; a reader may not ask, a stranger does not learn that the run exists."""
    run_id = await be_blocked(world)
    problem = await world.refused(
        "run_not_blocked", "POST", f"{ROOT}/runs/{(await world.core.start_run()).run_id}/rediscover"
    )
    assert problem["phase"] == "running"
    await world.refused("not_found", "POST", f"{ROOT}/runs/{NO_RUN}/rediscover")
    await world.refused("not_found", "POST", f"{ROOT}/runs/nothing/rediscover")
    await world.refused("forbidden", "POST", f"{ROOT}/runs/{run_id}/rediscover", key=world.keys["acme", "reader"])
    await world.refused("not_found", "POST", f"{ROOT}/runs/{run_id}/rediscover", key=world.keys["rival", "admin"])


async def test_a_probe_shows_in_the_view(world: GatewayWorld) -> None:
    """The count of looks that nobody asked for, while the conflict lasts."""
    run_id = await be_blocked(world)
    world.clock.advance(PROBE_DELAY_MS_INITIAL)
    await rediscover(world, run_id)
    await world.core.block(await world.core.lease_pass(), "other")
    shown = await world.ask("GET", f"{ROOT}/runs/{run_id}")
    assert (shown["blocker"]["step"], shown["blocker"]["count"]) == ("other", 1)
