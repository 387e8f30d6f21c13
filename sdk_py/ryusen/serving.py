"""Running a worker as a process: signals, environment and exit codes."""

from __future__ import annotations

import importlib.util
import os
import signal
import threading
from types import FrameType

import anyio

from ryusen.app import App
from ryusen.durations import Duration, parse_duration_ms
from ryusen.errors import ConfigurationError
from ryusen.worker.shell import CAPACITY_DEFAULT, UNDO_CAPACITY_DEFAULT, Worker, WorkerOptions

__all__ = ["serve"]

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def serve(
    app: App,
    *,
    url: str | None = None,
    key: str | None = None,
    capacity: int = CAPACITY_DEFAULT,
    undo_capacity: int = UNDO_CAPACITY_DEFAULT,
    release: str = "",
    grace: Duration = "30s",
) -> int:
    """Serve an application's functions until the process is told to stop; return the exit code.

    SIGTERM or SIGINT: take no more work, give back what has not started, finish what runs, deliver the results, exit 0. A
    second one stops at once. Code 3 means that the service refused the key or the protocol for good, 1 that the grace ended
    before the work did.

    Args:
        app: the application.
        url: the service's address, such as ws://127.0.0.1:8080; `RYUSEN_URL` by default.
        key: the workspace's bearer key; `RYUSEN_KEY` by default.
        capacity: callbacks at once, 1 to 200.
        undo_capacity: compensators at once besides, 0 to 200: an undo takes any free slot, and one of these when callbacks have
            the others.
        release: the deployed release's name; `RYUSEN_RELEASE` by default, and none without it.
        grace: how long a stopped worker may finish what it runs.

    Raises:
        ConfigurationError: an option is missing or out of bounds.
    """
    options = WorkerOptions(
        url=_given("url", url, "RYUSEN_URL"),
        key=_given("key", key, "RYUSEN_KEY"),
        capacity=capacity,
        undo_capacity=undo_capacity,
        release=release or os.environ.get("RYUSEN_RELEASE", ""),
        grace_ms=parse_duration_ms(grace, "grace", least_ms=0),
    )
    worker = Worker(app, options)
    # The connection's loop alone: user code has the standard one, whatever is installed.
    loop = {"use_uvloop": importlib.util.find_spec("uvloop") is not None}
    if threading.current_thread() is not threading.main_thread():
        return anyio.run(worker.run, backend_options=loop)

    def stop(signal_number: int, frame: FrameType | None) -> None:
        worker.stop()

    former = {number: signal.signal(number, stop) for number in _SIGNALS}
    try:
        return anyio.run(worker.run, backend_options=loop)
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def _given(name: str, value: str | None, variable: str) -> str:
    value = value or os.environ.get(variable)
    if not value:
        raise ConfigurationError(f"no {name} is given: pass {name}= or set {variable}")
    return value
