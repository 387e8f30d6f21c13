"""A duplicate step id in a user's test: the run says what is wrong, and goes on once the code is right."""

from __future__ import annotations

import pytest
from ryusen import App, Context

from keyspace.errors import Refusal
from services.testing import WorkflowTest

pytestmark = pytest.mark.case(52)


async def give(value: int) -> int:
    return value


def application(last: str) -> App:
    """Return an application whose second step is called `last`."""
    app = App("shop")

    @app.function(on="order.placed")
    async def fulfil(ctx: Context) -> int:
        first = await ctx.step.run("one", give, 1)
        return first + await ctx.step.run(last, give, 2)

    return app


def test_a_duplicate_is_told_where_it_stands() -> None:
    """What a person sees in a failed assertion: status, sentence, and the story with both places."""
    with WorkflowTest(seed=1) as test:
        test.app(application("one"))
        run = test.run("fulfil")
        assert run.status == "definition_blocked"
        assert run.blocker is not None
        assert (run.blocker.step, run.blocker.count) == ("one", 1)
        assert __file__ in run.blocker.first and __file__ in run.blocker.again
        assert run.blocker.first != run.blocker.again
        assert "Step id 'one' is used twice in one pass" in run.waiting
        assert f"step id 'one' was met twice, at {run.blocker.first} and at {run.blocker.again}" in run.story
        assert run.steps["one"].value == 1
        before = test.now
        test.settle()
        assert test.now == before, "settling does not wait for code to change"


def test_a_deployed_fix_and_another_look() -> None:
    with WorkflowTest(seed=2) as test:
        test.app(application("one"))
        run = test.run("fulfil")
        test.app(application("two"))
        assert test.read(run).status == "definition_blocked", "workers that name no release announce nothing"
        fixed = test.rediscover(run)
        assert (fixed.status, fixed.output, fixed.blocker) == ("completed", 3, None)
        assert fixed.kinds.count("definition-unblocked") == 1
        with pytest.raises(Refusal, match="run_not_blocked"):
            test.rediscover(fixed)


def test_another_look_at_the_same_code() -> None:
    with WorkflowTest(seed=3) as test:
        test.app(application("one"))
        run = test.rediscover(test.run("fulfil"))
        assert run.status == "definition_blocked" and run.blocker is not None
        assert run.blocker.count == 2
        assert "definition-still-blocked" in run.kinds


def test_a_release_wakes_its_blocked_runs_by_itself() -> None:
    """RFD 1, "A newly preferred connected release wakes blocked runs for its functions": nobody asks for anything."""
    with WorkflowTest(seed=4) as test:
        test.app(application("one"), release="v1")
        runs = [test.run("fulfil") for _ in range(40)]
        assert {run.status for run in runs} == {"definition_blocked"}
        test.advance("2d")
        assert {test.read(run).blocker.count for run in runs} == {1}, "what announces itself is not probed"  # type: ignore[union-attr]
        test.app(application("two"), release="v2")
        assert {run.status for run in test.settle()} == {"completed"}
        assert all("definition-woken" in test.read(run).kinds for run in runs)


def test_code_that_announces_nothing_is_looked_at_from_time_to_time() -> None:
    """RFD 1, "a capped low-frequency probe": after 1, 2, 4, ... minutes, and at most once an hour."""
    with WorkflowTest(seed=5) as test:
        test.app(application("one"))
        run = test.run("fulfil")
        for minutes in (1, 2, 4, 8, 16, 32, 60, 60, 60):
            count = test.read(run).blocker.count  # type: ignore[union-attr]
            test.advance(f"{minutes * 60 - 1}s")
            assert test.read(run).blocker.count == count  # type: ignore[union-attr]
            test.advance("1s")
            assert test.read(run).blocker.count == count + 1  # type: ignore[union-attr]
        test.app(application("two"))
        test.advance("1h")
        assert test.read(run).status == "completed"


@pytest.mark.case(50)
def test_a_release_that_is_still_wrong_and_then_another() -> None:
    """Case 052, "another id duplicated next": each release gets its look; the blocker follows what the newest says."""
    with WorkflowTest(seed=6) as test:
        test.app(application("one"), release="v1")
        run = test.run("fulfil")
        test.app(application("one"), release="v2")
        test.settle()
        blocked = test.read(run)
        assert blocked.blocker is not None and blocked.blocker.count == 2
        test.app(application("two"), release="v3")
        test.settle()
        assert test.read(run).output == 3
