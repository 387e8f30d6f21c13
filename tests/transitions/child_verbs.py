"""Invoke functions from runs and pass on what goes between a parent and its child, for the tests of children."""

from __future__ import annotations

from typing import Any

from deadline_verbs import fire
from server_steps import ONCE
from world import World

from keyspace.layout import ITEM
from keyspace.records.run import RunRecord
from keyspace.records.work import ItemRecord, WorkKind
from keyspace.transitions.activate_routing import activate_routing
from keyspace.transitions.declaration import ChildTerms, Declaration
from keyspace.transitions.propagate_stop import Propagated, propagate_stop
from keyspace.transitions.publish_manifest import FunctionSpec, ManifestSpec, TriggerSpec, publish_manifest
from keyspace.transitions.settle_child import Settled, settle_child
from keyspace.transitions.work import Accepted, Work
from keyspace.tx import Tx

__all__ = [
    "BETWEEN_RUNS",
    "CALL",
    "INPUT",
    "child_of",
    "descend",
    "family",
    "invocation",
    "invoke",
    "pass_on",
    "pass_on_all",
    "pass_on_item",
    "publish_each",
    "settle_work",
    "time_over",
]

CALL = "call"
"""The step that invokes, in these tests."""
INPUT = b'{"sku":7}'
VALUE_BYTES_MAX = 262_144
ROUNDS_MAX = 100
BETWEEN_RUNS = (WorkKind.CHILD_SETTLE, WorkKind.STOP_PROPAGATE)


def invocation(function: str = "pick", *, step_id: str = CALL, data: bytes = INPUT, **terms: Any) -> Declaration:
    """Return the declaration of a child."""
    return Declaration(step_id, ONCE, terms=ChildTerms(function=function, input=data, **terms))


async def invoke(world: World, work: Work, function: str = "pick", **terms: Any) -> RunRecord:
    """Answer a pass with an invocation and return the child."""
    wanted = invocation(function, **terms)
    assert await world.declare(work, wanted.step_id, retry=ONCE, terms=wanted.terms) == Accepted()
    return await child_of(world, work.run_id)


async def child_of(world: World, run_id: str) -> RunRecord:
    """Return the run that a run waits for."""
    child_id = (await world.get_run(run_id)).child_id
    assert child_id is not None
    return await world.get_run(child_id)


async def family(
    world: World, *, child_timeout_ms: int | None = None, parent_timeout_ms: int | None = None, **terms: Any
) -> tuple[RunRecord, RunRecord]:
    """Start a run of `fulfil` that invokes `pick`; return both. The timeouts are what the functions declare."""
    await publish_each(world, {"fulfil": parent_timeout_ms, "pick": child_timeout_ms})
    run = await world.start_run()
    child = await invoke(world, await world.lease_pass(), **terms)
    return await world.get_run(run.run_id), child


async def publish_each(world: World, timeouts_ms: dict[str, int | None]) -> None:
    """Publish functions that each declare a run timeout of their own; `order.placed` starts `fulfil`."""
    functions = tuple(
        FunctionSpec(name, (TriggerSpec("order.placed", "placed"),) if name == "fulfil" else (), timeout_ms=timeout_ms)
        for name, timeout_ms in timeouts_ms.items()
    )

    async def route(tx: Tx) -> None:
        record, _ = await publish_manifest(tx, "acme", ManifestSpec("shop", functions), published_by="test")
        await activate_routing(tx, "acme", {"shop": record.generation}, activated_by="test")

    await world.run("publish_manifest", route)


async def descend(world: World, depth: int) -> list[RunRecord]:
    """Start a chain of runs of `deep`, each invoking the next; the last, at `depth`, has its first pass ready."""
    await world.publish({"deep": ["go.down"]})
    run = await world.start_run("go.down")
    for _ in range(depth):
        await invoke(world, await world.lease_pass(function="deep"), "deep")
    chain = [await world.get_run(run.run_id)]
    while chain[-1].child_id is not None:
        chain.append(await world.get_run(chain[-1].child_id))
    assert len(chain) == depth + 1
    return chain


async def settle_work(world: World) -> list[ItemRecord]:
    """Return the work between runs that there is."""
    return [item for item in await world.records(ITEM) if item.kind in BETWEEN_RUNS]


async def pass_on_item(world: World, item: ItemRecord) -> Settled | Propagated:
    """Deliver one piece of work between runs, whether or not it is still there."""
    if item.kind is WorkKind.CHILD_SETTLE:
        return await world.run(
            "settle_child", lambda tx: settle_child(tx, "acme", item, value_bytes_max=VALUE_BYTES_MAX)
        )
    return await world.run("propagate_stop", lambda tx: propagate_stop(tx, "acme", item))


async def pass_on(world: World) -> list[Settled | Propagated]:
    """Deliver the work between runs that there is now, once."""
    return [await pass_on_item(world, item) for item in await settle_work(world)]


async def pass_on_all(world: World) -> int:
    """Deliver the work between runs until there is none; return how many deliveries it took."""
    delivered = 0
    for _ in range(ROUNDS_MAX):
        outcomes = await pass_on(world)
        if not outcomes:
            return delivered
        delivered += len(outcomes)
    raise AssertionError("the work between runs does not end")


async def time_over(world: World, run: RunRecord) -> None:
    """Let a run's deadline come, and its timer fire."""
    assert run.deadline_at_ms is not None
    world.clock.advance(max(0, run.deadline_at_ms - world.clock.now_ms()))
    await fire(world, run.run_id)
