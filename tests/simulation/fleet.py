"""Worker processes: the SDK's real core behind scripted user code, and the connections by which frames travel as bytes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ryusen.errors import DeclarationRefused
from ryusen.protocol.frames import (
    Assign,
    ServerFrame,
    WorkerFrame,
    WorkRef,
    decode_server_frame,
    decode_worker_frame,
    encode_frame,
)
from ryusen.worker.core import WorkerCore
from ryusen.worker.effects import (
    CancelCallback,
    Close,
    ClosePass,
    ContinuePass,
    Effect,
    Exit,
    MovePass,
    ResumePass,
    RunCallback,
    Send,
    StartPass,
    Warn,
)
from ryusen.worker.work import WorkerIdentity

from simulation.code import APPLICATION, FUNCTIONS, Code, ScriptedPass

if TYPE_CHECKING:
    from simulation.dispatching import SimSession

__all__ = ["Line", "SimWorker", "Task"]

SAID_MAX = 200


@dataclass
class Line:
    """One connection. Frames are bytes in queues; what is in them when it breaks may still arrive, or never.

    Attributes:
        name: for people.
        dispatcher: the process it was opened to.
        to_server: what the worker sent and no dispatcher has read.
        to_worker: what left a session and its worker has not read.
        session: the session that stands on it, once it does.
        is_cut: whether it is broken; each side finds out for itself.
        has_hello: whether the dispatcher has read its first frame.
    """

    name: str
    dispatcher: str
    worker: SimWorker
    to_server: deque[bytes] = field(default_factory=deque)
    to_worker: deque[bytes] = field(default_factory=deque)
    session: SimSession | None = None
    is_cut: bool = False
    has_hello: bool = False

    def hear_worker(self) -> WorkerFrame:
        """Read the next frame at the dispatcher's end."""
        return decode_worker_frame(self.to_server.popleft())

    def hear_server(self) -> ServerFrame:
        """Read the next frame at the worker's end."""
        return decode_server_frame(self.to_worker.popleft())


@dataclass(frozen=True)
class Task:
    """Something user code is about to have done: a turn of a pass, or the end of a callback."""

    request: str
    is_callback: bool
    ref: WorkRef | None = None

    @property
    def name(self) -> str:
        """What choices know it by."""
        return f"{self.request}/{self.is_callback}"


class SimWorker:
    """One worker process.

    Attributes:
        name: for people; also the release's fleet.
        workspace: whose credential it has.
        code: what is deployed in it.
        line: its connection, if it has one.
        said: every frame it ever sent, for those that come twice or forged.
        tasks: what its user code is doing.
        hanging: callbacks that do not end by themselves.
        begun: the assignments whose passes have begun since the world last looked.
    """

    def __init__(
        self, name: str, workspace: str, code: Code, instance: str, capacity: int, undo_capacity: int = 0
    ) -> None:
        """Start a process that has no connection yet."""
        self.name = name
        self.workspace = workspace
        self.code = code
        self.instance = instance
        identity = WorkerIdentity(APPLICATION, instance, FUNCTIONS, capacity, code.release, "simulation", undo_capacity)
        self.core = WorkerCore(identity)
        self.line: Line | None = None
        self.is_gone = False
        self.said: deque[bytes] = deque(maxlen=SAID_MAX)
        self.tasks: list[Task] = []
        self.hanging: set[str] = set()
        self.begun: list[Assign] = []
        self._passes: dict[str, ScriptedPass] = {}
        self._refs: dict[str, WorkRef] = {}

    def connect(self, line: Line, now_ms: float) -> None:
        """Open a connection and say hello."""
        self.line = line
        self.perform(self.core.connected(now_ms), _no_callback)

    def disconnect(self, now_ms: float, begin: Callable[[WorkRef], None]) -> None:
        """Notice that the connection is gone."""
        self.line = None
        self.perform(self.core.disconnected(now_ms), begin)

    def perform(self, effects: Iterable[Effect], begin: Callable[[WorkRef], None]) -> None:
        """Do what the core asks; `begin` tells the outside world that user code of an attempt begins."""
        for effect in effects:
            if isinstance(effect, Send):
                self._send(effect.frame)
            elif isinstance(effect, Close):
                if self.line is not None:
                    self.line.is_cut = True
            elif isinstance(effect, Exit):
                self.is_gone = True
                if self.line is not None:
                    self.line.is_cut = True
            elif isinstance(effect, RunCallback):
                begin(self._refs[effect.request])
                self.tasks.append(Task(effect.request, True, self._refs[effect.request]))
            elif not isinstance(effect, Warn | CancelCallback):
                self._follow(effect)

    def _send(self, frame: WorkerFrame) -> None:
        data = encode_frame(frame)
        self.said.append(data)
        if self.line is not None and not self.line.is_cut:
            self.line.to_server.append(data)

    def _follow(self, effect: StartPass | ResumePass | ContinuePass | MovePass | ClosePass) -> None:
        request = effect.request
        if isinstance(effect, StartPass):
            self._passes[request] = ScriptedPass(effect.assign, self.code)
            self.begun.append(effect.assign)
            self._refs[request] = effect.assign.ref
            self.tasks.append(Task(request, False))
            return
        if isinstance(effect, ClosePass):
            self._passes.pop(request, None)
            self._refs.pop(request, None)
            self.tasks = [task for task in self.tasks if task.is_callback or task.request != request]
            return
        its_pass = self._passes.get(request)
        if its_pass is None:
            return
        if isinstance(effect, ResumePass):
            assert isinstance(effect.refusal, DeclarationRefused)
            its_pass.is_refused = True
            self.tasks.append(Task(request, False))
            return
        self._passes[effect.following] = self._passes.pop(request)
        self._refs[effect.following] = self._refs.pop(request)
        if isinstance(effect, ContinuePass):
            its_pass.go_on(effect.value)
            self.tasks.append(Task(effect.following, False))
        else:
            self._refs[effect.following] = effect.ref

    def pass_of(self, request: str) -> ScriptedPass | None:
        """Return a pass that is open."""
        return self._passes.get(request)

    def refs(self) -> list[WorkRef]:
        """Return the names of the deliveries whose passes are open: what is under way here."""
        return list(self._refs.values())


def _no_callback(ref: WorkRef) -> None:
    raise AssertionError(f"a callback began with a hello: {ref}")
