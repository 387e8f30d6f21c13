"""A keyspace on a memory store with virtual time, and the verbs in which a scenario is told.

A `World` is one deployment. Its verbs run one transition each, so that a test reads like the story of a run: publish,
submit, expand, lease, authorize, answer.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import Any, TypeVar

from keyspace.clock import VirtualClock
from keyspace.fsck import check_keyspace
from keyspace.keyspace import Keyspace
from keyspace.layout import (
    ATTEMPT,
    COMPLETION,
    EXPANSION,
    HISTORY,
    ITEM,
    RUN,
    RUN_LIST,
    STALE,
    STEP,
    STEP_VALUE,
    identify,
)
from keyspace.lifecycle import ItemState
from keyspace.limits import BINDING_PAGE_ITEMS
from keyspace.queue import claims
from keyspace.queue.items import Seat
from keyspace.records.blocker import CallSite
from keyspace.records.event import ExpansionRecord
from keyspace.records.run import (
    AttemptRecord,
    FailureRecord,
    HistoryRecord,
    RetryRecord,
    RunRecord,
    StaleResultRecord,
    StepRecord,
)
from keyspace.records.work import Direction, ItemRecord, LaneKind, WorkKind, application_lane, server_lane
from keyspace.store.api import KeyRange, Store
from keyspace.store.embedded import memory_store
from keyspace.store.memory_engine import MemoryEngine
from keyspace.transitions.accept_declaration import Declaration, accept_declaration
from keyspace.transitions.accept_event import Acceptance, Submission, accept_event, check_submission
from keyspace.transitions.accept_failure import accept_failure
from keyspace.transitions.accept_success import accept_success
from keyspace.transitions.activate_routing import activate_routing
from keyspace.transitions.authorize_start import authorize_start
from keyspace.transitions.block_run import DefinitionConflict, block_run
from keyspace.transitions.complete_run import complete_run
from keyspace.transitions.continue_run import Continued, Ending, continue_run
from keyspace.transitions.create_workspace import create_workspace
from keyspace.transitions.expand_event import Expanded, expand_event
from keyspace.transitions.fail_run import fail_run
from keyspace.transitions.give_back import give_back
from keyspace.transitions.hold import Hold
from keyspace.transitions.invoke_function import Invocation, check_invocation, invoke_function
from keyspace.transitions.lease_items import Delivery, lease_items
from keyspace.transitions.lose_lease import Loss, lose_lease
from keyspace.transitions.open_session import open_session
from keyspace.transitions.prove_not_started import prove_not_started
from keyspace.transitions.publish_manifest import FunctionSpec, ManifestSpec, TriggerSpec, publish_manifest
from keyspace.transitions.renew_leases import renew_leases
from keyspace.transitions.target_not_found import target_not_found
from keyspace.transitions.work import Accepted, Verdict, Work
from keyspace.tx import Tx

__all__ = ["INSTANCE_ID", "LEASE_MS", "RETRY", "Dump", "EagerClock", "World", "manifest", "work_of"]

T = TypeVar("T")
Dump = dict[bytes, bytes]
"""Every key of a keyspace, logical, with its stored value."""

LEASE_MS = 15_000
INSTANCE_ID = "11" * 16
RETRY = RetryRecord(attempts=3, initial_ms=1_000, coefficient=2.0, cap_ms=60_000)
KEYS_MAX = 2_000_000
"""Keys of the largest keyspace that a test looks at whole."""
ROUNDS_MAX = 10_000


def manifest(application: str, functions: dict[str, list[str]], *, timeout_ms: int | None = None) -> ManifestSpec:
    """Return a manifest whose functions are started by the named events; a binding is called function@event."""
    return ManifestSpec(
        application,
        tuple(
            FunctionSpec(name, tuple(TriggerSpec(event, f"{name}@{event}") for event in events), timeout_ms=timeout_ms)
            for name, events in functions.items()
        ),
    )


def work_of(delivery: Delivery) -> Work:
    """Return how a worker names the work it was delivered."""
    item = delivery.item
    assert item.token is not None
    return Work(item.kind, item.target, item.step_id, item.item_id, item.token, item.generation)


class EagerClock(VirtualClock):
    """Virtual time that passes at once for whoever waits: a backoff costs a test nothing."""

    async def sleep_ms(self, delay_ms: float) -> None:
        self.advance(max(0.0, delay_ms))


class World:
    """One deployment under test."""

    def __init__(
        self,
        *,
        seed: int = 0,
        prefix: bytes = b"\x15\x07",
        store: Store | None = None,
        clock: VirtualClock | None = None,
    ) -> None:
        self.clock = clock if clock is not None else EagerClock()
        self.engine = MemoryEngine()
        self.rng = random.Random(seed)
        self.store = store if store is not None else memory_store(clock=self.clock, engine=self.engine)
        self.keyspace = Keyspace(self.store, clock=self.clock, prefix=prefix, rng=self.rng)
        self.session = "session-1"

    # -- running

    async def run(self, name: str, body: Callable[[Tx], Awaitable[T]]) -> T:
        return await self.keyspace.transact(name, body)

    async def read(self, body: Callable[[Tx], Awaitable[T]]) -> T:
        return await self.keyspace.transact("read", body)

    async def check(self) -> None:
        """Fail when the keyspace is not consistent."""
        report = await check_keyspace(self.keyspace)
        assert not report.problems, "\n".join(str(problem) for problem in report.problems)

    async def dump(self) -> Dump:
        """Return everything stored, so that two moments can be compared byte for byte."""
        return dict(await self._rows(KeyRange(b"", b"\xff")))

    async def records(self, leaf: Any, *at: Any, workspace: str = "acme") -> list[Any]:
        """Return the records of one leaf below `at`, in key order."""
        rows = await self._rows(leaf.span(workspace, *at))
        return [leaf.codec.decode(value) for key, value in rows if (found := identify(key)) and found[0] is leaf]

    async def _rows(self, span: KeyRange) -> list[tuple[bytes, bytes]]:
        raw = self.store.begin()
        prefix = self.keyspace.prefix
        rows = await raw.get_range(prefix + span.begin, prefix + span.end, limit=KEYS_MAX)
        raw.cancel()
        assert len(rows) < KEYS_MAX, "more is stored than a test may look at whole"
        return [(key[len(prefix) :], value) for key, value in rows]

    # -- definitions

    async def begin(
        self,
        functions: dict[str, list[str]] | None = None,
        *,
        workspace: str = "acme",
        timeout_ms: int | None = None,
    ) -> None:
        """Create a workspace whose application `shop` has `functions`, routed; `timeout_ms` is how long a run may take."""
        await self.run("create_workspace", lambda tx: create_workspace(tx, workspace))
        await self.publish(functions or {"fulfil": ["order.placed"]}, workspace=workspace, timeout_ms=timeout_ms)

    async def publish(
        self,
        functions: dict[str, list[str]],
        *,
        application: str = "shop",
        workspace: str = "acme",
        merge: bool = True,
        timeout_ms: int | None = None,
    ) -> int:
        """Publish a manifest and route to it; return its generation."""
        spec = manifest(application, functions, timeout_ms=timeout_ms)
        record, _ = await self.run(
            "publish_manifest", lambda tx: publish_manifest(tx, workspace, spec, published_by="test")
        )
        await self.run(
            "activate_routing",
            lambda tx: activate_routing(
                tx, workspace, {application: record.generation}, activated_by="test", is_merge=merge
            ),
        )
        return record.generation

    # -- events

    async def submit(
        self,
        name: str = "order.placed",
        payload: bytes = b'{"order":1}',
        *,
        workspace: str = "acme",
        key: str | None = None,
        correlation: dict[str, str] | None = None,
        timestamp_ms: int | None = None,
        event_id: str | None = None,
        accepted_by: str = "test",
    ) -> Acceptance:
        submission = Submission(name, payload, correlation or {}, timestamp_ms, key)
        check_submission(submission)
        identity = event_id or self.keyspace.mint()
        return await self.run(
            "accept_event",
            lambda tx: accept_event(tx, workspace, submission, event_id=identity, accepted_by=accepted_by),
        )

    async def invoke(
        self,
        function: str = "fulfil",
        payload: bytes = b'{"order":1}',
        *,
        application: str = "shop",
        workspace: str = "acme",
        key: str | None = None,
        timestamp_ms: int | None = None,
        event_id: str | None = None,
        accepted_by: str = "test",
    ) -> Acceptance:
        invocation = Invocation(application, function, payload, timestamp_ms, key)
        check_invocation(invocation)
        identity = event_id or self.keyspace.mint()
        return await self.run(
            "invoke_function",
            lambda tx: invoke_function(tx, workspace, invocation, event_id=identity, accepted_by=accepted_by),
        )

    async def expansion(self, event_id: str, *, workspace: str = "acme") -> ExpansionRecord:
        record = await self.read(lambda tx: tx.load(EXPANSION.at(workspace, event_id)))
        assert record is not None
        return record

    async def expand_chunk(self, event_id: str, *, workspace: str = "acme") -> Expanded:
        """Run one chunk of an event's fan-out."""
        item_id = (await self.expansion(event_id, workspace=workspace)).item_id
        assert item_id is not None, "the expansion is complete"
        return await self.run("expand_event", lambda tx: expand_event(tx, workspace, event_id, item_id))

    async def expand(self, *, workspace: str = "acme") -> int:
        """Drain the fan-out lane; return how many chunks it took."""
        lane = server_lane(LaneKind.FANOUT)
        for count in range(ROUNDS_MAX):
            found = await self.read(lambda tx: claims.vested_items(tx, workspace, lane, limit=1))
            if not found:
                return count
            event_id, item_id = found[0].target, found[0].item_id
            chunk = partial(expand_event, workspace=workspace, event_id=event_id, item_id=item_id)
            await self.run("expand_event", chunk)
        raise AssertionError(f"fan-out did not end in {ROUNDS_MAX} chunks of {BINDING_PAGE_ITEMS}")

    async def start_run(
        self, name: str = "order.placed", *, workspace: str = "acme", payload: bytes = b"1"
    ) -> RunRecord:
        """Submit an event that starts one run and return it."""
        before = {run.run_id for run in await self.runs(workspace=workspace)}
        await self.submit(name, payload, workspace=workspace)
        await self.expand(workspace=workspace)
        (run,) = [run for run in await self.runs(workspace=workspace) if run.run_id not in before]
        return run

    # -- reading

    async def runs(self, *, workspace: str = "acme") -> list[RunRecord]:
        """Return every run in the order of their creation."""
        identities = await self.records(RUN_LIST, workspace=workspace)
        return [await self.get_run(run_id, workspace=workspace) for run_id in identities]

    async def get_run(self, run_id: str, *, workspace: str = "acme") -> RunRecord:
        run = await self.read(lambda tx: tx.load(RUN.at(workspace, run_id)))
        assert run is not None
        return run

    async def step(self, run_id: str, step_id: str, *, workspace: str = "acme") -> StepRecord:
        step = await self.read(lambda tx: tx.load(STEP.at(workspace, run_id, step_id)))
        assert step is not None
        return step

    async def value(self, run_id: str, step_id: str, *, workspace: str = "acme") -> bytes:
        step = await self.step(run_id, step_id, workspace=workspace)
        assert step.value_bytes is not None
        size = step.value_bytes
        return await self.read(lambda tx: tx.load_blob(STEP_VALUE, workspace, run_id, step_id, size_bytes=size))

    async def attempt(
        self,
        run_id: str,
        step_id: str,
        generation: int,
        direction: Direction = Direction.FORWARD,
        *,
        workspace: str = "acme",
    ) -> AttemptRecord:
        key = ATTEMPT.at(workspace, run_id, direction, step_id, generation)
        attempt = await self.read(lambda tx: tx.load(key))
        assert attempt is not None
        return attempt

    async def item(self, item_id: str, *, workspace: str = "acme") -> ItemRecord | None:
        return await self.read(lambda tx: tx.load(ITEM.at(workspace, item_id)))

    async def history(self, run_id: str, *, workspace: str = "acme") -> list[HistoryRecord]:
        return await self.records(HISTORY, run_id, workspace=workspace)

    async def kinds(self, run_id: str, *, workspace: str = "acme") -> list[str]:
        """Return the words of a run's history."""
        return [entry.kind for entry in await self.history(run_id, workspace=workspace)]

    async def completions(self, run_id: str, *, workspace: str = "acme") -> list[str]:
        return await self.records(COMPLETION, run_id, workspace=workspace)

    async def stale_results(self, run_id: str, *, workspace: str = "acme") -> list[StaleResultRecord]:
        return await self.records(STALE, run_id, workspace=workspace)

    # -- the queue

    def seat(self, *, session: str | None = None, instance: str = INSTANCE_ID, token: str | None = None) -> Seat:
        return Seat(session or self.session, instance, "release-1", token or self.keyspace.mint())

    async def lease_many(
        self,
        count: int,
        *,
        function: str = "fulfil",
        application: str = "shop",
        direction: Direction = Direction.FORWARD,
        workspace: str = "acme",
        session: str | None = None,
        instance: str = INSTANCE_ID,
    ) -> list[Delivery]:
        lane = application_lane(application, function, direction)
        seats = [self.seat(session=session, instance=instance) for _ in range(count)]
        tried: dict[str, Seat] = {}
        return await self.run(
            "lease_items",
            lambda tx: lease_items(tx, workspace, lane, seats, lease_ms=LEASE_MS, tried=tried),
        )

    async def lease(self, **options: Any) -> Delivery:
        """Lease the one item there must be."""
        (delivery,) = await self.lease_many(1, **options)
        return delivery

    async def hello(
        self,
        session: str = "session-1",
        *,
        instance: str = INSTANCE_ID,
        workspace: str = "acme",
        connection: int = 0,
    ) -> None:
        self.session = session
        await self.run(
            "open_session",
            lambda tx: open_session(
                tx,
                workspace,
                instance_id=instance,
                application="shop",
                session=session,
                release="release-1",
                connection=connection,
            ),
        )

    async def authorize(
        self, work: Work, *, session: str | None = None, instance: str = INSTANCE_ID, workspace: str = "acme"
    ) -> Verdict:
        return await self.run(
            "authorize_start",
            lambda tx: authorize_start(
                tx,
                workspace,
                work,
                session=session or self.session,
                instance_id=instance,
                release="release-1",
                lease_ms=LEASE_MS,
            ),
        )

    async def renew(self, *held: tuple[str, str], workspace: str = "acme") -> list[bool]:
        return await self.run("renew_leases", lambda tx: renew_leases(tx, workspace, list(held), lease_ms=LEASE_MS))

    async def give_back(self, work: Work, *, workspace: str = "acme") -> bool:
        return await self.run("give_back", lambda tx: give_back(tx, workspace, work.item_id, work.token))

    async def lose(
        self, item_id: str, *, token: str | None = None, is_session_lost: bool = False, workspace: str = "acme"
    ) -> Loss:
        return await self.run(
            "lose_lease",
            lambda tx: lose_lease(tx, workspace, item_id, token=token, is_session_lost=is_session_lost),
        )

    async def prove(
        self, work: Work, *, session: str | None = None, instance: str = INSTANCE_ID, workspace: str = "acme"
    ) -> bool:
        assert work.step_id is not None
        step_id, prover = work.step_id, session or self.session
        return await self.run(
            "prove_not_started",
            lambda tx: prove_not_started(
                tx,
                workspace,
                instance,
                work.run_id,
                Direction.FORWARD,
                step_id,
                work.generation,
                work.token,
                session=prover,
            ),
        )

    # -- answers

    async def declare(
        self,
        work: Work,
        step_id: str = "s1",
        *,
        retry: RetryRecord = RETRY,
        timeout_ms: int | None = None,
        workspace: str = "acme",
        **more: Any,
    ) -> Verdict:
        declaration = Declaration(step_id, retry, timeout_ms=timeout_ms, **more)
        return await self.run("accept_declaration", lambda tx: accept_declaration(tx, workspace, work, declaration))

    async def block(self, work: Work, step_id: str = "twice", *, workspace: str = "acme") -> Verdict:
        """Report that a pass met a step id twice."""
        first, again = CallSite(location="shop.py:10", name="reserve"), CallSite(location="shop.py:20")
        conflict = DefinitionConflict(step_id, first, again)
        return await self.run("block_run", lambda tx: block_run(tx, workspace, work, conflict))

    async def complete(
        self,
        work: Work,
        output: bytes = b'"done"',
        *,
        failed_met: Collection[str] | None = None,
        workspace: str = "acme",
    ) -> Verdict:
        limit = self.keyspace.payload_bytes_max
        return await self.run(
            "complete_run",
            lambda tx: complete_run(tx, workspace, work, output, failed_met=failed_met, value_bytes_max=limit),
        )

    async def fail(
        self,
        work: Work,
        failure: FailureRecord | None = None,
        *,
        failed_met: Collection[str] | None = None,
        workspace: str = "acme",
    ) -> Verdict:
        problem = failure or FailureRecord(category="application", message="uncaught")
        return await self.run("fail_run", lambda tx: fail_run(tx, workspace, work, problem, failed_met=failed_met))

    async def succeed(self, work: Work, value: bytes = b'"ok"', *, workspace: str = "acme") -> Verdict:
        limit = self.keyspace.payload_bytes_max
        return await self.run(
            "accept_success", lambda tx: accept_success(tx, workspace, work, value, value_bytes_max=limit)
        )

    async def fail_attempt(
        self,
        work: Work,
        failure: FailureRecord | None = None,
        *,
        retryable: bool = True,
        retry_after_ms: int | None = None,
        workspace: str = "acme",
    ) -> Verdict:
        problem = failure or FailureRecord(category="application", message="no stock")
        return await self.run(
            "accept_failure",
            lambda tx: accept_failure(
                tx, workspace, work, problem, is_retryable=retryable, retry_after_ms=retry_after_ms
            ),
        )

    async def not_found(self, work: Work, *, workspace: str = "acme") -> Verdict:
        return await self.run("target_not_found", lambda tx: target_not_found(tx, workspace, work))

    async def go_on(
        self,
        work: Work,
        ending: Ending | None,
        value: bytes = b'"ok"',
        *,
        session: str | None = None,
        held: bool = True,
    ) -> Continued:
        """Report a success together with the answer of the pass that follows it."""
        limit = self.keyspace.payload_bytes_max
        hold = Hold(self.seat(session=session), LEASE_MS) if held else None
        return await self.run(
            "continue_run",
            lambda tx: continue_run(tx, "acme", work, value, ending, hold=hold, value_bytes_max=limit),
        )

    # -- whole passages

    async def lease_pass(self, **options: Any) -> Work:
        """Lease the next discovery pass."""
        work = work_of(await self.lease(**options))
        assert work.kind is WorkKind.DISCOVERY
        return work

    async def start_step(self, step_id: str = "s1", *, retry: RetryRecord = RETRY, **options: Any) -> Work:
        """Declare a step in the next pass and authorize its first attempt."""
        assert isinstance(await self.declare(await self.lease_pass(), step_id, retry=retry, **options), Accepted)
        return await self.start_attempt()

    async def start_attempt(self, **options: Any) -> Work:
        """Lease and authorize the attempt that is ready."""
        work = work_of(await self.lease(**options))
        assert work.kind is WorkKind.CALLBACK
        assert isinstance(await self.authorize(work), Accepted)
        return work

    async def run_step(self, step_id: str = "s1", value: bytes = b'"ok"') -> Work:
        """Take one step from its declaration to its success."""
        work = await self.start_step(step_id)
        assert isinstance(await self.succeed(work, value), Accepted)
        return work

    async def leased_state(self, work: Work) -> ItemState | None:
        item = await self.item(work.item_id)
        return None if item is None else item.state
