"""The retry loop: what is retried, what is not, and that its bounds hold."""

from __future__ import annotations

import asyncio
import gc

import pytest
from scripted_store import ScriptedStore, Step
from waiting import until

from keyspace.clock import VirtualClock
from keyspace.store.api import Transaction
from keyspace.store.errors import (
    LimitError,
    NotCommitted,
    OutcomeUnknownError,
    RetryableError,
    StoreError,
    TransactionTimedOut,
    TransactionTooOld,
    UsageError,
    error_for_code,
)
from keyspace.store.meter import Meter
from keyspace.store.runner import RetriesExhausted, RetryPolicy, Runner, current_run

RETRIED = {1007: False, 1009: False, 1020: False, 1021: True, 1037: False, 1039: True, 1051: False, 1213: False}
"""Code, and whether the attempt may have committed."""
UNKNOWN = (1031, 1101)
NEVER_CURED = (1025, 1032, 1036, 1515, 2004, 2005, 2017, 2101, 2102, 2103, 4000, 4100)


def make_runner(*script: Step, policy: RetryPolicy | None = None) -> tuple[Runner, ScriptedStore, VirtualClock]:
    clock = VirtualClock()
    store = ScriptedStore(*script, clock=clock, pause_ms=100.0)
    return Runner(store.as_store(), clock=clock, meter=Meter(), policy=policy or RetryPolicy()), store, clock


async def answer(_: Transaction, attempt_index: int) -> int:
    return attempt_index


async def test_the_answer_of_the_attempt_that_committed_is_returned() -> None:
    """Would catch a runner that answers from an attempt that was refused."""
    runner, store, _ = make_runner(NotCommitted(), TransactionTooOld())
    assert await runner.run("name", answer) == 2
    assert [transaction.is_committed for transaction in store.begun] == [False, False, True]
    assert store.pauses == [(1020, 1), (1007, 2)]


@pytest.mark.parametrize("code", RETRIED)
@pytest.mark.parametrize("is_read", [True, False], ids=["read", "commit"])
async def test_every_retryable_code_is_retried(code: int, is_read: bool) -> None:
    """HOUSE 7: a test drives each mapped FoundationDB code through the runner."""
    error = error_for_code(code)
    assert isinstance(error, RetryableError)
    assert error.maybe_committed is RETRIED[code]
    runner, store, _ = make_runner(None if is_read else error)

    async def body(_: Transaction, attempt_index: int) -> int:
        if is_read and attempt_index == 0:
            raise error
        return attempt_index

    assert await runner.run("name", body) == 1
    assert store.pauses == [(code, 1)]
    assert store.begun[0].is_cancelled is is_read
    figures = runner.meter.snapshot()["name"]
    assert figures.retries_by_code == {code: 1}
    assert figures.unknown_count == RETRIED[code]
    assert figures.conflict_count == (code == 1020)


@pytest.mark.parametrize("code", NEVER_CURED)
@pytest.mark.parametrize("is_read", [True, False], ids=["read", "commit"])
async def test_what_no_attempt_can_cure_is_not_retried(code: int, is_read: bool) -> None:
    """HOUSE 7: a limit, a usage error, an unmapped code end the run at once, as they are."""
    error = error_for_code(code)
    runner, store, _ = make_runner(None if is_read else error)

    async def body(_: Transaction, __: int) -> None:
        if is_read:
            raise error

    with pytest.raises(StoreError) as caught:
        await runner.run("name", body)
    assert caught.value is error
    assert len(store.begun) == 1
    assert runner.meter.snapshot()["name"].failure_count == 1


@pytest.mark.parametrize("code", UNKNOWN)
async def test_an_unknown_outcome_is_not_retried(code: int) -> None:
    """HOUSE 17: a commit that timed out may still land, so running again blindly could apply it twice."""
    runner, store, _ = make_runner(error_for_code(code))
    with pytest.raises(OutcomeUnknownError) as caught:
        await runner.run("name", answer)
    assert caught.value.code == code
    assert len(store.begun) == 1
    assert runner.meter.snapshot()["name"].unknown_count == 1


def test_every_mapped_code_is_driven_above() -> None:
    """Would catch a code that is added to the table of errors and forgotten here."""
    families = (RetryableError, OutcomeUnknownError, LimitError, UsageError)
    mapped = {code for code in range(1000, 4500) if isinstance(error_for_code(code), families)}
    assert mapped <= {*RETRIED, *UNKNOWN, *NEVER_CURED}


async def test_an_exception_of_the_body_cancels_the_attempt_and_propagates() -> None:
    """Would catch an attempt that is committed although its body failed."""
    runner, store, _ = make_runner()

    async def body(_: Transaction, __: int) -> None:
        raise LookupError("no such run")

    with pytest.raises(LookupError, match="no such run"):
        await runner.run("name", body)
    assert store.begun[0].is_cancelled
    assert not store.begun[0].is_committed


async def test_attempts_are_bounded() -> None:
    """Would catch a loop that never ends on a key that always conflicts."""
    runner, store, _ = make_runner(*[NotCommitted() for _ in range(9)], policy=RetryPolicy(attempts_max=3))
    with pytest.raises(RetriesExhausted) as caught:
        await runner.run("hot", answer)
    assert (caught.value.name, caught.value.attempts, caught.value.maybe_committed) == ("hot", 3, False)
    assert isinstance(caught.value.last, NotCommitted)
    assert "nothing was written name=hot attempts=3 last=NotCommitted code=1020" in str(caught.value)
    assert len(store.begun) == 3
    assert [count for _, count in store.pauses] == [1, 2], "no pause after the last attempt"
    assert runner.meter.snapshot()["hot"].exhausted_count == 1


async def test_elapsed_time_is_bounded() -> None:
    """Would catch retries that go on long after the caller has given up; time is the injected clock's."""
    runner, store, clock = make_runner(*[NotCommitted() for _ in range(99)], policy=RetryPolicy(elapsed_ms_max=450.0))
    with pytest.raises(RetriesExhausted):
        await runner.run("name", answer)
    assert len(store.begun) == 5, "attempts began at 0, 100, 200, 300 and 400 ms"
    assert clock.monotonic_ms() == 500.0


async def test_exhaustion_says_that_an_attempt_may_have_committed() -> None:
    """Would catch an unknown result that is forgotten when another error follows it (case 001's kind)."""
    script = [error_for_code(1021), NotCommitted()]
    runner, _, _ = make_runner(*script, policy=RetryPolicy(attempts_max=2))
    with pytest.raises(RetriesExhausted, match="may have committed") as caught:
        await runner.run("name", answer)
    assert caught.value.maybe_committed


async def test_a_cancellation_during_the_commit_leaves_it_to_land() -> None:
    """HOUSE 8: the caller sees its cancellation, the commit goes on, and the runner waits for it at the end."""
    release = asyncio.Event()
    runner, store, _ = make_runner(release.wait())  # type: ignore[arg-type]
    task = asyncio.create_task(runner.run("name", answer))
    await until(lambda: bool(store.begun))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not store.begun[0].is_committed
    assert not store.begun[0].is_cancelled
    release.set()
    await runner.aclose()
    assert store.begun[0].is_committed
    assert runner.meter.snapshot()["name"].unknown_count == 1


async def test_a_cancelled_commit_that_fails_later_is_nobodys_error() -> None:
    """Would catch an event loop that complains about an exception nobody could have taken."""
    release = asyncio.Event()

    async def refuse() -> None:
        await release.wait()
        raise NotCommitted

    complaints: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    runner, store, _ = make_runner(refuse())
    task = asyncio.create_task(runner.run("name", answer))
    await until(lambda: bool(store.begun))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    release.set()
    await runner.aclose()
    gc.collect()
    assert complaints == []


async def test_a_cancellation_in_the_body_cancels_the_attempt() -> None:
    """Would catch a cancelled body whose transaction is committed or left open."""
    runner, store, _ = make_runner()
    started = asyncio.Event()

    async def body(_: Transaction, __: int) -> None:
        started.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(runner.run("name", body))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert store.begun[0].is_cancelled
    assert runner.meter.snapshot()["name"].unknown_count == 0


async def test_a_commit_that_hangs_is_an_unknown_outcome() -> None:
    """HOUSE 8: the commit's own deadline ends the wait but not the commit."""
    release = asyncio.Event()
    runner, store, _ = make_runner(release.wait(), policy=RetryPolicy(commit_ms_max=20.0))  # type: ignore[arg-type]
    with pytest.raises(TransactionTimedOut, match="may still land limit_ms=20"):
        await asyncio.wait_for(runner.run("name", answer), 10.0)
    assert not store.begun[0].is_committed
    release.set()
    await runner.aclose()
    assert store.begun[0].is_committed


async def test_every_commit_that_hangs_is_told_in_its_own_time() -> None:
    """HOUSE 8: one timer serves all commits; would catch one that is not set again for those that began later."""
    release = asyncio.Event()
    steps = [release.wait() for _ in range(3)]
    runner, store, _ = make_runner(*steps, policy=RetryPolicy(commit_ms_max=20.0))  # type: ignore[arg-type]
    first = asyncio.create_task(runner.run("name", answer))
    await until(lambda: len(store.begun) == 1)
    second = asyncio.create_task(runner.run("name", answer))
    ended = await asyncio.wait_for(asyncio.gather(first, second, return_exceptions=True), 10.0)
    assert [type(error) for error in ended] == [TransactionTimedOut, TransactionTimedOut]
    with pytest.raises(TransactionTimedOut):
        await asyncio.wait_for(runner.run("name", answer), 10.0)
    release.set()
    await runner.aclose()
    assert all(transaction.is_committed for transaction in store.begun)


async def test_a_commit_may_wait_for_several_things() -> None:
    """Would catch a commit that is run only up to its first wait, or that loses what it waited for."""
    answers: list[int] = []

    async def waits() -> None:
        await asyncio.sleep(0)
        for number in range(3):
            answered = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_soon(answered.set_result, number)
            answers.append(await answered)

    runner, store, _ = make_runner(waits())
    assert await runner.run("name", answer) == 0
    assert answers == [0, 1, 2]
    assert store.begun[0].is_committed


@pytest.mark.parametrize("passed", [0, 1, 2])
async def test_a_commit_cancelled_at_any_of_its_waits_lands(passed: int) -> None:
    """HOUSE 8: would catch a cancellation that reaches what the commit waits for, or a commit left where it stood."""
    doors = [asyncio.Event() for _ in range(3)]
    reached: list[int] = []

    async def waits() -> None:
        for number, door in enumerate(doors):
            reached.append(number)
            await door.wait()
            await asyncio.sleep(0)

    runner, store, _ = make_runner(waits())
    task = asyncio.create_task(runner.run("name", answer))
    for door in doors[:passed]:
        door.set()
    await until(lambda: len(reached) == passed + 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not store.begun[0].is_committed
    for door in doors:
        door.set()
    await runner.aclose()
    assert store.begun[0].is_committed
    assert runner.meter.snapshot()["name"].unknown_count == 1


async def test_virtual_time_does_not_end_a_commit() -> None:
    """Would catch a jump of a test's clock that is taken for a disk that hangs."""
    release = asyncio.Event()
    runner, store, clock = make_runner(release.wait())  # type: ignore[arg-type]
    task = asyncio.create_task(runner.run("name", answer))
    await until(lambda: bool(store.begun))
    clock.advance(3_600_000.0)
    assert clock.next_wake_ms() is None
    release.set()
    assert await task == 0


async def test_body_and_commit_know_which_run_they_belong_to() -> None:
    """Would catch an adapter that is told another transition's name, also when runs nest."""
    seen: list[tuple[str, int]] = []

    async def look() -> None:
        run = current_run()
        assert run is not None
        seen.append((run.name, run.attempt_index))

    runner, _, _ = make_runner(look(), NotCommitted(), None)

    async def inner(_: Transaction, __: int) -> None:
        await look()

    async def outer(_: Transaction, attempt_index: int) -> None:
        await look()
        if attempt_index == 0:
            await runner.run("inner", inner)
            await look()

    await runner.run("outer", outer)
    assert current_run() is None
    assert seen[:2] == [("outer", 0), ("inner", 0)]
    assert ("inner", 1) in seen
    assert seen[-1] == ("outer", 0)


@pytest.mark.parametrize("bounds", [{"attempts_max": 0}, {"elapsed_ms_max": 0.0}, {"commit_ms_max": -1.0}])
def test_a_policy_that_permits_nothing_is_refused(bounds: dict[str, float]) -> None:
    """Would catch a configuration under which no transition can ever commit."""
    with pytest.raises(ValueError, match="must be positive"):
        RetryPolicy(**bounds)  # type: ignore[arg-type]
