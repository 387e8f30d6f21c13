"""What the API takes and answers, as types: the one definition from which requests are read and the OpenAPI document is made.

Instants are Unix epoch milliseconds. Ids are 32 lower-case hexadecimal digits and opaque. A payload, input, output or step
value is the caller's own JSON text and stands in an answer byte for byte.

Here stand those that every list and refusal has, and those of workspaces, keys, manifests and routing. Those of events, runs,
steps, invocations, blockers and operators stand in a module each, `*_types.py`.
"""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

from keyspace.records.tenancy import Role

__all__ = [
    "Activated",
    "Activation",
    "Key",
    "KeyRequest",
    "ManifestFunction",
    "ManifestSummary",
    "ManifestTrigger",
    "NewKey",
    "Page",
    "Problem",
    "PublishedManifest",
    "Workspace",
    "WorkspaceRequest",
]

T = TypeVar("T")


class _Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class _Answer(msgspec.Struct, frozen=True, kw_only=True):
    pass


class Page(_Answer, Generic[T], frozen=True, kw_only=True):
    """A page of a list. `next_cursor` asks for the next one; null means that this is the last."""

    items: list[T]
    next_cursor: str | None = None


class Problem(_Answer, frozen=True, kw_only=True):
    """Why a request was refused (RFC 9457). `code` is stable; further members name the field, its value and the limit."""

    type: str
    title: str
    status: int
    code: str
    detail: str


# -- workspaces and keys


class WorkspaceRequest(_Request, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Create a workspace. Its name takes 1 to 63 of a-z, 0-9 and inner hyphens."""

    name: str
    retention_ms: int | None = None


class Workspace(_Answer, frozen=True, kw_only=True):
    """A workspace: one tenant's events, runs, manifests and keys. `retention_ms` also bounds idempotency keys."""

    name: str
    created_at_ms: int
    retention_ms: int


class KeyRequest(_Request, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Create a bearer key."""

    role: Role
    label: str = ""


class Key(_Answer, frozen=True, kw_only=True):
    """A bearer key, without its secret, which nobody stores."""

    key: str
    role: Role
    label: str
    created_at_ms: int
    revoked_at_ms: int | None = None


class NewKey(_Answer, frozen=True, kw_only=True):
    """A key that was just made. `secret` is shown here and never again."""

    key: str
    secret: str
    role: Role
    label: str
    created_at_ms: int


# -- manifests and routing


class ManifestTrigger(_Answer, frozen=True, kw_only=True):
    """An event name that starts a function, and the binding's id."""

    event: str
    binding: str


class ManifestFunction(_Answer, frozen=True, kw_only=True):
    """A function of a manifest. `timeout_ms` is how long one run of it may take; null is for ever."""

    name: str
    triggers: list[ManifestTrigger]
    contract: str = ""
    timeout_ms: int | None = None


class ManifestSummary(_Answer, frozen=True, kw_only=True):
    """An immutable generation of an application's manifest."""

    application: str
    generation: int
    digest: str
    function_count: int
    binding_count: int
    published_at_ms: int
    published_by: str


class PublishedManifest(ManifestSummary, frozen=True, kw_only=True):
    """A manifest generation with its functions."""

    functions: list[ManifestFunction]


class Activation(_Request, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Route new events by these manifest generations. With `merge`, applications that are not named stay as they are."""

    applications: dict[str, int]
    merge: bool = False


class Activated(_Answer, frozen=True, kw_only=True):
    """The active routing generation; 0 says that none was ever activated."""

    generation: int
    applications: dict[str, int]
    activated_at_ms: int | None = None
    activated_by: str | None = None
