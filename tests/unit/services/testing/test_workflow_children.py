"""Functions that invoke others, through the SDK, the frames, the dispatcher and the transitions."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from ryusen import App, Context, DeclarationRefused, NonRetryable, StepFailed

from services.testing import RunView, WorkflowTest

EXAMPLE = Path(__file__).parents[4] / "sdk_py" / "examples" / "packing.py"


def a_family() -> App:
    """`parent` invokes `child` with its own input, and says what it came to."""
    app = App("family")

    @app.function
    async def child(ctx: Context, ask: dict[str, Any]) -> Any:
        if "sleep" in ask:
            await ctx.step.sleep("nap", ask["sleep"])
        if "fail" in ask:
            await ctx.step.run("first", lambda: "done", compensate=lambda value: None)
            raise NonRetryable(ask["fail"], details={"asked": True})
        return ask.get("return")

    @app.function(on="family.asked")
    async def parent(ctx: Context, ask: dict[str, Any]) -> list[Any]:
        try:
            return ["returned", await ctx.step.invoke("call", child, ask, timeout=ask.get("timeout"))]
        except StepFailed as exc:
            return [exc.category, exc.message, exc.details, exc.attempts]

    return app


def the_child(workflow: WorkflowTest, run: RunView) -> RunView:
    (child,) = [one for one in workflow.runs("child") if one.parent == run.id]
    assert run.steps["call"].child == child.id
    return child


@pytest.mark.case(40)
@pytest.mark.parametrize("value", [None, 0, "", [], {"a": [1, None]}, 2**53 + 1])
def test_what_the_child_returns_is_what_the_call_returns(workflow: WorkflowTest, value: Any) -> None:
    """Case 040, "child returning None": the value itself, whatever it is."""
    workflow.app(a_family())
    run = workflow.run("parent", {"return": value})
    assert run.output == ["returned", value]
    child = the_child(workflow, run)
    assert (child.status, child.event, child.steps) == ("completed", "", {})
    assert "invoked by step 'call'" in child.story and "invoked run" in run.story
    workflow.check()


@pytest.mark.case(40)
def test_a_childs_failure_arrives_after_it_has_been_undone(workflow: WorkflowTest) -> None:
    """RFD 2, "a child's failure reaches its parent only after the child's own compensation finishes"."""
    workflow.app(a_family())
    run = workflow.run("parent", {"fail": "no stock"})
    category, message, details, attempts = run.output
    assert (category, details, attempts) == ("child.failed", {"asked": True}, 0)
    assert "no stock" in message
    child = the_child(workflow, run)
    assert (child.status, child.recovery) == ("failed", "compensated")
    heard_ms = next(entry.at_ms for entry in run.history if entry.kind == "step-failed")
    assert heard_ms >= child.history[-1].at_ms


@pytest.mark.case(40)
@pytest.mark.parametrize(("timeout", "category"), [("5m", "child.timed_out"), (0, "sdk.timeout")])
def test_a_child_without_time_left_is_stopped(workflow: WorkflowTest, timeout: Any, category: str) -> None:
    """RFD 2, "the invoke timeout anchored at acceptance": over at once when it is zero."""
    workflow.app(a_family())
    run = workflow.run("parent", {"sleep": "1h", "timeout": timeout})
    assert run.output[0] == category
    child = the_child(workflow, run)
    assert child.status == "timed_out"
    assert ("nap" in child.steps) == (timeout != 0), "nothing of it runs without any time"


def test_a_run_that_waits_for_its_child_says_so(workflow: WorkflowTest) -> None:
    """The story and the status name the run that is waited for."""
    workflow.app(a_family())
    workflow.submit("family.asked", {"sleep": "1h"})
    (run,) = workflow.runs("parent")
    child = the_child(workflow, run)
    assert child.id in run.waiting and run.steps["call"].state == "waiting"
    workflow.advance("1h")
    assert workflow.read(run).output == ["returned", None]


def test_a_function_that_is_not_there_is_refused_where_it_is_called(workflow: WorkflowTest) -> None:
    """FILLED-IN 11, "A refused declaration": raised at the call, and the pass goes on."""
    app = App("alone")

    @app.function
    async def asks(ctx: Context) -> list[Any]:
        try:
            await ctx.step.invoke("call", "nowhere")
        except DeclarationRefused as refusal:
            return [refusal.refusal, refusal.field]
        return []

    workflow.app(app)
    assert workflow.run("asks").output == ["unknown_function", "function"]
    assert len(workflow.runs()) == 1


@pytest.mark.case(47)
def test_a_function_may_call_itself_as_deep_as_documented(workflow: WorkflowTest) -> None:
    """RFD 2, "a chain deeper than the documented depth limit": the call at depth 16 is refused, and all 16 return."""
    app = App("deep")

    @app.function
    async def dig(ctx: Context, depth: int) -> Any:
        try:
            return await ctx.step.invoke("deeper", dig, depth + 1)
        except DeclarationRefused as refusal:
            return [depth, refusal.refusal, refusal.limit]

    workflow.app(app)
    assert workflow.run("dig", 0).output == [16, "child_depth", 16]
    assert len(workflow.runs("dig")) == 17


def test_children_in_turn_each_behind_the_other(workflow: WorkflowTest) -> None:
    """FILLED-IN 11, "One outstanding step": also where they are gathered."""
    app = App("turns")

    @app.function
    async def double(ctx: Context, number: int) -> int:
        return await ctx.step.run("double", lambda: number * 2)

    @app.function
    async def total(ctx: Context, numbers: list[int]) -> int:
        results = [await ctx.step.invoke(f"d{number}", double, number) for number in numbers]
        return sum(results)

    workflow.app(app)
    assert workflow.run("total", list(range(8))).output == 56
    assert [run.status for run in workflow.runs("double")] == ["completed"] * 8


@pytest.fixture
def packing(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("packing", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "packing", module)
    spec.loader.exec_module(module)
    return module


def test_the_example_sends_what_can_be_sent(workflow: WorkflowTest, packing: ModuleType) -> None:
    """What newcomers copy must work."""
    workflow.app(packing.app)
    run = workflow.run("send", {"id": "o-1", "items": ["lamp", "chair", "rug"]})
    assert run.output == {"lamp": "o-1/lamp-1", "chair": "not sent: child.failed", "rug": "o-1/rug-1"}
    assert [child.parent for child in workflow.runs("pack")] == [run.id] * 3
