"""Close codes of a worker's session that mean something to the worker; after any other it connects again."""

from __future__ import annotations

__all__ = ["KEY_REVOKED", "KEY_REVOKED_REASON"]

KEY_REVOKED = 4401
"""The key that the session was opened with was revoked. No session comes of it any more, so the worker ends."""
KEY_REVOKED_REASON = "key_revoked"
