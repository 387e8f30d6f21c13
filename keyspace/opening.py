"""Opening a keyspace: what every process checks before it serves, and what the processes tell each other.

The format record holds what must be equal everywhere. The high-water mark is the greatest read version a process has seen,
raised every minute: a store whose read version lies below it was restored to an earlier time, where its stamps would repeat.
"""

from __future__ import annotations

from keyspace.errors import Refusal, UnknownVersion
from keyspace.keyspace import Keyspace
from keyspace.layout import FORMAT, HIGH_WATER, PROCESS
from keyspace.limits import CLUSTER_FINGERPRINT
from keyspace.records.system import FORMAT_VERSION, FormatRecord
from keyspace.records.work import ProcessRecord
from keyspace.tx import Tx

__all__ = ["HIGH_WATER_PERIOD_MS", "announce_process", "live_processes", "open_keyspace", "record_high_water"]

HIGH_WATER_PERIOD_MS = 60_000
PROCESSES_MAX = 10_000
VERSION_BYTES = 8


async def check_format(tx: Tx) -> FormatRecord:
    """Return the format record, writing it into an empty keyspace.

    Raises:
        UnknownVersion: written by a newer release.
        Refusal: `settings_differ`, `store_went_back`.
    """
    record, mark = await tx.load(FORMAT.at(), HIGH_WATER.at())
    if record is None:
        record = FormatRecord(format_version=FORMAT_VERSION, fingerprint=CLUSTER_FINGERPRINT, created_at_ms=tx.now_ms)
        tx.put(FORMAT.at(), record)
    if record.format_version > FORMAT_VERSION:
        raise UnknownVersion(record="keyspace", version=record.format_version, newest=FORMAT_VERSION)
    if record.fingerprint != CLUSTER_FINGERPRINT:
        raise Refusal(
            "settings_differ",
            "This keyspace was made with other cluster-wide settings.",
            stored=record.fingerprint,
            own=CLUSTER_FINGERPRINT,
        )
    read_version = await tx.read_version()
    if mark is not None and read_version < int.from_bytes(mark, "big"):
        raise Refusal(
            "store_went_back",
            "The store's version lies below the recorded high-water mark: it was restored to an earlier time. "
            "Advance it with `fdbcli advanceversion` before starting.",
            read_version=read_version,
            high_water=int.from_bytes(mark, "big"),
        )
    return record


async def open_keyspace(keyspace: Keyspace) -> FormatRecord:
    """Check that this process may serve `keyspace`.

    Raises:
        UnknownVersion: written by a newer release.
        Refusal: `settings_differ`, `store_went_back`, each naming the remedy.
    """
    return await keyspace.transact("open_keyspace", check_format)


async def record_high_water(tx: Tx) -> int:
    """Raise the high-water mark to this attempt's read version, blind; return it."""
    version = await tx.read_version()
    tx.put_max(HIGH_WATER.at(), version.to_bytes(VERSION_BYTES, "big"))
    return version


async def announce_process(tx: Tx, record: ProcessRecord) -> None:
    """Write a process's sign of life."""
    tx.put(PROCESS.at(record.process_id), record)


async def forget_process(tx: Tx, process_id: str) -> None:
    """Remove a process that leaves or has long been silent."""
    tx.remove(PROCESS.at(process_id))


async def live_processes(tx: Tx, *, since_ms: int) -> list[ProcessRecord]:
    """Return the processes whose sign of life is not older than `since_ms`, by snapshot."""
    rows = await tx.page(PROCESS.span(), limit=PROCESSES_MAX, snapshot=True)
    records = [PROCESS.codec.decode(value) for _, value in rows]
    return [record for record in records if record.clock_ms >= since_ms]
