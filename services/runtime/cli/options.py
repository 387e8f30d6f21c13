"""Options shared by commands: the settings of server processes, made from the table, and how to reach a service."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from services.runtime.config import CONFIG_FILE_VARIABLE, Config, ConfigError, load_config
from services.runtime.running import ExitCode
from services.runtime.settings import SETTINGS, Group, Setting

__all__ = ["as_json", "config_of", "confirm", "json_text", "settings_options", "without_asking"]

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def settings_options(*groups: Group) -> Callable[[Decorated], Decorated]:
    """Give a command a flag for every setting of `groups`, and --config; read them with `config_of`."""

    def decorate(function: Decorated) -> Decorated:
        for setting in reversed(SETTINGS):
            if setting.flag is not None and setting.group in (Group.COMMON, *groups):
                function = click.option(
                    setting.flag, setting.name, default=None, metavar=_metavar(setting), help=_help(setting)
                )(function)
        return click.option(
            "--config",
            "config_file",
            type=click.Path(path_type=Path, dir_okay=False),
            help=f"A TOML file with settings by name.  [env: {CONFIG_FILE_VARIABLE}]",
        )(function)

    return decorate


def config_of(options: dict[str, Any]) -> Config:
    """Return the configuration from a command's options; end the process with code 2 when it cannot be."""
    file: Path | None = options.pop("config_file")
    flags = {setting.name: options.get(setting.name) for setting in SETTINGS}
    try:
        return load_config(flags=flags, environ=os.environ, file=file)
    except ConfigError as error:
        for fault in error.faults:
            sys.stderr.write(f"ryusen: {fault}\n")
        raise SystemExit(ExitCode.USAGE) from None


def as_json(function: Decorated) -> Decorated:
    """Give a command --json."""
    return click.option("--json", "is_json", is_flag=True, help="Print one JSON document instead of a table.")(function)


def without_asking(function: Decorated) -> Decorated:
    """Give a command --yes."""
    return click.option("--yes", "-y", "is_yes", is_flag=True, help="Do not ask, even on a terminal.")(function)


def confirm(question: str, *, is_yes: bool) -> None:
    """Ask a person on a terminal, on standard error; a script is not asked.

    Raises:
        Abort: the answer was no.
    """
    if not is_yes and sys.stdin.isatty():
        click.confirm(question, abort=True, err=True)


def json_text(text: str, what: str) -> bytes:
    """Return the JSON text that an option gives: itself, @FILE, or - for standard input. Its bytes are not changed.

    Args:
        text: the option's value.
        what: what it is called in messages.

    Raises:
        UsageError: the file cannot be read, or the text is not JSON.
    """
    if text == "-":
        data = sys.stdin.buffer.read()
    elif text.startswith("@"):
        try:
            data = Path(text[1:]).read_bytes()
        except OSError as error:
            raise click.UsageError(f"the {what}'s file cannot be read: {error}") from None
    else:
        data = text.encode("utf-8", "surrogateescape")
    try:
        msgspec.json.decode(data, type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise click.UsageError(f"the {what} is not JSON text: {error}") from None
    return data.strip()


def _metavar(setting: Setting) -> str:
    return "|".join(setting.choices) if setting.choices else setting.unit.upper() or "TEXT"


def _help(setting: Setting) -> str:
    default = f"default: {setting.default}" if setting.default != "" else "no default"
    return f"{setting.meaning}  [{setting.range}; {default}; env: {setting.env}]"
