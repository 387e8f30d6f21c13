"""Completed steps are undone when a run fails: by the code that is deployed then, one at a time, the last one first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from ryusen import App, Context, NonRetryable, Retry, RetryAfter, StepFailed, current_attempt

from services.testing import WorkflowTest

Body = Callable[[Context], Any]


def shop(body: Body) -> App:
    app = App("shop")

    @app.function(on="placed")
    async def fulfil(ctx: Context) -> Any:
        return await body(ctx)

    return app


async def boom() -> None:
    raise NonRetryable("out of stock")


@pytest.mark.case(55)
def test_steps_are_undone_in_reverse_order_with_their_recorded_results(workflow: WorkflowTest) -> None:
    """Case 055; RFD 1, "The initial engine visits completed steps sequentially in reverse completion order"."""
    undone: list[str] = []

    async def undo_async(result: dict[str, str]) -> object:
        undone.append(result["id"])
        return object()  # what a compensator returns is nobody's business

    def undo_plain(result: dict[str, str]) -> None:
        undone.append(result["id"])

    async def body(ctx: Context) -> None:
        await ctx.step.run("reserve", lambda: {"id": "stock"}, compensate=undo_plain)
        await ctx.step.run("charge", lambda: {"id": "charge"}, compensate=undo_async)
        await ctx.step.run("notify", lambda: {"id": "mail"}, compensate=lambda result: undo_async(result))
        await ctx.step.run("ship", boom)

    workflow.app(shop(body))
    run = workflow.run("fulfil")
    assert (run.status, run.recovery) == ("failed", "compensated")
    assert undone == ["mail", "charge", "stock"]


def test_a_step_without_a_compensator_is_skipped(workflow: WorkflowTest) -> None:
    """RFD 2, "After the last target, any durable skip produces PartiallyCompensated"."""
    undone: list[str] = []

    async def body(ctx: Context) -> None:
        await ctx.step.run("a", lambda: "a", compensate=undone.append)
        await ctx.step.run("b", lambda: "b")
        await ctx.step.run("ship", boom)

    workflow.app(shop(body))
    run = workflow.run("fulfil")
    assert run.recovery == "partially_compensated"
    assert undone == ["a"]


def test_a_compensator_retries_by_its_own_policy_under_one_operation(workflow: WorkflowTest) -> None:
    """RFD 1, "It has an independent retry policy, timeout, attempt history, and result"."""
    operations: list[str] = []

    def charge() -> str:
        operations.append(current_attempt().operation_id)
        return "ch_1"

    def refund(_charge: str) -> None:
        operations.append(current_attempt().operation_id)
        if len(operations) < 4:
            raise ConnectionError("the bank is closed")

    async def body(ctx: Context) -> None:
        await ctx.step.run("charge", charge, compensate=refund, compensate_retry=Retry(attempts=3, initial="1m"))
        await ctx.step.run("ship", boom)

    workflow.app(shop(body))
    run = workflow.run("fulfil")
    assert run.recovery == "compensated"
    forward, *backward = operations
    assert len(backward) == 3
    assert len(set(backward)) == 1
    assert backward[0] != forward


def test_a_compensator_that_fails_for_good_ends_the_unwind(workflow: WorkflowTest) -> None:
    """RFD 2, "A permanent failure produces CompensationFailed and stops the unwind"; FILLED-IN 5: one record for the rest."""
    undone: list[str] = []

    def refuse(_result: str) -> None:
        raise NonRetryable("cannot be undone")

    async def body(ctx: Context) -> None:
        await ctx.step.run("a", lambda: "a", compensate=undone.append)
        await ctx.step.run("b", lambda: "b", compensate=undone.append)
        await ctx.step.run("c", lambda: "c", compensate=refuse)
        await ctx.step.run("ship", boom)

    workflow.app(shop(body))
    run = workflow.run("fulfil")
    assert (run.status, run.recovery) == ("failed", "compensation_failed")
    assert undone == []
    left = [entry for entry in run.history if entry.kind == "compensations-not-attempted"]
    assert [entry.data for entry in left] == [{"from": 2, "to": 1}]


def test_a_lost_compensator_halts_the_unwind_as_unknown(workflow: WorkflowTest) -> None:
    """RFD 2, "Lease or transport loss after compensation start authorization becomes Unknown and stops the unwind"."""
    undone: list[str] = []

    async def body(ctx: Context) -> None:
        await ctx.step.run("a", lambda: "a", compensate=undone.append)
        await ctx.step.run("b", lambda: "b", compensate=undone.append)
        await ctx.step.run("ship", boom)

    workflow.app(shop(body))
    workflow.lose_worker_during("b")
    run = workflow.run("fulfil")
    assert run.status in ("running", "compensating")
    workflow.restart_worker()
    [run] = workflow.settle()
    assert run.recovery is None
    assert undone.count("b") <= 1


def test_a_lost_compensator_that_is_idempotent_runs_again(workflow: WorkflowTest) -> None:
    """FILLED-IN 2, "steps declared idempotent", of a compensator: it is given the same operation id, its own, both times."""
    undone: list[str] = []

    def refund(charge: str) -> None:
        undone.append(f"{charge} {current_attempt().operation_id}")

    def out_of_stock() -> None:
        if current_attempt().attempt == 1:
            raise RetryAfter("1h", "closed")
        raise NonRetryable("out of stock")

    async def body(ctx: Context) -> None:
        await ctx.step.run("charge", lambda: "ch-1", compensate=refund, compensate_idempotent=True)
        await ctx.step.run("ship", out_of_stock)

    workflow.app(shop(body))
    workflow.submit("placed")
    workflow.lose_worker_during("charge")
    [run] = workflow.settle()
    assert (run.status, run.recovery, len(undone)) == ("compensating", None, 1)
    assert "of the compensator of step 'charge' was lost with its worker; it may be repeated" in run.story
    workflow.restart_worker()
    [run] = workflow.settle()
    assert run.recovery == "compensated"
    first, second = undone
    assert first == second
    assert first.removeprefix("ch-1 ") != run.steps["charge"].attempts[0].operation_id


def test_the_code_that_is_deployed_then_undoes(workflow: WorkflowTest) -> None:
    """RFD 1, "the SDK asks current code for that step's compensator": one that was added later runs."""
    undone: list[str] = []
    compensators: dict[str, Any] = {}

    async def body(ctx: Context) -> None:
        await ctx.step.run("a", lambda: "a", compensate=compensators.get("a"))
        try:
            await ctx.step.run("flaky", flaky, retry=Retry(attempts=2, initial="1m"))
        except StepFailed as failure:
            raise NonRetryable("given up") from failure

    def flaky() -> None:
        compensators["a"] = undone.append
        raise ConnectionError("not now")

    workflow.app(shop(body))
    run = workflow.run("fulfil")
    assert run.recovery == "compensated"
    assert undone == ["a"]


def test_a_success_undoes_nothing(workflow: WorkflowTest) -> None:
    """RFD 1, "Successful runs do not execute compensators"."""
    undone: list[str] = []

    async def body(ctx: Context) -> str:
        return await ctx.step.run("a", lambda: "a", compensate=undone.append)

    workflow.app(shop(body))
    run = workflow.run("fulfil")
    assert (run.status, run.output, undone) == ("completed", "a", [])


@pytest.mark.parametrize(
    "options",
    [
        {"compensate": 5},
        {"compensate": print, "compensate_retry": 3},
        {"compensate_timeout": "1s"},
        {"compensate_idempotent": True},
        {"compensate": print, "compensate_idempotent": print},
    ],
)
def test_nonsense_is_refused_at_the_call(workflow: WorkflowTest, options: dict[str, Any]) -> None:
    """Case 044's kind: refused where it is written, not when it is needed."""

    async def body(ctx: Context) -> None:
        await ctx.step.run("a", lambda: "a", **options)

    workflow.app(shop(body))
    run = workflow.run("fulfil")
    assert run.status == "failed"
    assert run.failure is not None
    assert "compensate" in run.failure.message


def _release(word: str, undone: list[str], *, is_new: bool) -> App:
    """Return a release whose function does every kind of step there is; the new one has a step more, before all others."""
    app = App("shop")

    def undo(step: str) -> Callable[[str], None]:
        return lambda result: undone.append(f"{word} undoes {step}: {result}")

    @app.function
    async def pick(ctx: Context) -> str:
        return "picked"

    @app.function(on="placed")
    async def fulfil(ctx: Context) -> None:
        if is_new:
            await ctx.step.run("added", lambda: "added", compensate=undo("added"))
        await ctx.step.run("reserve", lambda: "stock", compensate=undo("reserve"))
        await ctx.step.sleep("nap", "1m")
        await ctx.step.run("charge", lambda: "money", compensate=undo("charge"))
        await ctx.step.wait_for_event("approval", "approved", match={}, timeout="24h")
        await ctx.step.send_event("tell", "told", {"it": "went on"})
        await ctx.step.invoke("pick it", pick, None)
        await ctx.step.run("ship", lambda: "parcel", compensate=undo("ship"))
        await ctx.step.run("boom", boom)

    return app


@pytest.mark.case(55)
@pytest.mark.parametrize("deployed", ["asleep", "waiting", "never"])
def test_what_the_service_settled_lies_between_and_is_never_undone(workflow: WorkflowTest, deployed: str) -> None:
    """Case 055: a release deployed mid-run adds a step that completes last but one and stands first in the code; a timer, a
    wait, an emission and a child lie between. Only callbacks are undone, by their completion, by the code of that time."""
    undone: list[str] = []
    workflow.app(_release("old", undone, is_new=False), release="old")
    workflow.submit("placed")
    if deployed == "asleep":
        workflow.app(_release("new", undone, is_new=True), release="new")
    workflow.advance("1m")
    if deployed == "waiting":
        workflow.app(_release("new", undone, is_new=True), release="new")
    workflow.submit("approved", "yes")
    workflow.settle()
    (run,) = workflow.runs("fulfil")
    word = "old" if deployed == "never" else "new"
    forward = {
        "asleep": ["reserve", "added", "charge", "ship"],
        "waiting": ["reserve", "charge", "added", "ship"],
        "never": ["reserve", "charge", "ship"],
    }[deployed]
    results = {"reserve": "stock", "added": "added", "charge": "money", "ship": "parcel"}
    assert undone == [f"{word} undoes {step}: {results[step]}" for step in reversed(forward)]
    assert (run.status, run.recovery) == ("failed", "compensated")
    kinds = {step: run.steps[step].kind for step in ("nap", "approval", "tell", "pick it")}
    assert [run.steps[step].state for step in kinds] == ["completed"] * 4
    assert len(set(kinds.values())) == 4 and "callback" not in kinds.values(), kinds
    (child,) = workflow.runs("pick")
    assert child.status == "completed", "what a child did is the child's"
    workflow.check()
