"""Trees of runs, wide, deep and many, cancelled at their roots between any two transactions: all end, leaf first.

A test run takes twelve roots; `make scale` takes the thousand of the specification's workload W8.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict

import pytest
from child_verbs import pass_on_all, publish_each
from grove import Grove, Shape
from operator_verbs import cancel
from recording import RecordingStore
from server_steps import ONCE
from sizes import at_scale
from test_costs import PLAIN_FAILURE, recorded_world
from world import EagerClock, World, work_of

from keyspace.layout import ITEM
from keyspace.lifecycle import Execution, Phase
from keyspace.limits import CHILD_DEPTH_MAX, LOCATION_CHARS_MAX
from keyspace.store.embedded import memory_store
from keyspace.store.fault import FaultStore
from keyspace.store.fault_plan import CommitFault, FaultPlan, FaultRates
from keyspace.transitions.declaration import ChildTerms
from keyspace.transitions.declare_child import declare_child
from keyspace.transitions.propagate_stop import propagate_stop
from keyspace.transitions.settle_child import settle_child
from keyspace.transitions.stop_run import cancel_run

POINTS = 50
WIDE, DEEP = Shape(width=8), Shape(depth=4)
WIDTH_BYTES_MAX = 32
"""What a longer number in a record may weigh: a depth of two digits, a count, an ordinal."""


async def planted(shape: Shape, world: World | None = None) -> Grove:
    grove = Grove(world or World(), shape)
    await grove.world.begin()
    await grove.world.hello()
    await grove.plant()
    return grove


async def acts_of(shape: Shape) -> int:
    """Return how many transactions take a grove to its end when nobody interferes: each act commits one, so a stop that comes
    between any two acts comes after every commit there is."""
    world, store = recorded_world()
    grove = await planted(shape, world)
    store.commits.clear()
    assert await grove.go_on()
    assert len(store.commits) == grove.acts
    await grove.check_ended()
    assert {run.execution for run in await grove.runs()} == {Execution.COMPLETED}
    assert await grove.world.records(ITEM) == []
    return grove.acts


async def cancelled_after(shape: Shape, acts: int) -> Grove:
    """Take a grove so far, cancel its roots, and let it come to its end."""
    grove = await planted(shape)
    await grove.go_on(acts)
    await grove.cancel_roots()
    assert await grove.go_on()
    return grove


@pytest.mark.case(38)
@pytest.mark.parametrize("shape", [WIDE, DEEP], ids=["8 in turn", "4 deep"])
async def test_a_root_is_cancelled_between_any_two_transactions(shape: Shape) -> None:
    """Case 038 and RFD 2, "the parent cannot terminalize before its child does": whenever the stop comes."""
    acts = await acts_of(shape)
    for at in range(acts + 1):
        grove = await cancelled_after(shape, at)
        await grove.check_ended()
        assert await grove.world.records(ITEM) == []
        executions = {run.execution for run in await grove.runs() if run.parent is None}
        assert executions == {Execution.COMPLETED if at == acts else Execution.CANCELLED}, at


@pytest.mark.case(38)
@pytest.mark.parametrize(
    "shape",
    [
        pytest.param(Shape(roots=12), id="many roots"),
        pytest.param(Shape(depth=CHILD_DEPTH_MAX), id="as deep as may be"),
        at_scale(Shape(roots=1_000), name="a thousand roots"),
    ],
)
async def test_roots_are_cancelled_at_sampled_points(shape: Shape) -> None:
    """W8, "1,000 roots with one child each, cancelled together; 16 deep, cancelled at the root"."""
    acts = await acts_of(shape)
    for at in sorted(random.Random(7).sample(range(acts), min(POINTS, acts))):
        grove = await cancelled_after(shape, at)
        await grove.check_ended()
        assert await grove.world.records(ITEM) == []
        assert len(await grove.runs()) <= (shape.depth + 1) * shape.roots


@pytest.mark.case(1)
@pytest.mark.case(62)
@pytest.mark.parametrize("seed", range(6))
async def test_trees_end_whatever_becomes_of_commits(seed: int) -> None:
    """Case 001 for "child settle": commits that are unknown, both ways, and conflicts, through a cancellation at the root."""
    rates = {
        CommitFault.UNKNOWN_COMMITTED: 0.15,
        CommitFault.UNKNOWN_NOT_COMMITTED: 0.1,
        CommitFault.NOT_COMMITTED: 0.1,
        CommitFault.TRANSACTION_TOO_OLD: 0.05,
    }
    clock = EagerClock()
    plan = FaultPlan(seed, FaultRates(commit=rates))
    world = World(clock=clock, store=FaultStore(memory_store(clock=clock), plan, clock=clock))
    grove = await planted(Shape(roots=2, depth=3, width=2), world)
    await grove.go_on(10 + 7 * seed)
    await grove.cancel_roots()
    assert await grove.go_on()
    plan.heal()
    await grove.check_ended()
    assert await grove.world.records(ITEM) == []
    assert {run.execution for run in await grove.runs() if run.parent is None} == {Execution.CANCELLED}


# -- no transaction grows with the tree


async def weighed(shape: Shape) -> dict[str, tuple[set[int], int]]:
    """Return for each transition how many reads it made and the most bytes it took, cancelled where all children live."""
    world, store = recorded_world()
    grove = await planted(shape, world)
    store.commits.clear()
    # A lease and an answer take each run to its child.
    await grove.go_on(2 * shape.depth)
    assert len(await grove.runs()) == shape.depth + 1
    await grove.cancel_roots()
    assert await grove.go_on()
    await grove.check_ended()
    return _weights(store)


def _weights(store: RecordingStore) -> dict[str, tuple[set[int], int]]:
    reads: dict[str, set[int]] = defaultdict(set)
    most: dict[str, int] = defaultdict(int)
    for commit in store.commits:
        reads[commit.name].add(commit.read_count)
        most[commit.name] = max(most[commit.name], commit.size_bytes)
    return {name: (reads[name], most[name]) for name in reads}


BETWEEN = ("accept_declaration", "settle_child", "propagate_stop", "cancel_run")


async def test_no_transaction_grows_with_the_depth_of_a_tree() -> None:
    """RFD 2, "a chain of stopping ancestors is settled one level per dispatch instead of recursively inside a single
    transaction and every transaction stays bounded by its own run's records"."""
    shallow, deep = await weighed(Shape(depth=2)), await weighed(Shape(depth=CHILD_DEPTH_MAX))
    for name in BETWEEN:
        assert shallow[name][0] == deep[name][0], name
        assert abs(shallow[name][1] - deep[name][1]) <= WIDTH_BYTES_MAX, name


async def test_no_transaction_grows_with_the_children_that_came_before() -> None:
    """The same for the width: the eighth child costs what the first one did."""
    for shape in (Shape(width=1), Shape(width=8)):
        world, store = recorded_world()
        grove = await planted(shape, world)
        store.commits.clear()
        assert await grove.go_on()
        weights = _weights(store)
        if shape.width == 1:
            first = weights
    for name in ("accept_declaration", "settle_child"):
        assert first[name][0] == weights[name][0], name
        assert abs(first[name][1] - weights[name][1]) <= WIDTH_BYTES_MAX, name


STATED = {
    "accept_declaration": declare_child,
    "settle_child": settle_child,
    "propagate_stop": propagate_stop,
    "cancel_run": cancel_run,
}


async def test_what_passes_between_runs_weighs_what_it_says() -> None:
    """S5, by the store's own measure: names of 20 characters, deadlines, and the longest plain failure there is, to a stopped
    parent that begins its unwind with it."""
    world, store = recorded_world()
    name = "f" * 20
    await world.begin()
    await world.hello()
    await publish_each(world, {"fulfil": 1_000_000, name: 900_000})
    run = await world.start_run()
    await world.run_step("s" * 20)
    wanted = ChildTerms(function=name, input=b"1")
    await world.declare(await world.lease_pass(), "c" * 20, retry=ONCE, terms=wanted, location="l" * LOCATION_CHARS_MAX)
    await world.fail(await world.lease_pass(function=name), PLAIN_FAILURE)
    await cancel(world, run.run_id)
    await pass_on_all(world)
    assert (await world.get_run(run.run_id)).phase is Phase.COMPENSATING
    stopped = await world.start_run()
    await world.declare(await world.lease_pass(), "c", retry=ONCE, terms=wanted)
    await world.declare(await world.lease_pass(function=name), "s" * 20)
    work = work_of(await world.lease(function=name))
    await world.authorize(work)
    await world.succeed(work)
    await cancel(world, stopped.run_id)
    await pass_on_all(world)
    weights = _weights(store)
    for transition, told in STATED.items():
        found = re.search(r"Budget: (?:under|the \w+ plus) (\d+) kB", told.__doc__ or "")
        assert found, transition
        assert weights[transition][1] <= 1_000 * int(found[1]), (transition, weights[transition])
