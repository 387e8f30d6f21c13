"""Affinity, alarms, bells and deferral: the small parts that claimers share."""

from __future__ import annotations

import asyncio

import anyio
import pytest
from waiting import until

from keyspace.clock import VirtualClock
from keyspace.errors import CorruptRecord, IllegalEdge, KeyspaceError
from keyspace.limits import SHARDS
from keyspace.store.errors import (
    KeyTooLarge,
    NotCommitted,
    OutcomeUnknownError,
    StoreError,
    StoreUnavailableError,
    TransactionCancelled,
)
from services.lanes.affinity import owned_shards
from services.lanes.alarm import Alarm, Bell
from services.lanes.deferral import FAILURES_MAX, Failures, is_passing

PEERS = [f"{number:032x}" for number in range(5)]


def test_every_shard_has_exactly_one_owner_among_its_live_peers() -> None:
    """ARCHITECTURE 4: affinity is agreed upon without a word; two owners would work against each other."""
    shares = [owned_shards(peer, PEERS, range(SHARDS)) for peer in PEERS]
    assert sorted(shard for share in shares for shard in share) == list(range(SHARDS))


def test_a_process_alone_owns_everything_listed_or_not() -> None:
    """A process whose own sign of life is late still works."""
    assert owned_shards("a", [], range(SHARDS)) == frozenset(range(SHARDS))
    assert owned_shards("a", ["a"], range(SHARDS)) == frozenset(range(SHARDS))


def test_when_a_process_leaves_only_its_shards_move() -> None:
    """Rendezvous hashing: the others keep what they had, so a death costs no full scans elsewhere."""
    for gone in PEERS:
        left = [peer for peer in PEERS if peer != gone]
        for peer in left:
            assert owned_shards(peer, PEERS, range(SHARDS)) <= owned_shards(peer, left, range(SHARDS))


async def test_an_alarm_keeps_a_ring_that_came_while_nobody_waited() -> None:
    """A ring between a look and the wait after it would otherwise be lost until the next bucket."""
    alarm = Alarm(VirtualClock())
    alarm.ring()
    with anyio.fail_after(1):
        await alarm.wait(None)


async def test_an_alarm_waits_on_the_injected_clock() -> None:
    """Time is injected: no alarm fires before a test moves the clock."""
    clock = VirtualClock()
    alarm = Alarm(clock)
    task = asyncio.ensure_future(alarm.wait(500))
    await until(lambda: clock.next_wake_ms() == 500)
    clock.advance(499)
    await asyncio.sleep(0)
    assert not task.done()
    clock.advance(1)
    await until(task.done)
    await alarm.wait(0)


class ScriptedWatch:
    def __init__(self) -> None:
        self._future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_cancelled = False

    async def wait(self) -> None:
        await self._future

    def cancel(self) -> None:
        self.is_cancelled = True
        self.end(TransactionCancelled("given up"))

    def end(self, error: StoreError | None = None) -> None:
        if not self._future.done():
            if error is None:
                self._future.set_result(None)
            else:
                self._future.set_exception(error)


@pytest.mark.parametrize("error", [None, StoreUnavailableError("lost")])
async def test_a_bell_that_rings_or_is_lost_makes_its_claimer_look(error: StoreError | None) -> None:
    """A lost watch that counted as silence would leave work to the slow rescan."""
    alarm = Alarm(VirtualClock())
    bell = Bell(alarm)
    assert bell.has_rung, "nothing was looked at yet"
    watch = ScriptedWatch()
    async with anyio.create_task_group() as group:
        bell.arm(group, watch)
        assert bell.is_armed
        assert not bell.has_rung
        watch.end(error)
        with anyio.fail_after(1):
            await alarm.wait(None)
    assert bell.has_rung
    assert not bell.is_armed


async def test_a_bell_that_was_given_up_stays_silent() -> None:
    """Disarming is no ring: it would make a draining claimer scan again."""
    alarm = Alarm(VirtualClock())
    bell = Bell(alarm)
    first, second = ScriptedWatch(), ScriptedWatch()
    async with anyio.create_task_group() as group:
        bell.arm(group, first)
        bell.arm(group, second)
        assert first.is_cancelled
        await asyncio.sleep(0)
        assert not bell.has_rung
        bell.disarm()
    assert second.is_cancelled
    assert not bell.has_rung


def test_delays_of_what_fails_grow_to_a_cap_and_a_success_forgets_them() -> None:
    """Case 008: a failing entry is deferred, later each time."""
    failures = Failures()
    assert [failures.failed("a") / 1_000 for _ in range(11)] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]
    assert failures.failed("b") == 1_000
    failures.succeeded("a")
    assert failures.failed("a") == 1_000


def test_failures_are_bounded() -> None:
    """Every buffer has a bound: the oldest failures are forgotten first."""
    failures = Failures()
    for number in range(FAILURES_MAX + 10):
        failures.failed(str(number))
    assert len(failures) == FAILURES_MAX
    assert failures.failed("0") == 1_000


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (NotCommitted(), True),
        (OutcomeUnknownError(), True),
        (StoreUnavailableError("down"), True),
        (KeyTooLarge(), False),
        (KeyspaceError("not_serving", "The clock is off."), True),
        (CorruptRecord(record="ItemRecord"), False),
        (IllegalEdge("run", "terminal", "progressed"), False),
        (AssertionError("a defect"), False),
    ],
)
def test_trouble_of_the_store_is_told_from_trouble_of_an_item(error: Exception, passes: bool) -> None:
    """Deferring every item because the store is down for a second would delay all of them for minutes."""
    assert is_passing(error) is passes
