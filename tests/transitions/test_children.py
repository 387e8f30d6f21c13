"""Child invocations: one decision with the parent's step, an ordinary run, and one way back to the parent."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from child_verbs import (
    CALL,
    INPUT,
    child_of,
    descend,
    family,
    invocation,
    invoke,
    pass_on,
    pass_on_item,
    publish_each,
    settle_work,
    time_over,
)
from operator_verbs import cancel, must_refuse, start_undo
from server_steps import ONCE
from world import RETRY, World, work_of

from keyspace.assignment import load_assignment
from keyspace.errors import Refusal
from keyspace.layout import ITEM, RUN, RUN_BY_FUNCTION, RUN_INPUT, RUN_LIST, SETTLED
from keyspace.lifecycle import DeadlineSource, Execution, Phase, Recovery, StepKind, StepState
from keyspace.limits import (
    CHILD_DEPTH_MAX,
    FAILURE_DETAILS_BYTES_MAX,
    FAILURE_MESSAGE_BYTES_MAX,
    INVOKE_TIMEOUT_MS_MAX,
    REPLAY_BYTES_MAX,
    REPLAY_STEP_BYTES,
)
from keyspace.policy import RunTimePolicy
from keyspace.records.run import FailureRecord, ParentRecord, RunRecord
from keyspace.records.work import Direction, WorkKind
from keyspace.transitions.child_work import settle_item_id
from keyspace.transitions.declaration import FAILURE_RESERVE_BYTES, ChildTerms, Declaration, check_room
from keyspace.transitions.declare_child import child_identity
from keyspace.transitions.materialize_run import derived_run_id
from keyspace.transitions.settle_child import Settled, child_failure, settle_child
from keyspace.transitions.work import Accepted, Replayed, Stale, Work, save_run
from keyspace.tx import Tx
from keyspace.waiting import waiting_for

MINUTE_MS = 60_000


# -- one decision


async def test_parent_step_child_and_its_work_are_one_decision(world: World) -> None:
    """RFD 2, "A declaration may be a durable child invocation": record, list entry, history, first work, input and step."""
    before = len(await world.records(RUN_LIST))
    run, child = await family(world)
    step = await world.step(run.run_id, CALL)
    assert (step.kind, step.state) == (StepKind.CHILD, StepState.WAITING)
    assert step.server is not None and step.server.child_id == run.child_id == child.run_id
    assert (run.item_id, run.step_id) == (None, CALL)
    assert (child.function, child.phase, child.application) == ("pick", Phase.RUNNING, run.application)
    assert (child.manifest_generation, child.routing_generation) == (run.manifest_generation, run.routing_generation)
    assert child.parent == ParentRecord(run_id=run.run_id, step_id=CALL, depth=1)
    assert (child.event_id, child.event_name, child.binding) == ("", "", "")
    assert await world.records(RUN_INPUT, child.run_id) == [INPUT]
    assert len(await world.records(RUN_LIST)) == before + 2
    assert await world.records(RUN_BY_FUNCTION, "shop", "pick") == [child.run_id]
    (created,) = await world.history(child.run_id)
    assert (created.kind, created.data["parent"], created.data["parent_step"]) == ("run-created", run.run_id, CALL)
    assert (await world.history(run.run_id))[-1].data["child"] == child.run_id
    (work,) = await world.records(ITEM)
    assert (work.kind, work.target, work.item_id) == (WorkKind.DISCOVERY, child.run_id, child.item_id)
    await world.check()


async def test_the_child_is_given_exactly_the_bytes_of_its_input(world: World) -> None:
    """RFD 2, "the exact input the child receives": as bytes, through the assignment of any run."""
    _, child = await family(world, data=b' {"b": 1 ,"a":[]} ')
    delivery = await world.lease(function="pick")
    assignment = await world.read(lambda tx: load_assignment(tx, "acme", delivery.run, None))
    assert (assignment.input, assignment.settled) == (b' {"b": 1 ,"a":[]} ', [])
    assert child.input_bytes == len(assignment.input)


async def test_the_identity_is_derived_and_told_from_every_other() -> None:
    """RFD 2, "The child's identity is derived from durable facts": scope, parent and step, under a domain of its own."""
    scopes = [("acme", "shop", "r1", "s1"), ("beta", "shop", "r1", "s1"), ("acme", "shop2", "r1", "s1")]
    scopes += [("acme", "shop", "r2", "s1"), ("acme", "shop", "r1", "s2"), ("acmes", "hop", "r1", "s1")]
    assert len({child_identity(*scope) for scope in scopes}) == len(scopes)
    assert child_identity("acme", "shop", "r1", "s1") != derived_run_id("acme", "r1", "shop", "s1")


async def test_a_repeated_answer_names_the_same_child(world: World) -> None:
    """RFD 2, "a lost acknowledgement, a rediscovery, a replay, or a restart can only ever name the same child"."""
    await publish_each(world, {"fulfil": None, "pick": None})
    await world.start_run()
    work = await world.lease_pass()
    child = await invoke(world, work)
    before = await world.dump()
    assert await world.declare(work, CALL, retry=ONCE, terms=invocation().terms) == Replayed()
    assert await world.dump() == before
    assert child.run_id == child_identity("acme", "shop", work.run_id, CALL)


@pytest.mark.case(41)
@pytest.mark.parametrize("parent", [None, "its own", "another's"])
async def test_a_run_that_lies_under_the_childs_identity_is_refused(world: World, parent: str | None) -> None:
    """RFD 2, "The materialization refuses an existing record whose recorded invocation provenance or scope disagrees".

    Even one that claims to be the child: its step would have been recorded with it.
    """
    await publish_each(world, {"fulfil": None, "pick": None})
    run = await world.start_run()
    work = await world.lease_pass()
    planted = child_identity("acme", "shop", run.run_id, CALL)
    provenance = None
    if parent is not None:
        provenance = ParentRecord(run_id=run.run_id if parent == "its own" else "9" * 32, step_id=CALL, depth=1)

    async def plant(tx: Tx) -> None:
        save_run(tx, "acme", None, msgspec.structs.replace(run, run_id=planted, parent=provenance, item_id=None))

    await world.run("plant", plant)
    refusal = await must_refuse(
        world, "child_conflict", world.declare(work, CALL, retry=ONCE, terms=invocation().terms)
    )
    assert refusal.details["run"] == planted
    assert await world.declare(work, "another", retry=ONCE, terms=invocation().terms) == Accepted(), "the pass goes on"


@pytest.mark.case(41)
async def test_the_same_step_in_another_workspace_is_another_child(world: World) -> None:
    """Case 041: ids of one tenant mean nothing in another; the child belongs to its parent's workspace."""
    run, child = await family(world)
    await world.begin({"fulfil": ["order.placed"], "pick": []}, workspace="beta")
    other = await world.start_run(workspace="beta")
    assert await world.read(lambda tx: tx.load(RUN.at("beta", child.run_id))) is None
    (settled,) = await finish(world, b"1")
    lost = await world.run("settle_child", lambda tx: settle_child(tx, "beta", settled, value_bytes_max=9))
    assert lost is Settled.GONE
    assert (await world.get_run(run.run_id)).child_id == child.run_id
    assert (await world.get_run(other.run_id, workspace="beta")).child_id is None


# -- refused


@pytest.mark.case(44)
@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"terms": ChildTerms(function="", input=b"1")}, "invalid_name"),
        ({"terms": ChildTerms(function="a\x00b", input=b"1")}, "invalid_name"),
        ({"terms": ChildTerms(function="n" * 201, input=b"1")}, "invalid_name"),
        ({"terms": ChildTerms(function="nowhere", input=b"1")}, "unknown_function"),
        ({"compensable": True}, "not_compensable"),
        ({"undo_retry": RETRY}, "not_compensable"),
        ({"undo_timeout_ms": 5}, "not_compensable"),
        ({"retry": RETRY}, "invalid_retry"),
        ({"repeatable": True}, "not_repeatable"),
        ({"timeout_ms": 5}, "invalid_timeout"),
        ({"terms": ChildTerms(function="pick", input=b"1", timeout_ms=-1)}, "invalid_timeout"),
        ({"terms": ChildTerms(function="pick", input=b"1", timeout_ms=INVOKE_TIMEOUT_MS_MAX + 1)}, "invalid_timeout"),
        ({"terms": ChildTerms(function="pick", input=bytes(1_048_577))}, "value_too_large"),
    ],
    ids=lambda value: str(value)[:70],
)
async def test_a_refused_invocation_mutates_nothing(world: World, more: dict[str, Any], code: str) -> None:
    """RFD 2, "The engine refuses an invocation that names no function, one the parent's pinned manifest generation does not
    declare, a compensable declaration, a declaration whose retry policy asks for more than one attempt"."""
    await publish_each(world, {"fulfil": None, "pick": None})
    await world.start_run()
    work = await world.lease_pass()
    given: dict[str, Any] = {"retry": ONCE, "terms": invocation().terms} | more
    await must_refuse(world, code, world.declare(work, CALL, **given))
    await invoke(world, work)
    await world.check()


async def test_the_pinned_generation_decides_which_functions_there_are(world: World) -> None:
    """RFD 2, "one the parent's pinned manifest generation does not declare": a newer manifest neither adds nor removes."""
    await publish_each(world, {"fulfil": None, "pick": None})
    run = await world.start_run()
    await publish_each(world, {"fulfil": None, "pack": None})
    work = await world.lease_pass()
    await must_refuse(
        world, "unknown_function", world.declare(work, CALL, retry=ONCE, terms=ChildTerms(function="pack", input=b"1"))
    )
    child = await invoke(world, work)
    assert (child.function, child.manifest_generation) == ("pick", run.manifest_generation)


@pytest.mark.case(49)
def test_the_last_straw_of_the_replay_budget() -> None:
    """RFD 2, "one whose step record the parent's remaining replay budget cannot carry together with the small failure"."""
    wanted = invocation()
    needed = len(CALL) + REPLAY_STEP_BYTES + FAILURE_RESERVE_BYTES
    check_room(a_run(replay_bytes=REPLAY_BYTES_MAX - needed), None, wanted)
    with pytest.raises(Refusal, match="replay_bytes") as refused:
        check_room(a_run(replay_bytes=REPLAY_BYTES_MAX - needed + 1), None, wanted)
    assert refused.value.code == "replay_budget"


def a_run(**more: Any) -> RunRecord:
    known: dict[str, Any] = {"run_id": "r", "application": "shop", "function": "f", "event_id": "e", "event_name": "n"}
    known |= {"binding": "b", "manifest_generation": 1, "routing_generation": 1, "created_at_ms": 5, "updated_at_ms": 5}
    return RunRecord(**(known | {"input_bytes": 1} | more))


@pytest.mark.case(47)
async def test_a_chain_is_as_deep_as_documented_and_no_deeper(world: World) -> None:
    """RFD 2, "and a chain deeper than the documented depth limit"; ARCHITECTURE 7: 16."""
    chain = await descend(world, CHILD_DEPTH_MAX)
    assert [run.parent.depth if run.parent else 0 for run in chain] == list(range(CHILD_DEPTH_MAX + 1))
    work = await world.lease_pass(function="deep")
    refusal = await must_refuse(
        world, "child_depth", world.declare(work, CALL, retry=ONCE, terms=invocation("deep").terms)
    )
    assert (refusal.details["value"], refusal.details["limit"]) == (17, 16)
    await world.check()


async def test_another_declaration_under_the_steps_id_is_a_conflict(world: World) -> None:
    """RFD 2, "a repeated declaration of the same step keeps the recorded invocation and its child, and a declaration that
    disagrees with the recorded one is a conflict"; told on a step that has been settled, which a pass can meet again."""
    _, child = await family(world)
    await finish(world, b'"picked"')
    await pass_on(world)
    work = await world.lease_pass()
    for other in (invocation("fulfil"), invocation(data=b"2")):
        await must_refuse(world, "declaration_conflict", world.declare(work, CALL, retry=ONCE, terms=other.terms))
    assert await world.declare(work, CALL, retry=ONCE, terms=invocation().terms) == Accepted()
    assert len(await world.runs()) == 2, "the same child"
    again = await world.lease_pass()
    assert await world.complete(again) == Accepted(), "and the run goes on"
    assert (await world.get_run(child.run_id)).execution is Execution.COMPLETED
    await world.check()


# -- how long it may take


@pytest.mark.parametrize(
    ("declared_ms", "invoke_ms", "parent_ms", "bound_ms", "source"),
    [
        (None, None, None, None, None),
        (MINUTE_MS, None, None, MINUTE_MS, DeadlineSource.FUNCTION),
        (None, MINUTE_MS, None, MINUTE_MS, DeadlineSource.INVOKE),
        (None, None, MINUTE_MS, MINUTE_MS, DeadlineSource.PARENT),
        (3 * MINUTE_MS, 2 * MINUTE_MS, MINUTE_MS, MINUTE_MS, DeadlineSource.PARENT),
        (3 * MINUTE_MS, MINUTE_MS, 2 * MINUTE_MS, MINUTE_MS, DeadlineSource.INVOKE),
        (MINUTE_MS, 2 * MINUTE_MS, 3 * MINUTE_MS, MINUTE_MS, DeadlineSource.FUNCTION),
        # Of equal bounds the invocation's is named, then the function's.
        (MINUTE_MS, MINUTE_MS, MINUTE_MS, MINUTE_MS, DeadlineSource.INVOKE),
        (MINUTE_MS, None, MINUTE_MS, MINUTE_MS, DeadlineSource.FUNCTION),
        (MINUTE_MS, 0, MINUTE_MS, 0, DeadlineSource.INVOKE),
    ],
)
async def test_the_tightest_of_three_bounds_is_recorded_with_its_name(
    world: World,
    declared_ms: int | None,
    invoke_ms: int | None,
    parent_ms: int | None,
    bound_ms: int | None,
    source: DeadlineSource | None,
) -> None:
    """RFD 2, "It is bounded by the tightest of the invoked function's declared run timeout, the invoke timeout anchored at
    acceptance, and the parent's remaining deadline, and the durable record names the bound that applied"."""
    _, child = await family(world, child_timeout_ms=declared_ms, parent_timeout_ms=parent_ms, timeout_ms=invoke_ms)
    expected = None if bound_ms is None else child.created_at_ms + bound_ms
    assert (child.deadline_at_ms, child.deadline_source) == (expected, source)
    await world.check()


async def test_what_is_left_of_the_parents_time_is_measured_at_acceptance(world: World) -> None:
    """RFD 2, "the parent's remaining deadline": the child's deadline is the parent's very instant, however late it starts."""
    await publish_each(world, {"fulfil": MINUTE_MS, "pick": None})
    run = await world.start_run()
    world.clock.advance(MINUTE_MS - 1)
    child = await invoke(world, await world.lease_pass())
    assert child.deadline_at_ms == run.deadline_at_ms == child.created_at_ms + 1


@pytest.mark.parametrize(
    ("declared_ms", "bound_ms", "source"),
    [(None, MINUTE_MS, DeadlineSource.DEPLOYMENT), (9 * MINUTE_MS, 9 * MINUTE_MS, DeadlineSource.FUNCTION)],
)
async def test_a_childs_function_that_declares_nothing_has_the_deployments_default(
    world: World, declared_ms: int | None, bound_ms: int, source: DeadlineSource
) -> None:
    """RFD 2, "unless its function declaration or a visible deployment policy supplies one": the same for runs of either
    origin, "and the two creation paths cannot drift apart"."""
    world.keyspace.run_time = RunTimePolicy(default_ms=MINUTE_MS)
    _, child = await family(world, child_timeout_ms=declared_ms)
    assert (child.deadline_at_ms, child.deadline_source) == (child.created_at_ms + bound_ms, source)
    await world.check()


async def test_an_invocation_above_the_deployments_maximum_is_refused(world: World) -> None:
    """RFD 2, "an exceeding manifest or invocation is rejected instead of clamped": to the millisecond."""
    world.keyspace.run_time = RunTimePolicy(longest_ms=MINUTE_MS)
    await publish_each(world, {"fulfil": None, "pick": None})
    await world.start_run()
    work = await world.lease_pass()
    longer = invocation(timeout_ms=MINUTE_MS + 1).terms
    refusal = await must_refuse(world, "run_timeout_above_maximum", world.declare(work, CALL, retry=ONCE, terms=longer))
    assert (refusal.details["field"], refusal.details["limit"]) == ("timeout_ms", MINUTE_MS)
    assert (await invoke(world, work, timeout_ms=MINUTE_MS)).deadline_source is DeadlineSource.INVOKE


@pytest.mark.case(40)
@pytest.mark.parametrize("by", ["lease", "timer"])
async def test_an_invocation_without_time_authorizes_nothing(world: World, by: str) -> None:
    """RFD 2, "A zero invoke timeout is due at acceptance itself"; case 040: `sdk.timeout`."""
    run, child = await family(world, timeout_ms=0)
    assert (child.deadline_at_ms, child.deadline_source) == (child.created_at_ms, DeadlineSource.INVOKE)
    if by == "lease":
        assert await world.lease_many(1, function="pick") == []
    else:
        await time_over(world, child)
    child = await world.get_run(child.run_id)
    assert (child.phase, child.execution) == (Phase.TERMINAL, Execution.TIMED_OUT)
    assert await world.kinds(child.run_id) == ["run-created", "stop-committed", "compensation-not-required"]
    assert await pass_on(world) == [Settled.SETTLED]
    step = await world.step(run.run_id, CALL)
    assert step.failure is not None and (step.state, step.failure.category) == (StepState.FAILED, "sdk.timeout")
    await world.check()


# -- what the parent hears


async def finish(world: World, output: bytes = b'"picked"') -> list[Any]:
    """Let the child return; return the work that settles its parent's step."""
    assert await world.complete(await world.lease_pass(function="pick"), output) == Accepted()
    return await settle_work(world)


@pytest.mark.case(40)
@pytest.mark.parametrize("ending", ["complete", "none", "fail", "cancel", "function's time", "invoke's time"])
async def test_what_the_child_ends_with_reaches_its_parent(world: World, ending: str) -> None:
    """RFD 2, "The settlement records the child's terminal outcome on the parent's step"; FILLED-IN 3; None stays None."""
    limits: dict[str, Any] = {"function's time": {"child_timeout_ms": 9}, "invoke's time": {"timeout_ms": 9}}
    run, child = await family(world, **limits.get(ending, {}))
    if ending == "cancel":
        await cancel(world, child.run_id)
    elif ending.endswith("time"):
        await time_over(world, child)
    elif ending == "fail":
        await world.fail(await world.lease_pass(function="pick"), FailureRecord(category="application", message="gone"))
    else:
        await finish(world, b"null" if ending == "none" else b'"picked"')
    (settling,) = await settle_work(world)
    assert (settling.target, settling.step_id) == (run.run_id, CALL)
    assert (await world.step(run.run_id, CALL)).state is StepState.WAITING, "by work of its own, not by the child's end"
    await world.check()
    assert await pass_on(world) == [Settled.SETTLED]
    step = await world.step(run.run_id, CALL)
    category = step.failure.category if step.failure is not None else None
    expected = {"fail": "child.failed", "cancel": "child.cancelled"} | dict.fromkeys(limits, "child.timed_out")
    assert category == expected.get(ending)
    if category is None:
        assert await world.value(run.run_id, CALL) == (b"null" if ending == "none" else b'"picked"')
    run = await world.get_run(run.run_id)
    assert (run.child_id, run.step_id, run.item_id is not None) == (None, None, True)
    assert await world.records(SETTLED, run.run_id) == [CALL]
    await world.check()
    assert await world.complete(await world.lease_pass(), b"1") == Accepted()
    await world.check()


@pytest.mark.case(40)
@pytest.mark.parametrize("undone", [True, False])
async def test_the_parent_hears_only_after_the_childs_recovery(world: World, undone: bool) -> None:
    """RFD 2, "a child's failure reaches its parent only after the child's own compensation finishes"; case 040."""
    run, child = await family(world)
    passed = await world.lease_pass(function="pick")
    assert await world.declare(passed, "a", undo_retry=ONCE) == Accepted()
    work = work_of(await world.lease(function="pick"))
    await world.authorize(work)
    await world.succeed(work)
    await world.fail(await world.lease_pass(function="pick"))
    assert (await world.get_run(child.run_id)).phase is Phase.COMPENSATING
    assert await settle_work(world) == []
    await world.check()
    undo = await start_undo_of(world, "pick")
    if undone:
        await world.succeed(undo)
    else:
        await world.fail_attempt(undo)
    child = await world.get_run(child.run_id)
    assert child.recovery is (Recovery.COMPENSATED if undone else Recovery.COMPENSATION_FAILED)
    assert await pass_on(world) == [Settled.SETTLED]
    step = await world.step(run.run_id, CALL)
    assert step.failure is not None and step.failure.category == "child.failed"
    await world.check()


async def start_undo_of(world: World, function: str) -> Any:
    work = work_of(await world.lease(function=function, direction=Direction.COMPENSATION))
    assert await world.authorize(work) == Accepted()
    return work


def test_a_childs_failure_is_told_in_its_own_words_and_never_cut() -> None:
    """ARCHITECTURE 7, "never a truncation": category, message and details of the child, within the bounds of any failure."""
    told = FailureRecord(category="application", message="no stock", details='{"sku":7}')
    child = a_run(phase=Phase.TERMINAL, execution=Execution.FAILED, failure=told)
    assert child_failure(child) == FailureRecord(
        category="child.failed", message="application: no stock", details='{"sku":7}'
    )
    longest = FailureRecord(
        category="application", message="m" * FAILURE_MESSAGE_BYTES_MAX, details="d" * FAILURE_DETAILS_BYTES_MAX
    )
    heard = child_failure(msgspec.structs.replace(child, failure=longest))
    assert heard is not None and (heard.message, heard.details) == (longest.message, longest.details)
    assert child_failure(msgspec.structs.replace(child, execution=Execution.COMPLETED)) is None


@pytest.mark.parametrize("is_room", [True, False])
async def test_an_output_that_the_parents_replay_cannot_carry(world: World, is_room: bool) -> None:
    """FILLED-IN 11, "A success or child output that the run's replay budget cannot carry settles the step as
    `sdk.invalid_result`": to the byte."""
    run, _ = await family(world)
    output = b'"' + b"x" * 20_000 + b'"'
    left = len(output) + len(CALL) + REPLAY_STEP_BYTES - (0 if is_room else 1)

    async def fill(tx: Tx) -> None:
        save_run(tx, "acme", run, msgspec.structs.replace(run, replay_bytes=REPLAY_BYTES_MAX - left))

    await world.run("fill", fill)
    await finish(world, output)
    assert await pass_on(world) == [Settled.SETTLED]
    step = await world.step(run.run_id, CALL)
    if is_room:
        assert await world.value(run.run_id, CALL) == output
    else:
        assert step.failure is not None and step.failure.category == "sdk.invalid_result"
        assert "replay" in step.failure.message
    assert await world.complete(await world.lease_pass()) == Accepted(), "the parent goes on either way"


async def test_a_settled_invocation_is_never_undone(world: World) -> None:
    """RFD 2, "A settled invocation is never part of an unwind": the plan has the callback step alone."""
    await publish_each(world, {"fulfil": None, "pick": None})
    run = await world.start_run()
    await world.run_step("a")
    await invoke(world, await world.lease_pass())
    await finish(world)
    await pass_on(world)
    await world.fail(await world.lease_pass())
    run = await world.get_run(run.run_id)
    assert run.unwind is not None and run.unwind.upper == 1
    undo = await start_undo(world)
    assert undo.step_id == "a"
    await world.succeed(undo)
    assert (await world.get_run(run.run_id)).recovery is Recovery.COMPENSATED
    await world.check()


@pytest.mark.case(16)
async def test_a_second_delivery_of_a_settlement_is_benign(world: World) -> None:
    """Case 016, "settle one child": the second dispatcher finds nothing to do, and nothing is told of it."""
    run, _ = await family(world)
    (settling,) = await finish(world)
    assert await pass_on_item(world, settling) is Settled.SETTLED
    before = await world.dump()
    assert await pass_on_item(world, settling) is Settled.GONE
    assert await world.dump() == before
    await world.complete(await world.lease_pass())
    assert await pass_on_item(world, settling) is Settled.GONE
    assert (await world.get_run(run.run_id)).execution is Execution.COMPLETED
    await world.check()


# -- the parent's deadline


async def test_the_parents_deadline_wins_over_a_late_settlement(world: World) -> None:
    """RFD 2, "The timeout handler and every authoritative forward result": the child was in time, its settlement was not."""
    run, child = await family(world, parent_timeout_ms=MINUTE_MS)
    await finish(world)
    world.clock.advance(MINUTE_MS)
    assert await pass_on(world) == [Settled.SETTLED]
    run = await world.get_run(run.run_id)
    assert (run.phase, run.execution, run.recovery) == (Phase.TERMINAL, Execution.TIMED_OUT, Recovery.EMPTY_UNWIND)
    assert await world.value(run.run_id, CALL) == b'"picked"', "what the child came to is kept"
    assert (await world.get_run(child.run_id)).execution is Execution.COMPLETED
    assert await world.records(ITEM) == []
    await world.check()


# -- behind a result


async def test_a_result_and_the_invocation_behind_it_are_one_transaction(world: World) -> None:
    """FILLED-IN 9, S9: the pass that follows a result and invokes needs no transaction of its own."""
    await publish_each(world, {"fulfil": None, "pick": None})
    run = await world.start_run()
    work = await world.start_step("s1")
    continued = await world.go_on(work, invocation())
    assert (continued.result, continued.answer, continued.following) == (Accepted(), Accepted(), None)
    child = await child_of(world, run.run_id)
    assert (await world.step(run.run_id, "s1")).state is StepState.COMPLETED
    await world.check()
    again = await world.go_on(work, invocation())
    assert (again.result, again.answer) == (Replayed(), Replayed())
    assert [item.target for item in await world.records(ITEM)] == [child.run_id]


async def test_a_refused_invocation_behind_a_result_costs_the_result_nothing(world: World) -> None:
    """ARCHITECTURE 6: whatever becomes of the answer never voids the result; the pass goes on where it is."""
    run = await world.start_run()
    refused = await world.go_on(await world.start_step("s1"), Declaration(CALL, ONCE, terms=invocation("gone").terms))
    assert refused.refusal is not None and (refused.refusal.code, refused.is_open) == ("unknown_function", True)
    assert (await world.step(run.run_id, "s1")).state is StepState.COMPLETED
    assert len(await world.runs()) == 1
    await world.check()


async def test_a_run_that_waits_for_its_child_says_so(world: World) -> None:
    """RFD 2, "those are operational statuses rather than lifecycle phases": the word, the step and the child's id."""
    run, child = await family(world)
    found = waiting_for(run, None, world.clock.now_ms())
    assert found is not None and found.word == "child"
    assert child.run_id in found.sentence and CALL in found.sentence
    await cancel(world, run.run_id)
    stopping = waiting_for(await world.get_run(run.run_id), None, world.clock.now_ms())
    assert stopping is not None and stopping.word == "child" and "was cancelled" in stopping.sentence


@pytest.mark.case(41)
async def test_what_a_worker_forges_of_a_family_changes_nothing(world: World) -> None:
    """Case 041: a child's delivery says nothing of its parent, nor the other way round, and work between runs is nobody's."""
    run, child = await family(world)
    mine = await world.lease_pass(function="pick")
    forged = [
        mine._replace(run_id=run.run_id),
        mine._replace(item_id=settle_item_id(child.run_id)),
        mine._replace(run_id=run.run_id, item_id=settle_item_id(child.run_id), token=""),
        Work(WorkKind.CALLBACK, run.run_id, CALL, mine.item_id, mine.token, 1),
        Work(WorkKind.CALLBACK, run.run_id, CALL, settle_item_id(child.run_id), "", 1),
    ]
    before = await world.dump()
    for work in forged:
        verdict = await (world.complete(work) if work.step_id is None else world.succeed(work, b'"forged"'))
        assert isinstance(verdict, Stale), work
    assert await world.dump() == before
    assert await world.complete(mine, b'"picked"') == Accepted()
    before = await world.dump()
    for work in forged[1:]:
        verdict = await (world.complete(work) if work.step_id is None else world.succeed(work, b'"forged"'))
        assert isinstance(verdict, Stale), work
    assert await world.dump() == before
    assert await pass_on(world) == [Settled.SETTLED]
    assert await world.value(run.run_id, CALL) == b'"picked"'
    await world.check()
