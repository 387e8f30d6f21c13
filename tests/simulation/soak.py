"""The soak: scenarios without end, in slices, resuming after the last seed done; what was done is kept in a small file.

Seeds below 1,001 belong to the test suite. A seed counts for the code it was played with, which is named by a digest of
the sources that a scenario runs; new code begins a new count and goes on with new seeds.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import msgspec

from simulation.play import play
from simulation.scenario import make_scenario

__all__ = ["FIRST_SEED", "RECORD", "Entry", "Record", "code_digest", "read_record", "soak", "write_record"]

ROOT = Path(__file__).parents[2]
RECORD = Path(__file__).with_name("soak.json")
SOURCES = (
    "keyspace",
    "services/dispatcher",
    "services/lanes",
    "sdk_py/ryusen/protocol",
    "sdk_py/ryusen/worker",
)
ONLY_LOOKING = ("__init__", "__main__", "expected", "shrink", "soak")
"""The modules beside this one that no scenario runs, tests aside; the others count, and the service's folders."""
FIRST_SEED = 1_001
SLICE = 40
"""Seeds of one task of one process."""
ENTRIES_MAX = 30
PROCESSES_MAX = 2
NICENESS = 10


class Entry(msgspec.Struct, kw_only=True):
    """What was done with one state of the code: seeds `first` to `last`, and those of them that failed, with the rule."""

    code: str
    commit: str
    first: int
    last: int
    failed: dict[str, str] = {}

    @property
    def done(self) -> int:
        """How many seeds."""
        return self.last - self.first + 1


class Record(msgspec.Struct):
    """The soak's file: the newest entries, the last one growing."""

    entries: list[Entry] = []

    @property
    def next_seed(self) -> int:
        """The first seed that nobody has played."""
        return max((entry.last + 1 for entry in self.entries), default=FIRST_SEED)

    def entry_of(self, code: str, commit: str) -> Entry:
        """Return the entry of this code, a new one when the last is of other code."""
        if not self.entries or self.entries[-1].code != code:
            self.entries.append(Entry(code=code, commit=commit, first=self.next_seed, last=self.next_seed - 1))
            del self.entries[:-ENTRIES_MAX]
        self.entries[-1].commit = commit
        return self.entries[-1]


def read_record(path: Path) -> Record:
    """Return what was done so far; nothing when there is no file."""
    return msgspec.json.decode(path.read_bytes(), type=Record) if path.exists() else Record()


def write_record(path: Path, record: Record) -> None:
    """Write it whole: a reader finds the old one or the new one."""
    fresh = path.with_suffix(".new")
    fresh.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")
    fresh.replace(path)


def code_digest(root: Path = ROOT) -> str:
    """Return a digest of the sources that a scenario runs."""
    paths = [path for folder in SOURCES for path in sorted((root / folder).rglob("*.py"))]
    digest = hashlib.sha256()
    beside = sorted(path for path in Path(__file__).parent.glob("*.py") if not path.stem.startswith("test_"))
    for path in (*paths, *(path for path in beside if path.stem not in ONLY_LOOKING)):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def commit_of(root: Path = ROOT) -> str:
    """Return the commit that is checked out, or nothing outside a repository."""
    asked = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"], cwd=root, capture_output=True, text=True, check=False
    )
    return asked.stdout.strip()


@dataclass(frozen=True)
class Slice:
    """Some seeds, and what came of them: the rule that each failing one breaks."""

    first: int
    last: int
    failed: dict[str, str]


def play_slice(first: int, last: int) -> Slice:
    """Play seeds `first` to `last` in this process."""

    async def body() -> dict[str, str]:
        failed = {}
        for seed in range(first, last + 1):
            played = await play(make_scenario(seed))
            if played.broken is not None:
                failed[str(seed)] = f"{played.broken.rule}: {played.broken.sentence}"[:300]
        return failed

    return Slice(first, last, asyncio.run(body()))


def soak(
    record: Record, entry: Entry, *, seeds: int, minutes: float, processes: int, on_slice: Callable[[float], None]
) -> None:
    """Play `seeds` more scenarios, or as many as `minutes` allow.

    Args:
        record: what was done so far.
        entry: the record's last one, which grows.
        seeds: how many at most.
        minutes: for how long at most; a slice that has begun is finished.
        processes: 1 or 2.
        on_slice: called when the entry has grown, with the seconds since the beginning.
    """
    begun_s = time.monotonic()
    with ProcessPoolExecutor(min(processes, PROCESSES_MAX), initializer=os.nice, initargs=(NICENESS,)) as pool:
        for wave in _waves(record.next_seed, seeds, processes):
            for done in pool.map(play_slice, *zip(*wave, strict=True)):
                entry.last = done.last
                entry.failed |= done.failed
            on_slice(time.monotonic() - begun_s)
            if time.monotonic() - begun_s > minutes * 60:
                return


def _waves(first: int, seeds: int, processes: int) -> Iterator[list[tuple[int, int]]]:
    """Yield for each wave the slices of all processes, in order."""
    end = first + seeds
    while first < end:
        wave = []
        for _ in range(processes):
            if first < end:
                last = min(first + SLICE, end) - 1
                wave.append((first, last))
                first = last + 1
        yield wave
