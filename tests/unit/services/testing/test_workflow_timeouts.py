"""A function's run timeout in a test: virtual time goes to the deadline, the run is stopped there and undone."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from ryusen import App, Context, Retry

from services.testing import WorkflowTest

HOUR_MS = 3_600_000


@pytest.mark.case(25)
def test_a_run_that_waits_too_long_is_stopped_at_its_deadline_and_undone(workflow: WorkflowTest) -> None:
    """Case 025; RFD 1, "it stops new forward execution without cutting short compensation recovery"."""
    app = App("shop")
    undone: list[str] = []

    def unavailable() -> None:
        raise ConnectionError("the bank is closed")

    def undo(result: str) -> None:
        undone.append(result)
        if len(undone) == 1:
            raise ConnectionError("the warehouse is closed")

    @app.function(on="placed", timeout="1h")
    async def fulfil(ctx: Context) -> Any:
        await ctx.step.run("reserve", lambda: "stock", compensate=undo, compensate_retry=Retry(initial="3h", cap="3h"))
        await ctx.step.run("charge", unavailable, retry=Retry(attempts=3, initial="40m", cap="40m"))

    workflow.app(app)
    run = workflow.run("fulfil")
    assert (run.status, run.recovery) == ("timed_out", "compensated")
    assert undone == ["stock", "stock"], "the undo may take longer than the run ever had"
    stop = next(entry for entry in run.history if entry.kind == "stop-committed")
    created = run.history[0]
    assert stop.at_ms - created.at_ms == HOUR_MS
    assert run.deadline_at_ms == created.at_ms + HOUR_MS
    assert run.steps["charge"].state == "obsolete", "its next attempt, due after 80 minutes, never starts"
    assert [one.state for one in run.steps["charge"].attempts] == ["failed", "failed", "fenced"]
    assert "it may take 1 h" in run.story and "the run's time is over" in run.story


def test_a_run_that_ends_in_time_is_not_touched(workflow: WorkflowTest) -> None:
    """RFD 2, "atomically remove stale timeout work": time does not go on to a deadline that nobody needs any more."""
    app = App("shop")
    failures: list[int] = []

    def charge() -> str:
        failures.append(1)
        if len(failures) == 1:
            raise ConnectionError("try again")
        return "ch_1"

    @app.function(on="placed", timeout=timedelta(days=2))
    async def fulfil(ctx: Context) -> str:
        return await ctx.step.run("charge", charge, retry=Retry(initial="1m"))

    workflow.app(app)
    run = workflow.run("fulfil")
    assert (run.status, run.output) == ("completed", "ch_1")
    assert run.history[-1].at_ms - run.history[0].at_ms == 60_000


def test_a_function_without_a_timeout_waits_for_ever(workflow: WorkflowTest) -> None:
    """RFD 1, "Runs have no deadline by default"."""
    app = App("shop")
    tries: list[int] = []

    def charge() -> str:
        tries.append(1)
        if len(tries) < 4:
            raise ConnectionError("closed")
        return "ch_1"

    @app.function(on="placed")
    async def fulfil(ctx: Context) -> str:
        return await ctx.step.run("charge", charge, retry=Retry(attempts=4, initial="20d", cap="20d"))

    workflow.app(app)
    run = workflow.run("fulfil")
    assert (run.status, run.deadline_at_ms) == ("completed", None)
