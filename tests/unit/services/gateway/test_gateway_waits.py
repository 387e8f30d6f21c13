"""Durable event waits as the API shows them: what is waited for, since which boundary, and what an event did to it."""

from __future__ import annotations

import pytest
from gateway_world import GatewayWorld

from keyspace.records.run import RetryRecord
from keyspace.transitions.declaration import WaitTerms

RUNS = "/v1/workspaces/acme/runs"
EVENTS = "/v1/workspaces/acme/events"
ONCE = RetryRecord(attempts=1, initial_ms=0, coefficient=1.0, cap_ms=0)
PAIRS = {"order": "7", "place": "a", "b": "1", "c": "2"}


async def waiting(world: GatewayWorld, match: dict[str, str]) -> str:
    """Start a run that waits for an event; return its id."""
    run = await world.core.start_run()
    terms = WaitTerms(event="order.packed", match=match, timeout_ms=60_000)
    await world.core.declare(await world.core.lease_pass(), "packed", retry=ONCE, terms=terms)
    return run.run_id


@pytest.mark.case(31)
async def test_a_waiting_run_shows_its_event_its_pairs_and_the_boundary(world: GatewayWorld) -> None:
    """Case 031, "The run's page ... must show the boundary": the registration's instant and its stamp among the commits."""
    run_id = await waiting(world, PAIRS)
    now_ms = world.clock.now_ms()
    shown = await world.ask("GET", f"{RUNS}/{run_id}")
    assert shown["waiting"] == {
        "word": "event",
        "sentence": "step packed waits for an event order.packed with b=1 and c=2 and order=7 and 1 more, sent after the wait "
        "was declared.",
        "since_ms": now_ms,
        "until_ms": now_ms + 60_000,
    }
    (listed,) = (await world.ask("GET", RUNS))["items"]
    assert listed["waiting"] == shown["waiting"]
    step = await world.ask("GET", f"{RUNS}/{run_id}/steps/packed")
    awaited = dict(step["awaited"])
    assert len(awaited.pop("stamp")) == 24, "10 bytes of the commit and 2 of the order in it"
    assert awaited == {"name": "order.packed", "match": PAIRS, "timeout_ms": 60_000, "registered_at_ms": now_ms}
    (in_list,) = (await world.ask("GET", f"{RUNS}/{run_id}/steps"))["items"]
    assert in_list["awaited"] == step["awaited"] and step["due_at_ms"] == now_ms + 60_000
    history = await world.ask("GET", f"{RUNS}/{run_id}/history")
    (declared,) = [entry["data"] for entry in history["items"] if entry["kind"] == "step-declared"]
    assert (declared["awaits"], declared["match"], declared["timeout_ms"]) == ("order.packed", PAIRS, 60_000)


async def test_an_event_says_how_many_waits_it_met_and_settled(world: GatewayWorld) -> None:
    """RFD 2, "an accepted event settles every eligible registration it satisfies": and says how many."""
    run_id = await waiting(world, {"order": "7"})
    other_id = await waiting(world, {"order": "7", "place": "a"})
    sent = await world.ask(
        "POST", EVENTS, json={"name": "order.packed", "payload": {"n": 1}, "correlation": {"order": "7"}}, status=202
    )
    world.clock.advance(1)
    await world.core.expand()
    event = await world.ask("GET", f"{EVENTS}/{sent['event']}")
    expansion = event["expansion"]
    assert (expansion["state"], expansion["inspected_count"], expansion["settled_count"]) == ("complete", 2, 1)
    assert expansion["explanation"].endswith("It settled 1 of the 2 waits that it met.")
    step = await world.ask("GET", f"{RUNS}/{run_id}/steps/packed")
    assert (step["state"], step["event"], step["awaited"], step["value"]) == (
        "completed",
        sent["event"],
        None,
        {"n": 1},
    )
    assert (await world.ask("GET", f"{RUNS}/{other_id}/steps/packed"))["state"] == "waiting"
    again = await world.ask(
        "POST", EVENTS, json={"name": "order.packed", "payload": 1, "correlation": {"order": "7"}}, status=202
    )
    await world.core.expand()
    told = (await world.ask("GET", f"{EVENTS}/{again['event']}"))["expansion"]["explanation"]
    assert told.endswith("It satisfied none of the 1 waits that it met.")


@pytest.mark.case(35)
@pytest.mark.parametrize("value", [123, True, 1.0, None, ["7"], {"order": "7"}])
async def test_what_is_no_text_is_refused_as_correlation(world: GatewayWorld, value: object) -> None:
    """Case 035, "names and values are text, anything else is refused ... at the gateway with a typed error"."""
    body = {"name": "order.packed", "payload": 1, "correlation": {"order": value}}
    problem = await world.refused("invalid_body", "POST", EVENTS, json=body)
    assert problem["path"].startswith("$.correlation")
