"""`ryusen runs show` of runs that sleep and of runs that have emitted an event."""

from __future__ import annotations

from runtime_cli import Cli

from keyspace.records.run import RetryRecord
from keyspace.transitions.accept_declaration import accept_declaration
from keyspace.transitions.declaration import Declaration, EmissionTerms, ServerTerms, TimerTerms
from services.runtime.cli.output import instant

ONCE = RetryRecord(attempts=1, initial_ms=0, coefficient=1.0, cap_ms=0)


def declare(cli: Cli, step_id: str, terms: ServerTerms) -> str:
    """Start a run that declares a step of the server's; return its id."""
    core = cli.world.core
    run = cli.run(core.start_run)
    work = cli.run(core.lease_pass)
    wanted = Declaration(step_id, ONCE, terms=terms)
    cli.run(core.run, "accept_declaration", lambda tx: accept_declaration(tx, "acme", work, wanted))
    return run.run_id


def test_a_run_that_sleeps_shows_until_when(cli: Cli) -> None:
    """RFD 2, "A declaration may be a durable timer": the recorded anchor is what a person sees."""
    run_id = declare(cli, "nap", TimerTerms(delay_ms=3_600_000))
    server = cli.run(cli.world.core.step, run_id, "nap").server
    assert server is not None and server.due_at_ms is not None
    due = instant(server.due_at_ms)
    shown = cli.out("runs", "show", run_id)
    assert "waiting   step nap waits for its time." in shown
    assert f"  until   {due}" in shown
    (row,) = [line for line in shown.splitlines() if line.startswith("nap")]
    assert "waiting" in row and "timer" in row and f"until {due}" in row


def test_a_run_that_told_others_shows_the_event(cli: Cli) -> None:
    """RFD 2, "the accepted result is the receipt": the event's id leads from the run to what it started."""
    run_id = declare(cli, "tell", EmissionTerms(event_name="order.told", payload=b"1"))
    server = cli.run(cli.world.core.step, run_id, "tell").server
    assert server is not None
    shown = cli.out("runs", "show", run_id)
    (row,) = [line for line in shown.splitlines() if line.startswith("tell")]
    assert "completed" in row and "emission" in row and f"event {server.event_id}" in row
    assert f"{server.event_id}" in cli.out("events", "show", str(server.event_id))
