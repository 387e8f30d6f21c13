"""The store as the simulation sees it: every commit is judged in the moment it lands, by the real checks and by the model."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Coroutine, Iterable
from functools import lru_cache
from typing import Any, NamedTuple

import keyspace.fsck  # noqa: F401 - declares the checks
from keyspace.checks.report import CHECKS, Case, Report
from keyspace.layout import identify as identify_key
from keyspace.leaf import Key, Leaf
from keyspace.store.api import KeyRange
from keyspace.store.fault_plan import CommitFault, FaultPlan
from keyspace.store.memory_engine import MemoryEngine
from keyspace.store.runner import RunContext, current_run

__all__ = ["Commit", "Look", "MoveFaults", "Touched", "WitnessEngine", "judge"]

SYSTEM = b"\xff"
ROWS_MAX = 100_000
KEYS_KEPT = 20_000

identify = lru_cache(KEYS_KEPT)(identify_key)
"""The keys of one scenario are met again and again."""


class Touched(NamedTuple):
    """A key that a commit wrote: its leaf and elements, and the record it holds now, or None when it is gone."""

    leaf: Leaf[Any]
    elements: tuple[Any, ...]
    record: Any


class Commit(NamedTuple):
    """One commit as it landed.

    Attributes:
        number: from 1, in the order in which they landed.
        name: the transition's; `late` for one that landed after its caller was told of a time-out.
        touched: what it wrote, in key order.
    """

    number: int
    name: str
    touched: list[Touched]


class Look:
    """Reads as `Tx` does, at once and without a transaction: what is in the store now."""

    def __init__(self, engine: MemoryEngine, now_ms: int) -> None:
        """Look at what is committed."""
        self._engine = engine
        self.now_ms = now_ms

    def value(self, data: bytes) -> bytes | None:
        """Return one value."""
        snapshot = self._engine.snapshot()
        found = snapshot.get(data)
        snapshot.close()
        return found

    def rows(self, span: KeyRange, limit: int = ROWS_MAX, reverse: bool = False) -> list[tuple[bytes, bytes]]:
        """Return the pairs of a range."""
        snapshot = self._engine.snapshot()
        found = snapshot.get_range(span.begin, span.end, limit, reverse)
        snapshot.close()
        return found

    def record(self, key: Key[Any]) -> Any:
        """Return one record, or None."""
        data = self.value(key.data)
        return None if data is None else key.leaf.codec.decode(data)

    def records(self, leaf: Leaf[Any], *above: Any) -> list[tuple[tuple[Any, ...], Any]]:
        """Return every entry of a leaf below some elements: its elements and its record."""
        found = []
        for data, value in self.rows(leaf.span(*above)):
            named = identify(data)
            if named is not None and named[0] is leaf:
                found.append((named[1], leaf.codec.decode(value)))
        return found

    async def load(self, *keys: Key[Any], snapshot: bool = False) -> Any:
        """Read as `Tx.load`."""
        records = [self.record(key) for key in keys]
        return records[0] if len(records) == 1 else tuple(records)

    async def load_all(self, keys: Iterable[Key[Any]], *, snapshot: bool = False) -> list[Any]:
        """Read as `Tx.load_all`."""
        return [self.record(key) for key in keys]

    async def page(
        self, span: KeyRange, *, limit: int, reverse: bool = False, snapshot: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """Read as `Tx.page`."""
        return self.rows(span, limit, reverse)

    async def load_blob(self, leaf: Leaf[bytes], *at: Any, size_bytes: int, snapshot: bool = False) -> bytes:
        """Read as `Tx.load_blob`."""
        return b"".join(value for _, value in self.rows(leaf.span(*at)))

    async def is_empty(self, span: KeyRange) -> bool:
        """Read as `Tx.is_empty`."""
        return not self.rows(span, 1)


class WitnessEngine(MemoryEngine):
    """An engine that tells of each commit as it lands, and keeps a digest of all that was ever written."""

    def __init__(self, on_commit: Callable[[Commit], None]) -> None:
        """Tell `on_commit`."""
        super().__init__()
        self._on_commit = on_commit
        self._digest = hashlib.sha256()
        self.commit_count = 0

    @property
    def digest(self) -> str:
        """The digest of every key and value written so far, in order."""
        return self._digest.hexdigest()

    def publish(self, sequence: int, touched: set[bytes]) -> None:
        """Publish, then tell."""
        super().publish(sequence, touched)
        keys = sorted(key for key in touched if not key.startswith(SYSTEM))
        if not keys:
            return
        self.commit_count += 1
        snapshot = self.snapshot()
        found = []
        for key in keys:
            value = snapshot.get(key)
            self._digest.update(key + b"=" + (value if value is not None else b"-") + b"\n")
            named = identify(key)
            assert named is not None, f"no leaf has the key {key!r}"
            leaf, elements = named
            found.append(Touched(leaf, elements, None if value is None else leaf.codec.decode(value)))
        snapshot.close()
        run = current_run()
        self._on_commit(Commit(self.commit_count, "late" if run is None else run.name, found))


def judge(look: Look, touched: Iterable[Touched]) -> list[str]:
    """Return what the keyspace's own checks say of these keys."""
    report = Report()
    for leaf, elements, record in touched:
        check = CHECKS.get(leaf.name)
        if check is not None and record is not None:
            _run_now(check(Case(look, leaf, elements, record, report)))  # type: ignore[arg-type]
    return [f"{problem.check} {problem.key}: {problem.sentence}" for problem in report.problems]


def _run_now(body: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that only reads from a `Look`, which never waits."""
    try:
        body.send(None)
    except StopIteration:
        return
    raise AssertionError("a check waits for something besides its reads")


class MoveFaults(FaultPlan):
    """Strikes the commits that the present move names, by their number inside the move, in whichever process they happen."""

    def __init__(self) -> None:
        """Strike nothing yet."""
        super().__init__()
        self._faults: dict[int, CommitFault] = {}
        self._count = 0
        self.struck: list[str] = []

    def arm(self, faults: Iterable[tuple[int, CommitFault]]) -> None:
        """Begin a move with these faults."""
        self._faults, self._count = dict(faults), 0
        self.struck.clear()

    def next_commit(self, run: RunContext | None) -> CommitFault | None:
        """Return what strikes the next commit of the move."""
        self._count += 1
        fault = self._faults.get(self._count)
        if fault is not None:
            self.struck.append(f"{run.name if run else 'commit'}: {fault.value}")
        return fault
