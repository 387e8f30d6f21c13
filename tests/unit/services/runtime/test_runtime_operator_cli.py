"""`ryusen runs cancel` and `ryusen attempts`: what they say they will do, what they did, and whom they ask."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from runtime_cli import Cli
from transitions.world import LEASE_MS

from keyspace.transitions.work import Work


def lose(cli: Cli, work: Work) -> Work:
    cli.world.clock.advance(LEASE_MS)
    cli.run(cli.world.core.lose, work.item_id)
    return work


def unknown_step(cli: Cli) -> Work:
    cli.run(cli.world.core.start_run)
    return lose(cli, cli.run(cli.world.core.start_step))


def at(work: Work) -> tuple[str, str, str]:
    assert work.step_id is not None
    return work.run_id, work.step_id, str(work.generation)


def sit_at_a_terminal(monkeypatch: pytest.MonkeyPatch, is_terminal: bool) -> None:
    """Let the commands' standard input be a terminal or not; the runner's own never is."""
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda _: is_terminal, raising=False)


# -- cancelling


def test_a_run_is_cancelled_and_told_before_and_after(cli: Cli) -> None:
    run = cli.run(cli.world.core.start_run)
    cli.run(cli.world.core.run_step)
    work = cli.run(cli.world.core.start_step, "s2")
    result = cli.invoke("runs", "cancel", run.run_id)
    assert result.exit_code == 0
    assert result.stdout == f"{run.run_id} accepted: cancelling\n"
    before, after = result.stderr.splitlines()
    assert "shop/fulfil is running" in before
    assert "what is running now goes on and its outcome is waited for" in before
    assert "the undo of 1 completed step begins" in before
    assert "still waited for" in after
    shown = cli.out("runs", "show", run.run_id)
    assert "The run was cancelled: step s2 had begun" in shown
    assert f"by {cli.world.key_ids['acme', 'admin']}" in shown
    cli.run(cli.world.core.succeed, work)
    again = cli.invoke("runs", "cancel", run.run_id)
    assert again.stdout == f"{run.run_id} repeated: compensating\n"
    assert "cancelling it again changes nothing" in again.stderr
    assert cli.json("runs", "cancel", run.run_id)["outcome"] == "repeated"


@pytest.mark.case(20)
def test_a_run_that_ended_first_is_not_claimed(cli: Cli) -> None:
    """Case 020: the reply says that it had completed."""
    run = cli.run(cli.world.core.start_run)
    cli.run(cli.world.core.complete, cli.run(cli.world.core.lease_pass))
    result = cli.invoke("runs", "cancel", run.run_id)
    assert result.stdout == f"{run.run_id} already_terminal: completed, not_required:execution_succeeded\n"
    assert "has ended as completed; cancelling it changes nothing" in result.stderr
    fresh = cli.run(cli.world.core.start_run)
    assert "it ends, with nothing to undo" in cli.invoke("runs", "cancel", fresh.run_id).stderr


# -- the list


def test_unknown_outcomes_are_listed(cli: Cli) -> None:
    work = unknown_step(cli)
    (listed,) = cli.json("attempts", "list", "--unresolved")
    assert (listed["run"], listed["step"], listed["generation"]) == (work.run_id, "s1", 1)
    header, row = cli.out("attempts", "list").splitlines()
    assert header.split()[:4] == ["run", "function", "step", "direction"]
    assert row.split()[:6] == [work.run_id, "shop/fulfil", "s1", "forward", "1", "1"]
    cli.run(cli.world.core.succeed, work)
    result = cli.invoke("attempts", "list")
    assert (result.stdout, "no attempt whose outcome is unknown" in result.stderr) == ("", True)


# -- resolving


def test_a_success_travels_as_the_text_it_is_given_in(cli: Cli, tmp_path: Path) -> None:
    work = unknown_step(cli)
    value = tmp_path / "value.json"
    value.write_bytes(b'{"n":  9007199254740993, "f": 1.0}\n')
    result = cli.invoke("attempts", "resolve", *at(work), "--success", f"@{value}")
    assert result.exit_code == 0
    assert result.stdout == f"{work.run_id} s1 generation 1: succeeded\n"
    before, key, after = result.stderr.splitlines()
    operation = cli.run(cli.world.core.attempt, work.run_id, "s1", 1).operation_id
    assert f"operation {operation}" in before
    assert "is unknown" in before
    assert "it will count as done" in before
    assert len(key.removeprefix("ryusen: idempotency key ")) == 32
    assert "the function goes on" in after
    assert cli.run(cli.world.core.value, work.run_id, "s1") == b'{"n":  9007199254740993, "f": 1.0}'


def test_a_failure_carries_its_category_and_details(cli: Cli) -> None:
    work = unknown_step(cli)
    more = ("--category", "bank", "--details", '{"code": 51}', "--idempotency-key", "k")
    made = cli.json("attempts", "resolve", *at(work), "--failure", "no", *more)
    assert (made["command"], made["replayed"]) == ("declare_failure", False)
    again = cli.invoke("attempts", "resolve", *at(work), "--failure", "no", *more)
    assert "recorded before under this key" in again.stderr
    shown = cli.run(cli.world.core.attempt, work.run_id, "s1", 1).failure
    assert (shown.category, shown.message, shown.details) == ("bank", "no", '{"code": 51}')
    conflict = cli.invoke("attempts", "resolve", *at(work), "--retry", "--idempotency-key", "k")
    assert (conflict.exit_code, "[idempotency_conflict]" in conflict.stderr, conflict.stdout) == (1, True, "")


def test_a_retry_says_that_it_may_happen_twice(cli: Cli) -> None:
    work = unknown_step(cli)
    result = cli.invoke("attempts", "resolve", *at(work), "--retry")
    assert "if it had happened, it happens twice" in result.stderr
    assert "Generation 2 may run now" in result.stderr
    stale = cli.invoke("attempts", "resolve", *at(work), "--retry")
    assert (stale.exit_code, "[stale_attempt]" in stale.stderr) == (1, True)


def test_a_stopped_run_refuses_a_retry(cli: Cli) -> None:
    work = unknown_step(cli)
    assert "the attempt of unknown outcome must be settled" in cli.invoke("runs", "cancel", work.run_id).stderr
    result = cli.invoke("attempts", "resolve", *at(work), "--retry")
    assert (result.exit_code, "[retry_forbidden]" in result.stderr, result.stdout) == (1, True, "")
    assert "the run was stopped or its time is over, so this will be refused" in result.stderr
    settled = cli.invoke("attempts", "resolve", *at(work), "--success", "1")
    assert "be undone with the others" in settled.stderr.splitlines()[0]


def test_a_run_past_its_deadline_refuses_a_retry_too(cli: Cli) -> None:
    """RFD 2, "Explicit retry is refused as deadline_elapsed": said before it is asked, although no timer has fired."""
    core = cli.world.core
    cli.run(lambda: core.publish({"fulfil": ["order.placed"]}, timeout_ms=2 * LEASE_MS))
    work = unknown_step(cli)
    assert [one["may_retry"] for one in cli.json("attempts", "list")] == [True]
    cli.world.clock.advance(LEASE_MS)
    (listed,) = cli.json("attempts", "list")
    assert (listed["stop"], listed["may_retry"]) == (None, False)
    result = cli.invoke("attempts", "resolve", *at(work), "--retry")
    assert (result.exit_code, "[deadline_elapsed]" in result.stderr) == (1, True)
    assert "its time is over, so this will be refused" in result.stderr
    settled = cli.invoke("attempts", "resolve", *at(work), "--success", "1")
    assert "be undone with the others" in settled.stderr.splitlines()[0]
    assert "is undone with the others" in settled.stderr.splitlines()[-1]


def test_a_compensation_is_named(cli: Cli) -> None:
    work = unknown_step(cli)
    result = cli.invoke("attempts", "resolve", *at(work), "--retry", "--compensation")
    assert "the undo of step s1 has no generation 1" in result.stderr
    assert "[stale_attempt]" in result.stderr


USAGE: list[tuple[tuple[str, ...], str]] = [
    ((), "exactly one of"),
    (("--retry", "--failure", "no"), "exactly one of"),
    (("--success", "1", "--retry"), "exactly one of"),
    (("--retry", "--category", "c"), "go with --failure"),
    (("--success", "{"), "not JSON text"),
    (("--success", "@/nonexistent"), "cannot be read"),
    (("--failure", "no", "--details", "NaN"), "not JSON text"),
]


@pytest.mark.parametrize(
    ("options", "said"), USAGE, ids=lambda value: " ".join(value) if isinstance(value, tuple) else ""
)
def test_a_wrong_command_is_a_usage_error_and_sends_nothing(cli: Cli, options: tuple[str, ...], said: str) -> None:
    result = cli.invoke("attempts", "resolve", "0" * 32, "s1", "1", *options)
    assert (result.exit_code, said in result.stderr, result.stdout) == (2, True, "")


def test_a_generation_counts_from_one(cli: Cli) -> None:
    for generation in ("0", "x"):
        assert cli.invoke("attempts", "resolve", "0" * 32, "s1", generation, "--retry").exit_code == 2


# -- asking


@pytest.mark.parametrize("command", ["cancel", "resolve"])
def test_a_person_is_asked_and_may_say_no(cli: Cli, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    """HOUSE 16: what cannot be taken back is asked about on a terminal; without an answer nothing happens."""
    work = unknown_step(cli)
    acts = {"cancel": ("runs", "cancel", work.run_id), "resolve": ("attempts", "resolve", *at(work), "--retry")}
    question = {"cancel": "Cancel it?", "resolve": "Decide so?"}[command]
    sit_at_a_terminal(monkeypatch, True)
    before = cli.run(cli.world.core.dump)
    for answer in ("n\n", ""):
        result = cli.invoke(*acts[command], stdin=answer)
        assert (result.exit_code, question in result.stderr, result.stdout) == (1, True, "")
    assert cli.run(cli.world.core.dump) == before
    agreed = cli.invoke(*acts[command], "--json", stdin="y\n")
    assert (agreed.exit_code, question in agreed.stderr) == (0, True)
    assert json.loads(agreed.stdout)["run"] == work.run_id


@pytest.mark.parametrize(("is_terminal", "options"), [(True, ("--yes",)), (False, ())])
def test_a_script_is_not_asked(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, is_terminal: bool, options: tuple[str, ...]
) -> None:
    work = unknown_step(cli)
    sit_at_a_terminal(monkeypatch, is_terminal)
    result = cli.invoke("attempts", "resolve", *at(work), "--retry", *options)
    assert (result.exit_code, "Decide so?" in result.stderr) == (0, False)
