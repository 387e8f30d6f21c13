"""A run that is as big as a run may be is stopped, fails and is undone like any other: no transaction grows with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from deadline_verbs import at_deadline, fire
from operator_verbs import cancel
from recording import RecordingStore
from sizes import at_scale
from world import EagerClock, World, work_of

from keyspace.errors import Refusal
from keyspace.keyspace import Keyspace
from keyspace.layout import ATTEMPT, COMPLETION, HISTORY, ITEM, RUN, SETTLED, STEP, STEP_VALUE
from keyspace.lifecycle import CompensationState, Execution, Phase, Recovery
from keyspace.limits import (
    ALLOWANCE_BYTES_MAX,
    NAME_CHARS_MAX,
    PAYLOAD_BYTES_MAX,
    REPLAY_BYTES_MAX,
    REPLAY_STEP_BYTES,
    STEPS_MAX,
)
from keyspace.records.run import FailureRecord, HistoryRecord
from keyspace.records.work import Direction
from keyspace.store.embedded import memory_store, open_embedded
from keyspace.transitions.fail_run import fail_run
from keyspace.transitions.fire_deadline import Fired, fire_deadline
from keyspace.transitions.stop_run import cancel_run
from keyspace.transitions.work import Accepted, Work
from keyspace.tx import Tx

TIMEOUT_MS = 3_600_000
WORST = '"\\' * (NAME_CHARS_MAX // 2)
"""A name of which every character is written as an escape in records."""
BIG_VALUES = REPLAY_BYTES_MAX // PAYLOAD_BYTES_MAX - 1
STOP_BYTES_MAX = 24_000
"""What a stop may charge, whatever the run has done, with the longest names (`cancel_run`, "Budget")."""
CLONES_AT_ONCE = 250


def step_name(number: int, characters: int = NAME_CHARS_MAX) -> str:
    return f"{number:05}" + WORST[: characters - 5]


async def steps_like_the_first(world: World, passing: Work, first: str, count: int, characters: int) -> Work:
    """Write `count` more completed steps of a run as the transitions wrote its first, which has the only history so far.

    The run stands at a pass, which is returned as a worker would name it then. Nothing but ids, places and counts differs; that
    the keyspace is sound is checked afterwards.
    """
    run_id = passing.run_id
    run = await world.get_run(run_id)
    step, attempt = await world.step(run_id, first), await world.attempt(run_id, first, 1)
    value = await world.value(run_id, first)
    entries = await world.history(run_id)
    declared = [entry.kind for entry in entries].index("step-declared")
    block = entries[declared:]
    assert [entry.kind for entry in block] == [
        "step-declared", "attempt-authorized", "step-completed", "pass-authorized",
    ]  # fmt: skip

    async def clone(tx: Tx, numbers: range) -> None:
        for number in numbers:
            name, place = step_name(number, characters), number + 1
            tx.put(STEP.at("acme", run_id, name), msgspec.structs.replace(step, step_id=name, completion=place))
            tx.put(
                ATTEMPT.at("acme", run_id, Direction.FORWARD, name, 1), msgspec.structs.replace(attempt, step_id=name)
            )
            tx.put_blob(STEP_VALUE, "acme", run_id, name, value=value)
            tx.put(COMPLETION.at("acme", run_id, place), name)
            tx.put(SETTLED.at("acme", run_id, place), name)
            for offset, entry in enumerate(block):
                data = entry.data | ({"step": name} if "step" in entry.data else {"pass": run.generation + number})
                data |= {"completion": place} if "completion" in data else {}
                ordinal = len(entries) + (number - 1) * len(block) + offset + 1
                tx.put(
                    HISTORY.at("acme", run_id, ordinal), HistoryRecord(at_ms=entry.at_ms, kind=entry.kind, data=data)
                )

    bulk = Keyspace(
        world.store, clock=world.clock, prefix=world.keyspace.prefix, allowance_bytes=ALLOWANCE_BYTES_MAX, rng=world.rng
    )
    for begin in range(1, count + 1, CLONES_AT_ONCE):
        numbers = range(begin, min(begin + CLONES_AT_ONCE, count + 1))
        await bulk.transact("bulk", lambda tx, numbers=numbers: clone(tx, numbers))
    item = await world.item(passing.item_id)
    assert item is not None
    name_bytes = len(step_name(1, characters).encode())
    after = msgspec.structs.replace(
        run,
        step_count=run.step_count + count,
        completion_count=run.completion_count + count,
        settled_count=run.settled_count + count,
        history_count=run.history_count + count * len(block),
        replay_bytes=run.replay_bytes + count * (len(value) + name_bytes + REPLAY_STEP_BYTES),
        generation=run.generation + count,
    )

    async def grow(tx: Tx) -> None:
        tx.put(RUN.at("acme", run_id), after)
        tx.put(ITEM.at("acme", item.item_id), msgspec.structs.replace(item, generation=after.generation))

    await world.run("grow", grow)
    return passing._replace(generation=after.generation)


class Measured(Exception):
    """A transaction was measured and not committed: its charge, and the store's own measure."""

    def __init__(self, charged_bytes: int, measured_bytes: int) -> None:
        super().__init__(charged_bytes, measured_bytes)
        self.charged_bytes = charged_bytes
        self.measured_bytes = measured_bytes


async def measure(world: World, body: Callable[[Tx], Awaitable[Any]]) -> int:
    """Return what a transition would charge; the store measures no more than that."""

    async def measured(tx: Tx) -> None:
        await body(tx)
        raise Measured(tx.budget.spent_bytes, await tx.measured_bytes())

    with pytest.raises(Measured) as found:
        await world.run("measure", measured)
    assert found.value.measured_bytes <= found.value.charged_bytes
    return found.value.charged_bytes


async def stops(world: World, passing: Work) -> dict[str, int]:
    """Return what each way to end a run that stands at a pass would charge."""
    run_id, problem = passing.run_id, FailureRecord(category="application", message="uncaught")
    timer = (await world.get_run(run_id)).timeout_item
    assert timer is not None
    charged = {
        "cancel": await measure(world, lambda tx: cancel_run(tx, "acme", run_id, by="operator-1")),
        "failure": await measure(world, lambda tx: fail_run(tx, "acme", passing, problem)),
    }
    await at_deadline(world, run_id)
    charged["deadline"] = await measure(world, lambda tx: fire_deadline(tx, "acme", run_id, timer))
    return charged


async def at_pass_behind_one(world: World, characters: int, value: bytes = b'"ok"') -> tuple[str, Work]:
    """Return a run that stands at a pass behind its first step."""
    run = await world.start_run()
    first = step_name(0, characters)
    assert await world.succeed(await world.start_step(first), value) == Accepted()
    return run.run_id, await world.lease_pass()


@pytest.mark.case(23)
@pytest.mark.parametrize("undone", [20, at_scale(STEPS_MAX)])
async def test_a_run_of_as_many_steps_as_there_may_be_is_stopped_like_one_of_two(empty: World, undone: int) -> None:
    """Case 023: 10,000 steps with names that records write as escapes; the steps behind the first are written in bulk. It is
    undone from its last step on, to its first with `make scale`, and each undo costs the same."""
    world = empty
    await world.begin(timeout_ms=TIMEOUT_MS)
    await world.hello()
    characters = 120
    _, passing = await at_pass_behind_one(world, characters)
    passing = await steps_like_the_first(world, passing, step_name(0, characters), 1, characters)
    few = await stops(world, passing)
    run_id, passing = await at_pass_behind_one(world, characters)
    passing = await steps_like_the_first(world, passing, step_name(0, characters), STEPS_MAX - 1, characters)
    await world.check()
    with pytest.raises(Refusal, match="step"):
        await world.declare(passing, "one-more")
    many = await stops(world, passing)
    print(f"\ncase 023: a stop of a run of 2 steps charges {few}, of {STEPS_MAX} {many}")
    for name, charged_bytes in many.items():
        assert charged_bytes <= few[name] * 1.02, "a few digits more"
        assert charged_bytes <= STOP_BYTES_MAX
    assert await fire(world, run_id) is Fired.STOPPED
    run = await world.get_run(run_id)
    assert (run.phase, run.execution) == (Phase.COMPENSATING, Execution.TIMED_OUT)
    assert run.unwind is not None and run.unwind.upper == STEPS_MAX
    costs: set[tuple[int, int, int]] = set()
    for number in range(STEPS_MAX - 1, STEPS_MAX - undone - 1, -1):
        before = reads_so_far(world)
        undo = work_of(await world.lease(direction=Direction.COMPENSATION))
        assert undo.step_id == step_name(number, characters)
        if number % 2:
            assert await world.not_found(undo) == Accepted()
        else:
            assert await world.authorize(undo) == Accepted()
            assert await world.succeed(undo, b"null") == Accepted()
        if number:
            after = reads_so_far(world)
            costs.add((number % 2, after[0] - before[0], after[1] - before[1]))
    print(f"undone: {undone}; (skipped, transactions, reads) of each: {sorted(costs)}")
    assert len(costs) == 2, "the last undo costs what the first did"
    run = await world.get_run(run_id)
    if undone == STEPS_MAX:
        assert (run.phase, run.recovery) == (Phase.TERMINAL, Recovery.PARTIALLY_COMPENSATED)
        steps = Counter(step.compensation for step in await world.records(STEP, run_id))
        assert steps == {CompensationState.DONE: STEPS_MAX // 2, CompensationState.SKIPPED: STEPS_MAX // 2}
    else:
        assert run.phase is Phase.COMPENSATING
    await world.check()


def reads_so_far(world: World) -> tuple[int, int]:
    """Return how many transactions a world's processes have committed, and how much they have read."""
    figures = world.keyspace.meter.snapshot().values()
    return sum(each.commit_count for each in figures), sum(each.read_count for each in figures)


@pytest.mark.case(23)
@pytest.mark.parametrize("ending", ["cancel", "deadline", "failure"])
@pytest.mark.parametrize("adapter", ["memory", "file"])
async def test_a_run_of_the_biggest_values_is_stopped_and_undone_to_its_end(
    adapter: str, ending: str, tmp_path: Path
) -> None:
    """Case 023: as many results of 1 MiB as a run may keep, on both adapters; their bytes are read by nothing that ends it."""
    clock = EagerClock()
    inner = memory_store(clock=clock) if adapter == "memory" else open_embedded(tmp_path / "store", clock=clock)
    store = RecordingStore(inner)
    world = World(clock=clock, store=store)
    world.keyspace = Keyspace(
        store, clock=clock, allowance_bytes=ALLOWANCE_BYTES_MAX, payload_bytes_max=PAYLOAD_BYTES_MAX, rng=world.rng
    )
    await world.begin(timeout_ms=TIMEOUT_MS)
    await world.hello()
    run = await world.start_run()
    value = b'"' + b"x" * (PAYLOAD_BYTES_MAX - 2) + b'"'
    for number in range(BIG_VALUES):
        assert await world.succeed(await world.start_step(step_name(number)), value) == Accepted()
    passing = await world.lease_pass()
    store.commits.clear()
    if ending == "cancel":
        await cancel(world, run.run_id)
    elif ending == "failure":
        assert await world.fail(passing) == Accepted()
    else:
        await at_deadline(world, run.run_id)
        assert await fire(world, run.run_id) is Fired.STOPPED
    for number in range(BIG_VALUES - 1, -1, -1):
        undo = work_of(await world.lease(direction=Direction.COMPENSATION))
        assert undo.step_id == step_name(number)
        assert await world.authorize(undo) == Accepted()
        assert await world.succeed(undo, value if number % 2 else b"null") == Accepted()
    ended = await world.get_run(run.run_id)
    assert (ended.phase, ended.recovery) == (Phase.TERMINAL, Recovery.COMPENSATED)
    assert max(commit.size_bytes for commit in store.commits) <= STOP_BYTES_MAX
    await world.check()
    await store.close()
