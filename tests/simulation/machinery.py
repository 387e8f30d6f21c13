"""Moves of the service's processes and of workers, of the connections between them, and of time."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from keyspace.limits import BUCKET_MS
from keyspace.queue.pointers import clear_due_pointer, due_in_application
from services.dispatcher.effects import Renewal
from simulation.code import APPLICATION
from simulation.dispatching import OPTIONS
from simulation.fleet import SimWorker
from simulation.flowing import (
    deliver,
    due_lanes,
    end_worker,
    go_on,
    has_mail,
    is_busy,
    lease_lane,
    recover_leases,
    serve_item,
    server_items,
    takers,
)
from simulation.maker import Maker
from simulation.scenario import Draws, Kind
from simulation.world import World

__all__ = ["MAKERS"]

JUMPS_MS = (20, 300, 1_000, 5_000, OPTIONS.lease_ms + 1_000, 60_000)
SETS_MS = (-400, -150, 150, 400, -5_000, 5_000)


async def flow(world: World, draws: Draws) -> str:
    """Let everything that can go on do so for a while, in order, as on a quiet day."""
    limit = draws.number(3, 40)
    return f"{await go_on(world, limit)} steps"


async def lease(world: World, draws: Draws) -> str:
    """Let a dispatcher lease work of a lane that a due pointer names."""
    workspace = draws.one_of(world.workspaces)
    lanes = due_lanes(world, workspace)
    server = sorted(server_items(world, workspace))
    if server and (not lanes or draws.chance(0.3)):
        return await serve_item(world, workspace, draws.choose(server, str))
    if not lanes:
        return "nothing to lease"
    lane = draws.choose(lanes, str)
    sessions = takers(world, workspace, lane)
    if not sessions:
        return "nobody has a place"
    first = draws.choose(sessions, lambda one: one.name)
    same = [one for one in sessions if one.process is first.process]
    return await lease_lane(world, workspace, lane, [first, draws.choose(same, lambda one: f"second {one.name}")])


async def to_worker(world: World, draws: Draws) -> str:
    """Let the oldest frame on its way to some worker arrive."""
    workers = [one for one in world.workers if one.line is not None and has_mail(one.line)]
    if not workers:
        return "nothing is on its way"
    worker = draws.choose(workers, lambda one: one.name)
    return deliver(world, worker)


async def to_server(world: World, draws: Draws) -> str:
    """Let the oldest frame of some connection reach its dispatcher."""
    lines = [line for line in world.lines if line.to_server]
    if not lines:
        return "nothing is on its way"
    return await world.server_hears(draws.choose(lines, lambda one: one.name))


async def dispatcher(world: World, draws: Draws) -> str:
    """Let some session do one of the things it has to do."""
    busy = [one for one in world.sessions() if one.pending or not one.is_open]
    cut = [one for one in world.sessions() if one.is_open and one.line.is_cut]
    if cut and (not busy or draws.chance(0.3)):
        return world.server_notices(draws.choose(cut, lambda one: one.name))
    if not busy:
        sessions = world.sessions()
        return world.tick_session(draws.choose(sessions, lambda one: one.name)) if sessions else "nothing to do"
    return await world.session_does(draws.choose(busy, lambda one: one.name), draws)


async def worker_move(world: World, draws: Draws) -> str:
    """Let some worker go on: user code, a lost connection, the time."""
    if not world.workers:
        return "there is no worker"
    worker = draws.choose(world.workers, lambda one: one.name)
    tasks = world.ready_tasks(worker)
    if worker.line is None:
        world.open_line(worker, draws.choose(world.dispatchers, lambda one: one.process.name))
        return f"{worker.name} connects"
    if worker.line.is_cut and (not tasks or draws.chance(0.5)):
        return world.notice_cut(worker)
    if tasks:
        return world.worker_does(worker, draws.choose(tasks, lambda one: one.name))
    return world.tick_worker(worker)


async def time_passes(world: World, draws: Draws) -> str:
    """Let time pass: a little, or until the next thing is due by itself."""
    next_ms = world.next_instant_ms()
    delta_ms = draws.one_of(JUMPS_MS)
    if next_ms is not None and draws.chance(0.5):
        delta_ms = next_ms - world.clock.now_ms()
    world.clock.advance(delta_ms)
    for worker in world.workers:
        world.tick_worker(worker)
    return f"{delta_ms} ms pass"


async def heartbeat(world: World, draws: Draws) -> str:
    """Let the time between two renewals pass, and every worker renew what it holds."""
    world.clock.advance(OPTIONS.renew_every_ms + 1)
    for worker in world.workers:
        world.tick_worker(worker)
    for line in list(world.lines):
        while line.to_server and not line.is_cut:
            await world.server_hears(line)
    for session in world.sessions():
        for effect in [one for one in session.pending if isinstance(one, Renewal)]:
            await world.guard(session.process, partial(session.do, effect))
    return "every worker renews"


async def clock_set(world: World, draws: Draws) -> str:
    """Set the wall clock forward or back, as a bad correction would."""
    delta_ms = draws.one_of(SETS_MS)
    world.clock.step(delta_ms)
    return f"the clock is set by {delta_ms} ms"


async def recover(world: World, draws: Draws) -> str:
    """Let a dispatcher look for expired leases."""
    return f"{await recover_leases(world)} leases recovered"


async def cut(world: World, draws: Draws) -> str:
    """Break a connection; part of what had left a session may never arrive."""
    lines = [line for line in world.lines if not line.is_cut]
    if not lines:
        return "there is no connection"
    line = draws.choose(lines, lambda one: one.name)
    session = line.session
    if session is not None:
        for _ in range(draws.number(0, len(session.outbox))):
            session.send_one()
    if draws.chance(0.7):
        line.to_worker.clear()
    if draws.chance(0.5):
        line.to_server.clear()
    line.is_cut = True
    return f"{line.name} breaks"


async def hurry(world: World, draws: Draws) -> str:
    """Let a worker give its connection up and open another, while what it sent by the former one is still on its way."""
    workers = [one for one in world.workers if one.line is not None]
    if not workers:
        return "nobody is connected"
    worker = draws.choose(workers, lambda one: one.name)
    assert worker.line is not None
    former = worker.line
    former.is_cut = True
    world.notice_cut(worker)
    world.open_line(worker, draws.choose(world.dispatchers, lambda one: one.process.name))
    return f"{worker.name} leaves {former.name} with {len(former.to_server)} frames under way and connects anew"


async def start_worker(world: World, draws: Draws) -> str:
    """Start a worker process with the newest code, or with older."""
    if len(world.workers) >= 4:
        return "there are enough"
    code = world.deploy(draws)
    name = f"w{draws.number(10, 99)}{code.release or 'x'}"
    worker = SimWorker(
        name, draws.one_of(world.workspaces), code, draws.bytes(16).hex(), draws.number(1, 3), draws.number(0, 1)
    )
    world.workers.append(worker)
    world.open_line(worker, draws.choose(world.dispatchers, lambda one: one.process.name))
    return f"{name} starts in {worker.workspace}"


async def kill_worker(world: World, draws: Draws) -> str:
    """Kill a worker process; what it had sent may still arrive."""
    if not world.workers:
        return "there is no worker"
    worker = draws.choose(world.workers, lambda one: one.name)
    end_worker(world, worker)
    return f"{worker.name} is killed"


async def lose(world: World, draws: Draws) -> str:
    """Kill or cut off a worker that runs something, until its leases have run out and are recovered."""
    running = [one for one in world.workers if any(task.is_callback for task in one.tasks)]
    if not running or draws.chance(0.4):
        running = [one for one in world.workers if one.tasks or (one.line is not None and is_busy(one.line))]
    if not running:
        return "nothing runs"
    worker = draws.choose(running, lambda one: one.name)
    word = "is killed" if draws.chance(0.4) else "is cut off"
    if word == "is killed":
        end_worker(world, worker)
    elif worker.line is not None:
        worker.line.is_cut = True
        worker.line.to_server.clear()
        worker.line.to_worker.clear()
        session = worker.line.session
        if session is not None and draws.chance(0.6):
            # What is on its way out has left; so nothing tells the dispatcher that it never arrived.
            while session.outbox:
                session.send_one()
            worker.line.to_worker.clear()
    world.clock.advance(OPTIONS.lease_ms + 2 * BUCKET_MS)
    return f"{worker.name} {word} for long, {await recover_leases(world)} leases recovered"


async def drain_worker(world: World, draws: Draws) -> str:
    """Tell a worker to leave when its work is done."""
    if not world.workers:
        return "there is no worker"
    worker = draws.choose(world.workers, lambda one: one.name)
    effects = worker.core.drain(world.clock.monotonic_ms(), 60_000)
    worker.perform(effects, lambda ref: world.begin_effect(worker, ref))
    if worker.is_gone:
        worker.line = None
    return f"{worker.name} drains"


async def stop_dispatcher(world: World, draws: Draws) -> str:
    """Kill a dispatcher and start it again."""
    chosen = draws.choose(world.dispatchers, lambda one: one.process.name)
    await world.restart(chosen.process)
    return f"{chosen.process.name} is killed"


async def leave(world: World, draws: Draws) -> str:
    """Let a session tell its worker to go elsewhere."""
    sessions = [one for one in world.sessions() if one.is_open]
    if not sessions:
        return "there is no session"
    session = draws.choose(sessions, lambda one: one.name)
    session.perform(session.core.leave())
    return f"{session.name} sends its worker away"


async def clear(world: World, draws: Draws) -> str:
    """Let a dispatcher clear a due pointer of a second that is over."""
    workspace = draws.one_of(world.workspaces)
    bucket = world.clock.now_ms() // BUCKET_MS
    pointers = await world.act(
        world.gateway,
        "due_in_application",
        lambda tx: due_in_application(tx, workspace, APPLICATION, from_bucket=0, to_bucket=bucket - 1, limit=50),
    )
    if not pointers:
        return "no pointer is over"
    due, _, lane = draws.choose(pointers, str)
    gone = await world.act(world.gateway, "clear_due_pointer", lambda tx: clear_due_pointer(tx, workspace, lane, due))
    return f"cleared: {gone}"


MAKERS: Mapping[Kind, Maker] = {
    Kind.FLOW: flow,
    Kind.LEASE: lease,
    Kind.TO_WORKER: to_worker,
    Kind.TO_SERVER: to_server,
    Kind.DISPATCHER: dispatcher,
    Kind.WORKER: worker_move,
    Kind.TIME: time_passes,
    Kind.HEARTBEAT: heartbeat,
    Kind.CLOCK_SET: clock_set,
    Kind.RECOVER: recover,
    Kind.CUT: cut,
    Kind.HURRY: hurry,
    Kind.START_WORKER: start_worker,
    Kind.KILL_WORKER: kill_worker,
    Kind.LOSE: lose,
    Kind.DRAIN_WORKER: drain_worker,
    Kind.STOP_DISPATCHER: stop_dispatcher,
    Kind.LEAVE: leave,
    Kind.CLEAR: clear,
}
"""The makers of these kinds of moves."""
