"""A store that writes down what each committed transaction weighed, read and wrote, for tests of budgets and conflicts."""

from __future__ import annotations

from typing import Any, NamedTuple

from keyspace.store.api import KeyRange, Store, Transaction
from keyspace.store.errors import RetryableError
from keyspace.store.runner import current_run

__all__ = ["Commit", "RecordingStore", "overlaps"]


class Commit(NamedTuple):
    """One committed transaction that wrote: its transition, whose it was, its size, reads and conflict ranges."""

    name: str
    tag: str
    size_bytes: int
    read_count: int
    reads: list[KeyRange]
    writes: list[KeyRange]


def overlaps(left: list[KeyRange], right: list[KeyRange]) -> bool:
    """Whether some key lies in both."""
    return any(a.begin < b.end and b.begin < a.end for a in left for b in right)


class RecordingStore:
    """Behaves as `inner`; `tag` says whose transactions are made now."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.tag = ""
        self.commits: list[Commit] = []

    @property
    def name(self) -> str:
        return self.inner.name

    def begin(self) -> Transaction:
        recording: Any = _Recording(self, self.inner.begin())
        made: Transaction = recording
        return made

    async def backoff(self, error: RetryableError, attempt_count: int) -> None:
        await self.inner.backoff(error, attempt_count)

    async def close(self) -> None:
        await self.inner.close()


class _Recording:
    def __init__(self, store: RecordingStore, inner: Any) -> None:
        self._store = store
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def commit(self) -> None:
        run = current_run()
        writes = await self._inner.write_conflict_ranges()
        commit = Commit(
            run.name if run else "",
            self._store.tag,
            await self._inner.approximate_size(),
            self._inner.counts().read_count,
            await self._inner.read_conflict_ranges(),
            writes,
        )
        await self._inner.commit()
        if writes:
            self._store.commits.append(commit)
