"""Cursors of lists: opaque to callers, bound to the workspace, the list and the filters they came from.

A cursor carries a position and a digest over position and query. It is no secret and grants nothing, since every page is
read inside the caller's workspace; the digest makes a foreign, altered or truncated one a typed refusal instead of a list
that skips or repeats. The page size is not part of the query: it may change from page to page.
"""

from __future__ import annotations

import base64
import binascii
import hashlib

from services.gateway.problems import ApiProblem

__all__ = ["ListQuery"]

VERSION = 1
DIGEST_BYTES = 12
CURSOR_CHARS_MAX = 2_000


class ListQuery:
    """What a list was asked for; seals and opens the cursors of exactly this query."""

    def __init__(self, *parts: str) -> None:
        """Name the workspace, the list and the filters, in a fixed order."""
        self._digest = hashlib.blake2b(digest_size=DIGEST_BYTES, person=b"ryusen.cursor")
        for part in parts:
            data = part.encode()
            self._digest.update(len(data).to_bytes(4, "big") + data)

    def seal(self, position: bytes) -> str:
        """Return the cursor that goes on after `position`, the logical key of the last row shown."""
        data = bytes((VERSION,)) + self._mark(position) + position
        return base64.urlsafe_b64encode(data).decode().rstrip("=")

    def open(self, cursor: str) -> bytes:
        """Return the position in a cursor of this query.

        Raises:
            ApiProblem: `invalid_cursor`.
        """
        try:
            if len(cursor) > CURSOR_CHARS_MAX or not cursor.isascii():
                raise ValueError
            data = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        except (ValueError, binascii.Error):
            raise _foreign() from None
        position = data[1 + DIGEST_BYTES :]
        # Decoding forgives stray bits in the last character; sealing again does not.
        if (
            data[:1] != bytes((VERSION,))
            or data[1 : 1 + DIGEST_BYTES] != self._mark(position)
            or self.seal(position) != cursor
        ):
            raise _foreign()
        return position

    def _mark(self, position: bytes) -> bytes:
        digest = self._digest.copy()
        digest.update(position)
        return digest.digest()


def _foreign() -> ApiProblem:
    return ApiProblem("invalid_cursor", "The cursor is not one of this list with these filters.", field="cursor")
