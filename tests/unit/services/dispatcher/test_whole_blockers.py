"""A duplicate id from the user's code to the store and back: the SDK's own passes against the dispatcher, in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from ryusen import App, Context
from ryusen.protocol.frames import Answer, DefinitionBlocked
from test_whole_continuation import RecordingPlan, State
from transitions.final_state import final_state
from whole_rig import FrameFault, Whole, effect, effects

from keyspace.layout import BLOCKED, BLOCKER
from keyspace.lifecycle import Execution, Phase
from keyspace.store.fault_plan import CommitFault, FaultPlan
from keyspace.transitions.rediscover_run import rediscover_run
from keyspace.transitions.stop_run import cancel_run
from services.dispatcher.options import DispatcherOptions

pytestmark = [pytest.mark.case(52), pytest.mark.case(50)]
UNKNOWN, NOT_WRITTEN = CommitFault.UNKNOWN_COMMITTED, CommitFault.UNKNOWN_NOT_COMMITTED


async def give(value: Any) -> Any:
    effect()
    return value


class Code:
    """A function whose code is replaced: while it has the mistake it uses an id twice."""

    def __init__(self, shape: str) -> None:
        self.is_fixed = False
        self.app = App("shop")
        self.app.function(on="order.placed", name="fulfil")(getattr(self, shape))

    @property
    def again(self) -> str:
        return "three" if self.is_fixed else "two"

    async def sequence(self, ctx: Context) -> Any:
        await ctx.step.run("one", give, 1)
        await ctx.step.run("two", give, 2)
        return await ctx.step.run(self.again, give, 3)

    async def gathered(self, ctx: Context) -> Any:
        await ctx.step.run("one", give, 1)
        return await asyncio.gather(ctx.step.run("two", give, 2), ctx.step.run(self.again, give, 3))

    async def at_once(self, ctx: Context) -> Any:
        """The conflict hides everything: the steps it stands before are unstarted."""
        if not self.is_fixed:
            await asyncio.gather(ctx.step.run("one", give, 1), ctx.step.run("one", give, 1))
        await ctx.step.run("one", give, 1)
        await ctx.step.run("two", give, 2)
        return await ctx.step.run("three", give, 3)


async def told(shape: str, *, continues: bool = True, **given: Any) -> tuple[Whole, State]:
    """Block a run by a mistake, deploy the fix, ask for another look, and take it to its end."""
    code = Code(shape)
    whole = Whole(code.app, options=DispatcherOptions(continues=continues), **given)
    await whole.world.begin()
    run = await whole.world.start_run()

    async def is_over() -> bool:
        now = await whole.world.get_run(run.run_id)
        if now.phase is Phase.DEFINITION_BLOCKED and now.item_id is None:
            code.is_fixed = True
            minted = whole.world.keyspace.mint()
            await whole.world.run(
                "rediscover_run", lambda tx: rediscover_run(tx, "acme", run.run_id, by="ann", item_id=minted)
            )
        return await whole.is_over()

    await whole.to_the_end(is_over)
    await whole.world.check()
    return whole, final_state(await whole.world.dump())


SHAPES = ("sequence", "gathered", "at_once")
ways = pytest.mark.parametrize("continues", [True, False], ids=["continuing", "queued"])


@ways
@pytest.mark.parametrize("shape", SHAPES)
async def test_a_mistake_is_fixed_and_the_run_completes(shape: str, continues: bool) -> None:
    """Case 052, "The second callback never runs; ... accepted results survive; no compensation"; case 050, "fix and deploy"."""
    whole, _ = await told(shape, continues=continues)
    (run,) = await whole.world.runs()
    assert run.execution is Execution.COMPLETED and run.step_count == 3
    assert sorted(step for _, step, _ in effects.elements()) == ["one", "three", "two"], "each effect once"
    kinds = await whole.world.kinds(run.run_id)
    assert (kinds.count("definition-blocked"), kinds.count("definition-unblocked")) == (1, 1)
    entry = next(entry for entry in await whole.world.history(run.run_id) if entry.kind == "definition-blocked")
    for site in ("first", "duplicate"):
        assert __file__ in entry.data[site]["location"], "the worker told both places"


@ways
async def test_the_story_is_the_same_on_both_ways(continues: bool) -> None:
    """ARCHITECTURE 6: continuation saves round trips and nothing else, also where a pass is blocked."""
    _, state = await told("sequence", continues=continues)
    _, expected = await told("sequence", continues=not continues)
    assert state == expected


@pytest.mark.case(1)
@ways
@pytest.mark.parametrize("fault", [UNKNOWN, NOT_WRITTEN, CommitFault.STOP_AFTER], ids=lambda fault: fault.value)
async def test_a_fault_at_every_commit_around_the_blocker(fault: CommitFault, continues: bool) -> None:
    """Case 001: one blocker, one clearing, each effect once, whatever the store says of the commit."""
    plan = RecordingPlan()
    _, expected = await told("sequence", continues=continues, plan=plan)
    touching = {"block_run", "continue_run", "accept_declaration", "lease_items", "accept_success", "complete_run"}
    for number, name in enumerate(plan.names, 1):
        if name in touching:
            whole, state = await told("sequence", continues=continues, plan=FaultPlan().at_commit(number, fault))
            assert state == expected, f"{fault.value} at commit {number}, {name}"
            assert whole.stops == (fault is CommitFault.STOP_AFTER)


@pytest.mark.parametrize("fault", list(FrameFault), ids=lambda fault: fault.name.lower())
async def test_the_report_meets_a_fault_on_its_way(fault: FrameFault) -> None:
    """A report that is cut off, repeated, late or overtaken blocks the run once."""
    quiet, expected = await told("sequence")
    number = next(
        index
        for index, frame in enumerate(quiet.worker.said)
        if isinstance(frame, Answer) and isinstance(frame.ending, DefinitionBlocked)
    )
    answers = [index for index, name in enumerate(quiet.frames, 1) if name == "Answer"]
    before = sum(isinstance(frame, Answer) for frame in quiet.worker.said[:number])
    whole, state = await told("sequence", frame_faults={answers[before]: fault})
    (run,) = await whole.world.runs()
    assert run.execution is Execution.COMPLETED
    assert (await whole.world.kinds(run.run_id)).count("definition-unblocked") == 1
    if fault is not FrameFault.CUT_BEFORE:
        assert state == expected


@pytest.mark.case(20)
@ways
async def test_a_blocked_run_is_cancelled(continues: bool) -> None:
    """Case 052, "then cancel while blocked": what completed is undone, the blocker goes, and no pass is asked any more."""
    code = Code("sequence")
    whole = Whole(code.app, options=DispatcherOptions(continues=continues))
    await whole.world.begin()
    run = await whole.world.start_run()

    async def is_over() -> bool:
        now = await whole.world.get_run(run.run_id)
        if now.phase is Phase.DEFINITION_BLOCKED:
            await whole.world.run("cancel_run", lambda tx: cancel_run(tx, "acme", run.run_id, by="ann"))
        return await whole.is_over()

    await whole.to_the_end(is_over)
    after = await whole.world.get_run(run.run_id)
    assert after.execution is Execution.CANCELLED and after.phase is Phase.TERMINAL
    assert await whole.world.records(BLOCKER) == await whole.world.records(BLOCKED) == []
    assert sorted(step for _, step, _ in effects.elements()) == ["one", "two"]
    await whole.world.check()
