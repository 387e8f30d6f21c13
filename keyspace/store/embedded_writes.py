"""What a transaction has written so far, and how reads and the commit see it.

A key's own state is one of three: an independent value (set, or an atomic operation over a known value), an independent
absence (cleared), or a stack of operations whose result is not known before the commit. The last is *dependent* when it
needs the stored value and *unreadable* when it needs the commit's stamp. Cleared ranges lie below the keys' own states.

At commit the state is flattened as FoundationDB's client does: first what a stamped key pushed out, then the clears, then
each key's operations. Source: apple/foundationdb release-7.3 fdbclient/WriteMap.cpp, fdbclient/ReadYourWrites.actor.cpp.
"""

from __future__ import annotations

from bisect import bisect_left
from enum import IntEnum
from typing import NamedTuple, cast

from keyspace.store.api import KeyRange
from keyspace.store.embedded_ranges import RangeSet, key_after
from keyspace.store.errors import AccessedUnreadable
from keyspace.store.stamps import STAMP_LAST, pack_stamp, place_stamp

__all__ = ["Flattened", "Mutation", "Op", "OwnWrites", "Pending", "apply_atomic"]


class Op(IntEnum):
    """What a mutation does at commit."""

    SET = 0
    CLEAR_RANGE = 1
    ADD = 2
    BYTE_MAX = 3
    STAMPED_KEY = 4
    STAMPED_VALUE = 5
    CLEAR = 6


class Mutation(NamedTuple):
    """One operation for the commit to apply.

    `key` and `value` are the pair, or the range's two ends, or key and operand; `offset` places a stamp.
    """

    op: Op
    key: bytes
    value: bytes
    offset: int = 0


class Flattened(NamedTuple):
    """What a commit has to apply."""

    outcomes: list[tuple[bytes, bytes | None]]
    """Keys that this transaction alone decides, in order, each with its value, or None where it goes."""
    mutations: list[Mutation]
    """Everything else, to be applied in this order."""


class Pending:
    """Operations on one key whose outcome is not known yet, in the order they were made."""

    __slots__ = ("is_unreadable", "mutations")

    def __init__(self, *mutations: Mutation, is_unreadable: bool = False) -> None:
        self.mutations = list(mutations)
        self.is_unreadable = is_unreadable

    def resolve(self, stored: bytes | None) -> bytes | None:
        """Return the key's value over the `stored` one; the stack must be readable."""
        assert not self.is_unreadable, "a stamped value has no outcome before the commit"
        for mutation in self.mutations:
            stored = mutation.value if mutation.op is Op.SET else apply_atomic(mutation.op, stored, mutation.value)
        return stored


def apply_atomic(op: Op, stored: bytes | None, operand: bytes) -> bytes:
    """Return what an atomic operation leaves: `ADD` in the operand's width, little-endian, wrapping; `BYTE_MAX`.

    Source: apple/foundationdb release-7.3 fdbclient/include/fdbclient/Atomic.h.
    """
    if op is Op.ADD:
        if not stored:
            return operand
        width = len(operand)
        total = int.from_bytes(stored[:width], "little") + int.from_bytes(operand, "little")
        return (total % (1 << (8 * width))).to_bytes(width, "little")
    assert op is Op.BYTE_MAX, op
    return operand if stored is None or stored <= operand else stored


_NO_RANGES = RangeSet()
"""Stands in every new transaction until its first range, and is never added to: most have none."""


class OwnWrites:
    """One transaction's writes. Keys and values are checked before they get here."""

    __slots__ = (
        "_cleared",
        "_has_cleared",
        "_has_pending",
        "_has_stamped",
        "_ordered",
        "_pushed_out",
        "_states",
        "_unreadable",
        "is_empty",
    )

    def __init__(self) -> None:
        self.is_empty = True
        """Whether nothing has been written, in any way."""
        self._states: dict[bytes, bytes | Pending | None] = {}
        # The keys of `_states` in order, made when first asked for: many transactions write all they write before that.
        self._ordered: list[bytes] | None = None
        self._cleared = _NO_RANGES
        self._unreadable = _NO_RANGES
        self._pushed_out: list[Mutation] = []
        # Most transactions stamp nothing, clear no range and add nothing; three flags keep the common path short.
        self._has_stamped = False
        self._has_cleared = False
        self._has_pending = False

    def set(self, key: bytes, value: bytes) -> None:
        """Write a pair."""
        if self._has_stamped:
            state = self._states.get(key)
            if self._is_key_unreadable(key, state):
                self._push(key, state, Mutation(Op.SET, key, value))
                return
        # `_place`, without its call: nearly every write ends here.
        self.is_empty = False
        self._ordered = None
        self._states[key] = value

    def clear(self, key: bytes) -> None:
        """Remove a key; it becomes readable again, as in FoundationDB."""
        if self._has_stamped:
            self._unreadable.subtract(key, key_after(key))
        self._place(key, None)

    def clear_range(self, begin: bytes, end: bytes) -> None:
        """Remove [begin, end), the transaction's own writes in it included."""
        self._drop_keys(begin, end)
        self._unreadable.subtract(begin, end)
        if self._cleared is _NO_RANGES:
            self._cleared = RangeSet()
        self._cleared.add(begin, end)
        self._has_cleared = True
        self.is_empty = False

    def atomic(self, op: Op, key: bytes, operand: bytes) -> None:
        """Apply `ADD` or `BYTE_MAX` to a key."""
        state = self._states.get(key)
        is_own = key in self._states
        if isinstance(state, Pending) or self._is_key_unreadable(key, state):
            self._push(key, state, Mutation(op, key, operand))
        elif is_own or self._cleared.contains(key):
            self._place(key, apply_atomic(op, state, operand))
        else:
            self._place(key, Pending(Mutation(op, key, operand)))

    def stamp_value(self, key: bytes, value: bytes, offset: int) -> None:
        """Write a pair whose value receives the stamp; the key becomes unreadable."""
        mutation = Mutation(Op.STAMPED_VALUE, key, value, offset)
        state = self._states.get(key)
        if self._is_key_unreadable(key, state):
            self._push(key, state, mutation)
        else:
            self._place(key, Pending(mutation, is_unreadable=True))
        self._has_stamped = True

    def stamp_key(self, template: bytes, offset: int, value: bytes, read_version: int) -> KeyRange:
        """Write a pair whose key receives the stamp, and return the range in which the key may come to lie.

        The range becomes unreadable. It begins at the least stamp a commit can have: that of `read_version`, or 0.
        """
        least = place_stamp(template, offset, pack_stamp(read_version, 0))
        reach = KeyRange(least, key_after(place_stamp(template, offset, STAMP_LAST)))
        self._push_out(reach)
        if self._unreadable is _NO_RANGES:
            self._unreadable = RangeSet()
        self._unreadable.add(*reach)
        self._has_stamped = True
        self._place(least, Pending(Mutation(Op.STAMPED_KEY, template, value, offset), is_unreadable=True))
        return reach

    def state(self, key: bytes) -> tuple[bool, bytes | Pending | None]:
        """Return whether this transaction decides the key's value, and the state."""
        state = self._states.get(key)
        if state is not None or key in self._states:
            return True, state
        return self._has_cleared and self._cleared.contains(key), None

    def is_unreadable(self, key: bytes) -> bool:
        """Return whether reading `key` would need the commit's stamp."""
        return self._has_stamped and self._is_key_unreadable(key, self._states.get(key))

    def is_range_unreadable(self, begin: bytes, end: bytes) -> bool:
        """Return whether reading [begin, end) would need the commit's stamp."""
        if not self._has_stamped:
            return False
        if self._unreadable.overlaps(begin, end):
            return True
        states = (self._states[key] for key in self.keys_in(begin, end))
        return any(isinstance(state, Pending) and state.is_unreadable for state in states)

    def keys_in(self, begin: bytes, end: bytes) -> list[bytes]:
        """Return the keys of [begin, end) that have a state of their own, in order."""
        ordered = self._in_order()
        return ordered[bisect_left(ordered, begin) : bisect_left(ordered, end)]

    def uncleared_in(self, begin: bytes, end: bytes) -> list[KeyRange]:
        """Return the parts of [begin, end) that are not in a cleared range, in order."""
        parts: list[KeyRange] = []
        for cleared in self._cleared.intersect(begin, end):
            if begin < cleared.begin:
                parts.append(KeyRange(begin, cleared.begin))
            begin = cleared.end
        if begin < end:
            parts.append(KeyRange(begin, end))
        return parts

    def value_over(self, key: bytes, stored: bytes | None) -> bytes | None:
        """Return what this transaction makes of a key that has a state of its own.

        Raises:
            AccessedUnreadable: that needs the commit's stamp.
        """
        state = self._states[key]
        if self._is_key_unreadable(key, state):
            raise AccessedUnreadable()
        return state.resolve(stored) if isinstance(state, Pending) else state

    def foreign_parts(self, begin: bytes, end: bytes) -> list[KeyRange]:
        """Return the parts of [begin, end) whose value depends on what is stored: what a read conflicts with."""
        parts: list[KeyRange] = []
        for part in self.uncleared_in(begin, end):
            at = part.begin
            for key in self.keys_in(*part):
                if at < key:
                    parts.append(KeyRange(at, key))
                at = key_after(key)
                state = self._states[key]
                if isinstance(state, Pending) and not state.is_unreadable:
                    parts.append(KeyRange(key, at))
            if at < part.end:
                parts.append(KeyRange(at, part.end))
        return parts

    def flattened(self) -> Flattened:
        """Return what the commit has to apply."""
        if self._has_stamped or self._has_cleared:
            # A range or a stamped key may meet other keys, so the order of all of them matters.
            return Flattened([], self._mutations())
        if not self._has_pending:
            # Sorted by key alone, since no two are the same; the cast says what the flag does.
            return Flattened(cast("list[tuple[bytes, bytes | None]]", sorted(self._states.items())), [])
        outcomes: list[tuple[bytes, bytes | None]] = []
        mutations: list[Mutation] = []
        for key in self._in_order():
            state = self._states[key]
            if isinstance(state, Pending):
                mutations.extend(state.mutations)
            else:
                outcomes.append((key, state))
        return Flattened(outcomes, mutations)

    def _mutations(self) -> list[Mutation]:
        flat = list(self._pushed_out)
        if self._has_cleared:
            flat.extend(Mutation(Op.CLEAR_RANGE, begin, end) for begin, end in self._cleared.intersect(b"", b"\xff"))
        for key in self._in_order():
            flat.extend(_mutations_of(key, self._states[key]))
        return flat

    def _in_order(self) -> list[bytes]:
        if self._ordered is None:
            self._ordered = sorted(self._states)
        return self._ordered

    def _is_key_unreadable(self, key: bytes, state: bytes | Pending | None) -> bool:
        if isinstance(state, Pending) and state.is_unreadable:
            return True
        return self._unreadable.contains(key)

    def _place(self, key: bytes, state: bytes | Pending | None) -> None:
        self.is_empty = False
        self._ordered = None
        self._has_pending = self._has_pending or isinstance(state, Pending)
        self._states[key] = state

    def _push(self, key: bytes, state: bytes | Pending | None, mutation: Mutation) -> None:
        """Put an operation on top of a state that must not be replaced."""
        if not isinstance(state, Pending):
            below = _mutations_of(key, state) if key in self._states else []
            state = Pending(*below, is_unreadable=self._is_key_unreadable(key, state))
            self._place(key, state)
        state.mutations.append(mutation)

    def _drop_keys(self, begin: bytes, end: bytes) -> list[Mutation]:
        dropped: list[Mutation] = []
        for key in self.keys_in(begin, end):
            dropped.extend(_mutations_of(key, self._states.pop(key)))
        self._ordered = None
        return dropped

    def _push_out(self, reach: KeyRange) -> None:
        """Move what was written in `reach` before the stamp was asked for to the front of the commit."""
        for begin, end in self._cleared.intersect(*reach):
            self._pushed_out.append(Mutation(Op.CLEAR_RANGE, begin, end))
        self._cleared.subtract(*reach)
        self._pushed_out.extend(self._drop_keys(*reach))


def _mutations_of(key: bytes, state: bytes | Pending | None) -> list[Mutation]:
    if isinstance(state, Pending):
        return state.mutations
    if state is None:
        return [Mutation(Op.CLEAR, key, b"")]
    return [Mutation(Op.SET, key, state)]
