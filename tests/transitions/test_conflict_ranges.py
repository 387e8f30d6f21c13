"""Exactly which kinds of key each transition's commit depends on and changes, as the store recorded them.

A key that appears here by a change of code is a new reason to conflict, or a new thing that others conflict with: both are
decisions, so this table is written by hand.
"""

from __future__ import annotations

import pytest
from child_verbs import invoke, pass_on_all
from operator_verbs import cancel
from recording import Commit
from test_costs import PLAIN_FAILURE, recorded_world, tell
from world import RETRY

from keyspace.layout import identify
from keyspace.store.api import KeyRange
from keyspace.transitions.accept_declaration import Declaration
from keyspace.transitions.continue_run import Completion
from keyspace.transitions.work import Accepted, Work

QUEUED = "ITEM READY_APP DUE_APP BELL_APP"
"""What putting an item into an application lane writes."""

RANGES: dict[str, tuple[str, str]] = {
    "create_workspace": ("WORKSPACE", "WORKSPACE WORKSPACE_LIST"),
    "publish_manifest": (
        "WORKSPACE MANIFEST_HEAD",
        "MANIFEST MANIFEST_HEAD MANIFEST_FUNCTION MANIFEST_BINDING",
    ),
    "activate_routing": ("WORKSPACE ROUTING_HEAD ROUTING MANIFEST", "ROUTING ROUTING_HEAD"),
    "accept_event": (
        "WORKSPACE EVENT ROUTING_HEAD",
        "EVENT EVENT_PAYLOAD EVENT_STAMP EVENT_LIST EXPANSION ITEM READY DUE BELL",
    ),
    "invoke_function": (
        "WORKSPACE EVENT ROUTING_HEAD CLAIM",
        "EVENT EVENT_PAYLOAD EVENT_STAMP EVENT_LIST EXPANSION CLAIM ITEM READY DUE BELL",
    ),
    "expand_event": (
        "EVENT EXPANSION ITEM RUN",
        f"EXPANSION MATCH READY RUN RUN_STAMP RUN_LIST RUN_BY_FUNCTION RUN_BY_STATUS HISTORY {QUEUED}",
    ),
    "open_session": ("INSTANCE", "INSTANCE"),
    "lease_items": ("ITEM RUN", "ITEM READY_APP LEASE RUN HISTORY"),
    "give_back": ("ITEM", f"LEASE {QUEUED}"),
    "renew_leases": ("ITEM", "ITEM"),
    "accept_declaration": ("RUN ITEM STEP", f"RUN STEP ATTEMPT HISTORY LEASE {QUEUED}"),
    "authorize_start": ("RUN STEP ATTEMPT ITEM INSTANCE", "RUN STEP ATTEMPT ITEM INSTANCE_WORK HISTORY"),
    "prove_not_started": (
        "RUN STEP ATTEMPT ITEM INSTANCE",
        f"RUN STEP ATTEMPT INSTANCE_WORK HISTORY LEASE {QUEUED}",
    ),
    "accept_failure": (
        "RUN STEP ATTEMPT ITEM",
        f"RUN STEP ATTEMPT INSTANCE_WORK SETTLED FAILED HISTORY LEASE {QUEUED}",
    ),
    "lose_lease": ("RUN STEP ATTEMPT ITEM", "RUN STEP ATTEMPT ITEM LEASE UNRESOLVED HISTORY"),
    # The attempt was Unknown, so no lease is left to clear.
    "accept_success": (
        "RUN STEP ATTEMPT ITEM",
        f"RUN STEP STEP_VALUE ATTEMPT COMPLETION SETTLED INSTANCE_WORK UNRESOLVED HISTORY {QUEUED}",
    ),
    # Nothing of this is ever in a lane: no ready entry, no pointer, no bell.
    "continue_run": (
        "RUN STEP ATTEMPT ITEM INSTANCE",
        "RUN STEP STEP_VALUE ATTEMPT COMPLETION SETTLED INSTANCE_WORK HISTORY ITEM LEASE OUTPUT RUN_BY_STATUS",
    ),
    "target_not_found": ("RUN STEP ATTEMPT ITEM", f"RUN STEP ATTEMPT RUN_BY_STATUS HISTORY LEASE {QUEUED}"),
    "fail_run": (
        "RUN ITEM STEP COMPLETION",
        f"RUN STEP ATTEMPT RUN_BY_STATUS HISTORY LEASE {QUEUED}",
    ),
}


@pytest.fixture
async def commits(anyio_backend: str) -> list[Commit]:
    world, store = recorded_world(prefix=b"")
    await world.begin()
    await world.hello()
    await tell(world, store, "run", workspace="acme", failure=PLAIN_FAILURE, step="s")
    await world.start_run()
    continued = await world.go_on(await world.start_step("s1"), Declaration("s2", RETRY))
    item = continued.following
    assert item is not None and item.token is not None
    work = Work(item.kind, item.target, item.step_id, item.item_id, item.token, item.generation)
    assert (await world.go_on(work, Completion(b"1"))).answer == Accepted()
    await world.invoke(key="k")
    await world.expand()
    return store.commits


def kinds(ranges: list[KeyRange]) -> set[str]:
    """Return the leaves that some ranges begin in; a stamped key's range begins at the least stamp it can have."""
    found = [identify(begin) for begin, _ in ranges]
    assert all(found), [begin for (begin, _), leaf in zip(ranges, found, strict=True) if leaf is None]
    return {leaf[0].name for leaf in found if leaf is not None}


async def test_each_transition_reads_and_writes_exactly_these_keys(commits: list[Commit]) -> None:
    """S2, "No transition reads a key that unrelated transitions write": shared indexes stand on the right only."""
    told: dict[str, tuple[set[str], set[str]]] = {}
    for commit in commits:
        reads, writes = told.setdefault(commit.name, (set(), set()))
        reads |= kinds(commit.reads)
        writes |= kinds(commit.writes)
    assert told == {name: (set(reads.split()), set(writes.split())) for name, (reads, writes) in RANGES.items()}


async def test_every_read_that_conflicts_is_of_one_key(commits: list[Commit]) -> None:
    """HOUSE 17, "a limited range read conflicts up to the last row": a claim or a page must not conflict with its range."""
    for commit in commits:
        for begin, end in commit.reads:
            assert end == begin + b"\x00", (commit.name, begin, end)


def test_nobody_depends_on_what_is_written_blind() -> None:
    """ARCHITECTURE 4: pointers, bells, lists and indexes are written without reading, and read by snapshot."""
    blind = {"DUE", "DUE_APP", "BELL", "BELL_APP", "EVENT_LIST", "RUN_LIST", "RUN_BY_FUNCTION", "RUN_BY_STATUS"}
    blind |= {"READY", "READY_APP", "LEASE", "HISTORY", "UNRESOLVED", "INSTANCE_WORK", "SETTLED", "FAILED"}
    for name, (reads, _) in RANGES.items():
        assert not blind & set(reads.split()), name


STOPPED = "RUN HISTORY RUN_BY_STATUS"
"""What a stop writes of a run that it ends."""

BETWEEN_RUNS: dict[str, tuple[str, str]] = {
    # The declaration that creates a child: what the child is made of, and its parent's step.
    "accept_declaration": (
        "RUN ITEM STEP",
        f"RUN STEP HISTORY LEASE RUN_INPUT RUN_STAMP RUN_LIST RUN_BY_FUNCTION RUN_BY_STATUS {QUEUED}",
    ),
    "complete_run": ("RUN ITEM", "RUN OUTPUT RUN_BY_STATUS HISTORY LEASE ITEM READY DUE BELL"),
    "settle_child": (
        "RUN ITEM STEP",
        f"RUN STEP STEP_VALUE SETTLED FAILED HISTORY READY RUN_BY_STATUS {QUEUED}",
    ),
    "cancel_run": ("RUN", f"{STOPPED} ITEM READY DUE BELL"),
    # A child that its stop ends: its discovery goes, and the settlement of its parent's step is on its way.
    "propagate_stop": ("ITEM RUN", f"{STOPPED} READY READY_APP ITEM DUE BELL"),
}


async def test_what_passes_between_runs_touches_exactly_these_keys() -> None:
    """RFD 2, "every transaction stays bounded by its own run's records": none but a parent's and its child's."""
    world, store = recorded_world(prefix=b"")
    await world.begin({"fulfil": ["order.placed"], "pick": []})
    await world.hello()
    store.commits.clear()
    await world.start_run()
    await invoke(world, await world.lease_pass())
    await world.complete(await world.lease_pass(function="pick"))
    await pass_on_all(world)
    await world.complete(await world.lease_pass())
    stopped = await world.start_run()
    await invoke(world, await world.lease_pass())
    await cancel(world, stopped.run_id)
    await pass_on_all(world)
    told: dict[str, tuple[set[str], set[str]]] = {}
    for commit in store.commits:
        if commit.name in BETWEEN_RUNS and "RUN" in kinds(commit.reads):
            reads, writes = told.setdefault(commit.name, (set(), set()))
            reads |= kinds(commit.reads)
            writes |= kinds(commit.writes)
    assert told == {name: (set(reads.split()), set(writes.split())) for name, (reads, writes) in BETWEEN_RUNS.items()}
