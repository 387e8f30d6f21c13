"""Lists: newest first, each entry once, cursors bound to their query, an end that is never in doubt (case 073)."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from gateway_world import GatewayWorld

from keyspace.limits import LIST_PAGE_ITEMS_MAX
from services.gateway.cursors import ListQuery
from services.gateway.problems import ApiProblem

RUNS = "/v1/workspaces/acme/runs"
EVENTS = "/v1/workspaces/acme/events"


async def make_runs(world: GatewayWorld, count: int) -> list[str]:
    """Return the runs made, the newest first."""
    return [(await world.core.start_run()).run_id for _ in range(count)][::-1]


async def walk(
    world: GatewayWorld, path: str, between: Any = None, *, key: str | None = None, **query: Any
) -> list[dict[str, Any]]:
    """Return every entry of a list, doing something between pages."""
    found: list[dict[str, Any]] = []
    cursor = None
    for _ in range(1_000):
        params = query | ({} if cursor is None else {"cursor": cursor})
        page = await world.ask("GET", path, params=params, key=key)
        found += page["items"]
        cursor = page["next_cursor"]
        if cursor is None:
            return found
        if between is not None:
            await between()
    raise AssertionError("the list never ended")


@pytest.mark.case(73)
@pytest.mark.parametrize("limit", [1, 2, 3, 7, 500])
async def test_what_existed_at_the_start_is_listed_once_while_more_is_added(world: GatewayWorld, limit: int) -> None:
    """Case 073: runs added and changed between pages neither hide nor repeat what was there; the clock may step back."""
    existing = await make_runs(world, 7)

    async def disturb() -> None:
        world.clock.step(-5_000)
        await world.core.start_run()
        await world.core.complete(await world.core.lease_pass())

    listed = [run["run"] for run in await walk(world, RUNS, disturb, limit=limit)]
    assert listed == existing
    assert [event["event"] for event in await walk(world, EVENTS, limit=limit)][-7:] == [
        (await world.core.get_run(run)).event_id for run in existing
    ]


@pytest.mark.case(73)
async def test_an_exactly_full_last_page_says_that_it_is_the_last(world: GatewayWorld) -> None:
    """Case 073: the end is unambiguous."""
    runs = await make_runs(world, 4)
    first = await world.ask("GET", RUNS, params={"limit": 2})
    last = await world.ask("GET", RUNS, params={"limit": 2, "cursor": first["next_cursor"]})
    assert [run["run"] for run in first["items"] + last["items"]] == runs
    assert first["next_cursor"] is not None
    assert last["next_cursor"] is None
    assert await world.ask("GET", RUNS, params={"limit": 4}) | {"items": []} == {"items": [], "next_cursor": None}


@pytest.mark.case(73)
async def test_filters_narrow_and_an_empty_filter_ends_at_once(world: GatewayWorld) -> None:
    """Case 073: a filter that matches nothing is one empty page, read from its own index."""
    await world.core.publish({"fulfil": ["order.placed"], "bill": ["order.billed"]})
    await make_runs(world, 3)
    await world.core.complete(await world.core.lease_pass())
    billed = await world.core.start_run("order.billed")
    completed = await walk(world, RUNS, status="completed", limit=1)
    running = await walk(world, RUNS, status="running", limit=1)
    assert (len(completed), len(running)) == (1, 3)
    assert {run["status"] for run in completed} == {"completed"}
    by_function = await walk(world, RUNS, application="shop", function="bill")
    assert [run["run"] for run in by_function] == [billed.run_id]
    for query in ({"status": "cancelled"}, {"application": "shop", "function": "nothing"}):
        assert await world.ask("GET", RUNS, params=query) == {"items": [], "next_cursor": None}


@pytest.mark.case(73)
@pytest.mark.parametrize("limit", ["0", "-1", str(10**9), str(LIST_PAGE_ITEMS_MAX + 1), "1.5", "", "ten", "9" * 30])
async def test_a_page_size_out_of_range_is_refused(world: GatewayWorld, limit: str) -> None:
    """Case 073: refused, never cut to fit."""
    problem = await world.refused("invalid_query", "GET", RUNS, params={"limit": limit})
    assert (problem["field"], problem["low"], problem["high"]) == ("limit", 1, LIST_PAGE_ITEMS_MAX)


@pytest.mark.case(73)
async def test_a_cursor_of_another_query_is_refused(world: GatewayWorld) -> None:
    """Case 073: the token of another filter, list or workspace, or a tampered one, is a typed refusal."""
    await make_runs(world, 3)
    cursor = (await world.ask("GET", RUNS, params={"limit": 1}))["next_cursor"]
    await world.ask("GET", RUNS, params={"limit": 2, "cursor": cursor})
    for path, query in (
        (RUNS, {"status": "running"}),
        (RUNS, {"application": "shop", "function": "fulfil"}),
        (EVENTS, {}),
    ):
        await world.refused("invalid_cursor", "GET", path, params=query | {"cursor": cursor})
    await world.refused(
        "invalid_cursor",
        "GET",
        "/v1/workspaces/rival/runs",
        params={"cursor": cursor},
        key=world.keys["rival", "admin"],
    )
    data = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
    for index in range(len(data)):
        tampered = base64.urlsafe_b64encode(data[:index] + bytes((data[index] ^ 1,)) + data[index + 1 :]).decode()
        await world.refused("invalid_cursor", "GET", RUNS, params={"cursor": tampered.rstrip("=")})
    for broken in ("", "x", cursor[:-1], cursor + "A", cursor + "=", "é", "x" * 5_000):
        await world.refused("invalid_cursor", "GET", RUNS, params={"cursor": broken})


def test_a_cursor_has_one_spelling() -> None:
    """Base64 forgives stray bits in its last character; a cursor does not."""
    query = ListQuery("runs", "acme")
    sealed = query.seal(b"position")
    assert query.open(sealed) == b"position"
    for character in "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_":
        if character != sealed[-1]:
            with pytest.raises(ApiProblem):
                query.open(sealed[:-1] + character)


def test_the_parts_of_a_query_cannot_pose_as_others() -> None:
    with pytest.raises(ApiProblem):
        ListQuery("runs", "a", "bc").open(ListQuery("runs", "ab", "c").seal(b"x"))


@pytest.mark.parametrize(
    ("code", "query"),
    [
        ("unsupported_filter", {"status": "running", "application": "shop", "function": "fulfil"}),
        ("unsupported_filter", {"function": "fulfil"}),
        ("unsupported_filter", {"application": "shop"}),
        ("invalid_query", {"status": "sleeping"}),
        ("invalid_query", {"state": "running"}),
    ],
)
async def test_a_filter_that_cannot_be_is_refused(world: GatewayWorld, code: str, query: dict[str, str]) -> None:
    """A misspelt filter must not list everything, nor an unsupported one list something else."""
    await world.refused(code, "GET", RUNS, params=query)


async def test_a_parameter_given_twice_is_refused(world: GatewayWorld) -> None:
    await world.refused("invalid_query", "GET", RUNS + "?limit=1&limit=2")


async def test_a_workspaces_lists_hold_nothing_of_another(world: GatewayWorld) -> None:
    await make_runs(world, 2)
    await world.core.start_run(workspace="rival")
    assert len(await walk(world, RUNS)) == 2
    assert len(await walk(world, "/v1/workspaces/rival/runs", key=world.keys["rival", "admin"])) == 1
