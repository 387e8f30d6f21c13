"""The workspace and the key of a local server: made at its first start, found again at every later one.

The secret lies in a file beside the store, readable by its owner only, because a store keeps no secrets. A file that is
missing, or that belongs to another store, costs nothing but a new key.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from keyspace.keyspace import Keyspace
from keyspace.records.tenancy import Role
from keyspace.transitions.create_workspace import create_workspace
from keyspace.transitions.keys import authenticate, create_key
from services.gateway.workspaces import new_secret

__all__ = ["Access", "access_file", "open_access"]

FILE_BYTES_MAX = 10_000
LABEL = "ryusen dev"
_ELSEWHERE = Path("var/ryusen.dev.json")


class Access(msgspec.Struct, frozen=True):
    """What it takes to use the local server."""

    workspace: str
    secret: str


def access_file(store: str) -> Path:
    """Return where the secret of a local server on `store` is kept."""
    scheme, _, path = store.partition(":")
    if scheme != "embedded":
        return _ELSEWHERE
    folder = Path(path)
    return folder.with_name(folder.name + ".dev.json")


async def open_access(keyspace: Keyspace, workspace: str, file: Path) -> Access:
    """Return a working key of `workspace`, creating the workspace, the key and the file as needed.

    Raises:
        Refusal: `invalid_name`, `too_many_keys`.
        OSError: the file cannot be written.
    """
    await keyspace.transact("create_workspace", lambda tx: create_workspace(tx, workspace))
    known = _read(file)
    if known is not None and known.workspace == workspace:
        owner = await keyspace.transact("authenticate", lambda tx: authenticate(tx, known.secret))
        if owner is not None and owner.workspace == workspace and owner.role is Role.ADMIN:
            return known
    key_id, secret = keyspace.mint(), new_secret()
    await keyspace.transact(
        "create_key",
        lambda tx: create_key(tx, workspace, key_id=key_id, secret=secret, role=Role.ADMIN, label=LABEL),
    )
    made = Access(workspace, secret)
    _write(file, made)
    return made


def _read(file: Path) -> Access | None:
    try:
        if file.stat().st_size > FILE_BYTES_MAX:
            return None
        return msgspec.json.decode(file.read_bytes(), type=Access)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def _write(file: Path, access: Access) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    fresh = file.with_name(file.name + ".new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(msgspec.json.encode(access))
    fresh.replace(file)
