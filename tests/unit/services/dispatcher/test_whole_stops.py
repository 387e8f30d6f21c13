"""Cancellations at drawn moments of runs that a worker takes on by itself: 1,000 seeds of each kind, on the whole rig.

A moment is a frame on the wire, whosever, and some turns of the event loop behind it: in the middle of a commit as well.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import pytest
from ryusen import App, Context
from ryusen.protocol.frames import Assign
from whole_rig import Whole, effect, effects

from keyspace.clock import VirtualClock
from keyspace.layout import HISTORY, RUN, STEP, identify
from keyspace.lifecycle import CompensationState, Execution, Phase, Recovery, StepState
from keyspace.records.run import RunRecord, StepRecord
from keyspace.transitions.stop_run import StopOutcome, StopReply, cancel_run
from services.dispatcher.options import DispatcherOptions

RUNS = 50
SEEDS = range(20)
"""Each takes RUNS runs, each with a moment of its own: 1,000 in all, half of them with continuation."""
STEP_MS = 50
LOOP_STEPS = 4
TURNS_MAX = 12
"""Of the event loop, behind a frame: a commit takes about as many."""
CAPACITY = 8
BEGINNINGS = frozenset({"pass-authorized", "step-declared", "attempt-authorized", "retry-scheduled"})


def loop_app(clocks: list[VirtualClock]) -> App:
    """Return an application that does some steps in a loop, each with an undo, on a clock that comes later."""
    app = App("shop")

    async def work(number: int) -> int:
        effect()
        await clocks[0].sleep_ms(STEP_MS)
        return number

    async def undo(number: int) -> None:
        pass

    @app.function(on="order.placed")
    async def fulfil(ctx: Context, order: Any) -> int:
        for number in range(LOOP_STEPS):
            await ctx.step.run(f"s{number}", work, number, compensate=undo)
        return LOOP_STEPS

    return app


def ending_app(clocks: list[VirtualClock]) -> App:
    """Return an application that ends after one step: well for an even order, badly for an odd one."""
    app = App("shop")

    async def work(number: int) -> int:
        effect()
        return number

    async def undo(number: int) -> None:
        pass

    @app.function(on="order.placed")
    async def fulfil(ctx: Context, order: int) -> int:
        number = await ctx.step.run("s0", work, order, compensate=undo)
        if number % 2:
            raise RuntimeError("odd")
        return number

    return app


class StoppedWhole(Whole):
    """A deployment whose runs are cancelled, each some frames after it was first assigned."""

    def __init__(self, app: App, rng: random.Random, frames_of_run: int, options: DispatcherOptions) -> None:
        super().__init__(app, capacity=CAPACITY, options=options)
        self.rng = rng
        self.frames_max = frames_of_run * CAPACITY
        self.assigned: set[str] = set()
        self.moments: dict[int, list[str]] = {}
        self.replies: dict[str, StopReply] = {}

    async def begin(self) -> None:
        await self.world.begin()
        for number in range(RUNS):
            await self.world.start_run(payload=str(number).encode())

    def next_frame_fault(self, frame: object) -> None:
        super().next_frame_fault(frame)
        if isinstance(frame, Assign) and frame.ref.run not in self.assigned:
            self.assigned.add(frame.ref.run)
            moment = len(self.frames) + self.rng.randrange(self.frames_max)
            self.moments.setdefault(moment, []).append(frame.ref.run)
        for run_id in self.moments.pop(len(self.frames), ()):
            self.group.start_soon(self.stop, run_id, self.rng.randrange(TURNS_MAX))

    async def is_over(self) -> bool:
        # Asked at every turn of time; while the worker has something there is no need to read fifty runs.
        return not self.worker.core._works.requests() and await super().is_over()

    async def stop(self, run_id: str, turns: int) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)
        self.replies[run_id] = await self.world.run(
            "cancel_run", lambda tx: cancel_run(tx, "acme", run_id, by="operator-1")
        )
        self.activity += 1


async def told(make_app: Callable[[list[VirtualClock]], App], seed: int, frames_of_run: int) -> StoppedWhole:
    """Take the runs of a seed to their ends; each effect ran once at most."""
    clocks: list[VirtualClock] = []
    options = DispatcherOptions(continues=bool(seed % 2))
    whole = StoppedWhole(make_app(clocks), random.Random(seed), frames_of_run, options)
    clocks.append(whole.world.clock)
    await whole.begin()
    await whole.to_the_end()
    await whole.world.check()
    assert set(effects.values()) <= {1}, f"seed {seed}: an attempt ran twice"
    return whole


def judge_accepted(run: RunRecord, steps: list[StepRecord], kinds: list[str]) -> None:
    """The cancel came first: nothing began behind it, and all that was done is undone."""
    assert run.execution is Execution.CANCELLED
    behind = kinds[kinds.index("stop-committed") : kinds.index("unwind-started") if run.unwind else None]
    assert not BEGINNINGS.intersection(behind), "forward work began behind the stop"
    done = [step for step in steps if step.state is StepState.COMPLETED]
    assert {step.compensation for step in done} <= {CompensationState.DONE}
    assert run.recovery is (Recovery.COMPENSATED if done else Recovery.EMPTY_UNWIND)
    ran = sum(effects[run.run_id, step.step_id, 1] for step in steps)
    assert ran == len(done), "what was authorized before the stop has run, and joined the unwind"


def judge_late(run: RunRecord, kinds: list[str], reply: StopReply) -> None:
    """The run's own end came first: the reply says so, and the cancel has left no trace."""
    assert run.execution is not Execution.CANCELLED
    assert reply.execution is run.execution, "the reply tells who was first"
    assert run.stop is None
    assert "stop-committed" not in kinds


async def judge(whole: StoppedWhole) -> Counter[str]:
    """Hold every reply against what became of its run, and count the kinds of replies."""
    runs: dict[str, RunRecord] = {}
    steps: dict[str, list[StepRecord]] = defaultdict(list)
    kinds: dict[str, list[str]] = defaultdict(list)
    for key, value in (await whole.world.dump()).items():
        leaf, at = identify(key) or (None, ())
        if leaf is RUN:
            runs[at[1]] = RUN.codec.decode(value)
        elif leaf is STEP:
            steps[at[1]].append(STEP.codec.decode(value))
        elif leaf is HISTORY:
            kinds[at[1]].append(HISTORY.codec.decode(value).kind)
    seen: Counter[str] = Counter()
    for run_id, reply in whole.replies.items():
        run = runs[run_id]
        assert run.phase is Phase.TERMINAL
        name = reply.outcome.value
        if reply.outcome is StopOutcome.ACCEPTED:
            judge_accepted(run, steps[run_id], kinds[run_id])
            name = f"accepted, {'settling' if reply.is_settling else reply.phase.value}"
        else:
            judge_late(run, kinds[run_id], reply)
        seen[name] += 1
    return seen


@pytest.mark.case(22)
async def test_a_cancel_among_steps_lets_nothing_more_begin() -> None:
    """Case 022: result N counts if it was authorized before the stop, declaration N+1 does not, and N is undone too."""
    seen: Counter[str] = Counter()
    for seed in SEEDS:
        seen += await judge(await told(loop_app, seed, frames_of_run=16))
    print(f"\n{dict(seen)}")
    assert sum(seen.values()) >= len(SEEDS) * RUNS * 9 // 10
    assert min(seen[name] for name in ("accepted, settling", "accepted, compensating", "accepted, terminal")) >= 50


@pytest.mark.case(20)
async def test_a_cancel_beside_the_end_has_one_winner() -> None:
    """Case 020: completion, failure and the last undo against a cancel; reply, record and history tell of one order."""
    seen: Counter[str] = Counter()
    for seed in SEEDS:
        seen += await judge(await told(ending_app, seed, frames_of_run=8))
    print(f"\n{dict(seen)}")
    assert sum(seen.values()) >= len(SEEDS) * RUNS * 8 // 10
    assert min(seen[name] for name in ("accepted, terminal", "already_ending", "already_terminal")) >= 20
