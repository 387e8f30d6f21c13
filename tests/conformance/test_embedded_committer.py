"""The committer's promises, on an engine whose syncs the test holds in its hand and whose machine can lose power."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator

import pytest
from store_steps import DEADLINE_S, put, value_of

from keyspace.clock import SystemClock, VirtualClock
from keyspace.store.embedded import EmbeddedStore
from keyspace.store.embedded_commit import Changes, CommitRequest, Serializer
from keyspace.store.embedded_committer import ThreadCommitter
from keyspace.store.embedded_format import META_KEY, monotonic_us, prepare, read_meta
from keyspace.store.embedded_watch import WatchTable
from keyspace.store.embedded_writes import Flattened
from keyspace.store.engine import Snapshot, WriteBatch
from keyspace.store.errors import CommitUnknownResult, NotCommitted, StoreError, StoreUnavailableError
from keyspace.store.memory_engine import MemoryEngine

TURN_S = 0.05


class HeldEngine:
    """A memory engine whose commits are durable only after a sync, as a file's are, and which notes what is durable.

    The memory engine is one thread's; the tests read only while the committer's thread is held in a sync or has nothing
    to do.
    """

    def __init__(self) -> None:
        self.inner = MemoryEngine()
        self.has_committed = threading.Event()
        self.durable_version = 0
        self.sync_count = 0
        self.may_sync = threading.Event()
        self.may_sync.set()
        self.failure: StoreError | None = None
        self.name = "held"

    def snapshot(self) -> Snapshot:
        return self.inner.snapshot()

    def write(self) -> WriteBatch:
        if self.failure is not None:
            raise self.failure
        return HeldBatch(self, self.inner.write())

    def sync(self) -> None:
        assert self.may_sync.wait(DEADLINE_S)
        if self.failure is not None:
            raise self.failure
        self.sync_count += 1
        self.durable_version = self.version()

    def version(self) -> int:
        snapshot = self.inner.snapshot()
        try:
            return read_meta(snapshot).version if snapshot.get(META_KEY) else 0
        finally:
            snapshot.close()

    def release_dead_readers(self) -> int:
        return 0

    def close(self) -> None:
        return None


class HeldBatch:
    """Passes everything on; its commit makes what was committed before durable, and itself only visible."""

    def __init__(self, engine: HeldEngine, inner: WriteBatch) -> None:
        self.engine = engine
        self.get = inner.get
        self.get_range = inner.get_range
        self.put = inner.put
        self.delete = inner.delete
        self.delete_range = inner.delete_range
        self.abort = inner.abort
        self.inner = inner

    def commit(self) -> bool:
        before = self.engine.version()
        self.inner.commit()
        self.engine.durable_version = before
        self.engine.has_committed.set()
        return False


class Mark:
    durable_version = 0


class NoMarks:
    def claim(self) -> None:
        return None

    def mark(self, bucket: int, is_watched: bool) -> None:
        return None


@pytest.fixture
def engine() -> HeldEngine:
    return HeldEngine()


@pytest.fixture
async def store(engine: HeldEngine) -> AsyncIterator[EmbeddedStore]:
    clock = SystemClock()
    published: list[Changes] = []
    serializer = Serializer(engine, clock, prepare(engine, monotonic_us(clock)))
    committer = ThreadCommitter(engine, serializer, published.append, Mark(), clock)
    opened = EmbeddedStore("held", engine, committer, WatchTable(engine, NoMarks()), clock, random.Random(1))
    engine.sync_count = 0
    engine.has_committed.clear()
    yield opened
    engine.may_sync.set()
    await opened.close()


async def until_committed(engine: HeldEngine) -> None:
    """Wait until a commit has become visible; its sync may be held."""
    assert await asyncio.to_thread(engine.has_committed.wait, DEADLINE_S)


async def test_a_commit_is_acknowledged_only_once_it_is_synced(store: EmbeddedStore, engine: HeldEngine) -> None:
    engine.may_sync.clear()
    committing = asyncio.ensure_future(put(store, (b"k", b"1")))
    await until_committed(engine)
    assert await value_of(store, b"k") == b"1"
    for _ in range(100):
        await asyncio.sleep(0)
    assert not committing.done(), "acknowledged before it was durable"
    engine.may_sync.set()
    version = await asyncio.wait_for(committing, DEADLINE_S)
    assert engine.durable_version >= version


async def test_every_acknowledged_version_is_durable_at_that_moment(store: EmbeddedStore, engine: HeldEngine) -> None:
    """Power lost right after any acknowledgement leaves that commit there; checked for each of many concurrent ones."""
    late: list[int] = []

    async def lane(index: int) -> None:
        for number in range(20):
            version = await put(store, (b"%d/%d" % (index, number), b"1"))
            if engine.durable_version < version:
                late.append(version)

    await asyncio.gather(*(lane(index) for index in range(8)))
    assert late == []
    assert engine.version() > 0


async def test_busy_commits_share_syncs(store: EmbeddedStore, engine: HeldEngine) -> None:
    """While a group waits for its sync others gather; the next group's commit syncs it."""
    engine.may_sync.clear()
    first = asyncio.ensure_future(put(store, (b"first", b"1")))
    await until_committed(engine)
    others = [asyncio.ensure_future(put(store, (b"%d" % index, b"1"))) for index in range(50)]
    await asyncio.sleep(0)
    engine.may_sync.set()
    await asyncio.wait_for(asyncio.gather(first, *others), DEADLINE_S)
    assert engine.sync_count <= 4, "51 commits took a sync each"


async def test_what_one_turn_of_the_loop_asks_for_shares_a_group(store: EmbeddedStore, engine: HeldEngine) -> None:
    """The thread is woken once a turn; would catch one that is woken by the first commit and takes it alone."""
    first = asyncio.ensure_future(put(store, (b"first", b"1")))

    async def later_in_the_turn() -> int:
        # Holds the turn open for as long as a woken thread would need; one that sleeps on cannot commit meanwhile.
        assert not engine.has_committed.wait(TURN_S)
        return await put(store, (b"later", b"1"))

    later = asyncio.ensure_future(later_in_the_turn())
    versions = await asyncio.wait_for(asyncio.gather(first, later), DEADLINE_S)
    assert versions[0] == versions[1]


def test_the_first_commit_of_another_process_is_seen_by_one_that_was_alone() -> None:
    """A serializer that has stopped looking ahead still judges against everything that was committed."""
    engine, clock = MemoryEngine(), VirtualClock()
    start = prepare(engine, monotonic_us(clock))
    alone, other = Serializer(engine, clock, start), Serializer(engine, clock, start)

    def commit(serializer: Serializer, read_version: int) -> CommitRequest:
        request = CommitRequest(Flattened([(b"k", b"1")], []), read_version, {b"k"}, [], {b"k"}, [])
        serializer.catch_up()
        serializer.commit([request])
        return request

    first = commit(alone, start.version)
    second = commit(alone, first.version)
    theirs = commit(other, second.version)
    assert theirs.error is None
    assert isinstance(commit(alone, second.version).error, NotCommitted)
    assert commit(alone, theirs.version).error is None


async def test_a_read_only_commit_waits_for_what_it_has_seen_to_be_durable(
    store: EmbeddedStore, engine: HeldEngine
) -> None:
    """Nobody may be told what a power loss could still take back."""
    engine.may_sync.clear()
    committing = asyncio.ensure_future(put(store, (b"k", b"1")))
    await until_committed(engine)
    reader = store.begin()
    assert await reader.get(b"k") == b"1"
    reading = asyncio.ensure_future(reader.commit())
    for _ in range(100):
        await asyncio.sleep(0)
    assert not reading.done()
    engine.may_sync.set()
    await asyncio.wait_for(asyncio.gather(committing, reading), DEADLINE_S)


async def test_a_read_only_commit_of_what_is_durable_waits_for_nothing(
    store: EmbeddedStore, engine: HeldEngine
) -> None:
    await put(store, (b"k", b"1"))
    engine.may_sync.clear()
    reader = store.begin()
    await reader.get(b"k")
    await asyncio.wait_for(reader.commit(), DEADLINE_S)


async def test_a_sync_that_fails_leaves_the_outcome_unknown_and_ends_writing(
    store: EmbeddedStore, engine: HeldEngine
) -> None:
    engine.may_sync.clear()
    committing = asyncio.ensure_future(put(store, (b"k", b"1")))
    await until_committed(engine)
    engine.failure = StoreUnavailableError("the device failed")
    engine.may_sync.set()
    with pytest.raises(CommitUnknownResult, match="the device failed"):
        await asyncio.wait_for(committing, DEADLINE_S)
    with pytest.raises(StoreUnavailableError, match="the device failed"):
        await asyncio.wait_for(put(store, (b"k", b"2")), DEADLINE_S)


async def test_a_defect_in_one_group_fails_it_and_not_the_ones_after(
    store: EmbeddedStore, engine: HeldEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread all commits go through must survive what nobody thought of."""

    def broken(self: HeldEngine) -> WriteBatch:
        raise ZeroDivisionError("a defect")

    with monkeypatch.context() as patched:
        patched.setattr(HeldEngine, "write", broken)
        with pytest.raises(StoreError, match="a defect"):
            await asyncio.wait_for(put(store, (b"k", b"1")), DEADLINE_S)
    await asyncio.wait_for(put(store, (b"k", b"2")), DEADLINE_S)
    assert await value_of(store, b"k") == b"2"
