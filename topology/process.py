"""One operating-system process of a topology: started in a session of its own, on a leash, its output in a file."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.abc

__all__ = ["Command", "Process", "clean_environment"]

LEASH = Path(__file__).with_name("leash.py")
DEAD_S = 5.0
"""Seconds for a process to be gone after SIGKILL; a longer wait means that the kernel holds it."""
TAIL_BYTES = 4_000
"""How much of a log a failure shows."""


@dataclass(frozen=True, slots=True)
class Command:
    """What to run.

    Attributes:
        arguments: the program's absolute path, then its arguments.
        environment: every variable the process sees.
        folder: the working folder.
        log: where standard output and standard error go, appended.
    """

    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    folder: Path
    log: Path


def clean_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment without what would configure a server or a worker, with `extra` on top."""
    own = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("RYUSEN_") and name != "FDB_CLUSTER_FILE"
    }
    return own | {"PYTHONUNBUFFERED": "1"} | dict(extra)


class Process:
    """A started process. Make it with `Process.start`; whoever made it must see to `finish`."""

    def __init__(self, name: str, command: Command, handle: anyio.abc.Process) -> None:
        self.name = name
        self.command = command
        self._handle = handle

    @classmethod
    async def start(cls, name: str, command: Command) -> Process:
        """Start `command` in a session of its own."""
        with command.log.open("ab") as log:
            handle = await anyio.open_process(
                [sys.executable, "-I", "-S", str(LEASH), str(os.getpid()), *command.arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=command.folder,
                env=dict(command.environment),
                start_new_session=True,
            )
        return cls(name, command, handle)

    @property
    def pid(self) -> int:
        """The process id, which is the group's too."""
        return self._handle.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code, negative for a signal, or None while it lives."""
        return self._handle.returncode

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended."""
        return self._handle.returncode is None

    def signal(self, number: int) -> None:
        """Send a signal to the process alone; nothing happens when it has ended."""
        if self.is_alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def signal_group(self, number: int) -> None:
        """Send a signal to the process and everything it started."""
        # The group may outlive its leader, so a dead leader is no reason to stop here.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    async def wait(self, seconds_max: float) -> int:
        """Wait for the end and return the exit code.

        Raises:
            TimeoutError: it lives on after `seconds_max`.
        """
        try:
            with anyio.fail_after(seconds_max):
                return await self._handle.wait()
        except TimeoutError:
            raise TimeoutError(f"{self.name} (pid {self.pid}) did not end within {seconds_max} s") from None

    async def ended(self) -> int:
        """Return the exit code when the process ends, however long that takes."""
        return await self._handle.wait()

    async def kill(self) -> int:
        """Kill the process alone with SIGKILL and wait until it is gone; return the exit code."""
        self.signal(signal.SIGKILL)
        return await self.wait(DEAD_S)

    async def finish(self) -> None:
        """Kill whatever is left of the process and of what it started, also when cancelled."""
        with anyio.CancelScope(shield=True):
            self.signal_group(signal.SIGKILL)
            with contextlib.suppress(TimeoutError):
                await self.wait(DEAD_S)
            await self._handle.aclose()

    def log_tail(self) -> str:
        """Return the end of the log, for a failure's message."""
        try:
            data = self.command.log.read_bytes()
        except OSError as error:
            return f"(no log: {error})"
        return data[-TAIL_BYTES:].decode(errors="replace")
