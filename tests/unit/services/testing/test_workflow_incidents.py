"""What the helper lets go wrong: workers that are lost, cut off or late, and steps that exceed their timeout."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from ryusen import App, Context, Retry, StepFailed, current_attempt

from services.testing import KeyspaceProblems, WorkflowTest, WorkflowTestError


class Shop:
    """An application of three steps that counts what its callbacks did."""

    def __init__(self, **charge_options: Any) -> None:
        self.effects: list[str] = []
        self.app = App("shop")
        self.charge_options = charge_options
        self.app.function(on="placed", name="fulfil")(self.fulfil)

    async def fulfil(self, ctx: Context, order: int) -> str:
        await ctx.step.run("reserve", self.effect, "reserve")
        await ctx.step.run("charge", self.effect, "charge", **self.charge_options)
        return await ctx.step.run("ship", self.effect, "ship")

    async def effect(self, name: str) -> str:
        self.effects.append(name)
        return name


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """An event that user code waits for and that is set at the end, so that no thread is left behind."""
    event = threading.Event()
    yield event
    event.set()


def test_a_worker_lost_in_the_middle_leaves_an_unknown_attempt(workflow: WorkflowTest, shop: Shop) -> None:
    """RFD 2, "An authorized effectful attempt that loses contact": what a lost worker did is not done again; other runs go on with a new one."""
    workflow.app(shop.app)
    workflow.lose_worker_during("charge")
    run = workflow.run("fulfil", 1)
    (attempt,) = run.steps["charge"].attempts
    assert (run.status, run.steps["charge"].state, attempt.state) == ("running", "unknown", "unknown")
    assert attempt.lost_at_ms is not None
    assert "operator" in run.waiting
    assert "is Unknown: its worker was lost while it ran" in run.story
    workflow.restart_worker()
    assert workflow.run("fulfil", 2).status == "completed"
    assert workflow.read(run).steps["charge"].state == "unknown"
    assert shop.effects.count("charge") == 2


def test_a_worker_may_be_lost_before_the_effect(workflow: WorkflowTest, shop: Shop) -> None:
    """The service cannot tell the difference, so this attempt is Unknown too although nothing was done."""
    workflow.app(shop.app)
    workflow.lose_worker_during("charge", effect=False)
    run = workflow.run("fulfil", 1)
    assert run.steps["charge"].state == "unknown"
    assert shop.effects == ["reserve"]


def test_a_step_declared_idempotent_is_run_again(workflow: WorkflowTest) -> None:
    """FILLED-IN 2: the same attempt goes to the next worker, under the operation id that the lost one was given; nobody decides."""
    told: list[tuple[str, int]] = []

    def charge() -> str:
        attempt = current_attempt()
        told.append((attempt.operation_id, attempt.attempt))
        return "charged"

    app = App("shop")

    @app.function(on="placed")
    async def fulfil(ctx: Context, order: int) -> str:
        return await ctx.step.run("charge", charge, idempotent=True)

    workflow.app(app)
    workflow.lose_worker_during("charge")
    run = workflow.run("fulfil", 1)
    assert (run.steps["charge"].state, "waits for a compatible worker" in run.waiting) == ("pending", True)
    assert "attempt 1 of step 'charge' was lost with its worker; it may be repeated, in 0 ms" in run.story
    workflow.restart_worker()
    [run] = workflow.settle()
    assert (run.status, run.output) == ("completed", "charged")
    assert len(told) == 2
    assert len(set(told)) == 1
    assert [attempt.state for attempt in run.steps["charge"].attempts] == ["succeeded"]


def test_an_idempotent_step_that_kills_its_worker_is_unknown_in_the_end(workflow: WorkflowTest) -> None:
    """FILLED-IN 2, "lost three times in a row": a callback that takes every worker down with it does not go on for ever."""
    shop = Shop(idempotent=True)
    workflow.app(shop.app)
    for _ in range(3):
        workflow.lose_worker_during("charge")
    workflow.run("fulfil", 1)
    for _ in range(2):
        workflow.restart_worker()
        workflow.settle()
    [run] = workflow.runs()
    assert (run.steps["charge"].state, shop.effects.count("charge")) == ("unknown", 3)
    assert run.kinds.count("attempt-redelivered") == 2


def test_the_late_result_of_an_idempotent_step_does_no_harm(workflow: WorkflowTest) -> None:
    """Case 016, "benign everywhere": the worker that comes back is given the step again; the first result is a diagnostic then."""
    shop = Shop(idempotent=True)
    workflow.app(shop.app)
    workflow.cut_off_worker_during("charge")
    run = workflow.run("fulfil", 1)
    assert run.steps["charge"].state == "pending"
    workflow.reconnect_worker()
    [run] = workflow.settle()
    assert (run.status, run.kinds.count("step-completed")) == ("completed", 3)
    assert shop.effects == ["reserve", "charge", "charge", "ship"]


def test_a_late_result_settles_what_was_unknown(workflow: WorkflowTest, shop: Shop) -> None:
    """A worker that was cut off keeps its result; back in a new session, it settles the attempt and the run goes on."""
    workflow.app(shop.app)
    workflow.cut_off_worker_during("charge")
    run = workflow.run("fulfil", 1)
    assert run.steps["charge"].state == "unknown"
    assert shop.effects == ["reserve", "charge"]
    workflow.advance("1d")
    workflow.reconnect_worker()
    workflow.settle()
    run = workflow.read(run)
    assert run.status == "completed"
    assert shop.effects == ["reserve", "charge", "ship"]
    assert [attempt.state for attempt in run.steps["charge"].attempts] == ["succeeded"]
    assert "attempt-unknown" in run.kinds


def test_a_worker_that_comes_back_in_time_loses_nothing(workflow: WorkflowTest, shop: Shop) -> None:
    """Within the lease a broken connection is no loss: the attempt is never Unknown."""
    workflow.app(shop.app)
    workflow.cut_off_worker_during("charge")
    workflow.submit("placed", 1)
    workflow.advance("2s")
    workflow.reconnect_worker()
    (run,) = workflow.settle()
    assert run.status == "completed"
    assert "attempt-unknown" not in run.kinds
    assert shop.effects == ["reserve", "charge", "ship"]


def test_work_waits_for_a_worker(workflow: WorkflowTest, shop: Shop) -> None:
    """Without a worker nothing is lost and nothing hangs: the run says what it waits for."""
    workflow.app(shop.app)
    workflow.lose_worker()
    run = workflow.run("fulfil", 1)
    assert run.status == "running"
    assert "waits for a compatible worker" in run.waiting
    workflow.restart_worker()
    assert workflow.settle()[0].status == "completed"


def test_a_timeout_passes_in_virtual_time(workflow: WorkflowTest) -> None:
    """An attempt that exceeds its timeout fails with `sdk.timeout`, and the next one may succeed."""
    shop = Shop(timeout="5m", retry=Retry(attempts=2, initial="1s"))
    workflow.app(shop.app)
    workflow.time_out_during("charge")
    run = workflow.run("fulfil", 1)
    first, second = run.steps["charge"].attempts
    assert first.failure is not None
    assert first.failure.category == "sdk.timeout"
    assert (first.settled_at_ms or 0) - (first.started_at_ms or 0) == 5 * 60_000
    assert (second.state, run.status) == ("succeeded", "completed")


def test_a_callback_that_hangs_can_be_timed_out(workflow: WorkflowTest, gate: threading.Event) -> None:
    """A plain callback that never returns is reported at its timeout, and the run goes on without it."""
    app = App("shop")

    @app.function(on="placed")
    async def fulfil(ctx: Context) -> str:
        try:
            await ctx.step.run("charge", gate.wait, timeout="10s", retry=Retry(attempts=1))
        except StepFailed as failed:
            return failed.category
        return "charged"

    workflow.app(app)
    workflow.time_out_during("charge")
    assert workflow.run("fulfil").output == "sdk.timeout"


def test_a_step_without_a_timeout_cannot_exceed_it(workflow: WorkflowTest, shop: Shop) -> None:
    """The plan is refused in words, when it would have to happen."""
    workflow.app(shop.app)
    workflow.time_out_during("reserve")
    with pytest.raises(WorkflowTestError, match="'reserve' has no timeout"):
        workflow.run("fulfil", 1)


def test_an_incident_that_never_happens_fails_the_check(shop: Shop) -> None:
    """A plan for a step that nobody has would make a test pass without testing anything."""
    with pytest.raises(KeyspaceProblems, match="'chrage'"), WorkflowTest() as test:
        test.app(shop.app)
        test.lose_worker_during("chrage")
        test.run("fulfil", 1)


def test_only_a_worker_that_was_cut_off_can_reconnect(workflow: WorkflowTest, shop: Shop) -> None:
    """A killed process does not come back, and one that is there has no need to."""
    workflow.app(shop.app)
    with pytest.raises(WorkflowTestError, match="is connected"):
        workflow.reconnect_worker()
    workflow.lose_worker()
    with pytest.raises(WorkflowTestError, match="was killed"):
        workflow.reconnect_worker()
    with pytest.raises(WorkflowTestError, match="shop"):
        workflow.restart_worker("ship")


def test_incidents_of_one_step_happen_one_after_another(workflow: WorkflowTest) -> None:
    """Two planned timeouts strike two attempts; a plan for another function's step of that name is left alone."""
    shop = Shop(timeout="1m", retry=Retry(attempts=3, initial="1s"))
    workflow.app(shop.app)
    workflow.time_out_during("charge", function="fulfil")
    workflow.time_out_during("charge")
    run = workflow.run("fulfil", 1)
    assert [attempt.state for attempt in run.steps["charge"].attempts] == ["failed", "failed", "succeeded"]


def test_fsck_fails_a_test_whose_store_is_damaged(shop: Shop) -> None:
    """The check reads everything stored, as `ryusen fsck` does."""
    test = WorkflowTest()
    try:
        test.app(shop.app)
        test.run("fulfil", 1)
        test.check()
        store = test._engine.keyspace.store

        async def damage() -> None:
            raw = store.begin()
            raw.set(b"\x02nobody's\x00", b"?")
            await raw.commit()

        test._loop.call(damage())
        with pytest.raises(KeyspaceProblems, match="no leaf has such a key"):
            test.check()
        assert "no leaf has such a key" in test.describe()
    finally:
        test.close()
