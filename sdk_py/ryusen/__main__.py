"""`python -m ryusen worker module:app`: run a worker from the command line."""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from ryusen.app import App
from ryusen.errors import RyusenError
from ryusen.serving import serve
from ryusen.version import VERSION
from ryusen.worker.shell import CAPACITY_DEFAULT, UNDO_CAPACITY_DEFAULT

__all__ = ["load_app", "main"]

EXIT_USAGE = 2


def load_app(target: str) -> App:
    """Return the App that `module:attribute` names, looking in the current folder first.

    Raises:
        LookupError: there is no such App; the message says what is missing.
    """
    module_name, _, attribute = target.partition(":")
    if not module_name or not attribute:
        raise LookupError(f"{target!r} must look like module:app")
    sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as exc:
        # A module missing deeper down is the user's own error and deserves its traceback.
        if exc.name is None or not f"{module_name}.".startswith(f"{exc.name}."):
            raise
        raise LookupError(f"there is no module {exc.name!r} in {Path.cwd()} or on the path") from None
    app = getattr(module, attribute, None)
    if not isinstance(app, App):
        raise LookupError(f"{target!r} is not a ryusen.App")
    return app


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m ryusen", description="Durable workflows in ordinary Python functions."
    )
    parser.add_argument("--version", action="version", version=VERSION)
    commands = parser.add_subparsers(dest="command", required=True)
    worker = commands.add_parser("worker", help="serve an application's functions")
    worker.add_argument("app", help="where the App is, as module:attribute")
    worker.add_argument("--url", help="the service's address, such as ws://127.0.0.1:8080 (RYUSEN_URL)")
    worker.add_argument("--key", help="the workspace's key (better given as RYUSEN_KEY)")
    worker.add_argument("--capacity", type=int, default=CAPACITY_DEFAULT, help="callbacks at once (%(default)s)")
    worker.add_argument(
        "--undo-capacity",
        type=int,
        default=UNDO_CAPACITY_DEFAULT,
        help="compensators at once besides (%(default)s)",
    )
    worker.add_argument("--release", default="", help="the deployed release's name (RYUSEN_RELEASE)")
    worker.add_argument("--grace", default="30s", help="how long to finish what runs when stopped (%(default)s)")
    worker.add_argument("--log-level", default="info", choices=["debug", "info", "warning", "error"])
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    options = _parser().parse_args(arguments)
    # To standard error: standard output belongs to the user's own prints.
    logging.basicConfig(level=options.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        app = load_app(options.app)
        return serve(
            app,
            url=options.url,
            key=options.key,
            capacity=options.capacity,
            undo_capacity=options.undo_capacity,
            release=options.release,
            grace=options.grace,
        )
    except (RyusenError, LookupError) as exc:
        sys.stderr.write(f"ryusen: {exc}\n")
        return EXIT_USAGE


def _leave(code: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    if code:
        # Threads of user code that hang would otherwise keep the process from ending as it said it would.
        os._exit(code)


if __name__ == "__main__":
    _leave(main())
