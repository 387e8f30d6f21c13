"""Records about the keyspace itself."""

from __future__ import annotations

from keyspace.records.codec import Record, RecordCodec

__all__ = ["FORMAT", "FORMAT_VERSION", "FormatRecord"]

FORMAT_VERSION = 1


class FormatRecord(Record, frozen=True, kw_only=True, array_like=True):
    """What every process of a deployment must agree on before it serves."""

    format_version: int
    fingerprint: str
    created_at_ms: int


FORMAT = RecordCodec(FormatRecord)
