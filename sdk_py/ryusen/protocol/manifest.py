"""An application's manifest: what it publishes about itself, and what fan-out reads to find the functions an event starts.

Validation is strict and says where, what and what would be allowed; nothing unknown is skipped and nothing is filled in
silently (`ManifestRefused`). The server validates what it is sent with the same code the SDK builds it with.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from ryusen.errors import ConfigurationError
from ryusen.protocol.limits import FUNCTIONS_MAX, RUN_TIMEOUT_MS_MAX, TRIGGERS_MAX
from ryusen.protocol.names import binding_id, name_fault

__all__ = [
    "RESERVED_BINDING",
    "FunctionManifest",
    "Manifest",
    "ManifestRefused",
    "Trigger",
    "build_trigger",
    "decode_manifest",
    "encode_manifest",
    "validate_manifest",
]

RESERVED_BINDING = "invoke"
"""The binding of direct invocations (RFD 2, "the reserved binding identifier invoke"); no trigger may bear it."""

_ID = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)
_CONTRACT = re.compile(r"[A-Za-z0-9._-]{0,64}", re.ASCII)


class ManifestRefused(ConfigurationError):
    """A manifest that can never be published.

    Attributes:
        path: where, such as `$.functions[2].triggers[0].event`.
        reason: what is wrong and what is allowed.
    """

    code = "invalid_manifest"

    def __init__(self, path: str, reason: str) -> None:
        """Name the place and the reason."""
        super().__init__(f"the manifest is invalid: {path} {reason}")
        self.path = path
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path, self.reason)


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class Trigger(_Part, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An event name that starts the function. `binding` is unique in its application and stable between releases."""

    event: str
    binding: str


class FunctionManifest(_Part, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One function.

    `contract` is the digest of its execution contract. `timeout_ms` is how long one run of it may take until it is stopped
    and undone; null is for ever.
    """

    name: str
    triggers: list[Trigger]
    contract: str = ""
    timeout_ms: int | None = None


class Manifest(_Part, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One application's functions and triggers."""

    application: str
    functions: list[FunctionManifest]


_decoder = msgspec.json.Decoder(Manifest)
_encoder = msgspec.json.Encoder()


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the manifest as JSON text."""
    return _encoder.encode(manifest)


def decode_manifest(data: bytes) -> Manifest:
    """Return the valid manifest in `data`.

    Raises:
        ManifestRefused: not JSON, another shape, an unknown field, or a value outside its bounds.
    """
    try:
        manifest = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        reason, _, path = str(exc).partition(" - at `")
        raise ManifestRefused(path.rstrip("`") or "$", reason) from None
    validate_manifest(manifest)
    return manifest


def validate_manifest(manifest: Manifest) -> None:
    """Refuse a manifest that breaks a bound.

    Raises:
        ManifestRefused: at the first fault, in the order of the document.
    """
    _require_name(manifest.application, "$.application")
    if not 1 <= len(manifest.functions) <= FUNCTIONS_MAX:
        raise ManifestRefused("$.functions", f"has {len(manifest.functions)} entries; allowed are 1 to {FUNCTIONS_MAX}")
    names: set[str] = set()
    bindings: set[str] = {RESERVED_BINDING}
    for index, function in enumerate(manifest.functions):
        path = f"$.functions[{index}]"
        _require_name(function.name, f"{path}.name")
        if function.name in names:
            raise ManifestRefused(f"{path}.name", f"{function.name!r} is declared twice")
        names.add(function.name)
        if not _CONTRACT.fullmatch(function.contract):
            raise ManifestRefused(f"{path}.contract", "must be at most 64 letters, digits, dots, dashes, underscores")
        if function.timeout_ms is not None and not 1 <= function.timeout_ms <= RUN_TIMEOUT_MS_MAX:
            raise ManifestRefused(
                f"{path}.timeout_ms", f"is {function.timeout_ms}; allowed are 1 to {RUN_TIMEOUT_MS_MAX} ms"
            )
        _validate_triggers(function, path, bindings)


def _validate_triggers(function: FunctionManifest, path: str, bindings: set[str]) -> None:
    if len(function.triggers) > TRIGGERS_MAX:
        raise ManifestRefused(
            f"{path}.triggers", f"has {len(function.triggers)} entries; allowed are 0 to {TRIGGERS_MAX}"
        )
    events: set[str] = set()
    for index, trigger in enumerate(function.triggers):
        here = f"{path}.triggers[{index}]"
        _require_name(trigger.event, f"{here}.event")
        if trigger.event in events:
            raise ManifestRefused(f"{here}.event", f"{trigger.event!r} stands twice")
        events.add(trigger.event)
        if not _ID.fullmatch(trigger.binding):
            raise ManifestRefused(f"{here}.binding", "must be 1 to 64 letters, digits, dots, dashes, underscores")
        if trigger.binding in bindings:
            raise ManifestRefused(f"{here}.binding", f"{trigger.binding!r} is taken or reserved")
        bindings.add(trigger.binding)


def _require_name(value: str, path: str) -> None:
    fault = name_fault(value)
    if fault is not None:
        raise ManifestRefused(path, fault)


def build_trigger(function: str, event: str) -> Trigger:
    """Return the trigger that binds `event` to `function`, with its stable binding id."""
    return Trigger(event=event, binding=binding_id(function, event))
