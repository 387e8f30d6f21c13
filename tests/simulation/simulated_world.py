"""A small world around the transitions: workspaces, worker instances that come and go, and an outside world of effects.

One task acts at a time and every choice is drawn from one seed, so a world repeats exactly. Workers remember what they were
told in sessions that may be lost at any moment; their frames come late, twice or never. The outside world counts each
effect by run, step and generation: the promise under test is that no effect happens twice without a durable decision.
"""

from __future__ import annotations

import random
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field

from keyspace.assignment import load_assignment
from keyspace.clock import VirtualClock
from keyspace.errors import Refusal
from keyspace.fsck import check_keyspace
from keyspace.keyspace import Keyspace
from keyspace.layout import HISTORY, ITEM, RUN, UNRESOLVED
from keyspace.lifecycle import Phase
from keyspace.limits import BUCKET_MS, SHARDS
from keyspace.opening import open_keyspace
from keyspace.queue import claims
from keyspace.queue.items import Seat
from keyspace.queue.leases import expired_leases
from keyspace.queue.pointers import clear_due_pointer, due_in_application, due_in_shard
from keyspace.records.run import FailureRecord, RetryRecord, RunRecord
from keyspace.records.work import Direction, ItemRecord, LaneKind, WorkKind
from keyspace.store.api import KeyRange
from keyspace.store.embedded import memory_store
from keyspace.store.errors import StoreError
from keyspace.store.fault import FaultStore, ProcessStopped
from keyspace.store.fault_plan import CommitFault, FaultPlan, FaultRates
from keyspace.store.memory_engine import MemoryEngine
from keyspace.transitions.accept_declaration import Declaration
from keyspace.transitions.accept_event import Submission, accept_event
from keyspace.transitions.accept_failure import accept_failure
from keyspace.transitions.accept_success import accept_success
from keyspace.transitions.activate_routing import activate_routing
from keyspace.transitions.authorize_start import authorize_start
from keyspace.transitions.continue_run import (
    Completion,
    Ending,
    FunctionFailure,
    answer_pass,
    continue_run,
    following_pass,
)
from keyspace.transitions.create_workspace import create_workspace
from keyspace.transitions.expand_event import expand_event
from keyspace.transitions.fire_deadline import fire_deadline
from keyspace.transitions.give_back import give_back
from keyspace.transitions.hold import Hold
from keyspace.transitions.lease_items import Delivery, lease_items
from keyspace.transitions.lose_lease import lose_lease
from keyspace.transitions.open_session import open_session, recorded_starts
from keyspace.transitions.prove_not_started import prove_not_started
from keyspace.transitions.publish_manifest import FunctionSpec, ManifestSpec, TriggerSpec, publish_manifest
from keyspace.transitions.renew_leases import renew_leases
from keyspace.transitions.resolve_attempt import (
    DeclareFailure,
    RetryAttempt,
    SupplySuccess,
    Target,
    resolve_attempt,
)
from keyspace.transitions.stop_run import cancel_run
from keyspace.transitions.target_not_found import target_not_found
from keyspace.transitions.work import Accepted, Replayed, Work

__all__ = ["RATES", "Simulation", "SimulationClock", "is_settled"]

APPLICATION = "shop"
FUNCTIONS = ("fulfil", "refund")
TIMEOUTS_MS = {"refund": 12_000}
"""How long a run of a function may take; the others have for ever."""
LEASE_MS = 15_000
VALUE_BYTES_MAX = 4_096
STEPS_MAX = 4
DRAIN_ROUNDS_MAX = 400
RATES = FaultRates(
    commit={
        CommitFault.NOT_COMMITTED: 0.05,
        CommitFault.TRANSACTION_TOO_OLD: 0.01,
        CommitFault.UNKNOWN_COMMITTED: 0.05,
        CommitFault.UNKNOWN_NOT_COMMITTED: 0.03,
        CommitFault.STOP_BEFORE: 0.02,
        CommitFault.STOP_AFTER: 0.02,
    }
)


class SimulationClock(VirtualClock):
    """A virtual clock that passes time for whoever sleeps: one task acts at a time, so nobody is overtaken."""

    async def sleep_ms(self, delay_ms: float) -> None:
        """Let the delay pass at once."""
        self.advance(max(0.0, delay_ms))


@dataclass
class Instance:
    """A worker process: what it has been assigned, what it runs, what it has done and not heard of."""

    name: str
    session: str
    assigned: dict[str, Work] = field(default_factory=dict)
    running: dict[str, Work] = field(default_factory=dict)
    unsent: dict[str, tuple[Work, str]] = field(default_factory=dict)


class Simulation:
    """One seeded world."""

    def __init__(self, seed: int, rates: FaultRates = RATES, *, continuation: float = 0.5) -> None:
        self.continuation = continuation
        self.rng = random.Random(f"world:{seed}")
        self.clock = SimulationClock()
        self.engine = MemoryEngine()
        self.plan = FaultPlan(seed, rates)
        self.keyspace = self._connect()
        self.workspaces = ["acme", "quiet"]
        self.submissions: list[tuple[str, Submission, str]] = []
        self.acknowledged: dict[str, set[str]] = {}
        self.instances: list[Instance] = []
        self.effects: Counter[tuple[str, str, int]] = Counter()

    def _connect(self) -> Keyspace:
        store = FaultStore(memory_store(clock=self.clock, engine=self.engine), self.plan, clock=self.clock)
        return Keyspace(store, clock=self.clock, rng=random.Random(self.rng.randbytes(8)))

    async def act(self, name, body):  # type: ignore[no-untyped-def]
        """Run a transition as some server process would: a stop or a lost outcome is survived by nobody hearing of it."""
        try:
            return await self.keyspace.transact(name, body)
        except ProcessStopped:
            self.keyspace = self._connect()
        except StoreError:
            pass
        return None

    # -- setting up

    async def set_up(self) -> None:
        self.plan.heal()
        await open_keyspace(self.keyspace)
        functions = tuple(
            FunctionSpec(name, (TriggerSpec("placed", f"on-{name}"),), timeout_ms=TIMEOUTS_MS.get(name))
            for name in FUNCTIONS
        )
        manifest = ManifestSpec(APPLICATION, functions)
        for name in self.workspaces:
            await self.act("create_workspace", lambda tx, ws=name: create_workspace(tx, ws))
            await self.act(
                "publish_manifest", lambda tx, ws=name: publish_manifest(tx, ws, manifest, published_by="sim")
            )
            await self.act(
                "activate_routing", lambda tx, ws=name: activate_routing(tx, ws, {APPLICATION: 1}, activated_by="sim")
            )
        self.plan = FaultPlan(self.plan.seed, self.plan.rates)
        self.keyspace = self._connect()
        for _ in range(3):
            await self.hello(None)

    # -- what can happen

    async def submit(self) -> None:
        """Submit an event, or one of the earlier submissions again under its key."""
        if self.submissions and self.rng.random() < 0.4:
            workspace, submission, event_id = self.rng.choice(self.submissions)
            if submission.key is not None:
                event_id = self.keyspace.mint()
        else:
            key = f"key-{len(self.submissions)}" if self.rng.random() < 0.6 else None
            workspace = self.rng.choice(self.workspaces)
            submission = Submission("placed", str(len(self.submissions)).encode(), {}, None, key)
            event_id = self.keyspace.mint()
            self.submissions.append((workspace, submission, event_id))
        accepted = await self.act(
            "accept_event", lambda tx: accept_event(tx, workspace, submission, event_id=event_id, accepted_by="sim")
        )
        if accepted is not None:
            name = submission.payload.decode()
            self.acknowledged.setdefault(name, set()).add(accepted.event_id)

    async def fan_out(self) -> None:
        """Run a chunk of some due obligation, or fire a timer, perhaps long after its instant."""
        shard = self.rng.randrange(SHARDS)
        kind = self.rng.choice((LaneKind.FANOUT, LaneKind.FANOUT, LaneKind.TIME))
        found = await self.act("scan", lambda tx: self._server_items(tx, kind, shard))
        if not found:
            return
        workspace, item = self.rng.choice(found)
        if kind is LaneKind.TIME:
            await self.act("fire_deadline", lambda tx: fire_deadline(tx, workspace, item.target, item.item_id))
        else:
            await self.act("expand_event", lambda tx: expand_event(tx, workspace, item.target, item.item_id))

    async def _server_items(self, tx, kind, shard):  # type: ignore[no-untyped-def]
        items = []
        bucket = tx.now_ms // BUCKET_MS
        for due, workspace, lane in await due_in_shard(tx, kind, shard, from_bucket=0, to_bucket=bucket, limit=50):
            found = await claims.vested_items(tx, workspace, lane, limit=5)
            items += [(workspace, item) for item in found]
            if not found and due < bucket:
                await clear_due_pointer(tx, workspace, lane, due)
        return items

    async def lease(self) -> None:
        """Lease work of some lane to some instances."""
        if not self.instances:
            return
        workspace = self.rng.choice(self.workspaces)
        bucket = self.clock.now_ms() // BUCKET_MS
        pointers = await self.act(
            "scan",
            lambda tx: due_in_application(tx, workspace, APPLICATION, from_bucket=0, to_bucket=bucket, limit=50),
        )
        if not pointers:
            return
        due, _, lane = self.rng.choice(pointers)
        seats = [
            Seat(instance.session, instance.name, "r1", self.keyspace.mint())
            for instance in self.rng.choices(self.instances, k=2)
        ]
        tried: dict[str, Seat] = {}
        deliveries: list[Delivery] | None = await self.act(
            "lease_items", lambda tx: lease_items(tx, workspace, lane, seats, lease_ms=LEASE_MS, tried=tried)
        )
        for delivery in deliveries or []:
            holder = next((i for i in self.instances if i.session == delivery.seat.session), None)
            item = delivery.item
            if holder is not None and item.token is not None and self.rng.random() < 0.95:
                work = Work(item.kind, item.target, item.step_id, item.item_id, item.token, item.generation)
                holder.assigned[f"{workspace}/{item.item_id}/{item.token}"] = work
        if not deliveries and due < bucket:
            await self.act("clear_due_pointer", lambda tx: clear_due_pointer(tx, workspace, lane, due))

    async def work(self) -> None:
        """Let some instance go on with something."""
        instance = self.rng.choice(self.instances) if self.instances else None
        if instance is None:
            return
        if instance.unsent and self.rng.random() < 0.4:
            await self._report(instance, *self._pick(instance.unsent))
        elif instance.running and self.rng.random() < 0.5:
            request, work = self._pick(instance.running)
            del instance.running[request]
            instance.unsent[request] = (work, self._outcome(work))
        elif instance.assigned:
            await self._proceed(instance, *self._pick(instance.assigned))

    def _pick(self, things):  # type: ignore[no-untyped-def]
        return self.rng.choice(sorted(things.items(), key=lambda pair: pair[0]))

    def _outcome(self, work: Work) -> str:
        assert work.step_id is not None
        draw = random.Random(f"{work.run_id}/{work.kind}/{work.step_id}/{work.generation}").random()
        if work.kind is WorkKind.COMPENSATION:
            return "success" if draw < 0.6 else "retry" if draw < 0.8 else "fatal"
        return "success" if draw < 0.7 else "retry" if draw < 0.92 else "fatal"

    async def _proceed(self, instance: Instance, request: str, work: Work) -> None:
        workspace = request.split("/")[0]
        if work.kind is WorkKind.DISCOVERY:
            await self._answer(instance, workspace, work)
            if self.rng.random() < 0.9:
                instance.assigned.pop(request, None)
        elif work.kind is WorkKind.COMPENSATION and self._has_no_compensator(work):
            await self.act("target_not_found", lambda tx: target_not_found(tx, workspace, work))
            if self.rng.random() < 0.9:
                instance.assigned.pop(request, None)
        elif self.rng.random() < 0.1:
            del instance.assigned[request]
            await self.act("give_back", lambda tx: give_back(tx, workspace, work.item_id, work.token))
        else:
            await self._start(instance, request, work)

    def _has_no_compensator(self, work: Work) -> bool:
        return random.Random(f"{work.run_id}/{work.step_id}/undo").random() < 0.3

    async def cancel(self) -> None:
        """Cancel some run, or one that is stopping already."""
        runs = [(ws, run) for ws, run in await self.found_runs() if run.phase is not Phase.TERMINAL]
        if not runs:
            return
        workspace, run = self.rng.choice(runs)
        try:
            await self.act("cancel_run", lambda tx: cancel_run(tx, workspace, run.run_id, by="operator"))
        except Refusal as refusal:
            assert refusal.code == "stop_conflict", refusal

    async def resolve(self) -> None:
        """Let an operator settle some Unknown attempt, sometimes with a stale idea of it."""
        for workspace in self.workspaces:
            rows = await self.act(
                "look", lambda tx, ws=workspace: tx.page(UNRESOLVED.span(ws), limit=20, snapshot=True)
            )
            if not rows:
                continue
            _, run_id, direction, step_id, generation = UNRESOLVED.parse(self.rng.choice(rows)[0])
            target = Target(run_id, Direction(direction), step_id, generation - (self.rng.random() < 0.1))
            command = self.rng.choice(
                (
                    SupplySuccess(b'"operator"'),
                    DeclareFailure(FailureRecord(category="operator", message="declared")),
                    RetryAttempt(),
                )
            )
            key = f"resolve-{self.rng.randrange(4)}"
            with suppress(Refusal):
                await self.act(
                    "resolve_attempt",
                    lambda tx, ws=workspace, t=target, c=command, k=key: resolve_attempt(
                        tx, ws, t, c, key=k, by="operator", value_bytes_max=VALUE_BYTES_MAX
                    ),
                )

    async def _start(self, instance: Instance, request: str, work: Work) -> None:
        workspace = request.split("/")[0]
        session = instance.session
        verdict = await self.act(
            "authorize_start",
            lambda tx: authorize_start(
                tx, workspace, work, session=session, instance_id=instance.name, release="r1", lease_ms=LEASE_MS
            ),
        )
        instance.assigned.pop(request, None)
        is_frame_lost = self.rng.random() < 0.1
        if isinstance(verdict, Accepted | Replayed) and instance.session == session and not is_frame_lost:
            assert work.step_id is not None
            name = work.step_id if work.kind is WorkKind.CALLBACK else f"undo {work.step_id}"
            self.effects[(work.run_id, name, work.generation)] += 1
            instance.running[request] = work

    async def _report(self, instance: Instance, request: str, report: tuple[Work, str]) -> None:
        workspace = request.split("/")[0]
        work, outcome = report
        if outcome == "success" and work.kind is WorkKind.CALLBACK and self.rng.random() < self.continuation:
            verdict = await self._continue(instance, workspace, work)
        elif outcome == "success":
            verdict = await self.act(
                "accept_success",
                lambda tx: accept_success(tx, workspace, work, b'"done"', value_bytes_max=VALUE_BYTES_MAX),
            )
        else:
            failure = FailureRecord(category="application", message=outcome)
            verdict = await self.act(
                "accept_failure",
                lambda tx: accept_failure(tx, workspace, work, failure, is_retryable=outcome == "retry"),
            )
        if verdict is not None and self.rng.random() < 0.8:
            instance.unsent.pop(request, None)

    async def _continue(self, instance: Instance, workspace: str, work: Work) -> object:
        """Report a success together with the answer of the pass that follows it, or with the pass still under way."""
        steps = await self.act("read_steps", lambda tx: self._settled(tx, workspace, work.run_id))
        if steps is None:
            return None
        assert work.step_id is not None
        ending = self._ending(work.run_id, steps | {work.step_id: "completed"}) if self.rng.random() < 0.8 else None
        hold = self._hold(instance)
        continued = await self.act(
            "continue_run",
            lambda tx: continue_run(tx, workspace, work, b'"done"', ending, hold=hold, value_bytes_max=VALUE_BYTES_MAX),
        )
        if continued is None:
            return None
        if ending is None and isinstance(continued.result, Accepted):
            instance.assigned[f"{workspace}/{work.item_id}/pass"] = following_pass(work)
        self._go_on(instance, hold, workspace, continued.following)
        return continued.result

    def _hold(self, instance: Instance) -> Hold | None:
        if self.rng.random() < 0.1:
            return None
        return Hold(Seat(instance.session, instance.name, "r1", self.keyspace.mint()), LEASE_MS)

    def _go_on(self, instance: Instance, hold: Hold | None, workspace: str, item: ItemRecord | None) -> None:
        """Start the step that was authorized with the answer, unless the frame that says so is lost."""
        if item is None or hold is None or instance.session != hold.seat.session or self.rng.random() < 0.1:
            return
        assert item.step_id is not None and item.token is not None
        work = Work(item.kind, item.target, item.step_id, item.item_id, item.token, item.generation)
        self.effects[(work.run_id, item.step_id, work.generation)] += 1
        instance.running[f"{workspace}/{item.item_id}/{item.token}"] = work

    def _ending(self, run_id: str, steps: dict[str, str]) -> Ending:
        """Answer a pass as the function's code would: a fixed number of steps, ids by the run, sometimes a failure."""
        draw = random.Random(f"{run_id}/plan")
        wanted = [f"s{n}" for n in range(draw.randint(0, STEPS_MAX))]
        fails = draw.random() < 0.2 or any(state == "failed" for state in steps.values())
        following = next((step for step in wanted if step not in steps), None)
        if following is not None and not any(state == "failed" for state in steps.values()):
            return Declaration(following, RetryRecord(attempts=3, initial_ms=500, coefficient=2.0, cap_ms=9000))
        if fails:
            return FunctionFailure(FailureRecord(category="application", message="the function failed"))
        return Completion(b"null")

    async def _answer(self, instance: Instance, workspace: str, work: Work) -> None:
        steps = await self.act("read_steps", lambda tx: self._settled(tx, workspace, work.run_id))
        if steps is None:
            return
        ending = self._ending(work.run_id, steps)
        hold = self._hold(instance) if self.rng.random() < self.continuation else None
        try:
            answered = await self.act(
                "answer_pass",
                lambda tx: answer_pass(tx, workspace, work, ending, hold=hold, value_bytes_max=VALUE_BYTES_MAX),
            )
        except Refusal as refusal:
            assert refusal.code == "step_settled", refusal
            return
        if answered is not None:
            self._go_on(instance, hold, workspace, answered[1])

    async def _settled(self, tx, workspace: str, run_id: str):  # type: ignore[no-untyped-def]
        run = await tx.load(RUN.at(workspace, run_id), snapshot=True)
        assignment = await load_assignment(tx, workspace, run, None)
        return {step.step_id: "failed" if step.failure else "completed" for step in assignment.settled}

    async def hello(self, instance: Instance | None) -> None:
        """Connect a new instance, or one again; what it does not list never started."""
        if instance is None:
            instance = Instance(self.keyspace.mint(), "")
            self.instances.append(instance)
        session = self.keyspace.mint()
        instance.session = session
        instance.assigned.clear()
        held = {(w.run_id, w.step_id, w.generation, w.token) for w in instance.running.values()}
        held |= {(w.run_id, w.step_id, w.generation, w.token) for w, _ in instance.unsent.values()}
        for workspace in self.workspaces:
            opened = await self.act(
                "open_session",
                lambda tx, ws=workspace: open_session(
                    tx, ws, instance_id=instance.name, application=APPLICATION, session=session, release="r1"
                ),
            )
            if opened is None:
                continue
            starts = await self.act("recorded_starts", lambda tx, ws=workspace: recorded_starts(tx, ws, instance.name))
            for start in starts or []:
                if (start.run_id, start.step_id, start.generation, start.token) not in held:
                    await self.act(
                        "prove_not_started",
                        lambda tx, ws=workspace, s=start: prove_not_started(tx, ws, instance.name, *s, session=session),
                    )

    async def lose(self) -> None:
        """Lose a session, or the whole worker process with what it was doing."""
        if not self.instances:
            return
        instance = self.rng.choice(self.instances)
        if self.rng.random() < 0.4 and len(self.instances) > 1:
            self.instances.remove(instance)
            return
        await self.hello(instance)

    async def renew(self) -> None:
        """Renew what some instance runs."""
        instance = self.rng.choice(self.instances) if self.instances else None
        for workspace in self.workspaces if instance is not None else ():
            held = [(w.item_id, w.token) for r, w in sorted(instance.running.items()) if r.startswith(workspace + "/")]
            if held:
                await self.act(
                    "renew_leases", lambda tx, ws=workspace, h=held: renew_leases(tx, ws, h[:64], lease_ms=LEASE_MS)
                )

    async def recover(self) -> None:
        """Let a dispatcher look for expired leases."""
        bucket = self.clock.now_ms() // BUCKET_MS
        for shard in range(SHARDS):
            entries = await self.act(
                "expired_leases", lambda tx, s=shard: expired_leases(tx, s, before_bucket=bucket, limit=50)
            )
            for entry in entries or []:
                await self.act("lose_lease", lambda tx, e=entry: lose_lease(tx, e.workspace, e.item_id))

    async def step(self) -> None:
        """Do one thing."""
        draw = self.rng.random()
        if draw < 0.12:
            await self.submit()
        elif draw < 0.26:
            await self.fan_out()
        elif draw < 0.50:
            await self.lease()
        elif draw < 0.85:
            await self.work()
        elif draw < 0.88:
            await self.renew()
        elif draw < 0.91:
            await self.lose()
        elif draw < 0.93:
            await self.hello(None if len(self.instances) < 4 else self.rng.choice(self.instances))
        elif draw < 0.94:
            await self.cancel()
        elif draw < 0.96:
            await self.resolve()
        elif draw < 0.98:
            self.clock.advance(self.rng.choice((20, 700, 5_000, LEASE_MS)))
        else:
            # Recovery comes late as often as not: what nobody renewed has run out by then.
            self.clock.advance(self.rng.choice((0, LEASE_MS)))
            await self.recover()

    # -- the end

    async def finish(self) -> None:
        """Stop the faults and let everything that can finish do so."""
        self.plan.heal()
        self.keyspace = self._connect()
        for instance in self.instances:
            # A hello that met a fault opened no session; a worker says it again until it stands.
            await self.hello(instance)
        for _ in range(DRAIN_ROUNDS_MAX):
            if not await self._work_is_left():
                return
            for _ in range(SHARDS * 3):
                await self.fan_out()
            if len(self.instances) < 2:
                await self.hello(None)
            await self.recover()
            for _ in range(30):
                await self.lease()
                await self.work()
            self.clock.advance(2_000)
        raise AssertionError("work is left after the faults have stopped")

    async def _work_is_left(self) -> bool:
        for workspace in self.workspaces:
            if await self.act("look", lambda tx, ws=workspace: tx.page(ITEM.span(ws), limit=1, snapshot=True)):
                return True
        return any(instance.unsent or instance.running for instance in self.instances)

    async def runs(self) -> list[RunRecord]:
        """Return every run of the world."""
        found: list[RunRecord] = []
        for workspace in self.workspaces:
            rows = await self.act("look", lambda tx, ws=workspace: tx.page(_runs_of(ws), limit=5_000, snapshot=True))
            for key, value in rows or []:
                if _is_run(key):
                    found.append(RUN.codec.decode(value))
        return found

    async def found_runs(self) -> list[tuple[str, RunRecord]]:
        """Return every run with its workspace, as far as the store lets us look."""
        found: list[tuple[str, RunRecord]] = []
        for workspace in self.workspaces:
            rows = await self.act("look", lambda tx, ws=workspace: tx.page(_runs_of(ws), limit=5_000, snapshot=True))
            found += [(workspace, RUN.codec.decode(value)) for key, value in rows or [] if _is_run(key)]
        return found

    async def paths_taken(self) -> set[str]:
        """Return what the histories of this world tell of, for a test that rare paths were reached."""
        taken: set[str] = set()
        for workspace in self.workspaces:
            for run in await self.runs():
                rows = await self.act(
                    "look",
                    lambda tx, ws=workspace, r=run: tx.page(HISTORY.span(ws, r.run_id), limit=500, snapshot=True),
                )
                kinds = [HISTORY.codec.decode(value).kind for _, value in rows or []]
                taken |= {run.status, *kinds}
                if "step-completed" in kinds[kinds.index("attempt-unknown") :] if "attempt-unknown" in kinds else []:
                    taken.add("late success of an unknown attempt")
        return taken

    async def check(self) -> None:
        """Hold the whole keyspace against its checks."""
        faultless = Keyspace(memory_store(clock=self.clock, engine=self.engine), clock=self.clock, rng=random.Random(0))
        report = await check_keyspace(faultless)
        assert report.is_clean, report.problems[:5]
        doubled = {key: count for key, count in self.effects.items() if count > 1}
        assert not doubled, f"an effect of one generation ran twice: {doubled}"


def _runs_of(workspace: str) -> KeyRange:
    return RUN.span(workspace)


def _is_run(key: bytes) -> bool:
    try:
        RUN.parse(key)
    except ValueError:
        return False
    return True


def is_settled(run: RunRecord) -> bool:
    """Whether a run has ended, or waits visibly for an operator."""
    return run.phase is Phase.TERMINAL or run.unknown_count > 0
