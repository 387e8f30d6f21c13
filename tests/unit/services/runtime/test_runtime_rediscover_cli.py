"""`ryusen runs rediscover`, and how a blocked run is shown: what will be done, what was done, and both as JSON."""

from __future__ import annotations

import pytest
from runtime_cli import Cli

pytestmark = pytest.mark.case(52)


def be_blocked(cli: Cli) -> str:
    run = cli.run(cli.world.core.start_run)
    cli.run(cli.world.core.block, cli.run(cli.world.core.lease_pass))
    return str(run.run_id)


def test_a_blocked_run_is_looked_at_again_and_told_before_and_after(cli: Cli) -> None:
    run_id = be_blocked(cli)
    result = cli.invoke("runs", "rediscover", run_id)
    assert (result.exit_code, result.stdout) == (0, f"{run_id} accepted\n")
    before, after = result.stderr.splitlines()
    assert "Step id 'twice' is used twice in one pass, first at shop.py:10 (reserve), again at shop.py:20." in before
    assert "Its next pass will run the code that is deployed now" in before
    assert "looked at again" in after
    again = cli.invoke("runs", "rediscover", run_id)
    assert again.stdout == f"{run_id} already_requested\n"
    assert "Asking again changes nothing" in again.stderr


def test_the_answer_as_json(cli: Cli) -> None:
    run_id = be_blocked(cli)
    answer = cli.json("runs", "rediscover", run_id)
    assert (answer["run"], answer["outcome"], answer["blocker"]["step"]) == (run_id, "accepted", "twice")


def test_a_run_that_is_not_blocked_is_refused_by_its_code(cli: Cli) -> None:
    run = cli.run(cli.world.core.start_run)
    result = cli.invoke("runs", "rediscover", run.run_id)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "not blocked by its definition" in result.stderr and "[run_not_blocked]" in result.stderr


@pytest.mark.case(76)
def test_a_blocked_run_shows_what_to_fix(cli: Cli) -> None:
    """Case 076: what it waits for and since when, in a list and alone."""
    run_id = be_blocked(cli)
    shown = cli.out("runs", "show", run_id)
    for part in (
        "definition_blocked",
        "step id 'twice' is used twice",
        "shop.py:10 (reserve)",
        "shop.py:20",
        "another id",
    ):
        assert part in shown
    assert "next    looked at again" in shown, "its worker names no release, so it is probed"
    (listed,) = cli.json("runs", "list", "--status", "definition_blocked")
    assert (listed["run"], listed["waiting"]["word"]) == (run_id, "fix")
    assert "definition-blocked" in cli.out("runs", "history", run_id)
