"""Start, watch, kill and restart the processes of a topology, all on this machine, all gone in the end.

    async with Launcher(topology, folder) as launcher:
        await launcher.start_servers()
        access = await open_workspace(launcher, app)          # topology.bootstrap
        await launcher.start_workers(WorkerSpec(...))
        await launcher.kill(Role.DISPATCHER)
        await launcher.restart(Role.DISPATCHER)

Leaving the block asks every process to stop, workers first, and kills what has not ended in time.
"""

from __future__ import annotations

import secrets
import signal
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio
import httpx

from topology.ports import HOST, free_ports
from topology.process import Command, Process, clean_environment
from topology.tables import Role, Topology

__all__ = ["READY_S", "STOP_S", "Launcher", "NotStarted", "WorkerSpec"]

READY_S = 20.0
"""Seconds for a process to become ready; a busy machine of two cores needs a few."""
STOP_S = 15.0
"""Seconds for a process to end by itself after SIGTERM."""
PROBE_S = 0.05
"""Seconds between two looks at a process that is starting."""
PROBE_TIMEOUT_S = 2.0
READY_METRIC = "ryusen_process_ready 1.0"

Slot = tuple[Role, int]


class NotStarted(Exception):
    """A process ended, or was not ready in time; the message ends with its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """What the workers run.

    Attributes:
        app: the App as module:attribute.
        folder: where that module is; the worker's working folder.
        key: the workspace's bearer key.
        capacity: callbacks at once in one process.
        grace: how long a stopped worker may finish, as the SDK writes durations.
        environment: variables of the application's own.
    """

    app: str
    folder: Path
    key: str = field(repr=False)
    capacity: int = 10
    grace: str = "10s"
    environment: Mapping[str, str] = field(default_factory=dict)


class Launcher:
    """The processes of one topology. Use it as an async context manager."""

    def __init__(
        self,
        topology: Topology,
        folder: Path,
        *,
        store: str | None = None,
        settings: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
        on_event: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Choose ports and folders; nothing is started yet.

        Args:
            topology: what to start.
            folder: private to this launcher: logs, and the embedded store when `store` is None.
            store: another store's address.
            settings: further settings of the servers, by name, such as `lease_ms`.
            environment: further variables of every process, such as where Python finds its packages.
            on_event: told in words what starts, ends and is killed.
        """
        self.topology = topology
        self.folder = folder.resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.store = store or f"embedded:{self.folder / 'store'}"
        self.system_key = secrets.token_urlsafe(32)
        self._settings = dict(settings or {})
        self._environment = dict(environment or {})
        self._on_event = on_event
        self._slots: list[Slot] = [(role, index) for role in Role for index in range(topology.count(role))]
        ports = iter(free_ports(2 * len(self._slots)))
        self._ports = {slot: next(ports) for slot in self._slots}
        self._metrics_ports = {slot: next(ports) for slot in self._slots}
        self._processes: dict[Slot, Process] = {}
        self._workers: dict[int, WorkerSpec] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop(is_patient=error is None)

    # ---- addresses

    def gateway_url(self, index: int = 0) -> str:
        """Return a gateway's address."""
        return f"http://{HOST}:{self._ports[Role.GATEWAY, index]}"

    def dispatcher_url(self, index: int = 0) -> str:
        """Return a dispatcher's address, for workers."""
        return f"ws://{HOST}:{self._ports[Role.DISPATCHER, index]}"

    def metrics_url(self, role: Role, index: int = 0) -> str:
        """Return the address of a server process's metrics."""
        return f"http://{HOST}:{self._metrics_ports[role, index]}/metrics"

    def log(self, role: Role, index: int = 0) -> Path:
        """Return the log file of a process, the same over restarts."""
        return self.folder / f"{role}-{index}.log"

    def process(self, role: Role, index: int = 0) -> Process:
        """Return the process that was last started in a place.

        Raises:
            LookupError: none was.
        """
        return self._processes[role, index]

    @property
    def processes(self) -> list[Process]:
        """Every process that was started and not yet replaced, in the order of their places."""
        return [self._processes[slot] for slot in self._slots if slot in self._processes]

    @property
    def server_slots(self) -> list[Slot]:
        """The places of the service's own processes."""
        return [slot for slot in self._slots if slot[0].is_server]

    # ---- life

    async def start_servers(self) -> None:
        """Start every server process and wait until all are ready.

        Raises:
            NotStarted: one ended, or took too long.
        """
        # One alone first: it makes the store, and a fault in the settings is then told once.
        first, *others = self.server_slots
        await self.start(*first)
        async with anyio.create_task_group() as group:
            for slot in others:
                group.start_soon(self.start, *slot, name=f"start {slot[0]}-{slot[1]}")

    async def start_workers(self, spec: WorkerSpec, indices: Iterable[int] | None = None) -> None:
        """Start worker processes, all of them when `indices` is None; that they are connected shows in their work."""
        for index in range(self.topology.workers) if indices is None else indices:
            self._workers[index] = spec
            await self.start(Role.WORKER, index)

    async def start(self, role: Role, index: int = 0) -> Process:
        """Start the process of one place, which must be empty or hold an ended one, and wait until it is ready.

        Raises:
            NotStarted: it ended, or took too long.
        """
        slot = (role, index)
        former = self._processes.get(slot)
        assert former is None or not former.is_alive, f"{former and former.name} still runs"
        if former is not None:
            await former.finish()
        process = await Process.start(f"{role}-{index}", self._command(slot))
        self._processes[slot] = process
        self._on_event(f"{process.name} started (pid {process.pid})")
        if role.is_server:
            await self._wait_ready(slot, process)
        return process

    async def kill(self, role: Role, index: int = 0) -> Process:
        """Kill a process with SIGKILL and wait until it is gone."""
        process = self.process(role, index)
        await process.kill()
        self._on_event(f"{process.name} killed with -9 (pid {process.pid})")
        return process

    async def restart(self, role: Role, index: int = 0) -> Process:
        """Start a place's process again where the former one ended."""
        return await self.start(role, index)

    async def stop(self, *, is_patient: bool = True) -> None:
        """End every process: workers first, each by SIGTERM when patient; then whatever is left is killed."""
        try:
            if is_patient:
                for group in ([Role.WORKER], [Role.GATEWAY, Role.FANOUT, Role.DISPATCHER]):
                    await self._terminate(group)
        finally:
            for process in self.processes:
                await process.finish()

    async def _terminate(self, roles: list[Role]) -> None:
        leaving = [process for (role, _), process in self._processes.items() if role in roles and process.is_alive]
        for process in leaving:
            process.signal(signal.SIGTERM)
        with anyio.move_on_after(STOP_S):
            for process in leaving:
                await process.wait(STOP_S)

    # ---- how each is run

    def _command(self, slot: Slot) -> Command:
        role, index = slot
        if role is Role.WORKER:
            return self._worker_command(index)
        settings = {
            "store": self.store,
            "gateway_port": str(self._ports[slot]),
            "dispatcher_port": str(self._ports[slot]),
            "metrics_port": str(self._metrics_ports[slot]),
            "system_key": self.system_key,
        } | self._settings
        return Command(
            arguments=(sys.executable, "-m", "services.runtime.cli", role.value),
            environment=clean_environment(
                {f"RYUSEN_{name.upper()}": value for name, value in settings.items()} | self._environment
            ),
            folder=self.folder,
            log=self.log(role, index),
        )

    def _worker_command(self, index: int) -> Command:
        spec = self._workers[index]
        url = self.dispatcher_url(index % self.topology.dispatchers)
        environment = clean_environment(
            {"RYUSEN_URL": url, "RYUSEN_KEY": spec.key, **self._environment, **spec.environment}
        )
        options = ("--capacity", str(spec.capacity), "--grace", spec.grace)
        return Command(
            arguments=(sys.executable, "-m", "ryusen", "worker", spec.app, *options),
            environment=environment,
            folder=spec.folder.resolve(),
            log=self.log(Role.WORKER, index),
        )

    async def _wait_ready(self, slot: Slot, process: Process) -> None:
        try:
            with anyio.fail_after(READY_S):
                async with httpx.AsyncClient(timeout=PROBE_TIMEOUT_S, trust_env=False) as http:
                    while not await self._is_ready(http, slot):
                        if not process.is_alive:
                            raise NotStarted(
                                f"{process.name} ended with code {process.exit_code}:\n{process.log_tail()}"
                            )
                        await anyio.sleep(PROBE_S)
        except TimeoutError:
            raise NotStarted(f"{process.name} was not ready within {READY_S} s:\n{process.log_tail()}") from None

    async def _is_ready(self, http: httpx.AsyncClient, slot: Slot) -> bool:
        role, index = slot
        try:
            metrics = await http.get(self.metrics_url(role, index))
            if READY_METRIC not in metrics.text:
                return False
            if role is Role.GATEWAY:
                ready = await http.get(f"{self.gateway_url(index)}/readyz")
                return ready.status_code == httpx.codes.OK
            if role is Role.DISPATCHER:
                # It speaks to workers only; that it listens is what they need.
                await (await anyio.connect_tcp(HOST, self._ports[slot])).aclose()
        except (httpx.TransportError, OSError):
            return False
        return True
