"""`ryusen runs show` and `cancel` of runs that invoke others."""

from __future__ import annotations

from runtime_cli import Cli

from keyspace.records.run import RetryRecord
from keyspace.transitions.accept_declaration import accept_declaration
from keyspace.transitions.declaration import ChildTerms, Declaration

ONCE = RetryRecord(attempts=1, initial_ms=0, coefficient=1.0, cap_ms=0)


def family(cli: Cli) -> tuple[str, str]:
    """Start a run that invokes another; return both ids."""
    core = cli.world.core
    cli.run(core.publish, {"fulfil": ["order.placed"], "pick": []})
    run = cli.run(core.start_run)
    work = cli.run(core.lease_pass)
    wanted = Declaration("call", ONCE, terms=ChildTerms(function="pick", input=b"7"))
    cli.run(core.run, "accept_declaration", lambda tx: accept_declaration(tx, "acme", work, wanted))
    child_id = cli.run(core.get_run, run.run_id).child_id
    assert child_id is not None
    return run.run_id, child_id


def test_a_run_shows_its_child_and_the_child_its_parent(cli: Cli) -> None:
    run_id, child_id = family(cli)
    shown = cli.out("runs", "show", run_id)
    assert f"child     {child_id}" in shown
    assert f"step call waits for run {child_id}" in shown
    assert "event     " in shown and "parent    " not in shown
    child = cli.out("runs", "show", child_id)
    assert f"parent    {run_id} step call (depth 1)" in child
    assert "event     " not in child
    assert "input     7" in child


def test_cancelling_says_that_the_child_is_stopped_too(cli: Cli) -> None:
    run_id, _ = family(cli)
    result = cli.invoke("runs", "cancel", run_id)
    assert result.stdout == f"{run_id} accepted: cancelling\n"
    before, after = result.stderr.splitlines()
    assert "the run it waits for is stopped too and must end" in before
    assert "an invoked run that has not ended" in after
