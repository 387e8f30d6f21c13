"""`ryusen fsck`: walk a keyspace and say what is wrong with it."""

from __future__ import annotations

import sys
from typing import Any

import anyio
import click

from keyspace.fsck import Report, check_keyspace
from services.runtime.cli.options import as_json, config_of, settings_options
from services.runtime.cli.output import print_json, print_table, warn
from services.runtime.config import Config
from services.runtime.logs import configure_logging
from services.runtime.process import NotReady, open_existing_keyspace
from services.runtime.running import ExitCode

__all__ = ["fsck"]


@click.command()
@click.option("--workspace", "-w", "workspaces", multiple=True, help="Check only this workspace; may be repeated.")
@as_json
@settings_options()
def fsck(workspaces: tuple[str, ...], is_json: bool, **options: Any) -> None:
    """Check every key and every rule of the stored state; reads only, and may run while the service does.

    Exit code 1 says that there are problems.
    """
    config = config_of(options)
    configure_logging(config)
    try:
        report = anyio.run(_check, config, list(workspaces) or None)
    except NotReady as error:
        warn(str(error))
        sys.exit(ExitCode.NOT_READY)
    if is_json:
        print_json(
            {
                "keys": report.key_count,
                "problem_count": report.problem_count,
                "problems": [
                    {"check": problem.check, "key": problem.key, "sentence": problem.sentence}
                    for problem in report.problems
                ],
            }
        )
    else:
        if report.problem_count:
            print_table(
                ("check", "problem", "key"),
                [(problem.check, problem.sentence, problem.key) for problem in report.problems],
                empty="",
            )
        warn(f"{report.key_count} keys checked, {report.problem_count} problems")
    sys.exit(ExitCode.FAILED if report.problem_count else ExitCode.DONE)


async def _check(config: Config, workspaces: list[str] | None) -> Report:
    async with open_existing_keyspace(config) as keyspace:
        return await check_keyspace(keyspace, workspaces=workspaces)
