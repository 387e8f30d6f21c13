"""`ryusen functions` against a gateway in this process."""

from __future__ import annotations

import json

import pytest
from runtime_cli import Cli

from keyspace.records.run import FailureRecord


def test_the_functions_of_the_active_routing_are_listed(cli: Cli) -> None:
    cli.run(lambda: cli.world.core.publish({"quiet": [], "loud": ["a", "b"]}, application="other"))
    listed = cli.json("functions", "list")
    assert [(one["application"], one["name"]) for one in listed] == [
        ("other", "loud"),
        ("other", "quiet"),
        ("shop", "fulfil"),
    ]
    assert [trigger["event"] for trigger in listed[0]["triggers"]] == ["a", "b"]
    assert cli.json("functions", "list", "shop")[0]["manifest_generation"] == 1
    assert cli.out("functions", "list", "other").splitlines()[1].split() == ["other", "loud", "a,", "b", "1"]
    none = cli.invoke("functions", "list", "nowhere")
    assert (none.exit_code, none.stdout) == (0, "")
    assert "no such application" in none.stderr


@pytest.mark.case(67)
def test_an_invocation_keeps_its_bytes_and_names_its_run(cli: Cli) -> None:
    """Case 067: the input's text travels as it was given; the run's id stands on standard output."""
    run = cli.out("functions", "invoke", "shop", "fulfil", "--input", '{"n":  9007199254740993}').strip()
    cli.run(cli.world.core.expand)
    assert '"input":{"n":  9007199254740993}' in cli.out("runs", "show", run, "--json")
    (event,) = cli.json("events", "list")
    text = cli.out("events", "show", event["event"])
    assert "invokes      shop/fulfil" in text
    assert run in text
    made = cli.json("functions", "invoke", "shop", "fulfil", "--idempotency-key", "k", "--timestamp-ms", "5")
    again = cli.invoke("functions", "invoke", "shop", "fulfil", "--idempotency-key", "k", "--timestamp-ms", "5")
    assert again.stdout.strip() == made["run"]
    assert "accepted before under this key" in again.stderr


@pytest.mark.parametrize("payload", ["@/nonexistent", "{", "NaN", ""])
def test_an_input_that_is_no_json_is_a_usage_error(cli: Cli, payload: str) -> None:
    result = cli.invoke("functions", "invoke", "shop", "fulfil", "--input", payload)
    assert result.exit_code == 2
    assert "input" in result.stderr


def begun(cli: Cli) -> list[str]:
    """Invoke under a key, let the run begin, and return the arguments that ask for the same again and wait."""
    arguments = ["functions", "invoke", "shop", "fulfil", "--idempotency-key", "k"]
    cli.out(*arguments)
    cli.run(cli.world.core.expand)
    return [*arguments, "--wait"]


def test_waiting_shows_what_happened_and_the_output(cli: Cli) -> None:
    """Data on standard output, what happens on standard error, and 0 for a run that has completed."""
    waiting = begun(cli)
    cli.run(cli.world.core.run_step)

    async def complete() -> None:
        await cli.world.core.complete(await cli.world.core.lease_pass(), b"[1,  2]")

    cli.run(complete)
    result = cli.invoke(*waiting)
    assert (result.exit_code, result.stdout) == (0, "[1,  2]\n")
    lines = [line.split()[2] for line in result.stderr.splitlines() if " s  " in line]
    assert (lines[0], lines[-1]) == ("run-created", "run-completed")
    raw = cli.out(*waiting, "--json")
    assert '"output":[1,  2]' in raw
    assert json.loads(raw)["status"] == "completed"


def test_waiting_for_a_run_that_fails_ends_with_1(cli: Cli) -> None:
    waiting = begun(cli)

    async def fail() -> None:
        await cli.world.core.fail(await cli.world.core.lease_pass(), FailureRecord(category="odd", message="no"))

    cli.run(fail)
    result = cli.invoke(*waiting)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "odd: no" in result.stderr
    told = cli.invoke(*waiting, "--json")
    assert (told.exit_code, json.loads(told.stdout)["status"]) == (1, "failed")


@pytest.mark.case(37)
def test_waiting_for_a_function_that_is_not_there_says_what_is_missing(cli: Cli) -> None:
    """Case 037, "and no reason": one line, and the exit code of a refusal."""
    arguments = ["functions", "invoke", "shop", "gone", "--idempotency-key", "k"]
    cli.out(*arguments)
    cli.run(cli.world.core.expand)
    result = cli.invoke(*arguments, "--wait")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "declares no function gone in routing generation 1" in result.stderr
    told = cli.invoke(*arguments)
    assert told.exit_code == 0
    assert "declares no function gone" in told.stderr


def test_a_refusal_is_one_line(cli: Cli) -> None:
    cli.out("functions", "invoke", "shop", "fulfil", "--idempotency-key", "k")
    result = cli.invoke("functions", "invoke", "shop", "fulfil", "--idempotency-key", "k", "--input", "2")
    assert result.exit_code == 1
    assert "idempotency_conflict" in result.stderr
