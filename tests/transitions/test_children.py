"""Child invocations: one decision with the parent's step, one way back, and the stop that goes down level by level."""

from __future__ import annotations

import pytest
from operator_verbs import cancel
from server_steps import ONCE
from world import World

from keyspace.errors import Refusal
from keyspace.layout import ITEM
from keyspace.lifecycle import DeadlineSource, Execution, Phase, StepKind, StepState
from keyspace.records.run import FailureRecord, RunRecord
from keyspace.records.work import ItemRecord, WorkKind
from keyspace.transitions.declaration import ChildTerms
from keyspace.transitions.propagate_stop import Propagated, propagate_stop
from keyspace.transitions.settle_child import Settled, settle_child
from keyspace.transitions.work import Accepted

VALUE_BYTES_MAX = 262_144


async def family(world: World, *, timeout_ms: int | None = None) -> tuple[RunRecord, RunRecord]:
    """Start a run that invokes `pick`; return it with its child."""
    await world.publish({"fulfil": ["order.placed"], "pick": []})
    run = await world.start_run()
    terms = ChildTerms(function="pick", input=b'{"sku":7}', timeout_ms=timeout_ms)
    assert await world.declare(await world.lease_pass(), "pick-it", retry=ONCE, terms=terms) == Accepted()
    run = await world.get_run(run.run_id)
    assert run.child_id is not None
    return run, await world.get_run(run.child_id)


async def settle_work(world: World) -> list[ItemRecord]:
    kinds = (WorkKind.CHILD_SETTLE, WorkKind.STOP_PROPAGATE)
    return [item for item in await world.records(ITEM) if item.kind in kinds]


async def pass_on(world: World) -> list[Settled | Propagated]:
    """Deliver the work between runs once."""
    outcomes: list[Settled | Propagated] = []
    for item in await settle_work(world):
        if item.kind is WorkKind.CHILD_SETTLE:
            outcomes.append(
                await world.run(
                    "settle_child",
                    lambda tx, item=item: settle_child(tx, "acme", item, value_bytes_max=VALUE_BYTES_MAX),
                )
            )
        else:
            outcomes.append(await world.run("propagate_stop", lambda tx, item=item: propagate_stop(tx, "acme", item)))
    return outcomes


async def test_parent_step_child_and_its_work_are_one_decision(world: World) -> None:
    """RFD 2, "A declaration may be a durable child invocation"."""
    run, child = await family(world)
    step = await world.step(run.run_id, "pick-it")
    assert (step.kind, step.state) == (StepKind.CHILD, StepState.WAITING)
    assert (child.function, child.phase, child.item_id is not None) == ("pick", Phase.RUNNING, True)
    assert child.parent is not None and (child.parent.run_id, child.parent.depth) == (run.run_id, 1)
    assert run.item_id is None
    await world.check()


@pytest.mark.parametrize("ending", ["complete", "fail", "cancel"])
async def test_what_the_child_ends_with_reaches_its_parent(world: World, ending: str) -> None:
    """RFD 2, "The settlement records the child's terminal outcome on the parent's step"; FILLED-IN 3."""
    run, child = await family(world)
    if ending == "cancel":
        await cancel(world, child.run_id)
    else:
        work = await world.lease_pass(function="pick")
        if ending == "complete":
            assert await world.complete(work, b'"picked"') == Accepted()
        else:
            assert await world.fail(work, FailureRecord(category="application", message="no stock")) == Accepted()
    await world.check()
    assert await pass_on(world) == [Settled.SETTLED]
    step = await world.step(run.run_id, "pick-it")
    if ending == "complete":
        assert await world.value(run.run_id, "pick-it") == b'"picked"'
    else:
        assert step.failure is not None
        assert step.failure.category == {"fail": "child.failed", "cancel": "child.cancelled"}[ending]
    run = await world.get_run(run.run_id)
    assert run.child_id is None and run.item_id is not None
    await world.check()
    assert await world.complete(await world.lease_pass(), b"1") == Accepted()
    await world.check()


async def test_a_stop_goes_down_and_the_parent_ends_last(world: World) -> None:
    """RFD 2, "Stop intent propagates one level per transaction and it propagates intent, not termination"."""
    run, child = await family(world)
    await cancel(world, run.run_id)
    assert (await world.get_run(run.run_id)).phase is Phase.CANCELLING
    await world.check()
    assert await pass_on(world) == [Propagated.STOPPED]
    child = await world.get_run(child.run_id)
    assert (child.phase, child.execution) == (Phase.TERMINAL, Execution.CANCELLED)
    assert (await world.get_run(run.run_id)).phase is Phase.CANCELLING
    await world.check()
    assert await pass_on(world) == [Settled.SETTLED]
    run = await world.get_run(run.run_id)
    assert (run.phase, run.execution) == (Phase.TERMINAL, Execution.CANCELLED)
    assert await settle_work(world) == []
    await world.check()


async def test_an_invocation_without_time_authorizes_nothing(world: World) -> None:
    """RFD 2, "A zero invoke timeout is due at acceptance itself"; case 040: `sdk.timeout`."""
    run, child = await family(world, timeout_ms=0)
    assert (child.deadline_at_ms, child.deadline_source) == (child.created_at_ms, DeadlineSource.INVOKE)
    assert await world.lease_many(1, function="pick") == []
    child = await world.get_run(child.run_id)
    assert child.execution is Execution.TIMED_OUT
    assert await pass_on(world) == [Settled.SETTLED]
    step = await world.step(run.run_id, "pick-it")
    assert step.failure is not None and step.failure.category == "sdk.timeout"
    await world.check()


async def test_a_function_that_the_pinned_manifest_lacks_is_refused(world: World) -> None:
    """RFD 2, "The engine refuses an invocation that names no function, one the parent's pinned manifest"."""
    await world.start_run()
    work = await world.lease_pass()
    before = await world.dump()
    with pytest.raises(Refusal) as refused:
        await world.declare(work, "x", retry=ONCE, terms=ChildTerms(function="nowhere", input=b"1"))
    assert refused.value.code == "unknown_function"
    assert await world.dump() == before
