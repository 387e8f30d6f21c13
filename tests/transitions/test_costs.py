"""What each transition weighs and with whom it conflicts: S2 and S5, measured by the store."""

from __future__ import annotations

import importlib
import itertools
import re
from collections.abc import Iterator
from typing import Any

import pytest
from recording import Commit, RecordingStore, overlaps
from world import EagerClock, World, work_of

from keyspace.layout import identify
from keyspace.limits import ALLOWANCE_BYTES_DEFAULT, FAILURE_DETAILS_BYTES_MAX, FAILURE_MESSAGE_BYTES_MAX
from keyspace.records.run import FailureRecord
from keyspace.records.work import Direction
from keyspace.store.embedded import memory_store
from keyspace.tuple_layer import unpack

PLAIN_FAILURE = FailureRecord(
    category="application", message="m" * FAILURE_MESSAGE_BYTES_MAX, details="d" * FAILURE_DETAILS_BYTES_MAX
)
WORST_FAILURE = FailureRecord(
    category="\x01" * 100, message="\x01" * FAILURE_MESSAGE_BYTES_MAX, details="\x01" * FAILURE_DETAILS_BYTES_MAX
)
WIDE = "\U0001f600"


def recorded_world(prefix: bytes = b"\x15\x07") -> tuple[World, RecordingStore]:
    clock = EagerClock()
    store = RecordingStore(memory_store(clock=clock))
    return World(clock=clock, store=store, prefix=prefix), store


async def tell(
    world: World, store: RecordingStore, tag: str, *, workspace: str, failure: FailureRecord, step: str
) -> None:
    """Drive one run of `fulfil` through every transition there is."""
    at: dict[str, Any] = {"workspace": workspace}
    store.tag = tag

    async def start(step_id: str) -> None:
        store.tag = tag
        await world.declare(await world.lease_pass(**at), step_id, **at)

    await world.start_run(**at)
    await start(step + "1")
    first = work_of(await world.lease(**at))
    await world.give_back(first, **at)
    first = work_of(await world.lease(**at))
    await world.authorize(first, **at)
    await world.renew((first.item_id, first.token), **at)
    await world.prove(first, **at)
    first = work_of(await world.lease(**at))
    await world.authorize(first, **at)
    await world.fail_attempt(first, failure, **at)
    world.clock.advance(1_000)
    second = work_of(await world.lease(**at))
    await world.authorize(second, **at)
    world.clock.advance(15_000)
    await world.lose(second.item_id, **at)
    await world.succeed(second, **at)
    await start(step + "2")
    await world.not_found(work_of(await world.lease(**at)), **at)
    await start(step + "3")
    third = work_of(await world.lease(**at))
    await world.authorize(third, **at)
    await world.fail_attempt(third, failure, retryable=False, **at)
    await world.fail(await world.lease_pass(**at), failure, **at)
    await world.not_found(work_of(await world.lease(direction=Direction.COMPENSATION, **at)), **at)
    store.tag = ""
    await world.check()


async def test_transitions_of_different_runs_and_workspaces_never_conflict() -> None:
    """S2, "Transitions of different runs do not conflict ...; workspaces never conflict": by their recorded ranges."""
    world, store = recorded_world()
    for workspace in ("acme", "beta"):
        await world.begin(workspace=workspace)
        await world.hello(workspace=workspace)
    for tag, workspace in (("run 1", "acme"), ("run 2", "acme"), ("run 3", "beta")):
        await tell(world, store, tag, workspace=workspace, failure=PLAIN_FAILURE, step="s")
    tagged = [commit for commit in store.commits if commit.tag]
    assert {commit.name for commit in tagged} == {
        "accept_event",
        "expand_event",
        "lease_items",
        "accept_declaration",
        "give_back",
        "authorize_start",
        "renew_leases",
        "prove_not_started",
        "accept_failure",
        "lose_lease",
        "accept_success",
        "target_not_found",
        "fail_run",
    }
    for left, right in itertools.permutations(tagged, 2):
        if left.tag != right.tag:
            assert not overlaps(left.reads, right.writes), f"{left.name} reads what {right.name} of another run writes"


async def test_a_workspaces_transaction_touches_its_own_range() -> None:
    """HOUSE 13, "a tenant's transaction touches only its prefix": beside the shared indexes, which name the workspace."""
    world, store = recorded_world(prefix=b"")
    await world.begin(workspace="acme")
    await world.hello(workspace="acme")
    await tell(world, store, "run", workspace="acme", failure=PLAIN_FAILURE, step="s")
    for commit in store.commits:
        for begin, _ in commit.reads if commit.tag else []:
            assert unpack_head(begin) == "acme", (commit.name, begin)
        for begin, _ in commit.writes if commit.tag else []:
            head = unpack_head(begin)
            assert head == "acme" or shared_workspace(begin) in ("acme", None), (commit.name, begin)


def unpack_head(key: bytes) -> object:
    found = identify(key)
    return found[1][0] if found and found[1] else unpack(key[: key.index(b"\x00") + 1])[0]


def shared_workspace(key: bytes) -> object:
    """Return the workspace that a shared key names; a bell names none."""
    found = identify(key)
    assert found is not None
    names = [element for element in found[1] if isinstance(element, str) and len(element) < 32]
    assert names or found[0].name == "BELL"
    return names[0] if names else None


STATING = (
    "accept_declaration",
    "accept_failure",
    "authorize_start",
    "create_workspace",
    "fail_run",
    "give_back",
    "lose_lease",
    "prove_not_started",
    "target_not_found",
)


def stated_bytes(name: str) -> int:
    """Return the bound that a transition's docstring states."""
    module = importlib.import_module(f"keyspace.transitions.{name}")
    found = re.search(r"Budget: under (\d+) kB", getattr(module, name).__doc__)
    assert found, f"{name} states no budget"
    return int(found[1]) * 1_000


def by_name(commits: list[Commit]) -> Iterator[tuple[str, int]]:
    for name, group in itertools.groupby(sorted(commits, key=lambda commit: commit.name), lambda commit: commit.name):
        yield name, max(commit.size_bytes for commit in group)


async def test_transitions_stay_within_the_budget_they_state() -> None:
    """Budget, of every transition that states one: with names of 20 characters and the longest plain failure there is."""
    world, store = recorded_world()
    await world.begin(workspace="w" * 20)
    await world.hello(workspace="w" * 20)
    await tell(world, store, "run", workspace="w" * 20, failure=PLAIN_FAILURE, step="s" * 19)
    sizes = dict(by_name(store.commits))
    for name in STATING:
        assert sizes[name] <= stated_bytes(name), f"{name}: {sizes[name]} bytes"


async def test_transitions_stay_far_below_the_allowance_at_their_worst() -> None:
    """S5, "by construction": the widest names, the longest failures with every byte escaped, a long physical prefix."""
    world, store = recorded_world(prefix=b"\x15" * 64)
    workspace = "w" * 63
    await world.begin({"fulfil": ["order.placed"]}, workspace=workspace)
    await world.hello(workspace=workspace)
    await tell(world, store, "run", workspace=workspace, failure=WORST_FAILURE, step=WIDE * 199)
    worst = dict(by_name(store.commits))
    assert max(worst.values()) < ALLOWANCE_BYTES_DEFAULT / 4, worst


@pytest.mark.parametrize("name", STATING)
def test_a_budget_is_stated(name: str) -> None:
    """HOUSE 6: the docstring has Budget, bytes at most."""
    assert stated_bytes(name) >= 1_000
