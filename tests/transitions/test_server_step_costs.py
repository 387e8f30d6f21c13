"""What the steps that the server owns weigh, and with whom they conflict: S2 and S5, measured by the store."""

from __future__ import annotations

import itertools

import pytest
from recording import Commit, RecordingStore, overlaps
from server_steps import ONCE, emit, fire_due, sleep
from test_conflict_ranges import kinds
from test_costs import WIDE, recorded_world, stated_bytes
from world import LEASE_MS, World

from keyspace.limits import ALLOWANCE_BYTES_DEFAULT, CORRELATION_PAIRS_MAX, CORRELATION_TEXT_BYTES_MAX
from keyspace.transitions.continue_run import answer_pass
from keyspace.transitions.declaration import Declaration, EmissionTerms
from keyspace.transitions.hold import Hold
from keyspace.transitions.work import Accepted

READY_PASS = "ITEM READY_APP DUE_APP BELL_APP"
ACCEPTED = "EVENT EVENT_PAYLOAD EVENT_STAMP EVENT_LIST EXPANSION CLAIM ITEM READY DUE BELL"
SETTLED = "RUN STEP STEP_VALUE SETTLED HISTORY"
RANGES: dict[str, tuple[str, str]] = {
    # A timer that is far away rings no bell.
    "timer": ("RUN ITEM STEP", "RUN STEP HISTORY LEASE ITEM READY DUE"),
    "fire_timer": ("RUN ITEM STEP", f"{SETTLED} READY {READY_PASS}"),
    "emission": ("RUN ITEM STEP WORKSPACE EVENT CLAIM ROUTING_HEAD", f"{SETTLED} LEASE {ACCEPTED} {READY_PASS}"),
    "held emission": ("RUN ITEM STEP WORKSPACE EVENT CLAIM ROUTING_HEAD INSTANCE", f"{SETTLED} LEASE {ACCEPTED}"),
}


async def told(world: World, store: RecordingStore, *, step: str, correlation: dict[str, str]) -> dict[str, Commit]:
    """Let one run sleep, wake and emit twice; return the commit of each."""
    found: dict[str, Commit] = {}
    await world.start_run()
    assert await sleep(world, await world.lease_pass(), step + "1", delay_ms=60_000) == Accepted()
    found["timer"] = store.commits[-1]
    world.clock.advance(60_000)
    await fire_due(world)
    found["fire_timer"] = store.commits[-1]
    assert await emit(world, await world.lease_pass(), step + "2", correlation=correlation) == Accepted()
    found["emission"] = store.commits[-1]
    work, hold = await world.lease_pass(), Hold(world.seat(), LEASE_MS)
    terms = EmissionTerms(event_name="order.told", payload=b"1", correlation=correlation)
    ending = Declaration(step + "3", ONCE, terms=terms)
    verdict, following = await world.run(
        "accept_declaration", lambda tx: answer_pass(tx, "acme", work, ending, hold=hold, value_bytes_max=1_000)
    )
    assert verdict == Accepted() and following is not None
    found["held emission"] = store.commits[-1]
    return found


async def test_each_reads_and_writes_exactly_these_keys() -> None:
    """S2: beside its own run's keys an emission depends on an activation and on nothing else that others write."""
    world, store = recorded_world(prefix=b"")
    await world.begin()
    await world.hello()
    commits = await told(world, store, step="s", correlation={})
    ranges = {name: (kinds(commit.reads), kinds(commit.writes)) for name, commit in commits.items()}
    assert ranges == {name: (set(reads.split()), set(writes.split())) for name, (reads, writes) in RANGES.items()}


async def test_runs_do_not_conflict() -> None:
    """S2, "Transitions of different runs do not conflict", by their recorded ranges."""
    world, store = recorded_world()
    await world.begin()
    await world.hello()
    runs = [await told(world, store, step="s", correlation={"a": "b"}) for _ in range(2)]
    for left, right in itertools.permutations(runs, 2):
        for one, other in itertools.product(left.values(), right.values()):
            assert not overlaps(one.reads, other.writes), f"{one.name} reads what {other.name} of another run writes"


async def test_they_stay_within_the_budget_they_state() -> None:
    """Budget, with names of 20 characters; an emission's payload and correlation come on top."""
    world, store = recorded_world()
    await world.begin()
    await world.hello()
    commits = await told(world, store, step="s" * 19, correlation={})
    assert commits["timer"].size_bytes <= stated_bytes("accept_declaration")
    assert commits["fire_timer"].size_bytes <= stated_bytes("fire_timer")
    assert commits["emission"].size_bytes <= stated_bytes("accept_declaration") + 6_000


async def test_they_stay_far_below_the_allowance_at_their_worst() -> None:
    """S5: the widest step ids, the longest correlation with every byte escaped, a long physical prefix."""
    world, store = recorded_world(prefix=b"\x15" * 64)
    await world.begin()
    await world.hello()
    text = "\x01" * (CORRELATION_TEXT_BYTES_MAX - 2)
    worst = {f"{number:02}"[-1:] + text: text for number in range(10)}
    assert len(worst) <= CORRELATION_PAIRS_MAX
    commits = await told(world, store, step=WIDE * 199, correlation=worst)
    assert max(commit.size_bytes for commit in commits.values()) < ALLOWANCE_BYTES_DEFAULT / 4


@pytest.mark.parametrize("name", ["fire_timer"])
def test_a_budget_is_stated(name: str) -> None:
    """HOUSE 6: the docstring has Budget, bytes at most."""
    assert stated_bytes(name) >= 1_000
