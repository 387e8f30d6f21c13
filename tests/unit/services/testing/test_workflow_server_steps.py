"""Steps that the service settles, in virtual time: the examples, and what a test of a user's sees of them."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType

import pytest
from ryusen import App, Context, DeclarationRefused

from services.testing import WorkflowTest

EXAMPLES = Path(__file__).parents[4] / "sdk_py" / "examples"
START = datetime(2026, 11, 30, 12, tzinfo=UTC)
DAY_MS = 86_400_000


def example(name: str) -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location(f"{name}_example", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture
def baskets() -> Iterator[ModuleType]:
    yield from example("follow_up")


@pytest.fixture
def parcels() -> Iterator[ModuleType]:
    yield from example("parcels")


# -- timers


def test_the_example_waits_for_its_times(workflow: WorkflowTest, baskets: ModuleType) -> None:
    """The user's test of a run that waits: each look at it costs nothing, and each instant is exact."""
    workflow.app(baskets.app)
    begun = workflow.now
    closes_at = begun + timedelta(days=7)
    workflow.submit("basket.filled", baskets.Basket("b-1", "Ada", closes_at))
    (run,) = workflow.runs()
    assert (run.status, run.steps["a day"].kind, run.steps["a day"].state) == ("running", "timer", "waiting")
    assert "waits for its time" in run.waiting
    workflow.advance("23h59m59s")
    assert list(workflow.read(run).steps) == ["a day"]
    workflow.advance("1s")
    run = workflow.read(run)
    assert (baskets.reminded, run.steps["closing time"].state) == (["Ada"], "waiting")
    assert run.steps["closing time"].due_at_ms == int(closes_at.timestamp() * 1_000)
    workflow.settle()
    run = workflow.read(run)
    assert (run.output, baskets.given_back, workflow.now >= closes_at) == ("closed", ["b-1"], True)
    assert "step 'a day' sleeps for 1 d" in run.story
    assert "step 'a day' woke" in run.story


def test_each_timer_fires_at_its_very_instant(workflow: WorkflowTest) -> None:
    """Case 028's calm half: the wake is recorded at the anchor, neither before it nor a bucket after it."""
    app = App("naps")

    @app.function
    async def nap(ctx: Context, delays_ms: list[int]) -> None:
        for number, delay_ms in enumerate(delays_ms):
            await ctx.step.sleep(f"nap {number}", timedelta(milliseconds=delay_ms))

    workflow.app(app)
    run = workflow.run("nap", [0, 1, 999, 1_000, 1_001, 123_456, 30 * DAY_MS])
    assert run.status == "completed"
    for step in run.steps.values():
        woke = next(e for e in run.history if e.kind == "step-completed" and e.data["step"] == step.id)
        assert woke.at_ms == step.due_at_ms == woke.data["due_at_ms"]


@pytest.mark.case(26)
def test_code_that_changes_its_mind_moves_nothing(workflow: WorkflowTest) -> None:
    """Case 026: a deployment whose code says 600 s while a timer of 60 s runs; the first accepted anchor stands."""

    def version(delay: str) -> App:
        app = App("naps")

        @app.function
        async def nap(ctx: Context) -> str:
            await ctx.step.sleep("nap", delay)
            return delay

        return app

    workflow.app(version("60s"))
    workflow.invoke("nap")
    before = workflow.now
    for _ in range(5):
        workflow.advance("10s")
        workflow.app(version("600s"))
        workflow.restart_worker()
    (run,) = workflow.settle()
    assert run.output == "600s"
    assert run.steps["nap"].due_at_ms == int(before.timestamp() * 1_000) + 60_000
    assert workflow.now - before < timedelta(seconds=62)


def test_gathered_sleeps_run_one_after_another(workflow: WorkflowTest) -> None:
    """FILLED-IN 11, "One outstanding step": documented, so that nobody counts on the longest alone."""
    app = App("naps")

    @app.function
    async def nap(ctx: Context) -> None:
        await asyncio.gather(ctx.step.sleep("a", "1h"), ctx.step.sleep("b", "2h"))

    workflow.app(app)
    begun = workflow.now
    run = workflow.run("nap")
    assert run.status == "completed"
    assert timedelta(hours=3) <= workflow.now - begun < timedelta(hours=3, seconds=2)


def test_a_refusal_is_raised_at_its_call_and_the_run_may_go_on(workflow: WorkflowTest) -> None:
    """FILLED-IN 11, "A refused declaration": the server's own word, in a pass that goes on."""
    app = App("naps")

    @app.function
    async def nap(ctx: Context) -> str:
        try:
            await ctx.step.sleep_until("nap", datetime(2999, 1, 1, tzinfo=UTC))
        except DeclarationRefused as refused:
            return refused.refusal
        return "accepted"

    workflow.app(app)
    run = workflow.run("nap")
    assert (run.output, list(run.steps)) == ("invalid_timer", [])


# -- emission


def test_the_example_tells_others(workflow: WorkflowTest, parcels: ModuleType) -> None:
    """The emitter's result is the event's id; who listens runs by itself and gets the payload as a model."""
    workflow.app(parcels.app)
    run = workflow.run("ship", parcels.Parcel("o-1", 300))
    assert run.status == "completed"
    assert run.output == run.steps["tell"].value == run.steps["tell"].event
    (told,) = workflow.runs("notify")
    assert told.output == "order o-1 is on its way: parcel-o-1"
    assert told.event == run.output
    assert "step 'tell' has emitted its event" in run.story


def test_a_worker_that_is_lost_around_an_emission_emits_once(workflow: WorkflowTest) -> None:
    """RFD 2, "A lost acknowledgement, a rediscovery, a replay, or a restart": one event, however often the code runs."""
    app = App("teller")
    passes: list[int] = []

    @app.function(on="go")
    async def tell(ctx: Context) -> str:
        passes.append(1)
        first = await ctx.step.send_event("tell", "told", {"n": 1})
        await ctx.step.run("after", after, idempotent=True)
        return first

    async def after() -> None:
        return None

    @app.function(on="told")
    async def hear(ctx: Context, payload: dict[str, int]) -> int:
        return payload["n"]

    workflow.app(app)
    workflow.lose_worker_during("after", effect=False)
    workflow.submit("go")
    workflow.restart_worker()
    workflow.settle()
    assert [run.output for run in workflow.runs("hear")] == [1]
    (run,) = workflow.runs("tell")
    assert (run.output, len(passes) > 1) == (run.steps["tell"].event, True)
