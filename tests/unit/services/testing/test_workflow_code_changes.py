"""What a deployment does to runs in flight: FILLED-IN 6 row by row, with the SDK's own passes against the real service.

The rows about steps that never started, or that run just then, are tests of transitions (`test_run_lifecycle`, `test_obsolete`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from ryusen import App, Context, NonRetryable, Retry, RetryAfter, StepFailed

from services.testing import RunView, WorkflowTest

pytestmark = pytest.mark.case(50)

Body = Callable[[Context], Any]


def shop(body: Body) -> App:
    """Return a release of the application, whose function has this body."""
    app = App("shop")

    @app.function(on="placed")
    async def fulfil(ctx: Context) -> Any:
        return await body(ctx)

    return app


class Park:
    """A step's callback that makes its run wait an hour at its first attempt, so that a release can be deployed meanwhile."""

    def __init__(self) -> None:
        self.is_open = False

    def __call__(self) -> str:
        if self.is_open:
            return "parked"
        self.is_open = True
        raise RetryAfter("1h", "wait")


def deploy_while_parked(workflow: WorkflowTest, old: Body, new: Body) -> RunView:
    """Start a run under the old code, deploy the new while it waits, and take the run to its end."""
    workflow.app(shop(old), release="old")
    workflow.submit("placed")
    workflow.app(shop(new), release="new")
    [run] = workflow.settle()
    return run


def fail_for_good() -> None:
    raise NonRetryable("never")


def test_a_body_that_changed_runs_at_the_next_attempt(workflow: WorkflowTest) -> None:
    """FILLED-IN 6, "a step's body changes": "accepted results stand; later attempts run the new body"."""

    def worded(word: str, park: Callable[[], str]) -> Body:
        async def body(ctx: Context) -> list[str]:
            first = await ctx.step.run("first", lambda: f"{word} first")
            await ctx.step.run("park", park)
            return [first, await ctx.step.run("last", lambda: f"{word} last")]

        return body

    park = Park()
    run = deploy_while_parked(workflow, worded("old", park), worded("new", park))
    assert run.output == ["old first", "new last"]


def test_a_step_that_was_added_runs_where_it_stands(workflow: WorkflowTest) -> None:
    """FILLED-IN 6, "a step is added": "it runs when discovery reaches it, wherever it stands", here before all others."""
    park = Park()

    async def old(ctx: Context) -> list[str]:
        return [await ctx.step.run("park", park)]

    async def new(ctx: Context) -> list[str]:
        return [await ctx.step.run("added", lambda: "added"), await ctx.step.run("park", park)]

    run = deploy_while_parked(workflow, old, new)
    assert run.output == ["added", "parked"]
    assert list(run.steps) == ["park", "added"]


def test_a_completed_step_that_was_removed_is_skipped_by_the_unwind(workflow: WorkflowTest) -> None:
    """FILLED-IN 6, "a completed step is removed": its result stays; "at its turn target_not_found records a skip"."""
    park, undone = Park(), list[str]()

    async def old(ctx: Context) -> None:
        await ctx.step.run("gone", lambda: "gone", compensate=undone.append)
        await new(ctx)

    async def new(ctx: Context) -> None:
        await ctx.step.run("kept", lambda: "kept", compensate=undone.append)
        await ctx.step.run("park", park)
        raise NonRetryable("too late")

    run = deploy_while_parked(workflow, old, new)
    assert (run.recovery, undone) == ("partially_compensated", ["kept"])
    assert (run.steps["gone"].state, run.steps["gone"].value) == ("completed", "gone")
    skipped = [entry.data["step"] for entry in run.history if entry.kind == "compensation-skipped"]
    assert skipped == ["park", "gone"]


def test_a_step_that_awaits_its_next_attempt_and_was_removed_is_obsolete(workflow: WorkflowTest) -> None:
    """FILLED-IN 6: "the attempt is fenced, the step Obsolete, discovery follows", before any user code of the step runs."""
    park = Park()

    async def old(ctx: Context) -> str:
        return await ctx.step.run("park", park)

    async def new(ctx: Context) -> str:
        return await ctx.step.run("other", lambda: "other")

    run = deploy_while_parked(workflow, old, new)
    assert (run.status, run.output, run.steps["park"].state) == ("completed", "other", "obsolete")
    assert [attempt.state for attempt in run.steps["park"].attempts] == ["failed", "fenced"]


@pytest.mark.parametrize("ends", ["completes", "fails"])
@pytest.mark.parametrize("has_it", [False, True], ids=["removed", "still there"])
def test_a_failed_step_that_was_removed_is_obsolete(workflow: WorkflowTest, ends: str, has_it: bool) -> None:
    """FILLED-IN 6, "a failed step is removed": "when a pass that completes or fails the function did not meet it"."""
    park = Park()

    async def handled(ctx: Context) -> None:
        with pytest.raises(StepFailed):
            await ctx.step.run("hopeless", fail_for_good)

    async def end(ctx: Context) -> str:
        await ctx.step.run("park", park)
        if ends == "fails":
            raise NonRetryable("the end")
        return "the end"

    async def old(ctx: Context) -> str:
        await handled(ctx)
        return await end(ctx)

    run = deploy_while_parked(workflow, old, old if has_it else end)
    assert run.status == ("completed" if ends == "completes" else "failed")
    assert run.steps["hopeless"].state == ("failed" if has_it else "obsolete")
    assert run.steps["hopeless"].failure is not None, "what happened stays visible"
    assert ("step 'hopeless' is no longer in the code" in run.story) is not has_it


def test_an_obsolete_step_that_is_met_again_is_declared_anew(workflow: WorkflowTest) -> None:
    """FILLED-IN 6, "an Obsolete step is met again": "declared anew, with the next step generation", after a rollback."""
    park, later = Park(), Park()

    async def old(ctx: Context) -> str:
        return await ctx.step.run("park", park)

    async def new(ctx: Context) -> str:
        return await ctx.step.run("later", later)

    workflow.app(shop(old), release="old")
    workflow.submit("placed")
    workflow.app(shop(new), release="new")
    workflow.advance("61m")
    [run] = workflow.runs()
    assert {step.id: step.state for step in run.steps.values()} == {"park": "obsolete", "later": "backing_off"}
    workflow.app(shop(old), release="old again")
    [run] = workflow.settle()
    assert (run.output, run.steps["later"].state) == ("parked", "obsolete")
    declared = [entry.data["generation"] for entry in run.history if entry.kind == "step-declared"]
    assert declared == [1, 1, 3], "after the failed first attempt and the fenced second one"


def test_a_compensator_that_was_added_later_runs(workflow: WorkflowTest) -> None:
    """FILLED-IN 6, "a compensator is added later": "it runs in the unwind; declaration-time presence is only a diagnostic"."""
    park, undone = Park(), list[str]()

    def with_undo(undo: Callable[[str], None] | None) -> Body:
        async def body(ctx: Context) -> None:
            await ctx.step.run("first", lambda: "first", compensate=undo)
            await ctx.step.run("park", park, compensate=undo)
            raise NonRetryable("too late")

        return body

    run = deploy_while_parked(workflow, with_undo(None), with_undo(undone.append))
    assert (run.recovery, undone) == ("compensated", ["parked", "first"])


def test_a_function_that_nobody_serves_waits_visibly(workflow: WorkflowTest) -> None:
    """FILLED-IN 6, "a function is no longer served by any live release": it says so, and goes on when one is there again."""
    park = Park()

    async def body(ctx: Context) -> str:
        return await ctx.step.run("park", park)

    other = App("shop")

    @other.function(on="shipped")
    async def unrelated(ctx: Context) -> None:
        return None

    workflow.app(shop(body), release="old")
    workflow.submit("placed")
    workflow.app(other, release="without it")
    workflow.advance("2h")
    [run] = workflow.runs()
    assert (run.status, "waits for a compatible worker" in run.waiting) == ("running", True)
    workflow.app(shop(body), release="with it again")
    [run] = workflow.settle()
    assert run.output == "parked"


def test_the_recorded_retry_policy_governs(workflow: WorkflowTest) -> None:
    """FILLED-IN 6, "the retry policy changes": "the policy recorded when the declaration was accepted governs that step"."""

    def with_attempts(attempts: int) -> Body:
        async def body(ctx: Context) -> int:
            try:
                await ctx.step.run("flaky", fail, retry=Retry(attempts=attempts, initial="1h", cap="1h"))
            except StepFailed as failed:
                return failed.attempts
            return 0

        return body

    def fail() -> None:
        raise ValueError("not now")

    assert deploy_while_parked(workflow, with_attempts(2), with_attempts(9)).output == 2
