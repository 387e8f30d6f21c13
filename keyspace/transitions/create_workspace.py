"""Create a workspace."""

from __future__ import annotations

from keyspace.errors import Refusal
from keyspace.layout import WORKSPACE, WORKSPACE_LIST
from keyspace.limits import RETENTION_MS_DEFAULT
from keyspace.records.tenancy import WorkspaceRecord
from keyspace.transitions.names import check_workspace_name
from keyspace.tx import Tx

__all__ = ["create_workspace", "require_workspace"]


async def create_workspace(
    tx: Tx, name: str, *, retention_ms: int = RETENTION_MS_DEFAULT
) -> tuple[WorkspaceRecord, bool]:
    """Create the workspace `name`, or return the one that exists; the second value says whether it is new.

    Reads: the workspace.  Writes: the workspace and its place in the list.
    Conflicts: with the creation of the same name.  Budget: under 1 kB.
    Idempotent: by name.

    Raises:
        Refusal: `invalid_name`, `invalid_retention`.
    """
    check_workspace_name(name)
    if retention_ms <= 0:
        raise Refusal("invalid_retention", "Retention must be positive.", field="retention_ms", value=retention_ms)
    existing = await tx.load(WORKSPACE.at(name))
    if existing is not None:
        return existing, False
    record = WorkspaceRecord(name=name, created_at_ms=tx.now_ms, retention_ms=retention_ms)
    tx.put(WORKSPACE.at(name), record)
    tx.put(WORKSPACE_LIST.at(name), None)
    return record, True


async def require_workspace(tx: Tx, name: str) -> WorkspaceRecord:
    """Return the workspace `name`.

    Raises:
        Refusal: `not_found`.
    """
    record = await tx.load(WORKSPACE.at(name))
    if record is None:
        raise Refusal("not_found", "There is no such workspace.", workspace=name)
    return record
