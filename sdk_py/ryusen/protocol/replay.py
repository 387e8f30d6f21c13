"""How both sides name the part of a run's replay that a worker has: its length and its digest.

A settled step never changes, and a run's settled steps have an order. So a worker that was sent the first ones needs only
those after them; the digest tells that both sides mean the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import msgspec

from ryusen.protocol.frames import StepMemo

__all__ = ["extend_digest", "first_digest"]

DIGEST_BYTES = 16
_encoder = msgspec.json.Encoder()


def first_digest(run_id: str, given: bytes) -> str:
    """Return the digest of a replay without settled steps: of the run and its input."""
    return hashlib.blake2b(run_id.encode() + b"\x00" + given, digest_size=DIGEST_BYTES).hexdigest()


def extend_digest(digest: str, memo: Iterable[StepMemo]) -> str:
    """Return the digest of a replay that goes on with `memo`."""
    for step in memo:
        said = digest.encode() + _encoder.encode(step)
        digest = hashlib.blake2b(said, digest_size=DIGEST_BYTES).hexdigest()
    return digest
