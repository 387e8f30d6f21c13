"""The commands that are processes, and the one that shows what they would be configured with."""

from __future__ import annotations

import sys
from typing import Any

import click
from ryusen import RyusenError, serve
from ryusen.__main__ import load_app
from ryusen.worker.shell import CAPACITY_DEFAULT, UNDO_CAPACITY_DEFAULT

from services.dispatcher import service as dispatcher_service
from services.fanout import service as fanout_service
from services.gateway import service as gateway_service
from services.runtime.cli.options import as_json, config_of, settings_options
from services.runtime.cli.output import print_json, print_table, warn
from services.runtime.config import Config, shown_value
from services.runtime.logs import configure_logging
from services.runtime.running import Body, ExitCode, run_process
from services.runtime.settings import SETTINGS, Group

__all__ = ["dispatcher", "fanout", "gateway", "show_config", "worker"]


def _process(role: str, group: Group, body: Body, summary: str) -> click.Command:
    @click.command(role, help=summary)
    @click.option("--check", "is_check", is_flag=True, help="Print the effective configuration and exit.")
    @settings_options(group)
    def command(is_check: bool, **options: Any) -> None:
        config = config_of(options)
        if is_check:
            _show(config, is_json=False)
            return
        configure_logging(config)
        sys.exit(run_process(config, role, body))

    return command


gateway = _process("gateway", Group.GATEWAY, gateway_service.run, "Serve the HTTP API.")
fanout = _process("fanout", Group.FANOUT, fanout_service.run, "Expand events into runs.")
dispatcher = _process(
    "dispatcher",
    Group.DISPATCHER,
    dispatcher_service.run,
    "Hold worker sessions, lease them work, recover lost leases.",
)


@click.command("worker")
@click.argument("app")
@click.option(
    "--url", envvar="RYUSEN_URL", show_envvar=True, help="The dispatcher's address, such as ws://127.0.0.1:8081."
)
@click.option("--key", envvar="RYUSEN_KEY", show_envvar=True, help="The workspace's key; better given by the variable.")
@click.option("--capacity", type=int, default=CAPACITY_DEFAULT, show_default=True, help="Callbacks at once.")
@click.option(
    "--undo-capacity",
    type=int,
    default=UNDO_CAPACITY_DEFAULT,
    show_default=True,
    help="Compensators at once besides.",
)
@click.option(
    "--release",
    envvar="RYUSEN_RELEASE",
    show_envvar=True,
    default="",
    help="The deployed release's name; newer goes first.",
)
@click.option("--grace", default="30s", show_default=True, help="How long to finish what runs when stopped.")
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True,
    help="The least severity that is logged.",
)  # fmt: skip
def worker(app: str, log_level: str, **options: Any) -> None:
    """Serve the functions of APP, named as module:attribute."""
    configure_logging(Config(log_level=log_level))
    try:
        code = serve(load_app(app), **options)
    except (RyusenError, LookupError) as error:
        warn(str(error))
        code = ExitCode.USAGE
    sys.exit(code)


@click.command("config")
@as_json
@settings_options(*Group)
def show_config(is_json: bool, **options: Any) -> None:
    """Show every setting with its value, where that came from, its range and meaning. Secrets are not shown."""
    _show(config_of(options), is_json=is_json)


def _show(config: Config, *, is_json: bool) -> None:
    for name in config.ignored:
        warn(f"{name} is no setting and is ignored")
    if is_json:
        print_json([
            {
                "name": setting.name,
                "value": shown_value(setting, config),
                "origin": config.origin_of(setting),
                "env": setting.env,
                "flag": setting.flag,
                "default": setting.default,
                "unit": setting.unit,
                "range": setting.range,
                "group": setting.group.value,
                "meaning": setting.meaning,
            }
            for setting in SETTINGS
        ])  # fmt: skip
        return
    print_table(
        ("setting", "value", "unit", "from", "allowed", "meaning"),
        [
            (
                setting.name,
                str(shown_value(setting, config)),
                setting.unit,
                config.origin_of(setting),
                setting.range,
                setting.meaning,
            )
            for setting in SETTINGS
        ],
        empty="there are no settings",
    )
