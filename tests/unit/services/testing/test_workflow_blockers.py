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
