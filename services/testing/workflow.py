"""`WorkflowTest`: the verbs in which a user's test of a workflow is written.

Every call may come from any thread, and returns when its effect is there; the service lives on a thread of its own, so that
tests may be plain or async functions.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Self

from ryusen.app import App
from ryusen.durations import Duration, parse_duration_ms
from ryusen.typed import UNTYPED, encode_typed, is_model

from keyspace.fsck import check_keyspace
from keyspace.layout import MATCH, RUN_LIST
from keyspace.limits import BINDINGS_MAX
from keyspace.transitions.accept_event import Acceptance, Submission, accept_event, check_submission
from keyspace.transitions.invoke_function import Invocation, check_invocation, invoke_function
from keyspace.transitions.rediscover_run import rediscover_run
from keyspace.tx import Tx
from services.testing.engine import AUTHOR, WORKSPACE, Engine
from services.testing.errors import FunctionNotFound, KeyspaceProblems, WorkflowTestError
from services.testing.incidents import Incident, IncidentKind
from services.testing.loop import EngineLoop
from services.testing.views import RunView, read_run
from services.testing.worker import LocalWorker

__all__ = ["WorkflowTest"]

START_MS_DEFAULT = 1_700_000_000_000
SEED_MAX = 2**32
RUNS_MAX = 100_000
"""Runs that one test can list."""
CAPACITY_DEFAULT = 10
TOLD_RUNS_MAX = 20
"""Runs whose history `describe` tells."""
PROBLEMS_SHOWN_MAX = 20


class WorkflowTest:
    """A workspace of its own, with the whole service around it, for one test.

    Work begins when its event is submitted; `settle` returns when nothing is left that could happen. Virtual time begins at a
    fixed instant and passes in `settle`, `run` and `advance` only, in jumps: a backoff of two hours costs nothing. While user
    code runs it stands still.
    """

    def __init__(self, *, seed: int | None = None, deadline: Duration = "10s", start: datetime | None = None) -> None:
        """Start the service.

        Args:
            seed: where ids come from; drawn when None, and part of `describe`.
            deadline: real time that one pass or one callback may take.
            start: the first instant of virtual time, with a zone.
        """
        self.seed = random.SystemRandom().randrange(SEED_MAX) if seed is None else seed
        start_ms = START_MS_DEFAULT if start is None else round(start.timestamp() * 1_000)
        user_s = parse_duration_ms(deadline, "deadline") / 1_000
        self._apps: dict[str, App] = {}
        self._events: dict[str, int] = {}
        self._loop = EngineLoop()
        self._engine = Engine(self._loop, seed=self.seed, start_ms=start_ms, user_s=user_s)
        self._loop.start(self._engine.live())
        self._engine.wait_live()
        self._is_closed = False

    def __enter__(self) -> Self:
        """Return the test itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        """Close it, after a check unless the block has failed already."""
        try:
            if kind is None:
                self.check()
        finally:
            self.close()

    def close(self) -> None:
        """End the service; closing again changes nothing."""
        if not self._is_closed:
            self._is_closed = True
            try:
                self._loop.call(self._engine.close())
            finally:
                self._loop.join()

    # -- applications

    def app(self, app: App, *, capacity: int = CAPACITY_DEFAULT, release: str = "") -> None:
        """Publish an application, route its events, and serve it with one worker.

        Giving an application of the same name again is a deployment: events go to the new functions, and runs under way go on
        with the new code.

        Args:
            app: the application.
            capacity: callbacks that its worker runs at once.
            release: the deployed release's name.
        """
        self._apps[app.name] = app
        self._loop.call(self._engine.deploy(app, capacity=capacity, release=release))

    # -- events and runs

    def submit(
        self,
        name: str,
        payload: object = None,
        *,
        correlation: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> str:
        """Submit an event, let happen what needs no time, and return the event's id.

        Args:
            name: the event's name.
            payload: a portable value, or a model.
            correlation: routing metadata, at most 16 pairs.
            idempotency_key: the same key with the same event returns the first event's id.

        Raises:
            InvalidValue: the payload has no exact form.
            Refusal: something is out of bounds, or the key was used for another event.
            UserCodeHangs: a pass or a callback took longer than the deadline.
        """
        submission = Submission(name, _encoded(payload), dict(correlation or {}), None, idempotency_key)
        check_submission(submission)
        event_id = self._engine.keyspace.mint()
        return self._accept(
            "accept_event", lambda tx: accept_event(tx, WORKSPACE, submission, event_id=event_id, accepted_by=AUTHOR)
        )

    def invoke(
        self,
        function: str,
        payload: object = None,
        *,
        app: str | None = None,
        idempotency_key: str | None = None,
    ) -> str:
        """Start one function directly, let happen what needs no time, and return the id of its event.

        Args:
            function: the function's name; it needs no trigger.
            payload: its input: a portable value, or a model.
            app: the application's name, where there are several. What was never published is accepted too, and starts nothing.
            idempotency_key: the same key with the same function and input returns the first event's id.

        Raises:
            InvalidValue: the input has no exact form.
            Refusal: something is out of bounds, or the key was used for another invocation.
            UserCodeHangs: a pass or a callback took longer than the deadline.
        """
        application = self._app(None).name if app is None else app
        invocation = Invocation(application, function, _encoded(payload), None, idempotency_key)
        check_invocation(invocation)
        event_id = self._engine.keyspace.mint()
        return self._accept(
            "invoke_function",
            lambda tx: invoke_function(tx, WORKSPACE, invocation, event_id=event_id, accepted_by=AUTHOR),
        )

    def run(self, function: str, payload: object = None, *, app: str | None = None) -> RunView:
        """Submit the first event that starts a function, settle, and return the function's run.

        Other functions that the event starts run too, as they would in production. A function that no event starts is invoked.

        Args:
            function: the function's name.
            payload: its input.
            app: the application's name, where several have a function of this name.

        Raises:
            FunctionNotFound: no function, or several, have this name.
        """
        owner = self._owner(function, app)
        events = owner.functions[function].events
        event_id = self.submit(events[0], payload) if events else self.invoke(function, payload, app=owner.name)
        self.settle()
        for run in self._runs_of(event_id):
            if (run.application, run.function) == (owner.name, function):
                return run
        raise WorkflowTestError(f"The event {event_id} has not started {function!r}.")

    def settle(self) -> list[RunView]:
        """Let everything happen that does by itself, skipping the time between, and return all runs.

        A run that has not ended then waits for something outside: a worker, an operator, or a fix of its code. `advance` lets
        the time pass in which blocked runs are probed.

        Raises:
            UserCodeHangs: a pass or a callback took longer than the deadline.
            NeverSettles: something goes on and on.
        """
        self._loop.call(self._engine.settle())
        return self.runs()

    def advance(self, duration: Duration) -> None:
        """Let virtual time pass, with everything that happens in it.

        Args:
            duration: seconds, a timedelta, or text such as "1h30m".
        """
        self._loop.call(self._engine.advance(parse_duration_ms(duration, "duration")))

    def runs(self, function: str | None = None) -> list[RunView]:
        """Return the runs of a function, or all, in the order in which their events were submitted.

        Runs that other runs started come behind, in the order in which they began.
        """

        async def read(tx: Tx) -> list[RunView]:
            rows = await tx.page(RUN_LIST.span(WORKSPACE), limit=RUNS_MAX, snapshot=True)
            runs = [await read_run(tx, RUN_LIST.codec.decode(value), self._apps) for _, value in rows]
            return sorted(
                (run for run in runs if function in (None, run.function)),
                key=lambda run: self._events.get(run.event, len(self._events)),
            )

        return self._loop.call(self._engine.keyspace.transact("test_runs", read))

    def read(self, run: RunView | str) -> RunView:
        """Return a run as it is now."""
        run_id = run if isinstance(run, str) else run.id
        return self._loop.call(self._engine.keyspace.transact("test_run", lambda tx: read_run(tx, run_id, self._apps)))

    @property
    def now(self) -> datetime:
        """The instant that virtual time has reached."""
        return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=self._engine.clock.now_ms())

    def rediscover(self, run: RunView | str) -> RunView:
        """Look at the code of a run again that is blocked by a duplicate step id, as an operator would; return the run.

        A deployment that names a new `release` needs none of this: it wakes the blocked runs of its functions.

        Raises:
            Refusal: `run_not_blocked`.
        """
        run_id = run if isinstance(run, str) else run.id
        request_id = self._engine.keyspace.mint()

        async def body() -> None:
            await self._engine.keyspace.transact(
                "rediscover_run",
                lambda tx: rediscover_run(tx, WORKSPACE, run_id, by=AUTHOR, item_id=request_id),
            )
            await self._engine.idle()

        self._loop.call(body())
        return self.read(run_id)

    # -- what may go wrong

    def lose_worker_during(self, step: str, *, function: str | None = None, effect: bool = True) -> None:
        """Let the worker be killed during the next callback of a step. Its attempt becomes Unknown.

        Of a step declared `idempotent` it is delivered again instead, to the next worker.

        No other worker takes its place before `restart_worker`.

        Args:
            step: the step's id.
            function: the function's name; any by default.
            effect: whether the callback has done its work when the worker dies; it has not begun otherwise.
        """
        kind = IncidentKind.LOSE_AFTER if effect else IncidentKind.LOSE_BEFORE
        self._plan(Incident(kind, step, function))

    def cut_off_worker_during(self, step: str, *, function: str | None = None) -> None:
        """Let the worker's connection break when the next callback of a step begins.

        The callback goes on, and its result stays with the worker until `reconnect_worker`. Its attempt becomes Unknown when
        the lease has run out; the late result settles it.
        """
        self._plan(Incident(IncidentKind.CUT_OFF, step, function))

    def time_out_during(self, step: str, *, function: str | None = None) -> None:
        """Let the next callback of a step take longer than its attempt's timeout, in virtual time."""
        self._plan(Incident(IncidentKind.TIME_OUT, step, function))

    def lose_worker(self, app: str | None = None) -> None:
        """Kill the worker now, as kill -9 would."""
        self._on_worker(app, LocalWorker.kill)

    def restart_worker(self, app: str | None = None) -> None:
        """Start a new worker process, which knows nothing of the former one; that one is killed if it lives.

        Args:
            app: the application's name, where there are several.
        """
        self._loop.call(self._engine.start_worker(self._app(app)))

    def reconnect_worker(self, app: str | None = None) -> None:
        """Bring a worker back that was cut off, with everything it kept.

        Raises:
            WorkflowTestError: it is connected, or was killed.
        """
        worker = self._engine.workers[self._app(app).name]
        if worker.is_connected or not worker.is_alive:
            raise WorkflowTestError(
                "The worker is connected." if worker.is_connected else "The worker was killed; use restart_worker()."
            )
        self._on_worker(app, LocalWorker.connect)

    # -- judgement

    def check(self) -> None:
        """Check everything stored with `fsck`, and that every planned incident has happened.

        Raises:
            KeyspaceProblems: something is wrong; this is an AssertionError.
        """
        problems = self._problems()
        problems += [
            f"{incident.kind.name.lower()} was planned for step {incident.step_id!r}, which has not started since"
            for incident in self._engine.incidents.left
        ]
        if problems:
            raise KeyspaceProblems("\n".join(problems[:PROBLEMS_SHOWN_MAX]))

    def describe(self) -> str:
        """Return the seed, the histories of the newest runs in words, and what `fsck` finds, for people."""
        told = [run.story for run in self.runs()[-TOLD_RUNS_MAX:]]
        problems = self._problems()[:PROBLEMS_SHOWN_MAX]
        return "\n".join([f"seed {self.seed}, virtual time {self.now.isoformat()}", *told, *problems])

    # -- inside

    def _accept(self, name: str, transition: Callable[[Tx], Awaitable[Acceptance]]) -> str:
        async def body() -> str:
            acceptance = await self._engine.keyspace.transact(name, transition)
            self._events.setdefault(acceptance.event_id, len(self._events))
            await self._engine.idle()
            return acceptance.event_id

        return self._loop.call(body())

    def _problems(self) -> list[str]:
        report = self._loop.call(check_keyspace(self._engine.keyspace))
        return [f"fsck: {problem.check} {problem.key}: {problem.sentence}" for problem in report.problems]

    def _plan(self, incident: Incident) -> None:
        async def body() -> None:
            self._engine.incidents.plan(incident)

        self._loop.call(body())

    def _on_worker(self, app: str | None, do: Callable[[LocalWorker], None]) -> None:
        self._loop.call(self._engine.on_worker(self._app(app), do))

    def _app(self, name: str | None) -> App:
        if name is None and len(self._apps) == 1:
            return next(iter(self._apps.values()))
        if name is None or name not in self._apps:
            raise WorkflowTestError(f"Name one of the test's applications: {', '.join(self._apps) or 'there is none'}.")
        return self._apps[name]

    def _owner(self, function: str, app: str | None) -> App:
        owners = [one for one in self._apps.values() if function in one.functions and app in (None, one.name)]
        if len(owners) != 1:
            known = ", ".join(f"{one.name}/{name}" for one in self._apps.values() for name in one.functions)
            what = "No function" if not owners else "More than one function"
            raise FunctionNotFound(f"{what} is called {function!r}; there are: {known or 'none; call app() first'}.")
        return owners[0]

    def _runs_of(self, event_id: str) -> list[RunView]:
        async def read(tx: Tx) -> list[RunView]:
            rows = await tx.page(MATCH.span(WORKSPACE, event_id), limit=BINDINGS_MAX, snapshot=True)
            run_ids = [MATCH.codec.decode(value).run_id for _, value in rows]
            return [await read_run(tx, run_id, self._apps) for run_id in run_ids]

        return self._loop.call(self._engine.keyspace.transact("test_matches", read))


def _encoded(payload: object) -> bytes:
    return encode_typed(payload, type(payload) if is_model(type(payload)) else UNTYPED)
