"""Versionstamps: eight bytes of commit version and two of order inside the commit batch, both big-endian.

Byte order is commit order. Stamps are unique and rise over every process of one store; they are not dense.
"""

from __future__ import annotations

import struct

__all__ = ["BATCH_COUNT_MAX", "STAMP_BYTES", "STAMP_LAST", "pack_stamp", "place_stamp", "stamp_version"]

STAMP_BYTES = 10
STAMP_LAST = b"\xff" * STAMP_BYTES
BATCH_COUNT_MAX = 65_535
"""Transactions that can share one commit version: what two bytes can tell apart."""

_STAMP = struct.Struct(">QH")


def pack_stamp(version: int, order: int) -> bytes:
    """Return the 10 bytes of the `order`th (from 0) transaction of commit `version`."""
    return _STAMP.pack(version, order)


def stamp_version(stamp: bytes) -> int:
    """Return the commit version inside a 10-byte stamp."""
    version: int
    version, _ = _STAMP.unpack(stamp)
    return version


def place_stamp(template: bytes, offset: int, stamp: bytes) -> bytes:
    """Return `template` with its 10 bytes from `offset` replaced by `stamp`.

    Raises:
        ValueError: the 10 bytes do not lie inside the template.
    """
    if offset < 0 or offset + STAMP_BYTES > len(template):
        raise ValueError(f"no {STAMP_BYTES} bytes from offset {offset} in {len(template)} bytes")
    return template[:offset] + stamp + template[offset + STAMP_BYTES :]
