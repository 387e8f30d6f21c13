"""The embedded store's folder: how it is opened, refused, upgraded and filled; and what a commit on a thread promises."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import lmdb
import pytest
from store_steps import fires, put, rows_of, value_of

from keyspace.clock import SystemClock, VirtualClock
from keyspace.store import embedded_format, embedded_wake
from keyspace.store.embedded import EmbeddedStore, memory_store, open_embedded
from keyspace.store.embedded_commit import Changes
from keyspace.store.embedded_format import META_KEY, Meta, monotonic_us, prepare
from keyspace.store.embedded_watch import bucket_of
from keyspace.store.engine import WriteBatch
from keyspace.store.errors import StoreUnavailableError, TransactionTooOld
from keyspace.store.lmdb_engine import MAP_BYTES, LmdbEngine
from keyspace.store.memory_engine import MemoryEngine
from keyspace.store.sizes import LIFETIME_MS_MAX


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "store"


def opened(folder: Path, map_bytes: int = MAP_BYTES) -> EmbeddedStore:
    return open_embedded(folder, clock=SystemClock(), map_bytes=map_bytes)


def mode_of(path: Path) -> int:
    return path.stat().st_mode


def size_of(path: Path) -> int:
    return path.stat().st_size


def refusal_of(folder: Path) -> str:
    with pytest.raises(StoreUnavailableError) as caught:
        opened(folder)
    message = str(caught.value)
    assert "\n" not in message
    assert str(folder) in message
    return message


async def test_what_was_committed_is_there_after_reopening(folder: Path) -> None:
    store = opened(folder)
    version = await put(store, (b"k", b"1"), (b"", b"the empty key"))
    await store.close()
    store = opened(folder)
    assert await rows_of(store, b"") == [(b"", b"the empty key"), (b"k", b"1")]
    assert await store.begin().get_read_version() >= version
    assert await put(store, (b"k", b"2")) > version
    await store.close()
    await store.close()


async def test_a_store_restarted_in_memory_finds_what_was_committed() -> None:
    """A process that stops leaves its engine as a file would be: its open attempt is gone, its commits are not."""
    engine, clock = MemoryEngine(), VirtualClock()
    before = memory_store(clock=clock, engine=engine)
    await put(before, (b"k", b"1"))
    lost = before.begin()
    lost.set(b"lost", b"1")
    await lost.get(b"k")
    after = memory_store(clock=clock, engine=engine)
    assert await rows_of(after, b"") == [(b"k", b"1")]
    await put(after, (b"k", b"2"))
    assert await lost.get(b"k") == b"1"


async def test_the_folder_is_its_owners_alone(folder: Path) -> None:
    store = opened(folder)
    await put(store, (b"k", b"1"))
    await store.close()
    assert mode_of(folder) & 0o077 == 0


async def test_a_closed_store_is_refused(folder: Path) -> None:
    store = opened(folder)
    open_one = store.begin()
    await open_one.get(b"k")
    await store.close()
    with pytest.raises(StoreUnavailableError):
        store.begin()


@pytest.mark.case(79)
async def test_a_later_format_is_refused_in_one_line(folder: Path) -> None:
    """Case 079, "file from a newer version": refused, not guessed, and left as it is."""
    store = opened(folder)
    await put(store, (b"k", b"1"))
    await store.close()
    engine = LmdbEngine(folder)
    batch = engine.write()
    batch.put(META_KEY, Meta(embedded_format.FORMAT_VERSION + 1, 9, 0, 0).encode() + b"more than we know")
    batch.commit()
    engine.close()
    assert f"format {embedded_format.FORMAT_VERSION + 1}" in refusal_of(folder)
    assert "format" in refusal_of(folder)


@pytest.mark.case(79)
async def test_an_earlier_format_is_upgraded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 079, "file from an older version": every step between is taken, in order, in one batch."""
    taken: list[int] = []

    def step(number: int) -> embedded_format.Upgrade:
        def upgrade(batch: WriteBatch) -> None:
            taken.append(number)
            batch.put(b"step", b"%d" % number)

        return upgrade

    engine, clock = MemoryEngine(), VirtualClock()
    await put(memory_store(clock=clock, engine=engine), (b"k", b"1"))
    monkeypatch.setattr(embedded_format, "UPGRADES", {1: step(1), 2: step(2)})
    before = prepare(engine, monotonic_us(clock))
    after = prepare(engine, monotonic_us(clock), format_version=3)
    assert taken == [1, 2]
    assert after == before._replace(format_version=3)
    assert engine.snapshot().get(b"step") == b"2"
    assert prepare(engine, monotonic_us(clock), format_version=3) == after
    assert taken == [1, 2]


def test_something_else_at_the_path_is_refused_in_one_line(folder: Path) -> None:
    folder.parent.mkdir(parents=True)
    folder.write_bytes(b"a file")
    assert "file" in refusal_of(folder)
    folder.unlink()
    folder.mkdir()
    (folder / "data.mdb").write_bytes(b"not a database at all" * 1_000)
    refusal_of(folder)


def test_another_programs_database_is_refused(folder: Path) -> None:
    folder.mkdir(parents=True)
    with lmdb.open(str(folder)) as other, other.begin(write=True) as batch:
        batch.put(b"theirs", b"1")
    assert "not a store" in refusal_of(folder)


async def test_a_full_map_is_refused_and_leaves_the_store_whole(folder: Path) -> None:
    store = opened(folder, map_bytes=1 << 20)
    count = 0
    with pytest.raises(StoreUnavailableError, match="may grow to"):
        while count < 1_000:
            await put(store, *((b"%04d/%d" % (count, part), bytes(20_000)) for part in range(4)))
            count += 1
    assert count > 2
    rows = await rows_of(store, b"")
    assert len(rows) == 4 * count
    transaction = store.begin()
    transaction.clear_range(b"0000", b"0002")
    await transaction.commit()
    assert len(await rows_of(store, b"")) == 4 * (count - 2)
    await store.close()


async def test_a_cancelled_commit_is_left_to_land(folder: Path) -> None:
    """The caller sees the cancellation; what was asked for is committed or not, and here it is, being first in line."""
    store = opened(folder)
    transaction = store.begin()
    transaction.set(b"k", b"1")
    stamp = transaction.get_versionstamp()
    waiting = asyncio.ensure_future(transaction.commit())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    with pytest.raises(Exception, match="may have landed"):
        await stamp
    await put(store, (b"later", b"1"))
    assert await value_of(store, b"k") == b"1"
    await store.close()


async def test_closing_finishes_outstanding_commits(folder: Path) -> None:
    store = opened(folder)
    commits = [asyncio.ensure_future(put(store, (b"%d" % index, b"1"))) for index in range(20)]
    await asyncio.sleep(0)
    await store.close()
    await asyncio.gather(*commits)
    reopened = opened(folder)
    assert len(await rows_of(reopened, b"")) == 20
    await reopened.close()


async def test_a_long_reader_ends_and_lets_the_file_be_reused(folder: Path) -> None:
    """A transaction forgotten with its snapshot open loses it after 5 s; until then the file keeps what it shows."""
    clock = VirtualClock()
    store = open_embedded(folder, clock=clock)
    forgotten = store.begin()
    await forgotten.get(b"k")
    clock.advance(LIFETIME_MS_MAX + 1)
    await store.begin().get(b"k")
    assert len(store._reading) == 1, "the forgotten snapshot is still open"
    with pytest.raises(TransactionTooOld):
        await forgotten.get(b"k")
    await store.close()


async def test_a_file_that_is_rewritten_does_not_grow(folder: Path) -> None:
    """Conflict rows are trimmed by age and pages reused: three minutes of the same writes fit in what one took."""
    clock = VirtualClock()
    store = open_embedded(folder, clock=clock)
    sizes: list[int] = []
    for minute in range(3):
        for second in range(80):
            clock.advance(700)
            await put(store, *((b"key/%d" % index, b"%d" % (minute * 1000 + second) * 20) for index in range(20)))
        sizes.append(size_of(folder / "data.mdb"))
    assert sizes[-1] <= sizes[0] * 1.2, sizes
    rows = store._engine.snapshot().get_range(b"\xff/log/", b"\xff/log0", 10_000, False)
    assert len(rows) < 100
    await store.close()


async def test_notices_that_do_not_fit_the_pipe_are_not_lost(folder: Path) -> None:
    """A watcher whose event loop is busy while thousands of changes happen still hears of each changed key."""
    store = opened(folder)
    transaction = store.begin()
    keys = [b"key/%05d" % index for index in range(4_000)]
    watches = [transaction.watch(key) for key in keys]
    await transaction.commit()
    board = embedded_wake.WakeBoard(folder)
    # Tell it far more than a pipe holds, without giving the event loop a turn to read.
    for _ in range(30):
        for start in range(0, len(keys), 1_000):
            board.publish(Changes(keys[start : start + 1_000], []))
    assert board._map[embedded_wake.SLOT_COUNT], "the pipe was never full, so this test tries nothing"
    await put(store, *((key, b"1") for key in keys))
    await asyncio.gather(*(fires(watch) for watch in watches))
    board.close()
    await store.close()


async def test_keys_that_share_a_bucket_are_told_apart(folder: Path) -> None:
    store = opened(folder)
    mine = b"k0"
    twin = next(key for key in (b"t%d" % index for index in range(10**6)) if bucket_of(key) == bucket_of(mine))
    transaction = store.begin()
    watch = transaction.watch(mine)
    await transaction.commit()
    waiting = asyncio.ensure_future(watch.wait())
    fence = store.begin()
    seen = fence.watch(b"fence")
    await fence.commit()
    await put(store, (twin, b"1"))
    await put(store, (b"fence", b"1"))
    await fires(seen)
    assert not waiting.done()
    await put(store, (mine, b"1"))
    await asyncio.wait_for(waiting, 5)
    await store.close()


async def test_more_watchers_than_slots_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_wake, "SLOT_COUNT", 2)
    stores = [opened(folder) for _ in range(3)]
    for store in stores[:2]:
        transaction = store.begin()
        transaction.watch(b"k")
        await transaction.commit()
    with pytest.raises(StoreUnavailableError, match="watched by 2 stores"):
        stores[2].begin().watch(b"k")
    await put(stores[2], (b"k", b"1"))
    for store in stores:
        await store.close()


def test_an_interpreter_that_ends_with_a_store_open_ends(tmp_path: Path) -> None:
    """The committer's thread must not keep a process alive whose main program failed."""
    program = (
        "import asyncio, pathlib, sys\n"
        "from keyspace.clock import SystemClock\n"
        "from keyspace.store.embedded import open_embedded\n"
        "async def main():\n"
        "    store = open_embedded(pathlib.Path(sys.argv[1]), clock=SystemClock())\n"
        "    transaction = store.begin()\n"
        "    transaction.set(b'k', b'1')\n"
        "    await transaction.commit()\n"
        "    raise SystemExit(3)\n"
        "asyncio.run(main())\n"
    )
    ended = subprocess.run([sys.executable, "-c", program, str(tmp_path / "store")], timeout=20, check=False)
    assert ended.returncode == 3
    assert any((tmp_path / "store").iterdir())
