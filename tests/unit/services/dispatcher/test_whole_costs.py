"""What a run costs the store: durable transactions by transition, reads, writes and bytes a step (ARCHITECTURE 6).

A durable transaction is one that writes. Those that only read, scans and assignments, are counted and named apart.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import pytest
from ryusen import App, Context
from whole_rig import Whole, effect

from keyspace.store.meter import TransitionFigures
from services.dispatcher.options import DispatcherOptions

ONCE_A_SESSION = {"register_release", "prefer_release", "open_session", "announce_live"}
"""What a worker's hello costs, whatever it runs."""
ONCE_A_WORKSPACE = {"create_workspace", "publish_manifest", "activate_routing"}
A_HELLO_READS = {"release_position", "recorded_starts", "read_live", "read_routing", "read_contracts"}
A_RUN_READS = {"scan_due", "load_assignment", "load_progress"}
BACKGROUND_READS = {"scan_leases", "scan_lanes", "read"}
"""Sweeps over expired leases, looks for server work, and the test itself."""


class Cost(NamedTuple):
    """What one run took, by transition."""

    durable: Counter[str]
    reading: Counter[str]
    read_count: int
    write_count: int
    size_bytes: int


def many_steps(count: int) -> App:
    app = App("shop")

    async def give(value: int) -> int:
        effect()
        return value

    @app.function(on="order.placed", name="fulfil")
    async def fulfil(ctx: Context) -> int:
        return sum([await ctx.step.run(f"step-{number}", give, number) for number in range(count)])

    return app


def telling(count: int) -> App:
    """Return an application whose run emits `count` events, each behind a callback."""
    app = App("shop")

    async def give(value: int) -> int:
        effect()
        return value

    @app.function(on="order.placed", name="fulfil")
    async def fulfil(ctx: Context) -> None:
        for number in range(count):
            await ctx.step.run(f"step-{number}", give, number)
            await ctx.step.send_event(f"tell-{number}", "told", number)

    return app


async def cost_of(count: int, *, continues: bool) -> Cost:
    """Take a run of `count` steps to its end on a worker that stands ready, and return what it took."""
    return await cost_of_app(many_steps(count), continues=continues)


async def cost_of_app(app: App, *, continues: bool) -> Cost:
    """Take one run of an application to its end on a worker that stands ready, and return what it took."""
    whole = Whole(app, options=DispatcherOptions(continues=continues))
    await whole.world.begin()
    await whole.world.start_run()
    await whole.to_the_end()
    figures: Counter[str] = Counter()
    durable: Counter[str] = Counter()
    totals = [0, 0, 0]
    for keyspace in (whole.world.keyspace, whole.dispatcher[0].keyspace):  # type: ignore[index]
        for name, figure in keyspace.meter.snapshot().items():
            if name in ONCE_A_SESSION | ONCE_A_WORKSPACE:
                continue
            add(name, figure, figures, durable, totals)
    return Cost(durable, figures, *totals)


def add(name: str, figure: TransitionFigures, reading: Counter[str], durable: Counter[str], totals: list[int]) -> None:
    if figure.write_count == 0:
        reading[name] += figure.commit_count
        return
    durable[name] += figure.commit_count
    totals[0] += figure.read_count
    totals[1] += figure.write_count
    totals[2] += figure.size_bytes


CONTINUED = {"accept_event": 1, "expand_event": 1, "lease_items": 1}
COUNTS = (0, 1, 3, 20)


@pytest.mark.parametrize("count", COUNTS)
async def test_a_run_takes_four_transactions_and_one_a_step(count: int) -> None:
    """ARCHITECTURE 6: accept, expand, claim discovery, declare 1, and one for each result with what follows it."""
    cost = await cost_of(count, continues=True)
    steps = {"accept_declaration": 1, "continue_run": count} if count else {"complete_run": 1}
    assert dict(cost.durable) == CONTINUED | steps
    assert cost.durable.total() == 4 + count
    assert set(cost.reading) <= A_HELLO_READS | A_RUN_READS | BACKGROUND_READS
    assert {name: cost.reading[name] for name in A_RUN_READS} == {
        "scan_due": 1,
        "load_assignment": 0,
        "load_progress": 0,
    }, "a small input is read with the lease"


@pytest.mark.parametrize("count", [1, 3])
async def test_an_emission_takes_no_transaction_of_its_own(count: int) -> None:
    """S9, "at most one durable transaction a settled step": it is settled with the result before it, and its pass goes on."""
    cost = await cost_of_app(telling(count), continues=True)
    # Each pass that goes on behind an emission answers by itself: with the next callback, or with the end.
    assert dict(cost.durable) == CONTINUED | {
        "accept_declaration": count,
        "continue_run": count,
        "complete_run": 1,
    }
    assert cost.durable.total() == 4 + 2 * count, "as many as with callbacks in their place"
    queued = await cost_of_app(telling(count), continues=False)
    assert queued.durable["lease_items"] == 1 + 3 * count


@pytest.mark.parametrize("count", COUNTS)
async def test_through_the_queue_a_step_takes_five(count: int) -> None:
    """Declare, lease, authorize, accept, lease the next pass."""
    cost = await cost_of(count, continues=False)
    steps = {"accept_declaration": count, "authorize_start": count, "accept_success": count} if count else {}
    assert dict(cost.durable) == CONTINUED | steps | {"lease_items": 1 + 2 * count, "complete_run": 1}
    assert cost.durable.total() == 4 + 5 * count
    assert set(cost.reading) <= A_HELLO_READS | A_RUN_READS | BACKGROUND_READS
    assert (cost.reading["load_assignment"], cost.reading["load_progress"]) == (0, 2 * count), "history is sent once"


@pytest.mark.parametrize(
    ("continues", "reads", "writes", "bytes_max"),
    [(True, 6, 18, 6_700), (False, 20, 38, 14_000)],
    ids=["continuing", "queued"],
)
async def test_what_a_step_reads_and_writes(continues: bool, reads: int, writes: int, bytes_max: int) -> None:
    """Of durable transactions, as FoundationDB accounts them; the bounds on bytes leave a twentieth for longer ids."""
    few, many = await cost_of(3, continues=continues), await cost_of(20, continues=continues)
    step_bytes = (many.size_bytes - few.size_bytes) / 17
    print(f"a step: {reads} reads, {writes} writes, {step_bytes:.0f} bytes")
    assert (many.read_count - few.read_count) / 17 == reads
    assert (many.write_count - few.write_count) / 17 == writes
    assert 0.9 * bytes_max < step_bytes <= bytes_max
