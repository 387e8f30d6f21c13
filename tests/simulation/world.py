"""The world of one scenario: a store, the processes on it, workers, an outside world, and the checks after every commit."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from ryusen.protocol.frames import Assign, Failed, Hello, Result, Succeeded, WorkRef
from ryusen.worker.passes import Ended

from keyspace.clock import VirtualClock
from keyspace.errors import KeyspaceError, Refusal
from keyspace.fsck import check_keyspace
from keyspace.keyspace import Keyspace
from keyspace.layout import (
    ATTEMPT,
    COMPLETION,
    HISTORY,
    ITEM,
    LEASE,
    OUTPUT,
    RUN,
    STEP,
    STEP_VALUE,
)
from keyspace.lifecycle import ItemState
from keyspace.opening import open_keyspace
from keyspace.records.work import Direction, ItemRecord, WorkKind
from keyspace.store.embedded import memory_store
from keyspace.store.errors import StoreError
from keyspace.store.fault import FaultStore, ProcessStopped
from keyspace.transitions.activate_routing import activate_routing
from keyspace.transitions.create_workspace import create_workspace
from keyspace.transitions.publish_manifest import FunctionSpec, ManifestSpec, TriggerSpec, publish_manifest
from keyspace.transitions.resolve_attempt import Command, Target
from keyspace.transitions.work import direction_of
from keyspace.tx import Tx
from simulation.code import APPLICATION, FUNCTIONS, Code, callback_outcome, first_code, next_code
from simulation.coverage import new_in_run, new_in_step
from simulation.dispatching import Process, SimDispatcher, SimSession
from simulation.fleet import Line, SimWorker, Task
from simulation.model import AttemptAt, Broken, Model, RunLook, may_repeat
from simulation.scenario import Draws
from simulation.witness import Commit, Look, MoveFaults, Touched, WitnessEngine, judge

if TYPE_CHECKING:
    from simulation.invoking import Invoked

__all__ = ["EVENTS", "WORKSPACES", "SimulationClock", "World", "as_broken", "instant_of"]

T = TypeVar("T")

EVENTS: Mapping[str, tuple[str, ...]] = {"placed": ("fulfil",), "returned": ("refund",), "moved": FUNCTIONS, "seen": ()}
"""Which functions each event starts."""
WORKSPACES = ("acme", "quiet")
RUN_LEAVES = (RUN, STEP, ATTEMPT, HISTORY, COMPLETION, STEP_VALUE, OUTPUT)
VERSIONS_MAX = 5
RUN_TIMEOUTS_MS = (None, None, None, 15_000, 90_000)
FSCK_EVERY = 50
HANG_SHARE = 0.06


class SimulationClock(VirtualClock):
    """A virtual clock that passes time for whoever sleeps: one thing happens at a time, so nobody is overtaken."""

    async def sleep_ms(self, delay_ms: float) -> None:
        """Let the delay pass at once."""
        self.advance(max(0.0, delay_ms))


class _MoveIds:
    """Ids by the move that needs them, so that a move taken away changes none of the others'."""

    def __init__(self) -> None:
        self._rng = random.Random(0)

    def begin(self, seed: int, number: int) -> None:
        self._rng = random.Random(f"{seed}/ids/{number}")

    def randbytes(self, n: int, /) -> bytes:
        return self._rng.randbytes(n)


class _Complaints(logging.Handler):
    """Errors that the services survive by logging them: in a simulation nothing of the kind may happen."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.ERROR)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, ProcessStopped | StoreError):
            self._world.broken.append(Broken("nothing is only logged", f"{record.getMessage()}: {error!r}"))


class World:
    """Everything there is in one scenario.

    Attributes:
        seed: of the scenario.
        clock: the time of all processes.
        engine: the store under them.
        faults: what is to fail in the present move.
        model: what may be true.
        broken: the rules that were found broken.
        seen: rare things, counted.
        dispatchers: the dispatcher processes.
        gateway: the process of callers, operators and fan-out.
        workers: the worker processes that live.
        lines: the connections that somebody still has an end of.
        versions: the code that was deployed so far.
        invocations: what callers asked for, heard of or not.
        invoked: the acknowledged ones, by event.
        contested: keys of which nobody knows whether a second content took them.
    """

    def __init__(self, seed: int) -> None:
        """Make an empty world."""
        self.seed = seed
        self.clock = SimulationClock()
        self.engine = WitnessEngine(self._landed)
        self.faults = MoveFaults()
        self.model = Model()
        self.broken: list[Broken] = []
        self.seen: Counter[str] = Counter()
        self.ids = _MoveIds()
        self.submissions: list[tuple[str, str, str | None, str]] = []
        self.accepted: dict[str, tuple[str, str]] = {}
        self.invocations: list[Invoked] = []
        self.invoked: dict[str, Invoked] = {}
        self.contested: set[str] = set()
        self.resolutions: list[tuple[str, Target, Command, str]] = []
        self.workers: list[SimWorker] = []
        self.lines: list[Line] = []
        self.names: dict[str, str] = {}
        self.notes: list[str] = []
        draws = Draws(seed, "world")
        self.workspaces = WORKSPACES[: 1 + draws.chance(0.3)]
        self.timeouts_ms = {name: draws.one_of(RUN_TIMEOUTS_MS) for name in FUNCTIONS}
        self.default_timeout_ms = draws.one_of(RUN_TIMEOUTS_MS)
        self.versions: list[Code] = [first_code(Draws(seed, "code/1"))]
        self.gateway = self._open("gateway")
        self.dispatchers = [SimDispatcher(self._open(name), self, continues=draws.chance(0.6)) for name in ("d1", "d2")]
        self._looks: dict[tuple[str, str], RunLook] = {}
        self._checked = 0
        self._complaints = _Complaints(self)

    def _open(self, name: str) -> Process:
        inner = memory_store(clock=self.clock, engine=self.engine)
        store = FaultStore(inner, self.faults, clock=self.clock)
        return Process(name, store, Keyspace(store, clock=self.clock, rng=self.ids))

    def saw(self, what: str) -> None:
        """Count a rare thing."""
        self.seen[what] += 1

    # -- setting up

    async def set_up(self) -> None:
        """Create the workspaces, publish the application and route its event."""
        logging.getLogger("services").addHandler(self._complaints)
        self.ids.begin(self.seed, 0)
        keyspace = self.gateway.keyspace
        await open_keyspace(keyspace)
        functions = tuple(FunctionSpec(name, _triggers(name), timeout_ms=self.timeouts_ms[name]) for name in FUNCTIONS)
        manifest = ManifestSpec(APPLICATION, functions)
        for name in self.workspaces:
            await keyspace.transact("create_workspace", lambda tx, ws=name: create_workspace(tx, ws))
            await keyspace.transact(
                "publish_manifest", lambda tx, ws=name: publish_manifest(tx, ws, manifest, published_by="sim")
            )
            await keyspace.transact(
                "activate_routing",
                lambda tx, ws=name: activate_routing(tx, ws, {APPLICATION: 1}, activated_by="sim"),
            )

    def tear_down(self) -> None:
        """Leave nothing behind in the process that runs the scenario."""
        logging.getLogger("services").removeHandler(self._complaints)

    def deploy(self, draws: Draws) -> Code:
        """Return the newest code, or make a newer one."""
        if len(self.versions) < VERSIONS_MAX and draws.chance(0.5):
            number = len(self.versions) + 1
            self.versions.append(next_code(self.versions[-1], Draws(self.seed, f"code/{number}"), number))
        return self.versions[-1] if draws.chance(0.8) else draws.one_of(self.versions)

    # -- transactions, as some process runs them

    async def act(self, process: Process, name: str, body: Callable[[Tx], Awaitable[T]]) -> T | None:
        """Run a transition in a process; None when nobody will hear of it."""
        return await self.guard(process, lambda: process.keyspace.transact(name, body))

    async def guard(self, process: Process, body: Callable[[], Awaitable[T]]) -> T | None:
        """Run what a process does: when the process stops, another one takes its place; a lost outcome is survived."""
        try:
            return await body()
        except (ProcessStopped, BaseExceptionGroup) as error:
            if isinstance(error, BaseExceptionGroup) and error.split((ProcessStopped, StoreError))[1] is not None:
                raise
            await self.restart(process)
            self.notes.append(f"{process.name} stops and starts again")
        except StoreError as error:
            self.notes.append(type(error).__name__)
        return None

    async def restart(self, process: Process) -> None:
        """End a server process as kill -9 does and start it anew; what it had sent late may still land."""
        await process.store.land()
        fresh = self._open(process.name)
        process.store, process.keyspace = fresh.store, fresh.keyspace
        for dispatcher in self.dispatchers:
            if dispatcher.process is process:
                for session in dispatcher.sessions:
                    session.is_open = False
                    session.line.is_cut = True
                dispatcher.sessions = []

    def look(self) -> Look:
        """Look at the store as it is."""
        return Look(self.engine, self.clock.now_ms())

    # -- after every commit

    def _landed(self, commit: Commit) -> None:
        self.model.clock_said(self.clock.now_ms())
        look = self.look()
        runs: dict[tuple[str, str], None] = {}
        judged: dict[Any, Touched] = {}
        for touched in commit.touched:
            self._take(touched, runs)
            judged[(touched.leaf.name, touched.elements)] = touched
        for key in runs:
            run = self._looks[key].run
            judged[("RUN", key)] = Touched(RUN, key, run)
            if run.item_id is not None:
                item = look.record(ITEM.at(key[0], run.item_id))
                judged[("ITEM", (key[0], run.item_id))] = Touched(ITEM, (key[0], run.item_id), item)
        for sentence in judge(look, judged.values()):
            self.broken.append(Broken(f"fsck {sentence.split()[0]}", f"after {commit.name}: {sentence}"))
        for key in runs:
            for found in self.model.run_changed(key, self._looks[key]):
                self.broken.append(found._replace(sentence=f"after {commit.name}: {found.sentence}"))

    def _take(self, touched: Touched, runs: dict[tuple[str, str], None]) -> None:
        """Bring the look at a run up to what a commit wrote of it."""
        leaf, at, record = touched
        if leaf not in RUN_LEAVES:
            return
        key = (at[0], at[1])
        runs[key] = None
        if leaf is RUN:
            former = self._looks.get(key)
            self.seen.update(new_in_run(None if former is None else former.run, record))
            if key in self._looks:
                self._looks[key].run = record
            else:
                self._looks[key] = RunLook(record)
            return
        known = self._looks.get(key)
        if known is None:
            return
        if leaf is STEP:
            self.seen.update(new_in_step(known.steps.get(at[2]), record))
            known.steps[at[2]] = record
        elif leaf is ATTEMPT:
            known.attempts[AttemptAt(Direction(at[2]), at[3], at[4])] = record
        elif leaf is HISTORY:
            known.history[at[2]] = record
            self.saw(f"history: {record.kind}")
        elif leaf is COMPLETION:
            known.completions[at[2]] = record
        elif leaf is OUTPUT:
            known.output = record
        else:
            known.values[at[2]] = record

    async def check_all(self) -> None:
        """Hold the whole keyspace against its checks, without faults."""
        store = memory_store(clock=self.clock, engine=self.engine)
        keyspace = Keyspace(store, clock=self.clock, rng=random.Random(0))
        report = await check_keyspace(keyspace)
        for problem in report.problems[:3]:
            self.broken.append(Broken(f"fsck {problem.check}", f"{problem.key}: {problem.sentence}"))

    async def check_sometimes(self) -> None:
        """Hold the whole keyspace against its checks once every so many commits."""
        if self.engine.commit_count - self._checked >= FSCK_EVERY:
            self._checked = self.engine.commit_count
            await self.check_all()

    # -- names for people

    def run_name(self, run_id: str) -> str:
        """Return a run's name in a trace."""
        return self.names.setdefault(run_id, f"run {chr(ord('A') + len(self.names) % 26)}{len(self.names) // 26 or ''}")

    def runs(self) -> list[tuple[str, RunLook]]:
        """Return every run with its workspace, as last seen."""
        return [(key[0], known) for key, known in self._looks.items()]

    def run_look(self, workspace: str, run_id: str) -> RunLook | None:
        """Return a run as last seen."""
        return self._looks.get((workspace, run_id))

    # -- workers

    def open_line(self, worker: SimWorker, dispatcher: SimDispatcher) -> None:
        """Connect a worker."""
        line = Line(f"{worker.name}.{worker.core.session + 1}", dispatcher.process.name, worker)
        self.lines.append(line)
        worker.connect(line, self.clock.monotonic_ms())

    def begin_effect(self, worker: SimWorker, ref: WorkRef) -> None:
        """User code of an attempt begins: the outside world may see it from now on."""
        assert ref.step is not None
        at = AttemptAt(direction_of(WorkKind(ref.kind)), ref.step, ref.generation)
        look = self.run_look(worker.workspace, ref.run)
        is_repeatable = look is not None and may_repeat(look, at)
        self.broken += self.model.effect_begins(ref.run, at, look, is_repeatable)
        word = "undoes" if at.direction is Direction.COMPENSATION else "runs"
        self.notes.append(f"{worker.name} {word} {ref.step} (generation {ref.generation}) of {self.run_name(ref.run)}")
        if Draws(self.seed, f"hang/{ref.token}").chance(HANG_SHARE):
            worker.hanging.add(ref.token)

    def worker_hears(self, worker: SimWorker) -> str:
        """Let a worker read one frame."""
        line = worker.line
        assert line is not None
        frame = line.hear_server()
        effects = worker.core.received(worker.core.session, frame, self.clock.monotonic_ms())
        worker.perform(effects, lambda ref: self.begin_effect(worker, ref))
        for assign in worker.begun:
            self._begin_pass(worker, assign)
        worker.begun.clear()
        return f"{worker.name} hears {_frame_text(frame)}"

    def _begin_pass(self, worker: SimWorker, assign: Assign) -> None:
        memo = {one.id: None if one.value is None else bytes(one.value) for one in assign.memo}
        if assign.result is not None and assign.ref.step is not None:
            memo[assign.ref.step] = bytes(assign.result)
        look = self.run_look(worker.workspace, assign.ref.run)
        self.broken += self.model.pass_begins(assign.ref.run, memo, look)

    def worker_does(self, worker: SimWorker, task: Task) -> str:
        """Let user code of a worker come to its next turn or its end."""
        worker.tasks.remove(task)
        now_ms = self.clock.monotonic_ms()
        if not task.is_callback:
            its_pass = worker.pass_of(task.request)
            assert its_pass is not None
            turn = its_pass.turn()
            effects = worker.core.pass_turn(task.request, turn, tuple(its_pass.failed_met), now_ms)
            what = type(turn.ending).__name__.lower() if isinstance(turn, Ended) else f"meets {its_pass.parked_at}"
            text = f"a pass of {self.run_name(its_pass.assign.ref.run)} {what}"
        else:
            ref = task.ref
            assert ref is not None and ref.step is not None
            name = f"{ref.run}/{ref.kind}/{ref.step}/{ref.generation}"
            value, is_undo = f"{ref.step}:{ref.generation}", ref.kind == "compensation"
            outcome = callback_outcome(Draws(self.seed, f"outcome/{name}"), value, is_undo=is_undo)
            if isinstance(outcome, Succeeded) and ref.kind == "callback":
                self.model.value_said(ref.run, ref.step, bytes(outcome.value))
            if isinstance(outcome, Failed):
                at = AttemptAt(direction_of(WorkKind(ref.kind)), ref.step, ref.generation)
                self.model.failure_said(ref.run, at, outcome.retryable)
            effects = worker.core.callback_ended(task.request, outcome, now_ms)
            text = f"{ref.kind} {ref.step} of {self.run_name(ref.run)}: {type(outcome).__name__.lower()}"
        worker.perform(effects, lambda ref: self.begin_effect(worker, ref))
        return f"{worker.name}: {text}"

    def ready_tasks(self, worker: SimWorker, *, is_forced: bool = False) -> list[Task]:
        """Return what user code may do next; a callback that hangs ends only when it is forced to."""
        return [
            task
            for task in worker.tasks
            if is_forced or not (task.is_callback and task.ref is not None and task.ref.token in worker.hanging)
        ]

    def notice_cut(self, worker: SimWorker) -> str:
        """Let a worker find out that its connection is gone."""
        line = worker.line
        assert line is not None and line.is_cut
        worker.disconnect(self.clock.monotonic_ms(), lambda ref: self.begin_effect(worker, ref))
        return f"{worker.name} notices that {line.name} is gone"

    def tick_worker(self, worker: SimWorker) -> str:
        """Let a worker do what has become due."""
        effects = worker.core.tick(self.clock.monotonic_ms())
        worker.perform(effects, lambda ref: self.begin_effect(worker, ref))
        return f"{worker.name} looks at the time"

    # -- dispatchers

    def dispatcher_of(self, line: Line) -> SimDispatcher:
        """Return the process at the other end of a connection."""
        return next(one for one in self.dispatchers if one.process.name == line.dispatcher)

    async def server_hears(self, line: Line) -> str:
        """Let a dispatcher read one frame of a connection."""
        dispatcher = self.dispatcher_of(line)
        frame = line.hear_worker()
        if line.session is None:
            if line.has_hello or not isinstance(frame, Hello):
                line.is_cut = True
                return f"{dispatcher.process.name} hangs up: {_frame_text(frame)} is no hello"
            line.has_hello = True
            heard = await self.guard(dispatcher.process, lambda: dispatcher.hear_hello(line, frame))
            return f"{dispatcher.process.name} hears hello of {line.name}: {heard}"
        session = line.session
        if session.is_open:
            session.heard_ms = session.now_ms()
            session.perform(session.core.received(frame, session.heard_ms))
        return f"{dispatcher.process.name} hears {_frame_text(frame)} by {line.name}"

    def server_notices(self, session: SimSession) -> str:
        """Let a dispatcher find out that a connection is gone."""
        session.close()
        return f"{session.process.name} notices that {session.line.name} is gone"

    async def session_does(self, session: SimSession, draws: Draws | None = None) -> str:
        """Let a session do one of the things it has to do, or clean up when it is over."""
        if not session.pending:
            assert not session.is_open
            return session.clean_up()
        effect = session.pending[0] if draws is None else draws.one_of(session.pending)
        done = await self.guard(session.process, lambda: session.do(effect))
        return f"{session.name} {done}"

    def tick_session(self, session: SimSession) -> str:
        """Let a dispatcher look at the time of a session: expired assignments, and silence."""
        now_ms = session.now_ms()
        if session.heard_ms + self.silence_ms <= now_ms:
            return self.server_notices(session)
        session.perform(session.core.tick(now_ms))
        return f"{session.name} looks at the time"

    @property
    def silence_ms(self) -> int:
        """After how much silence a session ends."""
        return 15_000

    def forget_gone(self) -> None:
        """Drop what nobody has an end of any more."""
        for dispatcher in self.dispatchers:
            dispatcher.sessions = [one for one in dispatcher.sessions if not one.is_gone]
        self.workers = [one for one in self.workers if not one.is_gone]
        self.lines = [
            line
            for line in self.lines
            if line.worker.line is line
            or (line.session is not None and line.session.is_open)
            or (line.session is None and line.to_server)
        ]

    def sessions(self) -> list[SimSession]:
        """Return every session that is not over and done with."""
        return [session for dispatcher in self.dispatchers for session in dispatcher.sessions]

    # -- time

    def next_instant_ms(self) -> int | None:
        """Return when the next thing becomes due by itself: work that vests, a lease that runs out; None for nothing."""
        now_ms = self.clock.now_ms()
        items = [item for workspace in self.workspaces for _, item in self.look().records(ITEM, workspace)]
        instants = [at_ms for item in items if (at_ms := instant_of(item)) is not None]
        return min((at_ms for at_ms in instants if at_ms > now_ms), default=None)

    def leased_shards(self) -> list[int]:
        """Return the shards that have leases."""
        return sorted({at[0] for at, _ in self.look().records(LEASE)})


def _triggers(function: str) -> tuple[TriggerSpec, ...]:
    return tuple(TriggerSpec(event, f"{event}-{function}") for event, starts in EVENTS.items() if function in starts)


def _frame_text(frame: Any) -> str:
    word = type(frame).__name__.lower()
    if isinstance(frame, Result):
        outcome = "success" if isinstance(frame.outcome, Succeeded) else "failure"
        return f"{word} ({outcome}) of {frame.ref.step}"
    ref = getattr(frame, "ref", None)
    step = f" of {ref.step}" if ref is not None and ref.step is not None else ""
    code = getattr(frame, "verdict", "") or getattr(frame, "reason", "")
    return f"{word}{step}{f' ({code})' if code else ''}"


def instant_of(item: ItemRecord) -> int | None:
    """Return when an item becomes due, or its lease runs out."""
    return item.vesting_ms if item.state is ItemState.READY else item.expires_at_ms


def as_broken(error: BaseException) -> Broken:
    """Return what an error that nothing expected says."""
    if isinstance(error, KeyspaceError) and not isinstance(error, Refusal):
        return Broken(f"no {error.code}", str(error))
    return Broken(f"no {type(error).__name__}", repr(error))
