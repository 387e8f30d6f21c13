"""`ryusen attempts`: the attempts whose outcome is unknown, and an operator's decision about one."""

from __future__ import annotations

import secrets
from typing import Any

import click
import msgspec

from services.runtime.cli.api import Api, api_options
from services.runtime.cli.options import as_json, confirm, json_text, without_asking
from services.runtime.cli.output import instant, print_json, print_table, styled_status, warn

__all__ = ["attempts"]

COUNT_DEFAULT = 50
COUNT_MAX = 100_000
KEY_BYTES = 16
"""Random bytes of an idempotency key that is made here."""


@click.group()
def attempts() -> None:
    """See attempts whose outcome is unknown, and settle them."""


@attempts.command("list")
@click.option(
    "--unresolved", is_flag=True, expose_value=False,
    help="The default, and all there is: settled attempts are shown with their run.",
)  # fmt: skip
@click.option("--count", type=click.IntRange(1, COUNT_MAX), default=COUNT_DEFAULT, show_default=True, help="How many.")
@api_options
@as_json
def list_(count: int, is_json: bool, **where: str) -> None:
    """List the attempts whose outcome is unknown, by run."""
    api = _api(where)
    found = list(api.items(api.path("attempts"), count_max=count, unresolved="true"))
    if is_json:
        print_json(found)
        return
    print_table(
        ("run", "function", "step", "direction", "generation", "attempt", "instance", "begun", "lost", "run is"),
        [
            (
                one["run"],
                f"{one['application']}/{one['function']}",
                one["step"],
                one["direction"],
                str(one["generation"]),
                str(one["ordinal"]),
                one["instance"] or "-",
                instant(one["authorized_at_ms"]),
                instant(one["lost_at_ms"]),
                styled_status(one["phase"]),
            )
            for one in found
        ],
        empty="there is no attempt whose outcome is unknown",
    )


@attempts.command()
@click.argument("run")
@click.argument("step")
@click.argument("generation", type=click.IntRange(1))
@click.option(
    "--success", metavar="JSON", help="It happened, with this result: JSON text, @FILE, or - for standard input."
)
@click.option("--failure", metavar="MESSAGE", help="It failed; the step's retry policy decides what follows.")
@click.option("--category", help="With --failure: its category; `operator` without one.")
@click.option("--details", metavar="JSON", help="With --failure: JSON text, @FILE, or - for standard input.")
@click.option("--retry", "is_retry", is_flag=True, help="Do it again, although it may have happened.")
@click.option("--compensation", "is_compensation", is_flag=True, help="The attempt is one of the step's undo.")
@click.option(
    "--idempotency-key", default=None, help="Makes repeating the command harmless; made up and shown without one."
)
@without_asking
@api_options
@as_json
def resolve(
    run: str,
    step: str,
    generation: int,
    success: str | None,
    failure: str | None,
    category: str | None,
    details: str | None,
    is_retry: bool,
    is_compensation: bool,
    idempotency_key: str | None,
    is_yes: bool,
    is_json: bool,
    **where: str,
) -> None:
    """Settle attempt GENERATION of STEP in RUN, whose outcome is unknown, by exactly one decision."""
    api = _api(where)
    command = _command(success, failure, category, details, is_retry=is_retry)
    direction = "compensation" if is_compensation else "forward"
    is_stopping = not is_compensation and _is_stopping(api.read(api.path("runs", run)))
    shown = api.read(api.path("runs", run, "steps", step))
    intention = (_INTENTIONS_STOPPED if is_stopping else _INTENTIONS)[next(iter(command))]
    warn(_about(shown, direction, generation, intention))
    confirm("Decide so?", is_yes=is_yes)
    key = secrets.token_hex(KEY_BYTES) if idempotency_key is None else idempotency_key
    if idempotency_key is None:
        warn(f"idempotency key {key}")
    answer = api.ask(
        "POST",
        api.path("runs", run, "steps", step, "attempts", str(generation), "resolve"),
        body=msgspec.json.encode(command | {"direction": direction}),
        headers={"Idempotency-Key": key},
    )
    if is_json:
        print_json(answer)
        return
    done = msgspec.json.decode(answer)
    click.echo(f"{done['run']} {done['step']} generation {done['generation']}: {done['attempt_state']}")
    click.echo(done["consequence"] + (" (recorded before under this key)" if done["replayed"] else ""), err=True)


def _is_stopping(run: dict[str, Any]) -> bool:
    """Whether the run was stopped, or will be by any decision, because its deadline has passed."""
    deadline = run["deadline"]
    return run["stop"] is not None or (deadline is not None and deadline["left_ms"] == 0)


def _command(
    success: str | None, failure: str | None, category: str | None, details: str | None, *, is_retry: bool
) -> dict[str, Any]:
    """Return the one decision that the options give.

    Raises:
        UsageError: none or several, or a part of a failure without one.
    """
    if (success is not None) + (failure is not None) + is_retry != 1:
        raise click.UsageError("give exactly one of --success, --failure and --retry")
    if failure is None and (category is not None or details is not None):
        raise click.UsageError("--category and --details go with --failure")
    if success is not None:
        return {"success": {"value": msgspec.Raw(json_text(success, "value"))}}
    if failure is None:
        return {"retry": {}}
    declared: dict[str, Any] = {"message": failure}
    if category is not None:
        declared["category"] = category
    if details is not None:
        declared["details"] = msgspec.Raw(json_text(details, "details"))
    return {"failure": declared}


_INTENTIONS = {
    "success": "it will count as done, with the result you give, for good",
    "failure": "it will count as failed; the retry policy decides whether it is tried again",
    "retry": "it will be run again under the same operation id; if it had happened, it happens twice",
}


_OVER = "the run was stopped or its time is over"
_INTENTIONS_STOPPED = {
    "success": f"it will count as done, for good, and be undone with the others, since {_OVER}",
    "failure": f"it will count as failed and is not tried again, since {_OVER}",
    "retry": f"{_OVER}, so this will be refused",
}


def _about(step: dict[str, Any], direction: str, generation: int, intention: str) -> str:
    """Return which attempt this is about and what the decision will do."""
    is_undo = direction == "compensation"
    what = "the undo of step" if is_undo else "step"
    promise = ", declared idempotent" if step["undo_repeatable" if is_undo else "repeatable"] else ""
    for attempt in step["attempts"]:
        if (attempt["direction"], attempt["generation"]) == (direction, generation):
            return (
                f"{what} {step['step']}, attempt {attempt['ordinal']} (operation {attempt['operation']}){promise}, "
                f"is {attempt['state']}: begun {instant(attempt['authorized_at_ms'])} on instance {attempt['instance'] or '-'}, "
                f"lost {instant(attempt['lost_at_ms'])}; {intention}"
            )
    return f"{what} {step['step']} has no generation {generation}"


def _api(where: dict[str, str]) -> Api:
    return Api(where["url"], where["key"], where["workspace"])
