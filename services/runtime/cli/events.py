"""`ryusen events`: submit, show, list."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from services.runtime.cli.api import Api, api_options
from services.runtime.cli.options import as_json, json_text
from services.runtime.cli.output import instant, pairs, print_json, print_table

__all__ = ["events"]

COUNT_DEFAULT = 50
COUNT_MAX = 100_000


@click.group()
def events() -> None:
    """Submit and read events."""


@events.command()
@click.argument("name")
@click.option("--payload", default="null", show_default=True, help="JSON text, @FILE, or - for standard input.")
@click.option("--idempotency-key", default=None, help="Makes repeating the submission harmless.")
@click.option("--correlation", "correlations", multiple=True, metavar="KEY=VALUE", help="A pair that waits may match.")
@click.option("--timestamp-ms", type=int, default=None, help="The caller's own instant, Unix epoch milliseconds.")
@api_options
@as_json
def submit(
    name: str,
    payload: str,
    idempotency_key: str | None,
    correlations: tuple[str, ...],
    timestamp_ms: int | None,
    is_json: bool,
    **where: str,
) -> None:
    """Submit an event named NAME. Its payload travels as the text it is given in."""
    api = _api(where)
    body: dict[str, Any] = {"name": name, "payload": msgspec.Raw(json_text(payload, "payload"))}
    if correlations:
        body["correlation"] = _pairs(correlations)
    if timestamp_ms is not None:
        body["timestamp_ms"] = timestamp_ms
    headers = {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}
    answer = api.ask("POST", api.path("events"), body=msgspec.json.encode(body), headers=headers)
    if is_json:
        print_json(answer)
        return
    found = msgspec.json.decode(answer)
    replayed = " (accepted before under this key)" if found["replayed"] else ""
    click.echo(found["event"])
    click.echo(f"accepted{replayed}; {found['expansion']['explanation']}", err=True)


@events.command()
@click.argument("event")
@api_options
@as_json
def show(event: str, is_json: bool, **where: str) -> None:
    """Show an event, its payload and the runs it started."""
    api = _api(where)
    answer = api.ask("GET", api.path("events", event))
    if is_json:
        print_json(answer)
        return
    found = msgspec.json.decode(answer)
    payload = msgspec.json.decode(answer, type=dict[str, msgspec.Raw])["payload"]
    click.echo(f"event        {found['event']}")
    click.echo(f"name         {found['name']}")
    if found["target"]:
        click.echo(f"invokes      {found['target']['application']}/{found['target']['function']}")
    click.echo(f"accepted     {instant(found['accepted_at_ms'])} by {found['accepted_by']}")
    click.echo(f"routing      generation {found['routing_generation']}")
    click.echo(f"correlation  {pairs(found['correlation']) or '-'}")
    click.echo(f"expansion    {found['expansion']['state']}: {found['expansion']['explanation']}")
    click.echo(f"payload      {bytes(payload).decode()}")
    print_table(
        ("run", "application", "function", "binding"),
        [
            (match["run"], match["application"], match["function"], match["binding"])
            for match in found["matches"]["items"]
        ],
        empty="it started no run",
    )


@events.command("list")
@click.option("--count", type=click.IntRange(1, COUNT_MAX), default=COUNT_DEFAULT, show_default=True, help="How many.")
@api_options
@as_json
def list_(count: int, is_json: bool, **where: str) -> None:
    """List events, the newest first."""
    api = _api(where)
    found = list(api.items(api.path("events"), count_max=count))
    if is_json:
        print_json(found)
        return
    print_table(
        ("event", "name", "accepted", "expansion", "runs"),
        [
            (
                event["event"],
                event["name"],
                instant(event["accepted_at_ms"]),
                event["expansion"]["state"],
                str(event["expansion"]["matched_count"]),
            )
            for event in found
        ],
        empty="there are no events",
    )


def _api(where: dict[str, str]) -> Api:
    return Api(where["url"], where["key"], where["workspace"])


def _pairs(texts: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name or name in found:
            raise click.UsageError(f"--correlation takes KEY=VALUE, each key once, not {text!r}")
        found[name] = value
    return found
