"""How records become bytes: a version byte, then compact JSON of the record's fields in order.

Writers write the newest version; readers accept every version ever shipped and bring it up one version at a time. A newer
version than this release knows is refused, not guessed. Fields are only ever appended, with a default; anything else is a
new version with an upcaster. Golden bytes of each version stand in tests/unit/golden.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import msgspec

from keyspace.errors import CorruptRecord, UnknownVersion
from keyspace.tuple_layer import STAMP_BYTES

__all__ = ["CODECS", "Empty", "IntCodec", "RawCodec", "Record", "RecordCodec", "StampCodec"]

R = TypeVar("R", bound="Record")
INT_BYTES = 8
_TOO_LONG = "`array` of at most length"
"""How msgspec says that a list has more fields than its record; a test holds it to these words."""
Upcaster = Callable[[list[Any]], list[Any]]
_encoder = msgspec.json.Encoder()


class Record(msgspec.Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True):
    """A frozen record, stored as the list of its fields.

    A longer list than this release knows is refused: read without its last fields, it would be written back without them.
    """


class RecordCodec(Generic[R]):
    """The codec of one record type at its newest version."""

    __slots__ = ("_decoder", "_head", "record_type", "upcasters", "version")

    def __init__(self, record_type: type[R], version: int = 1, upcasters: Mapping[int, Upcaster] | None = None) -> None:
        """Declare the newest `version` of `record_type` (1 to 127) and how each older one is brought up by one."""
        self.record_type = record_type
        self.version = version
        self.upcasters = dict(upcasters or {})
        self._decoder = msgspec.json.Decoder(record_type)
        self._head = bytes((version,))
        CODECS[record_type.__name__] = self

    @property
    def label(self) -> str:
        """Return the record's name."""
        return self.record_type.__name__

    def encode(self, record: R) -> bytes:
        """Return the stored bytes of `record`."""
        return self._head + _encoder.encode(record)

    def decode(self, data: bytes) -> R:
        """Return the record in `data`.

        Raises:
            UnknownVersion: written by a newer release.
            CorruptRecord: not this record.
        """
        if not data:
            raise CorruptRecord(record=self.label, reason="empty value")
        version = data[0]
        try:
            if version == self.version:
                # A copy of a few hundred bytes is cheaper than the two views that would avoid it.
                return self._decoder.decode(data[1:])
            return self._decode_old(version, data)
        except (msgspec.DecodeError, LookupError, TypeError, ValueError) as error:
            if _TOO_LONG in str(error):
                raise UnknownVersion(record=self.label, version=version, newest=self.version) from error
            # An upcaster that meets what no release has written fails in its own way; it is damage all the same.
            raise CorruptRecord(record=self.label, reason=str(error)) from error

    def _decode_old(self, version: int, data: bytes) -> R:
        if version > self.version:
            raise UnknownVersion(record=self.label, version=version, newest=self.version)
        fields = msgspec.json.decode(memoryview(data)[1:], type=list[Any])
        while version < self.version:
            upcast = self.upcasters.get(version)
            if upcast is None:
                raise CorruptRecord(record=self.label, reason="no such version", version=version)
            fields = upcast(fields)
            version += 1
        return msgspec.convert(fields, self.record_type)


CODECS: dict[str, RecordCodec[Any]] = {}
"""Every record codec by the record's name, for golden tests and the key table."""


class RawCodec:
    """Values that are bytes and nothing else: payloads, results."""

    label = "bytes"

    def encode(self, record: bytes) -> bytes:
        """Return the bytes as they are."""
        return record

    def decode(self, data: bytes) -> bytes:
        """Return the bytes as they are."""
        return data


class TextCodec:
    """Values that are one id or name as UTF-8."""

    label = "text"

    def encode(self, record: str) -> bytes:
        """Return the text's UTF-8."""
        return record.encode()

    def decode(self, data: bytes) -> str:
        """Return the text.

        Raises:
            CorruptRecord: not UTF-8.
        """
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise CorruptRecord(record="text", reason=str(error)) from error


class Empty:
    """Keys whose presence is all they say."""

    label = "empty"

    def encode(self, record: None) -> bytes:
        """Return no bytes."""
        return b""

    def decode(self, data: bytes) -> None:
        """Accept no bytes.

        Raises:
            CorruptRecord: there are bytes.
        """
        if data:
            raise CorruptRecord(record="empty", reason="unexpected value")


class IntCodec:
    """An 8-byte little-endian integer, for atomic additions."""

    label = "int64 LE"

    def encode(self, record: int) -> bytes:
        """Return the 8 bytes."""
        return record.to_bytes(INT_BYTES, "little", signed=True)

    def decode(self, data: bytes) -> int:
        """Return the integer.

        Raises:
            CorruptRecord: not eight bytes.
        """
        if len(data) != INT_BYTES:
            raise CorruptRecord(record=self.label, reason="not eight bytes", bytes=len(data))
        return int.from_bytes(data, "little", signed=True)


class StampCodec:
    """A versionstamp of twelve bytes, the first ten written by the commit itself."""

    label = "stamp"

    def encode(self, record: bytes) -> bytes:
        """Return the stamp."""
        return record

    def decode(self, data: bytes) -> bytes:
        """Return the stamp.

        Raises:
            CorruptRecord: not twelve bytes.
        """
        if len(data) != STAMP_BYTES:
            raise CorruptRecord(record="stamp", reason="not twelve bytes")
        return data
