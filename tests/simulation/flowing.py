"""What moves and the end share: the next step of a worker, a session and a queue, and all of them in order."""

from __future__ import annotations

from keyspace.layout import DUE_APP, ITEM, shard_of_workspace
from keyspace.limits import BUCKET_MS
from keyspace.queue.leases import expired_leases
from keyspace.queue.pointers import due_in_shard
from keyspace.records.work import Direction, ItemRecord, Lane, LaneKind, WorkKind
from keyspace.transitions.expand_event import Expanded, expand_event
from keyspace.transitions.lose_lease import lose_lease
from keyspace.tx import Tx
from services.dispatcher.server_handlers import server_handlers
from services.lanes.duebook import LaneOf
from services.lanes.handlers import Handler, Handlers
from services.lanes.turn import find_items
from simulation.dispatching import OPTIONS, SimSession
from simulation.fleet import Line, SimWorker
from simulation.model import Broken
from simulation.world import World

__all__ = [
    "deliver",
    "due_lanes",
    "end_worker",
    "go_on",
    "has_mail",
    "is_busy",
    "lease_lane",
    "recover_leases",
    "serve_item",
    "server_items",
    "takers",
]

SERVER_HANDLERS = server_handlers(value_bytes_max=OPTIONS.value_bytes_max)


def has_mail(line: Line) -> bool:
    """Whether something is on its way to the worker."""
    return bool(line.to_worker) or (line.session is not None and line.session.is_open and bool(line.session.outbox))


def is_busy(line: Line) -> bool:
    """Whether something is on its way, in either direction."""
    return bool(line.to_server) or has_mail(line)


def deliver(world: World, worker: SimWorker) -> str:
    """Let the next frame reach the worker, out of its session if none is on its way yet."""
    line = worker.line
    assert line is not None
    if not line.to_worker and line.session is not None:
        line.session.send_one()
    return world.worker_hears(worker)


def end_worker(world: World, worker: SimWorker) -> None:
    """End a worker process as kill -9 does."""
    if worker.line is not None:
        worker.line.is_cut = True
        worker.line = None
    world.workers.remove(worker)


def takers(world: World, workspace: str, lane: Lane) -> list[SimSession]:
    """Return the sessions with a place for the lane's work; compensation has places of its own."""
    is_undo = lane.direction is Direction.COMPENSATION
    takers = [
        one
        for one in world.sessions()
        if one.is_open and one.workspace == workspace and one.core.free_count(one.now_ms(), is_undo=is_undo) > 0
    ]
    if is_undo and any(one.core.free_count(one.now_ms()) == 0 for one in takers):
        world.saw("leased: compensation in a reserved place")
    return takers


def due_lanes(world: World, workspace: str) -> list[Lane]:
    """Return the lanes that a due pointer names."""
    now_bucket = world.clock.now_ms() // BUCKET_MS
    lanes: dict[Lane, None] = {}
    for (_, kind, application, bucket, function, direction), _ in world.look().records(DUE_APP, workspace):
        if bucket <= now_bucket:
            lanes[Lane(LaneKind(kind), application, function, Direction(direction))] = None
    return list(lanes)


async def lease_lane(world: World, workspace: str, lane: Lane, sessions: list[SimSession]) -> str:
    """Let the sessions' dispatcher lease work of a lane, one seat each time a session is named."""
    process = sessions[0].process
    chosen = next(one for one in world.dispatchers if one.process is process)
    return str(await world.guard(process, lambda: chosen.lease(workspace, lane, sessions)))


def server_items(world: World, workspace: str) -> list[str]:
    """Return the items of server lanes that have vested."""
    now_ms = world.clock.now_ms()
    return [
        at[1]
        for at, item in world.look().records(ITEM, workspace)
        if item.where.kind.is_server and item.vesting_ms <= now_ms
    ]


async def serve_item(world: World, workspace: str, item_id: str) -> str:
    """Let a server process handle one of its items, found as it finds them."""
    item = world.look().record(ITEM.at(workspace, item_id))
    if item is None:
        return "work that is done"
    lane, bucket, shard = item.where, world.clock.now_ms() // BUCKET_MS, shard_of_workspace(workspace)
    pointers = await world.act(
        world.gateway,
        "due_in_shard",
        lambda tx: due_in_shard(tx, lane.kind, shard, from_bucket=0, to_bucket=bucket, limit=50),
    )
    if not any(pointer[1] == workspace for pointer in pointers or ()):
        world.broken.append(Broken("server work is found", f"no pointer leads to {item.kind.value} {item_id}"))
        return "work that nothing leads to"
    key = LaneOf(workspace, lane)
    found = await world.act(world.gateway, "find_items", lambda tx: find_items(tx, key, limit=50))
    if found is None or item_id not in [one.item_id for one in found.items]:
        return f"{item.kind.value} is not found now"
    handler = _handlers(world)[item.kind]
    outcome = await world.act(world.gateway, handler.transition, lambda tx: handler.handle(tx, workspace, item))
    word = getattr(outcome, "value", "") or ("nobody hears" if outcome is None else "done")
    world.saw(f"served: {item.kind.value} {word}")
    return f"{item.kind.value}: {word}"


def _handlers(world: World) -> Handlers:
    """Return what server processes do with each kind of work, the dispatcher's own table and fan-out's line."""

    async def expand(tx: Tx, workspace: str, item: ItemRecord) -> Expanded:
        return await expand_event(
            tx, workspace, item.target, item.item_id, run_timeout_default_ms=world.default_timeout_ms
        )

    return {**SERVER_HANDLERS, WorkKind.FANOUT: Handler("expand_event", expand)}


async def recover_leases(world: World) -> int:
    """Recover every lease that has expired, and return how many there were."""
    process = world.dispatchers[0].process
    bucket = world.clock.now_ms() // BUCKET_MS
    count = 0
    for shard in world.leased_shards():
        entries = await world.act(
            process,
            "scan_leases",
            lambda tx, s=shard: expired_leases(tx, s, before_bucket=bucket, limit=50),  # type: ignore[misc]
        )
        for entry in entries or ():
            await world.act(process, "lose_lease", lambda tx, e=entry: lose_lease(tx, e.workspace, e.item_id))  # type: ignore[misc]
            count += 1
    return count


async def go_on(world: World, limit: int, *, is_forced: bool = False) -> int:
    """Do what can be done without letting time pass, at most `limit` steps; return how many were done."""
    count = 0
    while count < limit:
        done = await _round(world, limit - count, is_forced)
        if not done or world.broken:
            return count
        count += done
    return count


async def _round(world: World, limit: int, is_forced: bool) -> int:
    """Let everybody do one thing."""
    count = 0
    for worker in list(world.workers):
        count += _worker_round(world, worker, is_forced)
        if worker.is_gone:
            worker.line = None
    world.forget_gone()
    for line in list(world.lines):
        if line.to_server and count < limit:
            await world.server_hears(line)
            count += 1
    for session in world.sessions():
        if count >= limit:
            break
        if session.is_open and session.line.is_cut and not session.line.to_server:
            world.server_notices(session)
            count += 1
        elif session.pending or not session.is_open:
            await world.session_does(session)
            count += 1
    world.forget_gone()
    if count:
        return count
    return await _queue_round(world)


def _worker_round(world: World, worker: SimWorker, is_forced: bool) -> int:
    line = worker.line
    if worker.is_gone:
        return 0
    if line is None:
        world.open_line(worker, world.dispatchers[0])
        return 1
    if has_mail(line):
        deliver(world, worker)
        return 1
    if line.is_cut:
        world.notice_cut(worker)
        return 1
    tasks = world.ready_tasks(worker, is_forced=is_forced)
    if tasks:
        world.worker_does(worker, tasks[0])
        return 1
    return 0


async def _queue_round(world: World) -> int:
    """Lease what is ready, when nobody has anything else to do."""
    count = 0
    for workspace in world.workspaces:
        for item_id in server_items(world, workspace):
            await serve_item(world, workspace, item_id)
            count += 1
        for lane in due_lanes(world, workspace):
            sessions = takers(world, workspace, lane)
            if not sessions:
                continue
            before = world.engine.commit_count
            mates = [one for one in sessions if one.process is sessions[0].process]
            await lease_lane(world, workspace, lane, mates[:2])
            count += world.engine.commit_count - before
    return count
