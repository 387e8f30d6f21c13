"""What direct invocation takes, and the target that its event carries."""

from __future__ import annotations

import msgspec

__all__ = ["InvocationRequest", "Target"]


class InvocationRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Start one function with this input; `timestamp_ms` is the caller's own."""

    input: msgspec.Raw
    timestamp_ms: int | None = None


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """The one function that an addressed event starts."""

    application: str
    function: str
