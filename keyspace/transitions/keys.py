"""Bearer keys: create, revoke, authenticate. A secret is shown once and stored nowhere; its digest is the look-up key."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from keyspace.errors import Refusal
from keyspace.layout import API_KEY, KEY_OWNER
from keyspace.limits import KEYS_PER_WORKSPACE_MAX
from keyspace.records.tenancy import ApiKeyRecord, KeyOwnerRecord, Role
from keyspace.transitions.create_workspace import require_workspace
from keyspace.transitions.names import check_id, check_text
from keyspace.tx import Tx

__all__ = ["KeyName", "authenticate", "create_key", "list_keys", "revoke_key", "revoked_keys", "secret_digest"]

LABEL_BYTES_MAX = 200


class KeyName(NamedTuple):
    """Which key, without its secret."""

    workspace: str
    key_id: str


def secret_digest(secret: str) -> str:
    """Return the digest under which a secret is stored. Secrets are random 32-byte values, so a plain hash suffices."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


async def create_key(tx: Tx, workspace: str, *, key_id: str, secret: str, role: Role, label: str = "") -> ApiKeyRecord:
    """Store a key of `workspace`.

    Args:
        tx: the open transaction.
        workspace: whose key it is.
        key_id: minted before the retry loop, 32 hexadecimal digits; the receipt.
        secret: what its bearer will present, at least 128 bits of randomness.
        role: what it may do.
        label: for people, at most 200 bytes.

    Reads: the workspace, the key, a page of keys.  Writes: the key and its owner entry.
    Idempotent: by key id.

    Raises:
        Refusal: `not_found`, `invalid_text`, `too_many_keys`.
    """
    check_text("label", label, bytes_max=LABEL_BYTES_MAX, empty=True)
    await require_workspace(tx, workspace)
    existing = await tx.load(API_KEY.at(workspace, key_id))
    if existing is not None:
        return existing
    rows = await tx.page(API_KEY.span(workspace), limit=KEYS_PER_WORKSPACE_MAX, snapshot=True)
    if len(rows) >= KEYS_PER_WORKSPACE_MAX:
        raise Refusal("too_many_keys", "The workspace has as many keys as it may.", limit=KEYS_PER_WORKSPACE_MAX)
    digest = secret_digest(secret)
    record = ApiKeyRecord(key_id=key_id, role=role, label=label, digest=digest, created_at_ms=tx.now_ms)
    tx.put(API_KEY.at(workspace, key_id), record)
    tx.put(KEY_OWNER.at(digest), KeyOwnerRecord(workspace=workspace, key_id=key_id, role=role))
    return record


async def revoke_key(tx: Tx, workspace: str, key_id: str) -> ApiKeyRecord:
    """End a key; revoking it again changes nothing.

    Raises:
        Refusal: `not_found`.
    """
    check_id("key", key_id)
    record = await tx.load(API_KEY.at(workspace, key_id))
    if record is None:
        raise Refusal("not_found", "There is no such key in this workspace.", key=key_id)
    if record.revoked_at_ms is None:
        record = msgspec.structs.replace(record, revoked_at_ms=tx.now_ms)
        tx.put(API_KEY.at(workspace, key_id), record)
        tx.remove(KEY_OWNER.at(record.digest))
    return record


async def list_keys(tx: Tx, workspace: str) -> list[ApiKeyRecord]:
    """Return every key of a workspace, revoked ones included; at most 1,000 by construction."""
    rows = await tx.page(API_KEY.span(workspace), limit=KEYS_PER_WORKSPACE_MAX, snapshot=True)
    return [API_KEY.codec.decode(value) for _, value in rows]


async def authenticate(tx: Tx, secret: str) -> KeyOwnerRecord | None:
    """Return whose key `secret` is, or None."""
    return await tx.load(KEY_OWNER.at(secret_digest(secret)), snapshot=True)


async def revoked_keys(tx: Tx, names: Sequence[KeyName]) -> list[KeyName]:
    """Return those of `names` that do not stand: revoked, or not there at all.

    Args:
        tx: the open transaction.
        names: the keys to read, together; the caller bounds their number.

    Reads: each key, as a snapshot.  Writes: nothing.  Conflicts: none.
    """
    records = await tx.load_all([API_KEY.at(*name) for name in names], snapshot=True)
    return [
        name for name, record in zip(names, records, strict=True) if record is None or record.revoked_at_ms is not None
    ]
