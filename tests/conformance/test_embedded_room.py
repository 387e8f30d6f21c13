"""Room at the end of the embedded store's file: commits write over what is there, and nothing is ever written over."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from store_steps import put, rows_of

from keyspace.clock import SystemClock
from keyspace.store.embedded import EmbeddedStore, open_embedded
from keyspace.store.lmdb_room import ROOM_BYTES, ROOM_BYTES_LEAST, Room

COMMITS = 200
VALUE = bytes(range(256)) * 40


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def opened(folder: Path, map_bytes: int = 1 << 30) -> EmbeddedStore:
    return open_embedded(folder, clock=SystemClock(), map_bytes=map_bytes)


def size_of(path: Path) -> int:
    return path.stat().st_size


async def test_few_commits_make_the_file_longer_and_all_of_them_are_there(tmp_path: Path) -> None:
    """A commit that lengthens the file waits for the file system's journal too, so hardly any may."""
    store = opened(tmp_path / "store")
    file = tmp_path / "store" / "data.mdb"
    sizes = []
    for number in range(COMMITS):
        await put(store, (b"%04d" % number, VALUE))
        sizes.append(size_of(file))
    grown = sum(1 for former, size in itertools.pairwise(sizes) if size > former)
    assert 2 <= grown <= COMMITS // 20, sizes
    await store.close()
    reopened = opened(tmp_path / "store")
    assert await rows_of(reopened, b"") == [(b"%04d" % number, VALUE) for number in range(COMMITS)]
    await reopened.close()


async def test_room_never_exceeds_what_the_file_may_grow_to(tmp_path: Path) -> None:
    """The bound on the file is the operator's, so room must not take what pages need."""
    store = opened(tmp_path / "store", map_bytes=ROOM_BYTES + ROOM_BYTES_LEAST)
    for number in range(20):
        await put(store, (b"%04d" % number, VALUE))
    assert size_of(tmp_path / "store" / "data.mdb") <= ROOM_BYTES + ROOM_BYTES_LEAST
    await store.close()


def test_room_is_written_behind_the_end_alone(tmp_path: Path) -> None:
    """Another process may have pages anywhere in the file as it is."""
    file = tmp_path / "file"
    file.write_bytes(b"page" * 1_000)
    room = Room(file)
    room.make(2_000, 1 << 30)
    assert size_of(file) == 2_000 + ROOM_BYTES
    assert file.read_bytes()[:4_000] == b"page" * 1_000
    assert not any(file.read_bytes()[4_000:])
    room.make(2_000 + ROOM_BYTES - ROOM_BYTES_LEAST, 1 << 30)
    assert size_of(file) == 2_000 + ROOM_BYTES, "there is room enough"
    with file.open("ab") as other:
        other.write(b"another process's page" * 50_000)
    before = file.read_bytes()
    room.make(2_001 + ROOM_BYTES - ROOM_BYTES_LEAST, 1 << 30)
    assert file.read_bytes() == before, "the other process has made room"
    room.make(len(before), 1 << 30)
    assert file.read_bytes()[: len(before)] == before
    assert size_of(file) == len(before) + ROOM_BYTES
    room.close()


def test_a_disk_without_space_is_left_to_the_commit_to_find() -> None:
    """Room only saves time, so it must never be what fails."""
    room = Room(Path("/dev/full"))
    room.make(1, 1 << 30)
    room.close()
