"""What names, identifiers and small texts may be: one rule, one refusal, for every input that carries them."""

from __future__ import annotations

import re

from keyspace.errors import Refusal
from keyspace.limits import NAME_CHARS_MAX, WORKSPACE_CHARS_MAX

__all__ = [
    "INVOCATION_EVENT",
    "INVOKE_BINDING",
    "RESERVED_EVENT_PREFIX",
    "check_id",
    "check_name",
    "check_text",
    "check_workspace_name",
]

RESERVED_EVENT_PREFIX = "ryusen/"
INVOCATION_EVENT = RESERVED_EVENT_PREFIX + "function.invoked"
"""The name of every addressed event; no caller can submit it."""
INVOKE_BINDING = "invoke"
"""The binding under which a direct invocation matches; no manifest can declare it."""
_WORKSPACE = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?")
_ID = re.compile(r"[0-9a-f]{32}")


def check_text(field: str, value: str, *, bytes_max: int, empty: bool = False) -> None:
    """Refuse a text that is too long, holds NUL, or cannot be UTF-8.

    Raises:
        Refusal: `invalid_text`, naming the field, its size and the limit.
    """
    try:
        size = len(value.encode("utf-8"))
    except UnicodeEncodeError:
        raise Refusal("invalid_text", "A text holds a lone surrogate and is not Unicode.", field=field) from None
    if size > bytes_max:
        raise Refusal("invalid_text", "A text is too long.", field=field, bytes=size, limit=bytes_max)
    if not empty and not value.strip():
        raise Refusal("invalid_text", "A text is empty or blank.", field=field)
    if "\x00" in value:
        raise Refusal("invalid_text", "A text holds a NUL character.", field=field)


def check_name(field: str, value: str) -> None:
    """Refuse a name that is blank, longer than 200 characters, or holds control characters.

    Raises:
        Refusal: `invalid_name`, naming the field, the value and the limit.
    """
    if not value or not value.strip() or value != value.strip():
        raise Refusal("invalid_name", "A name is blank or begins or ends with blanks.", field=field, value=value[:80])
    if len(value) > NAME_CHARS_MAX:
        raise Refusal("invalid_name", "A name is too long.", field=field, characters=len(value), limit=NAME_CHARS_MAX)
    if any(
        ord(character) < 0x20 or 0xD800 <= ord(character) <= 0xDFFF or ord(character) == 0x7F for character in value
    ):
        raise Refusal("invalid_name", "A name holds a control character or a lone surrogate.", field=field)


def check_workspace_name(value: str) -> None:
    """Refuse a workspace name that is not 1 to 63 of a-z, 0-9 and inner hyphens.

    Raises:
        Refusal: `invalid_name`.
    """
    if len(value) > WORKSPACE_CHARS_MAX or not _WORKSPACE.fullmatch(value):
        raise Refusal(
            "invalid_name",
            "A workspace name takes 1 to 63 of a-z, 0-9 and inner hyphens.",
            field="workspace",
            value=value[:80],
        )


def check_id(field: str, value: str) -> None:
    """Refuse an id that is not 32 lower-case hexadecimal digits.

    Raises:
        Refusal: `not_found`: what cannot exist is answered like what does not.
    """
    if not _ID.fullmatch(value):
        raise Refusal("not_found", "There is no such object in this workspace.", field=field, value=value[:80])
