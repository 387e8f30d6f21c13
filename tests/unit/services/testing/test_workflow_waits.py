"""Waits for events in virtual time: the example, and what a test of a user's sees of them."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest
from ryusen import App, Context, DeclarationRefused, StepFailed
from test_workflow_server_steps import example

from services.testing import WorkflowTest

DAY_MS = 86_400_000


@pytest.fixture
def approvals() -> Iterator[ModuleType]:
    yield from example("approvals")


def waiting_app(timeout: str = "60s", **match: str) -> App:
    app = App("waits")

    @app.function
    async def wait(ctx: Context) -> str:
        try:
            return f"heard {await ctx.step.wait_for_event('it', 'told', match=match, timeout=timeout)}"
        except StepFailed as failed:
            return failed.category

    return app


def test_the_example_hears_of_its_own_order(workflow: WorkflowTest, approvals: ModuleType) -> None:
    """The user's test of a run that waits: submit what starts it, then what it waits for, and no time passes."""
    workflow.app(approvals.app)
    workflow.submit("order.large", approvals.Order("o-1", 9_000))
    begun = workflow.now
    (run,) = workflow.runs()
    assert (run.status, run.steps["decision on day 0"].kind) == ("running", "wait")
    assert "waits for an event order.decided with order=o-1" in run.waiting
    workflow.submit("order.decided", {"decision": "no"}, correlation={"order": "o-2"})
    assert workflow.read(run).status == "running", "another order's"
    workflow.submit("order.decided", {"decision": "yes"}, correlation={"order": "o-1", "by": "Ada"})
    run = workflow.read(run)
    assert (run.status, run.output, workflow.now) == ("completed", "yes", begun)
    assert "step 'decision on day 0' waits for an event order.decided, for 1 d at most" in run.story
    assert "step 'decision on day 0' has what event" in run.story


@pytest.mark.case(31)
def test_the_safe_pattern_finds_what_it_has_not_heard(workflow: WorkflowTest, approvals: ModuleType) -> None:
    """Case 031, "the docs must show the boundary and the safe pattern": the event came too early, and the look finds it."""
    workflow.app(approvals.app)
    workflow.submit("order.decided", {"decision": "yes"}, correlation={"order": "o-1"})
    workflow.submit("order.large", approvals.Order("o-1", 9_000))
    (run,) = workflow.runs()
    assert run.status == "running", "what came before the registration is not remembered"
    approvals.decisions["o-1"] = "yes"
    (run,) = workflow.settle()
    assert (run.output, list(run.steps)) == ("yes", ["look on day 0", "decision on day 0", "look on day 1"])


def test_a_wait_that_nobody_answers_times_out_at_its_anchor(workflow: WorkflowTest) -> None:
    """RFD 2, "A wait that reaches its timeout records the accepted sdk.timeout step failure"."""
    workflow.app(waiting_app())
    run = workflow.run("wait")
    assert run.output == "sdk.timeout"
    failed = next(entry for entry in run.history if entry.kind == "step-failed")
    assert failed.at_ms == run.steps["it"].due_at_ms
    assert "step 'it' failed without an event it could take: sdk.timeout" in run.story


@pytest.mark.case(26)
def test_code_that_changes_its_mind_moves_no_timeout(workflow: WorkflowTest) -> None:
    """Case 026: twenty rediscoveries by code that says 600 s; the first accepted anchor of 60 s stands."""
    workflow.app(waiting_app())
    workflow.invoke("wait")
    begun_ms = int(workflow.now.timestamp() * 1_000)
    for number in range(20):
        workflow.advance("2s")
        workflow.app(waiting_app("600s"), release=f"r{number}")
        workflow.restart_worker()
    (run,) = workflow.settle()
    assert (run.output, run.steps["it"].due_at_ms) == ("sdk.timeout", begun_ms + 60_000)


@pytest.mark.case(28)
@pytest.mark.parametrize(("late_ms", "output"), [(59_999, "heard 1"), (60_000, "sdk.timeout")])
def test_an_event_in_the_last_millisecond_counts(workflow: WorkflowTest, late_ms: int, output: str) -> None:
    """Case 028, "a wait past its anchor times out instead of matching"."""
    workflow.app(waiting_app())
    workflow.invoke("wait")
    workflow.advance(late_ms / 1_000)
    workflow.submit("told", 1)
    (run,) = workflow.settle()
    assert run.output == output


@pytest.mark.case(35)
def test_twelve_runs_with_equal_pairs_all_hear(workflow: WorkflowTest) -> None:
    """Case 035, "all twelve settle": an event is consumed by none of them."""
    workflow.app(waiting_app(order="7"))
    for _ in range(12):
        workflow.invoke("wait")
    workflow.submit("told", {"n": 1}, correlation={"order": "7"})
    assert [run.output for run in workflow.runs()] == ["heard {'n': 1}"] * 12


@pytest.mark.case(35)
@pytest.mark.parametrize(
    "match",
    [{"order": 123}, {"order": True}, {"order": 1.0}, {"order": None}, {7: "7"}, [("order", "7")], "order=7"],
)
def test_a_match_of_anything_but_texts_is_refused_at_its_call(workflow: WorkflowTest, match: object) -> None:
    """Case 035, "names and values are text, anything else is refused at the SDK ... with a typed error"."""
    app = App("waits")

    @app.function
    async def wait(ctx: Context) -> str:
        try:
            await ctx.step.wait_for_event("it", "told", match=match, timeout=1)  # type: ignore[arg-type]
        except DeclarationRefused as refused:
            return f"{refused.refusal} {refused.field}"
        return "accepted"

    workflow.app(app)
    assert workflow.run("wait").output == "invalid_argument match"


@pytest.mark.case(35)
@pytest.mark.parametrize("sent", ["123 ", "é", "e\u0301", "A", "a"])
def test_equality_of_texts_is_exact(workflow: WorkflowTest, sent: str) -> None:
    """Case 035: blanks, composed and decomposed letters, and case all differ."""
    for known in ("123", "123 ", "é", "e\u0301", "A", "a"):
        workflow.app(waiting_app(order=known))
        workflow.invoke("wait")
    workflow.submit("told", 1, correlation={"order": sent})
    assert [run.status for run in workflow.runs()].count("completed") == 1
