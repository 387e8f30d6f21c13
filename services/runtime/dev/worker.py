"""The worker of a local server: publishes what the code declares now, routes new events by it, then serves.

Started anew whenever the code changes. It ends when its standard input does, so that a local server that is killed leaves no
worker behind. Exit code 4 says that the code cannot be served as it is: only a change of it helps.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence

from ryusen import ApiError, App, Client, RyusenError, serve
from ryusen.__main__ import load_app

from services.runtime.config import Config
from services.runtime.logs import configure_logging

__all__ = ["EXIT_CODE_FAULT", "main"]

log = logging.getLogger("services.runtime.dev.worker")

EXIT_CODE_FAULT = 4
STANDARD_INPUT = 0
ORPHAN_S = 5.0
"""How long a worker whose server is gone tries to deliver what it has finished."""


def main(arguments: Sequence[str]) -> int:
    """Run the worker of `arguments[0]`, named as module:attribute, and return the exit code."""
    configure_logging(Config(log_level=os.environ.get("RYUSEN_LOG_LEVEL", "info")))
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    app = _load(arguments[0])
    if app is None or not _publish(app):
        return EXIT_CODE_FAULT
    return serve(app)


def _load(target: str) -> App | None:
    try:
        return load_app(target)
    except (LookupError, RyusenError) as error:
        log.error("the application cannot be loaded", extra={"error": str(error)})
    except Exception:  # noqa: BLE001 - whatever the user's module raises while it is imported is shown to the user
        traceback.print_exc()
    return None


def _publish(app: App) -> bool:
    with Client(os.environ["RYUSEN_URL"], os.environ["RYUSEN_WORKSPACE"], os.environ["RYUSEN_KEY"]) as client:
        try:
            generation = client.publish(app)
            routing = client.activate({app.name: generation}, merge=True)
        except ApiError as error:
            log.error("the application's manifest was refused", extra={"error": str(error)})
            return False
    log.info(
        "serving",
        extra={"application": app.name, "functions": len(app.functions), "manifest": generation, "routing": routing},
    )
    return True


def _end_with_parent() -> None:
    # Nothing is ever written to it: the read returns when the other end is closed, however its process ended. Past the
    # buffered stream, whose lock this thread would still hold while the interpreter ends.
    os.read(STANDARD_INPUT, 1)
    os.kill(os.getpid(), signal.SIGTERM)
    # A server that is started again soon still gets the results; one that is not must not leave a worker behind.
    time.sleep(ORPHAN_S)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
