"""The one rule for names of applications, functions, events and steps, and for the URL-safe ids derived from them."""

from __future__ import annotations

import hashlib
import re

from ryusen.protocol.limits import NAME_CHARS_MAX

__all__ = ["binding_id", "contract_digest", "name_fault"]

# C0 and C1 control characters, NUL among them, and lone surrogates: none can be shown or stored faithfully.
_FORBIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_ID_HEX_DIGITS = 16


def name_fault(value: object) -> str | None:
    """Return what is wrong with a name and what is allowed, or None for a good one."""
    if not isinstance(value, str):
        return f"must be text, not {type(value).__name__}"
    if not 1 <= len(value) <= NAME_CHARS_MAX:
        return f"has {len(value)} characters; allowed are 1 to {NAME_CHARS_MAX}"
    if value != value.strip():
        return "is blank, or has blanks around it"
    if _FORBIDDEN.search(value):
        return "contains a control character or a lone surrogate"
    return None


def binding_id(function: str, event: str) -> str:
    """Return the stable id of the trigger that binds an event name to a function."""
    return _digest("binding", function, event)


def contract_digest(function: str, codec: str, protocol: int) -> str:
    """Return the digest of a function's execution contract: what a worker must agree on to run work of older releases.

    Types and step ids are left out on purpose: code evolves optimistically (RFD 1, "Ryusen never pins a run").
    """
    return _digest("contract", function, codec, str(protocol))


def _digest(*parts: str) -> str:
    hasher = hashlib.sha256()
    for part in parts:
        encoded = part.encode()
        hasher.update(len(encoded).to_bytes(4, "big") + encoded)
    return hasher.hexdigest()[:_ID_HEX_DIGITS]
