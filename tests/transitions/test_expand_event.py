"""Fan-out: every candidate binding evaluated once, in bounded pages, whatever stops in between."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from world import EagerClock, World

from keyspace.errors import CorruptRecord, Refusal
from keyspace.layout import MATCH, ROUTING, RUN
from keyspace.limits import ALLOWANCE_BYTES_DEFAULT, BINDING_PAGE_ITEMS
from keyspace.records.event import ExpansionState, MatchRecord
from keyspace.store.embedded import memory_store
from keyspace.store.fault import FaultStore, ProcessStopped
from keyspace.store.fault_plan import CommitFault, FaultPlan
from keyspace.store.memory_engine import MemoryEngine
from keyspace.transitions.activate_routing import activate_routing
from keyspace.transitions.create_workspace import create_workspace
from keyspace.transitions.expand_event import expand_event
from keyspace.transitions.materialize_run import RunSource, materialize_run, reserve_bytes, run_identity
from keyspace.transitions.names import check_name
from keyspace.transitions.publish_manifest import FunctionSpec, ManifestSpec, TriggerSpec, publish_manifest
from keyspace.tx import Tx

EVENT = "order.placed"


def functions(count: int) -> dict[str, list[str]]:
    """Return `count` functions that all start on one event."""
    return {f"f{number:04}": [EVENT] for number in range(count)}


async def test_zero_matches_is_a_complete_outcome(world: World) -> None:
    """RFD 2, "Zero matches is a successful complete outcome rather than a lost event"."""
    accepted = await world.submit("nobody.listens")
    assert accepted.expansion is ExpansionState.PENDING
    assert await world.expand() == 1
    expansion = await world.expansion(accepted.event_id)
    assert (expansion.state, expansion.evaluated_count, expansion.item_id) == (ExpansionState.COMPLETE, 0, None)
    assert await world.runs() == []
    await world.check()


async def test_an_event_without_routing_completes(empty: World) -> None:
    """An event accepted before anything was activated is pinned to that: generation 0, no candidate, complete."""
    await empty.begin()
    await empty.run("create_workspace", lambda tx: create_workspace(tx, "bare"))
    accepted = await empty.submit(workspace="bare")
    assert accepted.routing_generation == 0
    await empty.expand(workspace="bare")
    assert (await empty.expansion(accepted.event_id, workspace="bare")).state is ExpansionState.COMPLETE
    await empty.check()


@pytest.mark.parametrize("count", [1, BINDING_PAGE_ITEMS, BINDING_PAGE_ITEMS + 1, 130])
async def test_every_binding_becomes_one_run(count: int, empty: World) -> None:
    """RFD 2, "expansion reaches Complete only after every candidate binding": at and around the page's edge."""
    await empty.begin(functions(count))
    accepted = await empty.submit()
    chunks = await empty.expand()
    assert chunks == -(-count // BINDING_PAGE_ITEMS)
    runs = await empty.runs()
    assert [run.function for run in runs] == sorted(functions(count)), "in the order of the bindings"
    assert len({run.run_id for run in runs}) == count
    expansion = await empty.expansion(accepted.event_id)
    assert (expansion.state, expansion.evaluated_count, expansion.matched_count) == (
        ExpansionState.COMPLETE,
        count,
        count,
    )
    await empty.check()


async def test_a_thousand_bindings_over_several_applications(empty: World) -> None:
    """RFD 2, "across every referenced application manifest": 1,000 bindings in ten applications, each run explained."""
    await empty.begin({"only": ["other"]})
    for number in range(10):
        await empty.publish(functions(100), application=f"app{number}")
    accepted = await empty.submit()
    assert await empty.expand() == -(-1_000 // BINDING_PAGE_ITEMS)
    runs = await empty.runs()
    assert len(runs) == 1_000
    assert {(run.event_id, run.routing_generation, run.manifest_generation) for run in runs} == {
        (accepted.event_id, 11, 1)
    }
    figures = empty.keyspace.meter.snapshot()["expand_event"]
    assert figures.size_bytes / figures.commit_count < ALLOWANCE_BYTES_DEFAULT / 2
    await empty.check()


async def test_runs_become_visible_chunk_by_chunk(empty: World) -> None:
    """RFD 2, "Runs may become visible incrementally": each chunk leaves a consistent keyspace and a live obligation."""
    await empty.begin(functions(150))
    event_id = (await empty.submit()).event_id
    seen = []
    while (await empty.expansion(event_id)).state is not ExpansionState.COMPLETE:
        await empty.expand_chunk(event_id)
        seen.append(len(await empty.runs()))
        await empty.check()
    assert seen == [64, 128, 150]


async def test_a_later_activation_does_not_change_the_routing_set(world: World) -> None:
    """RFD 2, "A later application activation never changes an acknowledged event's routing set"."""
    before = await world.submit()
    await world.publish({"other": [EVENT]})
    after = await world.submit()
    await world.expand()
    assert {(run.event_id, run.function) for run in await world.runs()} == {
        (before.event_id, "fulfil"),
        (after.event_id, "other"),
    }
    assert (before.routing_generation, after.routing_generation) == (1, 2)


async def test_an_expansion_under_way_ignores_a_later_activation(empty: World) -> None:
    """The same rule in the middle of an expansion: the second chunk still reads the pinned generation."""
    await empty.begin(functions(100))
    event_id = (await empty.submit()).event_id
    await empty.expand_chunk(event_id)
    await empty.publish({"other": [EVENT]})
    await empty.expand()
    assert len(await empty.runs()) == 100
    assert (await empty.expansion(event_id)).matched_count == 100


async def test_run_ids_are_derived_from_workspace_event_application_and_binding(world: World) -> None:
    """RFD 2, "a deterministic identity derived from workspace, event, application, and binding IDs"."""
    accepted = await world.submit(event_id="ab" * 16)
    await world.expand()
    (run,) = await world.runs()
    source = RunSource(accepted.event_id, EVENT, 1, "shop", "fulfil", "fulfil@order.placed", 1, 1)
    assert run.run_id == run_identity("acme", source)
    others = [
        run_identity("acmf", source),
        run_identity("acme", source._replace(event_id="cd" * 16)),
        run_identity("acme", source._replace(application="shoq")),
        run_identity("acme", source._replace(binding="x")),
        run_identity("acme", source._replace(application="sho", binding="p" + source.binding)),
    ]
    assert len({run.run_id, *others}) == 6


async def test_a_chunk_tried_again_finds_its_work_done(empty: World) -> None:
    """RFD 2, "Retrying any chunk is idempotent": the same obligation asked for again after it is complete."""
    await empty.begin(functions(3))
    event_id = (await empty.submit()).event_id
    item_id = (await empty.expansion(event_id)).item_id
    assert item_id is not None
    await empty.expand_chunk(event_id)
    before = await empty.dump()
    again = await empty.run("expand_event", lambda tx: expand_event(tx, "acme", event_id, item_id))
    assert (again.evaluated_count, again.is_complete) == (0, True)
    assert await empty.dump() == before


@pytest.mark.case(1)
@pytest.mark.parametrize("fault", [CommitFault.UNKNOWN_COMMITTED, CommitFault.UNKNOWN_NOT_COMMITTED])
@pytest.mark.parametrize("chunk", [1, 2, 3])
async def test_an_unknown_chunk_never_takes_the_ids_of_another(fault: CommitFault, chunk: int) -> None:
    """Case 001: when a chunk's commit is unknown its retry goes on with the next page; their work items must differ."""
    clock = EagerClock()
    plan = FaultPlan().at_commit(chunk, fault, transition="expand_event")
    world = World(clock=clock, store=FaultStore(memory_store(clock=clock), plan, clock=clock))
    await world.begin(functions(150))
    event_id = (await world.submit()).event_id
    await world.expand()
    assert (await world.expansion(event_id)).evaluated_count == 150
    assert len({run.item_id for run in await world.runs()}) == 150
    await world.check()


@pytest.mark.parametrize("chunk", [1, 2, 3])
@pytest.mark.parametrize("fault", [CommitFault.STOP_AFTER, CommitFault.STOP_BEFORE])
async def test_a_stop_at_every_chunk(fault: CommitFault, chunk: int) -> None:
    """RFD 2, "Either page therefore resumes at the next dispatch": another process goes on from the stored cursor."""
    clock, engine = EagerClock(), MemoryEngine()
    plan = FaultPlan().at_commit(chunk, fault, transition="expand_event")
    world = World(clock=clock, store=FaultStore(memory_store(clock=clock, engine=engine), plan, clock=clock))
    await world.begin(functions(150))
    event_id = (await world.submit()).event_id
    with pytest.raises(ProcessStopped):
        await world.expand()
    successor = World(seed=1, clock=clock, store=memory_store(clock=clock, engine=engine))
    await successor.check()
    done = chunk if fault is CommitFault.STOP_AFTER else chunk - 1
    assert len(await successor.runs()) == min(150, 64 * done)
    await successor.expand()
    assert (await successor.expansion(event_id)).evaluated_count == 150
    assert len({run.item_id for run in await successor.runs()}) == 150
    await successor.check()


# -- budget

WORST_NAME = '"\\' * 100
WIDE_NAME = "\U0001f600" * 200


@pytest.mark.parametrize("name", [WORST_NAME, WIDE_NAME, "n"])
@pytest.mark.parametrize("prefix_bytes", [0, 1, 64])
@pytest.mark.parametrize("timeout_ms", [None, 2**40])
async def test_the_reserve_is_never_below_the_charge(name: str, prefix_bytes: int, timeout_ms: int | None) -> None:
    """RFD 2, "reserved before the page reads the candidate": names at their longest and worst to escape, long prefixes."""
    world = World(prefix=b"\x15" * prefix_bytes)
    workspace = "w" * 63 if len(name) > 1 else "w"
    source = RunSource("ab" * 16, name, 10, name[:-1] + "a", name[:-1] + "f", name[:-1] + "b", 2**31, 2**31, timeout_ms)
    await world.run("create_workspace", lambda tx: create_workspace(tx, workspace))

    async def body(tx: Tx) -> tuple[int, int, int]:
        run_id = run_identity(workspace, source)
        before = tx.budget.spent_bytes
        tx.budget.read(len(RUN.at(workspace, run_id).data) + prefix_bytes)
        materialize_run(tx, workspace, run_id, source, order=0)
        tx.put(
            MATCH.at(workspace, source.event_id, source.application, source.binding),
            MatchRecord(run_id=run_id, function=source.function, evaluated_at_ms=tx.now_ms),
        )
        return tx.budget.spent_bytes - before, await tx.measured_bytes(), reserve_bytes(workspace, source, prefix_bytes)

    charged, measured, reserved = await world.run("materialize", body)
    assert measured <= charged <= reserved
    assert reserved <= 3 * charged, "a reserve far above the charge would waste the page"


names = st.text(min_size=1, max_size=200).filter(lambda name: is_name(name))


def is_name(text: str) -> bool:
    try:
        check_name("name", text)
    except Refusal:
        return False
    return True


@settings(max_examples=60, deadline=None)
@given(names, names, names, names, st.binary(max_size=20))
async def test_the_reserve_holds_for_any_names(
    event: str, application: str, function: str, binding: str, prefix: bytes
) -> None:
    """The same for whatever names pass: an identifier that is counted once too little would show here."""
    world = World(prefix=prefix.replace(b"\xff", b"\xfe"))
    source = RunSource("ab" * 16, event, 10, application, function, binding, 1, 1)

    async def body(tx: Tx) -> tuple[int, int]:
        before = tx.budget.spent_bytes
        await tx.load(RUN.at("acme", run_identity("acme", source)))
        materialize_run(tx, "acme", run_identity("acme", source), source, order=0)
        tx.put(
            MATCH.at("acme", source.event_id, source.application, source.binding),
            MatchRecord(run_id=run_identity("acme", source), function=source.function, evaluated_at_ms=tx.now_ms),
        )
        return tx.budget.spent_bytes - before, reserve_bytes("acme", source, tx.prefix_bytes)

    charged, reserved = await world.run("materialize", body)
    assert charged <= reserved


@pytest.mark.parametrize("name", [WORST_NAME, WIDE_NAME])
async def test_the_worst_names_stay_within_half_the_allowance(name: str) -> None:
    """RFD 2, "The binding page spends at most half the transaction budget": 130 candidates with the worst names there are."""
    world = World(prefix=b"\x15" * 64)
    workspace = "w" * 63
    await world.run("create_workspace", lambda tx: create_workspace(tx, workspace))
    for number in range(10):
        stem = f"{number}{name}"[:190]
        spec = ManifestSpec(
            stem,
            tuple(FunctionSpec(f"{stem}{n}", (TriggerSpec(name[:200], f"b{stem}{n}"),)) for n in range(13)),
        )
        publish = partial(publish_manifest, workspace=workspace, spec=spec, published_by="t")
        record, _ = await world.run("publish_manifest", publish)
        activate = partial(
            activate_routing, workspace=workspace, applications={stem: 1}, activated_by="t", is_merge=True
        )
        await world.run("activate_routing", activate)
        assert record.generation == 1
    accepted = await world.submit(name[:200], workspace=workspace)
    await world.expand(workspace=workspace)
    figures = world.keyspace.meter.snapshot()["expand_event"]
    assert figures.size_bytes / figures.commit_count <= ALLOWANCE_BYTES_DEFAULT / 2 + 20_000
    assert (await world.expansion(accepted.event_id, workspace=workspace)).evaluated_count == 130
    assert len(await world.runs(workspace=workspace)) == 130
    await world.check()


async def test_the_smallest_allowance_still_makes_progress() -> None:
    """S5, "every page makes progress on at least one candidate": a candidate above half the allowance is still taken."""
    world = World()
    await world.begin({WIDE_NAME[:180]: [EVENT], "b": [EVENT]})
    event_id = (await world.submit()).event_id
    item_id = (await world.expansion(event_id)).item_id
    assert item_id is not None
    counts = []
    for _ in range(2):

        async def body(tx: Tx) -> int:
            tx.budget.allowance_bytes = 60_000
            return (await expand_event(tx, "acme", event_id, item_id)).evaluated_count

        counts.append(await world.run("expand_event", body))
    assert counts == [1, 1]
    assert (await world.expansion(event_id)).state is ExpansionState.COMPLETE


async def test_a_missing_routing_generation_is_evidence(world: World) -> None:
    """A pinned generation that is gone must be reported, never treated as zero matches."""
    event_id = (await world.submit()).event_id

    async def lose(tx: Tx) -> None:
        tx.remove(ROUTING.at("acme", 1))

    await world.run("lose", lose)
    with pytest.raises(CorruptRecord):
        await world.expand_chunk(event_id)
