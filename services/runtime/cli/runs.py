"""`ryusen runs`: list, show, history, cancel, rediscover."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
import msgspec

from services.runtime.cli.api import Api, api_options
from services.runtime.cli.following import followed
from services.runtime.cli.options import as_json, confirm, without_asking
from services.runtime.cli.output import instant, pairs, print_json, print_table, styled_status, warn
from services.runtime.spans import shown_ms

__all__ = ["runs"]

COUNT_DEFAULT = 50
COUNT_MAX = 100_000
HISTORY_PAGE_ITEMS = 500
DEADLINE_SOURCES = {
    "function": "its function",
    "deployment": "the deployment's default",
    "invoke": "its invocation",
    "parent": "its parent's deadline",
}
"""Who gave a run its deadline, for people."""


@click.group()
def runs() -> None:
    """Read, cancel and rediscover runs."""


@runs.command("list")
@click.option("--status", help="Only runs of this status.")
@click.option("--application", help="With --function: only runs of that function.")
@click.option("--function", help="With --application: only runs of this function.")
@click.option("--count", type=click.IntRange(1, COUNT_MAX), default=COUNT_DEFAULT, show_default=True, help="How many.")
@api_options
@as_json
def list_(
    status: str | None, application: str | None, function: str | None, count: int, is_json: bool, **where: str
) -> None:
    """List runs, the newest first."""
    api = _api(where)
    found = list(
        api.items(api.path("runs"), count_max=count, status=status, application=application, function=function)
    )
    if is_json:
        print_json(found)
        return
    print_table(
        ("run", "function", "status", "steps", "created", "waiting for"),
        [
            (
                run["run"],
                f"{run['application']}/{run['function']}",
                styled_status(run["status"]),
                str(run["step_count"]),
                instant(run["created_at_ms"]),
                run["waiting"]["sentence"] if run["waiting"] else "-",
            )
            for run in found
        ],
        empty="there are no such runs",
    )


@runs.command()
@click.argument("run")
@api_options
@as_json
def show(run: str, is_json: bool, **where: str) -> None:
    """Show a run: input, output, steps and attempts."""
    api = _api(where)
    answer = api.ask("GET", api.path("runs", run))
    steps = sorted(
        api.items(api.path("runs", run, "steps"), count_max=COUNT_MAX), key=lambda step: int(step["declared_at_ms"])
    )
    raw = msgspec.json.decode(answer, type=dict[str, msgspec.Raw])
    if is_json:
        print_json(msgspec.json.encode(raw | {"steps": msgspec.Raw(msgspec.json.encode(steps))}))
        return
    found = msgspec.json.decode(answer)
    click.echo(f"run       {found['run']}")
    click.echo(f"function  {found['application']}/{found['function']} (manifest {found['manifest_generation']})")
    _show_origin(found)
    click.echo(f"status    {found['status']}" + (f", {found['recovery']}" if found["recovery"] else ""))
    click.echo(f"created   {instant(found['created_at_ms'])}  ended {instant(found['terminal_at_ms'])}")
    if found["deadline"]:
        click.echo(f"deadline  {_deadline(found['deadline'])}")
    if found["stop"]:
        click.echo(f"stopped   {found['stop']['reason']} {instant(found['stop']['at_ms'])} by {found['stop']['by']}")
    if found["waiting"]:
        click.echo(f"waiting   {found['waiting']['sentence']}")
        if found["waiting"]["word"] in ("timer", "event"):
            click.echo(f"  until   {instant(found['waiting']['until_ms'])}")
    if found["child"]:
        click.echo(f"child     {found['child']}")
    if found["blocker"]:
        _show_blocker(found["blocker"])
        if found["waiting"]["word"] == "fix" and found["waiting"]["until_ms"]:
            click.echo(f"  next    looked at again {instant(found['waiting']['until_ms'])}")
    if found["failure"]:
        click.echo(f"failure   {found['failure']['category']}: {found['failure']['message']}")
    click.echo(f"input     {bytes(raw['input']).decode()}")
    if found["output_bytes"] is not None:
        click.echo(f"output    {bytes(raw['output']).decode()}")
    _show_steps(steps)


@runs.command()
@click.argument("run")
@click.option("--after", type=click.IntRange(0), default=0, show_default=True, help="Begin after this ordinal.")
@click.option("--follow", "-f", "is_follow", is_flag=True, help="Go on until the run has ended.")
@api_options
@as_json
def history(run: str, after: int, is_follow: bool, is_json: bool, **where: str) -> None:
    """Show what happened to a run, entry by entry; with --json one document a line."""
    api = _api(where)
    begun_ms: int | None = None
    for entry in followed(api, run, after) if is_follow else _pages(api, run, after):
        if is_json:
            print_json(entry)
            continue
        begun_ms = entry["at_ms"] if begun_ms is None else begun_ms
        seconds = (entry["at_ms"] - begun_ms) / 1_000
        click.echo(f"{entry['ordinal']:>5}  {seconds:>9.3f} s  {entry['kind']:<26} {pairs(entry['data'])}")


@runs.command()
@click.argument("run")
@without_asking
@api_options
@as_json
def cancel(run: str, is_yes: bool, is_json: bool, **where: str) -> None:
    """Cancel a run: no forward work starts any more, and completed steps are undone.

    Work that has begun is not stopped; its outcome is waited for. Cancelling twice changes nothing.
    """
    api = _api(where)
    found = api.read(api.path("runs", run))
    warn(_intention(found))
    confirm("Cancel it?", is_yes=is_yes)
    answer = api.ask("POST", api.path("runs", run, "cancel"))
    if is_json:
        print_json(answer)
        return
    done = msgspec.json.decode(answer)
    click.echo(
        f"{done['run']} {done['outcome']}: {done['status']}" + (f", {done['recovery']}" if done["recovery"] else "")
    )
    click.echo(done["explanation"], err=True)


@runs.command()
@click.argument("run")
@without_asking
@api_options
@as_json
def rediscover(run: str, is_yes: bool, is_json: bool, **where: str) -> None:
    """Look at the code of a run again that is blocked by a duplicate step id, now.

    Nothing of the run is repeated: its next pass reuses what has completed. Asking twice changes nothing.
    """
    api = _api(where)
    found = api.read(api.path("runs", run))
    warn(_look_intention(found))
    confirm("Look again?", is_yes=is_yes)
    answer = api.ask("POST", api.path("runs", run, "rediscover"))
    if is_json:
        print_json(answer)
        return
    done = msgspec.json.decode(answer)
    click.echo(f"{done['run']} {done['outcome']}")
    click.echo(done["explanation"], err=True)


def _look_intention(run: dict[str, Any]) -> str:
    """Return what rediscovering a run as it stands will do."""
    name = f"{run['application']}/{run['function']}"
    if run["phase"] != "definition_blocked":
        return f"{name} is {run['status']}, not blocked by its definition: there is nothing to look at again"
    if run["waiting"]["word"] != "fix":
        return f"{name}: {run['waiting']['sentence']} Asking again changes nothing"
    return f"{name}: {run['waiting']['sentence']} Its next pass will run the code that is deployed now"


def _show_blocker(blocker: dict[str, Any]) -> None:
    click.echo(f"blocked   step id {blocker['step']!r} is used twice; {blocker['count']} passes found it so")
    for word, site in (("first", blocker["first"]), ("again", blocker["duplicate"])):
        click.echo(
            f"  {word:<7} {site['location'] or '(place unknown)'}" + (f" ({site['name']})" if site["name"] else "")
        )
    by = f"release {blocker['release']}" if blocker["release"] else "a worker that names no release"
    click.echo(f"  seen    {instant(blocker['seen_at_ms'])} by {by}, first {instant(blocker['first_seen_at_ms'])}")


def _intention(run: dict[str, Any]) -> str:
    """Return what cancelling a run as it stands will do."""
    name = f"{run['application']}/{run['function']}"
    if run["phase"] == "terminal":
        return f"{name} has ended as {run['status']}; cancelling it changes nothing"
    if run["phase"] in ("cancelling", "compensating"):
        return f"{name} is {run['status']} already; cancelling it again changes nothing"
    begun = {
        "running": "what is running now goes on and its outcome is waited for, then ",
        "operator": "the attempt of unknown outcome must be settled, then ",
        "child": "the run it waits for is stopped too and must end, then ",
    }.get(run["waiting"]["word"], "")
    count = run["completion_count"]
    steps = "1 completed step" if count == 1 else f"{count} completed steps"
    undone = f"the undo of {steps} begins" if count else "it ends, with nothing to undo"
    return f"{name} is {run['status']} ({run['waiting']['sentence'].rstrip('.')}); no forward work will start any more, {begun}{undone}"


def _deadline(deadline: dict[str, Any]) -> str:
    """Return when a run must have ended, who says so and how long that still is."""
    left_ms = deadline["left_ms"]
    left = "" if left_ms is None else f", {shown_ms(left_ms)} left"
    return f"{instant(deadline['at_ms'])} by {DEADLINE_SOURCES.get(deadline['source'], deadline['source'])}{left}"


def _pages(api: Api, run: str, after: int) -> Iterator[dict[str, Any]]:
    following: int | None = after
    while following is not None:
        page = api.read(api.path("runs", run, "history"), after=following, limit=HISTORY_PAGE_ITEMS)
        yield from page["items"]
        following = page["next_after"]


def _api(where: dict[str, str]) -> Api:
    return Api(where["url"], where["key"], where["workspace"])


def _show_steps(steps: list[dict[str, Any]]) -> None:
    print_table(
        ("step", "state", "class", "attempts", "declared", "settled", "what it made, or waits for, or last failure"),
        [
            (
                step["step"],
                styled_status(step["state"]),
                _class_of(step),
                str(len(step["attempts"])),
                instant(step["declared_at_ms"]),
                instant(step["settled_at_ms"]),
                _what_became(step),
            )
            for step in steps
        ],
        empty="it has no steps yet",
    )


def _show_origin(run: dict[str, Any]) -> None:
    parent = run["parent"]
    if parent is None:
        click.echo(f"event     {run['event']} {run['event_name']}")
    else:
        click.echo(f"parent    {parent['run']} step {parent['step']} (depth {parent['depth']})")


def _class_of(step: dict[str, Any]) -> str:
    """Return what the loss of an attempt means, or, of a step that has none, what it is."""
    if step["kind"] != "callback":
        return str(step["kind"])
    return "repeatable" if step["repeatable"] else "effectful"


def _what_became(step: dict[str, Any]) -> str:
    if step["failure"]:
        return _last_failure(step)
    if step["child"]:
        return f"run {step['child']}"
    if step["event"]:
        return f"event {step['event']}"
    if step["state"] != "waiting":
        return _last_failure(step)
    awaited = step["awaited"]
    what = (
        "" if awaited is None else " ".join([awaited["name"], *(f"{k}={v}" for k, v in awaited["match"].items())]) + " "
    )
    return f"{what}until {instant(step['due_at_ms'])}"


def _last_failure(step: dict[str, Any]) -> str:
    failures = [attempt["failure"] for attempt in step["attempts"] if attempt["failure"]]
    failure = step["failure"] or (failures[-1] if failures else None)
    return f"{failure['category']}: {failure['message']}" if failure else "-"
