"""Why is my run stuck, and what failed before? Every attempt with its failure, and every wait by its name."""

from __future__ import annotations

from typing import Any

import pytest
from gateway_world import GatewayWorld
from transitions.world import INSTANCE_ID, LEASE_MS, World, work_of

from keyspace.limits import LOSSES_STUCK
from keyspace.records.run import FailureRecord, RetryRecord
from keyspace.transitions.declaration import ChildTerms, TimerTerms
from keyspace.transitions.work import Accepted

PATIENT = RetryRecord(attempts=6, initial_ms=1_000, coefficient=2.0, cap_ms=4_000)
ONCE = RetryRecord(attempts=1, initial_ms=0, coefficient=1.0, cap_ms=0)
FAILURES = 5


async def show(world: GatewayWorld, run: str, what: str = "") -> Any:
    return await world.ask("GET", f"/v1/workspaces/acme/runs/{run}{what}")


async def fail_often(core: World, times: int) -> str:
    """Let a step of a new run fail some times, each time for another reason; return the run, which backs off."""
    run = await core.start_run()
    work = await core.start_step("fragile", retry=PATIENT)
    for number in range(1, times + 1):
        failure = FailureRecord(category="application", message=f"reason {number}", details=f'{{"code":{number}}}')
        assert await core.fail_attempt(work, failure) == Accepted()
        if number < times:
            core.clock.advance(PATIENT.cap_ms)
            work = await core.start_attempt()
    return run.run_id


def judge_failures(attempts: list[dict[str, Any]], history: list[dict[str, Any]]) -> None:
    """Each failed attempt is shown whole, in its step and in history."""
    assert [one["ordinal"] for one in attempts] == list(range(1, FAILURES + 1))
    for number, attempt in enumerate(attempts, start=1):
        assert attempt["state"] == "failed"
        assert (attempt["failure"]["message"], attempt["failure"]["details"]) == (f"reason {number}", {"code": number})
        assert attempt["queued_at_ms"] <= attempt["authorized_at_ms"] <= attempt["settled_at_ms"]
        assert (attempt["instance"], attempt["release"]) == (INSTANCE_ID, "release-1")
    told = [entry["data"] for entry in history if entry["kind"] == "attempt-failed"]
    assert [data["failure"]["message"] for data in told] == [f"reason {n}" for n in range(1, FAILURES + 1)]
    assert {(data["instance"], data["release"]) for data in told} == {(INSTANCE_ID, "release-1")}


@pytest.mark.case(76)
async def test_every_failure_of_a_retried_step_is_shown_after_its_success(world: GatewayWorld) -> None:
    """Case 076, RFD 1 ¶33, "A handled failure remains visible in step and attempt history": also once all is well."""
    run = await fail_often(world.core, FAILURES)
    world.clock.advance(PATIENT.cap_ms)
    assert await world.core.succeed(await world.core.start_attempt()) == Accepted()
    assert await world.core.complete(await world.core.lease_pass()) == Accepted()
    (step,) = (await show(world, run, "/steps"))["items"]
    assert step["state"] == "completed"
    assert step["attempts"][-1]["state"] == "succeeded"
    judge_failures(step["attempts"][:-1], (await show(world, run, "/history"))["items"])
    assert (await show(world, run))["waiting"] is None


@pytest.mark.case(76)
async def test_a_cancel_during_the_backoff_loses_no_failure(world: GatewayWorld) -> None:
    """Case 076, "it was lost on cancel": the run has ended, and still says why its step kept failing."""
    run = await fail_often(world.core, FAILURES)
    waiting = (await show(world, run))["waiting"]
    assert (waiting["word"], waiting["until_ms"] > world.clock.now_ms()) == ("backoff", True)
    await world.ask("POST", f"/v1/workspaces/acme/runs/{run}/cancel")
    assert (await show(world, run))["phase"] == "terminal"
    (step,) = (await show(world, run, "/steps"))["items"]
    assert (step["state"], step["attempts"][-1]["state"]) == ("obsolete", "fenced")
    judge_failures(step["attempts"][:-1], (await show(world, run, "/history"))["items"])


async def queued(core: World) -> str:
    return (await core.start_run()).run_id


async def asleep(core: World) -> str:
    run = await core.start_run()
    await core.declare(await core.lease_pass(), "nap", retry=ONCE, terms=TimerTerms(delay_ms=60_000))
    return run.run_id


async def with_child(core: World) -> str:
    await core.publish({"fulfil": ["order.placed"], "pick": []})
    run = await core.start_run()
    terms = ChildTerms(function="pick", input=b"1")
    await core.declare(await core.lease_pass(), "pick-it", retry=ONCE, terms=terms)
    return run.run_id


async def in_doubt(core: World) -> str:
    run = await core.start_run()
    work = await core.start_step()
    core.clock.advance(LEASE_MS)
    await core.lose(work.item_id)
    return run.run_id


async def dying(core: World) -> str:
    """Lose the worker of the first pass again and again."""
    run = await core.start_run()
    for _ in range(LOSSES_STUCK):
        delivery = await core.lease()
        await core.lose(work_of(delivery).item_id, is_session_lost=True)
        item = await core.item(delivery.item.item_id)
        assert item is not None
        core.clock.advance(max(0, item.vesting_ms - core.clock.now_ms()))
    return run.run_id


@pytest.mark.case(76)
@pytest.mark.parametrize(
    ("prepare", "word", "names"),
    [
        (queued, "worker", "the next pass"),
        (asleep, "timer", "step nap"),
        (with_child, "child", "step pick-it"),
        (in_doubt, "operator", "step s1"),
        (dying, "stuck", f"{LOSSES_STUCK} times"),
    ],
)
async def test_a_run_that_goes_nowhere_says_what_it_waits_for_and_since_when(
    world: GatewayWorld, prepare: Any, word: str, names: str
) -> None:
    """Case 076, "each non-terminal run names what it waits for": alone and in the list, the same."""
    begun_ms = world.clock.now_ms()
    run = await prepare(world.core)
    waiting = (await show(world, run))["waiting"]
    assert waiting["word"] == word
    assert names in waiting["sentence"]
    assert begun_ms <= waiting["since_ms"] <= world.clock.now_ms()
    listed = (await world.ask("GET", "/v1/workspaces/acme/runs"))["items"]
    assert {one["run"]: one["waiting"] for one in listed}[run] == waiting
