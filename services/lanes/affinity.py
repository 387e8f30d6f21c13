"""Which live process looks after which shard: rendezvous hashing. Affinity only; correctness never rests on it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

__all__ = ["owned_shards"]


def owned_shards(own_id: str, peer_ids: Sequence[str], shards: Iterable[int]) -> frozenset[int]:
    """Return the shards that fall to `own_id` among the live processes `peer_ids`.

    Every process computes the same answer from the same peers; when one leaves, only its shards move.

    Args:
        own_id: this process; counted as live whether or not it is listed.
        peer_ids: the live processes of the same role.
        shards: the shards to share out.
    """
    everybody = {own_id, *peer_ids}
    return frozenset(
        shard for shard in shards if max(everybody, key=lambda peer: (_weight(peer, shard), peer)) == own_id
    )


def _weight(process_id: str, shard: int) -> bytes:
    return hashlib.blake2b(f"{process_id}/{shard}".encode(), digest_size=8).digest()
