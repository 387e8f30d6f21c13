"""A small deployment that is always taken to its end: one server process that may stop at any commit, and one worker.

`Story` tells what clients do and how the workflow functions and their callbacks behave; `Deployment` performs it through
the real transitions, restarting the server process whenever it stops. What a restart cannot touch lives in `Outside`: the
worker's memory and the effects its callbacks had.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from child_verbs import invocation
from server_steps import emission, sleep_for
from world import INSTANCE_ID, LEASE_MS, EagerClock, manifest

from keyspace.assignment import Assignment, SettledStep, load_assignment
from keyspace.fsck import check_keyspace
from keyspace.keyspace import Keyspace
from keyspace.layout import ATTEMPT, ITEM, READY, RUN, RUN_LIST, bucket_of, identify, shard_of_workspace
from keyspace.lifecycle import AttemptState, ItemState, Phase
from keyspace.limits import SHARDS
from keyspace.queue import claims
from keyspace.queue.items import Seat
from keyspace.queue.leases import expired_leases
from keyspace.queue.pointers import clear_due_pointer, due_in_application, due_in_shard
from keyspace.records.run import FailureRecord, RetryRecord, RunRecord
from keyspace.records.work import Direction, ItemRecord, Lane, LaneKind, WorkKind, server_lane
from keyspace.store.api import Store
from keyspace.store.fault import FaultStore, ProcessStopped
from keyspace.store.fault_plan import FaultPlan
from keyspace.transitions.accept_declaration import Declaration, accept_declaration
from keyspace.transitions.accept_event import Submission, accept_event
from keyspace.transitions.accept_failure import accept_failure
from keyspace.transitions.accept_success import accept_success
from keyspace.transitions.activate_routing import activate_routing
from keyspace.transitions.authorize_start import authorize_start
from keyspace.transitions.complete_run import complete_run
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
from keyspace.transitions.fail_run import fail_run
from keyspace.transitions.fire_deadline import fire_deadline
from keyspace.transitions.fire_timer import fire_timer
from keyspace.transitions.hold import Hold
from keyspace.transitions.invoke_function import Invocation, invoke_function
from keyspace.transitions.lease_items import Delivery, lease_items
from keyspace.transitions.lose_lease import lose_lease
from keyspace.transitions.open_session import RecordedStart, open_session, recorded_starts
from keyspace.transitions.propagate_stop import propagate_stop
from keyspace.transitions.prove_not_started import prove_not_started
from keyspace.transitions.publish_manifest import publish_manifest
from keyspace.transitions.settle_child import settle_child
from keyspace.transitions.stop_run import cancel_run
from keyspace.transitions.target_not_found import target_not_found
from keyspace.transitions.work import Accepted, Replayed, Stale, Work
from keyspace.tx import Tx

__all__ = ["FAMILY_STORY", "STORY", "TIMED_STORY", "Deployment", "Outside", "Story", "StoryEvent"]

T = TypeVar("T")

TURNS_MAX = 300
POINTERS_MAX = 1_000
VALUE_BYTES_MAX = 262_144
NAP_MS = 90_000
RETRY = RetryRecord(attempts=2, initial_ms=1_000, coefficient=2.0, cap_ms=60_000)


@dataclass(frozen=True)
class StoryEvent:
    """A submission, or an invocation of the function `name`, that its client repeats until it is answered."""

    workspace: str
    name: str
    event_id: str
    key: str | None = None
    is_invocation: bool = False


@dataclass(frozen=True)
class Story:
    """What there is and what happens. A function is the list of its steps; an upper-case step fails for good.

    `timeout_ms` is how long every run may take; None is for ever. With `is_cancelled` an operator cancels every root that he
    sees after the first stop of the server.
    """

    workspaces: tuple[str, ...]
    functions: dict[str, tuple[str, ...]]
    events: tuple[StoryEvent, ...]
    timeout_ms: int | None = None
    is_cancelled: bool = False


STORY = Story(
    ("acme", "beta"),
    {
        # `retried` fails its first attempt; FOR_GOOD fails whatever is tried.
        "plain": ("one", "retried", "three"),
        "failing": ("one", "two", "FOR_GOOD"),
        # `late` goes silent until it is Unknown; the first start of `unsent` never reaches the worker; `again` is repeatable,
        # and the worker forgets its first start.
        "odd": ("late", "unsent", "again"),
        # A step whose id begins with `nap` is a timer; `tell` emits the event that starts `bare`.
        "sleepy": ("nap", "one", "nap-again", "three", "tell"),
        "bare": (),
    },
    (
        StoryEvent("acme", "plain", "a1" * 16, key="k1"),
        StoryEvent("acme", "plain", "a2" * 16, key="k1"),
        StoryEvent("acme", "odd", "a3" * 16),
        StoryEvent("acme", "sleepy", "a5" * 16),
        StoryEvent("beta", "failing", "b1" * 16, key="k1"),
        StoryEvent("beta", "nobody", "b2" * 16),
        # The key is the submission's own; another operation's claim lies elsewhere.
        StoryEvent("acme", "bare", "a4" * 16, key="k1", is_invocation=True),
        StoryEvent("beta", "gone", "b3" * 16, is_invocation=True),
    ),
)


TIMED_STORY = Story(
    ("acme",),
    # The deadline never comes for `plain`, and for the others after a lost pass, in a silent step, and in a backoff.
    {"plain": ("one",), "odd": ("one",), "silent": ("one", "late"), "backing": ("one", "FOR_GOOD")},
    (
        StoryEvent("acme", "plain", "a1" * 16),
        StoryEvent("acme", "odd", "a2" * 16),
        StoryEvent("acme", "backing", "a3" * 16),
        StoryEvent("acme", "silent", "a4" * 16),
    ),
    timeout_ms=900,
)


FAMILY_STORY = Story(
    ("acme",),
    {
        # A step whose id begins with `call` invokes the function named behind it.
        "root": ("call mid", "call lone"),
        "mid": ("one", "call leaf"),
        "leaf": ("retried",),
        "lone": (),
        "hurt": ("one", "call broken"),
        "broken": ("one", "FOR_GOOD"),
    },
    (StoryEvent("acme", "root", "a1" * 16), StoryEvent("acme", "hurt", "a2" * 16)),
)


@dataclass
class Outside:
    """What survives every stop of the server: the worker's memory and the world its callbacks act on."""

    running: dict[str, Work] = field(default_factory=dict)
    finished: dict[str, tuple[Work, bytes | FailureRecord]] = field(default_factory=dict)
    effects: list[tuple[str, str, int]] = field(default_factory=list)
    done_once: set[tuple[str, str]] = field(default_factory=set)
    connection: int = 0
    answers: dict[str, str] = field(default_factory=dict)

    def once(self, *what: str) -> bool:
        """Whether this is the first time that `what` is asked for."""
        is_first = what not in self.done_once
        self.done_once.add(what)  # type: ignore[arg-type]
        return is_first


class Deployment:
    """One server process after another over the same store."""

    def __init__(
        self,
        story: Story,
        open_store: Callable[[], Store],
        plan: FaultPlan,
        clock: EagerClock,
        *,
        is_continuing: bool = False,
    ) -> None:
        self.story = story
        self.plan = plan
        self.clock = clock
        self.is_continuing = is_continuing
        self.outside = Outside()
        self.restart_count = 0
        self.commit_count = 0
        self._open_store = open_store
        self._sessions: dict[str, str] = {}
        self.open()

    def open(self) -> None:
        """Start a server process."""
        self.store = FaultStore(self._open_store(), self.plan, clock=self.clock)
        rng = random.Random(self.restart_count)
        self.keyspace = Keyspace(self.store, clock=self.clock, prefix=b"\x15\x01", rng=rng)

    async def run(self) -> None:
        """Take the whole story to its end, whatever stops."""
        await self._surviving(self._define)
        await self._surviving(self._submit_all)
        await self._surviving(self._to_the_end)

    async def _surviving(self, chapter: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await chapter()
                self.commit_count += self.store.commit_count
                self.store.commit_count = 0
                return
            except ProcessStopped:
                self.restart_count += 1
                await self.store.inner.close()
                self._sessions.clear()
                self.open()

    async def transact(self, name: str, body: Callable[[Tx], Awaitable[T]]) -> T:
        return await self.keyspace.transact(name, body)

    # -- the clients

    async def _define(self) -> None:
        functions = {name: [name] for name in self.story.functions}
        spec = manifest("shop", functions, timeout_ms=self.story.timeout_ms)
        for workspace in self.story.workspaces:
            await self.transact("create_workspace", partial(create_workspace, name=workspace))

            async def publish(tx: Tx, ws: str = workspace) -> int:
                return (await publish_manifest(tx, ws, spec, published_by="story"))[0].generation

            generation = await self.transact("publish_manifest", publish)

            async def activate(tx: Tx, ws: str = workspace, generation: int = generation) -> int:
                return (await activate_routing(tx, ws, {"shop": generation}, activated_by="story"))[0].generation

            assert await self.transact("activate_routing", activate) == 1

    async def _submit_all(self) -> None:
        for event in self.story.events:
            submission = Submission(event.name, b'{"n":1}', {"order": "7"}, None, event.key)

            async def submit(tx: Tx, event: StoryEvent = event, submission: Submission = submission) -> str:
                accepted = await accept_event(
                    tx, event.workspace, submission, event_id=event.event_id, accepted_by="story"
                )
                return accepted.event_id

            invocation = Invocation("shop", event.name, b'{"n":1}', None, event.key)

            async def invoke(tx: Tx, event: StoryEvent = event, invocation: Invocation = invocation) -> str:
                accepted = await invoke_function(
                    tx, event.workspace, invocation, event_id=event.event_id, accepted_by="story"
                )
                return accepted.event_id

            name, body = ("invoke_function", invoke) if event.is_invocation else ("accept_event", submit)
            answer = await self.transact(name, body)
            assert self.outside.answers.setdefault(event.event_id, answer) == answer

    # -- the server and its worker

    async def _to_the_end(self) -> None:
        for _ in range(TURNS_MAX):
            moved = [await self._turn(workspace) for workspace in self.story.workspaces]
            if not any(moved) and not await self._recover() and not await self._sleep():
                return
        raise AssertionError(f"the story has not ended after {TURNS_MAX} turns")

    async def _turn(self, workspace: str) -> bool:
        if workspace not in self._sessions:
            await self._hello(workspace)
        moved = await self._deliver_results(workspace)
        moved |= await self._fan_out(workspace)
        moved |= await self._fire_timers(workspace)
        moved |= await self._pass_between_runs(workspace)
        if self.story.is_cancelled and self.restart_count:
            await self._cancel_roots(workspace)
        now_bucket = bucket_of(self.clock.now_ms())
        pointers = await self.transact(
            "due_in_application",
            lambda tx: due_in_application(
                tx, workspace, "shop", from_bucket=0, to_bucket=now_bucket, limit=POINTERS_MAX
            ),
        )
        for bucket, _, lane in pointers:
            if workspace not in self._sessions:
                # The connection broke while it was told to start; what else is due waits for the next hello.
                break
            deliveries = await self._lease(workspace, lane)
            for delivery in deliveries:
                moved = True
                await self._work(workspace, delivery)
            if not deliveries and bucket < now_bucket:
                await self._clear(workspace, lane, bucket)
        return moved

    async def _clear(self, workspace: str, lane: Lane, bucket: int) -> None:
        """Do as a dispatcher does with a pointer that leads to nothing."""
        await self.transact("clear_due_pointer", lambda tx: clear_due_pointer(tx, workspace, lane, bucket))

    async def _hello(self, workspace: str) -> None:
        """Connect; what the worker neither runs nor has finished never started."""
        self.outside.connection += 1
        connection = self.outside.connection
        session = f"session-{connection}"
        await self.transact(
            "open_session",
            lambda tx: open_session(
                tx,
                workspace,
                instance_id=INSTANCE_ID,
                application="shop",
                session=session,
                release="r1",
                connection=connection,
            ),
        )
        starts = await self.transact("recorded_starts", lambda tx: recorded_starts(tx, workspace, INSTANCE_ID))
        for start in starts:
            if start.token not in self.outside.running and start.token not in self.outside.finished:
                await self._prove(workspace, start, session)
        self._sessions[workspace] = session

    async def _prove(self, workspace: str, start: RecordedStart, session: str) -> None:
        await self.transact(
            "prove_not_started",
            lambda tx: prove_not_started(tx, workspace, INSTANCE_ID, *start, session=session),
        )

    async def _fan_out(self, workspace: str) -> bool:
        found = await self._server_items(workspace, LaneKind.FANOUT)
        for item in found:

            async def expand(tx: Tx, item: ItemRecord = item) -> bool:
                return (await expand_event(tx, workspace, item.target, item.item_id)).is_complete

            await self.transact("expand_event", expand)
        return bool(found)

    async def _fire_timers(self, workspace: str) -> bool:
        found = await self._server_items(workspace, LaneKind.TIME)
        for item in found:

            async def fire(tx: Tx, item: ItemRecord = item) -> str:
                if item.kind is WorkKind.TIMER:
                    return await fire_timer(tx, workspace, item)
                return await fire_deadline(tx, workspace, item.target, item.item_id)

            await self.transact("fire_timer" if item.kind is WorkKind.TIMER else "fire_deadline", fire)
        return bool(found)

    async def _pass_between_runs(self, workspace: str) -> bool:
        found = await self._server_items(workspace, LaneKind.SETTLE)
        for item in found:

            async def deliver(tx: Tx, item: ItemRecord = item) -> str:
                if item.kind is WorkKind.CHILD_SETTLE:
                    return await settle_child(tx, workspace, item, value_bytes_max=VALUE_BYTES_MAX)
                return await propagate_stop(tx, workspace, item)

            name = "settle_child" if item.kind is WorkKind.CHILD_SETTLE else "propagate_stop"
            await self.transact(name, deliver)
        return bool(found)

    async def _cancel_roots(self, workspace: str) -> None:
        async def read(tx: Tx) -> list[RunRecord | None]:
            rows = await tx.page(RUN_LIST.span(workspace), limit=1_000)
            return await tx.load_all(RUN.at(workspace, RUN_LIST.codec.decode(value)) for _, value in rows)

        for run in await self.transact("read", read):
            if run is not None and run.parent is None and run.stop is None and run.phase is Phase.RUNNING:

                async def cancel(tx: Tx, run: RunRecord = run) -> str:
                    return (await cancel_run(tx, workspace, run.run_id, by="story")).outcome

                await self.transact("cancel_run", cancel)

    async def _server_items(self, workspace: str, kind: LaneKind) -> list[ItemRecord]:
        """Return vested work of a server lane as its process finds it: by the due pointers."""
        shard, now_bucket = shard_of_workspace(workspace), bucket_of(self.clock.now_ms())
        pointers = await self.transact(
            "due_in_shard",
            lambda tx: due_in_shard(tx, kind, shard, from_bucket=0, to_bucket=now_bucket, limit=POINTERS_MAX),
        )
        mine = [bucket for bucket, owner, _ in pointers if owner == workspace]
        if not mine:
            return []
        lane = server_lane(kind)
        found = await self.transact("claim", lambda tx: claims.vested_items(tx, workspace, lane, limit=8))
        if not found and mine[0] < now_bucket:
            await self._clear(workspace, lane, mine[0])
        return found

    async def _lease(self, workspace: str, lane: Lane) -> list[Delivery]:
        seats = [Seat(self._sessions[workspace], INSTANCE_ID, "r1", self.keyspace.mint())]
        tried: dict[str, Seat] = {}
        return await self.transact(
            "lease_items", lambda tx: lease_items(tx, workspace, lane, seats, lease_ms=LEASE_MS, tried=tried)
        )

    async def _work(self, workspace: str, delivery: Delivery) -> None:
        item, run = delivery.item, delivery.run
        assert item.token is not None
        work = Work(item.kind, item.target, item.step_id, item.item_id, item.token, item.generation)
        if work.kind is WorkKind.COMPENSATION:
            await self.transact("target_not_found", lambda tx: target_not_found(tx, workspace, work))
        elif work.kind is WorkKind.CALLBACK:
            await self._callback(workspace, work, item.ordinal)
        elif run.function != "odd" or not self.outside.once(run.run_id, "first pass is lost"):
            assignment = await self.transact("load_assignment", lambda tx: load_assignment(tx, workspace, run, None))
            await self._pass(workspace, work, run, assignment)

    def _ending(self, run: RunRecord, assignment: Assignment) -> Ending:
        """What the function does: the next step of its list, or its end; nothing is held over from an earlier pass."""
        settled = {step.step_id: step for step in assignment.settled}
        steps = self.story.functions[run.function]
        unsettled = next((step_id for step_id in steps if step_id not in settled), None)
        failure = next((step.failure for step in assignment.settled if step.failure is not None), None)
        if failure is not None:
            return FunctionFailure(failure)
        if unsettled is not None and unsettled.startswith("nap"):
            return sleep_for(NAP_MS, unsettled)
        if unsettled is not None and unsettled.startswith("call "):
            return invocation(unsettled.split()[1], step_id=unsettled)
        if unsettled == "tell":
            return emission("tell", "bare")
        if unsettled is not None:
            return Declaration(unsettled, RETRY, repeatable=unsettled == "again")
        return Completion(b",".join(settled[step_id].value or b"" for step_id in steps))

    async def _pass(self, workspace: str, work: Work, run: RunRecord, assignment: Assignment) -> None:
        ending = self._ending(run, assignment)
        if isinstance(ending, Declaration):
            await self.transact("accept_declaration", lambda tx: accept_declaration(tx, workspace, work, ending))
        elif isinstance(ending, FunctionFailure):
            await self.transact("fail_run", lambda tx: fail_run(tx, workspace, work, ending.failure))
        else:
            await self.transact(
                "complete_run",
                lambda tx: complete_run(tx, workspace, work, ending.output, value_bytes_max=VALUE_BYTES_MAX),
            )

    async def _callback(self, workspace: str, work: Work, ordinal: int) -> None:
        assert work.step_id is not None
        session = self._sessions[workspace]
        verdict = await self.transact(
            "authorize_start",
            lambda tx: authorize_start(
                tx, workspace, work, session=session, instance_id=INSTANCE_ID, release="r1", lease_ms=LEASE_MS
            ),
        )
        if not isinstance(verdict, Stale):
            self._start(workspace, work, ordinal)

    def _start(self, workspace: str, work: Work, ordinal: int) -> None:
        """The worker is told to start, unless the frame that says so is lost; then the effect happens."""
        assert work.step_id is not None
        if work.step_id == "unsent" and self.outside.once(work.run_id, "the start frame is lost"):
            self._sessions.pop(workspace, None)
            return
        if work.step_id == "again" and self.outside.once(work.run_id, "the worker forgets it"):
            return
        self.outside.running[work.token] = work
        self.outside.effects.append((work.run_id, work.step_id, work.generation))
        if work.step_id == "late":
            return
        self._finish(work, ordinal)

    def _finish(self, work: Work, ordinal: int) -> None:
        assert work.step_id is not None
        fails = work.step_id.isupper() or (work.step_id == "retried" and ordinal == 1)
        outcome = FailureRecord(category="application", message="no") if fails else work.step_id.encode()
        del self.outside.running[work.token]
        self.outside.finished[work.token] = (work, outcome)

    async def _deliver_results(self, workspace: str) -> bool:
        """Send what is finished, in whatever session; what was silent speaks once its attempt is Unknown."""
        for work in list(self.outside.running.values()):
            if await self._is_unknown(workspace, work):
                self._finish(work, 1)
        sent = False
        for token, (work, outcome) in list(self.outside.finished.items()):
            run = await self.transact("read", lambda tx, w=work: tx.load(RUN.at(workspace, w.run_id)))  # type: ignore[misc]
            if run is None:
                continue
            verdict = await self._send(workspace, work, outcome)
            assert isinstance(verdict, Accepted | Replayed), (work, verdict)
            del self.outside.finished[token]
            sent = True
        return sent

    async def _is_unknown(self, workspace: str, work: Work) -> bool:
        assert work.step_id is not None
        key = ATTEMPT.at(workspace, work.run_id, Direction.FORWARD, work.step_id, work.generation)
        attempt = await self.transact("read", lambda tx: tx.load(key))
        return attempt is not None and attempt.state is AttemptState.UNKNOWN

    async def _send(self, workspace: str, work: Work, outcome: bytes | FailureRecord) -> Accepted | Replayed | Stale:
        if isinstance(outcome, bytes) and self.is_continuing:
            return await self._continue(workspace, work, outcome)
        if isinstance(outcome, bytes):
            return await self.transact(
                "accept_success",
                lambda tx: accept_success(tx, workspace, work, outcome, value_bytes_max=VALUE_BYTES_MAX),
            )
        return await self.transact(
            "accept_failure", lambda tx: accept_failure(tx, workspace, work, outcome, is_retryable=True)
        )

    async def _continue(self, workspace: str, work: Work, value: bytes) -> Accepted | Replayed | Stale:
        """Report a success and go on behind it: with the answer in one transaction, or, after step `one`, in two."""
        assert work.step_id is not None
        run = await self.transact("read", lambda tx: tx.load(RUN.at(workspace, work.run_id)))
        assert run is not None
        assignment = await self.transact("load_assignment", lambda tx: load_assignment(tx, workspace, run, None))
        others = [step for step in assignment.settled if step.step_id != work.step_id]
        mine = SettledStep(work.step_id, value, None, 1)
        ending = self._ending(run, assignment._replace(settled=[*others, mine]))
        hold = Hold(Seat(self._sessions[workspace], INSTANCE_ID, "r1", self.keyspace.mint()), LEASE_MS)
        is_in_two = work.step_id == "one"
        continued = await self.transact(
            "continue_run",
            lambda tx: continue_run(
                tx, workspace, work, value, None if is_in_two else ending, hold=hold, value_bytes_max=VALUE_BYTES_MAX
            ),
        )
        following = continued.following
        if is_in_two and not isinstance(continued.result, Stale):
            passing = following_pass(work)
            _, following = await self.transact(
                "answer_pass",
                lambda tx: answer_pass(tx, workspace, passing, ending, hold=hold, value_bytes_max=VALUE_BYTES_MAX),
            )
        if following is not None:
            assert following.token == hold.seat.token
            if following.kind is WorkKind.DISCOVERY:
                await self._go_on_passing(workspace, following)
                return continued.result
            next_work = Work(
                following.kind,
                following.target,
                following.step_id,
                following.item_id,
                hold.seat.token,
                following.generation,
            )
            self._start(workspace, next_work, following.ordinal)
        return continued.result

    async def _go_on_passing(self, workspace: str, item: ItemRecord) -> None:
        """The step was settled where it was declared: the pass goes on under the same hand."""
        assert item.token is not None
        work = Work(item.kind, item.target, None, item.item_id, item.token, item.generation)
        run = await self.transact("read", lambda tx: tx.load(RUN.at(workspace, item.target)))
        assert run is not None
        assignment = await self.transact("load_assignment", lambda tx: load_assignment(tx, workspace, run, None))
        await self._pass(workspace, work, run, assignment)

    async def _recover(self) -> bool:
        bucket = bucket_of(self.clock.now_ms())
        recovered = False
        for shard in range(SHARDS):
            entries = await self.transact(
                "expired_leases",
                lambda tx, s=shard: expired_leases(tx, s, before_bucket=bucket, limit=64),  # type: ignore[misc]
            )
            for entry in entries:

                async def lose(tx: Tx, workspace: str = entry.workspace, item_id: str = entry.item_id) -> bool:
                    return (await lose_lease(tx, workspace, item_id)).name != "NOT_LOST"

                recovered |= await self.transact("lose_lease", lose)
        return recovered

    async def _sleep(self) -> bool:
        """Let time pass until something vests or expires; say whether anything will."""
        instants = []
        for workspace in self.story.workspaces:
            span = ITEM.span(workspace)
            rows = await self.transact("read", lambda tx, s=span: tx.page(s, limit=1_000))  # type: ignore[misc]
            for _, value in rows:
                item = ITEM.codec.decode(value)
                instants.append(item.vesting_ms if item.state is ItemState.READY else item.expires_at_ms or 0)
        if not instants:
            return bool(self.outside.running or self.outside.finished)
        self.clock.advance(max(0, min(instants) - self.clock.now_ms()))
        return True

    # -- what has become of it all

    async def stored(self) -> dict[bytes, bytes]:
        """Return every key and value there is."""
        prefix = self.keyspace.prefix
        raw = self.store.inner.begin()
        rows = await raw.get_range(prefix, prefix + b"\xff", limit=1_000_000)
        raw.cancel()
        return {key[len(prefix) :]: value for key, value in rows}

    async def check(self) -> None:
        """Fail unless the keyspace is sound, everything has ended and every effect happened exactly once."""
        report = await check_keyspace(self.keyspace)
        assert not report.problems, "\n".join(str(problem) for problem in report.problems)
        leaves = {found[0] for key in await self.stored() if (found := identify(key))}
        assert ITEM not in leaves and READY not in leaves, "no work is left"
        assert len(self.outside.effects) == len(set(self.outside.effects)), "an attempt ran twice (C6)"
        assert not self.outside.running and not self.outside.finished
