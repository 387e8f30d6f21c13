"""The store port over a real FoundationDB cluster: the `foundationdb` package at API 730. The only module that imports `fdb`.

Reads are issued when called and awaited in order; a native callback is set only on a future that is not ready when it
is awaited, so reads that travel together mostly wake the loop once. Nothing here starts a thread: the client has one
network thread for the process, started by the first store that is opened and stopped by the package at exit.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

from keyspace.clock import Clock
from keyspace.store import sizes
from keyspace.store.api import API_VERSION
from keyspace.store.errors import RetryableError, StoreError, StoreUnavailableError
from keyspace.store.fdb_native import NativeClient, error_text
from keyspace.store.fdb_transaction import FdbTransaction, Outstanding

try:
    import fdb
except ImportError:
    fdb = None

__all__ = ["FdbStore", "open_fdb"]

OPEN_MS_MAX = 10_000
"""How long opening waits for the cluster to give a read version before it calls the cluster unreachable."""
TRANSACTION_MS_MAX = 10_000
"""The client's own time limit for a transaction, set once as the database's default. Above the cluster's 5 s, so that an
old transaction is told transaction_too_old, which says that nothing was written, and not timed out, which does not."""
BACKOFF_MS_FIRST = 10.0
"""The client's first pause, which its on_error draws from. Source: flow/Knobs or fdbclient/ClientKnobs.cpp DEFAULT_BACKOFF."""
BACKOFF_MS_MAX = 1_000.0
CLOSE_MS_MAX = 15_000
"""How long closing waits for commits under way; above TRANSACTION_MS_MAX, after which the client ends each of them."""


async def open_fdb(cluster_file: Path, *, clock: Clock, rng: random.Random | None = None) -> FdbStore:
    """Open the cluster that `cluster_file` names and make sure that it answers.

    Args:
        cluster_file: an existing cluster file; the client may rewrite it when the coordinators change.
        clock: for backoff.
        rng: spreads the pauses of retries; a generator of its own when None.

    Returns:
        A store bound to the running event loop.

    Raises:
        StoreUnavailableError: the package, its C client or the cluster file is missing, or the cluster did not answer.
    """
    database = _open_database(cluster_file)
    client = NativeClient(fdb, asyncio.get_running_loop())
    store = FdbStore(client, database, cluster_file, clock=clock, rng=rng or random.Random())
    probe = store.begin()
    try:
        async with asyncio.timeout(OPEN_MS_MAX / 1000.0):
            await probe.get_read_version()
    except (StoreError, TimeoutError) as error:
        raise StoreUnavailableError(
            f"the cluster did not answer; look at it with fdbcli's status path={cluster_file} limit_ms={OPEN_MS_MAX}"
        ) from error
    finally:
        probe.cancel()
    return store


def _open_database(cluster_file: Path) -> Any:
    if not cluster_file.is_file():
        raise StoreUnavailableError(
            f"there is no such cluster file; name an existing one: fdb:PATH path={cluster_file}"
        )
    if fdb is None:
        raise StoreUnavailableError("the foundationdb package is not installed; install ryusen-server[fdb]")
    try:
        fdb.api_version(API_VERSION)
    except Exception as error:
        # The package raises bare Exceptions here: no library, or one that is too old for this API version.
        raise StoreUnavailableError(
            "FoundationDB's C client cannot be used; install the foundationdb-clients package of the cluster's version, "
            f"or set LD_LIBRARY_PATH to where libfdb_c is api_version={API_VERSION} cause={error}"
        ) from error
    try:
        database = fdb.open(str(cluster_file))
        database.options.set_transaction_timeout(TRANSACTION_MS_MAX)
        database.options.set_transaction_size_limit(sizes.TRANSACTION_BYTES_MAX)
    except fdb.FDBError as error:
        raise StoreUnavailableError(
            f"the cluster file cannot be used path={cluster_file} cause={error_text(error)}"
        ) from error
    return database


class FdbStore:
    """A connection to one cluster, bound to one event loop."""

    def __init__(
        self, client: NativeClient, database: Any, cluster_file: Path, *, clock: Clock, rng: random.Random
    ) -> None:
        """Use an open `database`; call through `open_fdb`."""
        self._client = client
        self._database = database
        self._cluster_file = cluster_file
        self._clock = clock
        self._rng = rng
        self._is_closed = False
        self._outstanding = Outstanding()

    @property
    def name(self) -> str:
        """`fdb:` and the cluster file."""
        return f"fdb:{self._cluster_file}"

    def begin(self) -> FdbTransaction:
        """Start an attempt in a new native transaction."""
        if self._is_closed:
            raise StoreUnavailableError("the store has been closed")
        return FdbTransaction(self._client, self._database.create_transaction(), self._outstanding)

    async def backoff(self, error: RetryableError, attempt_count: int) -> None:
        """Wait as the client advises, and longer with each further attempt.

        The client's on_error knows what the cluster asks for (throttling, a version that is not there yet), but draws
        from its first pause each time, since each attempt is a new native transaction; the growth is added here.
        """
        ceiling_ms = min(BACKOFF_MS_MAX, BACKOFF_MS_FIRST * 2.0 ** min(attempt_count - 1, 20))
        if await self._client.take_advice(error):
            ceiling_ms -= BACKOFF_MS_FIRST
        if ceiling_ms > 0:
            await self._clock.sleep_ms(self._rng.uniform(0.0, ceiling_ms))

    async def close(self) -> None:
        """Wait for the commits under way and cancel the watches. The network thread serves the process until it exits."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._outstanding.commits:
            await asyncio.wait(self._outstanding.commits, timeout=CLOSE_MS_MAX / 1000.0)
        for watch in tuple(self._outstanding.watches):
            watch.cancel()
