"""Parents and children as the API shows them: each names the other, and a child has a parent in place of an event."""

from __future__ import annotations

from typing import Any

import pytest
from gateway_world import GatewayWorld

from keyspace.records.run import RetryRecord
from keyspace.transitions.declaration import ChildTerms

RUNS = "/v1/workspaces/acme/runs"
ONCE = RetryRecord(attempts=1, initial_ms=0, coefficient=1.0, cap_ms=0)


async def family(world: GatewayWorld) -> tuple[str, str]:
    """Start a run that invokes another; return both ids."""
    await world.core.publish({"fulfil": ["order.placed"], "pick": []})
    run = await world.core.start_run()
    terms = ChildTerms(function="pick", input=b'{"n":  1}', timeout_ms=60_000)
    await world.core.declare(await world.core.lease_pass(), "call", retry=ONCE, terms=terms)
    child_id = (await world.core.get_run(run.run_id)).child_id
    assert child_id is not None
    return run.run_id, child_id


async def test_parent_and_child_name_each_other(world: GatewayWorld) -> None:
    """RFD 2, "The accepting transaction records the invocation with the step": the run, its step and the child agree."""
    run_id, child_id = await family(world)
    parent = await world.ask("GET", f"{RUNS}/{run_id}")
    assert (parent["child"], parent["parent"]) == (child_id, None)
    assert parent["waiting"]["word"] == "child" and child_id in parent["waiting"]["sentence"]
    raw = await world.request("GET", f"{RUNS}/{child_id}")
    child = raw.json()
    assert child["parent"] == {"run": run_id, "step": "call", "depth": 1}
    assert (child["event"], child["event_name"], child["binding"], child["child"]) == (None, None, None, None)
    assert b'"input":{"n":  1}' in raw.content, "the exact bytes"
    (step,) = (await world.ask("GET", f"{RUNS}/{run_id}/steps"))["items"]
    assert (step["kind"], step["state"], step["child"], step["attempts"]) == ("child", "waiting", child_id, [])
    assert (await world.ask("GET", f"{RUNS}/{run_id}/steps/call"))["child"] == child_id


async def test_lists_show_children_among_all_runs(world: GatewayWorld) -> None:
    """RFD 2, "one run record, list entry, location": a child is in every list that a run is in."""
    run_id, child_id = await family(world)
    for query in ({}, {"status": "running"}):
        listed = (await world.ask("GET", RUNS, params=query))["items"]
        found: dict[str, Any] = {run["run"]: run for run in listed}
        assert set(found) == {run_id, child_id}
        assert found[child_id]["parent"]["run"] == run_id and found[child_id]["event"] is None
    by_function = await world.ask("GET", RUNS, params={"application": "shop", "function": "pick"})
    assert [run["run"] for run in by_function["items"]] == [child_id]


async def test_cancelling_a_parent_says_what_is_waited_for(world: GatewayWorld) -> None:
    """Case 038: the reply never claims that the child has stopped."""
    run_id, child_id = await family(world)
    reply = await world.ask("POST", f"{RUNS}/{run_id}/cancel")
    assert (reply["outcome"], reply["phase"], reply["settling"]) == ("accepted", "cancelling", True)
    assert "an invoked run that has not ended" in reply["explanation"]
    shown = await world.ask("GET", f"{RUNS}/{run_id}")
    assert shown["waiting"]["word"] == "child" and "was cancelled" in shown["waiting"]["sentence"]
    assert (await world.ask("GET", f"{RUNS}/{child_id}"))["status"] == "running"


@pytest.mark.case(41)
async def test_a_child_is_nobodys_in_another_workspace(world: GatewayWorld) -> None:
    """Case 041: refused exactly like something that does not exist."""
    _, child_id = await family(world)
    key = world.keys["rival", "admin"]
    for path in ("", "/steps", "/history"):
        await world.refused("not_found", "GET", f"/v1/workspaces/rival/runs/{child_id}{path}", key=key)
