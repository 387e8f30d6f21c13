"""What a transition weighs that meets its run's deadline: its own work, and a stop (S5)."""

from __future__ import annotations

import importlib
import re

import pytest
from straits import ACTS, PREPARATIONS, TIMEOUT_MS, fork, prepare, told_by
from world import LEASE_MS, World, work_of

from keyspace.lifecycle import StopReason
from keyspace.transitions.work import Stale

PAST_THE_DEADLINE = ("authorize_start", "lose_lease", "prove_not_started", "target_not_found", "accept_declaration",
                     "complete_run", "block_run", "fire_timer", "accept_success", "continue_run", "lease_items")  # fmt: skip
"""Those whose docstring says what they weigh then."""


def stated_bytes(name: str) -> int:
    """Return the bound that a transition's docstring states for the deadline."""
    module = importlib.import_module(f"keyspace.transitions.{name}")
    found = re.search(r"(\d+) kB (?:for a run\s+)?past\s+(?:the|its)\s+deadline", getattr(module, name).__doc__)
    assert found, f"{name} does not say what it weighs past the deadline"
    return int(found[1]) * 1_000


async def heaviest() -> dict[str, int]:
    """Let everything happen that can, in every strait, at the deadline; return the most that each transition weighed."""
    sizes: dict[str, int] = {}
    for name, (_, acts) in PREPARATIONS.items():
        strait = await prepare(name)
        for act in acts:
            world, _ = fork(strait, 1, later_ms=TIMEOUT_MS)
            await told_by(ACTS[act], world, strait.scene)
            run = await world.get_run(strait.scene.run_id)
            if run.stop is None or run.stop.reason is not StopReason.TIMED_OUT:
                continue
            for transition, figures in world.keyspace.meter.snapshot().items():
                sizes[transition] = max(sizes.get(transition, 0), figures.size_bytes)
    return sizes


async def test_a_transition_that_commits_the_deadlines_stop_stays_within_what_it_states() -> None:
    """S5, "Every transition fits its byte and conflict-range budget": a run with two completed steps, so that an unwind begins."""
    sizes = await heaviest()
    measured = [name for name in PAST_THE_DEADLINE if name in sizes]
    assert set(PAST_THE_DEADLINE) - set(measured) <= {"authorize_start"}, "a lease is over long before; see below"
    for name in measured:
        assert 2_000 < sizes[name] <= stated_bytes(name), f"{name}: {sizes[name]} bytes"


async def test_a_start_at_the_deadline_stays_within_what_it_states(world: World) -> None:
    """RFD 2, "At or after the deadline, it first materializes TimedOut stop intent": also where a start was asked for."""
    await world.publish({"fulfil": ["order.placed"]}, timeout_ms=LEASE_MS)
    await world.start_run()
    await world.run_step("done")
    await world.declare(await world.lease_pass(), "late")
    world.clock.advance(LEASE_MS - 1)
    work = work_of(await world.lease())
    world.clock.advance(1)
    before = world.keyspace.meter.snapshot()["authorize_start"].size_bytes
    assert await world.authorize(work) == Stale("deadline_elapsed")
    size_bytes = world.keyspace.meter.snapshot()["authorize_start"].size_bytes - before
    assert 2_000 < size_bytes <= stated_bytes("authorize_start")
    await world.check()


@pytest.mark.parametrize("name", PAST_THE_DEADLINE)
def test_the_weight_of_the_deadline_is_stated(name: str) -> None:
    """HOUSE 6: the docstring has Budget, bytes at most; a run has one deadline, whoever meets it."""
    assert stated_bytes(name) in (24_000, 32_000)
