"""Runs of many steps: the same at every page edge and digit boundary, and no dearer at the thousandth step."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from recording import RecordingStore
from world import RETRY, EagerClock, World, work_of

from keyspace.assignment import load_assignment
from keyspace.layout import HISTORY, STEP
from keyspace.lifecycle import CompensationState, Phase, Recovery
from keyspace.records.work import Direction
from keyspace.store.api import KeyRange
from keyspace.store.embedded import memory_store
from keyspace.transitions.accept_declaration import Declaration
from keyspace.transitions.work import Accepted, Work
from keyspace.tx import Tx


async def run_steps(world: World, count: int) -> tuple[str, dict[str, int]]:
    """Take a run through `count` steps; return its id and how often each callback ran."""
    run = await world.start_run()
    ran: dict[str, int] = {}
    for number in range(count):
        work = await world.start_step(f"s{number}")
        ran[work.step_id or ""] = ran.get(work.step_id or "", 0) + 1
        assert await world.succeed(work, b"%d" % number) == Accepted()
    return run.run_id, ran


async def history_pages(world: World, run_id: str, page_items: int) -> list[int]:
    """Read a history page by page and return its ordinals in the order they came."""
    span = HISTORY.span("acme", run_id)

    async def body(tx: Tx) -> list[int]:
        ordinals: list[int] = []
        begin = span.begin
        while True:
            page = await tx.page(KeyRange(begin, span.end), limit=page_items, snapshot=True)
            ordinals += [HISTORY.parse(key)[2] for key, _ in page]
            if len(page) < page_items:
                return ordinals
            begin = page[-1][0] + b"\x00"

    return await world.read(body)


@pytest.mark.case(47)
@pytest.mark.parametrize("count", [9, 10, 11, 99, 100, 101, 127, 128, 255, 256, 257])
async def test_nothing_changes_at_a_round_number(count: int, world: World) -> None:
    """Case 047: each callback once, history complete and in order through every page size, numeric reverse unwind."""
    run_id, ran = await run_steps(world, count)
    assert ran == {f"s{number}": 1 for number in range(count)}
    passing = await world.lease_pass()
    run = await world.get_run(run_id)
    assignment = await world.read(lambda tx: load_assignment(tx, "acme", run, None))
    assert {step.step_id: step.value for step in assignment.settled} == {f"s{n}": b"%d" % n for n in range(count)}
    assert await world.completions(run_id) == [f"s{number}" for number in range(count)]
    await world.fail(passing)
    visited = []
    for _ in range(count):
        work = work_of(await world.lease(direction=Direction.COMPENSATION))
        visited.append(work.step_id)
        await world.not_found(work)
    assert visited == [f"s{number}" for number in reversed(range(count))], "10 before 9"
    after = await world.get_run(run_id)
    assert (after.phase, after.recovery) == (Phase.TERMINAL, Recovery.PARTIALLY_COMPENSATED)
    assert {step.compensation for step in await world.records(STEP, run_id)} == {CompensationState.SKIPPED}
    for page_items in (1, 2, 10, 100, 1_000):
        assert await history_pages(world, run_id, page_items) == list(range(1, after.history_count + 1))
    await world.check()


async def queued_steps(world: World, store: RecordingStore) -> None:
    """Take a thousand steps through the queue."""
    for number in range(1_000):
        store.tag = f"{number // 100}"
        await world.run_step(f"step-{number:04}")


async def continued_steps(world: World, store: RecordingStore) -> None:
    """Take a thousand steps, each behind the success before it."""
    store.tag = "first"
    work = await world.start_step("step")
    for number in range(1_000):
        store.tag = f"{number // 100}"
        item = (await world.go_on(work, Declaration(f"step-{number:04}", RETRY))).following
        assert item is not None and item.token is not None
        work = Work(item.kind, item.target, item.step_id, item.item_id, item.token, item.generation)
    store.tag = "last"
    await world.succeed(work)


@pytest.mark.case(49)
@pytest.mark.parametrize(("take", "transactions"), [(queued_steps, 5), (continued_steps, 1)])
async def test_a_thousand_steps_cost_the_same_each(
    take: Callable[[World, RecordingStore], Awaitable[None]], transactions: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Case 049, S6 and S9: transactions, reads and bytes of the last hundred steps are those of the first."""
    clock = EagerClock()
    store = RecordingStore(memory_store(clock=clock))
    world = World(clock=clock, store=store)
    await world.begin()
    await world.hello()
    run = await world.start_run()
    await take(world, store)
    costs = []
    for century in range(10):
        mine = [commit for commit in store.commits if commit.tag == str(century)]
        costs.append((len(mine) / 100, sum(c.read_count for c in mine) / 100, sum(c.size_bytes for c in mine) / 100))
    with capsys.disabled():
        print(
            f"\ncase 049, {take.__name__}, a step: transactions, reads, bytes; first hundred {costs[0]}, last hundred {costs[-1]}"
        )
    assert {count for count, _, _ in costs} == {transactions}
    assert len({reads for _, reads, _ in costs}) == 1
    sizes = [size for _, _, size in costs]
    assert max(sizes) < 1.02 * min(sizes), "a few digits more"
    assert await world.complete(await world.lease_pass()) == Accepted()
    assert (await world.get_run(run.run_id)).step_count >= 1_000
    await world.check()


async def test_a_replay_reads_pages_and_only_its_own_run(world: World) -> None:
    """S6, "replaying a run reads at most its replay budget": another run's steps beside it are not read."""
    first, _ = await run_steps(world, 30)
    await world.complete(await world.lease_pass())
    run_id, _ = await run_steps(world, 3)
    run = await world.get_run(run_id)

    async def body(tx: Tx) -> tuple[int, int]:
        assignment = await load_assignment(tx, "acme", run, "s1")
        assert assignment.target is not None and assignment.target.step_id == "s1"
        return len(assignment.settled), tx.read_count

    assert await world.read(body) == (3, 4), "input, steps, values and their order"
    assert first != run_id
