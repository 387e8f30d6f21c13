"""The pool of random bytes: every byte of it is given out once."""

from __future__ import annotations

from keyspace.keyspace import RANDOM_POOL_BYTES, SystemRandomness


def test_no_bytes_are_given_out_twice() -> None:
    """Would catch an id minted twice at the seam between two reads of the system's source."""
    source = SystemRandomness()
    ids = [source.randbytes(16) for _ in range(2 * RANDOM_POOL_BYTES // 16 + 3)]
    assert len(set(ids)) == len(ids)
    assert all(len(identifier) == 16 for identifier in ids)


def test_an_odd_remainder_is_never_cut_short() -> None:
    """Would catch a short id where the rest of a page is smaller than what is asked for."""
    source = SystemRandomness()
    assert all(len(source.randbytes(7)) == 7 for _ in range(RANDOM_POOL_BYTES))
