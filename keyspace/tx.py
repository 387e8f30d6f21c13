"""One attempt of a transaction as transitions see it: typed records, a budget, engine time and minted ids.

`Tx` is where logical keys get the deployment's physical prefix and where every operation is charged before it is issued,
so that no transition can forget either. It never commits: `Keyspace.transact` does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Iterable
from typing import Any, TypeVar, overload

from keyspace.budget import Budget
from keyspace.errors import CorruptRecord
from keyspace.leaf import Key, Leaf
from keyspace.limits import CHUNK_BYTES, chunk_count_max
from keyspace.policy import ANY_TIME, RunTimePolicy
from keyspace.store.api import KeyRange, Transaction, Watch
from keyspace.tuple_layer import COMMIT_STAMP_BYTES

__all__ = ["Ids", "Tx", "digest_of"]

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")
F = TypeVar("F")
R = TypeVar("R")

ID_BYTES = 16


def digest_of(domain: str, *parts: str | bytes) -> str:
    """Return the 32-digit digest of `parts` under a domain separator; parts are length-prefixed, so none can pose as two."""
    pieces: list[bytes] = []
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        pieces += (len(data).to_bytes(8, "big"), data)
    return hashlib.blake2b(b"".join(pieces), digest_size=ID_BYTES, person=domain.encode()[:16]).hexdigest()


class Ids:
    """Ids for what one attempt creates: work items. No two attempts of a call draw the same one.

    After an unknown commit the next attempt may rightly go on with the next page of the same work; with the ids of the
    attempt before it would overwrite what that one committed. So nothing drawn here can be a receipt: the id a receipt is
    found by is minted before the call (`Keyspace.mint`) and given to the transition.
    """

    __slots__ = ("_count", "_seed")

    def __init__(self, seed: bytes, attempt_index: int = 0) -> None:
        """Draw from `seed`, 16 random bytes of one call, for its attempt `attempt_index` (from 0)."""
        self._seed = seed + attempt_index.to_bytes(4, "big")
        self._count = 0

    def mint(self) -> str:
        """Return the next id, 32 hexadecimal digits."""
        self._count += 1
        return hashlib.blake2b(self._seed + self._count.to_bytes(4, "big"), digest_size=ID_BYTES).hexdigest()


class Tx:
    """An open transaction attempt over the keyspace.

    Attributes:
        now_ms: engine time, sampled once for this attempt (Unix epoch milliseconds).
        ids: ids for what this attempt creates.
        budget: this attempt's account.
        run_time: how long runs may take where nothing else says so.
        attempt_index: how many attempts of this call came before, so that a page that conflicts can be made smaller.
    """

    __slots__ = (
        "_cleared",
        "_prefix",
        "_raw",
        "_written",
        "attempt_index",
        "budget",
        "ids",
        "now_ms",
        "read_count",
        "run_time",
    )

    def __init__(
        self,
        raw: Transaction,
        *,
        prefix: bytes,
        budget: Budget,
        now_ms: int,
        ids: Ids,
        run_time: RunTimePolicy = ANY_TIME,
        attempt_index: int = 0,
    ) -> None:
        """Wrap one store transaction."""
        self._raw = raw
        self._prefix = prefix
        self._written: list[bytes] = []
        self._cleared: list[KeyRange] = []
        self.budget = budget
        self.now_ms = now_ms
        self.ids = ids
        self.run_time = run_time
        self.attempt_index = attempt_index
        self.read_count = 0

    # -- reads

    @property
    def prefix_bytes(self) -> int:
        """The length of the physical prefix that every key travels with."""
        return len(self._prefix)

    def _issue(self, key: Key[Any], snapshot: bool) -> Awaitable[bytes | None]:
        data = self._prefix + key.data
        if not snapshot:
            self.budget.read(len(data))
        self.read_count += 1
        return self._raw.get(data, snapshot=snapshot)

    @overload
    async def load(self, a: Key[A], /, *, snapshot: bool = False) -> A | None: ...
    @overload
    async def load(self, a: Key[A], b: Key[B], /, *, snapshot: bool = False) -> tuple[A | None, B | None]: ...
    @overload
    async def load(
        self, a: Key[A], b: Key[B], c: Key[C], /, *, snapshot: bool = False
    ) -> tuple[A | None, B | None, C | None]: ...
    @overload
    async def load(
        self, a: Key[A], b: Key[B], c: Key[C], d: Key[D], /, *, snapshot: bool = False
    ) -> tuple[A | None, B | None, C | None, D | None]: ...
    @overload
    async def load(
        self, a: Key[A], b: Key[B], c: Key[C], d: Key[D], e: Key[E], /, *, snapshot: bool = False
    ) -> tuple[A | None, B | None, C | None, D | None, E | None]: ...
    async def load(self, *keys: Key[Any], snapshot: bool = False) -> Any:
        """Return the records at `keys`, None where there is none; all reads are issued before the first is awaited."""
        reads = [self._issue(key, snapshot) for key in keys]
        records = []
        for key, read in zip(keys, reads, strict=True):
            data = await read
            records.append(None if data is None else key.leaf.codec.decode(data))
        return records[0] if len(records) == 1 else tuple(records)

    async def load_all(self, keys: Iterable[Key[R]], *, snapshot: bool = False) -> list[R | None]:
        """Return the records at any number of like keys, the reads issued together."""
        wanted = list(keys)
        reads = [self._issue(key, snapshot) for key in wanted]
        records: list[R | None] = []
        for key, read in zip(wanted, reads, strict=True):
            data = await read
            records.append(None if data is None else key.leaf.codec.decode(data))
        return records

    async def page(
        self, span: KeyRange, *, limit: int, reverse: bool = False, snapshot: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """Return at most `limit` pairs of logical key and stored value from a range."""
        begin, end = self._prefix + span.begin, self._prefix + span.end
        parts = 0 if snapshot else self._parts(begin, end)
        if not snapshot:
            self.budget.range_read(len(begin), len(end), parts)
        self.read_count += 1
        rows = await self._raw.get_range(begin, end, limit=limit, reverse=reverse, snapshot=snapshot)
        if rows and not snapshot and len(rows) == limit:
            # A read that ends early conflicts up to its last row instead, which may be longer than the range's own end.
            excess = len(rows[-1][0]) + 1 - min(len(begin), len(end))
            if excess > 0:
                self.budget.range_read(0, excess, parts)
        skip = len(self._prefix)
        return [(key[skip:], value) for key, value in rows]

    async def snapshot_pages(self, spans: Iterable[KeyRange], *, limit: int) -> list[list[tuple[bytes, bytes]]]:
        """Return at most `limit` pairs of each range, read by snapshot; all reads are issued before the first is awaited."""
        prefix = self._prefix
        reads = [
            self._raw.get_range(prefix + span.begin, prefix + span.end, limit=limit, snapshot=True) for span in spans
        ]
        self.read_count += len(reads)
        skip = len(prefix)
        return [[(key[skip:], value) for key, value in await read] for read in reads]

    def _parts(self, begin: bytes, end: bytes) -> int:
        """Return into how many pieces this attempt's own writes may cut a range read; each costs what the whole would."""
        if not self._written and not self._cleared:
            return 1
        points = sum(1 for key in self._written if begin <= key < end)
        ranges = sum(1 for cleared in self._cleared if cleared.begin < end and begin < cleared.end)
        return 1 + 2 * points + ranges

    async def load_blob(self, leaf: Leaf[bytes], *at: Any, size_bytes: int, snapshot: bool = False) -> bytes:
        """Return a split value of `size_bytes` whose chunks lie under `leaf` at the elements `at`.

        Raises:
            CorruptRecord: the chunks do not add up to `size_bytes`.
        """
        rows = await self.page(leaf.span(*at), limit=chunk_count_max(size_bytes) + 1, snapshot=snapshot)
        value = rows[0][1] if len(rows) == 1 else b"".join(chunk for _, chunk in rows)
        if len(value) != size_bytes:
            raise CorruptRecord(record=leaf.name, reason="chunks do not add up", bytes=len(value), expected=size_bytes)
        return value

    async def is_empty(self, span: KeyRange) -> bool:
        """Return whether a range holds nothing, and make the commit depend on it."""
        return not await self.page(span, limit=1)

    def depend_on(self, key: Key[Any]) -> None:
        """Add a read conflict on `key` that was read by snapshot."""
        data = self._prefix + key.data
        self.budget.read(len(data))
        self._raw.add_read_conflict_key(data)

    # -- writes

    @property
    def write_count(self) -> int:
        """How many writes this attempt has made, of whatever kind."""
        return len(self._written) + len(self._cleared)

    def put(self, key: Key[R], record: R) -> None:
        """Write a record."""
        data, value = self._prefix + key.data, key.leaf.codec.encode(record)
        self.budget.set(len(data), len(value))
        self._written.append(data)
        self._raw.set(data, value)

    def put_blob(self, leaf: Leaf[bytes], *at: Any, value: bytes) -> None:
        """Write a value of any size, split over keys; an empty one takes one key."""
        for number in range(chunk_count_max(len(value))):
            self.put(leaf.at(*at, number), value[number * CHUNK_BYTES : (number + 1) * CHUNK_BYTES])

    def remove(self, key: Key[Any]) -> None:
        """Clear one key."""
        data = self._prefix + key.data
        self.budget.clear(len(data))
        self._written.append(data)
        self._raw.clear(data)

    def remove_range(self, span: KeyRange) -> None:
        """Clear a range."""
        begin, end = self._prefix + span.begin, self._prefix + span.end
        self.budget.clear_range(len(begin), len(end))
        self._cleared.append(KeyRange(begin, end))
        self._raw.clear_range(begin, end)

    def ring(self, bell: Key[int]) -> None:
        """Change a bell's value, blind, so that those who watch it look."""
        data = self._prefix + bell.data
        self.budget.add(len(data))
        self._written.append(data)
        self._raw.add(data, 1)

    def put_max(self, key: Key[bytes], value: bytes) -> None:
        """Raise a value to at least `value` in byte order, blind."""
        data = self._prefix + key.data
        self.budget.set(len(data), len(value))
        self._written.append(data)
        self._raw.byte_max(data, value)

    def put_stamped(self, leaf: Leaf[R], *before: Any, record: R, order: int = 0) -> None:
        """Write an entry whose key ends with this commit's stamp."""
        key, offset = leaf.stamped(*before, order=order)
        value = leaf.codec.encode(record)
        data = self._prefix + key
        self.budget.stamped(len(data), len(value))
        self._written.append(data)
        self._raw.set_versionstamped_key(data, len(self._prefix) + offset, value)

    def put_own_stamp(self, key: Key[bytes], order: int = 0) -> None:
        """Write this commit's stamp as a value: the companion by which a record finds its stamped entries."""
        data = self._prefix + key.data
        value = bytes(COMMIT_STAMP_BYTES) + order.to_bytes(2, "big")
        self.budget.stamped(len(data), len(value))
        self._written.append(data)
        self._raw.set_versionstamped_value(data, value, 0)

    # -- the store's own

    def watch(self, key: Key[Any]) -> Watch:
        """Make a watch that becomes live when this transaction commits; it reads the key."""
        data = self._prefix + key.data
        self.budget.read(len(data))
        self.read_count += 1
        return self._raw.watch(data)

    async def read_version(self) -> int:
        """Return the version this attempt reads at."""
        return await self._raw.get_read_version()

    async def measured_bytes(self) -> int:
        """Return the store's own measure of this attempt."""
        return await self._raw.approximate_size()
