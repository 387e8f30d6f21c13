"""The straits a run can be in, and everything that can happen to it in each: what races are drawn from.

A strait is a prepared world with the works and items that acts name. A fork of it is the same world again, so that two ways
to one end can be compared.
"""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from blocker_verbs import block, join, probe, rediscover
from operator_verbs import cancel, resolve, start_undo, target_of
from server_steps import ONCE, fire, sleep
from test_races import InterruptingStore
from test_releases import register
from world import INSTANCE_ID, LEASE_MS, RETRY, EagerClock, World, work_of

from keyspace.errors import Refusal
from keyspace.layout import ITEM
from keyspace.records.run import FailureRecord
from keyspace.records.work import Direction, ItemRecord, WorkKind
from keyspace.store.embedded import memory_store
from keyspace.store.errors import RetryableError
from keyspace.store.memory_engine import MemoryEngine
from keyspace.transitions.accept_declaration import Declaration
from keyspace.transitions.continue_run import Completion, Continued
from keyspace.transitions.declaration import ChildTerms, WaitTerms
from keyspace.transitions.expand_event import expand_event
from keyspace.transitions.fire_deadline import fire_deadline
from keyspace.transitions.open_session import open_session
from keyspace.transitions.propagate_stop import propagate_stop
from keyspace.transitions.prove_not_started import prove_not_started
from keyspace.transitions.rediscover_run import RediscoverReply
from keyspace.transitions.register_release import prefer_release
from keyspace.transitions.resolve_attempt import Command, DeclareFailure, Resolution, RetryAttempt, SupplySuccess
from keyspace.transitions.settle_child import settle_child
from keyspace.transitions.wake_blocked import wake_blocked
from keyspace.transitions.work import Work

__all__ = ["ACTS", "PREPARATIONS", "TIMEOUT_MS", "Act", "Scene", "Strait", "fork", "prepare", "scene_now", "told_by"]

TIMEOUT_MS = 3_600_000
"""Every run's; leases and straits take far less."""
NAP_MS = 1_000
NEXT = Declaration("next", RETRY)
WAIT = WaitTerms(event="order.packed", match={"order": "7"}, timeout_ms=NAP_MS)
FAILURE = FailureRecord(category="application", message="no stock")
NEWER_SESSION = "session-2"


class Untiring(InterruptingStore):
    """Tries again without a pause, so that a race takes no time and both ways to its end see the same instants."""

    async def backoff(self, error: RetryableError, attempt_count: int) -> None:
        """Do not wait."""


@dataclass(frozen=True)
class Scene:
    """One run in a strait.

    Attributes:
        run_id: the run.
        work: its effect, forward or undo, however far that has come; one that has settled when there is no other.
        passing: its pass; one that has settled when there is no other.
        release: registered, and not yet preferred.
        items: the server's work for this run, by kind, as somebody found it before anything else happened.
    """

    run_id: str
    work: Work
    passing: Work
    release: str = ""
    items: Mapping[WorkKind, ItemRecord] = field(default_factory=dict)


@dataclass(frozen=True)
class Strait:
    """A prepared world, at an instant."""

    scene: Scene
    engine: MemoryEngine
    now_ms: int
    session: str


# -- what can happen

Act = Callable[[World, Scene], Awaitable[Any]]


def by_operator(command: Command, key: str) -> Act:
    return lambda world, scene: resolve(world, target_of(scene.work), command, key=key)


def on_item(kind: WorkKind, name: str, perform: Callable[[Any, ItemRecord], Awaitable[Any]]) -> Act:
    async def act(world: World, scene: Scene) -> Any:
        item = scene.items.get(kind)
        return None if item is None else await world.run(name, lambda tx: perform(tx, item))

    return act


async def lease_any(world: World, scene: Scene) -> Any:
    taken = await world.lease_many(1) or await world.lease_many(1, direction=Direction.COMPENSATION)
    return [(one.item.kind, one.item.step_id, one.item.delivery_count) for one in taken]


async def prove(world: World, scene: Scene) -> bool:
    at, token = target_of(scene.work), scene.work.token
    return await world.run(
        "prove_not_started",
        lambda tx: prove_not_started(tx, "acme", INSTANCE_ID, *at, token, session=NEWER_SESSION),
    )


async def say_hello(world: World, scene: Scene) -> str:
    """Open a newer session; whoever acts beside it goes on in the older one."""
    record = await world.run(
        "open_session",
        lambda tx: open_session(
            tx, "acme", instance_id=INSTANCE_ID, application="shop", session=NEWER_SESSION, release="release-1"
        ),
    )
    return record.session


async def prefer(world: World, scene: Scene) -> Any:
    return await world.run("prefer_release", lambda tx: prefer_release(tx, "acme", "shop", scene.release))


ACTS: dict[str, Act] = {
    "success": lambda world, scene: world.succeed(scene.work),
    "another success": lambda world, scene: world.succeed(scene.work, b'"other"'),
    "success and declaration": lambda world, scene: world.go_on(scene.work, NEXT),
    "success and completion": lambda world, scene: world.go_on(scene.work, Completion(b"1")),
    "success alone": lambda world, scene: world.go_on(scene.work, None),
    "failure": lambda world, scene: world.fail_attempt(scene.work),
    "exhaustion": lambda world, scene: world.fail_attempt(scene.work, retryable=False),
    "authorization": lambda world, scene: world.authorize(scene.work),
    "no target": lambda world, scene: world.not_found(scene.work),
    "give back": lambda world, scene: world.give_back(scene.work),
    "loss": lambda world, scene: world.lose(scene.work.item_id),
    "loss of the pass": lambda world, scene: world.lose(scene.passing.item_id, is_session_lost=True),
    "hello": say_hello,
    "proof": prove,
    "renewal": lambda world, scene: world.renew((scene.work.item_id, scene.work.token)),
    "lease": lease_any,
    "completion": lambda world, scene: world.complete(scene.passing),
    "declaration": lambda world, scene: world.declare(scene.passing, "next"),
    "function failure": lambda world, scene: world.fail(scene.passing),
    "conflict": lambda world, scene: block(world, scene.passing),
    "cancel": lambda world, scene: cancel(world, scene.run_id),
    "deadline": on_item(
        WorkKind.RUN_TIMEOUT, "fire_deadline", lambda tx, item: fire_deadline(tx, "acme", item.target, item.item_id)
    ),
    "timer": lambda world, scene: _fire(world, scene),
    "match": on_item(
        WorkKind.FANOUT, "expand_event", lambda tx, item: expand_event(tx, "acme", item.target, item.item_id)
    ),
    "child settlement": on_item(
        WorkKind.CHILD_SETTLE, "settle_child", lambda tx, item: settle_child(tx, "acme", item, value_bytes_max=262_144)
    ),
    "stop from above": on_item(
        WorkKind.STOP_PROPAGATE, "propagate_stop", lambda tx, item: propagate_stop(tx, "acme", item)
    ),
    "wake": on_item(
        WorkKind.RELEASE_WAKE, "wake_blocked", lambda tx, item: wake_blocked(tx, "acme", item.target, item.item_id)
    ),
    "probe": lambda world, scene: _probe(world, scene),
    "rediscovery": lambda world, scene: rediscover(world, scene.run_id),
    "preference": prefer,
    "supplied success": by_operator(SupplySuccess(b'"by hand"'), "key-1"),
    "declared failure": by_operator(DeclareFailure(FAILURE), "key-2"),
    "explicit retry": by_operator(RetryAttempt(), "key-3"),
}


async def _fire(world: World, scene: Scene) -> Any:
    item = scene.items.get(WorkKind.TIMER)
    return None if item is None else await fire(world, item)


async def _probe(world: World, scene: Scene) -> Any:
    item = scene.items.get(WorkKind.DEFINITION_PROBE)
    return None if item is None else await probe(world, item.target, item.item_id)


async def told_by(act: Act, world: World, scene: Scene) -> Any:
    """Perform an act and return what it told, without what is drawn anew each time."""
    try:
        told = await act(world, scene)
    except Refusal as refusal:
        return refusal.code
    if isinstance(told, Continued):
        refused = None if told.refusal is None else told.refusal.code
        return told._replace(following=told.following is not None, refusal=refused)
    if isinstance(told, Resolution):
        return told.record.command, told.record.attempt_state, told.record.run_phase, told.is_replay
    if isinstance(told, RediscoverReply):
        return told.outcome
    return told


# -- straits

ON_PASS = ("completion", "declaration", "function failure", "conflict", "loss of the pass", "cancel", "deadline")
ON_EFFECT = (
    "success", "another success", "success and declaration", "success and completion", "success alone", "failure",
    "exhaustion", "loss", "hello", "proof", "renewal", "cancel", "deadline",
)  # fmt: skip
ON_UNKNOWN = (
    "success", "another success", "failure", "exhaustion", "proof", "cancel", "deadline", "supplied success",
    "declared failure", "explicit retry",
)  # fmt: skip
ON_QUEUED = ("lease", "cancel", "deadline", "hello")
ON_LEASED = ("authorization", "no target", "give back", "loss", "renewal", "cancel", "deadline", "hello")
ON_BLOCKED = ("rediscovery", "probe", "preference", "wake", "cancel", "deadline", "lease")

Prepare = Callable[[World, Work], Awaitable[dict[str, Any]]]


async def at_pass(world: World, settled: Work) -> dict[str, Any]:
    return {"passing": await world.lease_pass()}


async def at_queue(world: World, settled: Work) -> dict[str, Any]:
    await world.declare(await world.lease_pass(), "s1")
    return {}


async def at_lease(world: World, settled: Work) -> dict[str, Any]:
    await at_queue(world, settled)
    return {"work": work_of(await world.lease())}


async def at_effect(world: World, settled: Work) -> dict[str, Any]:
    return {"work": await world.start_step()}


async def at_repeatable_effect(world: World, settled: Work) -> dict[str, Any]:
    work = await world.start_step(repeatable=True)
    world.clock.advance(LEASE_MS)
    return {"work": work}


async def at_expired_effect(world: World, settled: Work) -> dict[str, Any]:
    work = await world.start_step()
    world.clock.advance(LEASE_MS)
    return {"work": work}


async def at_unknown(world: World, settled: Work) -> dict[str, Any]:
    made = await at_expired_effect(world, settled)
    await world.lose(made["work"].item_id)
    return made


async def at_unknown_with_newer_session(world: World, settled: Work) -> dict[str, Any]:
    made = await at_unknown(world, settled)
    await world.hello(NEWER_SESSION)
    return made


async def at_lost_repeatable(world: World, settled: Work) -> dict[str, Any]:
    made = await at_repeatable_effect(world, settled)
    await world.lose(made["work"].item_id)
    return made


async def at_backoff(world: World, settled: Work) -> dict[str, Any]:
    work = await world.start_step()
    await world.fail_attempt(work)
    world.clock.advance(RETRY.initial_ms)
    return {"work": work}


async def at_cancelling(world: World, settled: Work) -> dict[str, Any]:
    made = await at_expired_effect(world, settled)
    await cancel(world, settled.run_id)
    return made


async def at_cancelling_unknown(world: World, settled: Work) -> dict[str, Any]:
    made = await at_unknown(world, settled)
    await cancel(world, settled.run_id)
    return made


async def at_undo_queue(world: World, settled: Work) -> dict[str, Any]:
    await cancel(world, settled.run_id)
    return {}


async def at_undo_lease(world: World, settled: Work) -> dict[str, Any]:
    await cancel(world, settled.run_id)
    return {"work": work_of(await world.lease(direction=Direction.COMPENSATION))}


async def at_undo(world: World, settled: Work) -> dict[str, Any]:
    await cancel(world, settled.run_id)
    work = await start_undo(world)
    world.clock.advance(LEASE_MS)
    return {"work": work}


async def at_unknown_undo(world: World, settled: Work) -> dict[str, Any]:
    made = await at_undo(world, settled)
    await world.lose(made["work"].item_id)
    return made


async def at_timer(world: World, settled: Work) -> dict[str, Any]:
    await sleep(world, await world.lease_pass(), delay_ms=NAP_MS)
    world.clock.advance(NAP_MS)
    return {}


async def at_matched_wait(world: World, settled: Work) -> dict[str, Any]:
    """The event that the run waits for is accepted, and not yet expanded."""
    await world.declare(await world.lease_pass(), "packed", retry=ONCE, terms=WAIT)
    world.clock.advance(1)
    await world.submit(WAIT.event, b'"box 7"', correlation=dict(WAIT.match))
    return {}


async def at_ended_child(world: World, settled: Work) -> dict[str, Any]:
    await world.declare(await world.lease_pass(), "pick-it", retry=ONCE, terms=ChildTerms(function="pick", input=b"1"))
    await world.complete(await world.lease_pass(function="pick"))
    return {}


async def at_stopped_parent(world: World, settled: Work) -> dict[str, Any]:
    """The scene is the child's: its effect under way, its parent's stop on its way down."""
    await world.declare(await world.lease_pass(), "pick-it", retry=ONCE, terms=ChildTerms(function="pick", input=b"1"))
    parent = await world.get_run(settled.run_id)
    assert parent.child_id is not None
    await world.declare(await world.lease_pass(function="pick"), "s1")
    work = work_of(await world.lease(function="pick"))
    await world.authorize(work)
    await cancel(world, settled.run_id)
    return {"work": work, "run_id": parent.child_id}


async def at_blocker(world: World, settled: Work) -> dict[str, Any]:
    """Blocked under a release that says nothing of its code, with another one about to be preferred."""
    passing = await world.lease_pass()
    await block(world, passing)
    return {"passing": passing, "release": (await register(world.keyspace, "v2")).release_id}


async def at_wake(world: World, settled: Work) -> dict[str, Any]:
    made = await at_blocker(world, settled)
    await prefer(world, Scene(settled.run_id, settled, settled, made["release"]))
    return made


async def at_blocked_pass(world: World, settled: Work) -> dict[str, Any]:
    made = await at_blocker(world, settled)
    await rediscover(world, settled.run_id)
    return made | {"passing": await world.lease_pass()}


PREPARATIONS: dict[str, tuple[Prepare, tuple[str, ...]]] = {
    "a pass": (at_pass, ON_PASS),
    "a queued effect": (at_queue, ON_QUEUED),
    "a leased effect": (at_lease, ON_LEASED),
    "an effect": (at_effect, ON_EFFECT),
    "an effect whose lease has expired": (at_expired_effect, ON_EFFECT),
    "a repeatable effect whose lease has expired": (at_repeatable_effect, ON_EFFECT),
    "a repeatable effect to be delivered again": (at_lost_repeatable, (*ON_EFFECT, "lease", "no target")),
    "an Unknown effect": (at_unknown, ON_UNKNOWN),
    "an Unknown effect behind a newer session": (at_unknown_with_newer_session, ON_UNKNOWN),
    "a retry that is due": (at_backoff, (*ON_QUEUED, "success", "failure")),
    "an effect of a stopped run": (at_cancelling, ON_EFFECT),
    "an Unknown effect of a stopped run": (at_cancelling_unknown, ON_UNKNOWN),
    "a queued undo": (at_undo_queue, ON_QUEUED),
    "a leased undo": (at_undo_lease, ON_LEASED),
    "an undo whose lease has expired": (at_undo, ON_EFFECT),
    "an Unknown undo": (at_unknown_undo, ON_UNKNOWN),
    "a timer that is due": (at_timer, ("timer", "cancel", "deadline")),
    "a wait whose event has come": (at_matched_wait, ("match", "timer", "cancel", "deadline")),
    "a child that has ended": (at_ended_child, ("child settlement", "cancel", "deadline")),
    "a child whose parent was stopped": (at_stopped_parent, (*ON_EFFECT, "stop from above")),
    "a blocker": (at_blocker, ON_BLOCKED),
    "a blocker and a wake": (at_wake, ON_BLOCKED),
    "a pass of a blocked run": (at_blocked_pass, (*ON_PASS, "rediscovery", "preference", "wake", "probe")),
}


async def prepare(name: str) -> Strait:
    """Bring a run of two completed steps into a strait."""
    make, acts = PREPARATIONS[name]
    world = World(seed=1)
    await world.begin({"fulfil": ["order.placed"], "pick": []}, timeout_ms=TIMEOUT_MS)
    await (join(world, None, session=world.session) if "block" in name else world.hello())
    await world.start_run()
    await world.run_step("done1")
    settled = await world.run_step("done2")
    scene = replace(Scene(settled.run_id, settled, settled), **await make(world, settled))
    if not scene.release and set(acts) & {"preference"}:
        raise AssertionError(f"{name} prefers a release that it does not register")
    return Strait(await scene_now(world, scene), world.engine, world.clock.now_ms(), world.session)


async def scene_now(world: World, scene: Scene) -> Scene:
    """Return the scene with the server's work as it stands now; each kind has one item at most."""
    server = [item for item in await world.records(ITEM) if item.where.kind.is_server]
    return replace(scene, items={item.kind: item for item in server})


def fork(strait: Strait, seed: int, *, later_ms: int = 0) -> tuple[World, Untiring]:
    """Return the strait's world again, some time later, with randomness of its own."""
    clock = EagerClock(start_ms=strait.now_ms)
    store = Untiring(memory_store(clock=clock, engine=copy.deepcopy(strait.engine)))
    world = World(clock=clock, store=store, seed=seed)
    world.session = strait.session
    clock.advance(later_ms)
    return world, store
