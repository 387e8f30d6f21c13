"""User code that does not give control back costs a test its deadline, not the whole run of the suite."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from ryusen import App, Context, Retry

import services.testing.engine as engine_module
from services.testing import NeverSettles, UserCodeHangs, WorkflowTest, WorkflowTestError
from services.testing.loop import EngineLoop

DEADLINE = "200ms"


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def test_bed(gate: threading.Event) -> Iterator[WorkflowTest]:
    test = WorkflowTest(deadline=DEADLINE)
    yield test
    gate.set()
    test.close()


def app_of(body: Callable[[Context], Any]) -> App:
    app = App("shop")

    @app.function(on="placed")
    async def fulfil(ctx: Context) -> None:
        await body(ctx)

    return app


async def never() -> None:
    await asyncio.Event().wait()


def hanging(test: WorkflowTest) -> str:
    begun_s = time.monotonic()
    with pytest.raises(UserCodeHangs) as caught:
        test.run("fulfil")
    assert time.monotonic() - begun_s < 5
    return str(caught.value)


def test_an_async_callback_that_never_ends_is_named(test_bed: WorkflowTest) -> None:
    """The message names the step, the function and the way out."""
    test_bed.app(app_of(lambda ctx: ctx.step.run("charge", never, timeout="30s")))
    message = hanging(test_bed)
    assert "the callback of step 'charge' of function fulfil" in message
    assert "its timeout of 30000 ms is virtual time" in message
    assert "time_out_during()" in message


def test_a_plain_callback_that_never_ends_is_named(test_bed: WorkflowTest, gate: threading.Event) -> None:
    """A thread cannot be ended, and the test ends all the same."""
    test_bed.app(app_of(lambda ctx: ctx.step.run("charge", gate.wait)))
    assert "the callback of step 'charge'" in hanging(test_bed)


def test_a_callback_that_blocks_the_event_loop_is_named_with_its_place(
    test_bed: WorkflowTest, gate: threading.Event
) -> None:
    """A blocking call in async code is the commonest mistake; the message says in which file and line it stands."""

    async def blocks() -> None:
        gate.wait()

    test_bed.app(app_of(lambda ctx: ctx.step.run("charge", blocks)))
    message = hanging(test_bed)
    assert "the event loop is blocked by step charge of function fulfil" in message


def test_code_outside_steps_that_never_ends_is_named(test_bed: WorkflowTest) -> None:
    """A pass that awaits something else than a step never gives its turn away."""
    test_bed.app(app_of(lambda ctx: never()))
    assert "code outside steps of function fulfil" in hanging(test_bed)


def test_the_helper_can_still_be_read_after_a_hang(test_bed: WorkflowTest) -> None:
    """A report about a hanging test needs the history of its run."""
    test_bed.app(app_of(lambda ctx: ctx.step.run("charge", never)))
    hanging(test_bed)
    assert "attempt 1 of step 'charge' started" in test_bed.describe()


def test_skips_of_time_are_bounded(workflow: WorkflowTest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Something that goes on and on ends in an error and not in an endless test."""

    async def fails() -> None:
        raise ValueError("again")

    monkeypatch.setattr(engine_module, "SKIPS_MAX", 3)
    workflow.app(app_of(lambda ctx: ctx.step.run("charge", fails, retry=Retry(attempts=50, initial="1h", cap="1h"))))
    with pytest.raises(NeverSettles, match="3 times"):
        workflow.run("fulfil")


def test_an_idle_loop_is_told_from_one_that_has_work() -> None:
    """`idle` returns after everything that needs no time, however long the chain, and before any timer."""
    loop = EngineLoop()
    is_over = asyncio.Event()
    loop.start(_until(is_over))
    reached: list[int] = []

    async def chain() -> None:
        for number in range(5_000):
            await asyncio.sleep(0)
            reached.append(number)
        await asyncio.sleep(3_600)

    async def body() -> int:
        task = asyncio.get_running_loop().create_task(chain())
        await loop.idle()
        task.cancel()
        return len(reached)

    try:
        assert loop.call(body()) == 5_000
    finally:
        loop.call(_set(is_over))
        loop.join()


async def _until(event: asyncio.Event) -> None:
    await event.wait()


async def _set(event: asyncio.Event) -> None:
    event.set()


def test_a_service_that_ends_ends_the_call_that_waits_for_it() -> None:
    """Whatever ends the service's root task, a test waiting for it hears of it with the reason."""
    loop = EngineLoop()
    has_begun = asyncio.Event()

    async def main() -> None:
        await has_begun.wait()
        raise RuntimeError("the disk is on fire")

    async def body() -> None:
        has_begun.set()
        await asyncio.Event().wait()

    loop.start(main())
    with pytest.raises(WorkflowTestError) as caught:
        loop.call(body())
    assert isinstance(caught.value.__cause__, RuntimeError)
    with pytest.raises(WorkflowTestError, match="closed"):
        loop.call(body())
    loop.join()
