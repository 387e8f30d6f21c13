"""Random transactions on the store and on a model that is simple enough to be right by reading it.

The model keeps a plain dict for each commit, a transaction's own dict on top of the one it reads, and decides conflicts by
comparing what was read with what was written key by key over a small, closed set of keys.
"""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, field

import pytest
from store_adapters import Adapter
from store_steps import rows_of

from keyspace.store.api import Transaction
from keyspace.store.errors import NotCommitted

ROUNDS = 12
STEPS = 60
OPEN_MAX = 4
UNIVERSE = [bytes([97 + high, 97 + low]) for high in range(5) for low in range(5)]
"""Every key there is: two letters each."""


@dataclass
class Commit:
    rows: dict[bytes, bytes]
    written: set[bytes] = field(default_factory=set)


@dataclass
class Modelled:
    """An open transaction, real and modelled."""

    real: Transaction
    base_index: int
    rows: dict[bytes, bytes]
    read: set[bytes] = field(default_factory=set)
    written: set[bytes] = field(default_factory=set)
    decided: set[bytes] = field(default_factory=set)
    """Keys whose value no longer depends on what is stored."""
    log: list[tuple[str, bytes, bytes]] = field(default_factory=list)

    def note(self, keys: set[bytes]) -> None:
        self.read |= keys - self.decided


def within(begin: bytes, end: bytes) -> set[bytes]:
    return {key for key in UNIVERSE if begin <= key < end}


def added(value: bytes | None, delta: int) -> bytes:
    if not value:
        return struct.pack("<q", delta)
    total = int.from_bytes(value[:8], "little") + delta
    return (total % 2**64).to_bytes(8, "little")


def apply(rows: dict[bytes, bytes], kind: str, key: bytes, argument: bytes) -> None:
    match kind:
        case "set":
            rows[key] = argument
        case "clear":
            rows.pop(key, None)
        case "clear_range":
            for gone in within(key, argument):
                rows.pop(gone, None)
        case "add":
            rows[key] = added(rows.get(key), int.from_bytes(argument, "little"))
        case _:
            rows[key] = max(rows.get(key, b""), argument) if key in rows else argument


class Driver:
    """Draws what happens next and checks every answer."""

    def __init__(self, rng: random.Random, prefix: bytes) -> None:
        self.rng = rng
        self.prefix = prefix
        self.commits = [Commit({})]

    def key(self) -> bytes:
        return self.rng.choice(UNIVERSE)

    def bounds(self) -> tuple[bytes, bytes]:
        ends = sorted((self.key()[: self.rng.choice((1, 2))], self.key()[: self.rng.choice((1, 2))]))
        return ends[0], ends[1]

    async def begin(self, real: Transaction) -> Modelled:
        await real.get_read_version()
        return Modelled(real, len(self.commits) - 1, dict(self.commits[-1].rows))

    async def get(self, it: Modelled) -> None:
        key, snapshot = self.key(), self.rng.random() < 0.3
        assert await it.real.get(self.prefix + key, snapshot=snapshot) == it.rows.get(key)
        if not snapshot:
            it.note({key})

    async def get_range(self, it: Modelled) -> None:
        begin, end = self.bounds()
        limit, reverse, snapshot = self.rng.randint(1, 8), self.rng.random() < 0.5, self.rng.random() < 0.3
        rows = await it.real.get_range(
            self.prefix + begin, self.prefix + end, limit=limit, reverse=reverse, snapshot=snapshot
        )
        keys = sorted((key for key in within(begin, end) if key in it.rows), reverse=reverse)
        assert rows == [(self.prefix + key, it.rows[key]) for key in keys[:limit]]
        if snapshot:
            return
        if len(rows) == limit:
            last = keys[limit - 1]
            it.note(within(last, end) if reverse else within(begin, last + b"\x00"))
        else:
            it.note(within(begin, end))

    def write(self, it: Modelled) -> None:
        kind = self.rng.choice(("set", "set", "clear", "clear_range", "add", "byte_max"))
        key, argument = self.key(), self.rng.randbytes(self.rng.choice((0, 3, 8, 12)))
        real_key = self.prefix + key
        match kind:
            case "set":
                it.real.set(real_key, argument)
            case "clear":
                it.real.clear(real_key)
            case "clear_range":
                key, argument = self.bounds()
                it.real.clear_range(self.prefix + key, self.prefix + argument)
            case "add":
                delta = self.rng.randint(0, 1_000)
                argument = struct.pack("<q", delta)
                it.real.add(real_key, delta)
            case _:
                it.real.byte_max(real_key, argument)
        touched = within(key, argument) if kind == "clear_range" else {key}
        apply(it.rows, kind, key, argument)
        it.log.append((kind, key, argument))
        it.written |= touched
        if kind in ("set", "clear", "clear_range"):
            it.decided |= touched

    def explicit(self, it: Modelled) -> None:
        key = self.key()
        if self.rng.random() < 0.5:
            it.real.add_read_conflict_key(self.prefix + key)
            it.note({key})
        else:
            it.real.add_write_conflict_key(self.prefix + key)
            it.written.add(key)

    async def commit(self, it: Modelled) -> None:
        later = self.commits[it.base_index + 1 :]
        is_refused = bool(it.written) and any(commit.written & it.read for commit in later)
        if is_refused:
            with pytest.raises(NotCommitted):
                await it.real.commit()
            return
        await it.real.commit()
        if it.written:
            rows = dict(self.commits[-1].rows)
            for entry in it.log:
                apply(rows, *entry)
            self.commits.append(Commit(rows, it.written))


@pytest.mark.parametrize("seed", range(ROUNDS))
async def test_random_transactions_match_the_model(adapter: Adapter, seed: int) -> None:
    """Any difference is reproduced by its seed alone."""
    stores = [await adapter.open() for _ in range(2)]
    driver = Driver(random.Random(seed), adapter.prefix)
    running: list[Modelled] = []
    for _ in range(STEPS * 4):
        if len(running) < OPEN_MAX and driver.rng.random() < 0.3:
            running.append(await driver.begin(driver.rng.choice(stores).begin()))
        if not running:
            continue
        it = driver.rng.choice(running)
        match driver.rng.randrange(10):
            case 0 | 1:
                await driver.get(it)
            case 2 | 3:
                await driver.get_range(it)
            case 4 | 5 | 6 | 7:
                driver.write(it)
            case 8:
                driver.explicit(it)
            case _:
                await driver.commit(it)
                running.remove(it)
    for it in running:
        await driver.commit(it)
    wanted = sorted((adapter.prefix + key, value) for key, value in driver.commits[-1].rows.items())
    assert await rows_of(stores[0], adapter.prefix) == wanted
    assert len(driver.commits) > 5
