"""Records of workspaces, keys, applications and routing."""

from __future__ import annotations

from enum import StrEnum

from keyspace.limits import RETENTION_MS_DEFAULT
from keyspace.records.codec import Record, RecordCodec

__all__ = [
    "API_KEY",
    "BINDING",
    "FUNCTION",
    "KEY_OWNER",
    "MANIFEST",
    "ROUTING",
    "WORKSPACE",
    "ApiKeyRecord",
    "BindingRecord",
    "FunctionRecord",
    "KeyOwnerRecord",
    "ManifestRecord",
    "Role",
    "RoutingRecord",
    "WorkspaceRecord",
]


class Role(StrEnum):
    """What a key may do. `system` keys reach every workspace; the others only their own."""

    SYSTEM = "system"
    ADMIN = "admin"
    CLIENT = "client"
    WORKER = "worker"
    READER = "reader"


class WorkspaceRecord(Record, frozen=True, kw_only=True, array_like=True):
    """One tenant."""

    name: str
    created_at_ms: int
    retention_ms: int = RETENTION_MS_DEFAULT


class ApiKeyRecord(Record, frozen=True, kw_only=True, array_like=True):
    """A key as its workspace sees it; the secret itself is stored nowhere."""

    key_id: str
    role: Role
    label: str
    digest: str
    created_at_ms: int
    revoked_at_ms: int | None = None


class KeyOwnerRecord(Record, frozen=True, kw_only=True, array_like=True):
    """Whose key a digest is; read at every authentication."""

    workspace: str
    key_id: str
    role: Role


class ManifestRecord(Record, frozen=True, kw_only=True, array_like=True):
    """One immutable generation of an application's manifest; its functions and bindings have keys of their own."""

    application: str
    generation: int
    digest: str
    function_count: int
    binding_count: int
    published_at_ms: int
    published_by: str


class FunctionRecord(Record, frozen=True, kw_only=True, array_like=True):
    """A function that a manifest generation declares. `timeout_ms` is how long a run of it may take; None is for ever."""

    name: str
    contract: str = ""
    timeout_ms: int | None = None


class BindingRecord(Record, frozen=True, kw_only=True, array_like=True):
    """A trigger binding: an event name that starts a function, with the function's run timeout, so that fan-out reads no more."""

    function: str
    timeout_ms: int | None = None


class RoutingRecord(Record, frozen=True, kw_only=True, array_like=True):
    """One immutable routing generation: which manifest generation of each application is addressed."""

    generation: int
    applications: dict[str, int]
    activated_at_ms: int
    activated_by: str


WORKSPACE = RecordCodec(WorkspaceRecord)
API_KEY = RecordCodec(ApiKeyRecord)
KEY_OWNER = RecordCodec(KeyOwnerRecord)
MANIFEST = RecordCodec(ManifestRecord)
FUNCTION = RecordCodec(FunctionRecord)
BINDING = RecordCodec(BindingRecord)
ROUTING = RecordCodec(RoutingRecord)
