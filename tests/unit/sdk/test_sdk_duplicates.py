"""A pass that meets one step id twice: it stops before the second callback, whatever user code does about it.

RFD 1, "During each discovery pass, the SDK tracks every encountered ID"; case 052.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from typing import Any

import pytest
from ryusen import App, Context, StepFailed
from ryusen.errors import DeclarationRefused
from ryusen.protocol.frames import DefinitionBlocked, Failure, StepMemo
from ryusen.worker.passes import Ended, Pass, PassInput
from sdk_waiting import until
from test_sdk_passes import Watched, done, never

pytestmark = pytest.mark.case(52)
HERE = __file__


def line_of(function: Any, text: str) -> str:
    """Return where, in a function's source, the line with `text` stands."""
    lines, first = inspect.getsourcelines(function)
    return f"{HERE}:{first + next(number for number, line in enumerate(lines) if text in line)}"


async def blocked(watched: Watched) -> DefinitionBlocked:
    turn = await watched.turn()
    assert isinstance(turn, Ended), turn
    assert isinstance(turn.ending, DefinitionBlocked), turn
    return turn.ending


async def test_a_second_call_stops_the_pass_and_names_both_places() -> None:
    """RFD 1, "returns a structured duplicate_step_id definition conflict before the second callback can execute"."""
    seen: list[str] = []

    async def flow(ctx: Context) -> None:
        await ctx.step.run("a", never, name="the first")
        seen.append("between")
        await ctx.step.run("a", never, name="the second")
        seen.append("behind")

    watched = Watched(flow, done("a", b"1"))
    conflict = await blocked(watched)
    assert (conflict.reason, conflict.step) == ("duplicate_step_id", "a")
    assert (conflict.first.location, conflict.first.name) == (line_of(flow, "the first"), "the first")
    assert (conflict.duplicate.location, conflict.duplicate.name) == (line_of(flow, "the second"), "the second")
    await watched.close()
    assert seen == ["between"], "the call neither returns nor raises"


async def test_a_constant_id_in_a_loop() -> None:
    """Case 052, "a loop with a constant id": both places are the same line."""

    async def flow(ctx: Context) -> None:
        for _ in range(3):
            await ctx.step.run("a", never)

    conflict = await blocked(Watched(flow, done("a", b"1")))
    assert conflict.first == conflict.duplicate
    assert conflict.first.location == line_of(flow, "ctx.step.run")


async def test_a_helper_called_twice() -> None:
    """Case 052, "a helper called twice": the places are inside the helper, which is where the id stands."""

    async def helper(ctx: Context) -> int:
        return int(await ctx.step.run("a", never))

    async def flow(ctx: Context) -> int:
        return await helper(ctx) + await helper(ctx)

    conflict = await blocked(Watched(flow, done("a", b"1")))
    assert conflict.duplicate.location == line_of(helper, "ctx.step.run")


@pytest.mark.parametrize("is_recorded", [False, True])
async def test_duplicates_inside_gather(is_recorded: bool) -> None:
    """Case 052, "duplicates inside asyncio.gather": the first may be declared and run; when its value comes, the pass stops."""

    async def flow(ctx: Context) -> None:
        await asyncio.gather(ctx.step.run("a", never), ctx.step.run("a", never), ctx.step.run("b", never))

    watched = Watched(flow, *([done("a", b"1")] if is_recorded else []))
    if not is_recorded:
        assert await watched.met() == "a"
        watched.its_pass.proceed(b"1")
    assert (await blocked(watched)).step == "a"
    await watched.close()


KINDS = {
    "run": lambda ctx, step_id: ctx.step.run(step_id, never),
    "sleep": lambda ctx, step_id: ctx.step.sleep(step_id, "1h"),
    "sleep_until": lambda ctx, step_id: ctx.step.sleep_until(step_id, 1),
    "send_event": lambda ctx, step_id: ctx.step.send_event(step_id, "some.event"),
}


@pytest.mark.parametrize(("first", "second"), [(a, b) for a in KINDS for b in KINDS])
async def test_one_id_across_kinds(first: str, second: str) -> None:
    """Case 052, "one id across step, timer, wait, invocation and emission": an id is one operation, whatever its kind."""

    async def flow(ctx: Context) -> None:
        await KINDS[first](ctx, "a")
        await KINDS[second](ctx, "a")

    watched = Watched(flow, StepMemo(id="a"))
    assert (await blocked(watched)).step == "a"
    await watched.close()


async def test_a_duplicate_on_a_rare_branch() -> None:
    """Case 052, "a duplicate only on a rare branch after the first result is durable"; RFD 1, "Mutually exclusive branches"."""

    async def flow(ctx: Context) -> str:
        if await ctx.step.run("choose", never) == 1:
            return "first " + str(await ctx.step.run("shared", never))
        if await ctx.step.run("other", never) == 1:
            return "second " + str(await ctx.step.run("shared", never))
        return str(await ctx.step.run("choose", never))

    shared = done("shared", b'"s"')
    assert await Watched(flow, done("choose", b"1"), shared).completed() == "first s"
    assert await Watched(flow, done("choose", b"2"), done("other", b"1"), shared).completed() == "second s"
    assert (await blocked(Watched(flow, done("choose", b"2"), done("other", b"2"), shared))).step == "choose"


async def test_no_handler_hears_of_it() -> None:
    """RFD 1, "blocks ... instead of silently returning the first result": user code can neither catch nor time it away."""
    heard: list[str] = []

    async def flow(ctx: Context) -> str:
        await ctx.step.run("a", never)
        try:
            await asyncio.wait_for(ctx.step.run("a", never), 0.001)
        except TimeoutError:
            heard.append("timed out")
        except Exception:  # noqa: BLE001 - as user code does
            heard.append("caught")
        return "went on"

    watched = Watched(flow, done("a", b"1"))
    assert (await blocked(watched)).step == "a"
    await until(lambda: bool(heard))
    assert heard == ["timed out"]
    await watched.close()
    assert watched.turns.empty(), "what the function comes to later is not heard"


async def test_a_duplicate_in_a_task_of_its_own_ends_the_pass() -> None:
    """A task that nobody awaits meets the id again while the function waits for another step."""

    async def flow(ctx: Context) -> None:
        await ctx.step.run("a", never)
        task = asyncio.ensure_future(ctx.step.run("a", never))
        try:
            await ctx.step.run("b", never)
        finally:
            task.cancel()

    watched = Watched(flow, done("a", b"1"))
    # `b` was reached first, so it is offered; the conflict is told when the pass has its turn again.
    assert await watched.met() == "b"
    watched.its_pass.proceed(b"2")
    assert (await blocked(watched)).step == "a"
    await watched.close()


async def test_a_refused_declaration_gives_the_turn_to_the_conflict() -> None:
    """The pass met the id twice, whatever became of the first call."""

    async def flow(ctx: Context) -> None:
        with contextlib.suppress(DeclarationRefused):
            await ctx.step.run("a", never)
        await ctx.step.run("a", never)

    watched = Watched(flow)
    assert await watched.met() == "a"
    watched.its_pass.refuse(DeclarationRefused("step_limit", "steps", 1))
    assert (await blocked(watched)).step == "a"
    await watched.close()


async def test_a_step_that_failed_is_not_tried_again_under_its_id() -> None:
    """RFD 1: an id is one logical operation; a second call after a caught failure is a second call."""

    async def flow(ctx: Context) -> None:
        try:
            await ctx.step.run("a", never)
        except StepFailed:
            await ctx.step.run("a", never)

    failed = StepMemo(id="a", failure=Failure(category="application", message="no", attempts=3))
    watched = Watched(flow, failed)
    assert (await blocked(watched)).step == "a"
    assert watched.its_pass.failed_met == ["a"]
    await watched.close()


async def test_the_first_conflict_of_a_pass_is_the_one_that_is_told() -> None:
    async def flow(ctx: Context) -> None:
        await ctx.step.run("a", never)
        await ctx.step.run("b", never)
        await asyncio.gather(ctx.step.run("b", never), ctx.step.run("a", never))

    watched = Watched(flow, done("a", b"1"), done("b", b"2"))
    assert (await blocked(watched)).step == "b"
    await watched.close()
    assert watched.turns.empty()


async def test_the_worker_says_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    """The log names the id, the function, both places and the way out."""

    async def flow(ctx: Context) -> None:
        await ctx.step.run("a", never)  # first
        await ctx.step.run("a", never)  # again

    with caplog.at_level(logging.WARNING, logger="ryusen.worker"):
        await blocked(Watched(flow, done("a", b"1")))
    (message,) = [record.getMessage() for record in caplog.records if "used twice" in record.getMessage()]
    for part in ("'a'", "flow", line_of(flow, "# first"), line_of(flow, "# again"), "run-1", "another id"):
        assert part in message


async def test_closing_ends_the_calls_that_wait_for_ever() -> None:
    """`finally` blocks run, and no task is left behind."""
    ended: list[str] = []

    async def flow(ctx: Context) -> None:
        await ctx.step.run("a", never)
        try:
            await asyncio.gather(ctx.step.run("a", never), ctx.step.run("a", never))
        finally:
            ended.append("finally")

    watched = Watched(flow, done("a", b"1"))
    await blocked(watched)
    await watched.close()
    assert ended == ["finally"]


async def test_nothing_blocks_while_steps_are_undone() -> None:
    """RFD 2, "the definition conflict itself never triggers compensation", and must not leave steps undone either: no
    forward callback runs in such a pass, so it may go on with the first call's result."""
    asked: list[object] = []

    async def flow(ctx: Context) -> None:
        for _ in range(2):
            await ctx.step.run("a", never)
        await ctx.step.run("b", never, compensate=asked.append)

    app = App("test")
    app.function(flow)
    turns: asyncio.Queue[Any] = asyncio.Queue()
    memo = (done("a", b"1"), done("b", b"2"))
    given = PassInput("run-1", "event-1", "order.placed", b"null", memo, 1_000, undo_target="b")
    its_pass = Pass(app.functions["flow"], given, turns.put_nowait)
    its_pass.start()
    turn = await asyncio.wait_for(turns.get(), 5)
    assert turn.call.declaration.id == "b" and turn.call.compensate is not None
    its_pass.close()
