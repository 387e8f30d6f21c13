"""Random workflows under random incidents: what must hold in every life, shown by the helper as a user would see it."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from ryusen import App, Context, NonRetryable, Retry, StepFailed, current_attempt

from services.testing import RunView, WorkflowTest

SEEDS = range(6)
RUNS = 6
ROUNDS = 4


class RandomShop:
    """An application whose steps fail as its generator says; counts each attempt that did something."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.done: Counter[tuple[str, str, int]] = Counter()
        self.app = App("shop")
        self.steps = [f"step-{number}" for number in range(rng.randrange(1, 5))]
        self.app.function(on="placed", name="fulfil")(self.fulfil)

    async def fulfil(self, ctx: Context) -> int:
        count = 0
        for step in self.steps:
            retry = Retry(attempts=3, initial="10m", cap="1h")
            try:
                count += await ctx.step.run(step, self.work, retry=retry, timeout="1m")
            except StepFailed:
                if step == self.steps[-1]:
                    raise
        return count

    async def work(self) -> int:
        attempt = current_attempt()
        self.done[(attempt.run_id, attempt.step_id, attempt.attempt)] += 1
        luck = self.rng.random()
        if luck < 0.2:
            raise ValueError("not now")
        if luck < 0.25:
            raise NonRetryable("never")
        return 1


def plan(workflow: WorkflowTest, rng: random.Random, step: str) -> None:
    choices = [
        lambda: workflow.lose_worker_during(step),
        lambda: workflow.lose_worker_during(step, effect=False),
        lambda: workflow.cut_off_worker_during(step),
        lambda: workflow.time_out_during(step),
    ]
    rng.choice(choices)()


def bring_back(workflow: WorkflowTest, rng: random.Random) -> None:
    worker = workflow._engine.workers["shop"]
    if worker.is_alive and not worker.is_connected and rng.random() < 0.7:
        workflow.reconnect_worker()
    elif not worker.is_connected:
        workflow.restart_worker()


def judge(run: RunView, shop: RandomShop) -> None:
    unknown = [step.id for step in run.steps.values() if step.state == "unknown"]
    if run.status == "running":
        assert unknown, run.story
        assert "operator" in run.waiting
    else:
        assert run.status in ("completed", "failed"), run.story
        assert not unknown, run.story
    if run.status == "completed":
        assert run.output == sum(step.value or 0 for step in run.steps.values())
    for step in run.steps.values():
        for attempt in step.attempts:
            assert shop.done[(run.id, step.id, attempt.ordinal)] <= 1, run.story
        accepted = [attempt for attempt in step.attempts if attempt.state == "succeeded"]
        assert len(accepted) == (step.state == "completed"), run.story


@pytest.mark.parametrize("seed", SEEDS)
def test_every_run_ends_or_says_what_is_unknown(seed: int) -> None:
    """No attempt does its work twice, no step has two results, fsck is clean, and only Unknown keeps a run from its end."""
    rng = random.Random(seed)
    shop = RandomShop(random.Random(seed + 1))
    workflow = WorkflowTest(seed=seed)
    try:
        workflow.app(shop.app, capacity=rng.randrange(1, 4))
        for _ in range(ROUNDS):
            plan(workflow, rng, rng.choice(shop.steps))
            for _ in range(rng.randrange(RUNS)):
                workflow.submit("placed")
            workflow.advance(rng.choice(["1s", "20s", "15m"]))
            bring_back(workflow, rng)
        for _ in range(ROUNDS + 1):  # each incident that is left may take the worker away once more
            workflow.settle()
            bring_back(workflow, rng)
        for run in workflow.settle():
            judge(run, shop)
        assert workflow._problems() == []
    finally:
        workflow.close()
