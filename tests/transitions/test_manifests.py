"""Workspaces, manifests and routing: idempotent by content, refused with the path, never changed under an accepted event."""

from __future__ import annotations

from typing import Any

import pytest
from world import World, manifest

from keyspace.errors import Refusal
from keyspace.layout import MANIFEST, MANIFEST_BINDING, MANIFEST_FUNCTION, ROUTING, ROUTING_HEAD, WORKSPACE
from keyspace.limits import APPLICATIONS_MAX, BINDINGS_MAX, FUNCTIONS_MAX, RETENTION_MS_DEFAULT
from keyspace.records.tenancy import ManifestRecord, RoutingRecord
from keyspace.transitions.activate_routing import activate_routing
from keyspace.transitions.create_workspace import create_workspace
from keyspace.transitions.publish_manifest import FunctionSpec, ManifestSpec, TriggerSpec, publish_manifest


async def publish(world: World, spec: ManifestSpec, *, workspace: str = "acme") -> tuple[ManifestRecord, bool]:
    return await world.run("publish_manifest", lambda tx: publish_manifest(tx, workspace, spec, published_by="t"))


async def activate(
    world: World, applications: dict[str, int], *, merge: bool = False, workspace: str = "acme"
) -> tuple[RoutingRecord, bool]:
    return await world.run(
        "activate_routing",
        lambda tx: activate_routing(tx, workspace, applications, activated_by="t", is_merge=merge),
    )


async def refused(world: World, action: Any) -> Refusal:
    """Return the refusal of an action, which must have changed nothing."""
    before = await world.dump()
    with pytest.raises(Refusal) as found:
        await action
    assert await world.dump() == before
    return found.value


# -- workspaces


async def test_a_workspace_is_created_once(empty: World) -> None:
    """Idempotent by name: the second creation finds the first, whatever it asks for."""
    first, is_new = await empty.run("create_workspace", lambda tx: create_workspace(tx, "acme"))
    assert is_new and first.retention_ms == RETENTION_MS_DEFAULT
    before = await empty.dump()
    again = await empty.run("create_workspace", lambda tx: create_workspace(tx, "acme", retention_ms=5))
    assert again == (first, False)
    assert await empty.dump() == before
    assert await empty.records(WORKSPACE) == [first]


@pytest.mark.parametrize(("name", "retention_ms"), [("Acme", 1), ("", 1), ("acme", 0), ("acme", -1)])
async def test_an_unsound_workspace_is_refused(name: str, retention_ms: int, empty: World) -> None:
    await refused(
        empty, empty.run("create_workspace", lambda tx: create_workspace(tx, name, retention_ms=retention_ms))
    )


# -- manifests


async def test_a_manifest_is_idempotent_by_content(world: World) -> None:
    """FILLED-IN 1, 23: the same content is the same generation, in whatever order it is written down."""
    functions = (
        FunctionSpec("a", (TriggerSpec("e1", "a1"), TriggerSpec("e2", "a2")), "c"),
        FunctionSpec("b", (TriggerSpec("e1", "b1"),)),
    )
    first, is_new = await publish(world, ManifestSpec("new", functions))
    assert is_new and (first.generation, first.function_count, first.binding_count) == (1, 2, 3)
    before = await world.dump()
    turned = (functions[1], functions[0]._replace(triggers=functions[0].triggers[::-1]))
    assert await publish(world, ManifestSpec("new", turned)) == (first, False)
    assert await world.dump() == before
    assert len(await world.records(MANIFEST_BINDING, "new", 1)) == 3
    assert [record.name for record in await world.records(MANIFEST_FUNCTION, "new", 1)] == ["a", "b"]


@pytest.mark.parametrize(
    "change",
    [
        ManifestSpec("new", (FunctionSpec("a", (TriggerSpec("e", "x"),)),)),
        ManifestSpec("new", (FunctionSpec("a", (TriggerSpec("f", "a"),)),)),
        ManifestSpec("new", (FunctionSpec("b", (TriggerSpec("e", "a"),)),)),
        ManifestSpec("new", (FunctionSpec("a", (TriggerSpec("e", "a"),), "contract"),)),
        ManifestSpec("new", (FunctionSpec("a"),)),
        ManifestSpec("new", (FunctionSpec("a", (TriggerSpec("e", "a"),)), FunctionSpec("z"))),
    ],
)
async def test_any_other_content_is_a_new_generation(change: ManifestSpec, world: World) -> None:
    """A generation is immutable: the earlier one stays as it was, and coming back to it is another generation."""
    spec = ManifestSpec("new", (FunctionSpec("a", (TriggerSpec("e", "a"),)),))
    first, _ = await publish(world, spec)
    second, is_new = await publish(world, change)
    assert is_new and (second.generation, second.digest != first.digest) == (2, True)
    third, is_new = await publish(world, spec)
    assert is_new and (third.generation, third.digest) == (3, first.digest)
    assert await world.records(MANIFEST, "new") == [first, second, third]


def named(function: str = "f", event: str = "e", binding: str = "b", application: str = "app") -> ManifestSpec:
    return ManifestSpec(application, (FunctionSpec("ok"), FunctionSpec(function, (TriggerSpec(event, binding),))))


@pytest.mark.case(44)
@pytest.mark.parametrize(
    ("spec", "code", "field"),
    [
        (ManifestSpec("app", ()), "invalid_manifest", "functions"),
        (
            ManifestSpec("app", tuple(FunctionSpec(f"f{n}") for n in range(FUNCTIONS_MAX + 1))),
            "invalid_manifest",
            "functions",
        ),
        (named(application=" "), "invalid_name", "application"),
        (named(function=""), "invalid_name", "functions[1].name"),
        (named(function="ok"), "invalid_manifest", "functions[1].name"),
        (named(event="\x00"), "invalid_name", "functions[1].triggers[0].event"),
        (named(binding="x" * 10_000), "invalid_name", "functions[1].triggers[0].binding"),
        (named(event="ryusen/x"), "reserved_name", "functions[1].triggers[0].event"),
        (named(binding="invoke"), "reserved_name", "functions[1].triggers[0].binding"),
        (
            ManifestSpec("app", tuple(FunctionSpec(n, (TriggerSpec("e", "b"),)) for n in "fg")),
            "invalid_manifest",
            "functions[1].triggers[0].binding",
        ),
        (ManifestSpec("app", (FunctionSpec("f", (), "c" * 101),)), "invalid_text", "functions[0].contract"),
        (
            ManifestSpec(
                "app",
                (FunctionSpec("f", tuple(TriggerSpec("e", f"b{n}") for n in range(BINDINGS_MAX + 1))),),
            ),
            "invalid_manifest",
            "functions",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_an_unsound_manifest_is_refused_with_the_path(
    spec: ManifestSpec, code: str, field: str, world: World
) -> None:
    """Case 044, "refused at publish or declaration with the path, the bad value and the allowed range; nothing stored"."""
    refusal = await refused(world, publish(world, spec))
    assert (refusal.code, refusal.details["field"]) == (code, field)


async def test_a_manifest_of_an_unknown_workspace_is_refused(world: World) -> None:
    assert (await refused(world, publish(world, named(), workspace="nowhere"))).code == "not_found"


@pytest.mark.case(64)
async def test_a_manifest_that_no_transaction_carries_is_refused(world: World) -> None:
    """Case 064, "refused before writing, naming the field": 5,000 bindings with the longest names are over the allowance."""
    long = "\U0001f600" * 190
    triggers = tuple(TriggerSpec(long, f"{long}{number}") for number in range(BINDINGS_MAX))
    refusal = await refused(world, publish(world, ManifestSpec(long, (FunctionSpec(long, triggers),))))
    assert (refusal.code, refusal.details["field"]) == ("manifest_too_large", "functions")


async def test_the_most_bindings_with_short_names_fit(world: World) -> None:
    """Budget: about 300 bytes a binding; the documented most of them is one transaction."""
    triggers = tuple(TriggerSpec("order.placed", f"binding-{number}") for number in range(BINDINGS_MAX))
    record, _ = await publish(world, ManifestSpec("large", (FunctionSpec("f", triggers),)))
    assert record.binding_count == BINDINGS_MAX
    assert world.keyspace.meter.snapshot()["publish_manifest"].size_bytes < 350 * BINDINGS_MAX


# -- routing


async def test_activation_is_idempotent_by_content(world: World) -> None:
    """FILLED-IN 1, 24: the active generation again is no new one; another set is the next, in a row without gaps."""
    before = await world.dump()
    record, is_new = await activate(world, {"shop": 1})
    assert (record.generation, is_new) == (1, False)
    assert await world.dump() == before
    await publish(world, manifest("shop", {"other": ["e"]}))
    second, is_new = await activate(world, {"shop": 2})
    assert is_new and second.generation == 2
    third, _ = await activate(world, {"shop": 1})
    assert (third.generation, third.applications) == (3, {"shop": 1})
    assert [record.generation for record in await world.records(ROUTING)] == [1, 2, 3]
    assert await world.records(ROUTING_HEAD) == [3]


async def test_a_merge_keeps_the_other_applications(world: World) -> None:
    """Replacing routes exactly what is named; merging changes what is named and keeps the rest."""
    await publish(world, manifest("bill", {"charge": ["e"]}))
    merged, _ = await activate(world, {"bill": 1}, merge=True)
    assert merged.applications == {"bill": 1, "shop": 1}
    replaced, _ = await activate(world, {"bill": 1})
    assert replaced.applications == {"bill": 1}


@pytest.mark.parametrize(
    ("applications", "code"),
    [
        ({}, "invalid_routing"),
        ({"shop": 0}, "invalid_routing"),
        ({"shop": -1}, "invalid_routing"),
        ({"shop": 2}, "unknown_manifest"),
        ({"nothing": 1}, "unknown_manifest"),
        ({"": 1}, "invalid_name"),
        ({f"app{number}": 1 for number in range(APPLICATIONS_MAX + 1)}, "invalid_routing"),
    ],
    ids=str,
)
async def test_an_unsound_activation_is_refused(applications: dict[str, int], code: str, world: World) -> None:
    """A routing generation names published manifests only: an event must never be pinned to what does not exist."""
    assert (await refused(world, activate(world, applications))).code == code


async def test_the_most_applications_with_the_longest_names_are_one_record(world: World) -> None:
    """Would catch a routing record that grows beyond what a stored value may be."""
    names = [f"{number:03}" + "\U0001f600" * 197 for number in range(APPLICATIONS_MAX)]
    for name in names:
        await publish(world, manifest(name, {"f": []}))
    record, is_new = await activate(world, dict.fromkeys(names, 1))
    assert is_new and len(record.applications) == APPLICATIONS_MAX
    await world.check()
