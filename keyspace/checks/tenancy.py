"""Workspaces, keys, manifests and routing (C7)."""

from __future__ import annotations

from keyspace.checks.report import Case, checks
from keyspace.layout import (
    API_KEY,
    KEY_OWNER,
    MANIFEST,
    MANIFEST_BINDING,
    MANIFEST_FUNCTION,
    MANIFEST_HEAD,
    ROUTING,
    ROUTING_HEAD,
    WORKSPACE,
    WORKSPACE_LIST,
)
from keyspace.limits import BINDINGS_MAX, FUNCTIONS_MAX
from keyspace.store.api import KeyRange

__all__: list[str] = []


@checks(WORKSPACE)
async def check_workspace(case: Case) -> None:
    """A workspace is on the list."""
    key = WORKSPACE_LIST.at(case.workspace)
    rows = await case.tx.page(KeyRange(key.data, key.data + b"\x00"), limit=1, snapshot=True)
    case.expect(rows, "C7", "the workspace is not on the list")


@checks(WORKSPACE_LIST)
async def check_workspace_list(case: Case) -> None:
    """A listed workspace exists."""
    case.expect(await case.tx.load(WORKSPACE.at(case.elements[0]), snapshot=True), "C7", "no such workspace exists")


@checks(API_KEY)
async def check_api_key(case: Case) -> None:
    """A key that stands can authenticate; a revoked one cannot."""
    owner = await case.tx.load(KEY_OWNER.at(case.record.digest), snapshot=True)
    case.expect(
        (owner is not None) == (case.record.revoked_at_ms is None), "C7", "the key's owner entry does not agree"
    )


@checks(KEY_OWNER)
async def check_key_owner(case: Case) -> None:
    """An owner entry names a key with this digest."""
    key = await case.tx.load(API_KEY.at(case.record.workspace, case.record.key_id), snapshot=True)
    case.expect(key is not None and key.digest == case.elements[0], "C7", "no such key has this digest")


@checks(MANIFEST)
async def check_manifest(case: Case) -> None:
    """A manifest has the functions and bindings it counts."""
    ws, application, generation = case.elements
    functions = await case.tx.page(
        MANIFEST_FUNCTION.span(ws, application, generation), limit=FUNCTIONS_MAX + 1, snapshot=True
    )
    bindings = await case.tx.page(
        MANIFEST_BINDING.span(ws, application, generation), limit=BINDINGS_MAX + 1, snapshot=True
    )
    case.expect(len(functions) == case.record.function_count, "C7", "the functions differ in number")
    case.expect(len(bindings) == case.record.binding_count, "C7", "the bindings differ in number")
    head = await case.tx.load(MANIFEST_HEAD.at(ws, application), snapshot=True)
    # A head that falls behind would have the next publication write over what events are pinned to.
    case.expect(head is not None and head >= generation, "C12", "the head is older than this generation")


@checks(MANIFEST_HEAD)
async def check_manifest_head(case: Case) -> None:
    """The newest generation exists and none is newer."""
    ws, application = case.elements
    newest, beyond = await case.tx.load(
        MANIFEST.at(ws, application, case.record), MANIFEST.at(ws, application, case.record + 1), snapshot=True
    )
    case.expect(newest is not None and beyond is None, "C12", "the head is not the newest generation")


@checks(ROUTING)
async def check_routing(case: Case) -> None:
    """A routing generation is not beyond the active one, and names published manifests."""
    ws, generation = case.elements
    head = await case.tx.load(ROUTING_HEAD.at(ws), snapshot=True)
    case.expect(head is not None and head >= generation, "C12", "the head is older than this generation")
    named = await case.tx.load_all(
        (MANIFEST.at(ws, application, of) for application, of in case.record.applications.items()), snapshot=True
    )
    case.expect(all(record is not None for record in named), "C2", "a manifest that is routed to is missing")


@checks(ROUTING_HEAD)
async def check_routing_head(case: Case) -> None:
    """The active routing generation exists and none is newer."""
    ws = case.elements[0]
    active, beyond = await case.tx.load(ROUTING.at(ws, case.record), ROUTING.at(ws, case.record + 1), snapshot=True)
    case.expect(active is not None and beyond is None, "C12", "the head is not the newest generation")
