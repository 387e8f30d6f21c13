"""SQLite (WAL, synchronous=FULL) as the embedded store's engine: kept only to be measured against the one that is shipped.

One table without row ids; a snapshot is a read transaction on a connection of its own, the write is `BEGIN IMMEDIATE` on
one more. Connections are kept for reuse, because opening one costs more than many transactions.
"""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

from keyspace.store.api import KeyValue
from keyspace.store.errors import StoreUnavailableError

__all__ = ["SqliteEngine"]

BUSY_TIMEOUT_S = 60.0
IDLE_COUNT_MAX = 128


class _SqliteView:
    def __init__(self, engine: SqliteEngine, connection: sqlite3.Connection) -> None:
        self._engine = engine
        self._connection = connection
        self._is_open = True

    def get(self, key: bytes) -> bytes | None:
        row = self._connection.execute("SELECT value FROM pair WHERE key = ?", (key,)).fetchone()
        return None if row is None else row[0]

    def get_range(self, begin: bytes, end: bytes, limit: int, reverse: bool) -> list[KeyValue]:
        direction = "DESC" if reverse else "ASC"
        return self._connection.execute(
            f"SELECT key, value FROM pair WHERE key >= ? AND key < ? ORDER BY key {direction} LIMIT ?",
            (begin, end, limit),
        ).fetchall()


class _SqliteSnapshot(_SqliteView):
    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._connection.execute("ROLLBACK")
            self._engine.give_back(self._connection)


class _SqliteWrite(_SqliteView):
    def put(self, key: bytes, value: bytes) -> None:
        self._connection.execute("INSERT OR REPLACE INTO pair VALUES (?, ?)", (key, value))

    def delete(self, key: bytes) -> None:
        self._connection.execute("DELETE FROM pair WHERE key = ?", (key,))

    def delete_range(self, begin: bytes, end: bytes) -> None:
        self._connection.execute("DELETE FROM pair WHERE key >= ? AND key < ?", (begin, end))

    def commit(self) -> bool:
        try:
            self._connection.execute("COMMIT")
        except sqlite3.OperationalError as error:
            raise StoreUnavailableError(str(error)) from error
        self._end()
        return True

    def abort(self) -> None:
        if self._is_open:
            self._connection.execute("ROLLBACK")
            self._end()

    def _end(self) -> None:
        self._is_open = False
        self._engine.give_back(self._connection)


class SqliteEngine:
    """One open SQLite file in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "store.sqlite"
        self._idle: list[sqlite3.Connection] = []
        self._lock = threading.Lock()
        connection = self._connect()
        connection.execute("CREATE TABLE IF NOT EXISTS pair (key BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID")
        self.give_back(connection)

    @property
    def name(self) -> str:
        return str(self._path)

    def snapshot(self) -> _SqliteSnapshot:
        connection = self._take()
        connection.execute("BEGIN")
        # A deferred transaction reads at the state of its first statement, and a snapshot at the state of now.
        connection.execute("SELECT 1 FROM pair LIMIT 1").fetchone()
        return _SqliteSnapshot(self, connection)

    def write(self) -> _SqliteWrite:
        connection = self._take()
        connection.execute("BEGIN IMMEDIATE")
        return _SqliteWrite(self, connection)

    def sync(self) -> None:
        """Do nothing: a commit at synchronous=FULL is durable when it returns."""

    def release_dead_readers(self) -> int:
        return 0

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def give_back(self, connection: sqlite3.Connection) -> None:
        with self._lock:
            if len(self._idle) < IDLE_COUNT_MAX:
                self._idle.append(connection)
                return
        connection.close()

    def _take(self) -> sqlite3.Connection:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return self._connect()

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False, cached_statements=64
        )
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        return connection
