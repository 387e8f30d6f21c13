"""Two transitions on one delivery at once, in every order: one decides, the other sees that it did.

The second is stopped between its reads and its commit while the first commits; if it read what the first wrote, its commit is
refused and it decides again. Every pair is tried on an authorized attempt whose lease has just expired, on a leased one, and on
a pass.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import pytest
from world import LEASE_MS, EagerClock, World, work_of

from keyspace.lifecycle import AttemptState, StepState
from keyspace.store.api import Store, Transaction
from keyspace.store.embedded import memory_store
from keyspace.store.errors import RetryableError
from keyspace.transitions.lose_lease import Loss
from keyspace.transitions.work import Accepted, Replayed, Stale, Work

T = TypeVar("T")
Act = Callable[[World, Work], Awaitable[Any]]


class InterruptingStore:
    """Runs something else right before one commit, as another process would."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.interruption: Callable[[], Coroutine[Any, Any, None]] | None = None

    @property
    def name(self) -> str:
        return self.inner.name

    def begin(self) -> Transaction:
        made: Any = _Interrupted(self, self.inner.begin())
        transaction: Transaction = made
        return transaction

    async def backoff(self, error: RetryableError, attempt_count: int) -> None:
        await self.inner.backoff(error, attempt_count)

    async def close(self) -> None:
        await self.inner.close()


class _Interrupted:
    def __init__(self, store: InterruptingStore, inner: Any) -> None:
        self._store = store
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def commit(self) -> None:
        interruption, self._store.interruption = self._store.interruption, None
        if interruption is not None:
            # A task of its own, because another process shares nothing with this commit.
            await asyncio.ensure_future(interruption())
        await self._inner.commit()


async def race(world: World, store: InterruptingStore, first: Act, second: Act, work: Work) -> tuple[Any, Any]:
    """Let `second` read, `first` commit, and `second` commit or decide again; return what each was told."""
    told: list[Any] = []

    async def interrupt() -> None:
        told.append(await first(world, work))

    store.interruption = interrupt
    answer = await second(world, work)
    assert store.interruption is None, "the second one wrote nothing, so nothing raced"
    return told[0], answer


async def prepared() -> tuple[World, InterruptingStore]:
    clock = EagerClock()
    store = InterruptingStore(memory_store(clock=clock))
    world = World(clock=clock, store=store)
    await world.begin()
    await world.hello()
    await world.start_run()
    return world, store


async def renew(world: World, work: Work) -> bool:
    return (await world.renew((work.item_id, work.token)))[0]


ON_EXPIRED: dict[str, Act] = {
    "success": lambda world, work: world.succeed(work, b"1"),
    "failure": lambda world, work: world.fail_attempt(work),
    "exhaustion": lambda world, work: world.fail_attempt(work, retryable=False),
    "loss": lambda world, work: world.lose(work.item_id),
    "proof": lambda world, work: world.prove(work, session="session-1"),
    "hello": lambda world, _: world.hello("session-2"),
}


PAIRS = [pair for pair in itertools.product(ON_EXPIRED, repeat=2) if pair != ("hello", "hello")]


@pytest.mark.parametrize(("first", "second"), PAIRS, ids=str)
async def test_two_decide_on_an_expired_attempt(first: str, second: str) -> None:
    """RFD 2, "exactly one commits": result, loss and proof of one authorized attempt, each pair in each order."""
    world, store = await prepared()
    work = await world.start_step()
    world.clock.advance(LEASE_MS)
    told, answer = await race(world, store, ON_EXPIRED[first], ON_EXPIRED[second], work)
    await world.check()
    attempt = await world.attempt(work.run_id, "s1", 1)
    run = await world.get_run(work.run_id)
    settlers = {"success": AttemptState.SUCCEEDED, "failure": AttemptState.FAILED, "exhaustion": AttemptState.FAILED}
    if first in settlers:
        assert told == Accepted() and attempt.state is settlers[first], "the first one stands"
    if first == second and first in settlers:
        assert answer == Replayed()
    elif {first, second} == {"failure", "exhaustion"}:
        assert answer == Replayed(), "the same failure, whatever it was to lead to"
    elif first in settlers and second in settlers:
        assert answer == Stale("attempt_settled")
        assert len(await world.stale_results(work.run_id)) == 1
    elif first in settlers:
        assert answer in (Loss.NOT_LOST, False, None), "nothing is left to lose or to prove"
    elif second in settlers:
        assert answer == (Stale("lease_lost") if first == "proof" else Accepted())
    elif (first, second) == ("loss", "proof"):
        assert (told, answer, attempt.state) == (Loss.UNKNOWN, True, AttemptState.QUEUED)
    elif (first, second) == ("proof", "loss"):
        assert (told, answer, attempt.state) == (True, Loss.NOT_LOST, AttemptState.QUEUED)
    elif (first, second) == ("hello", "proof"):
        assert answer is False, "the proof's session is not the instance's any more"
    assert (run.item_id is not None) != (attempt.state is AttemptState.UNKNOWN)


ON_LEASED: dict[str, Act] = {
    "authorization": lambda world, work: world.authorize(work, session="session-1"),
    "renewal": renew,
    "return": lambda world, work: world.give_back(work),
    "missing": lambda world, work: world.not_found(work),
    "session lost": lambda world, work: world.lose(work.item_id, token=work.token, is_session_lost=True),
    "hello": lambda world, _: world.hello("session-2"),
}


@pytest.mark.parametrize(("first", "second"), list(itertools.permutations(ON_LEASED, 2)), ids=str)
async def test_two_decide_on_a_leased_attempt(first: str, second: str) -> None:
    """RFD 2, "Lease expiry before start authorization": whoever takes the lease away, an authorization behind it is void."""
    world, store = await prepared()
    await world.declare(await world.lease_pass(), "s1")
    work = work_of(await world.lease())
    told, answer = await race(world, store, ON_LEASED[first], ON_LEASED[second], work)
    await world.check()
    attempt = await world.attempt(work.run_id, "s1", 1)
    step = await world.step(work.run_id, "s1")
    if second == "authorization":
        may_start = first == "renewal"
        assert (answer == Accepted()) == may_start, answer
        assert (attempt.state is AttemptState.AUTHORIZED) == may_start
    elif first == "authorization":
        assert told == Accepted() and attempt.state is AttemptState.AUTHORIZED, "a start that was granted stands"
    elif "missing" in (first, second):
        assert step.state is StepState.OBSOLETE, "the absence counts while the token is the item's last one"
    else:
        assert attempt.state is AttemptState.QUEUED


ON_PASS: dict[str, Act] = {
    "declaration": lambda world, work: world.declare(work, "s1"),
    "other declaration": lambda world, work: world.declare(work, "s2"),
    "completion": lambda world, work: world.complete(work),
    "failure": lambda world, work: world.fail(work),
    "loss": lambda world, work: world.lose(work.item_id, is_session_lost=True),
    "return": lambda world, work: world.give_back(work),
}


@pytest.mark.parametrize(("first", "second"), list(itertools.permutations(ON_PASS, 2)), ids=str)
async def test_two_decide_on_a_pass(first: str, second: str) -> None:
    """C5: of two answers one is accepted; a loss or a return beside an answer costs at most another delivery."""
    world, store = await prepared()
    work = await world.lease_pass()
    told, answer = await race(world, store, ON_PASS[first], ON_PASS[second], work)
    await world.check()
    answers = ("declaration", "other declaration", "completion", "failure")
    if first in answers:
        assert told == Accepted()
        assert answer in (Stale("pass_settled"), Loss.NOT_LOST, False)
    elif second in answers:
        assert answer == Accepted(), "the token of the ended lease still answers"


async def test_two_claims_of_one_item() -> None:
    """S3: a claim conflicts on exactly the item it takes; the loser finds the lane empty."""
    clock = EagerClock()
    store = InterruptingStore(memory_store(clock=clock))
    other = World(clock=clock, store=store)
    await other.begin()
    await other.start_run()
    taken: list[Any] = []

    async def interrupt() -> None:
        taken.extend(await other.lease_many(1))

    store.interruption = interrupt
    assert await other.lease_many(1) == []
    assert len(taken) == 1
    await other.check()
