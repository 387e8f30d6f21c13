"""Running a process to its end: signals, the bounded drain, exit codes.

    SIGTERM or SIGINT   `drain` begins: the body stops accepting, finishes what it has begun and returns; after `drain_ms`
                        it is cancelled
    a second one        cancelled at once

Exit codes: 0 done, 1 failed or cut off, 2 wrong configuration, 3 not ready (store or port unavailable, keyspace refused).
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from enum import IntEnum

import anyio

from services.runtime.config import Config
from services.runtime.http import PortUnavailable
from services.runtime.process import NotReady, Process, open_process

__all__ = ["Body", "ExitCode", "run_process"]

log = logging.getLogger(__name__)

COLLECT_AFTER_OBJECTS = 20_000
"""Objects made and not freed after which the youngest are looked at: a few megabytes that a cycle may hold until then."""


class ExitCode(IntEnum):
    """What a process says when it ends."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    NOT_READY = 3


Body = Callable[[Process], Awaitable[None]]
"""What a process does: serve until `process.drain`, finish, return."""


def run_process(config: Config, role: str, body: Body) -> int:
    """Run a process to its end and return its exit code. Installs the signal handlers; call from the main thread."""
    for name in config.ignored:
        log.warning("a variable of our prefix is no setting", extra={"variable": name})
    try:
        return anyio.run(_run, config, role, body, backend_options={"use_uvloop": True})
    except BaseExceptionGroup as group:
        error = _first_known(group)
        if error is None:
            log.exception("the process failed")
            return ExitCode.FAILED
        return _refuse(error)
    except (NotReady, PortUnavailable) as error:
        return _refuse(error)


async def _run(config: Config, role: str, body: Body) -> int:
    code = ExitCode.DONE
    async with open_process(config, role) as process, anyio.create_task_group() as group:

        async def guard() -> None:
            nonlocal code
            code = await _until_told(process, group.cancel_scope)

        group.start_soon(guard, name="signals")
        log.info(
            "started",
            extra={
                "role": role,
                "process_id": process.process_id,
                "pid": os.getpid(),
                "store": process.keyspace.store.name,
            },
        )
        _spare_collector()
        await body(process)
        group.cancel_scope.cancel()
    log.info("stopped", extra={"role": role, "pid": os.getpid()})
    return code


async def _until_told(process: Process, scope: anyio.CancelScope) -> ExitCode:
    """Begin the drain at the first signal; at the second, or when the time is over, cut the body off."""
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for received in signals:
            log.info("draining", extra={"signal": received.name, "within_ms": process.config.drain_ms})
            process.health.is_leaving = True
            process.drain.begin()
            break
        try:
            with anyio.fail_after(process.config.drain_ms / 1_000):
                async for _received in signals:
                    log.warning("told twice: stopping at once")
                    break
        except TimeoutError:
            log.warning("the drain took too long: stopping")
    scope.cancel()
    return ExitCode.FAILED


def _spare_collector() -> None:
    """Have the collector of reference cycles look at what start-up made no more, and at the rest less often.

    Modules, routes and codecs stay for good, and going through them is most of what a full collection costs. A request makes
    a few hundred objects and hardly a cycle, so the default of one collection for every 700 is a collection every few requests.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER_OBJECTS, *gc.get_threshold()[1:])


def _refuse(error: BaseException) -> int:
    sys.stderr.write(f"ryusen: {error}\n")
    return ExitCode.NOT_READY


def _first_known(group: BaseExceptionGroup[BaseException]) -> BaseException | None:
    """Return the one-line refusal in a group of errors, when the group holds nothing worse."""
    leaves: list[BaseException] = []
    pending: list[BaseException] = [group]
    while pending:
        error = pending.pop()
        if isinstance(error, BaseExceptionGroup):
            pending.extend(error.exceptions)
        elif not isinstance(error, asyncio.CancelledError):
            leaves.append(error)
    if leaves and all(isinstance(error, NotReady | PortUnavailable) for error in leaves):
        return leaves[0]
    return None
