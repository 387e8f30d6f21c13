"""The `ryusen` command: the server processes, the local server, a worker, and everything the API offers.

Standard output carries data, standard error everything else. Exit codes: 0 done, 1 failed or refused, 2 wrong usage or
configuration, 3 not ready.
"""

from __future__ import annotations

import click

from services.runtime.cli.attempts import attempts
from services.runtime.cli.checks import fsck
from services.runtime.cli.dev import dev
from services.runtime.cli.events import events
from services.runtime.cli.functions import functions
from services.runtime.cli.manifests import manifests, routing
from services.runtime.cli.processes import dispatcher, fanout, gateway, show_config, worker
from services.runtime.cli.releases import releases
from services.runtime.cli.runs import runs
from services.runtime.cli.tenancy import keys, workspaces
from services.runtime.process import SERVER_VERSION

__all__ = ["main"]


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(SERVER_VERSION, prog_name="ryusen")
def main() -> None:
    """Durable workflows: run the service, and talk to it."""


for _command in (
    dev,
    gateway,
    fanout,
    dispatcher,
    worker,
    show_config,
    events,
    functions,
    runs,
    attempts,
    manifests,
    routing,
    releases,
    workspaces,
    keys,
    fsck,
):
    main.add_command(_command)
