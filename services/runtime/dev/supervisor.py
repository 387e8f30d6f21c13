"""Keeps one current worker running: starts it, starts another when the code changes, lets the former one finish.

A worker that the code's change replaces is told to stop: it takes nothing new, finishes what it runs and delivers it, while
its successor already serves. So editing a file in the middle of a step costs no step.
"""

from __future__ import annotations

import importlib.util
import logging
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import anyio
from anyio.abc import Process as Child
from watchfiles import PythonFilter, awatch

from services.runtime.dev.worker import EXIT_CODE_FAULT

__all__ = ["Supervisor", "code_folder"]

log = logging.getLogger(__name__)

GRACE_S = 35.0
"""How long a replaced worker may finish; five seconds more than its own grace, then it is killed."""
PAUSE_S_FIRST = 1.0
PAUSE_S_MAX = 30.0
"""Between starts of a worker that ends by itself: doubling from the first to the second."""
FORMER_MAX = 3
"""Replaced workers that may still finish; a further change waits for one of them."""


def code_folder(target: str) -> Path:
    """Return the folder whose Python files make up the application `target`, named as module:attribute.

    Raises:
        LookupError: there is no such module here.
    """
    module, _, attribute = target.partition(":")
    if not module or not attribute:
        raise LookupError(f"{target!r} must look like module:app")
    top = module.partition(".")[0]
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = importlib.util.find_spec(top)
    except ValueError:
        found = None
    finally:
        sys.path.pop(0)
    if found is None or found.origin is None:
        raise LookupError(f"there is no module {top!r} in {Path.cwd()} or on the path")
    return Path(found.origin).parent


class Supervisor:
    """Runs the worker of one application."""

    def __init__(self, target: str, environment: Mapping[str, str], folder: Path | None) -> None:
        """Serve `target`; watch `folder` for changes, or nothing when it is None."""
        self._target = target
        self._environment = dict(environment)
        self._folder = folder
        self._changed = anyio.Event()
        self._stopping = anyio.Event()
        self._former = anyio.CapacityLimiter(FORMER_MAX)

    def stop(self) -> None:
        """Ask the worker to finish; `run` returns when it has."""
        self._stopping.set()

    async def run(self) -> None:
        """Keep a worker running until `stop`."""
        async with anyio.create_task_group() as group:
            if self._folder is not None:
                group.start_soon(self._watch, self._folder, name="code watch")
            pause_s = PAUSE_S_FIRST
            while not self._stopping.is_set():
                child = await self._start()
                code = await self._wait(child)
                if code is None:
                    # Changed or stopping, and the worker still runs.
                    pause_s = PAUSE_S_FIRST
                    await self._retire(child, group if not self._stopping.is_set() else None)
                    continue
                if code == EXIT_CODE_FAULT and self._folder is not None:
                    log.warning("the code cannot be served; waiting for a change of it")
                    await self._until_asked(None)
                else:
                    log.warning("the worker ended by itself", extra={"code": code, "again_in_s": pause_s})
                    await self._until_asked(pause_s)
                    pause_s = min(PAUSE_S_MAX, 2 * pause_s)
            group.cancel_scope.cancel()

    async def _start(self) -> Child:
        self._changed = anyio.Event()
        return await anyio.open_process(
            [sys.executable, "-m", "services.runtime.dev.worker", self._target],
            stdin=subprocess.PIPE,
            stdout=None,
            stderr=None,
            env=self._environment,
            # Out of the terminal's group: ctrl-C reaches this process, which then stops the worker in its own time.
            start_new_session=True,
        )

    async def _wait(self, child: Child) -> int | None:
        """Return the worker's exit code when it ends by itself, None when it is to be replaced or stopped."""
        code: int | None = None
        async with anyio.create_task_group() as group:

            async def until_ended() -> None:
                nonlocal code
                code = await child.wait()
                group.cancel_scope.cancel()

            group.start_soon(until_ended, name="worker end")
            await self._until_asked(None)
            group.cancel_scope.cancel()
        return code

    async def _until_asked(self, seconds: float | None) -> None:
        """Return at a change, at `stop`, or after `seconds`."""
        with anyio.move_on_after(seconds):
            async with anyio.create_task_group() as group:
                for event in (self._changed, self._stopping):

                    async def until_set(event: anyio.Event = event) -> None:
                        await event.wait()
                        group.cancel_scope.cancel()

                    group.start_soon(until_set, name="asked")

    async def _retire(self, child: Child, group: anyio.abc.TaskGroup | None) -> None:
        child.send_signal(signal.SIGTERM)
        if group is None:
            await self._finish(child)
            return
        owner = object()
        await self._former.acquire_on_behalf_of(owner)

        async def finish() -> None:
            try:
                await self._finish(child)
            finally:
                self._former.release_on_behalf_of(owner)

        group.start_soon(finish, name="former worker")

    async def _finish(self, child: Child) -> None:
        try:
            with anyio.move_on_after(GRACE_S):
                await child.wait()
        finally:
            if child.returncode is None:
                child.kill()
            with anyio.CancelScope(shield=True):
                await child.aclose()

    async def _watch(self, folder: Path) -> None:
        async for changes in awatch(folder, watch_filter=PythonFilter(), stop_event=self._stopping):
            log.info("the code has changed: starting a new worker", extra={"files": len(changes)})
            self._changed.set()
