"""What a caller may rely on when nobody knows whether a commit happened, on every adapter.

The body is what every transition is: it looks for its own receipt first and otherwise writes the receipt with the effect.
The effect is an atomic addition, which a second execution would show.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

import pytest
from store_adapters import Adapter
from waiting import advance_while, until

from keyspace.store.api import Store, Transaction
from keyspace.store.errors import StoreError, TransactionTimedOut
from keyspace.store.fault import FaultStore, ProcessStopped
from keyspace.store.fault_plan import CommitFault, FaultPlan
from keyspace.store.meter import Meter
from keyspace.store.runner import Runner

T = TypeVar("T")

UNKNOWN = CommitFault.UNKNOWN_COMMITTED
NOT_WRITTEN = CommitFault.UNKNOWN_NOT_COMMITTED


class Account:
    """A deposit with a receipt, through a store whose commits go wrong as `plan` says."""

    def __init__(self, adapter: Adapter, store: Store, plan: FaultPlan) -> None:
        self.adapter = adapter
        self.faulty = FaultStore(store, plan, clock=adapter.clock)
        self.has_read = asyncio.Event()
        self.runner = Runner(self.faulty, clock=adapter.clock, meter=Meter())

    async def _body(self, transaction: Transaction, attempt_index: int) -> int:
        receipt, total = (self.adapter.prefix + name for name in (b"receipt", b"total"))
        answer = await transaction.get(receipt)
        self.has_read.set()
        if answer is not None:
            return int(answer)
        transaction.set(receipt, b"%d" % attempt_index)
        transaction.add(total, 1)
        transaction.set_versionstamped_key(
            self.adapter.prefix + b"list/" + b"\x00" * 10, len(self.adapter.prefix) + 5, b""
        )
        return attempt_index

    async def deposit(self) -> int:
        """Return the index of the attempt that wrote, as the receipt has it."""
        return await self.patiently(self.runner.run("deposit", self._body))

    async def patiently(self, waiting: Awaitable[T]) -> T:
        """Await with the adapter's time passing, where it is virtual."""
        return await (waiting if self.adapter.virtual is None else advance_while(self.adapter.virtual, waiting))

    async def effects(self) -> tuple[int, int]:
        """Return the total and the number of listed entries, read through another connection."""
        reader = (await self.adapter.open()).begin()
        prefix = self.adapter.prefix
        total = await reader.get(prefix + b"total")
        entries = await reader.get_range(prefix + b"list/", prefix + b"list0", limit=10)
        reader.cancel()
        return int.from_bytes(total or b"", "little"), len(entries)


@pytest.mark.case(1)
@pytest.mark.parametrize(
    ("faults", "writer_index"),
    [
        ((UNKNOWN,), 0),
        ((NOT_WRITTEN,), 1),
        ((UNKNOWN, CommitFault.NOT_COMMITTED), 0),
        ((UNKNOWN, CommitFault.TRANSACTION_TOO_OLD), 0),
        ((NOT_WRITTEN, UNKNOWN, CommitFault.NOT_COMMITTED), 1),
        ((UNKNOWN, UNKNOWN, UNKNOWN), 0),
        ((NOT_WRITTEN, NOT_WRITTEN, NOT_WRITTEN), 3),
        ((CommitFault.NOT_COMMITTED, UNKNOWN), 1),
    ],
    ids=lambda value: "-".join(fault.value for fault in value) if isinstance(value, tuple) else str(value),
)
async def test_an_unknown_commit_is_found_by_its_receipt(
    adapter: Adapter, store: Store, faults: tuple[CommitFault, ...], writer_index: int
) -> None:
    """Case 001: whatever follows an unknown commit, the answer is the first commit's and the effect happens once."""
    account = Account(adapter, store, FaultPlan().at_commit(1, *faults))
    assert await account.deposit() == writer_index
    assert await account.effects() == (1, 1)
    assert await account.deposit() == writer_index, "asked again, the same answer"
    assert await account.effects() == (1, 1)


@pytest.mark.case(1)
@pytest.mark.parametrize("fault", [CommitFault.STOP_BEFORE, CommitFault.STOP_AFTER])
async def test_a_process_that_stops_at_its_commit_is_replaced(
    adapter: Adapter, store: Store, fault: CommitFault
) -> None:
    """Case 001, the process killed after attempt 1: the next process gives the answer and adds nothing."""
    account = Account(adapter, store, FaultPlan().at_commit(1, UNKNOWN, fault))
    if fault is CommitFault.STOP_BEFORE:
        account = Account(adapter, store, FaultPlan().at_commit(1, NOT_WRITTEN, fault))
        with pytest.raises(ProcessStopped):
            await account.deposit()
        assert await account.effects() == (0, 0)
    else:
        assert await account.deposit() == 0, "the second attempt found the receipt and had nothing to commit"
    successor = Account(adapter, await adapter.open(), FaultPlan())
    assert await successor.deposit() == 0
    assert await successor.effects() == (1, 1)


async def test_a_late_commit_and_the_next_attempt_exclude_each_other(adapter: Adapter, store: Store) -> None:
    """HOUSE 17: after a time-out the commit lands behind the caller's back; the receipt turns the next try into a replay."""
    account = Account(adapter, store, FaultPlan().at_commit(1, CommitFault.TIMED_OUT_LATE))
    with pytest.raises(TransactionTimedOut):
        await account.deposit()
    assert await account.deposit() == 0
    assert await account.effects() == (1, 1)
    assert [entry.fault for entry in account.faulty.trace] == ["timed_out_late", "landed"]


async def test_a_commit_whose_caller_was_cancelled_is_whole_or_absent(adapter: Adapter, store: Store) -> None:
    """HOUSE 8: a cancelled commit may land; a retry under the same receipt leaves exactly one effect either way."""
    account = Account(adapter, store, FaultPlan())
    task = asyncio.create_task(account.deposit())
    await account.has_read.wait()
    await until(lambda: account.faulty.commit_count > 0)
    task.cancel()
    outcome = (await asyncio.gather(task, return_exceptions=True))[0]
    assert outcome == 0 or isinstance(outcome, asyncio.CancelledError)
    await account.runner.aclose()
    assert await account.deposit() == 0
    assert await account.effects() == (1, 1)


async def test_a_stamp_is_not_told_when_the_commit_is_unknown(adapter: Adapter, store: Store) -> None:
    """HOUSE 17: success is never inferred from a stamp, so an unknown commit must not hand one out."""
    faulty = FaultStore(store, FaultPlan().at_commit(1, UNKNOWN), clock=adapter.clock)
    transaction = faulty.begin()
    transaction.set(adapter.prefix + b"k", b"v")
    stamp = transaction.get_versionstamp()
    with pytest.raises(StoreError):
        await transaction.commit()
    with pytest.raises(StoreError):
        await stamp
