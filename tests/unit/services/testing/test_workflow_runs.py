"""What the helper shows of runs: results, failures, retries and their instants, from the real transitions."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib.util
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from ryusen import App, Context, InvalidValue, NonRetryable, Retry, RetryAfter, StepFailed, current_attempt

from keyspace.errors import Refusal
from keyspace.history import HistoryKind
from services.runtime.spans import shown_ms
from services.testing import FunctionNotFound, RunView, StepView, WorkflowTest, WorkflowTestError
from services.testing.words import sentence

EXAMPLE = Path(__file__).parents[4] / "sdk_py" / "examples" / "orders.py"
PAGE = EXAMPLE.parents[1] / "docs" / "testing.md"
HOUR_MS = 3_600_000


@dataclass(frozen=True)
class Basket:
    id: str
    count: int


@dataclass(frozen=True)
class Receipt:
    basket: str
    total: int


class Flaky:
    """A callback that fails a number of times before it succeeds."""

    def __init__(self, failures: int, error: Exception | None = None) -> None:
        self.failures = failures
        self.error = error or ValueError("not now")
        self.operations: list[str] = []

    async def __call__(self) -> str:
        self.operations.append(current_attempt().operation_id)
        if len(self.operations) <= self.failures:
            raise self.error
        return "done"


def one_step(callback: Any, **options: Any) -> App:
    app = App("shop")

    @app.function(on="placed")
    async def fulfil(ctx: Context, order: Any) -> Any:
        return await ctx.step.run("work", callback, **options)

    return app


@pytest.fixture
def orders() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("orders_example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_the_example_runs_to_its_receipt(workflow: WorkflowTest, orders: ModuleType) -> None:
    """Typed values go in and come out, plain and async callbacks run, and each step has its one attempt."""
    workflow.app(orders.app)
    order = orders.Order("o-1", "Ada", [orders.Line("tea", 2, 450)])
    run = workflow.run("fulfil", order)
    assert run.status == "completed"
    assert run.output == orders.Receipt(order="o-1", tracking="parcel-o-1", charged_cents=900)
    assert list(run.steps) == ["reserve", "charge", "ship"]
    assert run.steps["charge"].value["amount_cents"] == 900
    assert [attempt.state for step in run.steps.values() for attempt in step.attempts] == ["succeeded"] * 3
    assert run.kinds[-1] == "run-completed"
    assert run.waiting == ""


def test_the_example_catches_a_charge_that_can_never_succeed(workflow: WorkflowTest, orders: ModuleType) -> None:
    """A non-retryable failure ends the step at its first attempt, and the function goes on after it."""
    workflow.app(orders.app)
    run = workflow.run("fulfil", orders.Order("o-2", "Ada", []))
    assert run.status == "completed"
    assert run.output == orders.Receipt(order="o-2", tracking=None, charged_cents=0)
    charge = run.steps["charge"]
    assert (charge.state, len(charge.attempts)) == ("failed", 1)
    assert charge.failure is not None
    assert charge.failure.details == {"order": "o-2"}


def test_a_backoff_of_hours_takes_no_real_time(workflow: WorkflowTest) -> None:
    """The recorded delays are exact, no attempt starts before or after its instant, and real time hardly passes."""
    charge = Flaky(3)
    workflow.app(one_step(charge, retry=Retry(attempts=5, initial="2h", coefficient=2, cap="5h")))
    begun_s = time.monotonic()
    run = workflow.run("fulfil")
    assert time.monotonic() - begun_s < 5
    attempts = run.steps["work"].attempts
    scheduled = [entry for entry in run.history if entry.kind == "retry-scheduled"]
    delays = [entry.data["eligible_at_ms"] - entry.at_ms for entry in scheduled]
    assert delays == [2 * HOUR_MS, 4 * HOUR_MS, 5 * HOUR_MS]
    started = [attempt.started_at_ms for attempt in attempts[1:] if attempt.started_at_ms is not None]
    late_ms = [start - entry.data["eligible_at_ms"] for start, entry in zip(started, scheduled, strict=True)]
    assert late_ms == [0, 0, 0]
    assert [attempt.state for attempt in attempts] == ["failed", "failed", "failed", "succeeded"]
    assert len(set(charge.operations)) == 1
    assert run.output == "done"


def test_a_failure_may_say_when_to_come_back(workflow: WorkflowTest) -> None:
    """RetryAfter's delay is the one that passes, not the policy's."""
    workflow.app(one_step(Flaky(1, RetryAfter("3d", "the bank is closed")), retry=Retry(initial="1s")))
    first, second = workflow.run("fulfil").steps["work"].attempts
    assert second.due_at_ms - (first.settled_at_ms or 0) == 72 * HOUR_MS


def test_an_exhausted_step_fails_the_run_and_its_completed_steps_are_skipped(workflow: WorkflowTest) -> None:
    """An uncaught failure unwinds; a step without a compensator is recorded as a skip."""
    app = App("shop")

    @app.function(on="placed")
    async def fulfil(ctx: Context) -> None:
        await ctx.step.run("reserve", lambda: 1)
        await ctx.step.run("pack", lambda: 2)
        await ctx.step.run("charge", Flaky(9), retry=Retry(attempts=2, initial="1s"))

    workflow.app(app)
    run = workflow.run("fulfil")
    assert run.status == "failed"
    assert run.failure is not None
    assert run.failure.message == "not now"
    assert [attempt.state for attempt in run.steps["charge"].attempts] == ["failed", "failed"]
    assert [step.compensation for step in run.steps.values()] == ["skipped", "skipped", "none"]
    assert run.kinds[-4:] == ["unwind-started", "compensation-skipped", "compensation-skipped", "unwind-ended"]
    assert "step 'charge' failed for good after 2 attempts" in run.story
    assert run.recovery == "partially_compensated"


def test_a_function_may_catch_what_was_exhausted(workflow: WorkflowTest) -> None:
    """StepFailed carries the last failure and the count of attempts to the code that catches it."""
    app = App("shop")

    @app.function(on="placed")
    async def fulfil(ctx: Context) -> str:
        try:
            await ctx.step.run("charge", Flaky(9), retry=Retry(attempts=3, initial="1m"))
        except StepFailed as failed:
            return f"{failed.step_id} {failed.attempts} {failed.message}"
        return "charged"

    workflow.app(app)
    assert workflow.run("fulfil").output == "charge 3 not now"


def test_a_non_retryable_failure_has_one_attempt(workflow: WorkflowTest) -> None:
    """NonRetryable beats the policy."""
    workflow.app(one_step(Flaky(9, NonRetryable("never")), retry=Retry(attempts=9)))
    run = workflow.run("fulfil")
    assert run.status == "failed"
    assert len(run.steps["work"].attempts) == 1


def test_runs_of_one_event_and_of_several(workflow: WorkflowTest) -> None:
    """Each event starts each bound function once; runs stand in the order of their events, and typed outputs compare."""
    app = App("shop")

    @app.function(on="placed")
    async def count(ctx: Context, basket: Basket) -> Receipt:
        return Receipt(basket.id, await ctx.step.run("total", lambda: basket.count * 2))

    @app.function(on=["placed", "other"])
    async def note(ctx: Context) -> str:
        return ctx.event_name

    workflow.app(app)
    workflow.submit("placed", Basket("a", 1), correlation={"basket": "a"})
    workflow.submit("placed", Basket("b", 2))
    runs = workflow.settle()
    assert len(runs) == 4
    assert [run.output for run in workflow.runs("count")] == [Receipt("a", 2), Receipt("b", 4)]
    assert {run.output for run in workflow.runs("note")} == {"placed"}


def test_an_idempotency_key_makes_two_submissions_one_event(workflow: WorkflowTest) -> None:
    """The real acceptance answers: the same key with the same event is a replay, with another it is refused."""
    workflow.app(one_step(lambda: 1))
    first = workflow.submit("placed", {"id": 1}, idempotency_key="k")
    assert workflow.submit("placed", {"id": 1}, idempotency_key="k") == first
    with pytest.raises(Refusal):
        workflow.submit("placed", {"id": 2}, idempotency_key="k")
    assert len(workflow.settle()) == 1


def test_an_invocation_starts_one_function_and_no_other(workflow: WorkflowTest) -> None:
    """RFD 2, "An operator or a tool may start one function directly": the other listener hears nothing; a key makes two one."""
    app = one_step(lambda: 1)

    @app.function(on="placed")
    async def audit(ctx: Context, order: Any) -> None: ...

    workflow.app(app)
    event = workflow.invoke("fulfil", {"id": 1}, idempotency_key="k")
    assert workflow.invoke("fulfil", {"id": 1}, idempotency_key="k") == event
    workflow.submit("nobody.listens", idempotency_key="k")
    (run,) = workflow.settle()
    assert (run.function, run.event, run.status, run.output) == ("fulfil", event, "completed", 1)
    with pytest.raises(Refusal, match="idempotency_conflict"):
        workflow.invoke("audit", {"id": 1}, idempotency_key="k")


@pytest.mark.case(37)
def test_an_invocation_of_what_is_not_there_starts_nothing(workflow: WorkflowTest) -> None:
    """RFD 2, "the invocation is acknowledged and explained": accepted, and nothing is left to happen."""
    workflow.app(one_step(lambda: 1))
    workflow.invoke("fulfill", 1)
    workflow.invoke("fulfil", 1, app="shopp")
    assert workflow.settle() == []


def test_what_cannot_travel_is_refused_where_it_enters(workflow: WorkflowTest) -> None:
    """A payload has to be portable, as it has for the client."""
    workflow.app(one_step(lambda: 1))
    with pytest.raises(InvalidValue):
        workflow.submit("placed", {"when": object()})
    run = workflow.run("fulfil", {"id": 1})
    assert run.status == "completed"


def test_a_function_without_an_event_is_run_by_its_name(workflow: WorkflowTest) -> None:
    """A function that no event starts can be tested all the same."""
    app = App("shop")

    @app.function
    async def helper(ctx: Context, number: int) -> int:
        return number + 1

    workflow.app(app)
    assert workflow.run("helper", 41).output == 42


def test_a_name_that_is_no_functions_says_which_there_are(workflow: WorkflowTest) -> None:
    """A typing error in a test is told at once, with the names that would work."""
    workflow.app(one_step(lambda: 1))
    with pytest.raises(FunctionNotFound, match="shop/fulfil"):
        workflow.run("fulfill")
    other = App("other")
    other.function(name="fulfil")(one_step(lambda: 2).functions["fulfil"].handler)
    workflow.app(other)
    with pytest.raises(FunctionNotFound, match="More than one"):
        workflow.run("fulfil")
    assert workflow.run("fulfil", app="other").application == "other"


def test_a_deployment_goes_on_with_runs_under_way(workflow: WorkflowTest) -> None:
    """New code sees the recorded results of old code, and a step that is gone becomes obsolete."""
    workflow.app(one_step(Flaky(99), retry=Retry(initial="1h", cap="1h", attempts=9)), release="one")
    workflow.submit("placed", 1)
    workflow.advance("90m")
    (run,) = workflow.runs()
    assert run.steps["work"].state == "backing_off"
    renewed = App("shop")

    @renewed.function(on="placed")
    async def fulfil(ctx: Context, order: int) -> str:
        return await ctx.step.run("better", lambda: f"order {order}")

    workflow.app(renewed, release="two")
    (run,) = workflow.settle()
    assert run.output == "order 1"
    assert [step.state for step in run.steps.values()] == ["obsolete", "completed"]


async def test_an_async_test_may_use_the_helper(workflow: WorkflowTest) -> None:
    """The service has a thread of its own, so it works inside somebody else's event loop too."""
    workflow.app(one_step(lambda: 7))
    assert workflow.run("fulfil").output == 7
    assert asyncio.get_running_loop().is_running()


def test_one_seed_gives_the_same_ids() -> None:
    """A failed test's ids can be had again: the seed decides all that the service mints."""

    def ids(seed: int) -> list[str]:
        with WorkflowTest(seed=seed) as test:
            test.app(one_step(Flaky(1)))
            run = test.run("fulfil")
            return [run.id, *(attempt.operation_id for attempt in run.steps["work"].attempts)]

    assert ids(5) == ids(5)
    assert ids(5) != ids(6)


def test_time_begins_where_the_test_says() -> None:
    """Virtual time has a stated beginning and moves as told."""
    start = datetime(2030, 1, 1, tzinfo=UTC)
    with WorkflowTest(start=start) as test:
        assert test.now == start
        test.advance("1d")
        assert test.now == datetime(2030, 1, 2, tzinfo=UTC)


def test_a_closed_helper_says_so() -> None:
    """Using it after its end is an error of the test, not a hang."""
    test = WorkflowTest()
    test.close()
    test.close()
    with pytest.raises(WorkflowTestError, match="closed"):
        test.settle()


def test_every_kind_of_entry_has_its_sentence() -> None:
    """A new kind of history entry without words would show as its bare name."""
    data: dict[str, Any] = {
        "step": "s", "attempt": 1, "attempts": 2, "function": "f", "pass": 1, "eligible_at_ms": 5, "executed": 0,
        "skipped": 1, "failure": {"category": "c", "message": "m"}, "command": "retry", "reason": "cancelled",
        "from": 2, "to": 1, "by": "b", "event": "e", "first": {"location": "a.py:1"}, "duplicate": {"location": "a.py:2"},
    }  # fmt: skip
    for kind in HistoryKind:
        assert sentence(kind.value, data, 0) != kind.value
    assert sentence("of-a-later-release", {}, 0) == "of-a-later-release"


@pytest.mark.parametrize(
    ("delay_ms", "words"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (1_500, "1.5 s"),
        (60_000, "1 min"),
        (7_200_000, "2 h"),
        (90_061_000, "1 d 1 h 1 min 1 s"),
    ],
)
def test_spans_of_time_read_well(delay_ms: int, words: str) -> None:
    """Each unit is used from its own size on."""
    assert shown_ms(delay_ms) == words


@pytest.mark.parametrize("is_undo", [False, True], ids=["callback", "compensator"])
def test_a_step_inside_a_callback_is_refused_and_named(workflow: WorkflowTest, is_undo: bool) -> None:
    """The inner step's turn would come when the outer callback has ended, so both would wait for ever without a word."""
    app = App("nested")

    @app.function(on="begun")
    async def flow(ctx: Context) -> None:
        async def calls_a_step(*_: object) -> None:
            await ctx.step.run("inner", lambda: None)

        if not is_undo:
            await ctx.step.run("outer", calls_a_step)
        await ctx.step.run("outer", lambda: None, compensate=calls_a_step)
        raise NonRetryable("undo it")

    workflow.app(app)
    run = workflow.run("flow")
    message = "step 'inner' is called inside the callback of step 'outer'"
    assert list(run.steps) == ["outer"]
    if is_undo:
        assert run.recovery == "compensation_failed"
        assert message in run.story
    else:
        assert (run.status, len(run.steps["outer"].attempts)) == ("failed", 1)
        assert run.failure is not None and run.failure.category == "sdk.declaration_refused"
        assert message in run.failure.message


def test_the_page_lists_what_the_helper_can_do() -> None:
    """A call that the page names and the helper lacks, or the other way round, would mislead its reader."""
    text = PAGE.read_text()
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`(\w+)(?:\([^`]*\))?`", row.split(" | ")[0])}
    offered = {name for name in vars(WorkflowTest) if not name.startswith("_")}
    assert named == offered - {"close", "describe"}
    shown = set(re.findall(r"`(\w+)`", text.partition("A run shows")[2].partition("A failed test")[0]))
    attributes = {field.name for view in (RunView, StepView) for field in dataclasses.fields(view)} | {"story"}
    assert shown - attributes == set()
