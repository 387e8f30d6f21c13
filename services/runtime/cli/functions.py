"""`ryusen functions`: which functions new events and invocations reach, and starting one directly."""

from __future__ import annotations

import time
from typing import Any

import click
import msgspec

from services.runtime.cli.api import Api, Refused, api_options
from services.runtime.cli.following import followed
from services.runtime.cli.options import as_json, json_text
from services.runtime.cli.output import instant, pairs, print_json, print_table, warn
from services.runtime.running import ExitCode

__all__ = ["functions"]

EXPANSION_POLLS_MAX = 600
"""Looks at whether the function was found, half a second apart, before waiting is given up: five minutes."""
POLL_S = 0.5


@click.group()
def functions() -> None:
    """List functions, and start one directly."""


@functions.command("list")
@click.argument("application", required=False)
@api_options
@as_json
def list_(application: str | None, is_json: bool, **where: str) -> None:
    """List the functions of the active routing generation, or those of APPLICATION in it."""
    api = _api(where)
    routed: dict[str, int] = api.read(api.path("routing"))["applications"]
    wanted = {name: generation for name, generation in routed.items() if application in (None, name)}
    found = [
        {"application": name, "manifest_generation": generation, **function}
        for name, generation in sorted(wanted.items())
        for function in api.read(api.path("applications", name, "manifests", str(generation)))["functions"]
    ]
    if is_json:
        print_json(found)
        return
    print_table(
        ("application", "function", "events", "manifest generation"),
        [
            (
                one["application"],
                one["name"],
                ", ".join(trigger["event"] for trigger in one["triggers"]) or "-",
                str(one["manifest_generation"]),
            )
            for one in found
        ],
        empty="the active routing has no such application" if application else "the active routing has no application",
    )


@functions.command()
@click.argument("application")
@click.argument("function")
@click.option(
    "--input", "payload", default="null", show_default=True, help="JSON text, @FILE, or - for standard input."
)
@click.option("--idempotency-key", default=None, help="Makes repeating the invocation harmless.")
@click.option("--timestamp-ms", type=int, default=None, help="The caller's own instant, Unix epoch milliseconds.")
@click.option("--wait", "is_waiting", is_flag=True, help="Show what happens until the run has ended, and its outcome.")
@api_options
@as_json
def invoke(
    application: str,
    function: str,
    payload: str,
    idempotency_key: str | None,
    timestamp_ms: int | None,
    is_waiting: bool,
    is_json: bool,
    **where: str,
) -> None:
    """Start FUNCTION of APPLICATION with an input; no other function hears of it.

    With --wait, the exit code is 1 unless the run has completed, and --json prints the run.
    """
    api = _api(where)
    body: dict[str, Any] = {"input": msgspec.Raw(json_text(payload, "input"))}
    if timestamp_ms is not None:
        body["timestamp_ms"] = timestamp_ms
    headers = {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}
    path = api.path("applications", application, "functions", function, "invoke")
    answer = api.ask("POST", path, body=msgspec.json.encode(body), headers=headers)
    found = msgspec.json.decode(answer)
    replayed = " (accepted before under this key)" if found["replayed"] else ""
    if is_waiting:
        warn(f"event {found['event']} accepted{replayed}")
        _wait(api, found, is_json=is_json)
    elif is_json:
        print_json(answer)
    else:
        click.echo(found["run"] or found["event"])
        click.echo(f"event {found['event']} accepted{replayed}; {found['expansion']['explanation']}", err=True)


def _wait(api: Api, invoked: dict[str, Any], *, is_json: bool) -> None:
    """Follow the run to its end and print what it came to; end the process with code 1 unless it has completed."""
    _await_run(api, invoked["event"])
    run = invoked["run"]
    begun_ms: int | None = None
    for entry in followed(api, run, 0):
        begun_ms = entry["at_ms"] if begun_ms is None else begun_ms
        seconds = (entry["at_ms"] - begun_ms) / 1_000
        click.echo(f"{seconds:>9.3f} s  {entry['kind']:<26} {pairs(entry['data'])}", err=True)
    answer = api.ask("GET", api.path("runs", run))
    ended = msgspec.json.decode(answer)
    if is_json:
        print_json(answer)
    else:
        _print_outcome(ended, msgspec.json.decode(answer, type=dict[str, msgspec.Raw]))
    if ended["status"] != "completed":
        raise SystemExit(ExitCode.FAILED)


def _await_run(api: Api, event: str) -> None:
    """Return when the event's expansion has created the run.

    Raises:
        Refused: the routing has no such function, or it was not looked up in time.
    """
    for _ in range(EXPANSION_POLLS_MAX):
        expansion = api.read(api.path("events", event))["expansion"]
        if expansion["state"] == "complete":
            if not expansion["matched_count"]:
                raise Refused(expansion["explanation"])
            return
        time.sleep(POLL_S)
    raise Refused(f"event {event} is durable, but the function has not been looked up yet", is_passing=True)


def _print_outcome(run: dict[str, Any], raw: dict[str, msgspec.Raw]) -> None:
    recovery = f", {run['recovery']}" if run["recovery"] else ""
    click.echo(f"{run['run']} {run['status']}{recovery}, ended {instant(run['terminal_at_ms'])}", err=True)
    if run["failure"]:
        click.echo(f"{run['failure']['category']}: {run['failure']['message']}", err=True)
    if run["output_bytes"] is not None:
        click.echo(bytes(raw["output"]).decode())


def _api(where: dict[str, str]) -> Api:
    return Api(where["url"], where["key"], where["workspace"])
