"""`ryusen releases`: which releases of an application are registered, and which are live."""

from __future__ import annotations

import click

from services.runtime.cli.api import Api, api_options
from services.runtime.cli.options import as_json
from services.runtime.cli.output import instant, print_json, print_table

__all__ = ["releases"]

COUNT_DEFAULT = 50
COUNT_MAX = 100_000


@click.group()
def releases() -> None:
    """See which releases workers run."""


@releases.command("list")
@click.argument("application")
@click.option("--count", type=click.IntRange(1, COUNT_MAX), default=COUNT_DEFAULT, show_default=True, help="How many.")
@api_options
@as_json
def list_(application: str, count: int, is_json: bool, **where: str) -> None:
    """List an application's releases; work goes to the first one that has live sessions."""
    api = Api(where["url"], where["key"], where["workspace"])
    found = list(api.items(api.path("applications", application, "releases"), count_max=count))
    if is_json:
        print_json(found)
        return
    print_table(
        ("release", "live sessions", "functions", "registered", "id"),
        [
            (
                one["name"],
                str(one["live_sessions"]),
                str(one["function_count"]),
                instant(one["registered_at_ms"]),
                one["release"],
            )
            for one in found
        ],
        empty="no worker ever named a release",
    )
