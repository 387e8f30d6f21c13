"""FoundationDB's tuple encoding for the few element types the keyspace uses: bytes, text, integers and versionstamps.

Encoded tuples sort as their elements do. A test holds this module to the reference implementation, byte for byte. The key
tree needs no other types, and packing is on the hot path of every transaction, so this does no more than that.

Source: apple/foundationdb design/tuple.md.
"""

from __future__ import annotations

from keyspace.store.api import KeyRange

__all__ = [
    "COMMIT_STAMP_BYTES",
    "STAMP_BYTES",
    "STAMP_CODE",
    "Element",
    "escaped_bytes",
    "pack",
    "pack_bytes",
    "pack_int",
    "pack_stamp",
    "pack_str",
    "range_of",
    "unpack",
]

STAMP_BYTES = 12
"""Ten bytes from the commit and two that order entries inside one transaction."""
COMMIT_STAMP_BYTES = 10
STAMP_CODE = 0x33
_BYTES_CODE = b"\x01"
_STR_CODE = b"\x02"
_INT_ZERO_CODE = 0x14
_INT_BYTES_MAX = 8

Element = bytes | str | int


def pack_bytes(value: bytes) -> bytes:
    """Return the encoding of a byte string; each zero byte in it takes two."""
    return _BYTES_CODE + value.replace(b"\x00", b"\x00\xff") + b"\x00"


def pack_str(value: str) -> bytes:
    """Return the encoding of a text as UTF-8.

    Raises:
        UnicodeEncodeError: the text holds a lone surrogate.
    """
    return _STR_CODE + value.encode("utf-8").replace(b"\x00", b"\x00\xff") + b"\x00"


def pack_int(value: int) -> bytes:
    """Return the encoding of an integer of at most 8 bytes' magnitude.

    Raises:
        OverflowError: the magnitude needs more than 8 bytes.
    """
    if 0 <= value < _SMALL_INTS_END:
        return _SMALL_INTS[value]
    if value > 0:
        size = (value.bit_length() + 7) >> 3
        if size > _INT_BYTES_MAX:
            raise OverflowError("a key integer takes at most 8 bytes")
        return bytes((_INT_ZERO_CODE + size,)) + value.to_bytes(size, "big")
    size = ((-value).bit_length() + 7) >> 3
    if size > _INT_BYTES_MAX:
        raise OverflowError("a key integer takes at most 8 bytes")
    return bytes((_INT_ZERO_CODE - size,)) + (value + (1 << (8 * size)) - 1).to_bytes(size, "big")


_SMALL_INTS_END = 256
_SMALL_INTS = (b"\x14", *(bytes((_INT_ZERO_CODE + 1, value)) for value in range(1, _SMALL_INTS_END)))
"""The encodings that nearly every key holds: leaf codes, shards, ordinals of short runs."""


def pack_stamp(stamp: bytes) -> bytes:
    """Return the encoding of a complete 12-byte versionstamp, its two user bytes included."""
    if len(stamp) != STAMP_BYTES:
        raise ValueError("a versionstamp has 12 bytes")
    return bytes((STAMP_CODE,)) + stamp


def pack(elements: tuple[Element, ...]) -> bytes:
    """Return the encoding of a tuple of byte strings, texts and integers."""
    parts = []
    for element in elements:
        if isinstance(element, str):
            parts.append(pack_str(element))
        elif isinstance(element, bytes):
            parts.append(pack_bytes(element))
        elif isinstance(element, bool):
            raise TypeError("bool is not a key element")
        else:
            parts.append(pack_int(element))
    return b"".join(parts)


def escaped_bytes(value: bytes) -> int:
    """Return how many bytes `value` takes as an element, its code and terminator included."""
    return len(value) + value.count(0) + 2


def range_of(packed: bytes) -> KeyRange:
    """Return the range of a packed tuple and of every tuple that goes on from it.

    The end is the byte 0xff, with which no element begins. The next key in byte order would be too far: a text that ends
    here and a text that goes on with a NUL begin with the same bytes, and that NUL's second byte is 0xff.
    """
    return KeyRange(packed, packed + b"\xff")


def _unpack_terminated(data: bytes, start: int) -> tuple[bytes, int]:
    end = start
    while True:
        end = data.find(b"\x00", end)
        if end < 0:
            raise ValueError("an unterminated string in a key")
        if data[end + 1 : end + 2] != b"\xff":
            break
        end += 2
    return data[start:end].replace(b"\x00\xff", b"\x00"), end + 1


def unpack(data: bytes) -> tuple[Element, ...]:
    """Return the elements of an encoded tuple; a versionstamp comes back as its 12 bytes.

    Raises:
        ValueError: `data` is not a tuple of the types this module packs.
    """
    elements: list[Element] = []
    position = 0
    size_all = len(data)
    while position < size_all:
        code = data[position]
        position += 1
        if code == 0x01:
            value, position = _unpack_terminated(data, position)
            elements.append(value)
        elif code == 0x02:
            value, position = _unpack_terminated(data, position)
            elements.append(value.decode("utf-8"))
        elif 0x0C <= code <= 0x1C:
            size = abs(code - _INT_ZERO_CODE)
            raw = data[position : position + size]
            if len(raw) != size:
                raise ValueError("a truncated integer in a key")
            number = int.from_bytes(raw, "big")
            elements.append(number if code >= _INT_ZERO_CODE else number - (1 << (8 * size)) + 1)
            position += size
        elif code == STAMP_CODE:
            raw = data[position : position + STAMP_BYTES]
            if len(raw) != STAMP_BYTES:
                raise ValueError("a truncated versionstamp in a key")
            elements.append(raw)
            position += STAMP_BYTES
        else:
            raise ValueError(f"unknown element code {code:#04x} in a key")
    return tuple(elements)
