"""Steps that current code no longer has: who says so, what becomes of them, and that it fits one transaction (FILLED-IN 6)."""

from __future__ import annotations

from typing import Any

import pytest
from operator_verbs import must_refuse
from world import LEASE_MS, World

from keyspace.assignment import load_assignment, load_progress
from keyspace.errors import Refusal
from keyspace.fsck import check_keyspace
from keyspace.layout import FAILED, STEP
from keyspace.lifecycle import CompensationState, Execution, Phase, Recovery, StepState
from keyspace.limits import (
    ALLOWANCE_FIXED_BYTES,
    ALLOWANCE_PAYLOADS_MIN,
    FAILED_RESERVE_BYTES,
    FAILED_SHARE,
    FAILED_STEPS_MAX,
    FAILURE_MESSAGE_BYTES_MAX,
    PAYLOAD_BYTES_DEFAULT,
    PAYLOAD_BYTES_MAX,
)
from keyspace.records.run import FailureRecord, RetryRecord, RunRecord
from keyspace.transitions import failed_steps
from keyspace.transitions.activate_routing import activate_routing
from keyspace.transitions.continue_run import Completion, FunctionFailure
from keyspace.transitions.publish_manifest import FunctionSpec, ManifestSpec, TriggerSpec, publish_manifest
from keyspace.transitions.target_not_found import target_not_found
from keyspace.transitions.work import Accepted, Replayed, Stale
from keyspace.tx import Tx

ONCE = RetryRecord(attempts=1, initial_ms=0, coefficient=1.0, cap_ms=0)
OOPS = FailureRecord(category="application", message="uncaught")


async def fail_step(world: World, step_id: str, failure: FailureRecord | None = None) -> None:
    """Take a step from its declaration to its terminal failure."""
    work = await world.start_step(step_id, retry=ONCE)
    assert await world.fail_attempt(work, failure) == Accepted()


async def begin(world: World, *failed: str) -> RunRecord:
    """Start a run in which some steps fail for good."""
    run = await world.start_run()
    for step_id in failed:
        await fail_step(world, step_id)
    return run


async def states(world: World, run: RunRecord) -> dict[str, str]:
    return {step.step_id: step.state.value for step in await world.records(STEP, run.run_id)}


# -- "a failed step is removed | Obsolete, when a pass that completes or fails the function did not meet it"


async def test_a_completion_makes_the_failed_steps_obsolete_that_it_did_not_meet(world: World) -> None:
    """FILLED-IN 6, "a failed step is removed"; RFD 2, "If current code no longer emits the failed step"."""
    run = await begin(world, "a", "b", "c")
    assert (await world.get_run(run.run_id)).failed_count == 3
    work = await world.lease_pass()
    assert await world.complete(work, failed_met={"b"}) == Accepted()
    assert await states(world, run) == {"a": "obsolete", "b": "failed", "c": "obsolete"}
    after = await world.get_run(run.run_id)
    assert (after.phase, after.failed_count) == (Phase.TERMINAL, 1)
    assert (await world.kinds(run.run_id))[-3:] == ["step-obsolete", "step-obsolete", "run-completed"]
    before = await world.dump()
    assert await world.complete(work, failed_met={"b"}) == Replayed()
    assert await world.dump() == before
    await world.check()


async def test_a_failure_of_the_function_does_the_same_before_it_unwinds(world: World) -> None:
    """FILLED-IN 6, "completes or fails the function": the completed step is undone, what was removed is Obsolete."""
    run = await world.start_run()
    await world.run_step("done")
    await fail_step(world, "gone")
    await fail_step(world, "met")
    assert await world.fail(await world.lease_pass(), OOPS, failed_met={"met", "nonsense"}) == Accepted()
    assert await states(world, run) == {"done": "completed", "gone": "obsolete", "met": "failed"}
    assert (await world.get_run(run.run_id)).phase is Phase.COMPENSATING
    assert (await world.step(run.run_id, "done")).compensation is CompensationState.PENDING
    await world.check()


async def test_a_return_value_that_no_record_carries_fails_the_function_all_the_same(world: World) -> None:
    """FILLED-IN 11, "A function's own oversized return value fails the function": the pass went to the function's end."""
    run = await begin(world, "a")
    output = b'"' + b"x" * world.keyspace.payload_bytes_max + b'"'
    assert await world.complete(await world.lease_pass(), output, failed_met=()) == Accepted()
    assert await states(world, run) == {"a": "obsolete"}
    assert (await world.get_run(run.run_id)).execution is Execution.FAILED
    await world.check()


@pytest.mark.parametrize("ending", [Completion(b"1", ()), FunctionFailure(OOPS, ())], ids=["completes", "fails"])
async def test_a_continued_pass_says_it_too(world: World, ending: Completion | FunctionFailure) -> None:
    """ARCHITECTURE 6, "Continuation": the answer is the same whether it comes alone or with the result before it."""
    run = await begin(world, "a")
    work = await world.start_step("b")
    assert (await world.go_on(work, ending)).answer == Accepted()
    assert await states(world, run) == {"a": "obsolete", "b": "completed"}
    await world.check()


@pytest.mark.parametrize("met", [None, {"a"}], ids=["does not say", "met it"])
@pytest.mark.parametrize("ends", ["completes", "fails"])
async def test_what_was_met_stays_failed(world: World, ends: str, met: set[str] | None) -> None:
    """RFD 1, "A handled failure remains visible": and a pass that says nothing of its failed steps changes none."""
    run = await begin(world, "a")
    work = await world.lease_pass()
    verdict = world.complete(work, failed_met=met) if ends == "completes" else world.fail(work, failed_met=met)
    assert await verdict == Accepted()
    assert await states(world, run) == {"a": "failed"}
    await world.check()


async def test_a_pass_that_stops_earlier_says_nothing(world: World) -> None:
    """FILLED-IN 6, "a pass that stops earlier says nothing about it": another step is declared, the failed one stays."""
    run = await begin(world, "a")
    assert await world.declare(await world.lease_pass(), "b") == Accepted()
    assert await states(world, run) == {"a": "failed", "b": "pending"}
    await world.check()


async def test_a_pass_at_the_deadline_says_nothing(world: World) -> None:
    """RFD 2, "delayed timer dispatch cannot let completion bypass the deadline": the answer is discarded, whatever it met."""
    spec = ManifestSpec(
        "shop", (FunctionSpec("fulfil", (TriggerSpec("order.placed", "f@e"),), timeout_ms=LEASE_MS // 2),)
    )
    record, _ = await world.run("publish", lambda tx: publish_manifest(tx, "acme", spec, published_by="test"))
    await world.run(
        "activate",
        lambda tx: activate_routing(tx, "acme", {"shop": record.generation}, activated_by="test", is_merge=True),
    )
    run = await begin(world, "a")
    work = await world.lease_pass()
    world.clock.advance(LEASE_MS // 2)
    assert isinstance(await world.complete(work, failed_met=()), Stale)
    assert await states(world, run) == {"a": "failed"}
    assert (await world.get_run(run.run_id)).execution is Execution.TIMED_OUT
    await world.check()


async def test_the_passes_of_an_unwind_still_see_the_failure(world: World) -> None:
    """RFD 1, "the SDK asks current code": rolled back, it meets the step again on its way, and must not stop at it."""
    run = await world.start_run()
    await fail_step(world, "gone")
    await world.run_step("done")
    await world.fail(await world.lease_pass(), failed_met=())
    now = await world.get_run(run.run_id)
    whole = await world.read(lambda tx: load_assignment(tx, "acme", now, "done"))
    rest = await world.read(lambda tx: load_progress(tx, "acme", now, "done", 0))
    for assignment in (whole, rest):
        assert [(step.step_id, step.failure is not None) for step in assignment.settled] == [
            ("gone", True),
            ("done", False),
        ]
    await world.check()


# -- bounds


async def test_a_run_may_have_so_many_failed_steps(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """ARCHITECTURE 7, "exceeding it is a typed refusal": counted in failed steps, so a success goes on; nothing is mutated."""
    monkeypatch.setattr(failed_steps, "FAILED_STEPS_MAX", 2)
    run = await begin(world, "a")
    await world.run_step("fine")
    await fail_step(world, "b")
    work = await world.lease_pass()
    refusal = await must_refuse(world, "failed_step_limit", world.declare(work, "c"))
    assert (refusal.details["field"], refusal.details["value"], refusal.details["limit"]) == ("failed_steps", 2, 2)
    assert await world.complete(work, failed_met=()) == Accepted(), "the refused pass goes on and may end its function"
    assert (await world.get_run(run.run_id)).failed_count == 0
    await world.check()


WORST = {
    "short": ("{:04}", FailureRecord(category="application", message="no")),
    "long ids": ("{:0200}", FailureRecord(category="application", message="no")),
    "long failures": ("{:04}", FailureRecord(category="application", message="\x01" * FAILURE_MESSAGE_BYTES_MAX)),
}


@pytest.mark.parametrize("shape", WORST)
async def test_all_failed_steps_fit_the_transaction_that_ends_the_function(world: World, shape: str) -> None:
    """S5, "Every transaction fits its byte and conflict-range budget by construction": with the longest output besides."""
    pattern, failure = WORST[shape]
    run = await world.start_run()
    count = await _fail_until_refused(world, pattern, failure)
    assert {"short": 700, "long ids": 250, "long failures": 30}[shape] < count <= FAILED_STEPS_MAX
    output = b'"' + b"x" * (PAYLOAD_BYTES_DEFAULT - 2) + b'"'
    assert await world.complete(await world.lease_pass(), output, failed_met=()) == Accepted()
    assert set((await states(world, run)).values()) == {"obsolete"}
    sizes = world.keyspace.meter.snapshot()["complete_run"].size_bytes
    assert sizes < world.keyspace.allowance_bytes
    report = await check_keyspace(world.keyspace)
    assert report.is_clean


async def test_they_fit_beside_the_last_result_and_the_output_accepted_together(world: World) -> None:
    """S5, "Every transaction fits": both values at their longest, the allowance at its least, no room for a further failure."""
    keyspace = world.keyspace
    keyspace.payload_bytes_max = PAYLOAD_BYTES_MAX
    keyspace.allowance_bytes = ALLOWANCE_PAYLOADS_MIN * PAYLOAD_BYTES_MAX + ALLOWANCE_FIXED_BYTES
    limit = int(keyspace.allowance_bytes * FAILED_SHARE) - FAILED_RESERVE_BYTES
    run = await world.start_run()
    pattern, failure = WORST["long failures"]
    weight = 0
    while run.failed_bytes + weight <= limit:
        await fail_step(world, pattern.format(run.failed_count), failure)
        before, run = run, await world.get_run(run.run_id)
        weight = run.failed_bytes - before.failed_bytes
    last = await world.start_step("last")
    longest = b'"' + b"x" * (PAYLOAD_BYTES_MAX - 2) + b'"'
    assert (await world.go_on(last, Completion(longest, frozenset()), longest)).answer == Accepted()
    assert (await world.get_run(run.run_id)).phase is Phase.TERMINAL
    await world.check()


async def _fail_until_refused(world: World, pattern: str, failure: FailureRecord) -> int:
    """Fail steps until the next one is refused, and give the pass back; return how many there are."""
    for number in range(FAILED_STEPS_MAX + 1):
        work = await world.lease_pass()
        try:
            await world.declare(work, pattern.format(number), retry=ONCE)
        except Refusal as refusal:
            assert refusal.code == "failed_step_limit"
            await world.give_back(work)
            return number
        await world.fail_attempt(await world.start_attempt(), failure)
    raise AssertionError("nothing was refused")


# -- the other rows of the table that a transition decides


@pytest.mark.parametrize("ends", ["completes", "fails"])
async def test_a_step_that_is_running_when_it_is_removed_settles_first(world: World, ends: str) -> None:
    """FILLED-IN 6, "a step that is authorized and running is removed": "it settles first, as usual; its result is kept"."""
    run = await world.start_run()
    work = await world.start_step("gone")
    assert await world.run("not_found", lambda tx: target_not_found(tx, "acme", work)) == Stale("attempt_not_queued")
    assert await world.succeed(work, b"5") == Accepted()
    last = await world.lease_pass()
    assert await (world.complete(last, failed_met=()) if ends == "completes" else world.fail(last)) == Accepted()
    step = await world.step(run.run_id, "gone")
    assert (step.state, await world.value(run.run_id, "gone")) == (StepState.COMPLETED, b"5")
    recovery = (await world.get_run(run.run_id)).recovery
    assert recovery is (Recovery.EXECUTION_SUCCEEDED if ends == "completes" else None), "kept, and part of the unwind"
    await world.check()


async def test_a_failed_step_is_never_declared_again(world: World) -> None:
    """RFD 2, "it does not dispatch the callback again": Failed is settled; only an Obsolete step is declared anew."""
    await begin(world, "a")
    work = await world.lease_pass()
    await must_refuse(world, "step_settled", world.declare(work, "a"))


async def test_fsck_sees_a_list_of_failed_steps_that_is_off(world: World) -> None:
    """C7: an entry too many, one missing and a wrong weight would each spoil the bound or the step's end."""
    run = await begin(world, "a", "b")

    async def damaged(change: Any) -> list[str]:
        before = await world.read(lambda tx: tx.load(FAILED.at("acme", run.run_id, "a")))

        async def spoil(tx: Tx) -> None:
            change(tx)

        async def mend(tx: Tx) -> None:
            tx.remove(FAILED.at("acme", run.run_id, "z"))
            tx.put(FAILED.at("acme", run.run_id, "a"), before or 0)

        await world.run("spoil", spoil)
        report = await check_keyspace(world.keyspace)
        await world.run("mend", mend)
        await world.check()
        return [problem.check for problem in report.problems]

    key = FAILED.at("acme", run.run_id, "a")
    assert "C7" in await damaged(lambda tx: tx.remove(key))
    assert "C7" in await damaged(lambda tx: tx.put(key, 1))
    assert "C7" in await damaged(lambda tx: tx.put(FAILED.at("acme", run.run_id, "z"), 1))
