"""Who may do what: roles by route, foreign workspaces, revoked keys, the operator's key."""

from __future__ import annotations

from itertools import product

import pytest
from gateway_world import SYSTEM_KEY, GatewayWorld

from keyspace.clock import VirtualClock
from keyspace.records.tenancy import Role
from services.gateway.auth import GRANTS, Action, bearer_secret
from services.gateway.endpoints import Endpoint
from services.gateway.problems import ApiProblem
from services.gateway.routes import ENDPOINTS

ROLES = (Role.ADMIN, Role.CLIENT, Role.READER, Role.WORKER)


def path_of(endpoint: Endpoint, workspace: str, run: str = "0" * 32) -> str:
    return endpoint.path.format(
        workspace=workspace,
        event=run,
        run=run,
        key="0" * 32,
        step="s1",
        application="shop",
        function="fulfil",
        generation="1",
    )


@pytest.mark.case(74)
@pytest.mark.parametrize(
    ("role", "endpoint"), list(product(ROLES, ENDPOINTS)), ids=lambda value: getattr(value, "name", value)
)
async def test_each_role_reaches_exactly_its_routes(world: GatewayWorld, role: Role, endpoint: Endpoint) -> None:
    """Case 074: read-only and worker credentials change nothing; the table of grants is what the routes enforce."""
    response = await world.request(endpoint.method, path_of(endpoint, "acme"), key=world.keys["acme", role.value])
    is_granted = endpoint.action is None or endpoint.action in GRANTS[role]
    assert (response.status_code == 403) is not is_granted, response.text
    if not is_granted:
        assert response.json()["code"] == "forbidden"


@pytest.mark.case(74)
@pytest.mark.parametrize("endpoint", [one for one in ENDPOINTS if "{workspace}" in one.path], ids=lambda one: one.name)
async def test_another_workspace_looks_like_one_that_is_not(world: GatewayWorld, endpoint: Endpoint) -> None:
    """Case 074: the same answer as for something that does not exist, for every route, and nothing mutated."""
    run = await world.core.start_run()
    before = await world.core.dump()
    answers = []
    for workspace in ("acme", "nobody"):
        response = await world.request(
            endpoint.method, path_of(endpoint, workspace, run.run_id), key=world.keys["rival", "admin"]
        )
        problem = response.json()
        assert problem.pop("workspace") == workspace
        answers.append((response.status_code, problem))
    assert answers[0] == answers[1]
    assert answers[0][0] == 404
    assert await world.core.dump() == before


@pytest.mark.case(74)
async def test_ids_of_another_workspace_name_nothing_in_ones_own(world: GatewayWorld) -> None:
    """Case 074: every look-up is inside the credential's scope, whatever the id."""
    run = await world.core.start_run(workspace="acme")
    work = await world.core.start_step()
    await world.core.succeed(work)
    key = world.keys["rival", "admin"]
    for path in (
        f"events/{run.event_id}",
        f"events/{run.event_id}/matches",
        f"runs/{run.run_id}",
        f"runs/{run.run_id}/steps",
        f"runs/{run.run_id}/steps/s1",
        f"runs/{run.run_id}/history",
        f"runs/{run.run_id}/history/stream",
    ):
        await world.refused("not_found", "GET", f"/v1/workspaces/rival/{path}", key=key)
    foreign = world.key_ids["acme", "admin"]
    await world.refused("not_found", "DELETE", f"/v1/workspaces/rival/keys/{foreign}", key=key)


@pytest.mark.parametrize(
    "header",
    ["", "Bearer", "Bearer  ", "Basic abc", "Bearer a b", "bearer unknown", f"Bearer {SYSTEM_KEY}x", "Bearer " + "x" * 2_000],
)  # fmt: skip
async def test_without_a_valid_key_there_is_no_answer(world: GatewayWorld, header: str) -> None:
    response = await world.request(
        "GET", "/v1/workspaces/acme/runs", key="", headers={"Authorization": header} if header else {}
    )
    assert response.status_code == 401
    assert response.json()["code"] == "unauthenticated"
    assert response.headers["www-authenticate"] == "Bearer"


def test_the_scheme_is_read_without_regard_to_case() -> None:
    """RFC 9110: authentication schemes are case-insensitive."""
    assert bearer_secret("bEaReR  secret ") == "secret"
    assert bearer_secret(None) is None


async def test_the_operators_key_reaches_every_workspace(world: GatewayWorld) -> None:
    for workspace in ("acme", "rival"):
        await world.ask("GET", f"/v1/workspaces/{workspace}/runs", key=SYSTEM_KEY)
    await world.refused("not_found", "GET", "/v1/workspaces/nobody/runs", key=SYSTEM_KEY)
    listed = await world.ask("GET", "/v1/workspaces", key=SYSTEM_KEY)
    assert [workspace["name"] for workspace in listed["items"]] == ["acme", "rival"]


async def test_other_keys_list_only_their_own_workspace(world: GatewayWorld) -> None:
    listed = await world.ask("GET", "/v1/workspaces", key=world.keys["acme", "reader"])
    assert [workspace["name"] for workspace in listed["items"]] == ["acme"]


async def test_an_administrator_cannot_make_a_key_that_reaches_further(world: GatewayWorld) -> None:
    """A system key reaches every workspace, so only the operator may make one."""
    problem = await world.refused("forbidden", "POST", "/v1/workspaces/acme/keys", json={"role": "system"})
    assert problem["field"] == "role"
    made = await world.ask("POST", "/v1/workspaces/acme/keys", json={"role": "system"}, key=SYSTEM_KEY, status=201)
    await world.ask("GET", "/v1/workspaces/rival/runs", key=made["secret"])


async def test_a_secret_is_shown_once_and_stored_nowhere(world: GatewayWorld) -> None:
    made = await world.ask("POST", "/v1/workspaces/acme/keys", json={"role": "client", "label": "shop"}, status=201)
    assert made["secret"].startswith("ryk_")
    assert len(made["secret"]) >= 47
    listed = await world.ask("GET", "/v1/workspaces/acme/keys")
    assert made["key"] in [key["key"] for key in listed["items"]]
    assert all("secret" not in key and "digest" not in key for key in listed["items"])
    stored = b"".join(key + value for key, value in (await world.core.dump()).items())
    assert made["secret"].encode() not in stored


@pytest.mark.case(74)
async def test_a_revoked_key_ends_here_at_once_and_elsewhere_within_the_stated_time() -> None:
    """Case 074: revocation takes effect within a stated time: key_cache_ms, at most five seconds."""
    world = GatewayWorld(clock=VirtualClock())
    await world.furnish()
    secret, key_id = world.keys["acme", "client"], world.key_ids["acme", "client"]
    elsewhere = world.start_gateway()
    assert (await elsewhere.keys.identify(secret)).key_id == key_id
    await world.ask("GET", "/v1/workspaces/acme/runs", key=secret)
    await world.ask("DELETE", f"/v1/workspaces/acme/keys/{key_id}")
    await world.refused("unauthenticated", "GET", "/v1/workspaces/acme/runs", key=secret)
    world.clock.advance(world.config.key_cache_ms - 1)
    assert (await elsewhere.keys.identify(secret)).key_id == key_id
    world.clock.advance(1)
    with pytest.raises(ApiProblem, match="Present a valid key"):
        await elsewhere.keys.identify(secret)
    again = await world.ask("DELETE", f"/v1/workspaces/acme/keys/{key_id}")
    assert again["revoked_at_ms"] is not None


def test_every_role_and_action_is_in_the_table() -> None:
    assert set(GRANTS) == set(Role)
    assert GRANTS[Role.SYSTEM] == frozenset(Action)
    assert not GRANTS[Role.WORKER]
    assert Action.CREATE_WORKSPACE not in frozenset().union(*(GRANTS[role] for role in ROLES))
