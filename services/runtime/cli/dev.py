"""`ryusen dev`: everything on one port, over the embedded store."""

from __future__ import annotations

import sys
from typing import Any

import click

from keyspace.errors import Refusal
from keyspace.transitions.names import check_workspace_name
from services.runtime.cli.options import config_of, settings_options
from services.runtime.dev.service import DevServer
from services.runtime.dev.supervisor import code_folder
from services.runtime.logs import configure_logging
from services.runtime.running import run_process
from services.runtime.settings import Group

__all__ = ["dev"]


@click.command()
@click.argument("app", required=False)
@click.option(
    "--workspace", "-w", default="dev", show_default=True, help="The workspace that the application lives in."
)
@click.option("--no-reload", is_flag=True, help="Do not start a new worker when the code changes.")
@settings_options(*Group)
def dev(app: str | None, workspace: str, no_reload: bool, **options: Any) -> None:
    """Run the service on one port, and a worker that serves APP, named as module:attribute.

    The state outlives the process: the next start goes on where this one ended. The application's manifest is published and
    activated by itself, again after each change of its files.
    """
    try:
        check_workspace_name(workspace)
        if app is not None:
            code_folder(app)
    except (Refusal, LookupError) as error:
        raise click.UsageError(str(error)) from None
    config = config_of(options)
    configure_logging(config)
    sys.exit(run_process(config, "dev", DevServer(app, workspace, is_reloading=not no_reload).run))
