"""Byte and conflict-range accounting: what a transaction will weigh, counted before it is added (ARCHITECTURE 5).

The formulas are FoundationDB's own, as its client sums them for the transaction size limit; k and v are the lengths of key
and value as they travel, tuple escaping and the physical prefix included. They are an upper bound of what the store
measures, because the store merges what overlaps and this does not.

Source: apple/foundationdb fdbclient/ReadYourWrites.cpp and fdbclient/include/fdbclient/CommitTransaction.h, and
get_approximate_size on a 7.3 server.
"""

from __future__ import annotations

from keyspace.errors import BudgetExceeded, Refusal
from keyspace.limits import (
    ALLOWANCE_BYTES_DEFAULT,
    ALLOWANCE_BYTES_MAX,
    ALLOWANCE_FIXED_BYTES,
    ALLOWANCE_PAYLOADS_MIN,
    PAYLOAD_BYTES_DEFAULT,
)

__all__ = ["Budget", "charge_add", "charge_clear", "charge_read", "charge_set", "check_allowance"]


def charge_set(key_bytes: int, value_bytes: int) -> int:
    """Return the charge of a set: the pair, the key again twice as its write conflict range, and the structures."""
    return 3 * key_bytes + value_bytes + 69


def charge_read(key_bytes: int) -> int:
    """Return the charge of a point read that conflicts: its read conflict range."""
    return 2 * key_bytes + 25


def charge_clear(key_bytes: int) -> int:
    """Return the charge of the clear of one key."""
    return 4 * key_bytes + 50


def charge_add(key_bytes: int) -> int:
    """Return the charge of an atomic addition of 8 bytes."""
    return 3 * key_bytes + 8 + 69


def check_allowance(allowance_bytes: int, payload_bytes_max: int = PAYLOAD_BYTES_DEFAULT) -> None:
    """Refuse an allowance that no cluster takes or that cannot carry the largest payload.

    Raises:
        Refusal: `allowance_bytes` is above 8,000,000 or below four payloads plus 65,536 bytes.
    """
    floor = ALLOWANCE_PAYLOADS_MIN * payload_bytes_max + ALLOWANCE_FIXED_BYTES
    if not floor <= allowance_bytes <= ALLOWANCE_BYTES_MAX:
        raise Refusal(
            "bad_allowance",
            "The transaction allowance does not fit the payload limit and the store.",
            allowance_bytes=allowance_bytes,
            minimum=floor,
            maximum=ALLOWANCE_BYTES_MAX,
        )


class Budget:
    """One attempt's account. Every charge is made before the operation it pays for."""

    __slots__ = ("_spent_bytes", "allowance_bytes")

    def __init__(self, allowance_bytes: int = ALLOWANCE_BYTES_DEFAULT) -> None:
        """Open an account of `allowance_bytes`."""
        self.allowance_bytes = allowance_bytes
        self._spent_bytes = 0

    @property
    def spent_bytes(self) -> int:
        """What has been charged so far."""
        return self._spent_bytes

    @property
    def left_bytes(self) -> int:
        """What may still be charged."""
        return self.allowance_bytes - self._spent_bytes

    def _charge(self, what: str, charge_bytes: int) -> None:
        spent_bytes = self._spent_bytes + charge_bytes
        if spent_bytes > self.allowance_bytes:
            raise self._refusal(what, charge_bytes)
        self._spent_bytes = spent_bytes

    def _refusal(self, what: str, charge_bytes: int) -> BudgetExceeded:
        return BudgetExceeded(
            operation=what,
            charge_bytes=charge_bytes,
            spent_bytes=self._spent_bytes,
            allowance_bytes=self.allowance_bytes,
        )

    def set(self, key_bytes: int, value_bytes: int) -> None:
        """Charge a set."""
        # `_charge` written out, here and in `read`: nearly every operation is one of the two.
        spent_bytes = self._spent_bytes + charge_set(key_bytes, value_bytes)
        if spent_bytes > self.allowance_bytes:
            raise self._refusal("set", charge_set(key_bytes, value_bytes))
        self._spent_bytes = spent_bytes

    def clear(self, key_bytes: int) -> None:
        """Charge the clear of one key."""
        self._charge("clear", charge_clear(key_bytes))

    def clear_range(self, begin_bytes: int, end_bytes: int) -> None:
        """Charge the clear of a range, however much it holds."""
        self._charge("clear_range", 2 * (begin_bytes + end_bytes) + 68)

    def add(self, key_bytes: int) -> None:
        """Charge an atomic addition of 8 bytes."""
        self._charge("add", charge_add(key_bytes))

    def stamped(self, key_bytes: int, value_bytes: int) -> None:
        """Charge a versionstamped write; the 4-byte offset is added here, to the key or the value.

        FoundationDB's proxy adds the conflict range of a stamped key later; a stamped value pays for its own at once, so
        the dearer form is charged for both.
        """
        self._charge("stamped", charge_set(key_bytes, value_bytes) + 4)

    def read(self, key_bytes: int) -> None:
        """Charge a point read that conflicts, or an added read conflict key."""
        spent_bytes = self._spent_bytes + charge_read(key_bytes)
        if spent_bytes > self.allowance_bytes:
            raise self._refusal("read", charge_read(key_bytes))
        self._spent_bytes = spent_bytes

    def range_read(self, begin_bytes: int, end_bytes: int, parts: int = 1) -> None:
        """Charge a range read that conflicts, `parts` times: the client charges each piece between own writes as the whole.

        A read that ends early conflicts up to a key of the range instead of its end.
        """
        self._charge("range_read", parts * (begin_bytes + end_bytes + 24))
