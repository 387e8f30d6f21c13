"""Workspaces and their keys."""

from __future__ import annotations

import secrets

import msgspec

from keyspace.layout import WORKSPACE, WORKSPACE_LIST
from keyspace.limits import RETENTION_MS_DEFAULT
from keyspace.records.tenancy import ApiKeyRecord, Role, WorkspaceRecord
from keyspace.transitions.create_workspace import create_workspace, require_workspace
from keyspace.transitions.keys import create_key, list_keys, revoke_key
from keyspace.tx import Tx
from services.gateway.cursors import ListQuery
from services.gateway.endpoints import Answer, Call
from services.gateway.pages import PageRequest, read_rows
from services.gateway.problems import ApiProblem
from services.gateway.types import Key, KeyRequest, NewKey, Page, Workspace, WorkspaceRequest

__all__ = [
    "create_workspace_key",
    "get_workspace",
    "list_workspace_keys",
    "list_workspaces",
    "new_secret",
    "new_workspace",
    "revoke_workspace_key",
]

BODY_BYTES_MAX = 8_192
SECRET_PREFIX = "ryk_"
SECRET_BYTES = 32

_workspace_decoder = msgspec.json.Decoder(WorkspaceRequest)
_key_decoder = msgspec.json.Decoder(KeyRequest)


def new_secret() -> str:
    """Return a fresh secret: 256 random bits behind a prefix by which leaked keys are found in texts."""
    return SECRET_PREFIX + secrets.token_urlsafe(SECRET_BYTES)


async def new_workspace(call: Call) -> Answer:
    """Create a workspace; creating it again answers the one that exists."""
    wanted = await call.decode(_workspace_decoder, BODY_BYTES_MAX)
    retention_ms = RETENTION_MS_DEFAULT if wanted.retention_ms is None else wanted.retention_ms
    record, is_new = await call.transact(
        "create_workspace", lambda tx: create_workspace(tx, wanted.name, retention_ms=retention_ms)
    )
    return Answer(_workspace(record), 201 if is_new else 200)


async def get_workspace(call: Call) -> Answer:
    """Answer one workspace."""
    return Answer(_workspace(await call.transact("get_workspace", lambda tx: require_workspace(tx, call.workspace))))


async def list_workspaces(call: Call) -> Answer:
    """List the workspaces that the caller reaches, by name."""
    own = None if call.identity.role is Role.SYSTEM else call.identity.workspace
    request = PageRequest.of(ListQuery("workspaces", own or ""), call.query)

    async def page(tx: Tx) -> Page[Workspace]:
        span = WORKSPACE_LIST.span() if own is None else WORKSPACE_LIST.span(own)
        found = await read_rows(tx, span, request, reverse=False)
        names = [WORKSPACE_LIST.parse(key)[0] for key, _ in found.rows]
        records = await tx.load_all([WORKSPACE.at(name) for name in names], snapshot=True)
        return Page(items=[_workspace(record) for record in records if record], next_cursor=found.next_cursor)

    return Answer(await call.transact("list_workspaces", page))


async def create_workspace_key(call: Call) -> Answer:
    """Create a key and show its secret, this once."""
    wanted = await call.decode(_key_decoder, BODY_BYTES_MAX)
    if wanted.role is Role.SYSTEM and call.identity.role is not Role.SYSTEM:
        raise ApiProblem("forbidden", "Only the operator may create keys that reach every workspace.", field="role")
    key_id, secret = call.gateway.keyspace.mint(), new_secret()
    record = await call.transact(
        "create_key",
        lambda tx: create_key(tx, call.workspace, key_id=key_id, secret=secret, role=wanted.role, label=wanted.label),
    )
    made = NewKey(
        key=record.key_id,
        secret=secret,
        role=record.role,
        label=record.label,
        created_at_ms=record.created_at_ms,
    )
    return Answer(made)


async def list_workspace_keys(call: Call) -> Answer:
    """List a workspace's keys, revoked ones included; all of them, since their number is bounded."""

    async def page(tx: Tx) -> list[ApiKeyRecord]:
        await require_workspace(tx, call.workspace)
        return await list_keys(tx, call.workspace)

    records = await call.transact("list_keys", page)
    return Answer(Page[Key](items=[_key(record) for record in records]))


async def revoke_workspace_key(call: Call) -> Answer:
    """Revoke a key; revoking it again changes nothing."""
    record = await call.transact("revoke_key", lambda tx: revoke_key(tx, call.workspace, call.parts["key"]))
    call.gateway.keys.forget_key(record.key_id)
    return Answer(_key(record))


def _workspace(record: WorkspaceRecord) -> Workspace:
    return Workspace(name=record.name, created_at_ms=record.created_at_ms, retention_ms=record.retention_ms)


def _key(record: ApiKeyRecord) -> Key:
    return Key(
        key=record.key_id,
        role=record.role,
        label=record.label,
        created_at_ms=record.created_at_ms,
        revoked_at_ms=record.revoked_at_ms,
    )
