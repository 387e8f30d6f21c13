"""The command line against a gateway in this process: data on standard output, everything else on standard error."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import click
import pytest
from click.testing import CliRunner
from runtime_cli import Cli
from unit.services.gateway.gateway_world import SYSTEM_KEY

from keyspace.transitions.fire_deadline import fire_deadline
from keyspace.transitions.register_release import register_release
from services.runtime.cli import main
from services.runtime.settings import SETTINGS

T = TypeVar("T")

APP = """
from ryusen import App
app = App("shop")
@app.function(on="order.placed")
async def fulfil(ctx): ...
@app.function(on="order.billed")
async def bill(ctx): ...
"""


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "cli_shop.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return "cli_shop:app"


def test_an_event_travels_from_the_command_line_to_a_run_and_back(cli: Cli, tmp_path: Path) -> None:
    payload = tmp_path / "payload.json"
    payload.write_bytes(b'{"n":  9007199254740993, "f": 1.0}\n')
    event = cli.out(
        "events", "submit", "order.placed", "--payload", f"@{payload}", "--idempotency-key", "k",
        "--correlation", "order=7", "--timestamp-ms", "5",
    ).strip()  # fmt: skip
    cli.run(cli.world.core.expand)
    raw = cli.out("events", "show", event, "--json")
    assert '"payload":{"n":  9007199254740993, "f": 1.0}' in raw
    shown = json.loads(raw)
    assert (shown["correlation"], shown["timestamp_ms"]) == ({"order": "7"}, 5)
    assert [one["event"] for one in cli.json("events", "list")] == [event]
    (run,) = cli.json("runs", "list", "--application", "shop", "--function", "fulfil")
    text = cli.out("runs", "show", run["run"])
    assert '{"n":  9007199254740993, "f": 1.0}' in text
    assert "waits for a compatible worker" in text
    cli.run(cli.world.core.run_step)

    async def complete() -> None:
        await cli.world.core.complete(await cli.world.core.lease_pass(), b"[1,  2]")

    cli.run(complete)
    assert '"output":[1,  2]' in cli.out("runs", "show", run["run"], "--json")
    assert "completed" in cli.out("runs", "list", "--status", "completed")
    kinds = [json.loads(line)["kind"] for line in cli.out("runs", "history", run["run"], "--json").splitlines()]
    followed = cli.out("runs", "history", run["run"], "--follow").splitlines()
    assert kinds[0] == "run-created"
    assert kinds[-1] == "run-completed"
    assert [line.split()[3] for line in followed] == kinds


def test_a_run_shows_its_deadline_and_who_gave_it(cli: Cli) -> None:
    """RFD 1, "The effective absolute deadline and its source are observable": with what is left of it, until it is met."""
    cli.run(lambda: cli.world.core.publish({"fulfil": ["order.placed"]}, timeout_ms=90_000))
    run = cli.run(cli.world.core.start_run)
    text = cli.out("runs", "show", run.run_id)
    assert "deadline  2023-11-14 22:14:50.000Z by its function, 1 min 30 s left" in text
    assert cli.json("runs", "show", run.run_id)["deadline"]["source"] == "function"
    cli.run(cli.world.core.lease_pass)
    cli.world.clock.advance(90_000)

    async def fire() -> None:
        await cli.world.core.run(
            "fire_deadline", lambda tx: fire_deadline(tx, "acme", run.run_id, run.timeout_item or "")
        )

    cli.run(fire)
    text = cli.out("runs", "show", run.run_id)
    assert "by its function\n" in text and "left" not in text
    assert "stopped   timed_out 2023-11-14 22:14:50.000Z by deadline" in text
    assert "timed_out" in cli.out("runs", "list", "--status", "timed_out")


@pytest.mark.parametrize("payload", ["@/nonexistent", "{", "NaN", ""])
def test_a_payload_that_is_no_json_is_a_usage_error(cli: Cli, payload: str) -> None:
    result = cli.invoke("events", "submit", "order.placed", "--payload", payload)
    assert result.exit_code == 2
    assert "payload" in result.stderr


@pytest.mark.case(67)
def test_a_payload_from_standard_input_keeps_its_bytes(cli: Cli) -> None:
    """Case 067: through the command line, there and back; one trailing newline is the shell's, not the value's."""
    event = cli.json("events", "submit", "e", "--payload", "-", stdin=b'"\\u00e9 -0.0 \xc3\xa9"\n')["event"]
    assert '"payload":"\\u00e9 -0.0 é"' in cli.out("events", "show", event, "--json")


def test_manifests_are_published_and_routed(cli: Cli, app: str) -> None:
    made = cli.json("manifests", "publish", app, "--activate")
    assert made["manifest"]["generation"] == 2
    assert made["routing"]["applications"] == {"shop": 2}
    assert "generation 2" in cli.out("manifests", "publish", app)
    assert [one["generation"] for one in cli.json("manifests", "list", "shop")] == [2, 1]
    assert cli.json("routing", "activate", "shop=1")["applications"] == {"shop": 1}
    assert cli.json("routing", "show")["applications"] == {"shop": 1}
    assert "shop" in cli.out("routing", "show")
    for wrong in ("shop", "shop=x", "=1"):
        assert cli.invoke("routing", "activate", wrong).exit_code == 2
    assert cli.invoke("routing", "activate", "shop=9").exit_code == 1
    assert cli.invoke("manifests", "publish", "cli_shop:nothing").exit_code == 2


def test_releases_are_listed_with_their_live_sessions(cli: Cli) -> None:
    assert "no worker ever named a release" in cli.invoke("releases", "list", "shop").stderr

    async def register() -> None:
        await cli.world.core.run(
            "register_release", lambda tx: register_release(tx, "acme", "shop", "2026-11-30.1", {"fulfil": ""})
        )

    cli.run(register)
    (found,) = cli.json("releases", "list", "shop")
    assert (found["name"], found["live_sessions"], found["function_count"]) == ("2026-11-30.1", 0, 1)
    assert "2026-11-30.1" in cli.out("releases", "list", "shop")


def test_workspaces_and_keys_are_managed(cli: Cli) -> None:
    operator = {"RYUSEN_KEY": SYSTEM_KEY}
    assert cli.out("workspaces", "create", "third", **operator).strip() == "third"
    assert [one["name"] for one in cli.json("workspaces", "list", **operator)] == ["acme", "rival", "third"]
    result = cli.invoke("keys", "create", "--role", "reader", "--label", "eyes")
    secret = result.stdout.strip()
    assert secret.startswith("ryk_")
    assert secret not in result.stderr
    assert cli.invoke("runs", "list", RYUSEN_KEY=secret).exit_code == 0
    (key,) = [one for one in cli.json("keys", "list") if one["label"] == "eyes"]
    assert cli.out("keys", "revoke", key["key"]).strip() == key["key"]
    assert cli.invoke("runs", "list", RYUSEN_KEY=secret).exit_code == 1
    assert "eyes" in cli.out("keys", "list")


@pytest.mark.parametrize(
    ("arguments", "environ", "code", "said"),
    [
        (("runs", "show", "0" * 32), {}, 1, "[not_found]"),
        (("runs", "list", "--status", "sleeping"), {}, 1, "[invalid_query]"),
        (("runs", "list"), {"RYUSEN_KEY": "wrong"}, 1, "[unauthenticated]"),
        (("runs", "list"), {"RYUSEN_WORKSPACE": ""}, 2, "RYUSEN_WORKSPACE"),
        (("runs", "list"), {"RYUSEN_URL": "gateway"}, 2, "http://host:port"),
        (("events", "submit", "e", "--correlation", "x"), {}, 2, "KEY=VALUE"),
        (("events", "submit", "ryusen/e"), {}, 1, "[reserved_name]"),
        (("events", "submit", "e", "--idempotency-key", " "), {}, 1, "[invalid_idempotency_key]"),
    ],
)
def test_a_refusal_is_one_line_on_standard_error_and_a_code(
    cli: Cli, arguments: tuple[str, ...], environ: dict[str, str], code: int, said: str
) -> None:
    """HOUSE 16: 1 failed or refused, 2 usage; standard output stays clean."""
    result = cli.invoke(*arguments, **environ)
    assert result.exit_code == code
    assert said in result.stderr
    assert result.stdout == ""


def test_a_service_that_does_not_answer_is_not_ready() -> None:
    env = {"RYUSEN_URL": "http://127.0.0.1:1", "RYUSEN_WORKSPACE": "acme", "RYUSEN_KEY": "k"}
    result = CliRunner().invoke(main, ["runs", "list"], env=env)
    assert result.exit_code == 3
    assert "no answer from http://127.0.0.1:1" in result.stderr


def test_the_configuration_is_shown_with_its_origins() -> None:
    env = {"RYUSEN_LEASE_MS": "20000", "RYUSEN_SYSTEM_KEY": "a-secret-of-many-characters"}
    result = CliRunner().invoke(main, ["config", "--json", "--gateway-port", "7"], env=env)
    shown = {one["name"]: one for one in json.loads(result.stdout)}
    assert list(shown) == [setting.name for setting in SETTINGS]
    assert (shown["lease_ms"]["value"], shown["lease_ms"]["origin"]) == (20_000, "variable RYUSEN_LEASE_MS")
    assert (shown["gateway_port"]["value"], shown["gateway_port"]["origin"]) == (7, "flag --gateway-port")
    assert shown["system_key"]["value"] == "(set)"
    assert "a-secret" not in result.stdout + result.stderr
    table = CliRunner().invoke(main, ["gateway", "--check"], env=env).stdout
    assert "20000" in table
    assert all(setting.meaning in table for setting in SETTINGS)
    assert "a-secret" not in table


def test_a_wrong_setting_is_named_and_nothing_starts() -> None:
    result = CliRunner().invoke(main, ["gateway", "--lease-ms", "5", "--skew-ms", "x"])
    assert result.exit_code == 2
    assert "lease_ms (flag --lease-ms): 5 is out of range" in result.stderr
    assert "skew_ms (flag --skew-ms): 'x' is not an integer" in result.stderr


def test_a_store_that_is_not_there_is_not_checked_as_if_it_were_empty(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["fsck", "--store", f"embedded:{tmp_path / 'none'}"])
    assert result.exit_code == 3
    assert "there is no store at" in result.stderr
    assert not (tmp_path / "none").exists()


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, command in group.commands.items():
        yield (*path, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


@pytest.mark.parametrize("command", list(commands(main)), ids=" ".join)
def test_every_command_explains_itself(command: tuple[str, ...]) -> None:
    """HOUSE 16: each option of the service's address names its variable; data commands take --json."""
    result = CliRunner().invoke(main, [*command, "--help"])
    assert result.exit_code == 0
    if "--workspace" in result.output and command[0] not in ("dev", "fsck"):
        for variable in ("RYUSEN_URL", "RYUSEN_KEY", "RYUSEN_WORKSPACE"):
            assert variable in result.output
        assert "--json" in result.output


def test_without_a_terminal_nothing_is_coloured(cli: Cli) -> None:
    cli.run(cli.world.core.start_run)
    assert "\x1b" not in cli.out("runs", "list")
