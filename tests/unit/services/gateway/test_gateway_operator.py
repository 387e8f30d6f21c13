"""The operator's endpoints: cancellation, the list of unknown outcomes, resolution with its refusals in their order."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from gateway_world import SYSTEM_KEY, GatewayWorld
from transitions.world import LEASE_MS, RETRY

from keyspace.lifecycle import StepState
from keyspace.limits import FAILURE_DETAILS_BYTES_MAX, FAILURE_MESSAGE_BYTES_MAX
from keyspace.records.work import Direction
from keyspace.transitions.work import Accepted, Work

ROOT = "/v1/workspaces/acme"
NO_RUN = "0" * 32


async def lose(world: GatewayWorld, work: Work) -> Work:
    world.clock.advance(LEASE_MS)
    await world.core.lose(work.item_id)
    return work


async def unknown_step(world: GatewayWorld, step: str = "s1", **options: Any) -> Work:
    await world.core.start_run()
    return await lose(world, await world.core.start_step(step, **options))


def path_of(work: Work) -> str:
    assert work.step_id is not None
    return f"{ROOT}/runs/{work.run_id}/steps/{work.step_id}/attempts/{work.generation}/resolve"


def sent(body: Any, key: str | None = "k1") -> dict[str, Any]:
    content = body if isinstance(body, bytes) else msgspec.json.encode(body)
    return {"content": content, "headers": {} if key is None else {"Idempotency-Key": key}}


async def cancel(world: GatewayWorld, run_id: str, **arguments: Any) -> Any:
    return await world.ask("POST", f"{ROOT}/runs/{run_id}/cancel", **arguments)


# -- cancellation


@pytest.mark.case(20)
async def test_a_cancellation_says_what_it_came_to(world: GatewayWorld) -> None:
    """Case 020: the acknowledgement never claims that running work stopped; a repeat changes nothing."""
    run = await world.core.start_run()
    work = await world.core.start_step("s1")
    answer = await cancel(world, run.run_id, key=world.keys["acme", "client"])
    explanation = answer.pop("explanation")
    assert answer == {
        "run": run.run_id, "outcome": "accepted", "phase": "cancelling", "status": "cancelling", "execution": None,
        "recovery": None, "settling": True,
    }  # fmt: skip
    assert "still waited for" in explanation
    shown = await world.ask("GET", f"{ROOT}/runs/{run.run_id}")
    assert shown["waiting"]["word"] == "settling"
    assert "The run was cancelled" in shown["waiting"]["sentence"]
    by = world.key_ids["acme", "client"]
    assert (shown["stop"]["reason"], shown["stop"]["by"]) == ("cancelled", by)
    before = await world.core.dump()
    assert (await cancel(world, run.run_id))["outcome"] == "repeated"
    assert await world.core.dump() == before
    history = (await world.ask("GET", f"{ROOT}/runs/{run.run_id}/history"))["items"]
    (stop,) = [entry["data"] for entry in history if entry["kind"] == "stop-committed"]
    assert stop == {"reason": "cancelled", "by": by}
    await world.core.succeed(work)
    again = await cancel(world, run.run_id)
    assert (again["outcome"], again["phase"], again["settling"]) == ("repeated", "compensating", False)


@pytest.mark.case(20)
async def test_a_run_that_has_ended_answers_how(world: GatewayWorld) -> None:
    """Case 020: "already terminal with that outcome"."""
    run = await world.core.start_run()
    await world.core.complete(await world.core.lease_pass())
    answer = await cancel(world, run.run_id)
    assert (answer["outcome"], answer["status"], answer["execution"]) == ("already_terminal", "completed", "completed")
    fresh = await world.core.start_run()
    ended = await cancel(world, fresh.run_id)
    assert (ended["outcome"], ended["phase"], ended["status"]) == ("accepted", "terminal", "cancelled")
    assert ended["recovery"] == "not_required:empty_unwind"
    assert "has ended as cancelled" in ended["explanation"]
    listed = await world.ask("GET", f"{ROOT}/runs", params={"status": "cancelled"})
    assert [one["run"] for one in listed["items"]] == [fresh.run_id]


async def test_a_failed_run_in_its_unwind_is_not_cancelled(world: GatewayWorld) -> None:
    run = await world.core.start_run()
    await world.core.run_step("s1")
    await world.core.fail(await world.core.lease_pass())
    answer = await cancel(world, run.run_id)
    assert (answer["outcome"], answer["execution"], answer["status"]) == ("already_ending", "failed", "compensating")


async def test_what_cannot_be_cancelled_is_not_found(world: GatewayWorld) -> None:
    await world.refused("not_found", "POST", f"{ROOT}/runs/{NO_RUN}/cancel")
    run = await world.core.start_run(workspace="rival")
    await world.refused("not_found", "POST", f"{ROOT}/runs/{run.run_id}/cancel")


# -- the list


async def test_unknown_outcomes_are_listed_until_they_are_settled(world: GatewayWorld) -> None:
    """RFD 2, "records Unknown": an operator finds it without knowing its run."""
    works = [await unknown_step(world, f"s{number}") for number in range(3)]
    found: list[Any] = []
    cursor: str | None = None
    for _ in range(3):
        params = {"limit": 1, "unresolved": "true"} | ({} if cursor is None else {"cursor": cursor})
        page = await world.ask("GET", f"{ROOT}/attempts", params=params, key=world.keys["acme", "reader"])
        found += page["items"]
        cursor = page["next_cursor"]
    assert cursor is None
    assert sorted((one["run"], one["step"]) for one in found) == sorted((work.run_id, work.step_id) for work in works)
    first = next(one for one in found if one["step"] == "s0")
    attempt = await world.core.attempt(works[0].run_id, "s0", 1)
    assert first == {
        "run": works[0].run_id, "application": "shop", "function": "fulfil", "phase": "running", "stop": None,
        "step": "s0", "direction": "forward", "generation": 1, "ordinal": 1, "operation": attempt.operation_id,
        "instance": "11" * 16, "release": "release-1", "authorized_at_ms": attempt.authorized_at_ms,
        "lost_at_ms": attempt.lost_at_ms, "may_retry": True,
    }  # fmt: skip
    await cancel(world, works[0].run_id)
    await world.core.succeed(works[1])
    left = {one["step"]: one for one in (await world.ask("GET", f"{ROOT}/attempts"))["items"]}
    assert set(left) == {"s0", "s2"}
    assert (left["s0"]["stop"], left["s0"]["may_retry"]) == ("cancelled", False)
    assert (await world.ask("GET", "/v1/workspaces/rival/attempts", key=world.keys["rival", "reader"]))["items"] == []


async def test_only_unknown_outcomes_are_listed_across_runs(world: GatewayWorld) -> None:
    await world.refused("unsupported_filter", "GET", f"{ROOT}/attempts", params={"unresolved": "false"})
    await world.refused("invalid_query", "GET", f"{ROOT}/attempts", params={"unresolved": "1"})
    await world.refused("invalid_cursor", "GET", f"{ROOT}/attempts", params={"cursor": "AAAA"})
    await world.refused("not_found", "GET", "/v1/workspaces/nobody/attempts", key=SYSTEM_KEY)


# -- resolution


async def test_a_supplied_value_is_kept_byte_for_byte(world: GatewayWorld) -> None:
    """Case 067's rule for an operator's value too; the acting key stands in the answer and in history."""
    work = await unknown_step(world)
    body = b'{"success": {"value": {"n":  9007199254740993, "f": 1.0}}}'
    answer = await world.ask("POST", path_of(work), **sent(body))
    assert "goes on" in answer.pop("consequence")
    at_ms = answer.pop("resolved_at_ms")
    assert at_ms == (await world.core.get_run(work.run_id)).updated_at_ms
    assert answer == {
        "run": work.run_id, "step": "s1", "direction": "forward", "generation": 1, "command": "supply_success",
        "attempt_state": "succeeded", "phase": "running", "following_generation": None,
        "resolved_by": world.key_ids["acme", "admin"], "replayed": False,
    }  # fmt: skip
    assert await world.core.value(work.run_id, "s1") == b'{"n":  9007199254740993, "f": 1.0}'
    (told,) = [entry for entry in await world.core.history(work.run_id) if entry.kind == "attempt-resolved"]
    assert told.data["by"] == world.key_ids["acme", "admin"]


async def test_a_declared_failure_keeps_its_parts(world: GatewayWorld) -> None:
    work = await unknown_step(world)
    failure = {"message": "no é", "category": "bank", "details": {"code": 1.0}}
    answer = await world.ask("POST", path_of(work), **sent({"failure": failure}))
    assert (answer["command"], answer["attempt_state"]) == ("declare_failure", "failed")
    shown = await world.ask("GET", f"{ROOT}/runs/{work.run_id}/steps/s1")
    assert shown["state"] == "backing_off"
    assert shown["attempts"][0]["failure"] == {"category": "bank", "message": "no é", "details": {"code": 1.0}}
    other = await unknown_step(world, "s2")
    await world.ask("POST", path_of(other), **sent({"failure": {"message": "no"}}))
    record = (await world.core.attempt(other.run_id, "s2", 1)).failure
    assert record is not None and (record.category, record.details) == ("operator", None)


async def test_a_retry_names_the_generation_it_created(world: GatewayWorld) -> None:
    work = await unknown_step(world)
    answer = await world.ask("POST", path_of(work), **sent({"retry": {}}))
    assert (answer["attempt_state"], answer["following_generation"]) == ("retry_authorized", 2)
    assert "twice" in answer["consequence"]
    assert await world.core.succeed(await world.core.start_attempt()) == Accepted()


async def test_the_undo_of_a_step_is_resolved_by_its_direction(world: GatewayWorld) -> None:
    run = await world.core.start_run()
    await world.core.run_step("s1")
    await cancel(world, run.run_id)
    delivery = await world.core.lease(direction=Direction.COMPENSATION)
    assert delivery.item.token is not None
    work = Work(delivery.item.kind, run.run_id, "s1", delivery.item.item_id, delivery.item.token, 1)
    await world.core.authorize(work)
    await lose(world, work)
    shown = await world.ask("GET", f"{ROOT}/runs/{run.run_id}")
    assert shown["waiting"]["word"] == "operator"
    assert "the compensation of step s1 has an unknown outcome" in shown["waiting"]["sentence"]
    (listed,) = (await world.ask("GET", f"{ROOT}/attempts"))["items"]
    assert (listed["direction"], listed["may_retry"], listed["stop"]) == ("compensation", True, "cancelled")
    await world.refused("stale_attempt", "POST", path_of(work), **sent({"retry": {}}))
    body = {"success": {"value": None}, "direction": "compensation"}
    answer = await world.ask("POST", path_of(work), **sent(body))
    assert (answer["direction"], answer["phase"]) == ("compensation", "terminal")
    assert "the unwind has ended" in answer["consequence"]


async def test_a_repeat_is_answered_from_its_record(world: GatewayWorld) -> None:
    """RFD 2, "An identical repeat returns the recorded response"."""
    work = await unknown_step(world)
    first = await world.ask("POST", path_of(work), **sent({"retry": {}}))
    before = await world.core.dump()
    again = await world.ask("POST", path_of(work), **sent({"retry": {}}), key=SYSTEM_KEY)
    assert again == first | {"replayed": True}
    assert await world.core.dump() == before


SUCCESS = {"success": {"value": 1}}
MALFORMED: list[tuple[str, Any, str | None]] = [
    ("invalid_idempotency_key", SUCCESS, None),
    ("invalid_idempotency_key", SUCCESS, " "),
    ("invalid_idempotency_key", SUCCESS, "k" * 257),
    ("invalid_body", {}, "k1"),
    ("invalid_body", {"success": {"value": 1}, "retry": {}}, "k1"),
    ("invalid_body", {"success": None}, "k1"),
    ("invalid_body", {"success": {}}, "k1"),
    ("invalid_body", {"retry": {"now": True}}, "k1"),
    ("invalid_body", {"retry": {}, "direction": "sideways"}, "k1"),
    ("invalid_body", {"failure": {}}, "k1"),
    ("invalid_text", {"failure": {"message": ""}}, "k1"),
    ("invalid_text", {"failure": {"message": "m" * (FAILURE_MESSAGE_BYTES_MAX + 1)}}, "k1"),
    ("invalid_text", {"failure": {"message": "m", "details": "d" * FAILURE_DETAILS_BYTES_MAX}}, "k1"),
    ("invalid_text", {"failure": {"message": "m", "category": "c" * 101}}, "k1"),
    ("invalid_name", {"failure": {"message": "m", "category": " "}}, "k1"),
    ("invalid_value", {"failure": {"message": "m", "details": 2**70}}, "k1"),
    ("invalid_value", b'{"success": {"value": {"$bytes": 7}}}', "k1"),
    ("invalid_value", b'{"success": {"value": 1e999}}', "k1"),
    ("value_too_large", {"success": {"value": "v" * 262_143}}, "k1"),
    ("malformed_body", b'{"retry": {}, "retry": {}}', "k1"),
    ("malformed_body", b'{"retry": {}', "k1"),
]


@pytest.mark.parametrize(("code", "body", "key"), MALFORMED, ids=lambda value: str(value)[:30])
@pytest.mark.parametrize("is_recorded", [False, True])
async def test_what_is_malformed_is_refused_before_anything_else(
    world: GatewayWorld, is_recorded: bool, code: str, body: Any, key: str | None
) -> None:
    """RFD 2, "Refusals are decided in one order": the request itself comes before its recorded key."""
    work = await unknown_step(world)
    if is_recorded:
        await world.ask("POST", path_of(work), **sent({"retry": {}}))
    problem = await world.refused(code, "POST", path_of(work), **sent(body, key))
    assert 400 <= problem["status"] < 500
    assert problem["status"] != 409


async def test_the_refusals_come_in_their_order(world: GatewayWorld) -> None:
    """FILLED-IN 7, "Order of refusals": recorded key, exact unresolved attempt, stop policy; each 409 with its own code."""
    work = await unknown_step(world, retry=RETRY)
    await world.ask("POST", path_of(work), **sent({"retry": {}}))
    second = await lose(world, await world.core.start_attempt())
    await cancel(world, work.run_id)
    for path, body, key, code in (
        (path_of(work), SUCCESS, "k1", "idempotency_conflict"),
        (path_of(second), {"retry": {}}, "k1", "idempotency_conflict"),
        (path_of(work), {"retry": {}}, "k2", "stale_attempt"),
        (path_of(second), {"retry": {}}, "k2", "retry_forbidden"),
        (path_of(second._replace(generation=3)), {"retry": {}}, "k2", "stale_attempt"),
        (path_of(second._replace(run_id=NO_RUN)), {"retry": {}}, "k2", "stale_attempt"),
    ):
        problem = await world.refused(code, "POST", path, **sent(body, key))
        assert problem["status"] == 409
    assert (await world.ask("POST", path_of(work), **sent({"retry": {}})))["replayed"] is True
    answer = await world.ask("POST", path_of(second), **sent(SUCCESS, "k2"))
    assert answer["phase"] == "compensating"
    assert (await world.core.step(work.run_id, "s1")).state is StepState.COMPLETED


@pytest.mark.parametrize("generation", ["x", "-1", "1.0", "9" * 19, "%FF"])
async def test_a_generation_that_is_no_number_names_no_attempt(world: GatewayWorld, generation: str) -> None:
    run = await world.core.start_run()
    path = f"{ROOT}/runs/{run.run_id}/steps/s1/attempts/{generation}/resolve"
    await world.refused("not_found", "POST", path, **sent({"retry": {}}))


async def test_an_attempt_of_another_workspace_is_out_of_reach(world: GatewayWorld) -> None:
    """Case 074: the same id in one's own workspace is an attempt that does not exist."""
    work = await unknown_step(world)
    foreign = path_of(work).replace("/acme/", "/rival/")
    await world.refused("stale_attempt", "POST", foreign, key=world.keys["rival", "admin"], **sent({"retry": {}}))
    await world.refused("forbidden", "POST", path_of(work), key=world.keys["acme", "client"], **sent({"retry": {}}))
    await world.refused(
        "not_found", "POST", path_of(work).replace("/acme/", "/nobody/"), key=SYSTEM_KEY, **sent(SUCCESS)
    )
